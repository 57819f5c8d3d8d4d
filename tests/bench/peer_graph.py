#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The honest rival on a GPU: the generation step that a good PyTorch programmer would write by hand, in a CUDA graph.

Query, key, value (and gate) are one product; matrices are in float16, bfloat16, float32 or TF32; S, z, norms, feature maps, head
and the draw are in float32; several steps with their draws are one graph; torch.compile may fuse what lies between the products.
Needs torch and numpy, and a CUDA device except for --check:
    peer_graph.py --model DIR|cifar-10|110m [--rows 1,64,1024] [--matrices f16,bf16,tf32,f32] [--compile no,yes] [--steps 8]
    peer_graph.py --model DIR --check      float32 on the CPU against the model's golden.json; ends with 1 where they differ
Prints one JSON line a setting: microseconds a step (median over graph launches), tokens/s, and GB/s of weights and states, each
read once and states written once. "cifar-10" (16 layers, hidden 256) and "110m" (12 layers, hidden 768) have random weights.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys

import torch
from torch.nn.functional import gelu, layer_norm, linear

from peer_pytorch import read_safetensors

CHECKED = 2e-3  # largest difference of raw outputs that --check allows
MATRICES = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "f32": torch.float32}
SHAPES = {
    "cifar-10": {"hidden_size": 256, "num_layers": 16, "num_heads": 8, "ffn_size": 1024, "positions": 3072},
    "110m": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "ffn_size": 3072, "positions": 2048},
}


def random_model(name):
    """config and weights of a shape: elu + 1, learned positions; a mixture of 10 logistics, or 16,384 tokens for "110m"."""
    shape = SHAPES[name]
    hidden, heads, ffn = shape["hidden_size"], shape["num_heads"], shape["ffn_size"]
    text = name == "110m"
    vocab, outputs = (16384, 16384) if text else (257, 30)
    config = {
        **shape, "key_dim": hidden // heads, "value_dim": hidden // heads, "activation": "gelu", "layer_norm_eps": 1e-5, "final_norm": True,
        "bos_token_id": None if text else 256, "position": {"type": "learned", "combine": "add"},
        "attention": {"feature_map": {"type": "elu"}, "gate": "none", "normalizer": {"type": "add_eps", "eps": 1e-6}},
        "output": {"type": "categorical"} if text else {"type": "mixture_of_logistics", "num_mixtures": 10},
    }  # fmt: skip
    random = torch.Generator().manual_seed(1)
    weights = {}

    def add(key, *dims):
        weights[key + ".weight"] = torch.randn(dims, generator=random) / math.sqrt(dims[-1])
        weights[key + ".bias"] = torch.zeros(dims[0])

    for i in range(shape["num_layers"]):
        prefix = f"transformer.layers.{i}."
        for part in ("query", "key", "value", "out"):
            add(prefix + f"attention.{part}_projection", hidden, hidden)
        add(prefix + "linear1", ffn, hidden)
        add(prefix + "linear2", hidden, ffn)
        for norm in ("norm1", "norm2"):
            weights[prefix + norm + ".weight"], weights[prefix + norm + ".bias"] = torch.ones(hidden), torch.zeros(hidden)
    weights["transformer.norm.weight"], weights["transformer.norm.bias"] = torch.ones(hidden), torch.zeros(hidden)
    weights["embedding.weight"] = torch.randn(vocab, hidden, generator=random)
    weights["position.weight"] = torch.randn(shape["positions"], hidden, generator=random)
    add("predictor", outputs, hidden)
    return config, weights


def draw_category(logits):
    """An exponential race: as multinomial draws, without its host checks."""
    return (logits.softmax(1) / torch.empty_like(logits).exponential_()).argmax(1)


