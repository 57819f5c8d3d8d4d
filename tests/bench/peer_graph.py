# SPDX-License-Identifier: Apache-2.0
"""The honest rival on a GPU: the generation step that a good PyTorch programmer would write by hand; peers.py measures and checks it.

Query, key, value (and gate) are one product; matrices are in float16, bfloat16, float32 or TF32; S, z, norms, feature maps, head
and the draw are in float32. "cifar-10" (16 layers, hidden 256) and "110m" (12 layers, hidden 768) have random weights.
"""
import json
import math
import struct

import torch
from torch.nn.functional import gelu, layer_norm, linear

SHAPES = {
    "cifar-10": {"hidden_size": 256, "num_layers": 16, "num_heads": 8, "ffn_size": 1024, "positions": 3072},
    "110m": {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "ffn_size": 3072, "positions": 2048},
}


class RandomWeights(dict):
    """By name, in float32, made on the device itself: on the host a billion of them takes many seconds."""

    def __init__(self, device):
        super().__init__()
        self.random = torch.Generator(device).manual_seed(1)

    def matrix(self, name, *dims):
        self[name] = torch.randn(dims, generator=self.random, device=self.random.device) / math.sqrt(dims[-1])

    def vector(self, name, *dims, low=0.0, high=1.0):
        self[name] = low + (high - low) * torch.rand(dims, generator=self.random, device=self.random.device)

    def norm(self, name, n):
        self[name + ".weight"], self[name + ".bias"] = (fill(n, device=self.random.device) for fill in (torch.ones, torch.zeros))


def random_model(name, device):
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
    weights = RandomWeights(device)

    def add(key, *dims):
        weights.matrix(key + ".weight", *dims)
        weights[key + ".bias"] = torch.zeros(dims[0], device=device)

    for i in range(shape["num_layers"]):
        prefix = f"transformer.layers.{i}."
        for part in ("query", "key", "value", "out"):
            add(prefix + f"attention.{part}_projection", hidden, hidden)
        add(prefix + "linear1", ffn, hidden)
        add(prefix + "linear2", hidden, ffn)
        for norm in ("norm1", "norm2"):
            weights.norm(prefix + norm, hidden)
    weights.norm("transformer.norm", hidden)
    weights.matrix("embedding.weight", vocab, hidden)
    weights.matrix("position.weight", shape["positions"], hidden)
    add("predictor", outputs, hidden)
    return config, weights


def draw_category(logits):
    """An exponential race: as multinomial draws, without its host checks."""
    return (logits.softmax(1) / torch.empty_like(logits).exponential_()).argmax(1)


class GraphStep:
    """One step of `rows` rows, in place: states, token and position of each row are the same tensors for ever."""

    def __init__(self, config, weights, rows, matrices):
        self.config, self.w, self.rows, self.matrices = config, weights, rows, matrices
        self.device = next(iter(weights.values())).device
        self.token = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.position = torch.zeros(1, dtype=torch.long, device=self.device)

    def make_room(self, steps):
        """Called before so many steps."""

    def figures(self, us):
        """More words for the report, of a step of so many microseconds."""
        return {"tokens_per_second": round(self.rows / us * 1e6)}

    def step(self):
        self.token.copy_(self.draw(self.outputs()))
        self.position.add_(1)


class Step(GraphStep):
    """Of the encoder with our own format of models."""

    def __init__(self, config, weights, rows, matrices):
        super().__init__(config, weights, rows, matrices)
        kind = config["attention"]["feature_map"]["type"]
        if kind not in ("elu", "rfa") or config["position"]["type"] == "sinusoidal":
            raise ValueError(f"feature map {kind!r} with these positions is not known here")
        heads, values = config["num_heads"], config["value_dim"]
        features = config["key_dim"] if kind == "elu" else 2 * config["attention"]["feature_map"]["num_features"]
        self.layers = [self.prepare(i) for i in range(config["num_layers"])]
        self.s = [torch.zeros(rows * heads, features, values, device=self.device) for _ in self.layers]
        self.z = [torch.zeros(rows * heads, features, device=self.device) for _ in self.layers]

    def make_room(self, steps):
        if "position.weight" in self.w and self.position.item() + steps > self.w["position.weight"].shape[0]:
            self.position.zero_()

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


def difference(step, golden, sequence):
    """The largest difference of the raw outputs from those of a golden sequence."""
    bos = step.config["bos_token_id"] if isinstance(step, Step) else None
    fed = sequence["tokens"] if bos is None else [bos, *sequence["tokens"]]
    wanted, worst = dict(zip(golden["positions"], sequence["outputs"], strict=False)), 0.0
    for position, token in enumerate(fed[: max(wanted) + 1]):
        step.token.fill_(token)
        out = step.outputs()[0].double()
        step.position.add_(1)
        if position in wanted:
            worst = max(worst, (out - torch.tensor(wanted[position], dtype=torch.float64)).abs().max().item())
    return worst


def read_directory(directory):
    """Every tensor of its safetensors files, in float32."""
    types, tensors = {"F16": torch.float16, "F32": torch.float32, "BF16": torch.bfloat16}, {}
    for file in directory.glob("*.safetensors"):
        content = file.read_bytes()
        end = 8 + struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:end])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, stop = (end + offset for offset in entry["data_offsets"])
            raw = torch.frombuffer(bytearray(content[begin:stop]), dtype=types[entry["dtype"]])
            tensors[name] = raw.reshape(entry["shape"]).float()
    return tensors


def maker(model, directory):
    """make(rows, matrices): a step of a shape by name or of the model in a directory, on the device."""
    if model in SHAPES:
        config, weights = random_model(model, "cuda")
    else:
        config = json.loads((directory / "config.json").read_text())
        weights = {name: value.to("cuda") for name, value in read_directory(directory).items()}
    return lambda rows, matrices: Step(config, weights, rows, matrices)
