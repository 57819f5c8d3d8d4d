# SPDX-License-Identifier: Apache-2.0
"""The results of calls: frozen dataclasses. If one was read from a message, `proto` is that message.

Shapes are written as [n, m]. The caller owns the arrays. Dataclasses that hold arrays are compared by identity.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rivulet.core.message_fields import fields, optional, seconds
from rivulet.v1 import inference_pb2, session_pb2, session_service_pb2


class FinishReason(enum.Enum):
    """Why a sample ended."""

    UNSPECIFIED = 0
    LENGTH = 1  # max_tokens, or the model's last position
    STOP_TOKEN = 2  # the model's eos, or one of stop_token_ids
    STOP_STRING = 3
    CONSTRAINT = 4  # the text of the constraint is complete, and nothing may follow

    @classmethod
    def _missing_(cls, value: object) -> FinishReason:
        return cls.UNSPECIFIED  # the server is newer than this client


class HealthStatus(enum.Enum):
    """Answers of grpc.health.v1."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2

    @classmethod
    def _missing_(cls, value: object) -> HealthStatus:
        return cls.UNKNOWN


@dataclass(frozen=True)
class Finish:
    """How a sample ended. `stop_string`: the string that matched, else "". `stop_token_id`: the stop token that was
    sampled; it is not among the tokens."""

    reason: FinishReason
    stop_string: str = ""
    stop_token_id: int | None = None


@dataclass(frozen=True)
class Usage:
    """Token counts and times of a reply. The implied bos is not counted; `completion_tokens` is over all samples. Times
    are seconds from the request's arrival to its first slot, to its first generated token, and to its end.
    `cached_prompt_tokens`: prompt tokens that were not processed because a kept state included them (PromptCache).
    `reasoning_tokens`: those of completion_tokens that the option `reasoning` is about. `drafted_tokens`, `accepted_tokens`:
    drafts that were checked, and the right ones among them (Speculation); they depend on other requests and on the machine."""

    prompt_tokens: int
    completion_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True)
class Durability:
    """Whether the effect of a request on its session is in the store that the replicas share, so that the effect
    outlives the replica.

    durable: if False, the store did not confirm it in time; the server continues to write it, and the Session keeps the missing tokens.
      position: the session's tokens before it are known to be in the store. other_numerics_id: not "": the replica took the session
      over from a replica with this numerics id, which differs from its own, and processed its tokens again.
    """

    durable: bool
    position: int
    other_numerics_id: str = ""


@dataclass(frozen=True, eq=False)
class TopLogprobs:
    """The most likely tokens at one position, most likely first: token_ids int32 [n], logprobs float32 [n] nats. texts: [n],
    the text of each token, with U+FFFD for bytes that alone are not UTF-8, and "" for a token without text; None for models
    whose content is not text, and in a Multiplex."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    texts: tuple[str, ...] | None


@dataclass(frozen=True, eq=False)
class Part:
    """A part of one sample. Parts of a sample arrive in order and without gaps; parts of different samples interleave.

    tokens: int32 [n], n >= 0. first_position: index of tokens[0] among the sample's generated tokens.
    text: of the tokens, for models whose content is text.
    logprobs: float32 [n], nats, of the model's own distribution; top_logprobs: n of them; both None unless requested.
    finish: on the last part of each sample, else None.
    """

    sample_index: int
    first_position: int
    tokens: NDArray[np.int32]
    text: str
    logprobs: NDArray[np.float32] | None
    top_logprobs: tuple[TopLogprobs, ...] | None
    finish: Finish | None
    proto: inference_pb2.GenerateReply = field(repr=False)


@dataclass(frozen=True, eq=False)
class Sample:
    """One complete continuation: the joined parts of a sample. Shapes as in Part."""

    tokens: NDArray[np.int32]
    text: str
    logprobs: NDArray[np.float32] | None
    top_logprobs: tuple[TopLogprobs, ...] | None
    finish: Finish


@dataclass(frozen=True, eq=False)
class Generation:
    """A complete reply: samples[i] is sample i. The same request with `seed` gives the same reply. durability: set for a reply
    on a session whose server shares a store of sessions with other servers; else None. constraint: of the request."""

    samples: tuple[Sample, ...]
    seed: int
    usage: Usage
    durability: Durability | None = None
    constraint: Any = field(default=None, repr=False)

    @property
    def parsed(self) -> Any:
        """The text of the first sample as a JSON value, or as an object of the class of pydantic that was the constraint.
        Errors: ValueError (the text was cut off by max_tokens, for example)."""
        model = getattr(self.constraint, "model_validate_json", None)
        return json.loads(self.text) if model is None else model(self.text)

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.samples[0].text

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens of the first sample, [n]."""
        return self.samples[0].tokens


