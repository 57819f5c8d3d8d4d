#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the checkpoints of cases.py with random weights, and their float64 answers (NAME.golden.json) from the real library.

    make.py --library DIR_WITH_fast_transformers [--out DIR] [--pytorch]

Needs torch, safetensors, and pytorch-fast-transformers (its sources suffice). Without --out the committed files beside this script are
replaced. --pytorch: PyTorch files as trainers leave them, with optimizer states beside nested weights, instead of safetensors.
The answers come from the library's own builders and from formulas written out here: nothing of the converter takes part, except for `rfa`,
which the library lacks and rivulet_tools.network defines.
"""

import argparse
import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[3] / "model" / "tools"))
from cases import CASES, Case  # noqa: E402
from rivulet_tools.library import import_library  # noqa: E402

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

KEY_DIM, VALUE_DIM, FFN = 8, 8, 48
POSITIONS = [0, 1, 2, 5, 11, 23, 37, 41]
HIDDEN = 16


def feature_map(case: Case):
    """The library's factory for a case, None for its default."""
    from fast_transformers import feature_maps

    classes = {
        "random_fourier": feature_maps.RandomFourierFeatures,
        "smoothed_random_fourier": feature_maps.SmoothedRandomFourierFeatures,
        "favor": feature_maps.Favor,
        "generalized_random": feature_maps.GeneralizedRandomFeatures,
    }
    return None if case.map == "elu" else classes[case.map].factory(deterministic_eval=True, **case.map_arguments)


def library_encoders(case: Case):
    """(the batch encoder, as trained; the recurrent one, which answers), of the library, with the same random weights."""
    from fast_transformers.builders import RecurrentEncoderBuilder, TransformerEncoderBuilder

    kwargs = dict(
        n_layers=case.layers, n_heads=case.heads, feed_forward_dimensions=FFN, query_dimensions=HIDDEN // case.heads,
        value_dimensions=HIDDEN // case.heads, activation=case.activation, final_normalization=case.final_norm,
        feature_map=feature_map(case),
    )  # fmt: skip
    batch = TransformerEncoderBuilder.from_kwargs(attention_type="causal-linear", **kwargs).get()
    for module in batch.modules():
        if hasattr(module, "new_feature_map"):
            module.train().new_feature_map("cpu")
    randomize(batch)
    recurrent = RecurrentEncoderBuilder.from_kwargs(attention_type="linear", **kwargs).get()
    recurrent.load_state_dict(batch.state_dict())
    return batch, recurrent.double().eval()


def rfa_encoders(case: Case):
    """The same pair for the map that the library lacks."""
    from rivulet_tools.network import Encoder

    config = {
        "hidden_size": HIDDEN, "num_layers": case.layers, "num_heads": case.heads, "key_dim": KEY_DIM, "value_dim": VALUE_DIM,
        "ffn_size": FFN, "activation": case.activation, "layer_norm_eps": 1e-5, "final_norm": True,
        "attention": {"feature_map": {"type": "rfa", **case.map_arguments}, "gate": "rfa", "normalizer": {"type": "clamp_min", "min": 0.01}},
    }  # fmt: skip
    batch, recurrent = Encoder(config, 16, 0.0), Encoder(config, 16, 0.0)
    randomize(batch)
    recurrent.load_state_dict(batch.state_dict())
    recurrent = recurrent.double().eval()
    return batch, lambda x, state: recurrent(x, state, "step")


def randomize(module: torch.nn.Module) -> None:
    """Weights large enough that a mistake in any of them shows."""
    for name, parameter in module.named_parameters():
        if "norm" in name or "sigma" in name:
            parameter.data = 1 + 0.2 * torch.randn_like(parameter) if name.endswith(("weight", "sigma")) else 0.2 * torch.randn_like(parameter)
        else:
            parameter.data = torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1)


def paper_positions(length: int, columns: int) -> torch.Tensor:
    """Sinusoidal positions as the paper's code makes them, in float32."""
    place = torch.arange(length, dtype=torch.float)[:, None]
    frequency = torch.exp(torch.arange(0, columns, 2).float() * (-math.log(10000.0) / columns))
    table = torch.zeros(length, columns)
    table[:, 0::2], table[:, 1::2] = torch.sin(place * frequency), torch.cos(place * frequency)
    return table


