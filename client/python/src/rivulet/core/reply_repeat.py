# SPDX-License-Identifier: Apache-2.0
"""Continues a reply whose call is lost: "Lost replies" in client/README.md."""

from __future__ import annotations

import random
import secrets
import time
from collections import defaultdict

from rivulet import errors
from rivulet.core import requests
from rivulet.v1 import inference_pb2, multiplex_pb2

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0  # seconds before the next call, doubling
_LOSSES_WITH_COOKIE = 2  # lost calls in a row; then another replica is asked
_RESUMES = 5  # calls in a row that bring nothing, once the reply has begun


class Deadline:
    """One deadline for all calls of a reply. timeout: seconds, or None."""

    def __init__(self, timeout: float | None) -> None:
        self.timeout = requests.timeout(timeout)
        self._end = None if self.timeout is None else time.monotonic() + self.timeout

    def left(self) -> float | None:
        """The timeout of a call that begins now."""
        return None if self._end is None else max(self._end - time.monotonic(), 1e-6)

    def check(self, wait: float, error: errors.RivuletError) -> None:
        """Called before a wait, after `error`. Errors: DeadlineExceeded, if no time is left after the wait."""
        if self._end is not None and time.monotonic() + wait >= self._end:
            raise errors.DeadlineExceeded(
                f"the timeout of {self.timeout:g} s leaves no time to try again after: {error.message}"
            ) from error


class RepeatedReply:
    """The received part of a reply, and the call that continues it. No input or output."""

    def __init__(self, request: inference_pb2.GenerateRequest, options: requests.SamplingOptions, attempts: int) -> None:
        """request: of the first call; gets a seed if it has none. options: resume, timeout. attempts: most calls before the first
        part of the reply. Errors: TypeError, ValueError."""
        if not request.sampling.HasField("seed"):
            request.sampling.seed = secrets.randbits(64)
        resume = options.get("resume")
        self._resume = requests.boolean("resume", True if resume is None else resume)
        self.deadline = Deadline(options.get("timeout"))
        self._request = request
        self._attempts = attempts
        self._fingerprint: int | None = None
        self._received: defaultdict[int, list[int]] = defaultdict(list)  # tokens by sample
        self._finished: set[int] = set()
        self._begun = False  # something has come
        self._complete = False  # the usage has come
        self._repeated = False  # a call after the first is made or due
        self._losses = 0  # lost calls, from the last one that brought something
        self._loss: errors.RivuletError | None = None  # error of the first of them: it says why the reply was lost
        self._cookie = ""  # of the session
        self._drops_cookie = False  # the next call is made without the cookie ...
        self._keeps_cookie = False  # ... no more: only the cookie's replica knows it

    @property
    def cookie(self) -> str:
        """The cookie of the next call; "": none."""
        return "" if self._drops_cookie else self._cookie

    def take(self, message: inference_pb2.GenerateReply | multiplex_pb2.MultiplexPart) -> bool:
        """Records a message, and removes from it what an earlier call has brought. Returns False if no part of a sample is left."""
        if self._begun:
            message.ClearField("seed")
            message.ClearField("fingerprint")
        elif message.HasField("fingerprint"):
            self._fingerprint = message.fingerprint
        self._begun = True
        self._complete = self._complete or message.HasField("usage")
        if message.sample_index in self._finished:
            message.ClearField("finish")
            message.ClearField("text")
        if not (message.tokens or message.text or message.HasField("finish")):
            return False
        self._received[message.sample_index].extend(message.tokens)
        if message.HasField("finish"):
            self._finished.add(message.sample_index)
        self._losses, self._loss = 0, None
        return True

    @property
    def can_be_repeated(self) -> bool:
        """Whether another call may continue the reply; this needs a fingerprint."""
        return not self._begun or (self._resume and self._fingerprint is not None)

    def has_ended(self, error: errors.RivuletError) -> bool:
        """Whether the reply is complete although a call ended with `error`."""
        return self._complete and isinstance(error, errors.Unavailable)

    def repeats(self, error: BaseException) -> bool:
        """Whether a call that ends with `error` is lost, and another call may follow."""
        refused = self._repeated and isinstance(error, errors.ResourceExhausted) and error.retry_delay is not None
        return self.can_be_repeated and (refused or errors.lost(error) or self._unknown_there(error))

    def _unknown_there(self, error: BaseException) -> bool:
        """Whether a replica that was reached without the cookie does not know the session."""
        return self._drops_cookie and isinstance(error, errors.NotFound) and error.reason == "SESSION_NOT_FOUND"

    def _choose_cookie(self, error: errors.RivuletError) -> None:
        self._keeps_cookie = self._keeps_cookie or self._unknown_there(error)
        leaves = errors.leaves_replica(error) or self._losses >= _LOSSES_WITH_COOKIE
        self._drops_cookie = leaves and bool(self._cookie) and not self._keeps_cookie

    def wait(self, error: errors.RivuletError) -> float:
        """Seconds until the next call. Errors: the error with which the reply ends."""
        if not self.repeats(error):
            raise error
        self._loss = self._loss or error
        self._losses += 1
        if self._losses > (_RESUMES if self._begun else self._attempts - 1):
            raise self._loss
        wait = error.retry_delay
        if wait is None:
            wait = min(_FIRST_WAIT * 2 ** (self._losses - 1), _LONGEST_WAIT) * random.uniform(0.8, 1.2)
        self.deadline.check(wait, error)
        self._choose_cookie(error)
        self._repeated = True
        return wait

    def request(self) -> inference_pb2.GenerateRequest:
        """The request of the next call."""
        if not self._repeated:
            return self._request
        request = inference_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        request.resume.SetInParent()
        if self._fingerprint is not None:
            request.resume.fingerprint = self._fingerprint
            for index in range(request.num_samples or 1):
                request.resume.samples.add(ids=self._received.get(index, ()))
        return request
