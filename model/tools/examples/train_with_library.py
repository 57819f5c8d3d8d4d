#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A character model trained with pytorch-fast-transformers alone: nothing here knows Rivulet.

    train_with_library.py book.txt book.pt [steps]

Writes book.pt and book.alphabet, the characters in the order of their ids. Needs torch and pytorch-fast-transformers.
"""

import math
import pathlib
import sys

import torch
from fast_transformers.builders import TransformerEncoderBuilder
from fast_transformers.masking import TriangularCausalMask

LENGTH, BATCH, WARMUP = 128, 16, 50


class CharacterModel(torch.nn.Module):
    def __init__(self, characters: int, heads: int = 4, key_dim: int = 32, layers: int = 4):
        super().__init__()
        hidden = heads * key_dim
        self.embedding = torch.nn.Embedding(characters, hidden)
        self.position = torch.nn.Parameter(0.02 * torch.randn(1, LENGTH, hidden))
        self.transformer = TransformerEncoderBuilder.from_kwargs(
            attention_type="causal-linear", n_layers=layers, n_heads=heads, query_dimensions=key_dim, value_dimensions=key_dim,
            feed_forward_dimensions=4 * hidden, activation="gelu", dropout=0.0,
        ).get()  # fmt: skip
        self.predictor = torch.nn.Linear(hidden, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Ids [batch, length] -> logits of the characters that follow [batch, length, characters]."""
        length = tokens.shape[1]
        x = self.embedding(tokens) + self.position[:, :length]
        return self.predictor(self.transformer(x, attn_mask=TriangularCausalMask(length, device=x.device)))


def main() -> None:
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    text = source.read_bytes().decode()
    alphabet = "".join(sorted(set(text)))
    tokens = torch.tensor([alphabet.index(c) for c in text])
    torch.manual_seed(1)
    model = CharacterModel(len(alphabet))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-3 * min((step + 1) / WARMUP, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        starts = torch.randint(len(tokens) - LENGTH, (BATCH,))
        window = torch.stack([tokens[s : s + LENGTH + 1] for s in starts])
        loss = torch.nn.functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}  {loss.item():.3f} nats/char", flush=True)
    torch.save({"model_state": model.state_dict(), "optimizer_state": optimizer.state_dict(), "iteration": steps}, target)
    target.with_suffix(".alphabet").write_bytes(alphabet.encode())


if __name__ == "__main__":
    main()
