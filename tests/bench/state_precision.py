#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a smaller state costs in precision: one sequence through a model of model/zoo, once for each way to keep S and z.

Everything but the state is computed in float32 (weights of the zoo are F16, so exact); every scheme is fed the same tokens,
those of the model's golden.json or drawn from the float32 row. Needs torch and numpy:
    state_precision.py --model DIR [--steps N] [--schemes f32,hilo8,...] [--every N]
Schemes: f64 (the reference), f32, f16, bf16 (S so, z float32), and
  hiloL    S is kept as hi + lo, two F16 with a power of two a head; a step reads hi only and a ring of the tokens since the
           flush (phi(k), v as F16); at every L-th position S = hi + lo + ring is formed in float32
  replayL  the same without lo: what hi cannot hold is lost at each flush
  planesL  S is float32 throughout; a step reads the upper three of its four bytes and a ring in float32 (-v16: v as F16)
  with -row: a power of two a feature (row of S); -k32: phi(k) of the ring in float32; -f32: v, too.

Prints one JSON line per scheme and stretch of `--every` positions: largest and root-mean-square difference of the raw outputs
from the float64 state, and the sum of nats of the fed tokens (categorical heads).
"""
import argparse
import json
import math
import pathlib
import re

import numpy as np
import torch

from peer_pytorch import read_safetensors

HALF_TARGET = 13  # hi's largest magnitude lies below 2^HALF_TARGET: two powers of two of room until the next flush


def layer_norm(x, weight, bias, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


class Exact:
    """S and z in one float type, updated each step. Shapes: S [heads, features, values], z [heads, features]."""

    def __init__(self, shape, state_type, z_type):
        heads, features, values = shape
        self.s = torch.zeros(shape, dtype=state_type)
        self.z = torch.zeros(heads, features, dtype=z_type)

    def step(self, q, k, v, g, a):
        """q, k [heads, features], v [heads, values], g, a [heads]: the gate's factors. Returns q S, q z."""
        wide = torch.float64 if self.s.dtype == torch.float64 else torch.float32
        s = g.to(wide)[:, None, None] * self.s.to(wide)
        s = s + (a[:, None] * k).to(wide)[:, :, None] * v.to(wide)[:, None, :]
        self.s = s.to(self.s.dtype)
        z = g[:, None].to(self.z.dtype) * self.z + (a[:, None] * k).to(self.z.dtype)
        self.z = z
        y = torch.einsum("hf,hfv->hv", q.to(wide), self.s.to(wide))
        return y.float(), (q.to(z.dtype) * z).sum(1).float()


class Replay:
    """z in float32, S as of the last flush and a ring of the tokens since; a flush forms S every `length` steps."""

    def __init__(self, shape, length, k_type, v_type):
        heads, features, _ = shape
        self.length, self.k_type, self.v_type = length, k_type, v_type
        self.z = torch.zeros(heads, features)
        self.decay = torch.ones(heads)  # since the flush
        self.ring = []  # (phi(k), v, weight) of each token since

    def step(self, q, k, v, g, a):
        self.decay = self.decay * g
        self.ring = [(rk, rv, w * g) for rk, rv, w in self.ring]
        self.ring.append((k.to(self.k_type), v.to(self.v_type), a))
        self.z = g[:, None] * self.z + a[:, None] * k
        y = self.read(q) * self.decay[:, None]
        for rk, rv, w in self.ring:
            y = y + (w * (q * rk.float()).sum(1))[:, None] * rv.float()
        if len(self.ring) == self.length:
            s = self.kept() * self.decay[:, None, None]
            for rk, rv, w in self.ring:
                s = s + (w[:, None] * rk.float())[:, :, None] * rv.float()[:, None, :]
            self.keep(s)
            self.decay = torch.ones_like(self.decay)
            self.ring = []
        return y, (q * self.z).sum(1)

    # Of a scheme: read(q), q S as a step sees S; kept(), S as a flush sees it; keep(s).


