# SPDX-License-Identifier: Apache-2.0
"""What calls return: frozen dataclasses. Where one was read from a message, `proto` is that message.

Shapes are written as [n, m]. Arrays belong to the caller. Compared by identity where they hold arrays.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rivulet.errors import Internal
from rivulet.v1 import inference_pb2, model_pb2, session_pb2, session_service_pb2


class FinishReason(enum.Enum):
    """Why a sample ended."""

    UNSPECIFIED = 0
    LENGTH = 1  # max_tokens, or the model's last position
    STOP_TOKEN = 2  # the model's eos, or one of stop_token_ids
    STOP_STRING = 3

    @classmethod
    def _missing_(cls, value: object) -> FinishReason:
        return cls.UNSPECIFIED  # of a server newer than this client


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
    """How a sample ended. `stop_string`: the one that matched, else "". `stop_token_id`: the one sampled, which is not among
    the tokens."""

    reason: FinishReason
    stop_string: str = ""
    stop_token_id: int | None = None


@dataclass(frozen=True)
class Usage:
    """What a reply cost. The implied bos is not counted; `completion_tokens` is over all samples. Times are seconds from the
    request's arrival: to its first slot, to its first generated token, to its end."""

    prompt_tokens: int
    completion_tokens: int
    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True, eq=False)
class TopLogprobs:
    """The likeliest tokens at one position, likeliest first: token_ids int32 [n], logprobs float32 [n] nats."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Part:
    """A piece of one sample. Pieces of a sample come in order without gaps; those of different samples interleave.

    tokens: int32 [n], n >= 0. first_position: index of tokens[0] among the sample's generated tokens.
    text: of the tokens, for models whose content is text.
    logprobs: float32 [n], nats, of the model's own distribution; top_logprobs: n of them; both None unless asked for.
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
    """One whole continuation: the parts of a sample put together. Shapes as in Part."""

    tokens: NDArray[np.int32]
    text: str
    logprobs: NDArray[np.float32] | None
    top_logprobs: tuple[TopLogprobs, ...] | None
    finish: Finish


@dataclass(frozen=True, eq=False)
class Generation:
    """A whole reply: samples[i] is sample i. `seed` repeats it."""

    samples: tuple[Sample, ...]
    seed: int
    usage: Usage

    @property
    def text(self) -> str:
        """The text of the first sample."""
        return self.samples[0].text

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens of the first sample, [n]."""
        return self.samples[0].tokens


@dataclass(frozen=True, eq=False)
class Score:
    """How likely a sequence is.

    nll_nats: sum over the num_scored tokens of -ln p.
    logprobs: float32 [num_scored], nats; None unless asked for.
    outputs: float32 [positions, width], the raw outputs of the head that predict scored token output_positions[i]: vocab_size
      logits, or K logits, K means, K log-scales of a mixture; None unless asked for.
    """

    nll_nats: float
    num_scored: int
    logprobs: NDArray[np.float32] | None
    outputs: NDArray[np.float32] | None
    proto: inference_pb2.ScoreReply | session_service_pb2.AppendReply = field(repr=False)


@dataclass(frozen=True)
class ModelSummary:
    """A model that a server serves. state_bytes: of one session's state, whatever its position. backend: "cpu" or "cuda"."""

    name: str
    weights_sha256: str
    num_parameters: int
    state_bytes: int
    backend: str


@dataclass(frozen=True)
class Mixture:
    """A head that gives num_mixtures logistics over num_levels values: tokens 0 to num_levels - 1."""

    num_mixtures: int
    num_levels: int


@dataclass(frozen=True)
class Architecture:
    """Sizes of a model; *_dim are per head. mixture: None for a head that gives vocab_size logits. max_sequence_tokens: most
    given plus generated tokens, None without a limit."""

    vocab_size: int
    bos_token_id: int | None
    eos_token_id: int | None
    hidden_size: int
    num_layers: int
    num_heads: int
    key_dim: int
    value_dim: int
    ffn_size: int
    key_features: int
    feature_map: str
    max_sequence_tokens: int | None
    mixture: Mixture | None


@dataclass(frozen=True)
class TokenContent:
    """Token ids without further meaning."""


@dataclass(frozen=True)
class ImageContent:
    """Tokens are values in raster order, channels interleaved."""

    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class TextContent:
    """Tokens are characters; alphabet[i] is that of token i."""

    alphabet: str


@dataclass(frozen=True)
class Limits:
    """What one request may ask for. slots: sessions that fit at once."""

    max_tokens: int
    default_max_tokens: int
    max_num_samples: int
    slots: int
    max_score_outputs: int


@dataclass(frozen=True)
class Model:
    """Everything that a server says about a model. numerics_id: equal ids promise equal tokens. config: the model's
    config.json (model/FORMAT.md)."""

    summary: ModelSummary
    architecture: Architecture
    content: TokenContent | ImageContent | TextContent
    limits: Limits
    numerics_id: str
    config: Mapping[str, Any]
    proto: inference_pb2.GetModelReply = field(repr=False)


@dataclass(frozen=True)
class ModelLoad:
    """Load of a model now. slots: requests that fit at once; slots_used: that hold one; queued: wait for one, at most max_queue.
    tokens_per_second: over about the last second; tokens_total: since the server's start. draining: takes no new requests.
    sessions: client sessions that are open; session_state_bytes: memory of their states."""

    model: str
    slots: int
    slots_used: int
    queued: int
    max_queue: int
    tokens_per_second: float
    tokens_total: int
    draining: bool
    sessions: int
    session_state_bytes: int


