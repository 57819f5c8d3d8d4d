# SPDX-License-Identifier: Apache-2.0
"""Many requests over one stream, for asyncio. The same as in multiplex.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import grpc

from rivulet import errors, requests
from rivulet.aio_streams import cancelled, end
from rivulet.multiplex_core import MultiplexCore, MultiplexPart
from rivulet.v1 import multiplex_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncMultiplex(MultiplexCore, AsyncIterator[MultiplexPart]):
    """Many generate() over one stream, of AsyncClient.multiplex(), for `async with` and `async for`. As Multiplex. Thread:
    that of the event loop. One task at a time iterates; any task may start and cancel requests."""

    def __init__(self, start: Callable[[AsyncIterator[multiplex_pb2.MultiplexRequest]], Any]) -> None:
        """For the client."""
        super().__init__()
        self._unsent: asyncio.Queue[multiplex_pb2.MultiplexRequest | None] = asyncio.Queue()
        self._call = start(self._requests())
        self._messages = self._call.__aiter__()

    async def _requests(self) -> AsyncIterator[multiplex_pb2.MultiplexRequest]:
        while (message := await self._unsent.get()) is not None:
            yield message

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.GenerateOptions]) -> int:
        """Starts a request and returns its key. Arguments and errors: as Multiplex.generate()."""
        message = self._begin(prompt, options)
        self._unsent.put_nowait(message)
        return message.key

    def cancel(self, key: int) -> None:
        """Ends a request. As Multiplex.cancel()."""
        message = self._cancel(key)
        if message is not None:
            self._unsent.put_nowait(message)

    async def __anext__(self) -> MultiplexPart:
        try:
            while (part := self._next()) is None:
                self._take(await self._messages.__anext__())
        except StopIteration:  # of _next: no request is open
            raise StopAsyncIteration from None
        except StopAsyncIteration:
            self._lost()
            raise errors.Unavailable("the stream ended before its requests") from None
        except grpc.RpcError as error:
            self._lost()
            raise errors.from_call(error) from None
        except asyncio.CancelledError:
            self._lost()
            raise await cancelled(self._call) from None
        return part

    def close(self) -> None:
        """Ends the stream and its open requests. Does nothing if it has ended."""
        end(self._call)
        self._unsent.put_nowait(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


async def generate_many(
    stream: Callable[[], AsyncMultiplex],
    pairs: Iterator[tuple[requests.Prompt, requests.GenerateOptions]],
    at_once: int,
) -> AsyncGenerator[MultiplexPart, None]:
    async with stream() as multiplex:
        for prompt, options in islice(pairs, at_once):
            multiplex.generate(prompt, **options)
        async for part in multiplex:
            if part.ended:
                for prompt, options in islice(pairs, 1):
                    multiplex.generate(prompt, **options)
            yield part
