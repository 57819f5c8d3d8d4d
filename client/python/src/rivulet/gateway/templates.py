# SPDX-License-Identifier: Apache-2.0
"""Chat templates: Jinja, as the files of a model have them, rendered in a sandbox."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateError(Exception):
    """The template is not valid, or refuses the conversation; the message says why."""


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return time.strftime(form)


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own filter escapes for HTML, which a prompt is not."""
    return json.dumps(value, ensure_ascii=False, **options)


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    """The settings and functions that templates of published models expect."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def render(template: str, messages: Sequence[Mapping[str, Any]], special_tokens: Mapping[str, str]) -> str:
    """The prompt of a conversation that the model is to continue. special_tokens: texts by role ("bos_token").
    Errors: TemplateError."""
    try:
        return str(_compiled(template).render(messages=messages, add_generation_prompt=True, **special_tokens))
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise TemplateError(str(error) or type(error).__name__) from error
