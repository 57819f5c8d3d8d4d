# SPDX-License-Identifier: Apache-2.0
"""The common part of Multiplex and AsyncMultiplex: keys, messages, parts. No input or output."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from rivulet import errors, replies
from rivulet.core import requests
from rivulet.core.reply_repeat import Deadline, RepeatedReply
from rivulet.v1 import inference_pb2, multiplex_pb2


@dataclass(frozen=True, eq=False)
class MultiplexPart:
    """Part of the reply to one request of a stream. It has plain lists instead of arrays, because there are many parts
    and most are short.

    key: as returned by generate(). sample_index: 0 to num_samples - 1. first_position: index of tokens[0] among the
      sample's generated tokens. tokens: [n]. text: of these tokens, for models whose content is text. logprobs: [n]
      nats, if requested. finish: on the last part of each sample. seed: the seed that is used, on the request's first
      part. usage: on the last part of a request that succeeded. error: on the last part of a request that failed, which
      holds nothing else. proto: the message, with the top logprobs.
    """

    key: int
    sample_index: int
    first_position: int
    tokens: list[int]
    text: str
    logprobs: list[float] | None
    finish: replies.Finish | None
    seed: int | None
    usage: replies.Usage | None
    error: errors.RivuletError | None
    proto: multiplex_pb2.MultiplexPart = field(repr=False)

    @property
    def ended(self) -> bool:
        """Whether this is the last part of its request."""
        return self.usage is not None or self.error is not None


class Member(RepeatedReply):
    """One request of a stream."""

    def __init__(self, key: int, request: inference_pb2.GenerateRequest, options: requests.GenerateOptions, attempts: int) -> None:
        super().__init__(request, options, attempts)
        self.key = key
        self.logprobs = request.logprobs.enabled
        self.due = 0.0  # the time of sending
        self.cancelled = False

    def moved(self) -> None:
        """Called when the request is sent again, whether it was lost or not."""
        self._repeated = True

    def message(self) -> multiplex_pb2.MultiplexRequest:
        message = multiplex_pb2.MultiplexRequest(key=self.key, generate=self.request())
        left = self.deadline.left()
        if left is not None:
            left -= max(self.due - time.monotonic(), 0)
            message.timeout.FromNanoseconds(max(round(left * 1e9), 1))
        return message


TooLarge = Callable[[Message], "errors.RivuletError | None"]
Entry = tuple[float, int, multiplex_pb2.MultiplexRequest, Member]  # a message: time of sending, order, message, its request


def due(outgoing: list[Entry]) -> Iterator[multiplex_pb2.MultiplexRequest]:
    """Pops the first entry of a heap. Returns nothing if the entry's request now has another time of sending."""
    at, _, message, member = heapq.heappop(outgoing)
    if at == member.due:
        yield message


