# SPDX-License-Identifier: Apache-2.0
"""Reads connections for uvicorn, and limits the resources that a client can hold with them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from rivulet.gateway.web.meters import Meters
from rivulet.gateway.web.problems import Problem, answer_of

_READ_BYTES = 8 << 10


@dataclass(frozen=True)
class Limits:
    """connections: maximum number at once. request: seconds for a whole request to arrive. reader: seconds for which a client may
    read nothing of a waiting answer."""

    connections: int = 1000
    request: float = 60.0
    reader: float = 60.0


def _refusal(limit: int) -> bytes:
    """The answer to every request of a connection beyond the limit."""
    problem = Problem(503, f"the gateway has {limit} connections, as many as it accepts", "TOO_MANY_CONNECTIONS", None, {"retry-after": "1"})
    answer = answer_of(problem)
    headers = b"".join(name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + headers + b"connection: close\r\n\r\n" + bytes(answer.body)


class Protocol(H11Protocol):
    """h11 parses all bytes of one read, in Python, before the event loop does anything else. With chunks of one byte, the 256 KiB that
    asyncio reads at once take half a second."""

    limits: Limits
    meters: Meters

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._refused = False
        self._arriving: asyncio.TimerHandle | None = None  # until a request has arrived
        self._unread: asyncio.TimerHandle | None = None  # until the client reads

    def connection_made(self, transport: Any) -> None:
        transport.max_size = _READ_BYTES
        super().connection_made(transport)
        self.meters.add("connections")
        self._refused = len(self.connections) > self.limits.connections
        if self._refused:
            self.meters.add("refused")
            transport.write(_refusal(self.limits.connections))
            transport.close()
            return
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self.meters.add("connections", -1)
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            self._await_request()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body and self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete and self.cycle.more_body:  # a part of the next request had arrived already
            self._await_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.limits.reader, self._close, "reader")

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        super().resume_writing()

    def _await_request(self) -> None:
        if self._arriving is None:
            self._arriving = self.loop.call_later(self.limits.request, self._close, "request")

    def _stop_timers(self) -> None:
        for timer in (self._arriving, self._unread):
            if timer is not None:
                timer.cancel()
        self._arriving = self._unread = None

    def _close(self, why: str) -> None:
        """Drops the bytes that wait to be written, because nobody reads them."""
        self.meters.add(f"closed {why}")
        self.transport.abort()


def limited(limits: Limits, meters: Meters) -> type[Protocol]:
    """Returns a protocol class with these limits, because uvicorn makes its protocols itself."""
    return type("LimitedProtocol", (Protocol,), {"limits": limits, "meters": meters})
