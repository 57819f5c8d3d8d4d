# SPDX-License-Identifier: Apache-2.0
"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}} and an HTTP status."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse, Response

from rivulet.errors import RivuletError
from rivulet.gateway.worker.errors import Refused

# client/cli/batch/batch_result.cc reads the same tables: HTTP statuses by gRPC code (any other: 500), and by reason, which takes
# precedence; error types by status; names in HTTP requests for paths of rivulet.v1 and for the client's arguments.
_TABLES = json.loads(Path(__file__).with_name("problems.json").read_text())
_STATUSES: dict[str, int] = _TABLES["statuses"]
_REASONS: dict[str, int] = _TABLES["reasons"]
_TYPES: dict[str, str] = _TABLES["types"]
_NAMES: dict[str, str] = _TABLES["names"]

_MOST_CHARACTERS = 2000  # of a message, which may quote the request


def _text(said: str) -> str:
    """A text that UTF-8 can encode: names of parameters may hold halves of surrogate pairs, which JSON can write."""
    return said[:_MOST_CHARACTERS].encode(errors="backslashreplace").decode()


class Problem(Exception):
    """An error answer. param: the wrong parameter, if any. code: as `reason` of a RivuletError."""

    def __init__(
        self, status: int, message: str, code: str | None, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _text(message)
        self.code = code
        self.param = None if param is None else _text(param)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(str(self.status), "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def answer_of(problem: Problem) -> Response:
    return JSONResponse(problem.body(), problem.status, problem.headers)


def renamed(path: str, names: Mapping[str, str]) -> str:
    """The name of a field or an argument in the HTTP request, with its index: "stop.strings[3]" is "stop[3]"."""
    match = re.fullmatch(r"([\w.]+)(\[\d+\])?", path)
    if match is None:
        return path
    name, index = match.group(1), match.group(2) or ""
    name = names.get(name) or _NAMES.get(name) or name.removeprefix("sampling.")
    return name + index


def of_error(error: RivuletError, names: Mapping[str, str]) -> Problem:
    """The answer for an error of the server. `names`: parameters that have another name on this route."""
    status, code = _REASONS.get(error.reason) or _STATUSES.get(error.code.name, 500), error.reason or error.code.name
    headers = {}
    if error.retry_delay is not None:
        headers["retry-after"] = str(math.ceil(error.retry_delay))
        headers["retry-after-ms"] = str(math.ceil(error.retry_delay * 1000))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    param, message = renamed(error.field, names) if error.field else None, error.message
    if param and (rest := message.removeprefix(error.field)).startswith((" ", ":", ",")):  # the path in rivulet.v1
        message = param + rest
    elif param == "messages":
        message = f"messages, as the chat template writes them: {message}"
    return Problem(status, message, code, param, headers)


def of_refused(refused: Refused) -> Problem:
    """The answer for a refusal of the worker."""
    said = f"{refused.param}: {refused.message}" if refused.param else refused.message
    return Problem(413 if refused.code == "BODY_TOO_LARGE" else 400, said, refused.code, refused.param)


def of_argument(error: Exception, names: Mapping[str, str]) -> Problem:
    """The answer for a TypeError, ValueError or OverflowError of the client: "name: what is wrong"."""
    argument, colon, rest = str(error).partition(": ")
    if not colon or not re.fullmatch(r"[\w.]+(\[\d+\])?", argument):
        return invalid(None, str(error))
    return invalid(renamed(argument, names), rest)


def invalid(param: str | None, message: str, code: str = "INVALID_PARAMETER") -> Problem:
    return Problem(400, f"{param}: {message}" if param else message, code, param)
