#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the folders mamba-ssm and mamba-ssm-groups: Mamba-2 with random weights as mamba_ssm's save_pretrained leaves it, and float64 answers.

    make_mamba_ssm.py [--out DIR]

Needs torch. The model is written out here in plain PyTorch with mamba_ssm's modules, names and settings, as that package needs a GPU: the
equations are those of its Mamba2.step(), one token after the other. Nothing of the converter takes part. Without --out the committed folders
beside this script are replaced.
"""

import argparse
import json
import math
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
POSITIONS = [0, 1, 2, 3, 5, 9, 17, 30]
CASES = {
    "mamba-ssm": (torch.float16, {
        "d_model": 32, "d_intermediate": 0, "n_layer": 2, "vocab_size": 61, "attn_layer_idx": [], "attn_cfg": {}, "rms_norm": True,
        "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 16, "tie_embeddings": True,
        "ssm_cfg": {"layer": "Mamba2", "d_state": 16, "headdim": 16},
    }),
    "mamba-ssm-groups": (torch.float32, {
        "d_model": 24, "n_layer": 2, "vocab_size": 40, "pad_vocab_size_multiple": 8, "tie_embeddings": False,
        "ssm_cfg": {
            "layer": "Mamba2", "d_state": 8, "headdim": 12, "ngroups": 2, "d_conv": 3, "bias": True, "conv_bias": False,
            "dt_limit": [0.02, 0.4], "chunk_size": 16,
        },
    }),
}  # fmt: skip


class RMSNorm(nn.Module):
    """group: columns that are normed together; the gate comes first."""

    def __init__(self, size: int, group: int):
        super().__init__()
        self.weight, self.group = nn.Parameter(torch.ones(size)), group

    def forward(self, x: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
        x = x if z is None else x * F.silu(z)
        parts = x.unflatten(-1, (-1, self.group))
        return (parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + 1e-5)).flatten(-2) * self.weight


class Mamba2(nn.Module):
    def __init__(self, d_model, d_state=128, d_conv=4, expand=2, headdim=64, ngroups=1, dt_limit=(0.0, math.inf), bias=False, conv_bias=True,
                 chunk_size=256):  # fmt: skip
        super().__init__()
        self.inner, self.state, self.headdim, self.groups, self.dt_limit = expand * d_model, d_state, headdim, ngroups, dt_limit
        self.heads = self.inner // headdim
        channels = self.inner + 2 * ngroups * d_state
        self.in_proj = nn.Linear(d_model, self.inner + channels + self.heads, bias=bias)  # z, x, B, C, dt
        self.conv1d = nn.Conv1d(channels, channels, d_conv, groups=channels, bias=conv_bias)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.empty(self.heads)) for _ in range(3))
        self.norm = RMSNorm(self.inner, self.inner // ngroups)
        self.out_proj = nn.Linear(self.inner, d_model, bias=bias)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        """u: [tokens, d_model]"""
        each, wide = self.groups * self.state, self.inner
        z, xbc, dt = torch.split(self.in_proj(u), [wide, wide + 2 * each, self.heads], -1)
        taps = self.conv1d.weight[:, 0].T
        before = torch.cat([xbc.new_zeros(len(taps) - 1, xbc.shape[1]), xbc])
        bias = 0 if self.conv1d.bias is None else self.conv1d.bias
        xbc = F.silu(torch.stack([(before[t : t + len(taps)] * taps).sum(0) for t in range(len(u))]) + bias)
        x, b, c = torch.split(xbc, [wide, each, each], -1)
        dt = F.softplus(dt + self.dt_bias).clamp(*self.dt_limit)
        x = x.unflatten(-1, (self.heads, self.headdim))
        b, c = (part.unflatten(-1, (self.groups, self.state)).repeat_interleave(self.heads // self.groups, 1) for part in (b, c))
        s, y = u.new_zeros(self.heads, self.headdim, self.state), []
        for t in range(len(u)):
            s = s * torch.exp(-dt[t] * torch.exp(self.A_log))[:, None, None] + torch.einsum("h,hn,hp->hpn", dt[t], b[t], x[t])
            y.append(torch.einsum("hpn,hn->hp", s, c[t]) + self.D[:, None] * x[t])
        return self.out_proj(self.norm(torch.stack(y).flatten(1), z))


class Model(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        size, ssm = config["d_model"], {name: value for name, value in config["ssm_cfg"].items() if name != "layer"}
        pad = config["pad_vocab_size_multiple"]
        vocab = -(-config["vocab_size"] // pad) * pad
        layers = [nn.ModuleDict({"mixer": Mamba2(size, **ssm), "norm": RMSNorm(size, size)}) for _ in range(config["n_layer"])]
        self.backbone = nn.ModuleDict({"embedding": nn.Embedding(vocab, size), "layers": nn.ModuleList(layers), "norm_f": RMSNorm(size, size)})
        self.lm_head = nn.Linear(size, vocab, bias=False)
        if config["tie_embeddings"]:
            self.lm_head.weight = self.backbone.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.backbone.embedding(tokens)
        for layer in self.backbone.layers:
            x = x + layer.mixer(layer.norm(x))
        return self.lm_head(self.backbone.norm_f(x))


def randomize(model: Model) -> None:
    """No parameter keeps a value that would hide it."""
    for name, parameter in model.named_parameters():
        center = 1.0 if "norm" in name or name.endswith(".D") else -1.5 if name.endswith("dt_bias") else 0.0
        spread = 0.3 if parameter.dim() < 2 or "embedding" in name else 0.5 if "conv1d" in name or "A_log" in name else 1.2 * parameter.shape[1] ** -0.5
        parameter.normal_(center, spread)


def write(folder: pathlib.Path, dtype: torch.dtype, config: dict) -> None:
    model = Model(config)
    randomize(model)
    model.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config, indent=4))
    model.double()
    sequences = []
    for length in (32, 48):
        tokens = torch.randint(0, config["vocab_size"], (length,))
        logits = model(tokens)
        nll = F.cross_entropy(logits[:-1], tokens[1:], reduction="sum").item()
        sequences.append({"tokens": tokens.tolist(), "num_scored": length - 1, "nll_nats": nll, "outputs": logits[POSITIONS].tolist()})
    about = "float64 answers; sequences[i].outputs[j] are the logits that predict scored token positions[j]"
    (folder / "golden.json").write_text(json.dumps({"about": about, "positions": POSITIONS, "sequences": sequences}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    out = parser.parse_args().out
    with torch.no_grad():
        for seed, (name, (dtype, config)) in enumerate(CASES.items()):
            torch.manual_seed(seed)
            write(out / name, dtype, config)


if __name__ == "__main__":
    main()
