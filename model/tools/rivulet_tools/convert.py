# SPDX-License-Identifier: Apache-2.0
"""rivulet-convert: a checkpoint of pytorch-fast-transformers, of the authors of RWKV-7 or Mamba-2, or of GP-MoLFormer, becomes a model directory, and the result
is checked.

Exit codes: 0 converted and checked (or --no-check); 1 the check found differences beyond the limits; 2 bad input; 3 something that
the check needs (the directory is kept) or that reading needs is absent.
"""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rivulet_tools import check, mamba2, molformer, names, rwkv7
from rivulet_tools.checkpoint import read_checkpoint
from rivulet_tools.encoder_layout import MAPS
from rivulet_tools.errors import Absent, BadInput
from rivulet_tools.flags import number_from_zero, positive, positive_number
from rivulet_tools.layout import complete
from rivulet_tools.library import Reference, import_library, import_torch, in_library
from rivulet_tools.model_directory import DTYPES, ModelFiles, refuse_existing
from rivulet_tools.plan import Plan
from rivulet_tools.torch_file import DirectoryWeights, TorchFile

STATED_LIMIT = 1e-3  # of raw outputs, by default, of kinds whose checkpoints state all settings
# Flags of every such kind, and of each alone.
STATED_FLAGS = {"checkpoint", "directory", "dtype", "force", "no_check", "rivulet", "expect", "limit"}
RWKV7_FLAGS, MAMBA2_FLAGS, MOLFORMER_FLAGS = {"vocab", "initial_state"}, {"tokenizer", "eos"}, {"tokenizer", "check_length", "check_tokens", "seed"}
NO_VOCABULARY = (
    "no --vocab is given, so the model will be served as token ids, not as text. The World vocabulary is in the PyPI package rwkv: "
    f"rwkv/{rwkv7.VOCABULARY} in its wheel (pip download rwkv --no-deps)"
)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rivulet-convert",
        description="Converts a checkpoint of pytorch-fast-transformers, the author's .pth of RWKV-7 (recognised by its tensors), or a directory of "
        "mamba_ssm with Mamba-2 (recognised by ssm_cfg in its config.json) or of GP-MoLFormer (by its tensors), into a model directory and checks the "
        "result. Settings that shapes do not tell are assumed and listed if the library has a default; otherwise a flag is required. "
        "Example: rivulet-convert mnist.pth mnist-model --num-heads 8",
    )
    parser.add_argument("checkpoint", type=pathlib.Path, help="a PyTorch (.pt .pth .bin .ckpt) or .safetensors file, or a directory of mamba_ssm or GP-MoLFormer")
    parser.add_argument("directory", type=pathlib.Path, help="the model directory to write")
    parser.add_argument("--dtype", choices=DTYPES, default="keep", help="element type of the weights (default: as in the checkpoint)")
    parser.add_argument("--force", action="store_true", help="replace the model directory if it exists")
    parser.add_argument("--map", type=pathlib.Path, metavar="FILE", help="the names of the tensors, if they are not recognised; without it, an unknown checkpoint prints the start of a map")
    parser.add_argument("--ignore-unused", action="store_true", help="ignore tensors that look like weights but have no place in the model")
    parser.add_argument("--vocab", type=pathlib.Path, metavar="FILE", help="RWKV-7: the World vocabulary, which is copied into the directory")
    parser.add_argument("--initial-state", type=pathlib.Path, metavar="FILE", help="RWKV-7: a tuned state (.pth with blocks.N.att.time_state), with which every sequence then begins")
    parser.add_argument("--tokenizer", type=pathlib.Path, metavar="FOLDER", help="Mamba-2 and GP-MoLFormer: where tokenizer.json is, which is copied into the directory (default: the checkpoint's directory)")
    _add_encoder_flags(parser.add_argument_group("the encoder"))
    _add_model_flags(parser.add_argument_group("the model"))
    _add_check_flags(parser.add_argument_group("the check: rivulet score against the library in float64"))
    return parser


