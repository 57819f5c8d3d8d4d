# SPDX-License-Identifier: Apache-2.0
"""Replies that stream, for asyncio. The same as in threads/streams.py."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from rivulet import errors, model_replies, replies
from rivulet.core.reply_reader import Reader
from rivulet.core.stream_hints import StreamHints, check_untouched
from rivulet.core.token_bytes import ModelQuestions
from rivulet.v1 import inference_pb2

if TYPE_CHECKING:
    from typing_extensions import Self


_ended: weakref.WeakSet[Any] = weakref.WeakSet()  # the calls that a close() has ended


def end(call: Any) -> None:
    _ended.add(call)
    call.cancel()


def _task_is_cancelled(call: Any) -> bool:
    """Whether a CancelledError from `call` is for the task that waits for the call. Otherwise the call ended with the
    status CANCELLED. Python 3.10 cannot tell: there the error is for the task, unless close() has ended the call."""
    cancelling = getattr(asyncio.current_task(), "cancelling", None)
    return call not in _ended if cancelling is None else cancelling() > 0


async def cancelled(call: Any) -> BaseException:
    """The exception for a CancelledError from `call`: the CancelledError itself if it is for the task, else Cancelled."""
    if _task_is_cancelled(call):
        return asyncio.CancelledError()
    return errors.Cancelled(await call.details() or "the call was cancelled")


class AsyncGenerateStream(StreamHints, AsyncIterator[replies.Part]):
    """The parts of a reply as they arrive, for `async for`. Ends the call when it is closed, left (`async with`) or dropped
    (`break` out of a loop over it), and when the task that waits for a part is cancelled: the server then frees the
    slot within one or two steps.

    Thread: the event loop's. If another task calls close(), the iteration ends with Cancelled. Errors: as
    GenerateStream.
    """

    _how_to_read = "Use `async for` over it for the parts, or `await stream.collect()` for the whole"

    def __init__(
        self,
        start: Callable[[inference_pb2.GenerateRequest], Any],
        reader: Reader,
        asks: ModelQuestions[Awaitable[model_replies.Model], Awaitable[replies.Text]],
        prepare: Callable[[], Awaitable[None]] | None = None,
        repair: Callable[[errors.RivuletError], Awaitable[bool]] | None = None,
    ) -> None:
        """start: begins a call. prepare: runs before the first call; the first call is then made when the program iterates.
        repair: returns whether a call that ended with this error may be repeated at once."""
        self._start = start
        self._repair = repair
        self._reader = reader
        self._asks = asks
        self._prepare = prepare
        self._begun = False  # the program iterates
        self._lost = prepare is not None  # another call is needed
        self._closed = asyncio.Event()
        self._call: Any = None
        self._messages: Any = None
        if prepare is None:
            self._start_call()

    def _start_call(self) -> None:
        self._call = self._start(self._reader.request())
        self._messages = self._call.__aiter__()

    async def __anext__(self) -> replies.Part:
        self._begun = True
        while True:
            try:
                if self._lost and not self._closed.is_set():
                    await self._call_again()
                if self._closed.is_set() and self.usage is None:
                    raise errors.Cancelled("the reply was closed")
                return await self._next()
            except errors.RivuletError as error:
                if self._reader.has_ended(error):
                    raise StopAsyncIteration from None
                try:
                    repaired = self._repair is not None and await self._repair(error)
                    wait = 0.0 if repaired else self._reader.wait(error)
                except errors.RivuletError:
                    self.close()
                    raise
                self._lost = True
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._closed.wait(), wait)

    async def _next(self) -> replies.Part:
        """Returns the next part of this call."""
        while True:
            try:
                message = await self._messages.__anext__()
            except grpc.RpcError as error:
                raise errors.from_call(error, self._reader.deadline.timeout) from None
            except asyncio.CancelledError:
                raise await cancelled(self._call) from None
            if self._reader.awaits_cookie:
                self._reader.answered(await self._call.initial_metadata())
            if self._reader.needs_content:
                self._reader.set_content(await self._asks.model(), self._asks.token_bytes)
            while unknown := self._reader.unknown_tokens(message):
                self._reader.learned(unknown, await self._asks.detokenize(unknown))
            part = self._reader.read(message)
            if part is not None:
                return part

    async def _call_again(self) -> None:
        if self._prepare is not None:
            await self._prepare()
            self._prepare = None
        if not self._closed.is_set():
            self._start_call()
        self._lost = False

    async def collect(self) -> replies.Generation:
        """Waits for the end and returns the whole reply. Errors: as GenerateStream.collect()."""
        check_untouched(self._begun)
        parts: list[replies.Part] = []
        try:
            async for part in self:
                parts.append(part)
        except errors.RivuletError as error:
            error.partial = replies.PartialGeneration(tuple(parts), self.seed)
            raise
        return self._reader.collect(parts)

    def close(self) -> None:
        """Ends the call. Does nothing if the call has ended."""
        self._closed.set()
        if self._call is not None:
            end(self._call)

    def __del__(self) -> None:
        # gRPC's call does not always end with its last reference.
        call = getattr(self, "_call", None)
        if call is not None and not call.done():
            with suppress(RuntimeError):  # the loop is closed, and with it the call
                call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.close()


class AsyncSessionStream(AsyncGenerateStream):
    """A reply on a session, for `async for`. As SessionStream."""


session_stream = AsyncSessionStream  # runs `prepare` when the program iterates: AsyncSession.generate() does not wait
