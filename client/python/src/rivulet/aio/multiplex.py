# SPDX-License-Identifier: Apache-2.0
"""Many requests over one stream, for asyncio. The same as in threads/multiplex.py."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import grpc

from rivulet import errors
from rivulet.aio.streams import cancelled, end
from rivulet.core import requests
from rivulet.core.multiplex import Entry, MultiplexCore, MultiplexPart, TooLarge, due
from rivulet.v1 import multiplex_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncMultiplex(MultiplexCore, AsyncIterator[MultiplexPart]):
    """Many generate() over one stream, of AsyncClient.multiplex(), for `async with` and `async for`. As Multiplex. Thread:
    the event loop's. One task at a time iterates; any task may start and cancel requests."""

    def __init__(
        self,
        start: Callable[[AsyncIterator[multiplex_pb2.MultiplexRequest], float | None], Any],
        timeout: float | None,
        attempts: int,
        too_large: TooLarge,
    ) -> None:
        """Called by the client only."""
        super().__init__(timeout, attempts, too_large)
        self._start = start
        self._closed = asyncio.Event()
        self._start_call()

    def _start_call(self) -> None:
        self._outgoing: asyncio.Queue[Entry | None] = asyncio.Queue()
        self._call = self._start(_messages(self._outgoing), self._deadline.left())
        self._messages = self._call.__aiter__()

    def _send(self) -> None:
        for entry in self._entries():
            self._outgoing.put_nowait(entry)

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.GenerateOptions]) -> int:
        """Starts a request and returns its key. Arguments and errors: as Multiplex.generate()."""
        key = self._begin(prompt, options)
        if not self._stale:
            self._send()
        return key

    def cancel(self, key: int) -> None:
        """Ends a request. As Multiplex.cancel()."""
        for entry in self._cancel(key):
            self._outgoing.put_nowait(entry)

    async def __anext__(self) -> MultiplexPart:
        try:
            while (part := self._next()) is None:
                if pause := self._pause():
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._closed.wait(), pause)
                if self._replaced() and not self._closed.is_set():
                    self._end_call()
                    self._start_call()
                self._send()
                if not self._read:
                    await self._read_on()
        except StopIteration:  # of _next: no request is open
            raise StopAsyncIteration from None
        return part

    async def _read_on(self) -> None:
        try:
            return self._take(await self._messages.__anext__())
        except StopAsyncIteration:
            error: BaseException = errors.Unavailable("the stream ended before its requests")
        except grpc.RpcError as failure:
            error = errors.from_call(failure)
        except asyncio.CancelledError:
            error = await cancelled(self._call)
        closed = self._closed.is_set() and isinstance(error, errors.RivuletError)
        self._lost(errors.Cancelled("the stream was closed") if closed else error)

    def _end_call(self) -> None:
        end(self._call)
        self._outgoing.put_nowait(None)

    def close(self) -> None:
        """Ends the stream and its open requests. Does nothing if the stream has ended."""
        self._closed.set()
        self._end_call()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


async def _messages(outgoing: asyncio.Queue[Entry | None]) -> AsyncIterator[multiplex_pb2.MultiplexRequest]:
    """Yields each message when it is due."""
    later: list[Entry] = []  # a heap
    while True:
        try:
            entry = await asyncio.wait_for(outgoing.get(), max(later[0][0] - time.monotonic(), 0) if later else None)
        except asyncio.TimeoutError:
            for message in due(later):
                yield message
            continue
        if entry is None:
            return
        heapq.heappush(later, entry)


async def generate_many(
    prepare: Callable[[], Awaitable[None]],
    stream: Callable[[], AsyncMultiplex],
    pairs: Iterator[tuple[requests.Prompt, requests.GenerateOptions]],
    at_once: int,
) -> AsyncGenerator[MultiplexPart, None]:
    await prepare()
    async with stream() as multiplex:
        for prompt, options in islice(pairs, at_once):
            multiplex.generate(prompt, **options)
        async for part in multiplex:
            if part.ended:
                for prompt, options in islice(pairs, 1):
                    multiplex.generate(prompt, **options)
            yield part