def nll(outputs: torch.Tensor, token: int, case: Case) -> float:
    """Nats of one token from its raw outputs in float64, by the words of model/FORMAT.md."""
    if not case.mixtures:
        return float(torch.logsumexp(outputs, 0) - outputs[token])
    logits, means, log_scales = outputs.chunk(3)
    scale = log_scales.clamp(min=-7).exp()
    value, half = -1 + 2 * token / 255, 1 / 255
    upper, lower = torch.sigmoid((value + half - means) / scale), torch.sigmoid((value - half - means) / scale)
    probability = upper - lower
    m = torch.sigmoid((value - means) / scale)
    probability = torch.where(probability <= 1e-5, m * (1 - m) / scale * 2 / 255, probability)
    if token in (0, 255):
        probability = upper if token == 0 else 1 - lower
    return float(-torch.log((torch.softmax(logits, 0) * probability).sum()))


class Checkpoint:
    """A case's tensors under the case's names, and its answers."""

    def __init__(self, case: Case, seed: int):
        torch.manual_seed(seed)
        self.case = case
        batch, self.recurrent = rfa_encoders(case) if case.map == "rfa" else library_encoders(case)
        columns = HIDDEN // 2 if case.combine == "concat" else HIDDEN
        outputs = 3 * case.mixtures or case.vocab
        self.embedding = torch.randn(case.vocab, columns)
        self.table = paper_positions(case.length, columns) if case.position == "sinusoidal" else 0.5 * torch.randn(case.length, columns)
        self.weight, self.bias = torch.randn(outputs, HIDDEN) * 0.25, torch.randn(outputs) * 0.1
        embedding, position, head = case.names
        self.tensors = {case.encoder + name: value.clone() for name, value in batch.state_dict().items()}
        self.tensors |= {embedding: self.embedding, f"{head}.weight": self.weight, f"{head}.bias": self.bias}
        if case.position != "none":
            self.tensors[position] = self.table[None]

    def answer(self, tokens: list[int]) -> dict:
        """The sequence's entry in golden.json."""
        case, bos, state, nats, rows = self.case, self.case.bos, None, 0.0, []
        fed, scored = ([bos, *tokens[:-1]], tokens) if bos is not None else (tokens[:-1], tokens[1:])
        for t, (token, following) in enumerate(zip(fed, scored, strict=True)):
            x = self.embedding[token].double()
            if case.position != "none":
                row = self.table[t].double()
                x = torch.cat([x, row]) if case.combine == "concat" else x + row
            with torch.no_grad():
                y, state = self.recurrent(x[None], state)
            rows.append(self.weight.double() @ y[0] + self.bias.double())
            nats += nll(rows[-1], following, case)
        return {"tokens": tokens, "num_scored": len(scored), "nll_nats": nats, "outputs": [rows[p].tolist() for p in POSITIONS]}

    def golden(self) -> dict:
        generator = torch.Generator().manual_seed(7)
        length = self.case.length + (self.case.bos is None)
        sequences = [torch.randint(self.case.vocab, (n,), generator=generator).tolist() for n in (length, 43)]
        return {"about": "float64 answers of pytorch-fast-transformers; see make.py", "positions": POSITIONS,
                "sequences": [self.answer(s) for s in sequences]}  # fmt: skip


def save_as_trainers_do(checkpoint: Checkpoint, index: int, out: pathlib.Path) -> None:
    """A PyTorch file, each of another common form; the optimizer's states are as large as the weights."""
    tensors, name = checkpoint.tensors, checkpoint.case.name
    states = {i: {"step": torch.tensor(1.0), "exp_avg": torch.zeros_like(t), "exp_avg_sq": t * t} for i, t in enumerate(tensors.values())}
    optimizer = {"state": states, "param_groups": [{"lr": 1e-3, "params": list(states)}]}
    forms = (
        (".pt", {"model_state": tensors, "optimizer_state": optimizer, "iteration": 9}),
        (".ckpt", {"state_dict": tensors, "optimizer_states": [optimizer], "epoch": 2, "global_step": 9, "lr_schedulers": []}),
        (".pth", tensors),
        (".bin", {"model": tensors, "args": {"lr": 0.1}}),
    )
    suffix, content = forms[index % len(forms)]
    torch.save(content, out / f"{name}{suffix}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    parser.add_argument("--pytorch", action="store_true")
    args = parser.parse_args()
    import_library(args.library)
    for index, case in enumerate(CASES):
        checkpoint = Checkpoint(case, 100 + index)
        (args.out / f"{case.name}.golden.json").write_text(json.dumps(checkpoint.golden()) + "\n")
        if args.pytorch:
            save_as_trainers_do(checkpoint, index, args.out)
        else:
            save_file({name: value.contiguous() for name, value in checkpoint.tensors.items()}, args.out / f"{case.name}.safetensors")


if __name__ == "__main__":
    main()
