# SPDX-License-Identifier: Apache-2.0
"""The kinds without softmax attention in float64: the logits of a checkpoint, as the published equations of the models give them.

Shares no code with the server, so that the two check each other. make_family.py computes goldens with it, and with hybrid_float64.py.
"""
import math

import numpy as np


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(0, x)


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def centred(x, eps):
    """Mean 0 and variance 1 along the last axis."""
    x = x - np.mean(x, axis=-1, keepdims=True)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def unit(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def shifted(x):
    """Each token's predecessor; zeros before the first."""
    return np.concatenate([np.zeros_like(x[:1]), x[:-1]])


def causal_conv(t, x):
    """The convolution of x [T, C], each channel by itself. The last tap takes the current token."""
    weight = t["weight"]
    width = weight.shape[2]
    past = np.concatenate([np.zeros((width - 1, x.shape[1])), x])
    y = sum(weight[:, 0, j] * past[j:j + len(x)] for j in range(width))
    return y + t["bias"] if "bias" in t else y


def conv(t, x):
    return silu(causal_conv(t, x))


def linear(t, x):
    y = x @ t["weight"].T
    return y + t["bias"] if "bias" in t else y


def lora(t, x, activation):
    return linear(t.at("lora.2"), activation(linear(t.at("lora.0"), x)))


def recurrence(q, k, v, w, a=None, b=None, first=None):
    """S' = diag(w) S + b (a^T S) + k v^T and o = S'^T q, a head at a time. q, k, w, a, b [T, H, K]; v and the result [T, H, V]; first: S
    before the first token [H, K, V], or zeros."""
    state = np.zeros(k.shape[1:] + v.shape[2:]) if first is None else first
    out = np.empty(v.shape)
    for i in range(len(q)):
        added = np.einsum("hk,hv->hkv", k[i], v[i])
        if a is not None:
            added += np.einsum("hk,hl,hlv->hkv", b[i], a[i], state)
        state = w[i][:, :, None] * state + added
        out[i] = np.einsum("hk,hkv->hv", q[i], state)
    return out


def delta(q, k, v, w, beta):
    """The delta rule on the decayed state. beta [T, H]."""
    beta = beta[:, :, None]
    w = np.broadcast_to(w, k.shape)
    return recurrence(q, beta * k, v, w, a=w * k, b=-beta * k)


def mamba2_mixer(t, h, heads, size, groups, limits, eps):
    """Gate first, then the norm. size: of the state, a head; limits: of dt, or None."""
    inner = len(t["norm.weight"])
    z, rest, dt = np.split(linear(t.at("in_proj"), h), [inner, 2 * inner + 2 * groups * size], axis=1)
    y, b, c = np.split(conv(t.at("conv1d"), rest), [inner, inner + groups * size], axis=1)
    k, q = (np.repeat(part.reshape(len(h), groups, size), heads // groups, axis=1) for part in (b, c))
    low, high = (math.inf if isinstance(limit, dict) else limit for limit in limits or (0, math.inf))
    dt = np.clip(softplus(dt + t["dt_bias"]), low, high)[:, :, None]
    w = np.exp(-np.exp(t["A_log"])[:, None] * dt)
    y = y.reshape(len(h), heads, -1)
    o = recurrence(q, k, dt * y, np.broadcast_to(w, k.shape)) + t["D"][:, None] * y
    o = (o.reshape(len(h), -1) * silu(z)).reshape(len(h), groups, -1)
    return linear(t.at("out_proj"), rms_norm(o, 1.0, eps).reshape(len(h), -1) * t["norm.weight"])


class Tensors:
    """Tensors by name below a prefix. Remembers the names that were read, for all prefixes together."""

    def __init__(self, values, prefix="", read=None):
        self.values, self.prefix, self.read = values, prefix, set() if read is None else read

    def at(self, name):
        return Tensors(self.values, f"{self.prefix}{name}.", self.read)

    def __contains__(self, name):
        return self.prefix + name in self.values

    def __getitem__(self, name):
        self.read.add(self.prefix + name)
        return self.values[self.prefix + name]

    def check_all_read(self):
        unread = sorted(set(self.values) - self.read)
        if unread:
            raise ValueError(f"tensors without a use: {', '.join(unread)}")


class Network:
    """A checkpoint's arithmetic. x is [T, hidden]; t holds a layer's mixer."""

    def __init__(self, config, values):
        self.c, self.t = config, Tensors(values)
        self.heads = config.get("num_heads")
        self.eps = config["layer_norm_epsilon" if config["model_type"] == "mamba2" else "norm_eps"]
        self.first_values = None  # rwkv7: v of layer 0

    def logits(self, tokens):
        mamba2 = self.c["model_type"] == "mamba2"
        top = self.t.at("backbone" if mamba2 else "model")
        embedding = top["embedding.weight" if "embedding.weight" in top else "embeddings.weight"]
        x = embedding[np.array(tokens)]
        block = {"mamba2": self.mamba2_block, "rwkv7": self.rwkv7_block}.get(self.c["model_type"], self.fla_block)
        for layer in range(self.c["num_hidden_layers"]):
            x = block(top.at(f"layers.{layer}"), x, layer)
        x = self.layer_norm(top.at("norm"), x) if self.c["model_type"] == "rwkv7" else rms_norm(
            x, top["norm_f.weight" if mamba2 else "norm.weight"], self.eps)
        head = embedding if self.c.get("tie_word_embeddings") else self.t["lm_head.weight"]
        self.t.check_all_read()
        return x @ head.T

    def split(self, x, heads=None):
        return x.reshape(len(x), heads or self.heads, -1)

    def fla_block(self, t, x, layer):
        mixer = getattr(self, self.c["model_type"])
        x = x + mixer(t.at("attn"), rms_norm(x, t["attn_norm.weight"], self.eps), layer)
        h, mlp = rms_norm(x, t["mlp_norm.weight"], self.eps), t.at("mlp")
        return x + linear(mlp.at("down_proj"), silu(linear(mlp.at("gate_proj"), h)) * linear(mlp.at("up_proj"), h))

    def out(self, t, o, norm, gate):
        """Norm a head, gate, output projection. gate [T, H V] or None."""
        o = rms_norm(o, t[f"{norm}.weight"], self.eps).reshape(len(o), -1)
        return linear(t.at("o_proj"), o if gate is None else o * gate)

    def projections(self, t, x):
        q, k, v = (self.split(linear(t.at(f"{name}_proj"), x)) for name in "qkv")
        return q * q.shape[2] ** -0.5, k, v

    def linear_attn(self, t, x, _):
        q, k, v = self.projections(t, x)
        return self.out(t, recurrence(q, k, v, np.ones_like(k)), "norm", None)

    def retnet(self, t, x, _):
        q, k, v = self.projections(t, x)
        half = q.shape[2] // 2
        angle = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(half) / half)
        cos, sin = np.cos(angle), np.sin(angle)
        q, k = (np.concatenate([y[..., :half] * cos - y[..., half:] * sin, y[..., :half] * sin + y[..., half:] * cos], axis=2)
                for y in (q, k))
        w = 1 - 2.0 ** (-5.0 - np.arange(self.heads))
        o = recurrence(q, k, v, np.broadcast_to(w[:, None], k.shape))
        return self.out(t, o, self.gated_norm(t), silu(linear(t.at("g_proj"), x)))

    def gated_norm(self, t):
        return "g_norm_swish_gate" if "g_norm_swish_gate.weight" in t else "g_norm"

    def gla(self, t, x, _):
        q, k, v = self.projections(t, x)
        gate = -softplus(-linear(t.at("gk_proj.1"), linear(t.at("gk_proj.0"), x))) / self.c.get("gate_logit_normalizer", 16)
        if self.c.get("clamp_min") is not None:
            gate = np.maximum(gate, self.c["clamp_min"])
        o = recurrence(q, k, v, self.split(np.exp(gate)))
        return self.out(t, o, self.gated_norm(t), silu(linear(t.at("g_proj"), x)))

    def hgrn2(self, t, x, layer):
        heads = self.heads or self.c["hidden_size"] // self.c["expand_ratio"]
        bounds = np.exp(self.t["model.lower_bounds"])
        bounds = np.cumsum(bounds / bounds.sum(axis=0), axis=0)
        bound = bounds[layer] - bounds[0]
        f = self.split(bound + (1 - bound) * sigmoid(linear(t.at("f_proj"), x)), heads)
        q = self.split(silu(linear(t.at("q_proj"), x)), heads)
        o = recurrence(q * q.shape[2] ** -0.5, 1 - f, self.split(linear(t.at("i_proj"), x), heads), f)
        # The norm's eps is a constant of the original code, whatever norm_eps says.
        return linear(t.at("o_proj"), rms_norm(o.reshape(len(x), -1), t["g_norm.weight"], 1e-5))

    def convolved(self, t, x, value_heads=None):
        """q, k, v and beta of the delta rules. Neighbouring heads of v share one of q and k where there are more."""
        q, k, v = (conv(t.at(f"{name}_conv1d"), linear(t.at(f"{name}_proj"), x)) for name in "qkv")
        v = self.split(v, value_heads)
        q, k = (np.repeat(self.split(y), v.shape[1] // self.heads, axis=1) for y in (q, k))
        beta = sigmoid(linear(t.at("b_proj"), x)) * (2 if self.c.get("allow_neg_eigval") else 1)
        return unit(q) * q.shape[2] ** -0.5, unit(k), v, beta

    def delta_net(self, t, x, _):
        q, k, v, beta = self.convolved(t, x)
        gate = silu(linear(t.at("g_proj"), x)) if self.c.get("use_gate") else None
        return self.out(t, delta(q, k, v, 1.0, beta), "o_norm", gate)

    def gated_deltanet(self, t, x, _):
        q, k, v, beta = self.convolved(t, x, self.c.get("num_v_heads"))
        w = np.exp(-np.exp(t["A_log"]) * softplus(linear(t.at("a_proj"), x) + t["dt_bias"]))
        gate = silu(linear(t.at("g_proj"), x)) if self.c.get("use_gate", True) else None
        return self.out(t, delta(q, k, v, w[:, :, None], beta), "o_norm", gate)

    def kda(self, t, x, _):
        q, k, v, beta = self.convolved(t, x)
        step = self.split(softplus(linear(t.at("f_proj.1"), linear(t.at("f_proj.0"), x)) + t["dt_bias"]))
        w = np.exp(-np.exp(t["A_log"])[:, None] * step)
        gate = sigmoid(linear(t.at("g_proj.1"), linear(t.at("g_proj.0"), x)))
        return self.out(t, delta(q, k, v, w, beta), "o_norm", gate)

    def mamba2_block(self, t, x, _):
        h = rms_norm(x, t["norm.weight"], self.eps)
        return x + mamba2_mixer(t.at("mixer"), h, self.heads, self.c["state_size"], self.c["n_groups"], self.c["time_step_limit"], self.eps)

    def layer_norm(self, t, x):
        y = centred(x, self.eps) * t["weight"]
        return y + t["bias"] if self.c.get("norm_bias", True) else y

    def rwkv7_block(self, t, x, layer):
        if layer == 0 and self.c.get("norm_first", True):
            x = self.layer_norm(t.at("pre_norm"), x)
        x = x + self.rwkv7(t.at("attn"), self.layer_norm(t.at("attn_norm"), x), layer)
        h, ffn = self.layer_norm(t.at("ffn_norm"), x), t.at("ffn")
        mixed = h + (shifted(h) - h) * ffn["x_k"]
        return x + linear(ffn.at("value"), np.maximum(linear(ffn.at("key"), mixed), 0) ** 2)

    def rwkv7(self, t, h, layer):
        size = self.c["head_dim"]
        heads = self.c["hidden_size"] // size
        # The old spelling holds the six vectors in one tensor, in this order.
        lerp = dict(zip("rwkvag", t["x_x"])) if "x_x" in t else {name: t[f"x_{name}"] for name in "rwkvag"}
        m = {name: h + (shifted(h) - h) * weight.reshape(-1) for name, weight in lerp.items()}
        r, k, v = (linear(t.at(f"{name}_proj"), m[name]) for name in "rkv")
        w = np.exp(-0.6065306597126334 * sigmoid(lora(t.at("w_lora"), m["w"], np.tanh)))
        alpha = sigmoid(lora(t.at("a_lora"), m["a"], np.array))
        gate = lora(t.at("g_lora"), m["g"], sigmoid)
        if layer == 0:
            self.first_values = v
        else:
            v = v + (self.first_values - v) * sigmoid(lora(t.at("v_lora"), m["v"], np.array))
        kk = self.split(k * t["k_k"], heads)
        kk = kk / np.maximum(np.sqrt(np.sum(kk * kk, axis=2, keepdims=True)), 1e-12)
        k = k * (1 + (alpha - 1) * t["k_a"])
        r, k, v, w, alpha = (self.split(y, heads) for y in (r, k, v, w, alpha))
        o = recurrence(r, k, v, w, a=-kk, b=kk * alpha, first=t["initial_state"] if "initial_state" in t else None)
        o = centred(o, size * self.eps).reshape(len(h), -1) * t["g_norm.weight"] + t["g_norm.bias"]
        bonus = np.sum(r * k * t["r_k"], axis=2, keepdims=True) * v
        return linear(t.at("o_proj"), (o + bonus.reshape(len(h), -1)) * gate)


def answers(network, tokens, positions):
    """One entry of golden.json's `sequences`."""
    scored = len(tokens) - 1
    logits = network.logits(tokens[:-1])
    peak = logits.max(axis=1)
    totals = peak + np.log(np.sum(np.exp(logits - peak[:, None]), axis=1))
    nll = float(np.sum(totals - logits[np.arange(scored), tokens[1:]]))
    outputs = [[float(y) for y in logits[p]] for p in positions if p < scored]
    return {"tokens": list(tokens), "num_scored": scored, "nll_nats": nll, "outputs": outputs}


def difference(golden, computed):
    """The largest one of two lists of sequences, relative where numbers are above 1. Infinite where their forms differ."""
    worst = 0.0
    for one, other in zip(golden, computed):
        if (one["tokens"], one["num_scored"]) != (other["tokens"], other["num_scored"]):
            return math.inf
        a, b = (np.array([s["nll_nats"]] + [y for row in s["outputs"] for y in row]) for s in (one, other))
        if a.shape != b.shape or not np.all(np.isfinite(a)):
            return math.inf
        worst = max(worst, float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)))))
    return worst if len(golden) == len(computed) else math.inf
