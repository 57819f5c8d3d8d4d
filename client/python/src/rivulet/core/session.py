# SPDX-License-Identifier: Apache-2.0
"""The common part of Session and AsyncSession: the position of a session, and its messages. No input or output."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from rivulet import errors, replies
from rivulet.core import requests
from rivulet.core.cookies import SessionCookies, given
from rivulet.core.reply_reader import Reader
from rivulet.core.sequence import Sequence
from rivulet.core.session_pending import Pending, content, given as given_tokens
from rivulet.v1 import inference_pb2, session_pb2, session_service_pb2


# The server returns these errors before it changes anything.
_UNCHANGED = (
    errors.InvalidArgument, errors.NotFound, errors.OutOfRange, errors.FailedPrecondition, errors.ResourceExhausted,
    errors.PermissionDenied, errors.Unauthenticated, errors.Aborted,
)  # fmt: skip


# Reasons with which the server says that the session is shorter than this object knows.
_BEHIND = ("SESSION_HASH_MISMATCH", "POSITION_OUT_OF_RANGE", "MARK_NOT_FOUND")


def _unchanged(error: errors.RivuletError) -> bool:
    """Whether a call with this error left the session unchanged. After SESSION_MOVED the session may have new tokens."""
    return isinstance(error, _UNCHANGED) and error.reason != "SESSION_MOVED"


class SessionCore:
    """The position of a session as this object knows it, which counts only the tokens that this object has given and
    received. Thread: one at a time."""

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
        self._pending = Pending()
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
        """Takes over the server's position and hash after a call that changed them."""
        self._sequence.check(info.position, info.sequence_hash)
        self._hash = info.sequence_hash
        self._marks = dict(info.marks)
        self._pending.clear()  # opening and rewinding succeed only if they are durable

    def _moved(self, progress: session_pb2.SessionProgress) -> None:
        self._sequence.check(progress.position, progress.sequence_hash)
        self._hash = progress.sequence_hash

    def _drop_marks(self, position: int) -> None:
        """Drops the marks after a position from which the session continues."""
        self._marks = {name: at for name, at in self._marks.items() if at <= position}

    def _end_reply(self) -> None:
        """Ends a running reply, because a reply that nobody reads would delay every other call."""
        stream = None if self._stream is None else self._stream()
        if stream is not None:
            stream.close()
        self._stream = None

    def _watch(self, stream: Any) -> None:
        """Called when a reply starts: the server's tokens are unknown until the reply has succeeded."""
        self._ahead = True
        self._stream = weakref.ref(stream)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Surrounds a call that changes the session: records whether the call's result is known."""
        try:
            yield
        except errors.RivuletError as error:
            self._ahead = self._ahead or not _unchanged(error)
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
        begin, tokens = request.session.position, given_tokens(request, "content")
        sequence = self._sequence.copy(begin)
        if tokens is None:
            sequence.skip(reply.progress.position - begin)
        else:
            sequence.extend(tokens)
        self._sequence = sequence
        self._moved(reply.progress)
        if request.session.mark:
            self._marks[request.session.mark] = self.position
        self._pending.add(begin, self.position, content(request, "content"))
        self._pending.ended(self.position, request.session.mark, reply)
        return replies.score(reply, request.logprobs, len(request.output_positions) > 0)

    def _reader(self, prompt: requests.Prompt, options: requests.SessionGenerateOptions, attempts: int) -> SessionReader:
        request = requests.session_generate(prompt, options)
        request.model = self._model
        request.session.CopyFrom(self._ref(options.get("position"), options.get("mark")))
        if not request.sampling.HasField("seed"):
            request.sampling.seed = self._seed
        return SessionReader(self, request, options, attempts)

    def _may_be_behind(self, error: errors.RivuletError) -> bool:
        """Whether the session may have lost tokens that were not durable."""
        return error.reason in _BEHIND and bool(self._pending)

    def _missing(self, found: session_pb2.SessionProgress, position: int) -> list[session_service_pb2.AppendRequest]:
        """The requests that bring a session which is behind this object to the position; empty if it holds other tokens."""
        if self._sequence.at(found.position) != found.sequence_hash or self._sequence.at(position) is None:
            return []
        return self._pending.missing(found.position, position)

    def _continue(self, request: session_service_pb2.AppendRequest, found: session_pb2.SessionProgress) -> None:
        """Makes the request continue the session from its position on the server."""
        request.model = self._model
        request.session.session_id = self._id
        request.session.position, request.session.sequence_hash = found.position, found.sequence_hash

    def _check_given_again(self, found: session_pb2.SessionProgress, position: int) -> None:
        """Errors: DataLoss."""
        self._sequence.copy(position).check(found.position, found.sequence_hash)

    def _fork_request(
        self, count: int, seed: int | None, position: int | None
    ) -> session_service_pb2.ForkSessionRequest:
        request = session_service_pb2.ForkSessionRequest(model=self._model, count=requests.int32("count", count))
        request.session.CopyFrom(self._ref(position))
        if seed is not None:
            request.seed = requests.uint64("seed", seed)
        return request

    def _snapshot_request(self, position: int | None) -> session_service_pb2.SnapshotSessionRequest:
        """Names the position. So tokens that were not received are left out without a rewind, which a draining server
        would refuse."""
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


