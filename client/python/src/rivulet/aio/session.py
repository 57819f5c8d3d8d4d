# SPDX-License-Identifier: Apache-2.0
"""Sessions for asyncio. threads/session.py has the same for programs with threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rivulet import errors, replies
from rivulet.aio.calls import AsyncCalls
from rivulet.aio.streams import AsyncSessionStream, session_stream
from rivulet.core import requests, session_messages
from rivulet.core.session import SessionCore
from rivulet.core.token_bytes import AsyncQuestions
from rivulet.v1 import inference_pb2, session_pb2, session_service_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncSessionCalls(Protocol):
    """The part of the client that a session uses."""

    _calls: AsyncCalls

    def _asks(self, model: str, own: Callable[[], requests.CallOptions]) -> AsyncQuestions: ...


class AsyncSession(SessionCore):
    """A conversation with a model, from AsyncClient.open_session(), session(), restore_session() or fork(): a sequence of
    given and generated tokens, whose state is kept on the server. Leaving an `async with` block closes it, unless keep() was
    called.

    This object knows the tokens that it gave and received, and continues after them. Tokens that the server generated
    beyond these, in a reply that was left early or lost, are dropped. The object checks that the server holds the
    same tokens (`sequence_hash`). It cannot check tokens that it never saw: tokens of given text, which the server
    tokenizes, and tokens from before session().

    Where replicas share a store of sessions, the object keeps the tokens that the store did not have at the end of a reply or append()
    (Durability). If the replica is lost and the session is found without these tokens, the next call gives them again, with their
    marks, and then takes effect. All tokens that are given again count as given tokens: for penalties, and for `position` of
    generate(). They are not given again if the session was cut within a text, or if another object has used it.

    A call on a session ends a reply of the session that still runs. Thread: the event loop's; one task at a time.
    Only one object at a time should use a session. If another object has used it, calls raise FailedPrecondition
    (SESSION_HASH_MISMATCH); AsyncClient.session() continues from the session's new position.

    Errors of every call: NotFound (SESSION_NOT_FOUND: closed, idle for too long, or the server was restarted),
    ResourceExhausted (SESSION_BUSY), InvalidArgument, Unavailable, DeadlineExceeded, DataLoss (the server holds
    different tokens).
    """

    _client: AsyncSessionCalls

    def __init__(self, client: AsyncSessionCalls, info: replies.SessionInfo, **known: Any) -> None:
        """Called by the client only."""
        super().__init__(info, client._calls.cookies, **known)
        self._client = client

    async def _begin(self, options: requests.CallOptions) -> None:
        """Called before a call: ensures that the server's session has exactly the tokens that this object knows, and
        that no request runs on it."""
        self._end_reply()
        if self._ahead:
            await self._rewind(self.position, None, options)

    async def _call(self, call: Callable[..., Any], request: Any, options: requests.CallOptions) -> Any:
        """Returns call(request, options). If the session has lost tokens, gives them again and repeats the call."""
        try:
            return await call(request, options)
        except errors.RivuletError as error:
            if await self._give_again(error, self.position, options) is None:
                raise
        return await call(request, options)

    async def _give_again(
        self, error: errors.RivuletError, position: int | None, options: requests.CallOptions
    ) -> session_pb2.SessionProgress | None:
        """Called after a call that ended with `error`: gives lost tokens (that were not durable) again, up to the position. Returns
        None if none are lost."""
        if position is None or not self._may_be_behind(error):
            return None
        reply = self._client._calls.reply
        request = session_messages.get_request(self.id, self.model)
        found: session_pb2.SessionProgress = (await reply("get_session", request, options)).session.progress
        missing = self._missing(found, position)
        for append in missing:
            self._continue(append, found)
            found = (await reply("append", append, options)).progress
        if not missing:
            return None
        self._check_given_again(found, position)
        return found

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
        """Processes tokens without generating. An error leaves the session as it was. After Unavailable or DeadlineExceeded
        the same append() may be repeated; tokens are not appended twice.

        content: text (str), token ids (a sequence or array of integers, [n]), or the next values of an image (bytes, or a numpy
          array of uint8, [n]); may be empty, to set a mark.
        score: return how likely the tokens are. All tokens are scored, except the very first of a sequence if the
          model has no bos. Without `score`, num_scored of the result is 0.
        output_positions, logprobs: as in AsyncClient.score(), for the scored tokens; either implies `score`.
        mark: sets a mark with this name at the position after the tokens, at most 64 bytes.
        cache: share states of the whole sequence with other requests; True is the same as PromptCache(). cached_tokens
          of the result is the number of tokens that were not processed because of it.
        priority: order among the tenant's own requests that wait for a slot.
        add_special_tokens, parse_special_tokens: for a text, as in GenerateOptions.
        Errors: OutOfRange (TOO_MANY_TOKENS), FailedPrecondition (MARK_LIMIT).
        """
        await self._begin(options)
        special = (add_special_tokens, parse_special_tokens)
        request = self._append_request(content, score, output_positions, logprobs, mark, cache, priority, special)
        with self._changing():
            reply = await self._call(partial(self._client._calls.reply, "append"), request, options)
        return self._appended(request, reply)

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.SessionGenerateOptions]) -> AsyncSessionStream:
        """Appends the prompt, if there is one, and streams generated tokens. As AsyncClient.generate(), but without `model`
        and `num_samples` (for several continuations, use fork()). After a reply that was left early or lost, the call
        starts when its first part is requested.

        options: position, mark; max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty,
          presence_penalty, logit_bias, seed, stop, stop_token_ids, include_stop_string, ignore_eos, min_tokens,
          skip_special_tokens, reasoning, speculation, logprobs, top_logprobs,
          cache, priority, resume, timeout, metadata: see rivulet.SessionGenerateOptions.
        Errors: TypeError, ValueError (arguments); while iterating the errors of AsyncSessionStream.
        """
        reader = self._reader(prompt, options, self._client._calls.max_attempts)
        self._end_reply()

        def start(request: inference_pb2.GenerateRequest) -> Any:
            return self._client._calls.start("generate", request, reader.call_options(), reader.cookie)

        async def prepare() -> None:
            await self._rewind(self.position, None, reader.call_options())
            self._ahead = True  # a reply starts

        async def repair(error: errors.RivuletError) -> bool:
            found = await self._give_again(error, reader.begin, reader.call_options())
            if found is not None:
                reader.given_again(found.sequence_hash)
            return found is not None

        asks = self._client._asks(self.model, reader.call_options)
        stream = session_stream(start, reader, asks, prepare if self._ahead else None, repair)
        self._watch(stream)
        return stream

    async def fork(
        self, count: int = 1, *, seed: int | None = None, position: int | None = None, **options: Unpack[requests.CallOptions]
    ) -> list[AsyncSession]:
        """Opens `count` sessions, 1 to 256, that continue from this session, which does not change. Either all are
        opened or none.

        seed: fork i gets `seed + i`; absent: the server draws seeds, so that the forks differ. position: where the
          forks continue; absent: the end.
        Errors: OutOfRange (POSITION_OUT_OF_RANGE), ResourceExhausted (SESSION_LIMIT, TENANT_SESSION_LIMIT, API_KEY_SESSION_LIMIT).
        """
        await self._begin(options)
        fork = partial(self._client._calls.reply, "fork_session")
        reply = await self._call(fork, self._fork_request(count, seed, position), options)
        infos = [replies.session(message) for message in reply.sessions]
        return [AsyncSession(self._client, info, sequence=self._sequence.copy(info.position)) for info in infos]

    async def rewind(
        self, *, position: int | None = None, mark: str | None = None, **options: Unpack[requests.CallOptions]
    ) -> None:
        """Drops the tokens after a position (0 to the session's position) or a mark. Errors: OutOfRange
        (POSITION_OUT_OF_RANGE), NotFound (MARK_NOT_FOUND), ValueError (not exactly one of the two)."""
        self._end_reply()
        await self._rewind(position, mark, options)

    async def _rewind(self, position: int | None, mark: str | None, options: requests.CallOptions) -> None:
        request = self._rewind_request(position, mark)
        with self._changing():
            reply = await self._call(partial(self._client._calls.reply, "rewind_session"), request, options)
        self._rewound(reply)

    async def snapshot(self, *, position: int | None = None, **options: Unpack[requests.CallOptions]) -> bytes:
        """Returns the session as bytes for AsyncClient.restore_session(). The bytes outlive the server. position:
        number of tokens in the snapshot, with the marks among them; absent: all. Errors: OutOfRange
        (POSITION_OUT_OF_RANGE)."""
        self._end_reply()
        request = self._snapshot_request(position)
        if self._ahead and request.position > self.position:
            await self._rewind(self.position, None, options)
        snapshot: bytes = await self._call(self._client._calls.snapshot, request, options)
        return snapshot

    async def close(self, **options: Unpack[requests.CallOptions]) -> None:
        """Closes the session and ends its requests. Does nothing if the session is closed."""
        self._end_reply()
        request = session_service_pb2.CloseSessionRequest(model=self.model, session_id=self.id)
        try:
            await self._client._calls.reply("close_session", request, options)
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
            if exception_type is None:  # else the caller gets the exception of the block
                raise
