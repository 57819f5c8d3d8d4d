# SPDX-License-Identifier: Apache-2.0
"""Sessions for programs with threads. aio_session.py has the same for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from rivulet import errors, model_replies, replies, requests
from rivulet.cookies import SessionCookies
from rivulet.session_core import SessionCore
from rivulet.streams import SessionStream
from rivulet.v1 import inference_pb2, session_service_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class SessionCalls(Protocol):
    """What a session needs of its client."""

    _cookies: SessionCookies

    def _call(self, method: str, message: Any, options: requests.CallOptions) -> Any: ...

    def model(self, model: str = "", **options: Unpack[requests.CallOptions]) -> model_replies.Model: ...


class Session(SessionCore):
    """A conversation with a model, of Client.open_session(), session(), restore_session() or fork(): a sequence of tokens, given
    and generated, whose state waits in the server's memory. `with` closes it at the end, unless keep() was called.

    This object knows the tokens that it gave and received, and goes on right after them: what the server generated of a reply
    that was left early or lost is dropped. It checks that the server holds the same tokens (`sequence_hash`); only tokens that it
    never saw are taken on trust: text that was given, whose tokens the server makes, and what was there before session().

    A call on a session ends a reply of it that still runs. Thread: one at a time; SessionStream.close() may come from any. One
    object at a time uses a session: if another has used it, FailedPrecondition (SESSION_HASH_MISMATCH) says so, and
    Client.session() goes on from there.
    Errors of every call: NotFound (SESSION_NOT_FOUND: closed, or idle for too long, or the server was begun anew),
    ResourceExhausted (SESSION_BUSY), InvalidArgument, Unavailable, DeadlineExceeded, DataLoss (the server's tokens are others).
    """

    _client: SessionCalls

    def __init__(self, client: SessionCalls, info: replies.SessionInfo, **known: Any) -> None:
        """For the client."""
        super().__init__(info, client._cookies, **known)
        self._client = client

    def _begin(self, options: requests.CallOptions) -> None:
        """Before a call: the server holds what this object knows, and nothing runs on the session."""
        self._end_reply()
        if self._ahead:
            self._rewind(self.position, None, options)

    def append(
        self,
        content: requests.Prompt = (),
        *,
        score: bool = False,
        output_positions: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        logprobs: bool = False,
        mark: str | None = None,
        cache: requests.PromptCache | bool | None = None,
        priority: requests.Priority | requests.PriorityName | None = None,
        **options: Unpack[requests.CallOptions],
    ) -> replies.Score:
        """Feeds tokens without generating. An error leaves the session as it was; after Unavailable or DeadlineExceeded the same
        append() may be called again, and nothing is fed twice.

        content: text (str), token ids (a sequence or array of integers, [n]), or the next values of an image (bytes, or a numpy
          array of uint8, [n]); may be empty, to set a mark.
        score: how likely the tokens are is wanted; all of them are scored, but for the very first of a model without bos. Without
          it, num_scored of the result is 0.
        output_positions, logprobs: as Client.score(), of the scored tokens; they need `score`.
        mark: name for the position after it, at most 64 bytes.
        cache: share the states of the whole sequence with other requests; True: as PromptCache() says. cached_tokens of the result
          tells how many tokens were not fed because of it.
        priority: among the tenant's own requests that wait for a slot.
        Errors: OutOfRange (TOO_MANY_TOKENS), FailedPrecondition (MARK_LIMIT).
        """
        self._begin(options)
        request = self._append_request(content, score, output_positions, logprobs, mark, cache, priority)
        with self._changing():
            reply = self._client._call("append", request, options)
        return self._appended(request, reply)

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.SessionGenerateOptions]) -> SessionStream:
        """Appends the prompt, if there is one, and streams what the model generates: as Client.generate(), but for `model` and
        `num_samples` (fork() makes more).

        options: position, mark, retries; max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty,
          presence_penalty, logit_bias, seed, stop, stop_token_ids, include_stop_string, ignore_eos, logprobs, top_logprobs,
          cache, priority, timeout, metadata: see rivulet.SessionGenerateOptions.
        Errors: TypeError, ValueError (arguments); those of SessionStream while iterating.
        """
        reader = self._reader(prompt, options)
        self._begin(reader.call_options())

        def start(request: inference_pb2.GenerateRequest) -> Any:
            return self._client._call("generate", request, reader.call_options())

        stream = SessionStream(start, reader, lambda: self._client.model(self.model, **reader.call_options()))
        self._watch(stream)
        return stream

    def fork(
        self, count: int = 1, *, seed: int | None = None, position: int | None = None, **options: Unpack[requests.CallOptions]
    ) -> list[Session]:
        """`count` new sessions, 1 to 256, that go on from this one, which stays as it is. All or none.

        seed: fork i gets `seed + i`; absent: drawn, so that the forks differ. position: where they begin; absent: its end.
        Errors: OutOfRange (POSITION_OUT_OF_RANGE), ResourceExhausted (SESSION_LIMIT, TENANT_SESSION_LIMIT).
        """
        self._begin(options)
        reply = self._client._call("fork_session", self._fork_request(count, seed, position), options)
        infos = [replies.session(message) for message in reply.sessions]
        return [Session(self._client, info, sequence=self._sequence.copy(info.position)) for info in infos]

    def rewind(
        self, *, position: int | None = None, mark: str | None = None, **options: Unpack[requests.CallOptions]
    ) -> None:
        """Drops what follows a position, 0 to this one's, or a mark. Errors: OutOfRange (POSITION_OUT_OF_RANGE), NotFound
        (MARK_NOT_FOUND), ValueError (not exactly one of the two)."""
        self._end_reply()
        self._rewind(position, mark, options)

    def _rewind(self, position: int | None, mark: str | None, options: requests.CallOptions) -> None:
        request = self._rewind_request(position, mark)
        with self._changing():
            reply = self._client._call("rewind_session", request, options)
        self._rewound(reply)

    def snapshot(self, *, position: int | None = None, **options: Unpack[requests.CallOptions]) -> bytes:
        """The session as bytes for Client.restore_session(), which outlive the server. position: of how many of its tokens, with the
        marks among them; absent: all. Errors: OutOfRange (POSITION_OUT_OF_RANGE)."""
        self._end_reply()
        request = self._snapshot_request(position)
        if self._ahead and request.position > self.position:
            self._rewind(self.position, None, options)
        call = self._client._call("snapshot_session", request, options)
        try:
            return b"".join(message.chunk for message in call)
        except grpc.RpcError:
            raise errors.from_call(call) from None

    def close(self, **options: Unpack[requests.CallOptions]) -> None:
        """Ends the session and what runs on it. Harmless where it has ended."""
        self._end_reply()
        request = session_service_pb2.CloseSessionRequest(model=self.model, session_id=self.id)
        try:
            self._client._call("close_session", request, options)
        except errors.NotFound as error:
            if error.reason != "SESSION_NOT_FOUND":
                raise
        self._cookies.forget(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: object, *exception: object) -> None:
        if self._keep:
            return
        try:
            self.close()
        except Exception:
            if exception_type is None:  # else that one is the one to tell
                raise
