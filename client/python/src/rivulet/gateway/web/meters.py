# SPDX-License-Identifier: Apache-2.0
"""The gateway's counters, in memory that its processes share, and the pages GET /metrics."""

from __future__ import annotations

import asyncio
import http.client
import mmap
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from rivulet.gateway.web.problems import Problem, answer_of

STATUSES = (200, 204, 400, 401, 403, 404, 405, 409, 413, 415, 429, 499, 500, 501, 503, 504)  # any other: "other"
BOUNDS = (0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds
CLOSED = ("request", "reader")  # reasons of closed connections: timeout of a request, or of reading an answer
OTHER = "other"  # the page, the documentation, and requests that no route takes
_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_BYTES, _PATIENCE = 16 << 20, 2.0  # limit of the replica's page; seconds to wait for it
_WATCH_SECONDS, _READER_SECONDS = 5.0, 5.0  # between looks at the server's health; for one who asks for the page of --metrics-listen


class Meters:
    """The numbers of one process, in its row of the shared memory. Thread: the event loop's."""

    def __init__(self, routes: tuple[str, ...], memory: mmap.mmap | bytearray | None = None, process: int = 0, processes: int = 1) -> None:
        """memory: size() bytes for each process."""
        self._routes = (*routes, OTHER)
        self._index = {name: i for i, name in enumerate(self._names())}
        raw = bytearray(8 * len(self._index)) if memory is None else memory
        self._all = np.frombuffer(raw, np.float64, processes * len(self._index)).reshape(processes, -1)
        self._own = self._all[process]
        for name in ("running", "connections", "serving"):  # may be left from an earlier process
            self._own[self._index[name]] = 0

    @staticmethod
    def size(routes: tuple[str, ...]) -> int:
        return 8 * len(list(Meters(routes)._names()))

    def _names(self) -> Iterator[str]:
        yield from ("running", "connections", "serving", "refused", "sent", "lost", "seconds", *(f"closed {why}" for why in CLOSED))
        yield from (f"below {bound}" for bound in (*BOUNDS, "+Inf"))
        yield from (f"{route} {status}" for route in self._routes for status in (*STATUSES, OTHER))

    def add(self, name: str, value: float = 1) -> None:
        """name: "running", "connections", "refused" (connections), "sent" (bytes), "lost" (lines), or "closed " and one of CLOSED."""
        self._own[self._index[name]] += value

    async def watch(self, serves: Callable[[], Awaitable[bool]]) -> None:
        """Asks `serves` now and then whether the server serves."""
        while True:
            self._own[self._index["serving"]] = await serves()
            await asyncio.sleep(_WATCH_SECONDS)

    def ended(self, route: str, status: int, seconds: float) -> None:
        self.add(f"{route} {status if status in STATUSES else OTHER}")
        self.add("seconds", seconds)
        self.add(f"below {next((bound for bound in BOUNDS if seconds <= bound), '+Inf')}")

    def page(self) -> str:
        """The numbers over all processes, in the text format of Prometheus."""
        totals = self._all.sum(axis=0)
        found: list[str] = []

        def show(name: str, kind: str, help: str, values: Iterator[tuple[str, float]]) -> None:
            found.extend((f"# HELP rivulet_gateway_{name} {help}", f"# TYPE rivulet_gateway_{name} {kind}"))
            found.extend(f"rivulet_gateway_{name}{labels} {value:.17g}" for labels, value in values)

        def one(key: str) -> Iterator[tuple[str, float]]:
            yield "", totals[self._index[key]]

        statuses = ((route, status, totals[self._index[f"{route} {status}"]]) for route in self._routes for status in (*STATUSES, OTHER))
        show("requests_total", "counter", "HTTP requests that ended, by route and status.",
             ((f'{{route="{route}",status="{status}"}}', value) for route, status, value in statuses if value))  # fmt: skip
        show("requests_running", "gauge", "HTTP requests that have not ended.", one("running"))
        show("request_duration_seconds", "histogram", "From the head of a request to the end of its answer.", self._histogram(totals))
        show("server_serving", "gauge", "1 if the server's health was SERVING a few seconds ago; 0: it was not, or no server answered.",
             iter([("", self._all[:, self._index["serving"]].min())]))  # fmt: skip
        show("sent_bytes_total", "counter", "Bytes of the bodies of answers.", one("sent"))
        show("connections", "gauge", "Open connections.", one("connections"))
        show("connections_refused_total", "counter", "Connections beyond --max-connections.", one("refused"))
        show("connections_closed_total", "counter", "Connections that were closed because a time was over.",
             ((f'{{reason="{why}"}}', totals[self._index[f"closed {why}"]]) for why in CLOSED))  # fmt: skip
        show("access_lines_lost_total", "counter", "Lines of the access log that were dropped because nobody read them in time.", one("lost"))
        return "\n".join(found) + "\n"

    def _histogram(self, totals: np.ndarray) -> Iterator[tuple[str, float]]:
        """Labels begin with the suffix of the name."""
        below = 0.0
        for bound in (*BOUNDS, "+Inf"):
            below += totals[self._index[f"below {bound}"]]
            yield f'_bucket{{le="{bound}"}}', below
        yield "_sum", totals[self._index["seconds"]]
        yield "_count", below


def _fetched(address: str) -> bytes:
    """The page of a server's --metrics-listen. Errors: OSError, HTTPException."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.removeprefix("[").removesuffix("]"), int(port), timeout=_PATIENCE)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        raw = answer.read(_MOST_BYTES + 1)
    finally:
        connection.close()
    if answer.status != 200 or len(raw) > _MOST_BYTES:
        raise OSError(f"it answers {answer.status} with {len(raw)} bytes; allowed: 200 and at most {_MOST_BYTES}")
    return raw if raw.endswith(b"\n") else raw + b"\n"


async def show(request: Request) -> Response:
    """The server's current metrics, and the gateway's own. Fails without the server's metrics, because the page would look like
    an idle server."""
    address, meters = request.app.state.metrics_target, request.app.state.meters
    try:
        found = await asyncio.to_thread(_fetched, address)
    except (OSError, http.client.HTTPException) as error:
        return answer_of(Problem(503, f"the metrics of the server at {address} cannot be read: {error}", "METRICS_UNAVAILABLE"))
    return Response(found + meters.page().encode(), media_type=_TYPE)


def serve(listener: socket.socket, meters: Meters) -> None:
    """Answers GET /metrics on a socket that listens, on a thread, with the gateway's own metrics."""

    class Page(BaseHTTPRequestHandler):
        timeout = _READER_SECONDS

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == "/metrics"
            page = (meters.page() if found else "The metrics are at /metrics.\n").encode()
            self.send_response(200 if found else 404)
            self.send_header("content-type", _TYPE)
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(listener.getsockname()[:2], Page, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    threading.Thread(target=server.serve_forever, daemon=True).start()
