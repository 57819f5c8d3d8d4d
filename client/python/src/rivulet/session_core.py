# SPDX-License-Identifier: Apache-2.0
"""The common part of Session and AsyncSession: the position of a session, its messages, and replies that can be
continued. No input or output."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from rivulet import errors, model_replies, replies, requests
from rivulet.cookies import SessionCookies
from rivulet.reply_repeat import RepeatedReader
from rivulet.sequence import Sequence
from rivulet.v1 import inference_pb2, session_pb2, session_service_pb2


# The server says these before it has changed anything.
_UNCHANGED = (
    errors.InvalidArgument, errors.NotFound, errors.OutOfRange, errors.FailedPrecondition, errors.ResourceExhausted,
    errors.PermissionDenied, errors.Unauthenticated, errors.Aborted,
)  # fmt: skip


class SessionCore:
    """The position of a session as this object knows it: it counts only tokens that it has given and received. Thread:
    one at a time."""

    def __init__(
        self, info: replies.SessionInfo, cookies: SessionCookies, sequence: Sequence | None = None, same_numerics: bool | None = None
    ) -> None:
        self._id = info.id
        self._cookies = cookies
        self._model = info.model
        self._seed = info.seed
        self._idle_timeout = info.idle_timeout
        self._same_numerics = same_numerics
        self._sequence = sequence or Sequence().copy(info.position)
        self._stream: weakref.ref[Any] | None = None  # the latest reply
        self._ahead = False  # the server may hold tokens that this object never saw
        self._keep = False
        self._settle(info)

    @property
    def id(self) -> str:
        """32 lower-case hexadecimal digits, for Client.session()."""
        return self._id

    @property
    def model(self) -> str:
        return self._model

    @property
    def cookie(self) -> str:
        """The cookie by which a balancer finds the session's replica (HAProxy's `cookie`, Envoy's stateful sessions),
        for Client.session(); or ""."""
        return self._cookies.get(self._id)

    @property
    def position(self) -> int:
        """Tokens given and received so far."""
        return self._sequence.position

    @property
    def sequence_hash(self) -> int:
        """FNV-1a, 64 bits, over the tokens up to `position`."""
        return self._hash

    @property
    def seed(self) -> int:
        """The seed of every generate() without its own seed."""
        return self._seed

    @property
    def marks(self) -> Mapping[str, int]:
        """Position of each mark."""
        return MappingProxyType(self._marks)

    @property
    def idle_timeout(self) -> float:
        """Seconds without a call after which the server closes the session."""
        return self._idle_timeout

    @property
    def same_numerics(self) -> bool | None:
        """For a restored session: True if the snapshot's state was computed with this server's numerics id, so that
        further tokens are bit-identical; otherwise they agree within the tolerance between the two ids
        (Model.numerics_id). None for any other session."""
        return self._same_numerics

    def keep(self) -> None:
        """Keeps the session open after the `with` block. It then ends with its idle timeout, or with close()."""
        self._keep = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {self._model} at {self.position}>"

    def _settle(self, info: replies.SessionInfo) -> None:
        """Takes over the server's position and hash after a call that set them."""
        self._sequence.check(info.position, info.sequence_hash)
        self._hash = info.sequence_hash
        self._marks = dict(info.marks)

    def _moved(self, progress: session_pb2.SessionProgress) -> None:
        self._sequence.check(progress.position, progress.sequence_hash)
        self._hash = progress.sequence_hash

    def _drop_marks(self, position: int) -> None:
        """Drops the marks after a position from which the session continues."""
        self._marks = {name: at for name, at in self._marks.items() if at <= position}

    def _end_reply(self) -> None:
        """Ends a running reply: if nobody reads it, it would delay every other call."""
        stream = None if self._stream is None else self._stream()
        if stream is not None:
            stream.close()
        self._stream = None

    def _watch(self, stream: Any) -> None:
        """A reply starts: what the server holds is unknown until the reply has succeeded."""
        self._ahead = True
        self._stream = weakref.ref(stream)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Around a call that changes the session: records whether its result is known."""
        try:
            yield
        except errors.RivuletError as error:
            self._ahead = self._ahead or not isinstance(error, _UNCHANGED)
            raise
        except BaseException:
            self._ahead = True
            raise
        self._ahead = False

    def _ref(self, position: int | None = None, mark: str | None = None) -> session_pb2.SessionRef:
        at = self.position if position is None else requests.int64("position", position)
        name = requests.text("mark", mark or "")
        return session_pb2.SessionRef(session_id=self._id, position=at, mark=name, sequence_hash=self._hash)

    def _append_request(
        self, content: requests.Prompt, score: bool, output_positions: Any, logprobs: bool, mark: str | None,
        cache: requests.PromptCache | bool | None, priority: requests.Priority | requests.PriorityName | None,
        special: tuple[bool | None, bool | None],
    ) -> session_service_pb2.AppendRequest:
        request = requests.append(content, score, output_positions, logprobs, cache, priority, *special)
        request.model = self._model
        request.session.CopyFrom(self._ref(mark=mark))
        return request

    def _appended(
        self, request: session_service_pb2.AppendRequest, reply: session_service_pb2.AppendReply
    ) -> replies.Score:
        begin, tokens = request.session.position, _given(request, "content")
        sequence = self._sequence.copy(begin)
        if tokens is None:
            sequence.skip(reply.progress.position - begin)
        else:
            sequence.extend(tokens)
        self._sequence = sequence
        self._moved(reply.progress)
        if request.session.mark:
            self._marks[request.session.mark] = self.position
        return replies.score(reply, request.logprobs, len(request.output_positions) > 0)

    def _reader(self, prompt: requests.Prompt, options: requests.SessionGenerateOptions) -> SessionReader:
        request = requests.session_generate(prompt, options)
        request.model = self._model
        request.session.CopyFrom(self._ref(options.get("position"), options.get("mark")))
        if not request.sampling.HasField("seed"):
            request.sampling.seed = self._seed
        retries = requests.integer("retries", options.get("retries", 0), 0, 2**31 - 1)
        return SessionReader(self, request, retries, requests.call_options(options))

    def _fork_request(
        self, count: int, seed: int | None, position: int | None
    ) -> session_service_pb2.ForkSessionRequest:
        request = session_service_pb2.ForkSessionRequest(model=self._model, count=requests.int32("count", count))
        request.session.CopyFrom(self._ref(position))
        if seed is not None:
            request.seed = requests.uint64("seed", seed)
        return request

    def _snapshot_request(self, position: int | None) -> session_service_pb2.SnapshotSessionRequest:
        """Names the position, so that tokens that were not received are left out without a rewind, which a draining
        server refuses."""
        at = self.position if position is None else requests.int64("position", position)
        return session_service_pb2.SnapshotSessionRequest(model=self._model, session_id=self._id, position=at)

    def _rewind_request(self, position: int | None, mark: str | None) -> session_service_pb2.RewindSessionRequest:
        if (position is None) == (mark is None):
            raise ValueError(f"position, mark: exactly one of them must be given; got {position!r} and {mark!r}")
        request = session_service_pb2.RewindSessionRequest(model=self._model, session_id=self._id)
        if mark is not None:
            request.mark = requests.text("mark", mark)
        elif position is not None:
            request.position = requests.int64("position", position)
        return request

    def _rewound(self, reply: session_service_pb2.RewindSessionReply) -> None:
        self._sequence = self._sequence.copy(reply.session.progress.position)
        self._settle(replies.session(reply.session))


def _given(message: Any, oneof: str) -> list[int] | bytes | None:
    """The tokens of a request; None for text, which the server tokenizes."""
    kind = message.WhichOneof(oneof)
    if kind == "text":
        return [] if not message.text and not message.add_special_tokens else None
    return bytes(message.image_values) if kind == "image_values" else list(message.tokens.ids)


class SessionReader(RepeatedReader):
    """Reads the messages of a reply on a session, over several calls if one is lost, and checks the hash of each."""

    def __init__(
        self, core: SessionCore, request: inference_pb2.GenerateRequest, retries: int, options: requests.CallOptions
    ) -> None:
        super().__init__(request, retries, options)
        self.core = core
        self._begin: int | None = None  # the session's position at the first generated token; None before the first part
        self._tokens = 0  # generated tokens seen
        self._earlier = 0  # of these, by calls before this one
        self._finished = False

    def read(self, message: inference_pb2.GenerateReply) -> replies.Part | None:
        """Errors: DataLoss (the hash disagrees), Internal (a gap)."""
        if message.HasField("session"):
            message.first_position += self._earlier
            self._advance(message)
        elif message.tokens or message.HasField("finish"):
            raise errors.Internal("the server sent a part that does not say where the session is")
        if message.HasField("usage"):
            self._count(message.usage)
            core = self.core
            core._ahead = False
            mark = self._request.session.mark
            if mark:
                core._marks[mark] = core.position
        return super().read(message)

    def _advance(self, message: inference_pb2.GenerateReply) -> None:
        core, progress, count = self.core, message.session, len(message.tokens)
        if message.first_position != self._tokens and count:
            raise errors.Internal(f"the server sent token {message.first_position} of the reply instead of {self._tokens}")
        before, position, begin = core._sequence, core.position, self._begin
        if begin is None:
            start, prompt = self._request.session.position, _given(self._request, "prompt")
            core._sequence = core._sequence.copy(start)
            core._drop_marks(start)
            if prompt is None:
                core._sequence.skip(progress.position - start - count)
            else:
                core._sequence.extend(prompt)
            begin = core.position
        core._sequence.extend(message.tokens)
        try:
            core._moved(progress)
        except errors.DataLoss:
            core._sequence = before.copy(position)
            raise
        self._begin = begin
        self._tokens += count
        self._finished = self._finished or message.HasField("finish")

    def _count(self, usage: inference_pb2.Usage) -> None:
        """Adjusts the usage, because the server counts one call but the application made one request."""
        if self._tries and self._begin is not None:
            usage.prompt_tokens = self._begin - self._request.session.position
            usage.completion_tokens = self._tokens

    def starting(self) -> None:
        self.core._ahead = True

    def failed(self, error: errors.RivuletError) -> None:
        if self._begin is None and not self._tries and isinstance(error, _UNCHANGED):
            self.core._ahead = False

    def wait(self, error: errors.RivuletError) -> float:
        if self._finished:
            raise error
        return super().wait(error)

    def end_without_usage(self) -> bool:
        if not (self._finished and self._retries and self._begin is not None):
            return False
        empty = inference_pb2.Usage()
        self._tries += 1
        self._count(empty)
        self.usage = replies.usage(empty)
        return True

    @property
    def needs_model(self) -> bool:
        return self._begin is not None and not self._request.HasField("max_tokens")

    def set_max_tokens(self, model: model_replies.Model) -> None:
        assert self._begin is not None
        content, limits = model.content, model.limits
        if isinstance(content, model_replies.ImageContent):
            most = content.height * content.width * content.channels - self._begin
        elif model.architecture.max_sequence_tokens is not None:
            most = model.architecture.max_sequence_tokens - self._begin
        else:
            most = limits.default_max_tokens
        self._request.max_tokens = min(most, limits.max_tokens)

    def request(self) -> inference_pb2.GenerateRequest:
        request = inference_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        if self._tries:  # the server may hold more than was seen
            request.session.ClearField("sequence_hash")
        if self._begin is None:
            return request
        request.ClearField(request.WhichOneof("prompt") or "tokens")
        request.session.position = self._begin + self._tokens
        request.max_tokens -= self._tokens
        self._earlier = self._tokens
        return request