class SessionReader(Reader):
    """Reads the messages of a reply on a session, and checks the hash of each message."""

    def __init__(
        self, core: SessionCore, request: inference_pb2.GenerateRequest, options: requests.SamplingOptions, attempts: int
    ) -> None:
        super().__init__(request, options, attempts)
        self.core = core
        self._goes_back = request.session.position < core.position
        self._answered = False  # the current call has brought its cookie
        self._given_again = False

    @property
    def begin(self) -> int | None:
        """The position that the session must have for another call after a refused call; None if tokens were given again already."""
        return None if self._given_again else self._request.session.position

    def given_again(self, sequence_hash: int) -> None:
        """Called when lost tokens were given again, so that the session has the position where this reply begins."""
        self._given_again, self._goes_back = True, False
        self._request.session.sequence_hash = sequence_hash

    @property
    def awaits_cookie(self) -> bool:
        return not self._answered

    def answered(self, metadata: Iterable[Any] | None) -> None:
        """Notes the cookie that the balancer has sent."""
        self._answered = True
        self._cookie = given(metadata) or self._cookie
        self.core._cookies.set(self.core.id, self._cookie)

    def request(self) -> inference_pb2.GenerateRequest:
        """The request of the next call. If it goes back in the session and no part of the reply has come, it has no hash: the
        first call may have dropped tokens. With a fingerprint the server ignores the hash."""
        self._answered = False
        if not self._repeated:
            self._cookie = self.core.cookie
        request = super().request()
        if self._repeated and self._goes_back and self._fingerprint is None:
            request.session.ClearField("sequence_hash")
        return request

    def read(self, message: inference_pb2.GenerateReply) -> replies.Part | None:
        """Errors: DataLoss (the hash disagrees), Internal (a gap)."""
        if message.HasField("session"):
            self._advance(message)
        elif message.tokens or message.HasField("finish"):
            raise errors.Internal("the server sent a part that does not say where the session is")
        if message.HasField("usage"):
            core = self.core
            core._ahead = False
            mark = self._request.session.mark
            if mark:
                core._marks[mark] = core.position
            core._pending.ended(core.position, mark, message)
        return super().read(message)

    def _advance(self, message: inference_pb2.GenerateReply) -> None:
        core, progress, count, seen = self.core, message.session, len(message.tokens), len(self._received[0])
        if message.first_position != seen and count:
            raise errors.Internal(f"the server sent token {message.first_position} of the reply instead of {seen}")
        before, position, begins, start = core._sequence, core.position, not self._begun, self._request.session.position
        if begins:
            prompt = given_tokens(self._request, "prompt")
            core._sequence = core._sequence.copy(start)
            core._drop_marks(start)
            if prompt is None:
                core._sequence.skip(progress.position - start - count)
            else:
                core._sequence.extend(prompt)
        core._sequence.extend(message.tokens)
        try:
            core._moved(progress)
        except errors.DataLoss:
            core._sequence = before.copy(position)
            raise
        generated = progress.position - count  # where the generated tokens begin
        if begins:
            core._pending.cut(start)
            core._pending.add(start, generated, content(self._request, "prompt"))
        core._pending.extend(generated, message.tokens)

    def wait(self, error: errors.RivuletError) -> float:
        try:
            return super().wait(error)
        except errors.RivuletError:
            if not self._begun and not self._repeated and _unchanged(error):
                self.core._ahead = False
            raise
