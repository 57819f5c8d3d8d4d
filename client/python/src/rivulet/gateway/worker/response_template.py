# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's response_template, version 1: where the parts of a reply begin and end, and how each is read."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

import regex

from . import contents
from .errors import Refused

try:
    from re import _parser as sre  # type: ignore[attr-defined]
except ImportError:
    import sre_parse as sre

_KEYS = {"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"}
_FIELD_KEYS = {
    "open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join", "optional", "transform", "transform_each",
}  # fmt: skip


_SPACE = ("[(IN, [(CATEGORY, CATEGORY_SPACE)])]", f"[(LITERAL, {ord(chr(10))})]")  # \s and \n, repeated


def _first(tree: Any) -> tuple[set[str], bool] | None:
    """The characters with which a match begins, and whether white space may stand before them. None: not known."""
    spaced = False
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            return {chr(argument)}, spaced
        if name == "MAX_REPEAT" and argument[0] == 0 and str(argument[2]) in _SPACE:
            spaced = True
            continue
        is_plain = name == "SUBPATTERN" and argument[1] == argument[2] == 0  # no flags
        inner = [_first(one) for one in (argument[1] if name == "BRANCH" else [argument[3]] if is_plain else ())]
        known = [one for one in inner if one is not None]
        if not known or len(known) < len(inner):
            return None
        return set().union(*(chars for chars, _ in known)), spaced or any(one for _, one in known)
    return None


def _first_of(pattern: str) -> tuple[set[str] | None, bool]:
    """As Anchor.first and spaced."""
    try:
        tree = sre.parse(pattern)
    except Exception:  # the module regex knows more
        return None, False
    return (None if tree.state.flags & sre.SRE_FLAG_IGNORECASE else _first(tree)) or (None, False)


@dataclass(frozen=True)
class Anchor:
    """literals: None for a pattern. first: the characters with which it begins, behind white space that it may begin with if `spaced`; None:
    not known."""

    pattern: Any
    literals: list[str] | None
    first: set[str] | None
    spaced: bool = False


def _anchor(spec: dict[str, Any], literal: str, pattern: str) -> Anchor | None:
    """Errors: ValueError."""
    if literal in spec and pattern in spec:
        raise ValueError(f"{literal} and {pattern} must not both be given")
    if pattern in spec:
        try:
            return Anchor(regex.compile(spec[pattern], regex.DOTALL), None, *_first_of(spec[pattern]))
        except (regex.error, TypeError) as error:
            raise ValueError(f"{pattern}: {error}") from None
    if literal not in spec:
        return None
    given = spec[literal] if isinstance(spec[literal], list) else [spec[literal]]
    if not given or not all(isinstance(one, str) and one for one in given):
        raise ValueError(f"{literal} must be a text or an array of texts, none of them empty")
    any_of = "|".join(regex.escape(one) for one in sorted(set(given), key=len, reverse=True))
    return Anchor(regex.compile(any_of, regex.DOTALL), given, {one[0] for one in given})


@dataclass(frozen=True)
class Field:
    """streams: its text is the value, and is told as it comes."""

    name: str
    open: Anchor | None
    close: Anchor | None
    content: str
    content_args: dict[str, Any]
    repeats: bool
    join: str | None
    optional: bool
    transform: Any
    transform_each: bool

    @property
    def streams(self) -> bool:
        return self.content == "text" and self.transform is None

    @property
    def strips(self) -> bool:
        return bool(self.content_args.get("strip", True))

    def value(self, body: str, captures: dict[str, str]) -> Any:
        """Errors: ValueError."""
        value = contents.parse(body, self.content, self.content_args)
        if self.transform is None:
            return value
        if not self.transform_each:
            return contents.transformed(self.transform, {**captures, "content": value})
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise ValueError("transform_each needs an array of objects")
        return [contents.transformed(self.transform, {**captures, **one}) for one in value]


def _field(name: str, spec: Any) -> Field:
    """Errors: ValueError."""
    if not isinstance(spec, dict):
        raise ValueError("must be an object")
    if unknown := sorted(set(spec) - _FIELD_KEYS):
        raise ValueError(f"{unknown[0]} is unknown")
    content, join, transform = spec.get("content", "text"), spec.get("join"), spec.get("transform")
    if content not in contents.PARSERS:
        raise ValueError(f"content must be one of {', '.join(contents.PARSERS)}; got {json.dumps(content)}")
    if join is not None and not (isinstance(join, str) and spec.get("repeats", False)):
        raise ValueError("join must be a text, beside repeats = true")
    each = spec.get("transform_each", False)
    if not isinstance(each, bool) or (each and transform is None):
        raise ValueError("transform_each must be true or false, beside transform")
    opens, closes = _anchor(spec, "open", "open_pattern"), _anchor(spec, "close", "close_pattern")
    contents.check_transform(transform)
    if transform is None and any(one is not None and one.pattern.groupindex for one in (opens, closes)):
        raise ValueError("a pattern has named groups, but there is no transform to take them")
    arguments = spec.get("content_args", {})
    if not isinstance(arguments, dict):
        raise ValueError("content_args must be an object")
    return Field(name, opens, closes, content, arguments, bool(spec.get("repeats", False)), join, bool(spec.get("optional", True)), transform, each)


@dataclass(frozen=True)
class ResponseTemplate:
    """implicit: the field of the text that stands in no other."""

    fields: dict[str, Field]
    start: Anchor
    implicit: str | None

    def begun(self, prompt: str) -> str:
        """What the prompt has of the reply: the text behind the last start anchor; without one, all."""
        end = 0
        for match in self.start.pattern.finditer(prompt):
            end = match.end()
        return prompt[end:]


def _loaded(spec: Any) -> ResponseTemplate:
    """Errors: ValueError."""
    if not isinstance(spec, dict) or spec.get("version", 1) != 1:
        raise ValueError("it must be an object of version 1")
    if unknown := sorted(set(spec) - _KEYS):
        raise ValueError(f"{unknown[0]} is unknown")
    if not isinstance(spec.get("defaults", {}), dict):
        raise ValueError("defaults must be an object")
    given = spec.get("fields", {})
    if not isinstance(given, dict) or not given:
        raise ValueError("fields must be an object that is not empty")
    fields = {}
    for name, one in given.items():
        try:
            fields[name] = _field(name, one)
        except ValueError as error:
            raise ValueError(f"fields.{name}: {error}") from None
    implicit = [name for name, field in fields.items() if field.open is None]
    if len(implicit) > 1:
        raise ValueError(f"only one field may have no open; got {', '.join(implicit)}")
    start = _anchor(spec, "start_anchor", "start_anchor_pattern")
    if start is None:
        raise ValueError("start_anchor or start_anchor_pattern is missing")
    return ResponseTemplate(fields, start, implicit[0] if implicit else None)


@functools.lru_cache(maxsize=32)
def load(text: str, without: str = "") -> ResponseTemplate:
    """text: as JSON. without: the name of a field that is left out. Errors: Refused."""
    try:
        found = _loaded(json.loads(text))
    except MemoryError:
        raise
    except Exception as error:  # any value may stand anywhere
        raise Refused("RESPONSE_TEMPLATE_INVALID", "model", f"the model's response template: {error}") from None
    fields = {key: field for key, field in found.fields.items() if key != without}
    return ResponseTemplate(fields, found.start, None if found.implicit == without else found.implicit)
