# SPDX-License-Identifier: Apache-2.0
"""The bytes of single tokens that a client has asked the server for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rivulet import errors, model_replies, replies

MOST_ASKED = 1 << 16  # tokens of one Detokenize; it returns `ends` for no more
_MOST_MODELS = 16

M = TypeVar("M")
T = TypeVar("T")


class TokenBytes:
    """The bytes of tokens, for each model of a client. Thread: any."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, str], dict[int, bytes]] = {}

    def of(self, model: model_replies.Model) -> dict[int, bytes]:
        """Bytes by token id, which learn() fills. The key includes the hash of the weights: another model may get the name later."""
        if len(self._models) >= _MOST_MODELS:
            self._models.clear()
        return self._models.setdefault((model.summary.name, model.summary.weights_sha256), {})


def learn(known: dict[int, bytes], ids: Sequence[int], reply: replies.Text) -> None:
    """Adds the bytes of `ids` from a reply of Detokenize. Errors: Unimplemented."""
    if len(reply.ends) != len(ids):
        raise errors.Unimplemented("the server is older than this client: Detokenize does not say where the bytes of each token end")
    begin = 0
    for id, end in zip(ids, reply.ends):
        known[id] = reply.raw_bytes[begin:end]
        begin = end


@dataclass(frozen=True)
class ModelQuestions(Generic[M, T]):
    """Calls by which a reply asks the server about its model. They return a Model (M) and Detokenize's Text (T), or
    awaitables of these."""

    model: Callable[[], M]
    detokenize: Callable[[list[int]], T]
    token_bytes: TokenBytes


Questions = ModelQuestions[model_replies.Model, replies.Text]
AsyncQuestions = ModelQuestions[Awaitable[model_replies.Model], Awaitable[replies.Text]]
