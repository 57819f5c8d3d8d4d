# SPDX-License-Identifier: Apache-2.0
"""Reads a reply over several calls, if one is lost."""

from __future__ import annotations

import random
import time

from rivulet import errors, model_replies, replies, requests
from rivulet.reply_reader import Reader
from rivulet.v1 import inference_pb2

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0  # seconds before a reply is continued, doubling
_RESUMES = 5  # calls in a row that bring nothing


class RepeatedReader(Reader):
    """What readers have that another call can continue. `retries`: how many."""

    def __init__(self, request: inference_pb2.GenerateRequest, retries: int, options: requests.CallOptions) -> None:
        super().__init__(request)
        self.metadata = options["metadata"]
        self.timeout = requests.timeout(options["timeout"])  # seconds, of all calls together
        self._deadline = None if self.timeout is None else time.monotonic() + self.timeout
        self._retries = retries
        self._tries = 0

    def call_options(self) -> requests.CallOptions:
        """Of a call that begins now: what is left of the timeout."""
        left = None if self._deadline is None else max(self._deadline - time.monotonic(), 1e-6)
        return {"timeout": left, "metadata": self.metadata}

    def request(self) -> inference_pb2.GenerateRequest:
        """The request of the next call, which continues after the last received part."""
        raise NotImplementedError

    def starting(self) -> None:
        """A call is about to start: what the server holds is unknown until it has succeeded."""

    def failed(self, error: errors.RivuletError) -> None:
        """The call has ended with an error, and no other follows."""

    @property
    def needs_model(self) -> bool:
        """Whether request() must know the server's default number of tokens."""
        return False

    def set_max_tokens(self, model: model_replies.Model) -> None:
        """Applies the server's rule for a request without max_tokens (GenerateRequest.max_tokens)."""

    def end_without_usage(self) -> bool:
        """Whether the reply is complete except for its usage, which is then computed from the parts."""
        return False

    def wait(self, error: errors.RivuletError) -> float:
        """Seconds to wait before the next call. Errors: `error`, if there must be no next call; DeadlineExceeded."""
        if self._tries >= self._retries:
            raise error
        self._tries += 1
        wait = error.retry_delay
        if wait is None:
            wait = min(_FIRST_WAIT * 2 ** min(self._tries - 1, 10), _LONGEST_WAIT) * random.uniform(0.8, 1.2)
        if self._deadline is not None and time.monotonic() + wait >= self._deadline:
            raise errors.DeadlineExceeded(
                f"the timeout of {self.timeout:g} s leaves no time to try again after: {error.message}"
            ) from error
        return wait


class ResumedReader(RepeatedReader):
    """Of a reply without a session: the server continues it after the tokens that were received (GenerateRequest.resume)."""

    def __init__(self, request: inference_pb2.GenerateRequest, resume: bool, options: requests.CallOptions) -> None:
        super().__init__(request, _RESUMES if resume else 0, options)
        samples = request.num_samples or 1
        self._fingerprint: int | None = None
        self._received: list[list[int]] = [[] for _ in range(samples)] if resume else []
        self._finished: set[int] = set()
        self._loss: errors.RivuletError | None = None  # the first since something came

    def read(self, message: inference_pb2.GenerateReply) -> replies.Part | None:
        """A sample that had ended before the call was lost ends again; that part is left out."""
        if message.HasField("fingerprint"):
            self._fingerprint = message.fingerprint
        part = super().read(message)
        if part is None or not 0 <= part.sample_index < len(self._received):
            return part
        if part.sample_index in self._finished:
            return None
        self._received[part.sample_index].extend(message.tokens)
        if part.finish is not None:
            self._finished.add(part.sample_index)
        self._tries = 0
        return part

    def wait(self, error: errors.RivuletError) -> float:
        """Where no call continues the reply, the error says why it was lost, not why the last call failed."""
        if self._fingerprint is None:  # nothing has come, or from a server that resumes nothing
            raise error
        if self._tries == 0 or self._loss is None:
            self._loss = error
        return super().wait(error if self._tries < self._retries else self._loss)

    def request(self) -> inference_pb2.GenerateRequest:
        if self._fingerprint is None or self.seed is None:
            return self._request
        request = inference_pb2.GenerateRequest()
        request.CopyFrom(self._request)
        request.sampling.seed = self.seed
        request.resume.fingerprint = self._fingerprint
        for tokens in self._received:
            request.resume.samples.add(ids=tokens)
        return request
