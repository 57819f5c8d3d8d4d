# SPDX-License-Identifier: Apache-2.0
"""What is refused, and why."""

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
    """Refuses halves of surrogate pairs, which JSON can write but UTF-8 cannot encode. Errors: Refused."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(name, f"must be text that UTF-8 can encode; got {shown(value)}") from None
    return value
