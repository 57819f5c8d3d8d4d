# SPDX-License-Identifier: Apache-2.0
"""Parameters of sampling and stopping, for completions, chats and sessions."""

from __future__ import annotations

from typing import Any

from rivulet import Constraint
from rivulet.gateway.web.body import Body, object_of
from rivulet.gateway.web.problems import invalid
from rivulet.gateway.worker.errors import shown

# Parameters of the client's generate(), with their JSON types. The client checks the types, the server the ranges.
_SAME = {
    "temperature": ("number",), "top_p": ("number",), "top_k": ("integer",), "min_p": ("number",), "repetition_penalty": ("number",),
    "frequency_penalty": ("number",), "presence_penalty": ("number",), "seed": ("integer",), "stop": ("string", "array"),
    "stop_token_ids": ("array",), "ignore_eos": ("boolean",), "min_tokens": ("integer",), "skip_special_tokens": ("boolean",),
}  # fmt: skip
_HARMLESS = (
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "metadata",
)  # fmt: skip


def take(body: Body) -> dict[str, Any]:
    """Takes the options of the client's generate(). Errors: Problem."""
    options = {name: value for name, types in _SAME.items() if (value := body.take(name, *types)) is not None}
    if (included := body.take("include_stop_str_in_output", "boolean")) is not None:
        options["include_stop_string"] = included
    if (drafts := body.take("rivulet_speculation", "string", "integer")) is not None:
        options["speculation"] = drafts
    bias = body.take("logit_bias", "object")
    if bias is not None:
        options["logit_bias"] = _logit_bias(bias)
    body.ignore(*_HARMLESS)
    return options


def take_max_tokens(body: Body, name: str, echo: bool | None = None) -> int | None:
    """echo: the request's `echo`, on a route that has it. Errors: Problem. The server's error would describe its own API, in which an
    absent max_tokens means something else."""
    value = body.take(name, "integer")
    if value is None:
        return None
    if type(value) is not int:
        raise invalid(name, f"must be an integer; got {shown(value)}")
    if not (0 if echo else 1) <= value < 2**63:
        least = "1" if echo is None else "0" if echo else "1 (0 with echo = true)"
        most = "what the model allows (rivulet.max_tokens of GET /v1/models/MODEL)"
        raise invalid(name, f"must be {least} to {most}; got {shown(value)}", "MAX_TOKENS_OUT_OF_RANGE")
    return value


def _logit_bias(value: Any) -> dict[int, Any]:
    if not isinstance(value, dict):
        raise invalid("logit_bias", f"must be an object of token ids and numbers; got {shown(value)}")
    for token in value:
        if not (token.isascii() and token.isdigit() and len(token) < 11):
            raise invalid("logit_bias", f"a key must be a token id; got {shown(token)}")
    return {int(token): bias for token, bias in value.items()}


# vLLM's names: the form of a Constraint, the types of its value, and what an error says of them.
_STRUCTURED: dict[str, tuple[str, tuple[type, ...], str]] = {
    "json": ("json_schema", (dict, str, bool), "a JSON schema"), "json_object": ("json_object", (bool,), "true"),
    "regex": ("regex", (str,), "a string"), "choice": ("choices", (list,), "an array of strings"),
    "structural_tag": ("structural_tag", (dict, str), "a structural tag"),
}  # fmt: skip


def take_constraint(body: Body, names: dict[str, str]) -> dict[str, Any]:
    """The option `constraint` of the client's generate(), if the request asks for a form of its text. names: gets the
    parameters that the server's errors are about. Errors: Problem."""
    format, structured = body.take("response_format", "object"), body.take("structured_outputs", "object")
    if format is not None and structured is not None:
        raise invalid("structured_outputs", "must not be given beside response_format")
    if format is not None:
        return _of_format(object_of("response_format", format), names)
    if structured is None:
        return {}
    given = object_of("structured_outputs", structured)
    forms = {name: value for name in _STRUCTURED if (value := given.take(name)) is not None}
    given.end("structured_outputs.")
    if len(forms) != 1:
        raise invalid("structured_outputs", f"must have one of {', '.join(_STRUCTURED)}; got {', '.join(forms) or 'none of them'}")
    [(name, value)] = forms.items()
    form, types, allowed = _STRUCTURED[name]
    if not isinstance(value, types) or value is False and name == "json_object":
        raise invalid(f"structured_outputs.{name}", f"must be {allowed}; got {shown(value)}")
    names.update({f"constraint.{form}": f"structured_outputs.{name}", "constraint": "structured_outputs"})
    fields: dict[str, Any] = {form: value}
    return {"constraint": Constraint(**fields)}


def _of_format(format: Body, names: dict[str, str]) -> dict[str, Any]:
    kind, given = format.take("type"), format.take("json_schema")
    format.end("response_format.")
    if kind == "text":
        return {}
    names.update({"constraint.json_schema": "response_format.json_schema.schema", "constraint": "response_format"})
    if kind == "json_object":
        return {"constraint": Constraint(json_object=True)}
    if kind != "json_schema":
        raise invalid("response_format.type", f'must be "text", "json_object" or "json_schema"; got {shown(kind)}', "UNSUPPORTED_PARAMETER")
    inner = object_of("response_format.json_schema", given)
    inner.ignore("name", "description", "strict")
    schema = inner.take("schema")
    inner.end("response_format.json_schema.")
    if not isinstance(schema, (dict, bool)):
        raise invalid("response_format.json_schema.schema", f"must be a JSON schema; got {shown(schema)}")
    return {"constraint": Constraint(schema)}


def take_stream(body: Body) -> tuple[bool, bool]:
    """Whether to stream, and whether to end the stream with the usage. Errors: Problem."""
    stream = body.flag("stream")
    given = body.take("stream_options", "object")
    if given is None:
        return stream, False
    if not stream:
        raise invalid("stream_options", "is only for stream = true")
    options = object_of("stream_options", given)
    include_usage = options.flag("include_usage")
    options.ignore("include_obfuscation")
    options.end("stream_options.")
    return stream, include_usage
