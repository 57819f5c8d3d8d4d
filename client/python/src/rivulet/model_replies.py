# SPDX-License-Identifier: Apache-2.0
"""The results of calls about models: frozen dataclasses, as in replies.py."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rivulet.core.message_fields import fields, optional, seconds
from rivulet.v1 import inference_pb2, model_pb2


@dataclass(frozen=True)
class ModelSummary:
    """A model that a server serves. state_bytes: size of one state, the same at every position. backend: "cpu" or
    "cuda"."""

    name: str
    weights_sha256: str
    num_parameters: int
    state_bytes: int
    backend: str


@dataclass(frozen=True)
class Mixture:
    """A head that computes num_mixtures logistics over num_levels values: tokens 0 to num_levels - 1."""

    num_mixtures: int
    num_levels: int


@dataclass(frozen=True)
class Architecture:
    """Sizes of a model; *_dim are per head. mixture: None for a head that computes vocab_size logits.
    max_sequence_tokens: maximum number of given and generated tokens; None: no limit. kind: "linear", or the model_type of a
    checkpoint, for example "rwkv7". eos_token_ids: all tokens that end a generation, eos_token_id first."""

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
    kind: str
    eos_token_ids: tuple[int, ...]


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
    """Tokens are text. tokenizer: "char" (alphabet[i] is the character of token i), "tokenizer.json" or "world" (alphabet is
    empty). tokenizer_size: its largest id plus 1; a token that it does not have has no text."""

    alphabet: str
    tokenizer: str
    tokenizer_size: int


@dataclass(frozen=True)
class SpecialToken:
    """A control token of a tokenizer, or a text to which the model's files give roles ("bos_token", ...). id: None if the tokenizer
    does not have the text as one token."""

    id: int | None
    content: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """Limits on one request. slots: sequences that are computed at once. max_message_bytes: maximum size of a request message; after
    this result, the client refuses a larger request before it sends it (InvalidArgument, MESSAGE_TOO_LARGE). 0: an older server. max_drafts: maximum
    number of drafts of a sample in one step (Speculation); 0: the server makes none."""

    max_tokens: int
    default_max_tokens: int
    max_num_samples: int
    slots: int
    max_score_outputs: int
    max_message_bytes: int
    max_drafts: int


@dataclass(frozen=True)
class Model:
    """The description of a model. numerics_id: servers with equal ids generate equal tokens. plan: how runs are
    executed; products: what computes matrix products on a GPU. Both are for people to read. config: the model's config.json
    (model/FORMAT.md). chat_template: for the caller to render; often empty. chat_template_name: name of a built-in template
    ("rwkv-world"); else empty. response_template: a JSON object that says how a reply is divided into reasoning, content and tool
    calls, as `response_template` of transformers; empty: there is none. response_template_name: name of a built-in one ("qwen3.5",
    "lfm2"); else empty. special_tokens: the control tokens of its tokenizer."""

    summary: ModelSummary
    architecture: Architecture
    content: TokenContent | ImageContent | TextContent
    limits: Limits
    numerics_id: str
    plan: str
    products: str
    config: Mapping[str, Any]
    chat_template: str
    chat_template_name: str
    response_template: str
    response_template_name: str
    special_tokens: tuple[SpecialToken, ...]
    proto: inference_pb2.GetModelReply = field(repr=False)


@dataclass(frozen=True)
class ModelLoad:
    """Current load of a model; totals count from the server's start.

    slots, slots_used: number of slots, and of slots in use. queued: samples, scores and session calls that wait, at
      most max_queue; one tenant may fill max_tenant_queue of it. queued_high, queued_normal, queued_low: slots that the
      waiting requests need, by priority. oldest_wait: seconds that the oldest waiting request has waited. tenants:
      tenants that hold slots or wait. parked: samples that gave up their slots because their client did not read, and
      have no slots yet. preempted: samples that were preempted for another tenant's requests, and wait;
      preempted_total: number of preemptions.
    drafted_total, accepted_total: drafts that were checked, and the right ones among them (Speculation).
    tokens_per_second: over about the last second. draining: the model refuses new requests.
    sessions: open sessions; session_state_bytes: memory of all kept states, of sessions and of cached prompts.
    states_in_memory, states_on_disk: kept states in memory; kept states only in files. state_disk_bytes: bytes of all
      state files. states_forgotten: states that were forgotten because memory and disk were full. state_file_errors:
      files that could not be written or read, or were damaged.
    prompt_cache_hits, prompt_cache_misses: requests with PromptCache that found a kept state, and requests that found
      none. prompt_cache_bytes: bytes of the states of cached prompts, in memory or in files, and of their tokens.
    refused_total: requests refused because a queue was full. cut_total: replies ended because their client did not
      read.
    """

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
    states_in_memory: int
    states_on_disk: int
    state_disk_bytes: int
    states_forgotten: int
    state_file_errors: int
    prompt_cache_hits: int
    prompt_cache_misses: int
    prompt_cache_bytes: int
    max_tenant_queue: int
    queued_high: int
    queued_normal: int
    queued_low: int
    oldest_wait: float
    tenants: int
    parked: int
    preempted: int
    preempted_total: int
    drafted_total: int
    accepted_total: int
    refused_total: int
    cut_total: int


@dataclass(frozen=True)
class ServerLoad:
    """Current load of a server's listener for clients; totals count from the server's start.

    connections: open connections, at most max_connections (0: no limit). connections_total: accepted connections.
      connections_refused_total: connections closed at once because the limit was reached or no file descriptor was
      left. connections_closed_total: connections closed because their client reset too many calls.
    refusals: requests refused with ResourceExhausted, by the error's reason.
    """

    connections: int
    max_connections: int
    connections_total: int
    connections_refused_total: int
    connections_closed_total: int
    refusals: Mapping[str, int]


def summary(message: model_pb2.ModelSummary) -> ModelSummary:
    return ModelSummary(**fields(message, "name", "weights_sha256", "num_parameters", "state_bytes", "backend"))


def model(message: inference_pb2.GetModelReply) -> Model:
    size = message.architecture
    mixture = None
    if size.HasField("mixture_of_logistics"):
        mixture = Mixture(**fields(size.mixture_of_logistics, "num_mixtures", "num_levels"))
    may_be_absent = ("bos_token_id", "eos_token_id", "max_sequence_tokens")
    architecture = Architecture(
        **fields(size, "vocab_size", "hidden_size", "num_layers", "num_heads", "key_dim", "value_dim", "ffn_size",
                  "key_features", "feature_map", "kind"),
        **{name: optional(size, name) for name in may_be_absent}, mixture=mixture,
        eos_token_ids=tuple(size.eos_token_ids),
    )  # fmt: skip
    content: TokenContent | ImageContent | TextContent = TokenContent()
    if message.content.HasField("image"):
        content = ImageContent(**fields(message.content.image, "height", "width", "channels"))
    elif message.content.HasField("text"):
        content = TextContent(**fields(message.content.text, "alphabet", "tokenizer", "tokenizer_size"))
    limits = Limits(
        **fields(message.limits, "max_tokens", "default_max_tokens", "max_num_samples", "slots", "max_score_outputs", "max_message_bytes",
                 "max_drafts")
    )
    config = json.loads(message.config_json)
    special = tuple(SpecialToken(optional(token, "id"), token.content, tuple(token.roles)) for token in message.special_tokens)
    return Model(
        summary(message.summary), architecture, content, limits, message.numerics_id, message.plan, message.products, config,
        message.chat_template, message.chat_template_name, message.response_template, message.response_template_name, special, message,
    )  # fmt: skip


def load(message: inference_pb2.ModelLoad) -> ModelLoad:
    """Converts the message; every field of the dataclass has the same name in it."""
    named = {entry.name: getattr(message, entry.name) for entry in dataclasses.fields(ModelLoad)}
    return ModelLoad(**{**named, "oldest_wait": seconds(message.oldest_wait)})


def server_load(message: inference_pb2.ServerLoad) -> ServerLoad:
    """As load()."""
    named = {entry.name: getattr(message, entry.name) for entry in dataclasses.fields(ServerLoad)}
    return ServerLoad(**{**named, "refusals": dict(message.refusals)})
