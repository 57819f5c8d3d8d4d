# SPDX-License-Identifier: Apache-2.0
"""Reads the messages of one reply, over several calls if a call is lost, and joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from rivulet import model_replies
from rivulet.core import requests
from rivulet.core.reply_repeat import RepeatedReply
from rivulet.core.token_bytes import MOST_ASKED, TokenBytes, learn
from rivulet.errors import Internal
from rivulet.replies import Durability, Generation, Part, Sample, Text, Usage, durability, part, usage
from rivulet.v1 import inference_pb2


class Reader(RepeatedReply):
    """Reads the messages of one reply."""

    def __init__(self, request: inference_pb2.GenerateRequest, options: requests.SamplingOptions, attempts: int) -> None:
        """As RepeatedReply; options: also metadata."""
        super().__init__(request, options, attempts)
        self._metadata = options.get("metadata", ())
        self._constraint = options.get("constraint")
        self._text_of: Callable[[int], str] | None = None
        self._known: dict[int, bytes] | None = None  # the bytes of tokens, if tokens are not characters
        self.seed: int | None = None
        self.usage: Usage | None = None
        self.durability: Durability | None = None
        # Whether read() must know the model, for the texts of the likeliest tokens.
        self.needs_content = request.logprobs.top_n > 0

    def call_options(self) -> requests.CallOptions:
        """Options of a call that begins now, with the rest of the timeout."""
        return {"timeout": self.deadline.left(), "metadata": self._metadata}

    @property
    def awaits_cookie(self) -> bool:
        """Whether answered() must be called with the initial metadata of this call, as soon as the call has brought a message."""
        return False

    def answered(self, metadata: Iterable[Any] | None) -> None:
        pass

    def set_content(self, model: model_replies.Model, token_bytes: TokenBytes) -> None:
        """token_bytes: the client's."""
        self.needs_content = False
        if not isinstance(model.content, model_replies.TextContent):
            return
        alphabet = model.content.alphabet
        if alphabet:
            self._text_of = lambda id: alphabet[id] if id < len(alphabet) else ""
            return
        known = self._known = token_bytes.of(model)
        self._text_of = lambda id: known[id].decode("utf-8", "replace")

    def unknown_tokens(self, message: inference_pb2.GenerateReply) -> list[int]:
        """Some of the tokens whose bytes read() must know. The caller asks Detokenize and calls learned() with the answer, until
        no token is left."""
        if self._known is None:
            return []
        return sorted({id for entry in message.top_logprobs for id in entry.token_ids} - self._known.keys())[:MOST_ASKED]

    def learned(self, ids: list[int], reply: Text) -> None:
        if self._known is not None:
            learn(self._known, ids, reply)

    def read(self, message: inference_pb2.GenerateReply) -> Part | None:
        """The part that a message holds; None if the message holds nothing new, as the last message may."""
        is_part = self.take(message)
        if message.HasField("seed"):
            self.seed = message.seed
        if message.HasField("usage"):
            self.usage = usage(message.usage)
            self.durability = durability(message)
        if not is_part:
            return None
        asked = self._request.logprobs
        return part(message, asked.enabled, asked.top_n > 0, self._text_of)

    def collect(self, parts: list[Part]) -> Generation:
        """Joins the parts of the whole reply. Errors: Internal (a sample without an end, a gap)."""
        whole = put_together(parts, self._request.num_samples or 1, self.seed, self.usage, self.durability)
        return replace(whole, constraint=self._constraint)


def put_together(
    parts: list[Part], num_samples: int, seed: int | None, usage: Usage | None, durability: Durability | None
) -> Generation:
    """The whole reply. Errors: Internal (a sample without an end, a gap)."""
    if seed is None or usage is None:
        raise Internal("the reply ended without seed or usage")
    pieces: list[list[Part]] = [[] for _ in range(num_samples)]
    for piece in parts:
        if not 0 <= piece.sample_index < len(pieces):
            raise Internal(f"the server sent a part of sample {piece.sample_index} of {len(pieces)}")
        pieces[piece.sample_index].append(piece)
    samples = tuple(_sample(index, own) for index, own in enumerate(pieces))
    return Generation(samples, seed, usage, durability)


def _sample(index: int, parts: list[Part]) -> Sample:
    expected = 0
    for piece in parts:
        if piece.tokens.size and piece.first_position != expected:
            raise Internal(f"sample {index}: the server sent position {piece.first_position} instead of {expected}")
        expected += piece.tokens.size
    if not parts or parts[-1].finish is None:
        raise Internal(f"sample {index}: the reply ended before it did")
    logprobs = [piece.logprobs for piece in parts if piece.logprobs is not None]
    top = [entry for piece in parts for entry in piece.top_logprobs or ()]
    return Sample(
        np.concatenate([piece.tokens for piece in parts]),
        "".join(piece.text for piece in parts),
        np.concatenate(logprobs) if logprobs else None,
        tuple(top) if parts[0].top_logprobs is not None else None,
        parts[-1].finish,
    )
