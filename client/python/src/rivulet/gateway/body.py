# SPDX-License-Identifier: Apache-2.0
"""The JSON object of a request, read parameter by parameter. What is left over at the end is refused by name."""

from __future__ import annotations

import json
from typing import Any, Union

from rivulet.gateway.problems import Problem, invalid

MOST_BYTES = 8 << 20
MOST_PROMPTS = 64

Prompt = Union[str, list[int]]


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def parse(raw: bytes) -> Body:
    """Errors: Problem."""
    try:
        value = json.loads(raw or b"{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Problem(400, f"the body is not valid JSON: {error}", "INVALID_JSON") from None
    if not isinstance(value, dict):
        raise Problem(400, f"the body must be a JSON object; got {shown(value)}", "INVALID_JSON")
    return Body(value)


def shown(value: Any) -> str:
    """A value for an error message, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _encodable(name: str, value: str) -> str:
    """JSON can spell out halves of surrogate pairs, which are no text. Errors: Problem."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(name, f"must be text that UTF-8 can encode; got {shown(value)}") from None
    return value


class Body:
    """A parameter that is null counts as absent. Every method takes the parameter out. Errors: Problem."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._left = {name: value for name, value in values.items() if value is not None}

    def take(self, name: str) -> Any:
        """The value, of any type, or None."""
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise invalid(name, f"must be a string; got {shown(value)}")
        return None if value is None else _encodable(name, value)

    def required_text(self, name: str, path: str = "") -> str:
        value = self.text(name)
        if value is None:
            raise invalid(f"{path}.{name}" if path else name, "is missing", "PARAMETER_MISSING")
        return value

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise invalid(name, f"must be true or false; got {shown(value)}")
        return bool(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise invalid(name, f"must be an integer from {low} to {high}; got {shown(value)}")
        return value

    def number(self, name: str, most: float) -> float | None:
        """Of 0 to `most`."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise invalid(name, f"must be a number from 0 to {most:g}; got {shown(value)}")
        return float(value)

    def ignore(self, *names: str) -> None:
        """Parameters that do not change the result."""
        for name in names:
            self.take(name)

    def only(self, name: str, *allowed: Any) -> None:
        """A parameter of which the gateway has only these values."""
        value = self.take(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
            choices = " or ".join(shown(one) for one in allowed)
            raise invalid(name, f"only {choices} is supported; got {shown(value)}", "UNSUPPORTED_PARAMETER")

    def end(self, path: str = "") -> None:
        """Refuses what was not read: it could change the result. path: before the names."""
        for name in self._left:
            raise invalid(path + name, "the parameter is not supported", "UNSUPPORTED_PARAMETER")


def one_prompt(name: str, value: Any) -> Prompt:
    """A text or token ids. Errors: Problem."""
    if isinstance(value, str):
        return _encodable(name, value)
    if not isinstance(value, list):
        raise invalid(name, f"must be a string or an array of token ids; got {shown(value)}")
    for index, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise invalid(f"{name}[{index}]", f"must be a token id; got {shown(token)}")
    return value


def prompts(value: Any) -> list[Prompt]:
    """One prompt, or several: an array whose first entry is a string or an array. Errors: Problem."""
    if not isinstance(value, list) or not value or not isinstance(value[0], (str, list)):
        return [one_prompt("prompt", value)]
    if len(value) > MOST_PROMPTS:
        raise invalid("prompt", f"must be at most {MOST_PROMPTS} prompts; got {len(value)}")
    return [one_prompt(f"prompt[{index}]", entry) for index, entry in enumerate(value)]
