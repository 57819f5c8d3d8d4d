# SPDX-License-Identifier: Apache-2.0
"""Many prompts and many contents, for asyncio. The same as in threads/bulk.py."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from rivulet import errors, replies
from rivulet.aio.multiplex import AsyncMultiplex
from rivulet.core.bulk import BulkGeneration, Failure, Patience


async def generate_all(
    prepare: Callable[[], Awaitable[None]], stream: Callable[[], AsyncMultiplex], bulk: BulkGeneration
) -> AsyncGenerator[replies.Generation | Failure, None]:
    """prepare: runs before each stream."""
    while not bulk.has_ended:
        await prepare()
        async with stream() as multiplex:
            lost = False
            while not lost:
                bulk.start(multiplex.generate)
                for result in bulk.results():
                    yield result
                if bulk.has_ended:
                    return
                if not bulk.is_open:
                    await asyncio.sleep(bulk.pause())
                    continue
                try:
                    bulk.take(await multiplex.__anext__())
                except errors.Unavailable as error:
                    bulk.lost(error)
                    lost = True


async def _scored(score: Callable[[Any], Awaitable[replies.Score]], content: Any, patience: Patience) -> replies.Score | Failure:
    while True:
        try:
            result = await score(content)
        except (TypeError, ValueError) as error:
            return error
        except errors.RivuletError as error:
            wait = patience.wait(error)
            if wait is None:
                return error
            await asyncio.sleep(wait)
        else:
            patience.succeeded()
            return result


async def score_many(
    score: Callable[[Any], Awaitable[replies.Score]], contents: Iterator[Any], at_once: int, patience: Patience
) -> AsyncGenerator[replies.Score | Failure, None]:
    running: deque[asyncio.Task[replies.Score | Failure]] = deque()
    try:
        while True:
            for content in islice(contents, at_once - len(running)):
                running.append(asyncio.ensure_future(_scored(score, content, patience)))
            if not running:
                return
            yield await running[0]
            running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
