# SPDX-License-Identifier: Apache-2.0
"""Many requests over one stream, for programs with threads. aio_multiplex.py has the same for asyncio."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import grpc

from rivulet import errors, requests
from rivulet.multiplex_core import MultiplexCore, MultiplexPart
from rivulet.v1 import multiplex_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Multiplex(MultiplexCore, Iterator[MultiplexPart]):
    """Many generate() over one stream, of Client.multiplex(): for hundreds at once, whose tokens then come in one message a step.

    Iterating yields the parts of all requests as they come, and ends when every request begun so far has ended; then more may be
    begun. What is wrong with one request ends that one: `error` of its last part. Leaving the `with` block cancels what is open.
    While nobody iterates, the server pauses the requests.

    Thread: one at a time; cancel() and close() may come from any.
    Errors while iterating: those of the stream, which end all requests: Unavailable, DeadlineExceeded, Cancelled (close()).
    """

    def __init__(self, start: Callable[[Iterator[multiplex_pb2.MultiplexRequest]], Any]) -> None:
        """For the client."""
        super().__init__()
        self._unsent: queue.SimpleQueue[multiplex_pb2.MultiplexRequest | None] = queue.SimpleQueue()
        self._call = start(iter(self._unsent.get, None))

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.GenerateOptions]) -> int:
        """Begins a request and returns its key, which its parts carry: 0 for the first, then 1, 2, ... Arguments: as
        Client.generate(), without metadata; `timeout` is this request's. Errors: TypeError, ValueError; those of the server come
        with the request's last part."""
        message = self._begin(prompt, options)
        self._unsent.put(message)
        return message.key

    def cancel(self, key: int) -> None:
        """Ends a request: its last part has the error Cancelled. Harmless where it has ended."""
        message = self._cancel(key)
        if message is not None:
            self._unsent.put(message)

    def __next__(self) -> MultiplexPart:
        while (part := self._next()) is None:
            try:
                self._take(next(self._call))
            except StopIteration:
                self._lost()
                raise errors.Unavailable("the stream ended before its requests") from None
            except grpc.RpcError:
                self._lost()
                raise errors.from_call(self._call) from None
        return part

    def close(self) -> None:
        """Ends the stream and what is open. Harmless where it has ended."""
        self._call.cancel()
        self._unsent.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def generate_many(
    stream: Callable[[], Multiplex],
    pairs: Iterator[tuple[requests.Prompt, requests.GenerateOptions]],
    at_once: int,
) -> Generator[MultiplexPart, None, None]:
    with stream() as multiplex:
        for prompt, options in islice(pairs, at_once):
            multiplex.generate(prompt, **options)
        for part in multiplex:
            if part.ended:
                for prompt, options in islice(pairs, 1):
                    multiplex.generate(prompt, **options)
            yield part
