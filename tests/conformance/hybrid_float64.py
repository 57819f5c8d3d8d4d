# SPDX-License-Identifier: Apache-2.0
"""Hybrids and mixtures of experts in float64, as family_float64.py has the kinds without softmax attention.

RoPE of the type `default` alone. make_family.py computes goldens with it.
"""
import re

import numpy as np

from family_float64 import Network, Tensors, causal_conv, conv, delta, linear, mamba2_mixer, rms_norm, sigmoid, silu, softplus, unit

# Tensors of a vision tower and of multi-token prediction, beside those of the text model.
SKIPPED = ("model.visual.", "mtp.")
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NAMES = {  # norms of mixer and feed-forward, the last norm, the attention's output, the feed-forward and its matrices
    "granitemoehybrid": ("input_layernorm", "post_attention_layernorm", "norm", "o_proj", "block_sparse_moe", ("gate_proj", "up_proj", "down_proj")),
    "qwen3_5": ("input_layernorm", "post_attention_layernorm", "norm", "o_proj", "mlp", ("gate_proj", "up_proj", "down_proj")),
    "lfm2": ("operator_norm", "ffn_norm", "embedding_norm", "out_proj", "feed_forward", ("w1", "w3", "w2")),
    "nemotron_h": ("norm", "norm", "norm_f", "o_proj", "mixer", (None, "up_proj", "down_proj")),
}


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def turned(x, n, theta):
    """x [T, heads, head_dim] with rotary positions in its first n values."""
    angle = np.arange(len(x))[:, None, None] * theta ** (-np.arange(0, n, 2) / n)
    a, b, cos, sin = x[..., :n // 2], x[..., n // 2:n], np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., n:]], axis=-1)


def chosen(c, count):
    """True for the `count` largest of each row, at a tie the first, and the least difference to those that are not chosen, a row."""
    order = np.argsort(-c, axis=1, kind="stable")
    mask = np.zeros(c.shape, bool)
    np.put_along_axis(mask, order[:, :count], True, axis=1)
    if count == c.shape[1]:
        return mask, np.full(len(c), np.inf)
    return mask, np.where(mask, c, np.inf).min(axis=1) - np.where(mask, -np.inf, c).max(axis=1)


class Hybrid:
    """A checkpoint's arithmetic. x is [T, hidden]; t holds the tensors of a layer or of a part of it. After logits(), `margins` [T] has how near
    a token's routers were to another choice."""

    def __init__(self, config, values):
        self.c = config.get("text_config", config)
        self.kind = re.sub(r"(_moe)?(_text)?$", "", self.c["model_type"])
        if self.kind not in NAMES:
            raise ValueError(f"model_type {self.c['model_type']} is not known here")
        self.norm1, self.norm2, self.last_norm, self.attention_out, self.ffn_name, self.matrices = NAMES[self.kind]
        self.tied = config.get("tie_embedding", config.get("tie_word_embeddings", self.kind == "lfm2"))
        self.t = Tensors({name: value for name, value in values.items() if not name.startswith(SKIPPED)})
        self.eps = next(self.c[name] for name in ("rms_norm_eps", "layer_norm_epsilon", "norm_eps") if name in self.c)
        rope = self.c.get("rope_parameters") or self.c
        if (self.c.get("rope_scaling") or rope).get("rope_type", "default") != "default":
            raise ValueError("RoPE: only the type default is known here")
        self.theta, self.partial = (rope.get(name, self.c.get(name)) for name in ("rope_theta", "partial_rotary_factor"))
        self.margins = None

    def layers(self):
        """The kind of each layer's mixer; of Nemotron-H, of its only part."""
        if "hybrid_override_pattern" in self.c:
            return [LETTERS[letter] for letter in self.c["hybrid_override_pattern"]]
        names = self.c.get("layers_block_type") or self.c.get("layer_types")
        if names is None:
            count, interval = self.c["num_hidden_layers"], self.c.get("full_attention_interval", 4)
            full = self.c.get("full_attn_idxs", range(interval - 1, count, interval))
            names = ["attention" if i in full else "recurrent" for i in range(count)]
        return [name.replace("full_attention", "attention").replace("linear_attention", "mamba") for name in names]

    def logits(self, tokens):
        self.margins = np.full(len(tokens), np.inf)
        top = self.t.at("backbone" if self.kind == "nemotron_h" else "model")
        if "language_model.embed_tokens.weight" in top:
            top = top.at("language_model")
        embedding = top["embeddings.weight" if self.kind == "nemotron_h" else "embed_tokens.weight"]
        x = embedding[np.array(tokens)] * self.c.get("embedding_multiplier", 1)
        for i, part in enumerate(self.layers()):
            t = top.at(f"layers.{i}")
            if self.kind == "nemotron_h":
                x = x + self.nemotron_part(t.at("mixer"), self.norm(t, self.norm1, x), part)
                continue
            scale = self.c.get("residual_multiplier", 1)
            h = self.norm(t, self.norm1, x)
            x = x + scale * (self.attention(t.at("self_attn"), h) if part == "attention" else self.recurrent(t, h))
            x = x + scale * self.feed_forward(t, self.norm(t, self.norm2, x), i)
        x = self.norm(top, self.last_norm, x)
        head = embedding if self.tied else self.t["lm_head.weight"]
        self.t.check_all_read()
        return x @ head.T / self.c.get("logits_scaling", 1)

    def norm(self, t, name, x):
        return rms_norm(x, t[f"{name}.weight"] + (self.kind == "qwen3_5"), self.eps)

    def recurrent(self, t, h):
        mixer = {"granitemoehybrid": self.mamba, "qwen3_5": self.gated_delta, "lfm2": self.short_conv}[self.kind]
        return mixer(t.at({"granitemoehybrid": "mamba", "qwen3_5": "linear_attn", "lfm2": "conv"}[self.kind]), h)

    def nemotron_part(self, t, h, part):
        if part == "moe":
            return self.nemotron_experts(t, h)
        return {"mamba": self.mamba, "attention": self.attention, "mlp": self.mlp}[part](t, h)

    # --- Mixers

    def attention(self, t, h):
        heads, rows, kind = self.c["num_attention_heads"], len(h), self.kind
        kv_heads = self.c.get("num_key_value_heads") or heads
        q = linear(t.at("q_proj"), h).reshape(rows, heads, -1)
        k, v = (linear(t.at(f"{name}_proj"), h).reshape(rows, kv_heads, -1) for name in "kv")
        gate = None
        if kind == "qwen3_5":
            q, gate = np.split(q, 2, axis=2)
        if kind in ("qwen3_5", "lfm2"):
            suffix = "norm" if kind == "qwen3_5" else "layernorm"
            q, k = self.norm(t, f"q_{suffix}", q), self.norm(t, f"k_{suffix}", k)
        size = q.shape[2]
        if kind in ("qwen3_5", "lfm2") or (kind == "granitemoehybrid" and self.c.get("position_embedding_type") == "rope"):
            n = int(size * (self.partial or (0.25 if kind == "qwen3_5" else 1)))
            q, k = (turned(y, n, self.theta or (1e6 if kind == "lfm2" else 1e4)) for y in (q, k))
        k, v = (np.repeat(y, heads // kv_heads, axis=1) for y in (k, v))
        scale = self.c.get("attention_multiplier", 1) if kind == "granitemoehybrid" else size ** -0.5
        scores = np.where(np.tri(rows, dtype=bool), np.einsum("ihd,jhd->hij", q, k) * scale, -np.inf)
        o = np.einsum("hij,jhd->ihd", softmax(scores), v).reshape(rows, -1)
        return linear(t.at(self.attention_out), o if gate is None else o * sigmoid(gate.reshape(rows, -1)))

    def mamba(self, t, h):
        nemotron = self.kind == "nemotron_h"
        heads, size, groups = (self.c[name] for name in (("mamba_num_heads", "ssm_state_size", "n_groups") if nemotron else
                                                         ("mamba_n_heads", "mamba_d_state", "mamba_n_groups")))
        return mamba2_mixer(t, h, heads, size, groups, self.c.get("time_step_limit"), self.eps)

    def gated_delta(self, t, h):
        key_heads, heads, size = (self.c[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "key_head_dim"))
        keys = key_heads * size
        q, k, v = np.split(conv(t.at("conv1d"), linear(t.at("in_proj_qkv"), h)), [keys, 2 * keys], axis=1)
        q, k = (np.repeat(unit(y.reshape(len(h), key_heads, -1)), heads // key_heads, axis=1) for y in (q, k))
        w = np.exp(-np.exp(t["A_log"]) * softplus(linear(t.at("in_proj_a"), h) + t["dt_bias"]))
        o = delta(q * size ** -0.5, k, v.reshape(len(h), heads, -1), w[:, :, None], sigmoid(linear(t.at("in_proj_b"), h)))
        o = rms_norm(o, t["norm.weight"], self.eps).reshape(len(h), -1)  # around 0, unlike the other norms
        return linear(t.at("out_proj"), o * silu(linear(t.at("in_proj_z"), h)))

    def short_conv(self, t, h):
        b, c, x = np.split(linear(t.at("in_proj"), h), 3, axis=1)
        return linear(t.at("out_proj"), c * causal_conv(t.at("conv"), b * x))

    # --- Feed-forward

    def mlp(self, t, h):
        gate, up, down = self.matrices
        return linear(t.at(down), self.activated(None if gate is None else linear(t.at(gate), h), linear(t.at(up), h)))

    @staticmethod
    def activated(gate, up):
        return np.maximum(up, 0) ** 2 if gate is None else silu(gate) * up

    def feed_forward(self, t, h, layer):
        ffn = t.at(self.ffn_name)
        if self.kind == "granitemoehybrid":
            shared = t.at("shared_mlp")
            y = linear(shared.at("output_linear"), self.activated(*np.split(linear(shared.at("input_linear"), h), 2, axis=1)))
            if self.c.get("num_local_experts", 8) == 0:
                return y
            router = "router.layer" if "router.layer.weight" in ffn else "router"
            return y + self.experts(ffn, h, self.softmax_weights(linear(ffn.at(router), h)))
        if self.kind == "qwen3_5" and "num_experts" in self.c:
            y = sigmoid(linear(ffn.at("shared_expert_gate"), h)) * self.mlp(ffn.at("shared_expert"), h)
            return y + self.experts(ffn, h, self.softmax_weights(linear(ffn.at("gate"), h)))
        if self.kind == "lfm2" and layer >= self.c.get("num_dense_layers", self.c["num_hidden_layers"]):
            bias = ffn["expert_bias"] if self.c.get("use_expert_bias", True) else 0
            return self.experts(ffn, h, self.sigmoid_weights(linear(ffn.at("gate"), h), bias, 1e-6))
        return self.mlp(ffn, h)

    def nemotron_experts(self, t, h):
        y = self.mlp(t.at("shared_experts"), h)
        weights = self.sigmoid_weights(h @ t["gate.weight"].T, t["gate.e_score_correction_bias"], 1e-20)
        if self.c.get("moe_latent_size") is None:
            return y + self.experts(t, h, weights)
        return y + linear(t.at("fc2_latent_proj"), self.experts(t, linear(t.at("fc1_latent_proj"), h), weights))

    def choose(self, c, count):
        mask, margin = chosen(c, count)
        self.margins = np.minimum(self.margins, margin)
        return mask

    def softmax_weights(self, z):
        """[T, experts]: 0 where not chosen. The softmax of the chosen; that of all, divided by the sum of the chosen, is the same."""
        return softmax(np.where(self.choose(z, self.c["num_experts_per_tok"]), z, -np.inf))

    def sigmoid_weights(self, z, bias, eps):
        s, groups = sigmoid(z), self.c.get("n_group", 1)
        c = s + bias
        if groups > 1:
            grouped = c.reshape(len(c), groups, -1)
            kept = self.choose(np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2), self.c["topk_group"])
            c = np.where(kept[:, :, None], grouped, -np.inf).reshape(c.shape)
        w = np.where(self.choose(c, self.c["num_experts_per_tok"]), s, 0)
        if self.c.get("norm_topk_prob", True):
            w = w / (w.sum(axis=1, keepdims=True) + eps)
        return w * self.c.get("routed_scaling_factor", 1)

    def experts(self, t, h, weights):
        """The sum of all experts' outputs by their weights [T, experts]."""
        return sum(weights[:, e:e + 1] * (self.activated(gate if gate is None else h @ gate.T, h @ up.T) @ down.T)
                   for e, (gate, up, down) in enumerate(self.expert_matrices(t, weights.shape[1])))

    def expert_matrices(self, t, count):
        """(gate or None, up, down) of each: of one tensor an expert, or of one for all, where the gate's rows are above up's."""
        own = t.at("experts")
        if "input_linear.weight" in t or "gate_up_proj" in own:
            both, down = (t["input_linear.weight"], t["output_linear.weight"]) if "input_linear.weight" in t else (
                own["gate_up_proj"], own["down_proj"])
            return [(*np.split(both[e], 2), down[e]) for e in range(count)]
        if "up_proj" in own:
            return [(None, own["up_proj"][e], own["down_proj"][e]) for e in range(count)]
        return [tuple(name and own[f"{e}.{name}.weight"] for name in self.matrices) for e in range(count)]


def network(config, values):
    """What computes the logits of a checkpoint of any kind."""
    hybrid = "text_config" in config or any(config["model_type"].startswith(kind) for kind in NAMES)
    return (Hybrid if hybrid else Network)(config, values)
