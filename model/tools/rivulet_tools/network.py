# SPDX-License-Identifier: Apache-2.0
"""The network of a model directory in PyTorch: a parallel form for training and a recurrent form, equal except for rounding.

Parameters carry the tensor names of model/FORMAT.md, so that a state_dict is a model. Causal attention is computed in chunks: within
one the masked quadratic form, between them the state, in plain PyTorch without compiled extensions.

    S_t = g_t S_{t-1} + w_t k_t v_t^T,  z_t likewise,  y_t = q_t^T S_t / normalizer(q_t . z_t);   no gate: g = w = 1;   rfa: w = 1 - g
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rivulet_tools.errors import BadInput

State = list[tuple[Tensor, Tensor]]  # a layer: S [batch, heads, features, value_dim], z [batch, heads, features]


class Attention(nn.Module):
    """Multi-head linear attention with the elu or the rfa feature map, gated or not."""

    def __init__(self, config: Mapping[str, Any], chunk: int):
        super().__init__()
        hidden, self.heads, self.key_dim = config["hidden_size"], config["num_heads"], config["key_dim"]
        values, attention = self.heads * config["value_dim"], config["attention"]
        self.query_projection = nn.Linear(hidden, self.heads * self.key_dim)
        self.key_projection = nn.Linear(hidden, self.heads * self.key_dim)
        self.value_projection = nn.Linear(hidden, values)
        self.out_projection = nn.Linear(values, hidden)
        self.map, self.normalizer, self.chunk = attention["feature_map"], attention["normalizer"], chunk
        if self.map["type"] not in ("elu", "rfa"):
            raise BadInput(f"feature map {self.map['type']!r}: this network has elu and rfa")
        if self.map["type"] == "rfa":
            self.register_buffer("omega", torch.randn(self.heads, self.key_dim, self.map["num_features"]))
            self.sigma = nn.Parameter(torch.ones(self.heads, self.key_dim))
        self.gate_projection = None
        if attention["gate"] == "rfa":
            self.gate_projection = nn.Linear(hidden, self.heads)
            nn.init.zeros_(self.gate_projection.weight)
            # Heads begin with memories from a few tokens to a few hundred: g = 1 - 1/length.
            lengths = torch.logspace(math.log10(4), math.log10(256), self.heads)
            self.gate_projection.bias.data = torch.log(lengths - 1)

    def features(self, x: Tensor) -> Tensor:
        """phi(x) for keys or queries [..., heads, tokens, key_dim] -> [..., heads, tokens, features]."""
        if self.map["type"] == "elu":
            # Not elu(x) + 1: features near 0 keep their relative precision, as in the server.
            return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
        x = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)
        u = x @ (self.sigma[:, :, None] * self.omega)
        return torch.cat([u.sin(), u.cos()], -1) / math.sqrt(self.map["num_features"])

    def divided(self, numerator: Tensor, weight: Tensor) -> Tensor:
        """numerator [..., value_dim] by normalizer(weight [...])."""
        n = self.normalizer
        weight = weight + n["eps"] if n["type"] == "add_eps" else weight.clamp(min=n["min"])
        return numerator / weight[..., None]

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [batch, tokens, hidden], the state before them (None: empty) -> outputs of x's shape, the state after them."""
        batch, tokens, _ = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, tokens, self.heads, -1).transpose(1, 2)

        q, k = self.features(split(self.query_projection(x))), self.features(split(self.key_projection(x)))
        v = split(self.value_projection(x))
        log_gate = None
        if self.gate_projection is not None:
            score = self.gate_projection(x).transpose(1, 2)  # [batch, heads, tokens]
            log_gate = functional.logsigmoid(score)
            k = k * torch.sigmoid(-score)[..., None]
        if state is None:
            state = (x.new_zeros(batch, self.heads, k.shape[-1], v.shape[-1]), x.new_zeros(batch, self.heads, k.shape[-1]))
        pieces = []
        for begin in range(0, tokens, self.chunk):
            part = slice(begin, begin + self.chunk)
            decay = None if log_gate is None else log_gate[:, :, part].cumsum(-1)
            y, state = self.attend(q[:, :, part], k[:, :, part], v[:, :, part], decay, state)
            pieces.append(y)
        y = torch.cat(pieces, 2).transpose(1, 2).reshape(batch, tokens, -1)
        return self.out_projection(y), state

    def attend(self, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None,
               state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # fmt: skip
        """One chunk. q, k [batch, heads, tokens, features], v [.., tokens, value_dim], decay [.., tokens] = the sum of log g up to
        and with each token; None: no gate."""
        s, z = state
        tokens = q.shape[2]
        future = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
        scores = q @ k.transpose(-1, -2)
        if decay is None:
            scores = scores.masked_fill(future, 0)
            old, k_last = q, k
        else:
            # Differences are <= 0 where they count; the rest is masked before exp, which could overflow there.
            between = (decay[..., :, None] - decay[..., None, :]).masked_fill(future, -math.inf)
            scores = scores * between.exp()
            old = q * decay.exp()[..., None]
            last = decay[..., -1:]
            k_last = k * (last - decay).exp()[..., None]
            s, z = s * last.exp()[..., None], z * last.exp()
        y = self.divided(scores @ v + old @ state[0], scores.sum(-1) + (old @ state[1][..., None])[..., 0])
        return y, (s + k_last.transpose(-1, -2) @ v, z + k_last.sum(2))

    def step(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """One token in the recurrent form, straight from its definition. x [batch, hidden]."""
        batch = x.shape[0]

        def split(y: Tensor) -> Tensor:
            return y.view(batch, self.heads, 1, -1)

        q = self.features(split(self.query_projection(x)))[:, :, 0]
        k = self.features(split(self.key_projection(x)))[:, :, 0]
        v = split(self.value_projection(x))[:, :, 0]
        s, z = state or (torch.zeros_like(k[..., None] * v[..., None, :]), torch.zeros_like(k))
        if self.gate_projection is None:
            s, z = s + k[..., None] * v[..., None, :], z + k
        else:
            g = torch.sigmoid(self.gate_projection(x))[..., None]
            s = g[..., None] * s + (1 - g[..., None]) * k[..., None] * v[..., None, :]
            z = g * z + (1 - g) * k
        y = self.divided((q[..., None] * s).sum(2), (q * z).sum(-1))
        return self.out_projection(y.reshape(batch, -1)), (s, z)


class Layer(nn.Module):
    """Post-norm: x = norm1(x + attention(x)); x = norm2(x + linear2(activation(linear1(x))))."""

    def __init__(self, config: Mapping[str, Any], chunk: int, dropout: float):
        super().__init__()
        hidden, eps = config["hidden_size"], config["layer_norm_eps"]
        self.attention = Attention(config, chunk)
        self.linear1, self.linear2 = nn.Linear(hidden, config["ffn_size"]), nn.Linear(config["ffn_size"], hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden, eps), nn.LayerNorm(hidden, eps)
        self.activation = functional.gelu if config["activation"] == "gelu" else functional.relu
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None, attend: str) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """attend: "forward" for x [batch, tokens, hidden], "step" for x [batch, hidden]."""
        y, state = getattr(self.attention, attend)(x, state)
        x = self.norm1(x + self.dropout(y))
        y = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return self.norm2(x + self.dropout(y)), state


class Encoder(nn.Module):
    """The layers, and the norm after them if there is one."""

    def __init__(self, config: Mapping[str, Any], chunk: int, dropout: float):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, chunk, dropout) for _ in range(config["num_layers"]))
        self.norm = nn.LayerNorm(config["hidden_size"], config["layer_norm_eps"]) if config["final_norm"] else nn.Identity()

    def forward(self, x: Tensor, state: State | None, attend: str = "forward") -> tuple[Tensor, State]:
        """x as of Layer, states of all layers before (None: empty) -> the encoder's output, states after."""
        after: State = []
        for index, layer in enumerate(self.layers):
            x, layer_state = layer(x, state[index] if state else None, attend)
            after.append(layer_state)
        return self.norm(x), after


