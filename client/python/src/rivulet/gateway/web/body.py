# SPDX-License-Identifier: Apache-2.0
"""The JSON object of a request, read parameter by parameter. Parameters that are left at the end are refused by
name."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Union

from rivulet.gateway.web.problems import invalid
from rivulet.gateway.worker import errors
from rivulet.gateway.worker.errors import encodable, shown

_MOST_SESSION_IDS = 1 << 15  # the client hashes ids one by one; a session takes more ids in the next call

Prompt = Union[str, Sequence[int]]
PROMPT_TYPES = ("string", "array")


class Body:
    """The parameters from worker.parse(). A parameter that is null counts as absent. Every method removes its parameter. Errors:
    Problem; Refused."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._left = {name: value for name, value in values.items() if value is not None}

    def take(self, name: str, *types: str) -> Any:
        """The value, of any type, or None. types: the JSON types that the caller allows, for routes/openapi.py."""
        return self._left.pop(name, None)

    def text(self, name: str, path: str = "") -> str | None:
        """A text parameter. path: path of the object, for errors."""
        value = self.take(name)
        return None if value is None else errors.text(f"{path}.{name}" if path else name, value)

    def required_text(self, name: str, path: str = "") -> str:
        return errors.text(f"{path}.{name}" if path else name, self.take(name))

    def flag(self, name: str) -> bool:
        return errors.flag(name, self.take(name))

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise invalid(name, f"must be an integer from {low} to {high}; got {shown(value)}")
        return value

    def number(self, name: str, most: float) -> float | None:
        """A number from 0 to `most`."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise invalid(name, f"must be a number from 0 to {most:g}; got {shown(value)}")
        return float(value)

    def ignore(self, *names: str) -> None:
        """Takes parameters that do not change the result."""
        for name in names:
            self.take(name)

    def only(self, name: str, *allowed: Any) -> None:
        """Takes a parameter of which the gateway supports only these values."""
        errors.only(name, self.take(name), *allowed)

    def end(self, path: str = "") -> None:
        """Refuses parameters that were not read, because they could change the result. path: prefix of the names."""
        for name in self._left:
            raise invalid(path + name, "the parameter is not supported", "UNSUPPORTED_PARAMETER")


def object_of(name: str, value: Any) -> Body:
    """The members of a parameter that is an object. Errors: Refused."""
    return Body(errors.members(name, value))


def one_prompt(name: str, value: Any) -> Prompt:
    """A text or token ids. Errors: Problem."""
    if isinstance(value, str):
        return encodable(name, value)
    if not isinstance(value, array):
        raise invalid(name, f"must be a string or an array of token ids; got {shown(value)}")
    return value


def own_prompt(value: Any) -> Prompt:
    """The prompt of a call on a session; absent, it is empty. Errors: Problem."""
    given = one_prompt("prompt", array("i") if value is None else value)
    if not isinstance(given, str) and len(given) > _MOST_SESSION_IDS:
        raise invalid("prompt", f"must be at most {_MOST_SESSION_IDS} token ids on a session; got {len(given)}")
    return given


def prompts(value: Any) -> list[Prompt]:
    """One prompt, or several. Errors: Problem."""
    if not isinstance(value, list):
        return [one_prompt("prompt", value)]
    return [one_prompt(f"prompt[{index}]", entry) for index, entry in enumerate(value)]
