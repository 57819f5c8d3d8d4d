# SPDX-License-Identifier: Apache-2.0
"""Converts Python values to the messages of rivulet.v1. Checks types, and that numbers fit their fields; the server
checks ranges. Errors: TypeError and ValueError that begin with the argument's name and state the value."""

from __future__ import annotations

import enum
import json
import operator
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

import numpy as np
from numpy.typing import NDArray

from rivulet.v1 import inference_pb2, session_service_pb2

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

Prompt: TypeAlias = Union[str, bytes, Sequence[int], NDArray[np.integer[Any]]]
"""A prompt. str: text. bytes, or a numpy array of uint8, [n]: the first n values of an image in raster order,
channels interleaved. Any other sequence or array of integers, [n]: token ids. Possibly empty, for a model with a bos."""

Metadata: TypeAlias = Union[Mapping[str, Union[str, bytes]], Sequence[tuple[str, Union[str, bytes]]]]
"""Headers of a call: lower-case keys; a key that ends in "-bin" has bytes."""


class Priority(enum.Enum):
    """Which of a tenant's own requests gets a slot first; it takes nothing from other tenants. An argument may also be
    the name of a priority: "low", "normal" or "high"."""

    LOW = 1  # after the tenant's other requests: batch work
    NORMAL = 2
    HIGH = 3  # before the tenant's other requests: a person is waiting


PriorityName: TypeAlias = Literal["low", "normal", "high"]


@dataclass(frozen=True)
class PromptCache:
    """Requests with a common prefix process the prefix once. A request starts from the longest prefix of its prompt
    whose state the server keeps, and the server keeps states of this prompt. The cache changes only the time of a
    request, not its tokens. States are shared only between requests for the same model, of the same tenant and with
    the same salt.

    salt: at most 64 bytes. With different salts, users of one tenant cannot learn from the duration of a request what
      other users have sent.
    positions: also keep the state after this many tokens of the prompt, because other requests will continue from
      there; at most 16, in any order, each from 1 to the number of tokens of the prompt; on a session: of its whole
      sequence.
    enabled: False is the same as no PromptCache.
    """

    salt: str = ""
    positions: Sequence[int] | NDArray[np.integer[Any]] = ()
    enabled: bool = True


@dataclass(frozen=True)
class Constraint:
    """What the text of each sample must be: exactly one of the first five, of at most 65,536 bytes. docs/constraints.md says
    what is enforced; the server refuses the rest (InvalidArgument, reason CONSTRAINT_UNSUPPORTED).

    json_schema: JSON that satisfies this JSON schema, a mapping or its text
    json_object: any JSON object
    regex: a text that this regular expression matches as a whole
    choices: one of these texts, at most 1000
    structural_tag: what this structural tag describes, a mapping or its text
    begin_position: the position of the sequence behind which the text begins; None: where the reply begins
    after: the text begins behind the first of these that is written, such as "</think>"; at most 8, of 1 to 64 bytes; empty: at
        once
    """

    json_schema: Mapping[str, Any] | bool | str | None = None
    json_object: bool = False
    regex: str | None = None
    choices: Sequence[str] | None = None
    structural_tag: Mapping[str, Any] | str | None = None
    begin_position: int | None = None
    after: Sequence[str] = ()


@dataclass(frozen=True)
class Reasoning:
    """Which part of a reply Usage.reasoning_tokens counts: from the reply's first token to the one that completes `end`, or to its last.
    Both texts have at most 64 bytes.

    begin: the reply has to begin with it, white space aside; else nothing is counted; "": the prompt ends within the reasoning
    end: the reasoning ends with the first of it behind `begin`
    """

    begin: str
    end: str


@dataclass(frozen=True)
class Speculation:
    """How a reply is sped up by drafts: guesses of the next tokens, which one step of the model checks together. Drafts change only the
    time of a reply, not its tokens.

    drafts: the maximum number of drafts in a step, 0 to 16; "off": 0; "auto" or None: as many as pay
    prediction: a text or token ids that the reply will repeat in part, such as the file that the reply edits; at most 131,072 tokens
    """

    drafts: int | Literal["auto", "off"] | None = None
    prediction: str | Sequence[int] | NDArray[np.integer[Any]] = ""