class HighLow(Replay):
    """S as hi + lo, two F16 with powers of two; a step reads hi."""

    def __init__(self, shape, length, keep_low, k_type, v_type, share):
        """`share`: dimensions of S that have one exponent together, (1, 2) a head or (2,) a feature."""
        super().__init__(shape, length, k_type, v_type)
        heads, features, _ = shape
        self.keep_low, self.share = keep_low, share
        self.hi = torch.zeros(shape, dtype=torch.float16)
        self.lo = torch.zeros(shape, dtype=torch.float16)
        self.scale = torch.ones(heads, 1 if 1 in share else features, 1)

    def read(self, q):
        return torch.einsum("hf,hfv->hv", q * self.scale[:, :, 0], self.hi.float())

    def kept(self):
        return (self.hi.float() + self.lo.float()) * self.scale

    def keep(self, s):
        largest = s.abs().amax(dim=self.share, keepdim=True).clamp_min(1e-30)
        self.scale = torch.exp2(torch.ceil(torch.log2(largest)) - HALF_TARGET)
        s = s / self.scale
        self.hi = s.half()
        if self.keep_low:
            self.lo = (s - self.hi.float()).half()


class Planes(Replay):
    """S as float32 whose lowest byte lies apart: a step reads the upper three, a flush all four."""

    def __init__(self, shape, length, v_type):
        super().__init__(shape, length, torch.float32, v_type)
        self.keep(torch.zeros(shape))

    def read(self, q):
        return torch.einsum("hf,hfv->hv", q, self.upper)

    def kept(self):
        return self.s

    def keep(self, s):
        self.s = s
        # The middle of what the upper three bytes stand for; nothing for nothing.
        middle = ((s.view(torch.int32) & ~0xFF) | 0x80).view(torch.float32)
        self.upper = torch.where(s == 0, s, middle)


def make_scheme(name, shape):
    simple = {"f64": (torch.float64, torch.float64), "f32": (torch.float32, torch.float32),
              "f16": (torch.float16, torch.float32), "bf16": (torch.bfloat16, torch.float32)}
    if name in simple:
        return Exact(shape, *simple[name])
    match = re.fullmatch(r"planes(\d+)(-v16)?", name)
    if match:
        return Planes(shape, int(match[1]), torch.float16 if match[2] else torch.float32)
    match = re.fullmatch(r"(hilo|replay)(\d+)(-row)?(-f16|-k32|-f32)?", name)
    if match:
        k_type = torch.float16 if match[4] in (None, "-f16") else torch.float32
        v_type = torch.float32 if match[4] == "-f32" else torch.float16
        share = (2,) if match[3] else (1, 2)
        return HighLow(shape, int(match[2]), match[1] == "hilo", k_type, v_type, share)
    raise SystemExit(f"--schemes: unknown scheme {name!r}")