def _add_encoder_flags(group: "argparse._ActionsContainer") -> None:
    group.add_argument("--num-heads", type=positive, help="number of heads; required for the elu map")
    group.add_argument("--feature-map", choices=MAPS, help="required if there is an omega, because several maps have its shape")
    group.add_argument("--n-dims", type=positive, help="size of smoothed_random_fourier, if two sizes fit")
    group.add_argument("--softmax-temp", type=positive_number, help="temperature of the feature map; default: 1/sqrt(key_dim), 1 for generalized_random")
    group.add_argument("--smoothing", type=number_from_zero, help="smoothing of smoothed_random_fourier; default: 1")
    group.add_argument("--stabilize", action="store_true", help="set this if Favor was stabilized; the conversion then ends with an error")
    group.add_argument("--activation", choices=("relu", "gelu"), help="of the feed-forward part; required, except for the paper's ImageGenerator, which has relu")
    group.add_argument("--layer-norm-eps", type=positive_number, help="eps of LayerNorm; default: 1e-5")
    group.add_argument("--eps", type=positive_number, help="eps of the normalizer; default: 1e-6")
    group.add_argument("--clamp-min", type=positive_number, help="normalizer max(q.z, MIN); default for rfa: 0.01")


def _add_model_flags(group: "argparse._ActionsContainer") -> None:
    group.add_argument("--name", help="name of the model; default: the directory's name")
    group.add_argument("--position-type", choices=("none", "learned", "sinusoidal"))
    group.add_argument("--max-length", type=positive, help="length of sinusoidal positions that the checkpoint does not hold, or a shorter length of a table")
    group.add_argument("--bos", metavar="ID|none", help="token that begins every sequence")
    group.add_argument("--eos", metavar="ID|none", help="token that ends a generation; default: none; Mamba-2: <|endoftext|> of the tokenizer")
    group.add_argument("--output", choices=("categorical", "mixture"), help="kind of the head")
    group.add_argument("--num-levels", type=positive, help="levels of a mixture; default: 256 for 256 or 257 tokens")
    group.add_argument("--scale", choices=("exp", "elu"), help="how a mixture samples; required, except for the paper's ImageGenerator, which has elu")
    group.add_argument("--content", choices=("tokens", "image", "text"), help="meaning of the tokens")
    group.add_argument("--height", type=positive)
    group.add_argument("--width", type=positive)
    group.add_argument("--channels", type=positive)
    group.add_argument("--alphabet", type=pathlib.Path, metavar="FILE", help="file with only the characters, in the order of their ids, in UTF-8")