@dataclass(frozen=True, eq=False)
class PartialGeneration:
    """The part of a reply that was received before collect() failed: `partial` of the error that collect() raises.

    parts: in the order in which they arrived. seed: the seed that is used; None if no part arrived.
    """

    parts: tuple[Part, ...]
    seed: int | None

    @property
    def text(self) -> str:
        """The text of the first sample that was received."""
        return "".join(part.text for part in self.parts if part.sample_index == 0)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens of the first sample that were received, [n]."""
        own = [part.tokens for part in self.parts if part.sample_index == 0]
        return np.concatenate(own) if own else np.array([], np.int32)


@dataclass(frozen=True, eq=False)
class Tokens:
    """A text as tokens: ids int32 [n]. spans int64 [n, 2]: begin and end of each token's bytes in the text's UTF-8. They cover
    whole characters, so neighbours may overlap; the span of an added token is empty. added_behind: the last so many were added behind
    the text, and are not part of a prompt."""

    ids: NDArray[np.int32]
    spans: NDArray[np.int64]
    added_behind: int = 0


@dataclass(frozen=True)
class Text:
    """Tokens as text. raw_bytes: the bytes of the tokens. text: the same as str, with U+FFFD for bytes that are not UTF-8, and
    without the space that some tokenizers put before a text. ends: [n], the end of each token's bytes in raw_bytes; empty for
    more than 65,536 tokens."""

    text: str
    raw_bytes: bytes
    ends: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Score:
    """How likely a sequence is.

    nll_nats: sum over the num_scored tokens of -ln p.
    logprobs: float32 [num_scored], nats; None unless requested.
    outputs: float32 [positions, width], the raw outputs of the head that predict scored token output_positions[i]:
      vocab_size logits, or K logits, K means, K log-scales of a mixture; None unless requested.
    cached_tokens: for append(), the number of tokens that were not processed because a kept state included them
    (PromptCache).
    durability: for append(), if the server shares a store of sessions with other servers; else None.
    """

    nll_nats: float
    num_scored: int
    logprobs: NDArray[np.float32] | None
    outputs: NDArray[np.float32] | None
    cached_tokens: int
    durability: Durability | None
    proto: inference_pb2.ScoreReply | session_service_pb2.AppendReply = field(repr=False)


@dataclass(frozen=True, eq=False)
class SessionInfo:
    """The server's description of a session.

    id: 32 lower-case hexadecimal digits. position: tokens given and generated. sequence_hash: FNV-1a, 64 bits, over these
    tokens.
    seed: used by every generate() without its own seed. marks: name to position. idle_timeout, idle_seconds: seconds;
      the session is closed once it has been idle for idle_timeout. state_bytes: memory of its states; state_disk_bytes:
      bytes of states that are only in files; a state that forks share is counted in each fork. busy: a request runs on
      the session.
    """

    id: str
    model: str
    position: int
    sequence_hash: int
    seed: int
    marks: Mapping[str, int]
    idle_timeout: float
    idle_seconds: float
    state_bytes: int
    state_disk_bytes: int
    busy: bool
    proto: session_pb2.Session = field(repr=False)


def usage(message: inference_pb2.Usage) -> Usage:
    return Usage(
        message.prompt_tokens, message.completion_tokens, seconds(message.queue_time), seconds(message.first_token_time),
        seconds(message.total_time), message.cached_prompt_tokens, message.reasoning_tokens, message.drafted_tokens,
        message.accepted_tokens,
    )  # fmt: skip


def durability(message: inference_pb2.GenerateReply | session_service_pb2.AppendReply) -> Durability | None:
    if not message.HasField("durability"):
        return None
    durable = message.durability
    return Durability(durable.durable, durable.position, durable.other_numerics_id)


def finish(message: inference_pb2.Finish) -> Finish:
    return Finish(FinishReason(message.reason), message.stop_string, optional(message, "stop_token_id"))


def _top_logprobs(message: inference_pb2.TopLogprobs, text_of: Callable[[int], str] | None) -> TopLogprobs:
    texts = None if text_of is None else tuple(map(text_of, message.token_ids))
    return TopLogprobs(np.array(message.token_ids, np.int32), np.array(message.logprobs, np.float32), texts)


def part(
    message: inference_pb2.GenerateReply, logprobs: bool, top_logprobs: bool, text_of: Callable[[int], str] | None
) -> Part:
    """Converts a part of a reply; `logprobs` and `top_logprobs` say what was requested. `text_of`: gives the text of a token; None
    if tokens have none."""
    end = finish(message.finish) if message.HasField("finish") else None
    top = tuple(_top_logprobs(entry, text_of) for entry in message.top_logprobs)
    return Part(
        message.sample_index, message.first_position, np.array(message.tokens, np.int32), message.text,
        np.array(message.logprobs, np.float32) if logprobs else None, top if top_logprobs else None, end, message,
    )  # fmt: skip


def score(message: inference_pb2.ScoreReply | session_service_pb2.AppendReply, logprobs: bool, outputs: bool) -> Score:
    """Converts a reply; `logprobs` and `outputs` say what was requested."""
    appended = message if isinstance(message, session_service_pb2.AppendReply) else session_service_pb2.AppendReply()
    return Score(
        message.nll_nats, message.num_scored, np.array(message.logprobs, np.float32) if logprobs else None,
        np.array([list(row.values) for row in message.outputs], np.float32) if outputs else None,
        appended.cached_tokens, durability(appended), message,
    )  # fmt: skip


def tokens(message: inference_pb2.TokenizeReply) -> Tokens:
    spans = np.array([message.begins, message.ends], np.int64).reshape(2, len(message.begins))
    return Tokens(np.array(message.ids, np.int32), spans.T.copy(), message.added_behind)


def text(message: inference_pb2.DetokenizeReply) -> Text:
    return Text(message.text, message.raw_bytes, tuple(message.ends))


def session(message: session_pb2.Session) -> SessionInfo:
    return SessionInfo(
        id=message.session_id, **fields(message.progress, "position", "sequence_hash"), marks=dict(message.marks),
        **fields(message, "model", "seed", "state_bytes", "state_disk_bytes", "busy"), idle_timeout=seconds(message.idle_timeout),
        idle_seconds=seconds(message.idle), proto=message,
    )  # fmt: skip