class Model:
    """A model directory's step, a row a scheme."""

    def __init__(self, directory, schemes):
        self.config = json.loads((directory / "config.json").read_text())
        self.weights = read_safetensors(directory / "model.safetensors")
        c = self.config
        self.kind = c["attention"]["feature_map"]["type"]
        if self.kind not in ("elu", "rfa"):
            raise SystemExit(f"feature map {self.kind!r}: only elu and rfa are known here")
        features = c["key_dim"] if self.kind == "elu" else 2 * c["attention"]["feature_map"]["num_features"]
        shape = (c["num_heads"], features, c["value_dim"])
        self.states = [[make_scheme(name, shape) for name in schemes] for _ in range(c["num_layers"])]
        self.position = 0

    def linear(self, name, x):
        return torch.nn.functional.linear(x, self.weights[name + ".weight"], self.weights[name + ".bias"])

    def norm(self, name, x):
        return layer_norm(x, self.weights[name + ".weight"], self.weights[name + ".bias"], self.config["layer_norm_eps"])

    def features(self, layer, x):
        if self.kind == "elu":
            return torch.where(x > 0, x + 1, torch.exp(torch.clamp(x, max=0)))
        prefix = f"transformer.layers.{layer}.attention."
        omega = self.weights[prefix + "omega"] * self.weights[prefix + "sigma"][:, :, None]
        x = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        u = torch.einsum("bhd,hdn->bhn", x, omega)
        return torch.cat([torch.sin(u), torch.cos(u)], -1) / math.sqrt(omega.shape[-1])

    def attention(self, layer, x):
        c, prefix = self.config, f"transformer.layers.{layer}.attention."
        rows, heads = x.shape[0], c["num_heads"]
        q, k, v = (self.linear(prefix + f"{n}_projection", x).view(rows, heads, -1) for n in ("query", "key", "value"))
        q, k = self.features(layer, q), self.features(layer, k)
        g = a = torch.ones(rows, heads)
        if c["attention"]["gate"] == "rfa":
            gate = self.linear(prefix + "gate_projection", x)
            g, a = torch.sigmoid(gate), torch.sigmoid(-gate)
        normalizer, out = c["attention"]["normalizer"], []
        for row, state in enumerate(self.states[layer]):
            y, dot = state.step(q[row], k[row], v[row], g[row], a[row])
            dot = dot + normalizer["eps"] if normalizer["type"] == "add_eps" else dot.clamp_min(normalizer["min"])
            out.append((y / dot[:, None]).reshape(-1))
        return self.linear(prefix + "out_projection", torch.stack(out))

    def step(self, token):
        """Feeds one token to every row; returns the raw outputs [rows, output_size]."""
        c = self.config
        x = self.weights["embedding.weight"][token]
        if c["position"]["type"] == "learned":
            x = x + self.weights["position.weight"][self.position]
        x = x.repeat(len(self.states[0]), 1)
        activation = torch.relu if c["activation"] == "relu" else torch.nn.functional.gelu
        for i in range(c["num_layers"]):
            prefix = f"transformer.layers.{i}."
            x = self.norm(prefix + "norm1", x + self.attention(i, x))
            x = self.norm(prefix + "norm2", x + self.linear(prefix + "linear2", activation(self.linear(prefix + "linear1", x))))
        if c["final_norm"]:
            x = self.norm("transformer.norm", x)
        self.position += 1
        return self.linear("predictor", x)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=784)
    parser.add_argument("--schemes", default="f64,f32,f16,bf16,hilo8,hilo8-f32,hilo8-row-f32,planes8,planes8-v16,planes16")
    parser.add_argument("--every", type=int, default=112)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    schemes = args.schemes.split(",")
    if schemes[0] != "f64":
        raise SystemExit("--schemes: the first must be f64, the reference")
    model = Model(args.model, schemes)
    golden = json.loads((args.model / "golden.json").read_text())["sequences"][0]["tokens"]
    bos = model.config["bos_token_id"]
    tokens = ([] if bos is None else [bos]) + list(golden)
    categorical = model.config["output"]["type"] == "categorical"
    worst, squares, nats, count = np.zeros(len(schemes)), np.zeros(len(schemes)), np.zeros(len(schemes)), 0
    token = tokens[0]
    with torch.inference_mode():
        for position in range(args.steps):
            out = model.step(token)
            difference = (out - out[0]).abs().double()
            worst = np.maximum(worst, difference.amax(1).numpy())
            squares += (difference ** 2).mean(1).numpy()
            count += 1
            if position + 1 < len(tokens):
                token = tokens[position + 1]
            elif categorical:
                token = int(torch.multinomial(torch.softmax(out[1], -1), 1))
            elif position + 1 < args.steps:
                raise SystemExit("--steps: longer than the golden sequence")
            if categorical:
                nats -= torch.log_softmax(out.double(), -1)[:, token].numpy()
            if count == args.every or position + 1 == args.steps:
                for i, name in enumerate(schemes):
                    print(json.dumps({"scheme": name, "positions": [position + 1 - count, position + 1],
                                      "largest": float(worst[i]), "rms": float(np.sqrt(squares[i] / count)),
                                      "nats": float(nats[i])}), flush=True)
                worst[:], squares[:], count = 0, 0, 0


if __name__ == "__main__":
    main()
