# SPDX-License-Identifier: Apache-2.0
"""What every HTTP request passes first, whatever its route: it gets an id, it must name a host that the gateway answers to, it must be
clear where its body ends, and it is counted and logged."""

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
_ID = re.compile(rb"[!#-+\-.-\[\]-~]{1,128}")  # what the server takes for one: visible ASCII without " \ and ,


def _id_of(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The id that the client gave, or a new one where it gave none, two, or what is none."""
    given = [value for name, value in headers if name == _ID_HEADER]
    return given[0] if len(given) == 1 and _ID.fullmatch(given[0]) else str(uuid.uuid4()).encode()


_AMBIGUOUS = Problem(400, "the headers Content-Length and Transfer-Encoding must not be given together", "INVALID_HEADERS")
_MOST_DISCARDED = 64 << 20  # bytes of a body


def _is_bounded(headers: Mapping[bytes, bytes]) -> bool:
    """Whether what is left of a body is read and thrown away after an answer that comes before its end. A client that writes all of
    its body before it reads would not see the answer on a connection that is closed."""
    return b"transfer-encoding" not in headers and int(headers.get(b"content-length", b"0")) <= _MOST_DISCARDED  # h11 has checked it


def _wrong_host(headers: Mapping[bytes, bytes], hosts: frozenset[str] | None) -> Problem | None:
    """hosts: as of Edge. A web page whose name its owner has pointed to an address of this machine (DNS rebinding) is no foreign page to
    the browser, but its requests name its own host. Only HTTP/1.0 may come without a Host, and none with two: h11 has checked that."""
    given = headers.get(b"host")
    if hosts is None or given is None:
        return None
    host = named_host(given.decode("latin-1"))
    if host is not None and (host in hosts or is_loopback(host)):
        return None
    said = f"the header Host must be localhost, an address of loopback or a host that --allowed-host names; got {given.decode('latin-1')!r}"
    return Problem(403, said, "HOST_NOT_ALLOWED")


class _Exchange:
    """One request and its answer, for meters and log. status: 499 until there is one: a client that leaves gets none."""

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
    """Around an ASGI application, which finds the id as `request.state.request_id`: that of the request's calls to the server, and
    the header x-request-id of its answer."""

    def __init__(self, app: Any, meters: Meters, log: AccessLog | None, hosts: frozenset[str] | None = None) -> None:
        """hosts: those that requests may name beside loopback's, as named_host() gives them; None: any."""
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

        # RFC 9112, 6.3: h11 reads such a body by one of the two, whoever forwarded it may have by the other.
        ambiguous = b"content-length" in headers and b"transfer-encoding" in headers
        refused = _AMBIGUOUS if ambiguous else _wrong_host(headers, self._hosts)
        self._meters.add("running")
        try:
            await (answer_of(refused) if refused else self._app)(scope, take, tell)
        finally:
            self._meters.add("running", -1)
            exchange.ended(self._meters, self._log)
