# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of a prompt, from Score, for completions that echo the prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rivulet import Model
from rivulet.gateway.routes.reply_objects import logprob
from rivulet.gateway.routes.tokens import TokenTexts
from rivulet.gateway.web.body import Prompt
from rivulet.gateway.web.exchange import Call


async def of_prompt(call: Call, model: Model, texts: TokenTexts, prompt: Prompt, top: int) -> dict[str, Any]:
    """OpenAI's object for `prompt`, with the `top` most likely tokens at each position. A token without a predecessor has null.
    Errors: the server's errors."""
    name = model.summary.name
    offsets: list[int] = []
    if isinstance(prompt, str):
        reply = await call.client.tokenize(prompt, model=name, **call.options)
        size = len(reply.ids) - reply.added_behind
        ids: list[int] = reply.ids[:size].tolist()
        offsets = _characters(prompt, reply.spans[:size, 0]).tolist()
    else:
        ids = list(prompt)
    unscored = min(len(ids), 0 if model.architecture.bos_token_id is not None else 1)
    values: list[float] = []
    likeliest: list[list[tuple[int, float]]] = []
    if len(ids) > unscored:
        positions = range(len(ids) - unscored) if top else None
        score = await call.client.score(ids, model=name, logprobs=True, output_positions=positions, **call.options)
        values = [] if score.logprobs is None else score.logprobs.tolist()
        # In a thread: sorting a whole vocabulary at each position takes long, and numpy releases the GIL meanwhile.
        rows: Sequence[NDArray[np.float32]] = [] if score.outputs is None else list(score.outputs)
        likeliest = await asyncio.to_thread(lambda: [_likeliest(row, top) for row in rows])
    await texts.prepare([*ids, *(id for entry in likeliest for id, _ in entry)])
    if not isinstance(prompt, str):
        offsets = list(accumulate((texts.length(id) for id in ids[:-1]), initial=0)) if ids else []
    # The same number is in both lists: clients compare them to see whether a token was the likeliest.
    named = [
        {id: own if id == scored else value for id, value in entry} for own, scored, entry in zip(values, ids[unscored:], likeliest)
    ]
    none: list[Any] = [None] * unscored
    return {
        "tokens": [texts.text(id) for id in ids], "token_logprobs": none + [logprob(value) for value in values],
        "top_logprobs": none + [{texts.text(id): logprob(value) for id, value in entry.items()} for entry in named] if top else None,
        "text_offset": offsets,
    }  # fmt: skip


def _characters(text: str, begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each given byte offset in a text's UTF-8: the number of characters that end before it."""
    raw = np.frombuffer(text.encode(), np.uint8)
    continues = (raw & 0xC0) == 0x80
    starts: NDArray[np.int64] = np.append(0, np.cumsum(~continues))  # characters that begin before each byte
    ended: NDArray[np.int64] = starts - np.append(continues, False)  # the last character may not have ended there
    return np.take(ended, begins)


def _likeliest(logits: NDArray[np.float32], count: int) -> list[tuple[int, float]]:
    """The most likely tokens and their log-probabilities, most likely first."""
    wide = logits.astype(np.float64)
    normal = wide - (wide.max() + np.log(np.exp(wide - wide.max()).sum()))
    ids = np.argsort(-normal, kind="stable")[:count].tolist()
    return [(id, float(normal[id])) for id in ids]
