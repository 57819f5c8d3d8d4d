# SPDX-License-Identifier: Apache-2.0
"""The texts of single tokens, for log-probabilities and for prompts of token ids."""

from __future__ import annotations

from collections.abc import Iterable

from rivulet import Model, TextContent


def texts(model: Model, ids: Iterable[int]) -> list[str]:
    """The text of each token; "token_id:N" where the model's tokens are not characters."""
    alphabet = model.content.alphabet if isinstance(model.content, TextContent) else ""
    if not alphabet:
        return [f"token_id:{id}" for id in ids]
    return [alphabet[id] if 0 <= id < len(alphabet) else "" for id in ids]
