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
    """Many requests over one stream, from Client.multiplex(). For hundreds at once: one message per step holds the
    tokens of all of them.

    Iterating yields the parts of all requests as they arrive, and ends when every request started so far has ended;
    then more may be started. An error of one request ends only that request; it is the `error` of its last part.
    Leaving the `with` block cancels open requests. While the program does not iterate, the server pauses the requests.

    Thread: one at a time; cancel() and close() may be called from any thread.
    Errors while iterating: those of the stream, which end all requests: Unavailable, DeadlineExceeded, Cancelled (close()).
    """

    def __init__(self, start: Callable[[Iterator[multiplex_pb2.MultiplexRequest]], Any]) -> None:
        """For the client."""
        super().__init__()
        self._unsent: queue.SimpleQueue[multiplex_pb2.MultiplexRequest | None] = queue.SimpleQueue()
        self._call = start(iter(self._unsent.get, None))

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.GenerateOptions]) -> int:
        """Starts a request and returns its key, which is in its parts: 0 for the first request, then 1, 2, ...
        Arguments: as Client.generate(), without metadata; `timeout` is for this request. Errors: TypeError, ValueError;
        errors of the server are in the request's last part."""
        message = self._begin(prompt, options)
        self._unsent.put(message)
        return message.key

    def cancel(self, key: int) -> None:
        """Cancels a request: its last part has the error Cancelled. Does nothing if it has ended."""
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
        """Ends the stream and its open requests. Does nothing if it has ended."""
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
