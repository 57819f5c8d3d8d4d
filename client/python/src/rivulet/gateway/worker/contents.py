# SPDX-License-Identifier: Apache-2.0
"""Values from the text of a part of a reply: the content parsers of Hugging Face's response_template, version 1 (transformers 5.24, "Response
parsing"). Each raises ValueError, with what is wrong, for a text that it cannot read. Tested against transformers by
tests/e2e/gateway/gateway_parts_test.py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NoReturn

import regex

Arguments = dict[str, Any]


def _text(text: str, arguments: Arguments) -> str:
    return text.strip() if arguments.get("strip", True) else text


def _bool(text: str, arguments: Arguments) -> bool:
    return _text(text, arguments).lower() in ("true", "1")


# Every string of JSON, or a bare key with the white space around it.
_BARE_KEY = regex.compile(r'"(?:\\.|[^"\\])*"|(?<=[{,])(\s*)(\w+)(\s*):')


def _quoted(match: Any) -> str:
    before, key, behind = match.groups()
    return match[0] if key is None else f'{before}"{key}"{behind}:'


def _json(text: str, arguments: Arguments) -> Any:
    """unquoted_keys: keys may stand without quotes. string_delims: pairs of marks that quote strings. allow_non_json: other text is a
    string."""
    strings: list[str] = []

    def kept(match: Any) -> str:
        strings.append(match[1])
        return f"\x01{len(strings) - 1}\x02"

    plain, delims = text, arguments.get("string_delims", [])
    if delims and not {"\x01", "\x02"}.isdisjoint(text):
        raise ValueError("a text with string_delims must not hold the characters U+0001 and U+0002")
    for opens, closes in delims:
        plain = regex.sub(f"{regex.escape(opens)}(.*?){regex.escape(closes)}", kept, plain, flags=regex.DOTALL)
    if arguments.get("unquoted_keys"):
        plain = _BARE_KEY.sub(_quoted, plain)
    for number, string in enumerate(strings):
        plain = plain.replace(f"\x01{number}\x02", json.dumps(string))
    try:
        return json.loads(plain)
    except ValueError as error:
        if arguments.get("allow_non_json"):
            return _text(text, arguments)
        raise ValueError(f"is not JSON: {error}") from None


def _of_value(text: str, parser: Arguments | None) -> Any:
    return text if parser is None else parse(text, parser.get("name", "text"), parser.get("args", {}))


def _xml_inline(text: str, arguments: Arguments) -> dict[str, Any]:
    """tag_pattern: a tag, with the groups `key` and `value`. merge_duplicates: several values of a key become a list."""
    pattern = arguments.get("tag_pattern")
    if pattern is None:
        raise ValueError("xml-inline needs a tag_pattern")
    found: dict[str, Any] = {}
    several: set[str] = set()
    for match in regex.finditer(pattern, text, flags=regex.DOTALL):
        groups = match.groupdict()
        key = groups.get("key")
        if key is None:
            raise ValueError("the tag_pattern of xml-inline gives no group `key`")
        value = _of_value(groups.get("value", ""), arguments.get("value_parser"))
        if key not in found or not arguments.get("merge_duplicates", False):
            found[key] = value
            continue
        if key not in several:
            several.add(key)
            found[key] = [found[key]]
        found[key].append(value)
    return found


def _kv_lines(text: str, arguments: Arguments) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in text.split(arguments.get("line_sep", "\n")):
        key, separator, value = _text(line, arguments).partition(arguments.get("kv_sep", ":"))
        if separator:
            found[_text(key, arguments)] = _of_value(_text(value, arguments), arguments.get("value_parser"))
    return found


_NAME = regex.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)*")
_NUMBER = regex.compile(r"-?(?:0|[1-9][0-9]*)(?<fraction>\.[0-9]+)?(?<exponent>[eE][+-]?[0-9]+)?")
_STRING = regex.compile(r"""'((?:[^'\\\n\r]|\\.)*)'|"((?:[^"\\\n\r]|\\.)*)\"""", flags=regex.DOTALL)
_ESCAPE = regex.compile(r"\\(?:u([dD][89abAB]..)\\u([dD][c-fC-F]..)|u(....)|(.))", flags=regex.DOTALL)
_ESCAPES = {**dict(zip("bfnrt", "\b\f\n\r\t")), **{char: char for char in "\\'\"/"}}
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_MOST_INTEGER = 2**53 - 1
_DEEPEST = 100


