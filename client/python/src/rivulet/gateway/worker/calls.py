# SPDX-License-Identifier: Apache-2.0
"""Constraints of replies to chats: tool calls in the form that the model writes them in, and texts behind the reasoning. The formats are those
of XGrammar's structural tags, of which the server takes a part (docs/constraints.md)."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

from . import replies, response_template
from .errors import Refused, invalid
from .progress import Progress
from .replies import Reading
from .response_template import Field

Format = dict[str, Any]

_NEWLINES = {"type": "regex", "pattern": "\\n{0,2}"}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


@dataclass(frozen=True)
class Style:
    """How a model writes a call: texts around its arguments. opener: where every call begins, and no other text."""

    opener: str
    before: str  # with "NAME"
    behind: str
    schema_style: str  # of structural tags

    def tag(self, name: str, content: Format) -> Format:
        written = json.dumps(name, ensure_ascii=False)[1:-1] if self.schema_style == "json" else name
        return {"type": "tag", "begin": self.before.replace("NAME", written), "content": content, "end": self.behind}

    def arguments(self, schema: Any) -> Format:
        return {"type": "json_schema", "style": self.schema_style, "json_schema": schema}


def _styles(field: Field) -> list[tuple[Style, str]]:
    """What a call may look like, with the arguments {"k": "v"}."""
    xml = Style("<tool_call>", "<tool_call>\n<function=NAME>\n", "\n</function>\n</tool_call>", "qwen_xml")
    found = [(xml, "<parameter=k>\nv\n</parameter>")]
    opens, closes = (one.literals if one is not None else None for one in (field.open, field.close))
    if opens and closes:
        found.append((Style(opens[0], opens[0] + '\n{"name": "NAME", "arguments": ', "}\n" + closes[0], "json"), '{"k": "v"}'))
    return found


@functools.lru_cache(maxsize=32)
def style_of(template: str) -> Style | None:
    """How the model writes calls, if structural tags can: in the way that its response template reads. Errors: Refused."""
    field = response_template.load(template).fields.get("tool_calls")
    reading = Reading(template, {}, True)
    for style, arguments in [] if field is None else _styles(field):
        text = style.before.replace("NAME", "f") + arguments + style.behind
        for call in replies.divide(reading, replies.begin(reading, "")[0], text, "end")["delta"].get("tool_calls", ()):
            if call["function"]["name"] == "f" and call["function"]["arguments"] == '{"k": "v"}':
                return style
    return None


def _any_arguments(style: Style) -> Format:
    return style.arguments({"type": "object"}) if style.schema_style == "json" else {"type": "any_text"}


def _format(form: dict[str, Any]) -> Format:
    """A constraint's form as the format of a structural tag. Errors: Refused."""
    [(kind, value)] = form.items()
    if kind == "json_object":
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if kind == "choices":
        return {"type": "or", "elements": [{"type": "const_string", "value": one} for one in value]}
    if kind == "regex":
        return {"type": "regex", "pattern": value}
    try:
        read = json.loads(value)
        return {"type": "json_schema", "json_schema": read} if kind == "json_schema" else dict(read["format"])
    except (ValueError, RecursionError, TypeError, KeyError):
        raise Refused("CONSTRAINT_INVALID", None, f"{kind} must be JSON") from None


def _tags(style: Style, tools: list[dict[str, Any]], all_strict: bool) -> list[Format]:
    found = []
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        strict = all_strict or function.get("strict") is True
        found.append(style.tag(function["name"], style.arguments(schema) if strict else _any_arguments(style)))
    return found


def _calls(tags: list[Format], parallel: bool) -> Format:
    return {"type": "tags_with_separator", "tags": tags, "separator": "\n", "at_least_one": True, "stop_after_first": not parallel}


def _of_calls(style: Style | None, chosen: Chosen, form: dict[str, Any] | None) -> Format | None:
    """The format of a reply that may call tools; None: any text. Errors: Refused."""
    strict = [index for index, tool in enumerate(chosen.tools) if tool["function"].get("strict") is True]
    if chosen.choice != "auto":
        cause = "tool_choice"
    elif strict:
        cause = f"tools[{strict[0]}].function.strict"
    elif not chosen.parallel:
        cause = "parallel_tool_calls"
    elif form is not None:
        cause = "response_format"
    else:
        return None
    if style is None:
        raise invalid(cause, "cannot be ensured, because this model writes calls in a form that constraints do not have", "UNSUPPORTED_PARAMETER")
    if chosen.choice != "auto":
        named = [tool for tool in chosen.tools if chosen.choice in ("required", tool["function"]["name"])]
        return _calls(_tags(style, named, True), chosen.parallel and chosen.choice == "required")
    tags = _tags(style, chosen.tools, False)
    if form is not None:
        return {"type": "or", "elements": [_format(form), _calls(tags, chosen.parallel)]}
    return {"type": "triggered_tags", "triggers": [style.opener], "tags": tags, "at_least_one": False, "stop_after_first": not chosen.parallel}


@dataclass(frozen=True)
class Chosen:
    """tools: those that the model may call. choice: "auto", "required" or the name of a function. parallel: it may call several."""

    tools: list[dict[str, Any]]
    choice: str
    parallel: bool


@dataclass(frozen=True)
class Reasoning:
    """The texts around the reasoning. within: the prompt has begun it."""

    begin: str
    ends: list[str]
    within: bool


def reasoning_of(reading: Reading, progress: Progress) -> Reasoning | None:
    """None: none is to come, or it does not end with a literal. progress: behind the prompt."""
    fields, state = reading.loaded().fields, progress.state
    for field in (fields[name] for name in replies.NAMES_OF_REASONING if name in fields):
        within = state["current"] == field.name and state["opened"]
        closes, opens = field.close and field.close.literals, field.open and field.open.literals
        if closes and (within or (opens and field.name not in state["ended"])):
            return Reasoning("" if within or not opens else opens[0], closes, within)
    return None


def constraint_of(template: str, chosen: Chosen | None, form: dict[str, Any] | None, reasoning: Reasoning | None) -> dict[str, Any] | None:
    """The fields of the server's Constraint; None: any text. form: {FORM: VALUE} of the request's own. Errors: Refused."""
    format = None if chosen is None else _of_calls(style_of(template), chosen, form)
    after = reasoning.ends if reasoning is not None and reasoning.within else []
    if format is None and (form is None or reasoning is None or after):
        return {**form, "after": after} if form is not None and after else form
    format = format or _format(form or {})
    if after:
        format = _sequence(_NEWLINES, format)
    elif reasoning is not None:
        thought = {"type": "tag", "begin": reasoning.begin, "content": {"type": "any_text"}, "end": reasoning.ends}
        format = _sequence({"type": "optional", "content": _sequence(thought, _NEWLINES)}, format)
    tag = {"structural_tag": json.dumps({"type": "structural_tag", "format": format}, ensure_ascii=False)}
    return {**tag, "after": after} if after else tag