@dataclass(frozen=True, eq=False)
class SessionInfo:
    """What a server says about a session.

    id: 32 lower-case hexadecimal digits. position: tokens given and generated. sequence_hash: FNV-1a, 64 bits, over them.
    seed: what a generate() that names none draws with. marks: name to position.
    idle_timeout, idle_seconds: seconds; it is closed once it has been idle for so long.
    state_bytes: memory of its states; those that forks share are counted by each. busy: a request runs on it.
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
    busy: bool
    proto: session_pb2.Session = field(repr=False)


def _fields(message: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _optional(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


def usage(message: inference_pb2.Usage) -> Usage:
    times = (message.queue_time, message.first_token_time, message.total_time)
    return Usage(message.prompt_tokens, message.completion_tokens, *map(_seconds, times))


def finish(message: inference_pb2.Finish) -> Finish:
    return Finish(FinishReason(message.reason), message.stop_string, _optional(message, "stop_token_id"))


def part(message: inference_pb2.GenerateReply, logprobs: bool, top_logprobs: bool) -> Part:
    """A part of a reply in which `logprobs` and `top_logprobs` were asked for."""
    end = finish(message.finish) if message.HasField("finish") else None
    top = tuple(
        TopLogprobs(np.array(entry.token_ids, np.int32), np.array(entry.logprobs, np.float32)) for entry in message.top_logprobs
    )
    return Part(
        message.sample_index, message.first_position, np.array(message.tokens, np.int32), message.text,
        np.array(message.logprobs, np.float32) if logprobs else None, top if top_logprobs else None, end, message,
    )  # fmt: skip


class Reader:
    """Reads the messages of one reply."""

    def __init__(self, request: inference_pb2.GenerateRequest) -> None:
        self._request = request
        self.seed: int | None = None
        self.usage: Usage | None = None

    def read(self, message: inference_pb2.GenerateReply) -> Part | None:
        """The part that a message holds; the last message may hold none."""
        if message.HasField("seed"):
            self.seed = message.seed
        if message.HasField("usage"):
            self.usage = usage(message.usage)
            if not (message.tokens or message.text or message.HasField("finish")):
                return None
        asked = self._request.logprobs
        return part(message, asked.enabled, asked.top_n > 0)

    def collect(self, parts: list[Part]) -> Generation:
        """Puts the parts of the whole reply together. Errors: Internal (a sample without an end, a gap)."""
        if self.seed is None or self.usage is None:
            raise Internal("the reply ended without seed or usage")
        pieces: list[list[Part]] = [[] for _ in range(self._request.num_samples or 1)]
        for piece in parts:
            if not 0 <= piece.sample_index < len(pieces):
                raise Internal(f"the server sent a part of sample {piece.sample_index} of {len(pieces)}")
            pieces[piece.sample_index].append(piece)
        return Generation(tuple(_sample(index, own) for index, own in enumerate(pieces)), self.seed, self.usage)


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


def score(message: inference_pb2.ScoreReply | session_service_pb2.AppendReply, logprobs: bool, outputs: bool) -> Score:
    """A reply to a request in which `logprobs` and `outputs` were asked for."""
    return Score(
        message.nll_nats, message.num_scored, np.array(message.logprobs, np.float32) if logprobs else None,
        np.array([list(row.values) for row in message.outputs], np.float32) if outputs else None, message,
    )  # fmt: skip


def summary(message: model_pb2.ModelSummary) -> ModelSummary:
    return ModelSummary(**_fields(message, "name", "weights_sha256", "num_parameters", "state_bytes", "backend"))


def model(message: inference_pb2.GetModelReply) -> Model:
    size = message.architecture
    mixture = None
    if size.HasField("mixture_of_logistics"):
        mixture = Mixture(**_fields(size.mixture_of_logistics, "num_mixtures", "num_levels"))
    optional = ("bos_token_id", "eos_token_id", "max_sequence_tokens")
    architecture = Architecture(
        **_fields(size, "vocab_size", "hidden_size", "num_layers", "num_heads", "key_dim", "value_dim", "ffn_size",
                  "key_features", "feature_map"),
        **{name: _optional(size, name) for name in optional}, mixture=mixture,
    )  # fmt: skip
    content: TokenContent | ImageContent | TextContent = TokenContent()
    if message.content.HasField("image"):
        content = ImageContent(**_fields(message.content.image, "height", "width", "channels"))
    elif message.content.HasField("text"):
        content = TextContent(message.content.text.alphabet)
    limits = Limits(
        **_fields(message.limits, "max_tokens", "default_max_tokens", "max_num_samples", "slots", "max_score_outputs")
    )
    config = json.loads(message.config_json)
    return Model(summary(message.summary), architecture, content, limits, message.numerics_id, config, message)


def load(message: inference_pb2.ModelLoad) -> ModelLoad:
    return ModelLoad(
        **_fields(message, "model", "slots", "slots_used", "queued", "max_queue", "tokens_per_second", "tokens_total", "draining",
                  "sessions", "session_state_bytes")
    )  # fmt: skip


def session(message: session_pb2.Session) -> SessionInfo:
    return SessionInfo(
        id=message.session_id, **_fields(message.progress, "position", "sequence_hash"), marks=dict(message.marks),
        **_fields(message, "model", "seed", "state_bytes", "busy"), idle_timeout=_seconds(message.idle_timeout),
        idle_seconds=_seconds(message.idle), proto=message,
    )  # fmt: skip