class Step:
    """One step of `rows` rows, in place: states, token and position of each row are the same tensors for ever."""

    def __init__(self, config, weights, rows, matrices, device):
        self.config, self.rows, self.matrices = config, rows, matrices
        kind = config["attention"]["feature_map"]["type"]
        if kind not in ("elu", "rfa") or config["position"]["type"] == "sinusoidal":
            raise SystemExit(f"--model: feature map {kind!r} with these positions is not known here")
        self.w = {name: value.to(device) for name, value in weights.items()}
        heads, values = config["num_heads"], config["value_dim"]
        features = config["key_dim"] if kind == "elu" else 2 * config["attention"]["feature_map"]["num_features"]
        self.layers = [self.prepare(i) for i in range(config["num_layers"])]
        self.s = [torch.zeros(rows * heads, features, values, device=device) for _ in self.layers]
        self.z = [torch.zeros(rows * heads, features, device=device) for _ in self.layers]
        self.token = torch.zeros(rows, dtype=torch.long, device=device)
        self.position = torch.zeros(1, dtype=torch.long, device=device)
        self.most_positions = self.w["position.weight"].shape[0] if "position.weight" in self.w else math.inf

    def prepare(self, i):
        prefix, w = f"transformer.layers.{i}.", self.w
        parts = [prefix + f"attention.{n}_projection" for n in ("query", "key", "value")]
        if self.config["attention"]["gate"] == "rfa":
            parts.append(prefix + "attention.gate_projection")
        layer = {"qkv": tuple(torch.cat([w[p + end] for p in parts]) for end in (".weight", ".bias"))}
        for name, key in (("out", "attention.out_projection"), ("ffn1", "linear1"), ("ffn2", "linear2")):
            layer[name] = w[prefix + key + ".weight"], w[prefix + key + ".bias"]
        layer = {name: tuple(part.to(self.matrices) for part in pair) for name, pair in layer.items()}
        for norm in ("norm1", "norm2"):
            layer[norm] = w[prefix + norm + ".weight"], w[prefix + norm + ".bias"]
        if self.config["attention"]["feature_map"]["type"] == "rfa":
            layer["omega"] = w[prefix + "attention.omega"] * w[prefix + "attention.sigma"][:, :, None]
        return layer

    def bytes_per_step(self):
        weights = sum(part.numel() * part.element_size() for layer in self.layers for pair in layer.values() for part in pair)
        states = sum(t.numel() * 4 for t in self.s + self.z)
        return weights + self.w["predictor.weight"].numel() * 4 + 2 * states

    def norm(self, x, pair):
        return layer_norm(x, x.shape[-1:], *pair, self.config["layer_norm_eps"])

    def product(self, x, pair):
        return linear(x.to(self.matrices), *pair).float()

    def features(self, x, layer):
        if "omega" not in layer:
            return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))
        x = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        u = torch.einsum("rhd,hdn->rhn", x, layer["omega"])
        return torch.cat([u.sin(), u.cos()], -1) / math.sqrt(u.shape[-1])

    def attention(self, i, x):
        c, layer = self.config, self.layers[i]
        heads, dk, dv = c["num_heads"], c["key_dim"], c["value_dim"]
        mixed = self.product(x, layer["qkv"])
        q, k, v = mixed[:, : heads * (2 * dk + dv)].split([heads * dk, heads * dk, heads * dv], 1)
        q, k = (self.features(t.view(-1, heads, dk), layer).flatten(0, 1) for t in (q, k))
        v = v.reshape(-1, 1, dv)
        s, z = self.s[i], self.z[i]
        if c["attention"]["gate"] == "rfa":
            gate = mixed[:, heads * (2 * dk + dv) :].reshape(-1, 1)
            g, k = torch.sigmoid(gate), k * torch.sigmoid(-gate)
            s.mul_(g[:, :, None])
            z.mul_(g)
        s.baddbmm_(k[:, :, None], v)
        z.add_(k)
        dot, normalizer = (q * z).sum(1, keepdim=True), c["attention"]["normalizer"]
        dot = dot + normalizer["eps"] if normalizer["type"] == "add_eps" else dot.clamp_min(normalizer["min"])
        y = torch.bmm(q[:, None, :], s)[:, 0] / dot
        return self.product(y.reshape(-1, heads * dv), layer["out"])

    def outputs(self):
        """Feeds `token` at `position`; returns the raw head outputs [rows, outputs]."""
        c = self.config
        x = self.w["embedding.weight"][self.token]
        if c["position"]["type"] == "learned":
            x = x + self.w["position.weight"][self.position]
        for i, layer in enumerate(self.layers):
            x = self.norm(x + self.attention(i, x), layer["norm1"])
            hidden = self.product(x, layer["ffn1"])
            hidden = hidden.relu() if c["activation"] == "relu" else gelu(hidden)
            x = self.norm(x + self.product(hidden, layer["ffn2"]), layer["norm2"])
        if c["final_norm"]:
            x = self.norm(x, (self.w["transformer.norm.weight"], self.w["transformer.norm.bias"]))
        return linear(x, self.w["predictor.weight"], self.w["predictor.bias"])

    def draw(self, out):
        if self.config["output"]["type"] == "categorical":
            return draw_category(out)
        logits, means, scales = out.split(self.config["output"]["num_mixtures"], 1)
        pick = draw_category(logits)[:, None]
        mean, scale = means.gather(1, pick)[:, 0], scales.gather(1, pick)[:, 0].clamp(min=-7).exp()
        u = torch.rand_like(mean).clamp(1e-5, 1 - 1e-5)
        value = (mean + scale * (torch.log(u) - torch.log1p(-u))).clamp(-1, 1)
        return torch.round((value + 1) / 2 * 255).long()

    def step(self):
        self.token.copy_(self.draw(self.outputs()))
        self.position.add_(1)


