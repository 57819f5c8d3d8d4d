# SPDX-License-Identifier: Apache-2.0
"""The rival on a GPU for the family: a generation step of RWKV-7 or Mamba-2 by hand in PyTorch; peers.py measures and checks it.

Matrices are in float16 or another type; states, convolutions, norms and the draw are in float32. Products that share an input, or a
shape, are one. The models have random weights in the shapes of bench_step.
"""
import math

import torch
from torch.nn.functional import layer_norm, linear, silu, softplus

from peer_graph import GraphStep, RandomWeights, draw_category

# hidden, layers, vocabulary; RWKV-7 also the ranks of its low-rank products, Mamba-2 the rows of a head's state.
RWKV7 = {"rwkv7-0.4b": (1024, 24, 65536, {"w": 64, "a": 64, "v": 32, "g": 128}), "rwkv7-1.5b": (2048, 24, 65536, {"w": 96, "a": 96, "v": 64, "g": 256})}
MAMBA2 = {"mamba2-130m": (768, 24, 50288, 128)}


def random_rwkv7(device, hidden, layers, vocab, ranks):
    weights = RandomWeights(device)
    weights.matrix("model.embeddings.weight", vocab, hidden)
    weights.matrix("lm_head.weight", vocab, hidden)
    weights.norm("model.norm", hidden)
    for i in range(layers):
        prefix = f"model.layers.{i}."
        attn = prefix + "attn."
        for norm in ("attn_norm", "ffn_norm", "attn.g_norm", *(("pre_norm",) if i == 0 else ())):
            weights.norm(prefix + norm, hidden)
        for name in "rwkvag":
            weights.vector(attn + f"x_{name}", hidden)
        for name in "rkvo":
            weights.matrix(attn + f"{name}_proj.weight", hidden, hidden)
        for name, rank in ranks.items():
            if name == "v" and i == 0:  # whose values the others mix in
                continue
            weights.matrix(attn + f"{name}_lora.lora.0.weight", rank, hidden)
            weights.matrix(attn + f"{name}_lora.lora.2.weight", hidden, rank)
            if name != "g":
                weights.vector(attn + f"{name}_lora.lora.2.bias", hidden, low=-1.0)
        for name in ("k_k", "k_a"):
            weights.vector(attn + name, hidden, low=0.5)
        weights.vector(attn + "r_k", hidden // 64, 64, low=-0.1, high=0.1)
        weights.vector(prefix + "ffn.x_k", hidden)
        weights.matrix(prefix + "ffn.key.weight", 4 * hidden, hidden)
        weights.matrix(prefix + "ffn.value.weight", hidden, 4 * hidden)
    return {"model_type": "rwkv7", "hidden_size": hidden, "num_hidden_layers": layers, "head_dim": 64, "norm_eps": 1e-5}, weights


def random_mamba2(device, hidden, layers, vocab, state):
    weights, inner, heads = RandomWeights(device), 2 * hidden, 2 * hidden // 64
    weights.matrix("backbone.embeddings.weight", vocab, hidden)
    weights.norm("backbone.norm_f", hidden)
    for i in range(layers):
        prefix = f"backbone.layers.{i}."
        mixer = prefix + "mixer."
        weights.norm(prefix + "norm", hidden)
        weights.norm(mixer + "norm", inner)
        weights.matrix(mixer + "in_proj.weight", 2 * inner + 2 * state + heads, hidden)
        weights.matrix(mixer + "out_proj.weight", hidden, inner)
        weights.matrix(mixer + "conv1d.weight", inner + 2 * state, 1, 4)
        weights.vector(mixer + "conv1d.bias", inner + 2 * state, low=-0.5, high=0.5)
        weights.vector(mixer + "A_log", heads, low=-1.0)
        weights.vector(mixer + "D", heads, low=0.5, high=1.5)
        weights.vector(mixer + "dt_bias", heads, low=-2.0, high=0.5)
    return {"model_type": "mamba2", "num_hidden_layers": layers, "num_heads": heads, "head_dim": 64, "state_size": state, "n_groups": 1,
            "conv_kernel": 4, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}, weights  # fmt: skip


class FamilyStep(GraphStep):
    """Keeps account of what a step reads and writes."""

    def __init__(self, config, weights, rows, matrices):
        super().__init__(config, weights, rows, matrices)
        self.read = []  # matrices
        self.states = []  # read and written

    def matrix(self, value):
        self.read.append(value.to(self.matrices))
        return self.read[-1]

    def state(self, *dims):
        self.states.append(torch.zeros(self.rows, *dims, device=self.device))
        return self.states[-1]

    def draw(self, out):
        return draw_category(out)

    def bytes_per_step(self):
        return sum(t.numel() * t.element_size() for t in self.read) + 2 * sum(t.numel() * 4 for t in self.states)

    def product(self, x, matrix):
        return linear(x.to(self.matrices), matrix).float()

    def products(self, x, matrices):
        """x [n, rows, in], matrices [n, in, out]."""
        return torch.bmm(x.to(self.matrices), matrices).float()


class Rwkv7Step(FamilyStep):
    """S' = diag(w) S + b (a^T S) + k v^T, y = S'^T r (Peng et al., 2025)."""

    def __init__(self, config, weights, rows, matrices):
        super().__init__(config, weights, rows, matrices)
        self.size = config["head_dim"]
        self.heads = config["hidden_size"] // self.size
        self.eps = config["norm_eps"]
        self.head = self.matrix(self.w["lm_head.weight"])
        self.layers = [self.prepare(f"model.layers.{i}.") for i in range(config["num_hidden_layers"])]

    def prepare(self, prefix):
        w, attn = self.w, prefix + "attn."
        hidden = self.config["hidden_size"]
        names = "wagv" if attn + "v_lora.lora.0.weight" in w else "wag"
        first_state = self.state(self.heads, self.size, self.size)
        if attn + "initial_state" in w:
            first_state.copy_(w[attn + "initial_state"])
        return {
            "mix": torch.stack([w[attn + f"x_{name}"].reshape(-1) for name in "rkv" + names])[:, None],
            "rkv": self.matrix(torch.stack([w[attn + f"{name}_proj.weight"].T for name in "rkv"])),
            "first": {name: self.matrix(w[attn + f"{name}_lora.lora.0.weight"]) for name in names},
            "second": {name: self.matrix(w[attn + f"{name}_lora.lora.2.weight"]) for name in names},
            "bias": {name: w.get(attn + f"{name}_lora.lora.2.bias", 0) for name in names},
            "out": self.matrix(w[attn + "o_proj.weight"]),
            "key": self.matrix(w[prefix + "ffn.key.weight"]), "value": self.matrix(w[prefix + "ffn.value.weight"]),
            "k_k": w[attn + "k_k"].reshape(-1), "k_a": w[attn + "k_a"].reshape(-1), "r_k": w[attn + "r_k"].reshape(self.heads, self.size),
            "x_k": w[prefix + "ffn.x_k"].reshape(-1),
            "norms": {name: (w[prefix + name + ".weight"], w.get(prefix + name + ".bias"))
                      for name in ("pre_norm", "attn_norm", "ffn_norm", "attn.g_norm") if prefix + name + ".weight" in w},
            "before": self.state(hidden), "ffn_before": self.state(hidden), "s": first_state,
        }  # fmt: skip

    def norm(self, x, pair):
        return layer_norm(x, x.shape[-1:], *pair, self.eps)

    def low_rank(self, layer, name, x, activation=None):
        x = self.product(x, layer["first"][name])
        return self.product(activation(x) if activation else x, layer["second"][name]) + layer["bias"][name]

    def outputs(self):
        """Feeds `token`; returns the logits [rows, vocabulary]."""
        x, first_values = self.w["model.embeddings.weight"][self.token], None
        for layer in self.layers:
            if "pre_norm" in layer["norms"]:
                x = self.norm(x, layer["norms"]["pre_norm"])
            mixed, v = self.attention(layer, self.norm(x, layer["norms"]["attn_norm"]), first_values)
            first_values = v if first_values is None else first_values
            x = x + mixed
            h = self.norm(x, layer["norms"]["ffn_norm"])
            shifted = torch.lerp(h, layer["ffn_before"], layer["x_k"])
            layer["ffn_before"].copy_(h)
            x = x + self.product(self.product(shifted, layer["key"]).relu().square(), layer["value"])
        return self.product(self.norm(x, (self.w["model.norm.weight"], self.w.get("model.norm.bias"))), self.head)

    def attention(self, layer, h, first_values):
        m = torch.lerp(h[None], layer["before"][None], layer["mix"])
        layer["before"].copy_(h)
        r, k, v = self.products(m[:3], layer["rkv"])
        low = dict(zip(layer["first"], m[3:], strict=True))
        w = torch.exp(-0.6065306597126334 * torch.sigmoid(self.low_rank(layer, "w", low["w"], torch.tanh)))
        rate = torch.sigmoid(self.low_rank(layer, "a", low["a"]))
        gate = self.low_rank(layer, "g", low["g"], torch.sigmoid)
        if first_values is not None:
            v = torch.lerp(v, first_values, torch.sigmoid(self.low_rank(layer, "v", low["v"])))
        values = v
        kk = (k * layer["k_k"]).view(-1, self.heads, self.size)
        kk = kk / kk.norm(dim=2, keepdim=True).clamp_min(1e-12)
        k = k * (1 + (rate - 1) * layer["k_a"])
        r, k, v, w, rate = (y.view(-1, self.heads, self.size) for y in (r, k, v, w, rate))
        s = layer["s"]
        removed = torch.einsum("rhk,rhkv->rhv", kk, s)
        s.mul_(w[..., None]).sub_((kk * rate)[..., None] * removed[:, :, None]).add_(k[..., None] * v[:, :, None])
        y = torch.einsum("rhk,rhkv->rhv", r, s)
        y = layer_norm(y, (self.size,), eps=self.size * self.eps).flatten(1)
        weight, bias = layer["norms"]["attn.g_norm"]
        y = torch.addcmul(bias, y, weight) + ((r * k * layer["r_k"]).sum(2, keepdim=True) * v).flatten(1)
        return self.product(y * gate, layer["out"]), values


class Mamba2Step(FamilyStep):
    """S' = exp(-exp(A) dt) S + dt B x^T, y = S'^T C + D x (Dao and Gu, 2024)."""

    def __init__(self, config, weights, rows, matrices):
        super().__init__(config, weights, rows, matrices)
        self.limits = config.get("time_step_limit", [0, math.inf])
        if config.get("use_bias"):
            raise ValueError("use_bias is not known here")
        self.heads, self.size, self.groups = config["num_heads"], config["head_dim"], config["n_groups"]
        self.inner, self.keys = self.heads * self.size, self.groups * config["state_size"]
        self.embedding = next(self.w[name] for name in ("backbone.embeddings.weight", "backbone.embedding.weight") if name in self.w)
        self.head = self.matrix(self.embedding if config["tie_word_embeddings"] else self.w["lm_head.weight"])
        self.layers = [self.prepare(f"backbone.layers.{i}.") for i in range(config["num_hidden_layers"])]

    def prepare(self, prefix):
        w, mixer = self.w, prefix + "mixer."
        return {
            "in": self.matrix(w[mixer + "in_proj.weight"]), "out": self.matrix(w[mixer + "out_proj.weight"]),
            "norm": w[prefix + "norm.weight"], "gated_norm": w[mixer + "norm.weight"],
            "taps": w[mixer + "conv1d.weight"][:, 0].T.contiguous(), "conv_bias": w.get(mixer + "conv1d.bias", 0),
            "rate": -torch.exp(w[mixer + "A_log"]), "dt_bias": w[mixer + "dt_bias"], "skip": w[mixer + "D"][:, None],
            "past": self.state(self.config["conv_kernel"], self.inner + 2 * self.keys),
            "s": self.state(self.heads, self.config["state_size"], self.size),
        }  # fmt: skip

    def norm(self, x, weight):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, self.config["layer_norm_epsilon"])

    def outputs(self):
        """Feeds `token`; returns the logits [rows, vocabulary]."""
        x = self.embedding[self.token]
        for layer in self.layers:
            x = x + self.mixer(layer, self.norm(x, layer["norm"]))
        return self.product(self.norm(x, self.w["backbone.norm_f.weight"]), self.head)

    def mixer(self, layer, h):
        z, mixed, dt = self.product(h, layer["in"]).split([self.inner, self.inner + 2 * self.keys, self.heads], 1)
        past = layer["past"]
        past.copy_(torch.cat([past[:, 1:], mixed[:, None]], 1))
        mixed = silu((past * layer["taps"]).sum(1) + layer["conv_bias"])
        x, b, c = mixed.split([self.inner, self.keys, self.keys], 1)
        x = x.view(-1, self.heads, self.size)
        b, c = (y.view(-1, self.groups, self.config["state_size"]).repeat_interleave(self.heads // self.groups, 1) for y in (b, c))
        dt = softplus(dt + layer["dt_bias"])
        if self.limits != [0, math.inf]:
            dt = dt.clamp(*self.limits)
        s = layer["s"]
        s.mul_(torch.exp(layer["rate"] * dt)[..., None, None]).add_(b[..., None] * (dt[..., None] * x)[:, :, None])
        y = (torch.einsum("rhk,rhkv->rhv", c, s) + layer["skip"] * x).flatten(1) * silu(z)
        y = self.norm(y.view(-1, self.groups, self.inner // self.groups), None).flatten(1) * layer["gated_norm"]
        return self.product(y, layer["out"])


KINDS = {"rwkv7": Rwkv7Step, "mamba2": Mamba2Step}  # by model_type


def maker(model):
    """make(rows, matrices): a step of that shape on the device; None where it has another name."""
    if model in RWKV7:
        config, weights = random_rwkv7("cuda", *RWKV7[model])
    elif model in MAMBA2:
        config, weights = random_mamba2("cuda", *MAMBA2[model])
    else:
        return None
    return lambda rows, matrices: KINDS[config["model_type"]](config, weights, rows, matrices)
