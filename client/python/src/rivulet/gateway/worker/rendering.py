# SPDX-License-Identifier: Apache-2.0
"""Renders chat templates as transformers' apply_chat_template does."""

from __future__ import annotations

import datetime
import functools
import json
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import Refused

MOST_RENDERED = 64 << 20  # bytes of UTF-8
_MOST_STOP_BYTES = 256  # of a stop string; the server's limit
# Contents that no template writes by itself.
_TURNS = [
    {"role": "user", "content": "first"}, {"role": "assistant", "content": "answer-4f1c"}, {"role": "user", "content": "question-9b27"},
]  # fmt: skip


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Replaces Jinja's filter, which escapes for HTML: a prompt is not HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """{% generation %}, with which some templates mark answers for training. It writes its content. Variables that are set inside
    are local to it."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Any) -> Any:
        return caller()


@functools.lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    """With the settings and functions of transformers' apply_chat_template, which templates of published models expect."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


def _refused(error: Exception) -> Refused:
    reason = (str(error) or type(error).__name__)[:1000]
    if isinstance(error, jinja2.TemplateSyntaxError):
        reason = f"line {error.lineno}: {error.message}"
    return Refused("CHAT_TEMPLATE_REFUSED", "messages", f"the model's chat template: {reason}")


@functools.lru_cache(maxsize=32)
def variables(template: str) -> frozenset[str]:
    """The names that the template reads, beside those that it sets. Errors: Refused."""
    try:
        return frozenset(meta.find_undeclared_variables(_environment().parse(template)))
    except MemoryError:
        raise
    except Exception as error:
        raise _refused(error) from None


def render(template: str, values: dict[str, Any]) -> str:
    """The prompt that makes the model continue a conversation. values: "messages", and others of transformers' names, such as "tools", and
    the texts of special tokens by role ("bos_token"). Errors: Refused; MemoryError."""
    found, size = [], 0
    try:
        for piece in _compiled(template).generate({"tools": None, "documents": None, "add_generation_prompt": True, **values}):
            found.append(piece)
            size += len(piece.encode())
            if size > MOST_RENDERED:
                raise Refused("CHAT_TEMPLATE_TOO_HARD", "messages", f"the model's chat template writes more than {MOST_RENDERED} bytes")
    except (Refused, MemoryError):
        raise
    except Exception as error:  # a template can cause nearly all of them
        raise _refused(error) from error
    return "".join(found)


_HERE = "continue-here-6d2e "  # no template writes it by itself; with a space, to see whether the template trims a message


def to_continue(template: str, values: dict[str, Any]) -> str:
    """The prompt that makes the model continue the last message. Errors: Refused; MemoryError."""
    *before, last = values["messages"]
    marked = [*before, {**last, "content": last["content"] + _HERE}]
    prompt, mark, rest = render(template, {**values, "messages": marked, "add_generation_prompt": False}).rpartition(_HERE.rstrip())
    if not mark:
        raise Refused("CHAT_TEMPLATE_REFUSED", "continue_final_message", "the model's chat template does not write the last message")
    return prompt if rest.startswith(" ") else prompt.rstrip()


@functools.lru_cache(maxsize=32)
def turn_end(template: str, special_tokens: str) -> str:
    """The text that the template writes between an answer and the next question, without white space at its end. A model that does
    not end its answer writes this text before it speaks for the user. "": the template has no such text. special_tokens: as JSON.
    Errors: Refused (it cannot be compiled); MemoryError."""
    try:
        _compiled(template)
    except MemoryError:
        raise
    except Exception as error:  # also errors of Python's compiler, which compiles Jinja's output
        raise _refused(error) from None
    try:
        prompt = render(template, {**json.loads(special_tokens), "messages": _TURNS})
    except Refused:
        return ""
    between = prompt.partition(_TURNS[1]["content"])[2].partition(_TURNS[2]["content"])
    end = between[0].rstrip() if between[1] else ""
    return end if len(end.encode()) <= _MOST_STOP_BYTES else ""
