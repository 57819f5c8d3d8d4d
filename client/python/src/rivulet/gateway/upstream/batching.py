# SPDX-License-Identifier: Apache-2.0
"""Merges parts of replies that are ready together: for a busy gateway, an event costs more than its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Union

import numpy as np

from rivulet import Part

_MOST = 64  # most parts of a group, and parts that wait; beyond, the server is not read, and merges tokens itself

Numbered = tuple[int, Part]


class _End:
    """The end of the parts, with the error that ended them."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


async def together(parts: AsyncGenerator[Numbered, None]) -> AsyncGenerator[list[Numbered], None]:
    """Yields groups of at least one part: all parts that are ready. A part waits for other parts only while the event loop has
    other work. Errors: the errors of `parts`, after the parts before the error."""
    waiting: asyncio.Queue[Union[Numbered, _End]] = asyncio.Queue(_MOST)

    async def read() -> None:
        error: BaseException | None = None
        try:
            async for one in parts:
                await waiting.put(one)
        except Exception as caught:
            error = caught
        await waiting.put(_End(error))

    reader = asyncio.create_task(read())
    try:
        while True:
            found = [await waiting.get()]
            await asyncio.sleep(0)  # other tasks with work run first, among them the reader
            while not waiting.empty() and len(found) < _MOST:  # a server may always have more parts
                found.append(waiting.get_nowait())
            # The end comes last.
            ready = [one for one in found if not isinstance(one, _End)]
            if ready:
                yield ready
            last = found[-1]
            if isinstance(last, _End):
                if last.error is not None:
                    raise last.error
                return
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await parts.aclose()


def merged(found: list[Numbered]) -> list[Numbered]:
    """Merges the parts of each sample into one part, ordered by the first part of each sample."""
    if len(found) == 1:
        return found
    own: dict[tuple[int, int], list[Part]] = {}
    for number, part in found:
        own.setdefault((number, part.sample_index), []).append(part)
    return [(number, _joined(parts)) for (number, _), parts in own.items()]


def _joined(parts: list[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    logprobs = [part.logprobs for part in parts if part.logprobs is not None]
    top = [entry for part in parts for entry in part.top_logprobs or ()]
    return replace(
        parts[-1], first_position=parts[0].first_position, tokens=np.concatenate([part.tokens for part in parts]),
        text="".join(part.text for part in parts), logprobs=np.concatenate(logprobs) if logprobs else None,
        top_logprobs=None if parts[-1].top_logprobs is None else tuple(top),
    )  # fmt: skip
