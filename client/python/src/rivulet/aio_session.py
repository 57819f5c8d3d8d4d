# SPDX-License-Identifier: Apache-2.0
"""Sessions for asyncio. The same methods, arguments and errors as those of Session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from rivulet import errors, model_replies, replies, requests
from rivulet.aio_streams import AsyncSessionStream, cancelled
from rivulet.cookies import SessionCookies
from rivulet.session_core import SessionCore
from rivulet.token_bytes import ModelQuestions
from rivulet.v1 import inference_pb2, session_service_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncSessionCalls(Protocol):
    """The part of the client that a session uses."""

    _cookies: SessionCookies

    def _start(self, method: str, message: Any, options: requests.CallOptions) -> Any: ...

    async def _call(self, method: str, message: Any, options: requests.CallOptions) -> Any: ...

    def _asks(
        self, model: str, own: Callable[[], requests.CallOptions]
    ) -> ModelQuestions[Awaitable[model_replies.Model], Awaitable[replies.Text]]: ...


class AsyncSession(SessionCore):
    """A conversation with a model, of AsyncClient.open_session(), session(), restore_session() or fork(). As Session;
    `async with` closes it at the end, unless keep() was called. Thread: that of the event loop; one task at a time."""

    _client: AsyncSessionCalls

    def __init__(self, client: AsyncSessionCalls, info: replies.SessionInfo, **known: Any) -> None:
        """For the client."""
        super().__init__(info, client._cookies, **known)
        self._client = client

    async def _begin(self, options: requests.CallOptions) -> None:
        self._end_reply()
        if self._ahead:
            await self._rewind(self.position, None, options)

    async def append(
        self,
        content: requests.Prompt = (),
        *,
        score: bool = False,
        output_positions: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        logprobs: bool = False,
        mark: str | None = None,
        cache: requests.PromptCache | bool | None = None,
        priority: requests.Priority | requests.PriorityName | None = None,
        add_special_tokens: bool | None = None,
        parse_special_tokens: bool | None = None,
        **options: Unpack[requests.CallOptions],
    ) -> replies.Score:
        """Feeds tokens without generating. Arguments and errors: as Session.append()."""
        await self._begin(options)
        special = (add_special_tokens, parse_special_tokens)
        request = self._append_request(content, score, output_positions, logprobs, mark, cache, priority, special)
        with self._changing():
            reply = await self._client._call("append", request, options)
        return self._appended(request, reply)

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.SessionGenerateOptions]) -> AsyncSessionStream:
        """Appends the prompt, if there is one, and streams generated tokens, for `async for`. Arguments and errors: as
        Session.generate(). After a reply that was left early or lost, the call starts when its first part is
        requested."""
        reader = self._reader(prompt, options)
        self._end_reply()

        def start(request: inference_pb2.GenerateRequest) -> Any:
            return self._client._start("generate", request, reader.call_options())

        async def prepare() -> None:
            await self._rewind(reader.core.position, None, reader.call_options())
            self._ahead = True

        asks = self._client._asks(self.model, reader.call_options)
        stream = AsyncSessionStream(start, reader, asks, prepare if self._ahead else None)
        self._watch(stream)
        return stream

    async def fork(
        self, count: int = 1, *, seed: int | None = None, position: int | None = None, **options: Unpack[requests.CallOptions]
    ) -> list[AsyncSession]:
        """Opens `count` sessions that continue from this one. Arguments and errors: as Session.fork()."""
        await self._begin(options)
        reply = await self._client._call("fork_session", self._fork_request(count, seed, position), options)
        infos = [replies.session(message) for message in reply.sessions]
        return [AsyncSession(self._client, info, sequence=self._sequence.copy(info.position)) for info in infos]

    async def rewind(
        self, *, position: int | None = None, mark: str | None = None, **options: Unpack[requests.CallOptions]
    ) -> None:
        """Drops the tokens after a position or a mark. Arguments and errors: as Session.rewind()."""
        self._end_reply()
        await self._rewind(position, mark, options)

    async def _rewind(self, position: int | None, mark: str | None, options: requests.CallOptions) -> None:
        request = self._rewind_request(position, mark)
        with self._changing():
            reply = await self._client._call("rewind_session", request, options)
        self._rewound(reply)

    async def snapshot(self, *, position: int | None = None, **options: Unpack[requests.CallOptions]) -> bytes:
        """Returns the session as bytes for AsyncClient.restore_session(). They outlive the server. Arguments and
        errors: as
        Session.snapshot()."""
        self._end_reply()
        request = self._snapshot_request(position)
        if self._ahead and request.position > self.position:
            await self._rewind(self.position, None, options)
        call = self._client._start("snapshot_session", request, options)
        try:
            return b"".join([message.chunk async for message in call])
        except grpc.RpcError as error:
            raise errors.from_call(error) from None
        except asyncio.CancelledError:
            raise await cancelled(call) from None

    async def close(self, **options: Unpack[requests.CallOptions]) -> None:
        """Closes the session and ends the requests on it. Does nothing if it is closed."""
        self._end_reply()
        request = session_service_pb2.CloseSessionRequest(model=self.model, session_id=self.id)
        try:
            await self._client._call("close_session", request, options)
        except errors.NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
        self._cookies.forget(self.id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exception_type: object, *exception: object) -> None:
        if self._keep:
            return
        try:
            await self.close()
        except Exception:
            if exception_type is None:  # else that one is the one to tell
                raise
