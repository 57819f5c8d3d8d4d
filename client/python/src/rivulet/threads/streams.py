# SPDX-License-Identifier: Apache-2.0
"""Replies that stream, for programs with threads. aio/streams.py has the same for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import grpc

from rivulet import errors, model_replies, replies
from rivulet.core.reply_reader import Reader
from rivulet.core.session import SessionReader
from rivulet.core.stream_hints import StreamHints, check_untouched
from rivulet.core.token_bytes import ModelQuestions
from rivulet.v1 import inference_pb2

if TYPE_CHECKING:
    from typing_extensions import Self


class GenerateStream(StreamHints, Iterator[replies.Part]):
    """The parts of a reply as they arrive. Ends the call when it is closed, left (`with`) or dropped (`break` out of a loop
    over it, where gRPC's own call ends with its last reference): the server then frees the slot within one or two
    steps.

    If a call is lost (Unavailable), another call continues the reply from the same place, within the timeout, on any replica
    behind the target. The iteration continues without missing or repeated tokens. `usage` has the times of the last call. Before
    the first part there are at most `max_attempts` calls (Client); later the reply ends after five calls that bring nothing, with
    the error of the lost call. resume=False: a reply that has begun ends with the error of its call.

    Thread: one at a time iterates; close() may be called from any thread, and the iteration then ends with Cancelled.
    Errors while iterating: InvalidArgument, NotFound, OutOfRange, ResourceExhausted, Unavailable, DeadlineExceeded, Cancelled,
    Internal; FailedPrecondition (RESUME_MISMATCH: the server that answered a later call would continue with other
    tokens).
    """

    _how_to_read = "Iterate over it for the parts, or call collect() for the whole"

    def __init__(
        self,
        start: Callable[[inference_pb2.GenerateRequest], Any],
        reader: Reader,
        asks: ModelQuestions[model_replies.Model, replies.Text],
        repair: Callable[[errors.RivuletError], bool] | None = None,
    ) -> None:
        """start: begins a call. repair: returns whether a call that ended with this error may be repeated at once."""
        self._start = start
        self._repair = repair
        self._reader = reader
        self._asks = asks
        self._begun = False  # the program iterates
        self._lost = False  # another call is needed
        self._lock = threading.Lock()  # guards replacing and closing _call
        self._closed = threading.Event()
        self._call = start(reader.request())

    def __next__(self) -> replies.Part:
        self._begun = True
        while True:
            try:
                if self._lost:
                    self._call_again()
                if self._closed.is_set() and self.usage is None:
                    raise errors.Cancelled("the reply was closed")
                return self._next()
            except errors.RivuletError as error:
                if self._reader.has_ended(error):
                    raise StopIteration from None
                try:
                    repaired = self._repair is not None and self._repair(error)
                    wait = 0.0 if repaired else self._reader.wait(error)
                except errors.RivuletError:
                    self.close()
                    raise
                self._closed.wait(wait)
                self._lost = True

    def _next(self) -> replies.Part:
        """Returns the next part of this call."""
        while True:
            try:
                message = next(self._call)
            except grpc.RpcError:
                raise errors.from_call(self._call, self._reader.deadline.timeout) from None
            if self._reader.awaits_cookie:
                self._reader.answered(self._call.initial_metadata())
            if self._reader.needs_content:
                self._reader.set_content(self._asks.model(), self._asks.token_bytes)
            while unknown := self._reader.unknown_tokens(message):
                self._reader.learned(unknown, self._asks.detokenize(unknown))
            part = self._reader.read(message)
            if part is not None:
                return part

    def _call_again(self) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._call = self._start(self._reader.request())
        self._lost = False

    def collect(self) -> replies.Generation:
        """Waits for the end and returns the whole reply. Errors: the errors of iterating, with the received part as
        `partial`; RuntimeError (called after parts were taken)."""
        check_untouched(self._begun)
        parts: list[replies.Part] = []
        try:
            parts.extend(self)
        except errors.RivuletError as error:
            error.partial = replies.PartialGeneration(tuple(parts), self.seed)
            raise
        return self._reader.collect(parts)

    def close(self) -> None:
        """Ends the call. Does nothing if the call has ended."""
        self._closed.set()
        with self._lock:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SessionStream(GenerateStream):
    """A reply on a session. As GenerateStream, but on the server that has the session, and with each part checked against the
    session's running hash. After close() the session continues after the last part that was taken.

    Errors while iterating: also DataLoss (the server's session holds other tokens than this client has given and received), and
    Cancelled if another call has used the session.
    """


def session_stream(
    start: Callable[[inference_pb2.GenerateRequest], Any],
    reader: SessionReader,
    asks: ModelQuestions[model_replies.Model, replies.Text],
    prepare: Callable[[], None] | None,
    repair: Callable[[errors.RivuletError], bool],
) -> SessionStream:
    """prepare: runs before the first call."""
    if prepare is not None:
        prepare()
    return SessionStream(start, reader, asks, repair)
