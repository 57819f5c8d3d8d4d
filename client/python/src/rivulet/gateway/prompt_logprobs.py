# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of a prompt, for completions that echo it: those of Score."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rivulet import Model
from rivulet.gateway.body import Prompt
from rivulet.gateway.calls import Call
from rivulet.gateway.replies import logprob
from rivulet.gateway.tokens import TokenTexts


async def of_prompt(call: Call, model: Model, texts: TokenTexts, prompt: Prompt, top: int) -> dict[str, Any]:
    """OpenAI's object for `prompt`, with the `top` most likely tokens at each position. A token that nothing precedes has null.
    Errors: those of the server."""
    name = model.summary.name
    offsets: list[int] = []
    if isinstance(prompt, str):
        reply = await call.client.tokenize(prompt, model=name, **call.options)
        ids: list[int] = reply.ids.tolist()
        raw = prompt.encode()
        offsets = [len(raw[:begin].decode("utf-8", "ignore")) for begin in reply.spans[:, 0].tolist()]
    else:
        ids = prompt
    unscored = min(len(ids), 0 if model.architecture.bos_token_id is not None else 1)
    values: list[float] = []
    likeliest: list[list[tuple[int, float]]] = []
    if len(ids) > unscored:
        positions = range(len(ids) - unscored) if top else None
        score = await call.client.score(ids, model=name, logprobs=True, output_positions=positions, **call.options)
        values = [] if score.logprobs is None else score.logprobs.tolist()
        likeliest = [] if score.outputs is None else [_likeliest(row, top) for row in score.outputs]
    await texts.prepare([*ids, *(id for entry in likeliest for id, _ in entry)])
    if not isinstance(prompt, str):
        lengths = [texts.length(id) for id in ids]
        offsets = [sum(lengths[:index]) for index in range(len(ids))]
    none: list[Any] = [None] * unscored
    return {
        "tokens": [texts.text(id) for id in ids], "token_logprobs": none + [logprob(value) for value in values],
        "top_logprobs": none + [{texts.text(id): logprob(value) for id, value in entry} for entry in likeliest] if top else None,
        "text_offset": offsets,
    }  # fmt: skip


def _likeliest(logits: NDArray[np.float32], count: int) -> list[tuple[int, float]]:
    """The most likely tokens and their log-probabilities, most likely first."""
    wide = logits.astype(np.float64)
    normal = wide - (wide.max() + np.log(np.exp(wide - wide.max()).sum()))
    ids = np.argsort(-normal, kind="stable")[:count].tolist()
    return [(id, float(normal[id])) for id in ids]
