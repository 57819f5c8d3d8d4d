# SPDX-License-Identifier: Apache-2.0
"""The common part of generate_all() and score_many(), for threads and for asyncio. No input or output."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Union

from rivulet import errors, replies
from rivulet.core import requests
from rivulet.core.multiplex import MultiplexPart
from rivulet.core.reply_reader import put_together

# The error of one prompt or content. TypeError, ValueError: it is invalid, or UTF-8 cannot encode it.
Failure = Union[errors.RivuletError, TypeError, ValueError]

_MOST_RESULTS = 1 << 14  # results that may wait for earlier results; then no more prompts are read
_MOST_LOSSES = 8  # losses of one request while others succeed; then it is assumed to crash the server


class Patience:
    """Decides how long a request with a temporary error is sent again. Thread: any."""

    def __init__(self, seconds: float) -> None:
        """seconds: maximum time without a success. Errors: TypeError, ValueError."""
        self._seconds = requests.real("patience", seconds)
        if not 0 <= self._seconds <= 1e9:
            raise ValueError(f"patience: must be 0 to 1e9 seconds; got {seconds}")
        self._last_success = time.monotonic()
        self.successes = 0

    def succeeded(self) -> None:
        self._last_success = time.monotonic()
        self.successes += 1

    def wait(self, error: errors.RivuletError) -> float | None:
        """Seconds until the request is to be sent again; None: the error is the request's result."""
        passing = isinstance(error, errors.Unavailable) or error.retry_delay is not None or error.reason == "OPEN_REQUEST_LIMIT"
        silence = time.monotonic() - self._last_success
        if not passing or silence >= self._seconds:
            return None
        return min(max(silence / 2, 0.5), 30.0) if error.retry_delay is None else error.retry_delay


@dataclass(order=True)
class _Item:
    """A prompt in flight."""

    due: float
    index: int
    prompt: requests.Prompt = field(compare=False)
    options: requests.GenerateOptions = field(compare=False)
    parts: list[replies.Part] = field(default_factory=list, compare=False)
    seed: int | None = field(default=None, compare=False)
    losses: int = field(default=0, compare=False)
    successes: int = field(default=0, compare=False)  # of all prompts, when this one was last lost


class BulkGeneration:
    """The prompts of a generate_all(), from the first to the last result. Thread: one at a time."""

    def __init__(
        self, pairs: Iterator[tuple[requests.Prompt, requests.GenerateOptions]], at_once: int, patience: float
    ) -> None:
        self._pairs = pairs
        self._at_once = at_once
        self._patience = Patience(patience)
        self._started = 0
        self._exhausted = False
        self._open: dict[int, _Item] = {}  # by the key of the stream
        self._waiting: list[_Item] = []  # a heap, by the time of sending again
        self._results: dict[int, replies.Generation | Failure] = {}  # by index; not yet yielded
        self._yielded = 0

    @property
    def is_open(self) -> bool:
        """Whether a request is on the stream."""
        return bool(self._open)

    @property
    def has_ended(self) -> bool:
        return self._exhausted and not self._open and not self._waiting and not self._results

    def pause(self) -> float:
        """Seconds until a request is to be sent. REQUIRES: no request is on the stream."""
        return max(self._waiting[0].due - time.monotonic(), 0.0) if self._waiting else 0.0

    def results(self) -> Iterator[replies.Generation | Failure]:
        """The results that are next in the order of the prompts."""
        while self._yielded in self._results:
            self._yielded += 1
            yield self._results.pop(self._yielded - 1)

    def start(self, generate: Callable[..., int]) -> None:
        """Sends requests up to the limit. generate: the stream's method."""
        while self._waiting and self._waiting[0].due <= time.monotonic():
            self._send(generate, heapq.heappop(self._waiting))
        while not self._exhausted and len(self._open) + len(self._waiting) < self._at_once and len(self._results) < _MOST_RESULTS:
            pair = next(self._pairs, None)
            if pair is None:
                self._exhausted = True
                return
            self._started += 1
            self._send(generate, _Item(0.0, self._started - 1, *pair))

    def _send(self, generate: Callable[..., int], item: _Item) -> None:
        try:
            self._open[generate(item.prompt, **item.options)] = item
        except (TypeError, ValueError) as error:
            self._results[item.index] = error

    def take(self, part: MultiplexPart) -> None:
        """Takes a part of the stream."""
        item = self._open[part.key]
        if part.error is not None:
            del self._open[part.key]
            self._failed(item, part.error)
            return
        if part.seed is not None:
            item.seed = part.seed
        if part.tokens or part.text or part.finish is not None:
            options = item.options
            item.parts.append(
                replies.part(part.proto, bool(options.get("logprobs")), bool(options.get("top_logprobs")), None)
            )
        if part.usage is None:
            return
        del self._open[part.key]
        samples = item.options.get("num_samples") or 1
        try:
            result = put_together(item.parts, samples, item.seed, part.usage, replies.durability(part.proto))
        except errors.Internal as error:
            self._results[item.index] = error
            return
        self._patience.succeeded()
        self._results[item.index] = result
        if self._waiting:  # if the queue was full, it has room for one now
            self._waiting[0].due = 0.0

    def lost(self, error: errors.RivuletError) -> None:
        """Called when the stream has ended with all its requests."""
        items, self._open = list(self._open.values()), {}
        for item in items:
            self._failed(item, error)

    def _failed(self, item: _Item, error: errors.RivuletError) -> None:
        if isinstance(error, errors.Unavailable):
            item.losses += self._patience.successes > item.successes
            item.successes = self._patience.successes
        wait = self._patience.wait(error) if item.losses < _MOST_LOSSES else None
        if wait is None:
            self._results[item.index] = error
            return
        item.parts, item.due = [], time.monotonic() + wait
        heapq.heappush(self._waiting, item)