def check(config, weights, golden):
    """The largest difference of the raw outputs from the golden ones, in float32 on the CPU."""
    worst = 0.0
    for sequence in golden["sequences"]:
        step = Step(config, weights, 1, torch.float32, "cpu")
        bos = config["bos_token_id"]
        fed = sequence["tokens"] if bos is None else [bos, *sequence["tokens"]]
        wanted = dict(zip(golden["positions"], sequence["outputs"], strict=False))
        worst = max(worst, difference(step, fed, wanted))
    return worst


def difference(step, fed, wanted):
    """The largest difference of the outputs after the tokens `fed` from those in `wanted`, by position."""
    worst = 0.0
    for position, token in enumerate(fed[: max(wanted) + 1]):
        step.token.fill_(token)
        out = step.outputs()[0].double()
        step.position.add_(1)
        if position in wanted:
            worst = max(worst, (out - torch.tensor(wanted[position], dtype=torch.float64)).abs().max().item())
    return worst


def measure(step, compiled, steps, launches):
    """Microseconds of a step: median over the launches of a graph of `steps` steps."""
    one = torch.compile(step.step, mode="max-autotune-no-cudagraphs") if compiled else step.step
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            one()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            one()
    times = []
    for _ in range(launches):
        if step.position.item() >= step.most_positions - steps:
            step.position.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / steps)
    return statistics.median(times[launches // 5 :])


def measure_all(args, model, make):
    """Prints a line for each setting. make(rows, matrices): a step on the device."""
    if not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device", file=sys.stderr)
        return 77
    for matrices in args.matrices.split(","):
        torch.backends.cuda.matmul.allow_tf32 = matrices == "tf32"
        for compiled in (word == "yes" for word in args.compile.split(",")):
            for rows in map(int, args.rows.split(",")):
                step = make(rows, MATRICES[matrices])
                us = measure(step, compiled, args.steps, args.launches)
                print(json.dumps({"model": model, "matrices": matrices, "compiled": compiled, "rows": rows, "us": round(us, 1),
                                  "tokens_per_second": round(rows / us * 1e6),
                                  "gb_per_s": round(step.bytes_per_step() / us / 1e3, 1)}), flush=True)
    return 0


def parse(about):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", default="1,64,1024,4096")
    parser.add_argument("--matrices", default="f16,f32")
    parser.add_argument("--compile", default="no,yes")
    parser.add_argument("--steps", type=int, default=8, help="in one graph")
    parser.add_argument("--launches", type=int, default=60)
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


def report_check(args, worst):
    print(json.dumps({"model": args.model, "largest_difference": worst}))
    return 0 if worst <= CHECKED else 1


def main():
    args = parse(__doc__)
    directory = pathlib.Path(args.model)
    if args.model in SHAPES:
        config, weights = random_model(args.model)
    else:
        config, weights = json.loads((directory / "config.json").read_text()), read_safetensors(directory / "model.safetensors")
    with torch.inference_mode():
        if args.check:
            torch.set_num_threads(1)
            return report_check(args, check(config, weights, json.loads((directory / "golden.json").read_text())))
        return measure_all(args, directory.name, lambda rows, matrices: Step(config, weights, rows, matrices, "cuda"))


if __name__ == "__main__":
    sys.exit(main())
