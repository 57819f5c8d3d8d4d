# SPDX-License-Identifier: Apache-2.0
"""How uvicorn reads connections, and what a client may hold of the gateway with them."""

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
    """connections: at once. request: seconds for a whole request to arrive. reader: seconds in which a client may take nothing of
    an answer that waits for it."""

    connections: int = 1000
    request: float = 60.0
    reader: float = 60.0


def _refusal(limit: int) -> bytes:
    """An answer to whatever a connection beyond the limit will ask."""
    problem = Problem(503, f"the gateway has {limit} connections, as many as it accepts", "TOO_MANY_CONNECTIONS", None, {"retry-after": "1"})
    answer = answer_of(problem)
    headers = b"".join(name + b": " + value + b"\r\n" for name, value in answer.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + headers + b"connection: close\r\n\r\n" + bytes(answer.body)


class Protocol(H11Protocol):
    """h11 parses all that one read has brought, in Python, before the loop does anything else. Of chunks that hold a byte each, the 256
    KiB that asyncio reads at once take half a second."""

    limits: Limits
    meters: Meters

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._refused = False
        self._arriving: asyncio.TimerHandle | None = None  # until a request is there
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
        if not self.cycle.response_complete and self.cycle.more_body:  # the next request was here already, in part
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
        """What waits to be written is dropped: nobody reads it."""
        self.meters.add(f"closed {why}")
        self.transport.abort()


def limited(limits: Limits, meters: Meters) -> type[Protocol]:
    """uvicorn makes its protocols itself."""
    return type("LimitedProtocol", (Protocol,), {"limits": limits, "meters": meters})