class Network(nn.Module):
    """A whole model: token ids to raw head outputs. `config`: as in config.json; maps: elu and rfa; positions: none and learned."""

    def __init__(self, config: Mapping[str, Any], *, chunk: int = 64, dropout: float = 0.0):
        super().__init__()
        hidden, position, output = config["hidden_size"], config["position"], config["output"]
        if position["type"] not in ("none", "learned") or position.get("combine", "add") != "add":
            raise BadInput(f"position {position}: this network has none, and learned ones that are added")
        self.embedding = nn.Embedding(config["vocab_size"], hidden)
        self.position = nn.Embedding(position["max_length"], hidden) if position["type"] == "learned" else None
        self.transformer = Encoder(config, chunk, dropout)
        outputs = config["vocab_size"] if output["type"] == "categorical" else 3 * output["num_mixtures"]
        self.predictor = nn.Linear(hidden, outputs)
        for table in (self.embedding, self.position):
            if table is not None:
                nn.init.normal_(table.weight, std=0.02 if self.position is None else 0.5)

    def forward(self, fed: Tensor) -> Tensor:
        """Token ids [batch, tokens] as fed, bos included -> raw outputs [batch, tokens, outputs]; output t predicts token t + 1."""
        x = self.embedding(fed)
        if self.position is not None:
            x = x + self.position.weight[: fed.shape[1]]
        return self.predictor(self.transformer(x, None)[0])

    def recurrent(self, fed: Tensor) -> Tensor:
        """forward in the recurrent form, one token after the other."""
        state: State | None = None
        rows = []
        for t in range(fed.shape[1]):
            x = self.embedding(fed[:, t])
            if self.position is not None:
                x = x + self.position.weight[t]
            x, state = self.transformer(x, state, "step")
            rows.append(self.predictor(x))
        return torch.stack(rows, 1)