class CallOptions(TypedDict, total=False):
    """Options of every call.

    timeout: seconds for the whole call, including streaming; after that DeadlineExceeded. None: no limit
    metadata: sent after the client's own
    """

    timeout: float | None
    metadata: Metadata


class ScoreOptions(CallOptions, total=False):
    """Options of a client's score(), in addition to CallOptions; see there."""

    model: str
    window: int | None
    output_positions: Sequence[int] | NDArray[np.integer[Any]] | None
    logprobs: bool
    priority: Priority | PriorityName | None
    add_special_tokens: bool | None
    parse_special_tokens: bool | None


class ImageOptions(CallOptions, total=False):
    """Options of calls that draw images, in addition to CallOptions.

    model: may be absent if the server serves exactly one model
    temperature: >= 0; absent: 1. 0: the most likely value
    prompt: values with which every image begins: [n], or whole rows, [rows, width] or [rows, width, channels]
    interval: seconds between snapshots; absent: 0.1
    """

    model: str
    temperature: float | None
    prompt: NDArray[np.uint8] | bytes | Sequence[int]
    interval: float


class SamplingOptions(CallOptions, total=False):
    """Options of every generate(), in addition to CallOptions. None is the same as absent: the server's default.

    max_tokens: per sample, 1 to limits.max_tokens
    temperature: >= 0; absent: 1. 0: the most likely token
    top_k: >= 0; 0: all tokens
    top_p: (0, 1]
    min_p: [0, 1]
    repetition_penalty: > 0, over prompt and output
    frequency_penalty: [-2, 2], per occurrence in the output
    presence_penalty: [-2, 2], once for each token that is in the output
    logit_bias: token id to a bias in [-100, 100]
    seed: 0 to 2^64 - 1; absent: the session's seed, or a seed that the client draws (see GenerateStream.seed)
    stop: end a sample when its text would contain one of these
    stop_token_ids: end a sample when one of these is sampled
    include_stop_string: keep the matched stop string in the output
    ignore_eos: do not end a sample at the model's eos
    min_tokens: the minimum number of tokens per sample, 0 to max_tokens; a stop string is found only behind them
    skip_special_tokens: control tokens have no text, also for `stop`
    reasoning: count the tokens of this part of each reply (Usage.reasoning_tokens)
    speculation: how drafts speed up the reply: a Speculation, or its `drafts` alone
    logprobs: the log-probability of every token
    top_logprobs: also the n most likely tokens, 0 to 20; needs logprobs
    constraint: what the text must be: a Constraint, a JSON schema, or a class of pydantic (see Generation.parsed)
    cache: share states of the prompt (see Usage.cached_prompt_tokens); True is the same as PromptCache()
    priority: order among the tenant's own requests that wait for a slot
    add_special_tokens: for a text prompt: add the tokens with which the tokenizer begins and ends a text; absent: only those with
      which it begins one, if the text begins a sequence (an empty text: not in a session without a position)
    parse_special_tokens: for a text prompt: names of control tokens in the text become these tokens; absent: True
    resume: whether another call continues a reply whose call is lost (GenerateStream); absent: True
    """

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop_string: bool
    ignore_eos: bool
    min_tokens: int | None
    skip_special_tokens: bool
    reasoning: Reasoning | None
    speculation: Speculation | Literal["auto", "off"] | int | None
    logprobs: bool
    top_logprobs: int
    constraint: Constraint | Mapping[str, Any] | type | None
    cache: PromptCache | bool | None
    priority: Priority | PriorityName | None
    add_special_tokens: bool | None
    parse_special_tokens: bool | None
    resume: bool


class GenerateOptions(SamplingOptions, total=False):
    """Options of a client's generate(), in addition to SamplingOptions.

    model: may be absent if the server serves exactly one model
    num_samples: independent continuations, 1 to limits.max_num_samples
    """

    model: str
    num_samples: int | None


