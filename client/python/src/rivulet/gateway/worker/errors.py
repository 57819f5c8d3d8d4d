# SPDX-License-Identifier: Apache-2.0
"""What is refused, and why; and the values of parameters, checked. name: the parameter, for errors. Errors: Refused."""

from __future__ import annotations

import json
from typing import Any


class Refused(Exception):
    """The request is not accepted. code, param, message: as in Problem."""

    def __init__(self, code: str, param: str | None, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.message = message


def invalid(param: str, message: str, code: str = "INVALID_PARAMETER") -> Refused:
    return Refused(code, param, message)


def shown(value: Any) -> str:
    """A value for an error message, shortened."""
    text = json.dumps(value[:80]) if isinstance(value, str) else ""
    for piece in () if text else json.JSONEncoder(default=list).iterencode(value):
        text += piece
        if len(text) > 80:
            break
    return text if len(text) <= 80 else text[:77] + "..."


def encodable(name: str, value: str) -> str:
    """Refuses halves of surrogate pairs, which JSON can write but UTF-8 cannot encode."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(name, f"must be text that UTF-8 can encode; got {shown(value)}") from None
    return value


def text(name: str, value: Any) -> str:
    if value is None:
        raise invalid(name, "is missing", "PARAMETER_MISSING")
    if not isinstance(value, str):
        raise invalid(name, f"must be a string; got {shown(value)}")
    return encodable(name, value)


def flag(name: str, value: Any, default: bool = False) -> bool:
    """default: the value of an absent one."""
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"must be true or false; got {shown(value)}")
    return default if value is None else value


def members(name: str, value: Any) -> dict[str, Any]:
    """Those of an object that are not null."""
    if not isinstance(value, dict):
        raise invalid(name, f"must be an object; got {shown(value)}")
    return {key: one for key, one in value.items() if one is not None}


def only(name: str, value: Any, *allowed: Any) -> None:
    """Refuses a value other than these; it may be absent."""
    if value is not None and not any(value == one and type(value) is type(one) for one in allowed):
        choices = " or ".join(shown(one) for one in allowed)
        raise invalid(name, f"only {choices} is supported; got {shown(value)}", "UNSUPPORTED_PARAMETER")
