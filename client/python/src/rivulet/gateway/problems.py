# SPDX-License-Identifier: Apache-2.0
"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}} and an HTTP status."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from rivulet.errors import Code, RivuletError
from rivulet.gateway.worker import Refused

_STATUSES = {
    Code.CANCELLED: 499, Code.INVALID_ARGUMENT: 400, Code.OUT_OF_RANGE: 400, Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403, Code.NOT_FOUND: 404, Code.ALREADY_EXISTS: 409, Code.ABORTED: 409,
    Code.FAILED_PRECONDITION: 409, Code.RESOURCE_EXHAUSTED: 429, Code.UNIMPLEMENTED: 501, Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}  # fmt: skip  (any other: 500)
_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error"}

# Paths in the messages of rivulet.v1, and arguments of the client, that have other names here.
_NAMES = {
    "num_samples": "n", "prompt.text": "prompt", "prompt.tokens": "prompt", "content.text": "prompt", "content.tokens": "prompt",
    "content": "prompt", "text": "prompt", "ids": "prompt",
    "stop.strings": "stop", "stop.token_ids": "stop_token_ids", "stop.ignore_eos": "ignore_eos",
    "logprobs.top_n": "top_logprobs", "session.position": "position", "session.mark": "mark", "to.position": "position",
    "to.mark": "mark", "id": "session_id", "session.session_id": "session_id",
}  # fmt: skip


_MOST_CHARACTERS = 2000  # of a message, which may quote what was sent


def _text(said: str) -> str:
    """What UTF-8 can encode: names of parameters may hold halves of surrogate pairs, which JSON can spell out."""
    return said[:_MOST_CHARACTERS].encode(errors="backslashreplace").decode()


class Problem(Exception):
    """An answer that is an error. param: the parameter that is wrong, if one is. code: as `reason` of a RivuletError."""

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
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
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
    """The answer for an error of the server. `names`: parameters that this route calls otherwise."""
    status, code = _STATUSES.get(error.code, 500), error.reason or error.code.name
    if error.reason == "MESSAGE_TOO_LARGE":
        status = 413
    headers = {}
    if error.retry_delay is not None:
        headers["retry-after"] = str(math.ceil(error.retry_delay))
        headers["retry-after-ms"] = str(math.ceil(error.retry_delay * 1000))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    param, message = renamed(error.field, names) if error.field else None, error.message
    if param and (rest := message.removeprefix(error.field)).startswith((" ", ":")):  # the server names its own field
        message = param + rest
    elif param == "messages":
        message = f"messages, as the chat template writes them: {message}"
    return Problem(status, message, code, param, headers)


def of_refused(refused: Refused) -> Problem:
    """The answer for what the worker refuses."""
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