class SessionGenerateOptions(SamplingOptions, total=False):
    """Options of a session's generate(), in addition to SamplingOptions.

    position: where to continue, 0 to the session's position; absent: its end. Generated tokens after it are dropped.
      Given tokens are only dropped by rewind(): FailedPrecondition (GIVEN_TOKENS_BEYOND_POSITION)
    mark: sets a mark with this name at the position after the reply, at most 64 bytes
    """

    position: int | None
    mark: str | None


def _with_options_of(options: Any, *bases: Any) -> None:
    """Appends the option descriptions in the docstrings of `bases`: a TypedDict does not inherit them for help()."""
    if options.__doc__ is None:  # python -OO
        return
    for base in bases:
        _, _, entries = base.__doc__.partition("\n\n")
        options.__doc__ = f"{options.__doc__.rstrip()}\n    {entries.strip()}\n"


_with_options_of(ImageOptions, CallOptions)
_with_options_of(SamplingOptions, CallOptions)
_with_options_of(GenerateOptions, SamplingOptions)
_with_options_of(SessionGenerateOptions, SamplingOptions)


def integer(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: must be an integer; got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: must be an integer; got {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: must be {low} to {high}; got {number}")
    return number


def int32(name: str, value: Any) -> int:
    return integer(name, value, -(2**31), 2**31 - 1)


def int64(name: str, value: Any) -> int:
    return integer(name, value, -(2**63), 2**63 - 1)


def uint64(name: str, value: Any) -> int:
    return integer(name, value, 0, 2**64 - 1)


def count(name: str, value: Any, high: int = 2**31 - 1) -> int:
    return integer(name, value, 1, high)


def real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: must be a number; got {value!r}")
    return float(value)


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: must be True or False; got {value!r}")
    return bool(value)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: must be a str; got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: must be text that UTF-8 can encode; got {value!r}: {error}") from None
    return value


def integers(name: str, value: Any, check: Callable[[str, Any], int] = int32) -> list[int]:
    """[n] integers of a sequence or array."""
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or (value.size and not np.issubdtype(value.dtype, np.integer)):
            raise TypeError(f"{name}: must be integers [n]; got an array of shape {list(value.shape)} and type {value.dtype}")
        value = value.tolist()
    if isinstance(value, (str, bytes, bytearray, Mapping, Set)) or not isinstance(value, Iterable):
        raise TypeError(f"{name}: must be a sequence of integers; got {value!r}")
    items = list(value)
    if check is int32 and set(map(type, items)) == {int}:
        with suppress(OverflowError):  # fast path: a million token ids in 30 ms; the code below takes a second
            return array("i", items).tolist()
    return [check(f"{name}[{index}]", item) for index, item in enumerate(items)]


def image_values(name: str, value: Any) -> bytes | None:
    """The bytes of image values; None if `value` is not an image."""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8:
        return None
    if value.ndim != 1:
        raise TypeError(f"{name}: must be image values [n]; got an array of shape {list(value.shape)} and type uint8")
    return value.tobytes()


def timeout(value: Any) -> float | None:
    if value is None:
        return None
    seconds = real("timeout", value)
    if not (isfinite(seconds) and seconds > 0):
        raise ValueError(f"timeout: must be seconds above 0, or None; got {value!r}")
    return seconds


def metadata(value: Any) -> tuple[tuple[str, str | bytes], ...]:
    pairs = tuple(value.items() if isinstance(value, Mapping) else value)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"metadata: must be pairs of a key and a value; got {pair!r}")
        key, content = pair
        if not re.fullmatch(r"[0-9a-z_.-]+", key) or key.startswith("grpc-"):
            raise ValueError(f"metadata: a key must consist of digits, lower-case letters, - _ and . and must not begin with grpc-; got {key!r}")
        if not isinstance(content, bytes if key.endswith("-bin") else str):
            raise TypeError(f"metadata: {key}: must be bytes if the key ends in -bin, else a str; got {content!r}")
        if isinstance(content, str) and not re.fullmatch(r"[ -~]*", content):
            raise ValueError(f"metadata: {key}: must be printable ASCII; got {content!r}")
    return pairs


def refuse_unknown(call: str, options: Mapping[str, Any], allowed: type) -> None:
    """Raises TypeError for an unknown option, as Python does for named parameters."""
    unknown = sorted(set(options) - allowed.__annotations__.keys())
    if unknown:
        raise TypeError(f"{call}() got an unexpected keyword argument {unknown[0]!r}")


_SAMPLING: dict[str, Callable[[str, Any], Any]] = {
    "temperature": real, "top_k": int32, "top_p": real, "min_p": real, "repetition_penalty": real, "frequency_penalty": real,
    "presence_penalty": real, "seed": uint64,
}  # fmt: skip
_REQUEST: dict[str, Callable[[str, Any], Any]] = {"max_tokens": int64, "num_samples": int32}


def _give(name: str, value: Prompt, message: inference_pb2.GenerateRequest | session_service_pb2.AppendRequest) -> None:
    """Sets the oneof of text, image values and tokens."""
    values = image_values(name, value)
    if isinstance(value, str):
        message.text = text(name, value)
    elif values is not None:
        message.image_values = values
    else:
        message.tokens.SetInParent()
        message.tokens.ids.extend(integers(name, value))


def _set_priority(
    value: Any, message: inference_pb2.GenerateRequest | inference_pb2.ScoreRequest | session_service_pb2.AppendRequest
) -> None:
    """Errors: TypeError."""
    if value is None:
        return
    if isinstance(value, str):
        names = {priority.name.lower(): priority for priority in Priority}
        if value not in names:
            raise ValueError(f"priority: must be low, normal or high; got {value!r}")
        value = names[value]
    if not isinstance(value, Priority):
        raise TypeError(f"priority: must be a rivulet.Priority or its name; got {value!r}")
    number: Any = value.value  # protoc's types accept only the message's own enum
    message.priority = number


def _set_cache(cache: Any, message: inference_pb2.GenerateRequest | session_service_pb2.AppendRequest) -> None:
    """Errors: TypeError, ValueError."""
    if cache is None:
        return
    given = cache if isinstance(cache, PromptCache) else PromptCache(enabled=boolean("cache", cache))
    message.cache.enabled = boolean("cache.enabled", given.enabled)
    message.cache.salt = text("cache.salt", given.salt)
    message.cache.positions.extend(integers("cache.positions", given.positions, int64))


_FORMS = ("json_schema", "json_object", "regex", "choices", "structural_tag")  # of a Constraint


def forms_of(given: Constraint) -> dict[str, Any]:
    """The forms that are set, by name; a schema and a structural tag as JSON. Errors: TypeError, ValueError."""
    forms = {name: value for name in _FORMS if (value := getattr(given, name)) is not None and (name != "json_object" or value)}
    for name in {"json_schema", "structural_tag"} & forms.keys():
        if not isinstance(forms[name], str):
            forms[name] = _json(f"constraint.{name}", forms[name])
    return forms


def _set_constraint(given: Any, message: inference_pb2.GenerateRequest) -> None:
    """Errors: TypeError, ValueError."""
    if given is None:
        return
    if hasattr(given, "model_json_schema"):
        given = given.model_json_schema()
    if isinstance(given, Mapping):
        given = Constraint(given)
    if not isinstance(given, Constraint):
        raise TypeError(f"constraint: must be a Constraint, a JSON schema or a class of pydantic; got {given!r}")
    forms = forms_of(given)
    if len(forms) != 1:
        raise ValueError(f"constraint: must have one of {', '.join(_FORMS)}; got {', '.join(forms) or 'none of them'}")
    [(form, value)] = forms.items()
    to = message.constraint
    if form == "json_object":
        to.json_object = boolean("constraint.json_object", value)
    elif form == "choices":
        to.choices.SetInParent()
        to.choices.texts.extend(_texts("constraint.choices", value))
    else:
        setattr(to, form, text(f"constraint.{form}", value))
    if given.begin_position is not None:
        to.begin_position = int64("constraint.begin_position", given.begin_position)
    to.after.extend(_texts("constraint.after", given.after))


def _set_reasoning(given: Any, message: inference_pb2.GenerateRequest) -> None:
    """Errors: TypeError, ValueError."""
    if given is None:
        return
    if not isinstance(given, Reasoning):
        raise TypeError(f"reasoning: must be a rivulet.Reasoning; got {given!r}")
    message.reasoning.begin = text("reasoning.begin", given.begin)
    message.reasoning.end = text("reasoning.end", given.end)


def _set_speculation(given: Any, message: inference_pb2.GenerateRequest) -> None:
    """Errors: TypeError, ValueError."""
    name, made = ("speculation.drafts", given) if isinstance(given, Speculation) else ("speculation", Speculation(given))
    drafts, prediction = made.drafts, made.prediction
    if isinstance(drafts, str):
        if drafts not in ("auto", "off"):
            raise ValueError(f'{name}: must be "auto", "off" or an integer; got {drafts!r}')
        drafts = 0 if drafts == "off" else None
    if drafts is not None:
        message.speculation.drafts = int32(name, drafts)
    if isinstance(prediction, str):
        if prediction:
            message.speculation.text = text("speculation.prediction", prediction)
    elif ids := integers("speculation.prediction", prediction):
        message.speculation.tokens.ids.extend(ids)


def _texts(name: str, values: Any, allowed: str = "a sequence of str") -> list[str]:
    """Errors: TypeError, ValueError."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"{name}: must be {allowed}; got {values!r}")
    return [text(f"{name}[{index}]", value) for index, value in enumerate(values)]


def _json(name: str, value: Any) -> str:
    """Errors: TypeError."""
    try:
        return json.dumps(value, ensure_ascii=False, default=dict)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: must be JSON; {error}") from None


def _set_special_tokens(
    add: Any,
    parse: Any,
    message: inference_pb2.GenerateRequest
    | inference_pb2.ScoreRequest
    | inference_pb2.TokenizeRequest
    | session_service_pb2.AppendRequest,
) -> None:
    """Errors: TypeError."""
    if add is not None:
        message.add_special_tokens = boolean("add_special_tokens", add)
    if parse is not None:
        message.parse_special_tokens = boolean("parse_special_tokens", parse)


def generate(prompt: Prompt, options: GenerateOptions) -> inference_pb2.GenerateRequest:
    """The message of a client's generate(). Timeout and metadata are not in it: they belong to the call."""
    refuse_unknown("generate", options, GenerateOptions)
    return _generate(prompt, options)


def session_generate(prompt: Prompt, options: SessionGenerateOptions) -> inference_pb2.GenerateRequest:
    """The message of a session's generate(), without model and session. Timeout and metadata are not in it: they
    belong to the call."""
    refuse_unknown("generate", options, SessionGenerateOptions)
    return _generate(prompt, options)


def _generate(prompt: Prompt, options: SamplingOptions) -> inference_pb2.GenerateRequest:
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    request = inference_pb2.GenerateRequest(model=text("model", given.get("model", "")))
    _give("prompt", prompt, request)
    for table, message in ((_REQUEST, request), (_SAMPLING, request.sampling)):
        for name, check in table.items():
            if name in given:
                setattr(message, name, check(name, given[name]))
    if not isinstance(given.get("logit_bias", {}), Mapping):
        raise TypeError(f"logit_bias: must be a mapping of token ids to numbers; got {given['logit_bias']!r}")
    for token, bias in given.get("logit_bias", {}).items():
        request.sampling.logit_bias[int32("logit_bias", token)] = real(f"logit_bias[{token}]", bias)
    stop = given.get("stop", ())
    request.stop.strings.extend(_texts("stop", [stop] if isinstance(stop, str) else stop, "a str or a sequence of str"))
    request.stop.token_ids.extend(integers("stop_token_ids", given.get("stop_token_ids", ())))
    request.stop.include_string = boolean("include_stop_string", given.get("include_stop_string", False))
    request.stop.ignore_eos = boolean("ignore_eos", given.get("ignore_eos", False))
    request.stop.min_tokens = int64("min_tokens", given.get("min_tokens", 0))
    request.skip_special_tokens = boolean("skip_special_tokens", given.get("skip_special_tokens", False))
    _set_reasoning(given.get("reasoning"), request)
    _set_speculation(given.get("speculation"), request)
    request.logprobs.enabled = boolean("logprobs", given.get("logprobs", False))
    request.logprobs.top_n = int32("top_logprobs", given.get("top_logprobs", 0))
    _set_constraint(given.get("constraint"), request)
    _set_cache(given.get("cache"), request)
    _set_priority(given.get("priority"), request)
    _set_special_tokens(given.get("add_special_tokens"), given.get("parse_special_tokens"), request)
    return request


def append(
    content: Prompt, score: bool, output_positions: Sequence[int] | NDArray[np.integer[Any]] | None, logprobs: bool,
    cache: PromptCache | bool | None, priority: Priority | PriorityName | None,
    add_special_tokens: bool | None, parse_special_tokens: bool | None,
) -> session_service_pb2.AppendRequest:
    """The message of append(), without model and session."""
    request = session_service_pb2.AppendRequest(score=boolean("score", score), logprobs=boolean("logprobs", logprobs))
    request.score = score or logprobs or output_positions is not None
    _give("content", content, request)
    if output_positions is not None:
        request.output_positions.extend(integers("output_positions", output_positions, int64))
    _set_cache(cache, request)
    _set_priority(priority, request)
    _set_special_tokens(add_special_tokens, parse_special_tokens, request)
    return request


def score(
    content: str | Sequence[int] | NDArray[np.integer[Any]],
    model: str,
    window: int | None,
    output_positions: Sequence[int] | NDArray[np.integer[Any]] | None,
    logprobs: bool,
    priority: Priority | PriorityName | None,
    add_special_tokens: bool | None,
    parse_special_tokens: bool | None,
) -> inference_pb2.ScoreRequest:
    """The message of score()."""
    request = inference_pb2.ScoreRequest(model=text("model", model), logprobs=boolean("logprobs", logprobs))
    if isinstance(content, str):
        request.text = text("content", content)
    else:
        request.tokens.SetInParent()
        request.tokens.ids.extend(integers("content", content))
    _set_priority(priority, request)
    _set_special_tokens(add_special_tokens, parse_special_tokens, request)
    if window is not None:
        request.window = int64("window", window)
    if output_positions is not None:
        request.output_positions.extend(integers("output_positions", output_positions, int64))
    return request


def check_score(options: ScoreOptions) -> None:
    """Errors: TypeError, ValueError (an option of score())."""
    score(
        "", options.get("model", ""), options.get("window"), options.get("output_positions"), options.get("logprobs", False),
        options.get("priority"), options.get("add_special_tokens"), options.get("parse_special_tokens"),
    )  # fmt: skip
    timeout(options.get("timeout"))
    metadata(options.get("metadata", ()))


def tokenize(
    content: str, model: str, add_special_tokens: bool | None, parse_special_tokens: bool | None
) -> inference_pb2.TokenizeRequest:
    """The message of tokenize()."""
    request = inference_pb2.TokenizeRequest(model=text("model", model), text=text("text", content))
    _set_special_tokens(add_special_tokens, parse_special_tokens, request)
    return request


def detokenize(ids: Sequence[int] | NDArray[np.integer[Any]], model: str, skip_special_tokens: bool) -> inference_pb2.DetokenizeRequest:
    """The message of detokenize()."""
    skip = boolean("skip_special_tokens", skip_special_tokens)
    return inference_pb2.DetokenizeRequest(model=text("model", model), ids=integers("ids", ids), skip_special_tokens=skip)
