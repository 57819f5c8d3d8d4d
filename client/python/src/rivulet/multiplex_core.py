# SPDX-License-Identifier: Apache-2.0
"""What Multiplex and AsyncMultiplex have in common: keys, messages, parts. No input or output."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rivulet import errors, replies, requests
from rivulet.v1 import multiplex_pb2


@dataclass(frozen=True, eq=False)
class MultiplexPart:
    """Part of the reply to one request of a stream. Plain lists instead of arrays: there are many, and most are short.

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
        """This is the last part of its request."""
        return self.usage is not None or self.error is not None


class MultiplexCore:
    """Thread: one at a time."""

    def __init__(self) -> None:
        self._last_key = -1
        self._open: dict[int, bool] = {}  # key to whether logprobs were asked for
        self._read: deque[MultiplexPart] = deque()

    @property
    def open_requests(self) -> int:
        """Requests whose last part has not been yielded."""
        return len(self._open)

    def _begin(self, prompt: requests.Prompt, options: requests.GenerateOptions) -> multiplex_pb2.MultiplexRequest:
        if options.get("metadata"):
            raise TypeError("metadata: belongs to the whole stream; give it to multiplex()")
        if options.get("resume"):
            raise TypeError("resume: requests of a multiplex stream are not resumed")
        request = requests.generate(prompt, options)
        message = multiplex_pb2.MultiplexRequest(key=self._last_key + 1, generate=request)
        timeout = requests.timeout(options.get("timeout"))
        if timeout is not None:
            message.timeout.FromNanoseconds(max(round(timeout * 1e9), 1))
        self._last_key += 1
        self._open[self._last_key] = request.logprobs.enabled
        return message

    def _cancel(self, key: int) -> multiplex_pb2.MultiplexRequest | None:
        """None where there is nothing to cancel."""
        if requests.uint64("key", key) not in self._open:
            return None
        return multiplex_pb2.MultiplexRequest(key=key, cancel={})

    def _take(self, reply: multiplex_pb2.MultiplexReply) -> None:
        self._read.extend(_part(message, self._open.get(message.key, False)) for message in reply.parts
                          if not message.HasField("refused"))  # a cancel that came too late  # fmt: skip

    def _next(self) -> MultiplexPart | None:
        """None where a message is to be read first. Errors: StopIteration (no request is open)."""
        if not self._read:
            if not self._open:
                raise StopIteration
            return None
        part = self._read.popleft()
        if part.ended:
            self._open.pop(part.key, None)
        return part

    def _lost(self) -> None:
        """The stream has ended: nothing is open any more."""
        self._open.clear()
        self._read.clear()


def _part(message: multiplex_pb2.MultiplexPart, logprobs: bool) -> MultiplexPart:
    has = message.HasField
    return MultiplexPart(
        message.key, message.sample_index, message.first_position, list(message.tokens), message.text,
        list(message.logprobs) if logprobs else None, replies.finish(message.finish) if has("finish") else None,
        message.seed if has("seed") else None, replies.usage(message.usage) if has("usage") else None,
        errors.from_wire(message.error) if has("error") else None, message,
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
