# SPDX-License-Identifier: Apache-2.0
"""The first layer for every HTTP request of any route. The request gets an id, is counted and logged. Its Host must be a host of the
gateway, and the end of its body must be unambiguous."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from rivulet.gateway.web.access_log import AccessLog
from rivulet.gateway.web.addresses import is_loopback, named_host
from rivulet.gateway.web.meters import OTHER, Meters
from rivulet.gateway.web.problems import Problem, answer_of

_ID_HEADER = b"x-request-id"
_ID = re.compile(rb"[!#-+\-.-\[\]-~]{1,128}")  # ids that the server accepts: visible ASCII without " \ and ,


def _id_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The client's id; a new id if the client sent none, two, or an invalid one."""
    given = [value for name, value in headers if name == _ID_HEADER]
    return given[0] if len(given) == 1 and _ID.fullmatch(given[0]) else str(uuid.uuid4()).encode()


_AMBIGUOUS = Problem(400, "the headers Content-Length and Transfer-Encoding must not be given together", "INVALID_HEADERS")
_MOST_DISCARDED = 64 << 20  # bytes of a body


def _is_bounded(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the rest of a body is read and discarded after an early answer. A client that writes its whole body before it reads
    would not see the answer if the connection were closed."""
    return b"transfer-encoding" not in headers and int(headers.get(b"content-length", b"0")) <= _MOST_DISCARDED  # h11 has checked it


def _wrong_host(headers: Mapping[bytes, bytes], hosts: frozenset[str] | None) -> Problem | None:
    """hosts: as in Edge. A web page's owner may point its name to an address of this machine (DNS rebinding). To the browser it is then
    not a foreign page, but its requests name its own host. h11 has checked that only HTTP/1.0 lacks a Host, and that no request has
    two."""
    given = headers.get(b"host")
    if hosts is None or given is None:
        return None
    host = named_host(given.decode("latin-1"))
    if host is not None and (host in hosts or is_loopback(host)):
        return None
    said = f"the header Host must be localhost, an address of loopback or a host that --allowed-host names; got {given.decode('latin-1')!r}"
    return Problem(403, said, "HOST_NOT_ALLOWED")


class _Exchange:
    """One request and its answer, for meters and log. status: 499 until there is an answer, because a client that leaves
    gets none."""

    def __init__(self, scope: Any, id: str) -> None:
        self._scope = scope
        self._id = id
        self._began, self._first = time.monotonic(), 0.0
        self.status, self.sent, self.whole = 499, 0, False

    def sees(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self._first = message["status"], time.monotonic()
        else:
            self.sent += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)

    def ended(self, meters: Meters, log: AccessLog | None) -> None:
        seconds, state = time.monotonic() - self._began, self._scope["state"]
        meters.add("sent", self.sent)
        meters.ended(state.get("route", OTHER), self.status, seconds)
        if log is None:
            return
        client = self._scope.get("client")
        written = log.write(
            request_id=self._id, method=self._scope["method"], path=self._scope["path"], status=self.status, bytes=self.sent, whole=self.whole,
            first_byte_seconds=round(self._first - self._began, 6) if self._first else None, duration_seconds=round(seconds, 6),
            peer=f"{client[0]}:{client[1]}" if client else None,
        )  # fmt: skip
        if not written:
            meters.add("lost")


class Edge:
    """Wraps an ASGI application, which finds the id as `request.state.request_id`. The request's calls to the server have the same
    id, and so has the header x-request-id of its answer."""

    def __init__(self, app: Any, meters: Meters, log: AccessLog | None, hosts: frozenset[str] | None = None) -> None:
        """hosts: hosts that requests may name besides loopback hosts, as named_host() returns them; None: any."""
        self._app = app
        self._hosts = hosts
        self._meters = meters
        self._log = log

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id, headers = _id_of(scope["headers"]), dict(scope["headers"])
        scope.setdefault("state", {})["request_id"] = id.decode()
        exchange = _Exchange(scope, id.decode())
        own = [(_ID_HEADER, id)]
        closing = [] if _is_bounded(headers) else [(b"connection", b"close")]

        async def take() -> Any:
            message = await receive()
            if not message.get("more_body", False):
                closing.clear()
            return message

        async def tell(message: Any) -> None:
            exchange.sees(message)
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *own, *closing]}
            await send(message)

        # RFC 9112, 6.3: h11 reads such a body by one of the two headers; a proxy may have read it by the other.
        ambiguous = b"content-length" in headers and b"transfer-encoding" in headers
        refused = _AMBIGUOUS if ambiguous else _wrong_host(headers, self._hosts)
        self._meters.add("running")
        try:
            await (answer_of(refused) if refused else self._app)(scope, take, tell)
        finally:
            self._meters.add("running", -1)
            exchange.ended(self._meters, self._log)