class MultiplexCore:
    """Thread: one at a time."""

    def __init__(self, timeout: float | None, attempts: int, too_large: TooLarge) -> None:
        """timeout: of the stream. attempts: most attempts of each request before the first part of its reply. too_large: returns
        the error of a message that is too large to send."""
        self._deadline = Deadline(timeout)
        self._attempts = attempts
        self._too_large = too_large
        self._last_key = -1
        self._open: dict[int, Member] = {}
        self._unsent: list[Member] = []  # the requests of _open that _entries() gives next
        self._order = itertools.count()
        self._stale = False  # another stream must replace this stream
        self._read: deque[MultiplexPart] = deque()

    @property
    def open_requests(self) -> int:
        """Number of requests whose last part has not been yielded."""
        return len(self._open)

    def _begin(self, prompt: requests.Prompt, options: requests.GenerateOptions) -> int:
        """Adds a request, which _entries() gives next. Returns its key."""
        if options.get("metadata"):
            raise TypeError("metadata: belongs to the whole stream; give it to multiplex()")
        key = self._last_key + 1
        member = self._open[key] = Member(key, requests.generate(prompt, options), options, self._attempts)
        self._last_key = key
        if (error := self._too_large(member.message())) is None:
            self._unsent.append(member)
        else:  # the server would end the stream with all its requests
            self._read.append(_part(multiplex_pb2.MultiplexPart(key=key), False, error))
        return key

    def _cancel(self, key: int) -> list[Entry]:
        """Messages to send: a waiting request first, so that the server answers."""
        member = self._open.get(requests.uint64("key", key))
        if member is None:
            return []
        member.cancelled, waits = True, member.due > time.monotonic()
        if waits:
            member.due = 0.0
        messages = [member.message()] * waits + [multiplex_pb2.MultiplexRequest(key=key, cancel={})]
        return [(member.due, next(self._order), message, member) for message in messages]

    def _take(self, reply: multiplex_pb2.MultiplexReply) -> None:
        for message in reply.parts:
            member = self._open.get(message.key)
            if member is None or message.HasField("refused"):  # a cancel that came too late
                continue
            if message.HasField("error"):
                self._failed(member, errors.from_wire(message.error))
            elif member.take(message) or message.HasField("usage"):
                self._read.append(_part(message, member.logprobs))

    def _failed(self, member: Member, error: errors.RivuletError) -> None:
        """Called when a request has ended with an error. The request waits to be sent again (after Unavailable over
        another stream), or it gets its last part."""
        try:
            wait = member.wait(error)
            self._deadline.check(wait, error)
        except errors.RivuletError as end:
            self._read.append(_part(multiplex_pb2.MultiplexPart(key=member.key), False, end))
        else:
            member.due = time.monotonic() + wait
            self._unsent.append(member)
            self._stale = self._stale or isinstance(error, errors.Unavailable)

    def _lost(self, error: BaseException) -> None:
        """Called when the stream has ended. Errors: `error`, if no request is sent again."""
        if not isinstance(error, errors.RivuletError) or not any(member.repeats(error) for member in self._open.values()):
            self._open.clear()
            self._unsent.clear()
            raise error from None
        self._stale = True
        for member in self._open.values():
            if member.due <= time.monotonic():  # else it has not been sent
                self._failed(member, error)

    def _next(self) -> MultiplexPart | None:
        """The next part; None if a message must be read first. Errors: StopIteration (no request is open)."""
        if not self._read:
            if not self._open:
                raise StopIteration
            return None
        part = self._read.popleft()
        if part.ended:
            self._open.pop(part.key, None)
        return part

    def _pause(self) -> float:
        """Seconds until there is something to read, or a stream to open. REQUIRES: _next() gave None."""
        if not self._stale:
            return 0.0
        return max(min(member.due for member in self._open.values()) - time.monotonic(), 0.0)

    def _replaced(self) -> bool:
        """Whether another stream must be opened now; _entries() then gives all open requests."""
        if not self._stale or not all(member.can_be_repeated for member in self._open.values()):
            return False
        self._stale = False
        self._unsent = list(self._open.values())
        for member in self._unsent:
            member.moved()
        return True

    def _entries(self) -> list[Entry]:
        """The messages to send."""
        entries = []
        for member in self._unsent:
            if member.cancelled:
                self._failed(member, errors.Cancelled("the request was cancelled"))
            else:
                entries.append((member.due, next(self._order), member.message(), member))
        self._unsent.clear()
        return entries


def _part(message: multiplex_pb2.MultiplexPart, logprobs: bool, error: errors.RivuletError | None = None) -> MultiplexPart:
    has = message.HasField
    return MultiplexPart(
        message.key, message.sample_index, message.first_position, list(message.tokens), message.text,
        list(message.logprobs) if logprobs else None, replies.finish(message.finish) if has("finish") else None,
        message.seed if has("seed") else None, replies.usage(message.usage) if has("usage") else None,
        error, message,
    )  # fmt: skip


def many(
    prompts: Iterable[requests.Prompt], at_once: int, options: requests.GenerateOptions
) -> Iterator[tuple[requests.Prompt, requests.GenerateOptions]]:
    """Each prompt with its options: prompt i draws with seed + i. Errors: TypeError, ValueError."""
    requests.count("at_once", at_once)
    if isinstance(prompts, (str, bytes)):
        raise TypeError(f"prompts: must be several prompts; got one: {prompts!r}")
    seed: Any = options.get("seed")
    first = None if seed is None else requests.uint64("seed", seed)

    def pairs() -> Iterator[tuple[requests.Prompt, requests.GenerateOptions]]:
        for index, prompt in enumerate(prompts):
            own = options.copy()
            if first is not None:
                own["seed"] = (first + index) % 2**64
            yield prompt, own

    return pairs()
