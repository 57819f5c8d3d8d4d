# SPDX-License-Identifier: Apache-2.0
"""Many requests over one stream, for programs with threads. aio/multiplex.py has the same for asyncio."""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import grpc

from rivulet import errors
from rivulet.core import requests
from rivulet.core.multiplex import Entry, MultiplexCore, MultiplexPart, TooLarge, due
from rivulet.v1 import multiplex_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class Multiplex(MultiplexCore, Iterator[MultiplexPart]):
    """Many requests over one stream, from Client.multiplex(). For hundreds of requests at once: one message per step
    holds the tokens of all requests.

    Iterating yields the parts of all requests as they arrive, and ends when every request started so far has ended;
    then more may be started. An error of one request ends only that request: its last part has the `error`. A request that is lost
    (Unavailable), alone or with the stream, is resumed like a reply of Client.generate(), over another stream. The other
    requests move to this stream, too. Leaving the `with` block cancels open requests. While the program does not iterate, the
    server pauses the requests.

    Thread: one at a time; cancel() and close() may be called from any thread.
    Errors while iterating: errors of the stream, which end all requests: DeadlineExceeded, Cancelled (close()), InvalidArgument
    (MESSAGE_TOO_LARGE: a request was larger than the server's limit, and no model() has told the client this limit before; after a
    model(), only that request ends).
    """

    def __init__(
        self,
        start: Callable[[Iterator[multiplex_pb2.MultiplexRequest], float | None], Any],
        timeout: float | None,
        attempts: int,
        too_large: TooLarge,
    ) -> None:
        """Called by the client only."""
        super().__init__(timeout, attempts, too_large)
        self._start = start
        self._lock = threading.Lock()  # guards replacing and closing _call, and sending and cancelling requests
        self._closed = threading.Event()
        self._start_call()

    def _start_call(self) -> None:
        self._outgoing: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._call = self._start(_messages(self._outgoing), self._deadline.left())

    def _send(self) -> None:
        with self._lock:
            for entry in self._entries():
                self._outgoing.put(entry)

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.GenerateOptions]) -> int:
        """Starts a request and returns its key, which its parts have: 0 for the first request, then 1, 2, ...
        Arguments: as Client.generate(), without metadata; `timeout` is for this request. Errors: TypeError, ValueError;
        errors of the server are in the request's last part."""
        key = self._begin(prompt, options)
        if not self._stale:
            self._send()
        return key

    def cancel(self, key: int) -> None:
        """Cancels a request: its last part has the error Cancelled. Does nothing if the request has ended."""
        with self._lock:
            for entry in self._cancel(key):
                self._outgoing.put(entry)

    def __next__(self) -> MultiplexPart:
        while (part := self._next()) is None:
            if pause := self._pause():
                self._closed.wait(pause)
            if self._replaced():
                self._end_call()
                with self._lock:
                    if not self._closed.is_set():
                        self._start_call()
            self._send()
            if not self._read:
                self._read_on()
        return part

    def _read_on(self) -> None:
        try:
            return self._take(next(self._call))
        except StopIteration:
            error: errors.RivuletError = errors.Unavailable("the stream ended before its requests")
        except grpc.RpcError:
            error = errors.from_call(self._call)
        self._lost(errors.Cancelled("the stream was closed") if self._closed.is_set() else error)

    def _end_call(self) -> None:
        self._call.cancel()
        self._outgoing.put(None)

    def close(self) -> None:
        """Ends the stream and its open requests. Does nothing if the stream has ended."""
        self._closed.set()
        with self._lock:
            self._end_call()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _messages(outgoing: queue.SimpleQueue[Entry | None]) -> Iterator[multiplex_pb2.MultiplexRequest]:
    """Yields each message when it is due. Runs on a thread of gRPC."""
    later: list[Entry] = []  # a heap
    while True:
        try:
            entry = outgoing.get(timeout=max(later[0][0] - time.monotonic(), 0) if later else None)
        except queue.Empty:
            yield from due(later)
            continue
        if entry is None:
            return
        heapq.heappush(later, entry)


def generate_many(
    prepare: Callable[[], None],
    stream: Callable[[], Multiplex],
    pairs: Iterator[tuple[requests.Prompt, requests.GenerateOptions]],
    at_once: int,
) -> Generator[MultiplexPart, None, None]:
    prepare()
    with stream() as multiplex:
        for prompt, options in islice(pairs, at_once):
            multiplex.generate(prompt, **options)
        for part in multiplex:
            if part.ended:
                for prompt, options in islice(pairs, 1):
                    multiplex.generate(prompt, **options)
            yield part