class _Calls:
    """Reads calls with keyword arguments, [get_weather(city="Paris")]."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> list[dict[str, Any]]:
        self._expect("[")
        calls = self._items("]", self._call)
        self._space()
        if self._at != len(self._text):
            self._fail("there is text behind the closing ]")
        return calls

    def _fail(self, why: str) -> NoReturn:
        raise ValueError(f"{why}, at character {self._at}")

    def _space(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in " \t\n\r":
            self._at += 1

    def _is(self, char: str) -> bool:
        self._space()
        return self._text.startswith(char, self._at)

    def _expect(self, char: str) -> None:
        if not self._is(char):
            self._fail(f"{char} is missing")
        self._at += 1

    def _matched(self, pattern: Any, what: str) -> Any:
        self._space()
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(f"{what} is missing")
        self._at = match.end()
        return match

    def _items(self, close: str, item: Callable[[], Any]) -> list[Any]:
        found: list[Any] = []
        while not self._is(close) or found:
            found.append(item())
            if self._is(close):
                break
            self._expect(",")
        self._at += 1
        return found

    def _named(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            self._fail("a name stands twice")
        return found

    def _call(self) -> dict[str, Any]:
        name = self._matched(_NAME, "the name of a function")[0]
        self._expect("(")
        return {"name": name, "arguments": self._named(self._items(")", lambda: self._pair("=", _NAME, 0)))}

    def _pair(self, between: str, key: Any, depth: int) -> tuple[str, Any]:
        if key is _STRING:
            name = self._string()
        else:
            name = self._matched(key, "the name of an argument")[0]
        self._expect(between)
        return name, self._value(depth)

    def _string(self) -> str:
        match = self._matched(_STRING, "a string")
        body = match[1] if match[1] is not None else match[2]
        if any("\ud800" <= char <= "\udfff" for char in body):
            self._fail("a string holds half of a surrogate pair")
        return str(_ESCAPE.sub(self._unescaped, body))

    def _unescaped(self, match: Any) -> str:
        high, low, code, char = match.groups()
        if char is not None:
            return _ESCAPES[char] if char in _ESCAPES else self._fail(f"the escape {match[0]} is unknown")
        digits = [code] if high is None else [high, low]
        if not all(regex.fullmatch("[0-9a-fA-F]{4}", one) for one in digits):
            self._fail(f"the escape {match[0]} is not 4 hexadecimal digits")
        if code is None:
            return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
        if 0xD800 <= int(code, 16) <= 0xDFFF:
            self._fail("a string holds half of a surrogate pair")
        return chr(int(code, 16))

    def _value(self, depth: int) -> Any:
        """depth: number of lists and objects around the value."""
        if self._is("'") or self._is('"'):
            return self._string()
        if self._is("[") or self._is("{"):
            if depth >= _DEEPEST:
                self._fail(f"more than {_DEEPEST} lists are in one another")
            self._at += 1
            if self._text[self._at - 1] == "[":
                return self._items("]", lambda: self._value(depth + 1))
            return self._named(self._items("}", lambda: self._pair(":", _STRING, depth + 1)))
        match = _NUMBER.match(self._text, self._at)
        if match is not None:
            return self._number(match)
        name = self._matched(_NAME, "a value")[0]
        return _CONSTANTS[name] if name in _CONSTANTS else self._fail(f"{name} is no value")

    def _number(self, match: Any) -> int | float:
        self._at = match.end()
        if match["fraction"] is None and match["exponent"] is None:
            if len(match[0]) > 17 or abs(int(match[0])) > _MOST_INTEGER:
                self._fail("an integer is not between -(2^53 - 1) and 2^53 - 1")
            return int(match[0])
        if math.isinf(float(match[0])):
            self._fail("a number is too large")
        return float(match[0])


PARSERS: dict[str, Callable[[str, Arguments], Any]] = {
    "text": _text, "int": lambda text, arguments: int(_text(text, arguments)), "float": lambda text, arguments: float(_text(text, arguments)),
    "bool": _bool, "json": _json, "xml-inline": _xml_inline, "kv-lines": _kv_lines,
    "python-call-list": lambda text, arguments: _Calls(text).read(),
}  # fmt: skip


def parse(text: str, name: str, arguments: Arguments) -> Any:
    """Errors: ValueError."""
    return PARSERS[name](text, arguments)


_PLACEHOLDER = regex.compile(r"\{(\w+(?:\.\w+)*)\}")


def check_transform(transform: Any) -> None:
    """Errors: ValueError."""
    inner = transform.values() if isinstance(transform, dict) else transform if isinstance(transform, list) else ()
    for one in inner:
        check_transform(one)
    if isinstance(transform, str) and _PLACEHOLDER.search(transform) and not _PLACEHOLDER.fullmatch(transform):
        raise ValueError(f"transform: {json.dumps(transform)} must be one placeholder, or hold none")


def transformed(transform: Any, values: dict[str, Any]) -> Any:
    """The transform with its placeholders, such as "{content.name}", replaced by values. Errors: ValueError."""
    if isinstance(transform, dict):
        return {key: transformed(one, values) for key, one in transform.items()}
    if isinstance(transform, list):
        return [transformed(one, values) for one in transform]
    match = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if match is None:
        return transform
    found: Any = values
    for key in match[1].split("."):
        if not isinstance(found, dict) or key not in found:
            raise ValueError(f"there is no value for {transform}")
        found = found[key]
    return found


def _types(schema: Any) -> list[str]:
    if not isinstance(schema, dict):
        return []
    declared = schema.get("type")
    types = [one for one in (declared if isinstance(declared, list) else [declared]) if isinstance(one, str)]
    for choices in (schema.get("anyOf"), schema.get("oneOf")):
        types += [one for choice in (choices if isinstance(choices, list) else ()) for one in _types(choice)]
    return [*types, "null"] if schema.get("nullable") and "null" not in types else types


def casts_of(tools: list[dict[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """For each tool the JSON types of its arguments, for cast()."""
    found = {}
    for tool in tools:
        parameters = tool["function"].get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        named = properties if isinstance(properties, dict) else {}
        found[tool["function"]["name"]] = {key: types for key, one in named.items() if (types := _types(one))}
    return found


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else None


def _cast_to(text: str, kind: str) -> Any:
    """None: the text is no such value. Errors: ValueError, for the same reason."""
    if kind == "integer":
        return _integer(text)
    if kind == "number":
        number = float(text)
        if not math.isfinite(number):
            return None
        return int(number) if number.is_integer() and "." not in text else number
    if kind == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower())
    if kind in ("object", "array"):
        value = json.loads(text)
        return value if isinstance(value, dict if kind == "object" else list) else None
    return None


def cast(text: str, types: list[str]) -> Any:
    """The value that a text is meant to be: of the first type that it can be, else the text."""
    for kind in types:
        if kind == "null" and text.strip() in ("null", "None"):
            return None
        try:
            value = _cast_to(text, kind)
        except (ValueError, OverflowError):
            continue
        if value is not None:
            return value
    return text