def _add_check_flags(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--no-check", action="store_true", help="do not check the result")
    group.add_argument("--library", type=pathlib.Path, metavar="DIR", help="folder that contains fast_transformers, if the library is not installed")
    group.add_argument("--rivulet", type=pathlib.Path, metavar="PATH", help="the command rivulet (default: from PATH)")
    group.add_argument("--check-tokens", type=pathlib.Path, metavar="FILE", help='file with lines {"tokens":[...]} to check with (default: random tokens)')
    group.add_argument("--check-length", type=positive, default=128, help="number of random tokens (default: 128)")
    group.add_argument("--seed", type=int, default=1, help="seed of the random tokens")
    group.add_argument("--expect", type=pathlib.Path, metavar="FILE", help="compare with this golden.json from your own code instead of the library's outputs")
    group.add_argument("--limit", type=positive_number, help="largest absolute difference of raw outputs (default: 2e-3, 5e-3 for random_fourier)")
    group.add_argument("--golden", action="store_true", help="write the library's outputs to golden.json in the model directory")


def read_alphabet(path: pathlib.Path | None) -> str | None:
    """The content of the file of --alphabet."""
    try:
        return None if path is None else path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--alphabet {path}: {error}") from error


def add_settings(args: argparse.Namespace, settings: Mapping[str, Any]) -> None:
    """Puts the settings of a map into `args` unless a flag gives them. Raises BadInput for a bad setting."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False, allow_abbrev=False)
    _add_encoder_flags(parser)
    _add_model_flags(parser)
    for key, value in settings.items():
        try:
            found, rest = parser.parse_known_args([f"--{key}={value}"])
        except argparse.ArgumentError as error:
            names.refuse_entry(args.map, key, value, error.message)
        if rest or not isinstance(value, (str, int, float)):
            names.refuse_entry(args.map, key, value, "a setting is a flag of the encoder or the model, without its --, and a string or number")
        for name, parsed in vars(found).items():
            if getattr(args, name) is None:
                setattr(args, name, parsed)


class Conversion:
    """One run of the command, from flags to an exit code."""

    def __init__(self, args: argparse.Namespace):
        self.args = args

    def run(self) -> int:
        """Raises BadInput and Absent. A check that cannot be made is only reported, because the directory exists."""
        args = self.args
        if args.golden and (args.no_check or args.expect):
            raise BadInput("--golden writes the library's answers, so it needs the check against the library: no --no-check, no --expect")
        refuse_existing(args.directory, args.force)
        if mamba2.is_mamba2(args.checkpoint):
            return self.run_mamba2()
        if args.checkpoint.is_dir():
            return self.run_molformer()
        if rwkv7.is_rwkv7(args.checkpoint):
            return self.run_rwkv7()
        for flag in ("vocab", "initial_state"):
            if getattr(args, flag) is not None:
                raise BadInput(f"--{flag.replace('_', '-')} is for RWKV-7; {args.checkpoint} has no tensor 'blocks.0.att.r_k'")
        if args.tokenizer is not None:
            raise BadInput(f"--tokenizer is for a directory; {args.checkpoint} is a file")
        source = read_checkpoint(args.checkpoint)
        if args.map is None:
            theirs = names.recognised(source)
        else:
            tensors, settings = names.read_map(args.map)
            theirs = names.mapped(args.map, tensors, source)
            add_settings(args, settings)
        args.alphabet = read_alphabet(args.alphabet)
        plan = Plan(source, theirs, paper=args.map is None and theirs["embedding.weight"].endswith(names.PAPER_EMBEDDING))
        complete(plan, args, args.directory.resolve().name)
        print(f"{args.checkpoint}: {len(source)} tensors")
        print(plan.report(), flush=True)
        files = ModelFiles(plan.config, plan.tensors, args.dtype)
        want, absent = None, None
        if not args.no_check:
            try:
                want = self.wanted(plan, files)
            except Absent as error:
                absent = str(error)
        files.write(args.directory, force=args.force, golden=want if args.golden else None)
        print(f"wrote {args.directory}")
        if args.no_check:
            return 0
        try:
            if want is None:
                raise Absent(absent)
            return self.compare(plan, want)
        except Absent as error:
            check.say_not_checked(str(error))
            return error.exit_code

    def run_rwkv7(self) -> int:
        args = self.args
        want = self.begin_stated("RWKV-7", RWKV7_FLAGS)
        with contextlib.ExitStack() as files:
            state = None if args.initial_state is None else files.enter_context(rwkv7.open_state(args.initial_state))
            conversion = rwkv7.Conversion(files.enter_context(TorchFile(args.checkpoint)), state)
            vocabulary = None if args.vocab is None else rwkv7.read_vocabulary(args.vocab, conversion.sizes.vocab)
            print(conversion.report(), flush=True)
            conversion.write(args.directory, args.dtype, vocabulary, args.force)
        return self.end_stated(want, NO_VOCABULARY if vocabulary is None else None)

    def run_mamba2(self) -> int:
        args = self.args
        want = self.begin_stated("Mamba-2", MAMBA2_FLAGS)
        if args.tokenizer is not None and not (args.tokenizer / "tokenizer.json").is_file():
            raise BadInput(f"--tokenizer {args.tokenizer}: holds no tokenizer.json")
        with DirectoryWeights(args.checkpoint) as weights:
            conversion = mamba2.Conversion(mamba2.Settings(args.checkpoint), weights, args.tokenizer or args.checkpoint, args.eos)
            print(conversion.report(), flush=True)
            conversion.write(args.directory, args.dtype, args.force)
        return self.end_stated(want, conversion.warning())

    def run_molformer(self) -> int:
        args = self.args
        want, against = self.begin_stated("GP-MoLFormer", MOLFORMER_FLAGS), f"{args.expect}"
        with DirectoryWeights(args.checkpoint) as weights:
            conversion = molformer.Conversion(args.checkpoint, weights, args.tokenizer, args.dtype)
            print(conversion.report(), flush=True)
            if want is None and not args.no_check:
                limits = {"position": {"type": "none"}, "output": {}, "vocab_size": conversion.values["vocab_size"]}
                sequences = [check.random_tokens(limits, args.check_length, args.seed)]
                if args.check_tokens is not None:
                    sequences = check.read_tokens(args.check_tokens)
                want, against = check.golden(conversion, sequences), "its equations in float64"
            conversion.write(args.directory, args.force)
        return self.end_stated(want, conversion.warning(), against)

    def begin_stated(self, kind: str, own: set[str]) -> dict | None:
        """All settings are in the checkpoint, so flags for settings are refused. Returns the file of --expect."""
        args, parser = self.args, make_parser()
        for name, value in vars(args).items():
            if name not in STATED_FLAGS | own and value != parser.get_default(name):
                raise BadInput(f"--{name.replace('_', '-')} is not for {kind}, whose checkpoint states its settings")
        return check.read_golden(args.expect) if args.expect is not None and not args.no_check else None

    def end_stated(self, want: dict | None, warning: str | None, against: str | None = None) -> int:
        args = self.args
        print(f"wrote {args.directory}", flush=True)
        if warning is not None:
            print(f"WARNING: {warning}", file=sys.stderr, flush=True)
        if want is None:
            print("not compared: --expect FILE compares with a golden.json of other code")
            return 0
        try:
            found = check.difference(want, check.rivulet_score(check.find_rivulet(args.rivulet), args.directory, want))
        except Absent as error:
            check.say_not_checked(str(error))
            return error.exit_code
        return 0 if check.print_difference(found, args.limit or STATED_LIMIT, against or f"{args.expect}", want, "good") else 1

    def wanted(self, plan: Plan, files: ModelFiles) -> dict:
        """The expected answers of the model: from --expect, or from the library with the checkpoint's tensors as written."""
        args = self.args
        if args.expect is not None:
            return check.read_golden(args.expect)
        if in_library(plan.config):
            import_library(args.library)
        else:
            import_torch()
        sequences = [check.random_tokens(plan.config, args.check_length, args.seed)]
        if args.check_tokens is not None:
            sequences = check.read_tokens(args.check_tokens)
        want = check.golden(Reference(plan.config, plan.tensors, plan.position_table), sequences)
        rounded = any(
            files.weights[name].dtype in ("F16", "BF16") and not np.array_equal(files.weights[name].values, tensor.values)
            for name, tensor in plan.tensors.items()
        )
        if rounded:
            table = None if plan.config["position"]["type"] == "learned" else plan.position_table
            exact, want = want, check.golden(Reference(plan.config, files.weights, table), sequences)
            effect = check.difference(exact, want["sequences"])
            print(f"rounding to {args.dtype} changes raw outputs by up to {effect.outputs:.2e}, nll by {effect.nll:.2e} (relative)")
        return want

    def compare(self, plan: Plan, want: dict) -> int:
        args = self.args
        against = "the library in float64" if in_library(plan.config) else "rivulet_tools.network in float64 (the library lacks this attention)"
        against = f"{args.expect}" if args.expect is not None else against
        found = check.difference(want, check.rivulet_score(check.find_rivulet(args.rivulet), args.directory, want))
        limit = args.limit or check.output_limit(plan.config)
        verdict = "good" if args.expect is not None else "the same, with the assumed settings on both sides"
        return 0 if check.print_difference(found, limit, against, want, verdict) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """The command. argv: flags without the program's name."""
    args = make_parser().parse_args(argv)
    try:
        return Conversion(args).run()
    except (BadInput, Absent) as error:
        print(f"rivulet-convert: {error}", file=sys.stderr, flush=True)
        if isinstance(error, names.Unrecognised):
            print(error.start)
        return error.exit_code
    except OSError as error:
        print(f"rivulet-convert: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
