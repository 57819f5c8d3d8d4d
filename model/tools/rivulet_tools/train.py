# SPDX-License-Identifier: Apache-2.0
"""rivulet-train: trains models of the zoo's kinds, in their size or smaller, and writes a model directory.

Exit codes: 0 success; 2 bad input; 3 PyTorch or tqdm is absent; 130 interrupted (the same command continues).
"""

import argparse
import pathlib
import re
import sys
from collections.abc import Sequence

from rivulet_tools.errors import Absent, BadInput
from rivulet_tools.flags import fraction, from_zero, number_from_zero, positive, positive_number
from rivulet_tools.model_directory import refuse_existing


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rivulet-train", description="Trains a linear transformer and writes a Rivulet model directory. "
                                     "Example: rivulet-train text --data book.txt --out verse --steps 300")  # fmt: skip
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="mnist|text")
    mnist = kinds.add_parser("mnist", help="images pixel by pixel: elu + 1, learned positions, mixture of logistics",
                             formatter_class=argparse.ArgumentDefaultsHelpFormatter)  # fmt: skip
    mnist.add_argument("--data", type=pathlib.Path, required=True,
                       help="a folder with MNIST's train and t10k images, or one IDX file, whose first tenth is held out")  # fmt: skip
    mnist.add_argument("--mixtures", type=positive, default=10, help="logistics in the head")
    mnist.add_argument("--eval-images", type=positive, default=200, help="number of held-out images for the final score")
    _add_common(mnist, layers=8, heads=8, key_dim=32, ffn=1024, batch=32, lr=5e-4, steps=20000, chunk=64)
    text = kinds.add_parser("text", help="characters: random features with the recency gate (RFA), no positions",
                            formatter_class=argparse.ArgumentDefaultsHelpFormatter)  # fmt: skip
    text.add_argument("--data", type=pathlib.Path, required=True, help="a text file, UTF-8")
    text.add_argument("--length", type=positive, default=256, help="characters in a training window")
    text.add_argument("--features", type=positive, default=64, help="random frequencies per head")
    text.add_argument("--holdout", type=fraction, default=0.1, help="fraction at the end of the text that is kept for the final score")
    _add_common(text, layers=6, heads=6, key_dim=64, ffn=1536, batch=32, lr=1e-3, steps=5000, chunk=64)
    return parser


def _add_common(parser: argparse.ArgumentParser, **defaults: float) -> None:
    """The flags of both kinds; `defaults`: the zoo's sizes."""
    add = parser.add_argument
    add("--out", type=pathlib.Path, required=True, help="the model directory to write; while training, OUT.training.pt is next to it")
    add("--name", help="name of the model (default: the directory's name)")
    for name, kind, words in (
        ("steps", positive, "updates"),
        ("batch", positive, "sequences per update"),
        ("lr", positive_number, "highest learning rate"),
        ("layers", positive, "layers"),
        ("heads", positive, "heads; hidden size = heads x key_dim"),
        ("key_dim", positive, "size of a key, and of a value, per head"),
        ("ffn", positive, "feed-forward size"),
        ("chunk", positive, "tokens that attention processes at once; affects only speed and memory"),
    ):
        add(f"--{name.replace('_', '-')}", type=kind, default=defaults[name], help=words)
    add("--warmup", type=from_zero, default=100, help="updates until the highest learning rate is reached")
    add("--clip", type=positive_number, default=1.0, help="largest norm of the gradient")
    add("--weight-decay", type=number_from_zero, default=0.01, help="weight decay of matrices")
    add("--dropout", type=number_from_zero, default=0.0, help="dropout probability, below 1")
    add("--seed", type=from_zero, default=1, help="seed of weights, batches and dropout")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    add("--threads", type=from_zero, default=0, help="CPU threads; 0: PyTorch's choice")
    add("--dtype", choices=("f32", "f16", "bf16"), default="f32", help="element type of the written weights")
    add("--log-every", type=positive, default=50, help="updates between two printed losses")
    add("--save-every", type=positive, default=500, help="updates between two saved states, from which an interrupted run continues")
    add("--force", action="store_true", help="replace the model directory if it exists")
    add("--restart", action="store_true", help="start over instead of continuing an interrupted run")


def train(args: argparse.Namespace) -> int:
    """Raises BadInput and Absent."""
    refuse_existing(args.out, args.force)
    if args.dropout >= 1:
        raise BadInput(f"--dropout {args.dropout}: below 1 is allowed")
    if args.name is None:
        args.name = re.sub(r"[^a-z0-9._-]+", "-", args.out.resolve().name.lower()).lstrip("._-")[:64] or "model"
    elif not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", args.name):
        raise BadInput(f"--name {args.name!r}: [a-z0-9][a-z0-9._-]{{0,63}} is allowed")
    try:
        import torch

        from rivulet_tools.recipes import ImageRecipe, TextRecipe
        from rivulet_tools.training import Training
    except ImportError as error:
        raise Absent(f"{error.name} is not installed; training needs torch and tqdm (pip install torch tqdm)") from error
    if args.threads:
        torch.set_num_threads(args.threads)
    run = Training(args, ImageRecipe(args) if args.kind == "mnist" else TextRecipe(args))
    run.resume()
    parameters = sum(p.numel() for p in run.network.parameters())
    print(f"{args.kind}: {parameters} parameters, {args.steps} steps of {args.batch} sequences on {run.device}", flush=True)
    if not run.run():
        print(f"rivulet-train: interrupted after step {run.step}; the same command continues from {run.path}", file=sys.stderr)
        return 130
    run.finish()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. argv: flags without the program's name."""
    args = make_parser().parse_args(argv)
    try:
        return train(args)
    except (BadInput, Absent) as error:
        print(f"rivulet-train: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"rivulet-train: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
