# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: routes, and answers for requests without a route."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rivulet.gateway import page
from rivulet.gateway.process.worker_pool import WorkerPool
from rivulet.gateway.routes import chat, completions, images, models, openapi, session_routes as sessions, tokenizing
from rivulet.gateway.routes.openapi import RouteRow
from rivulet.gateway.upstream.key_cache import GatewayClient
from rivulet.gateway.web import meters
from rivulet.gateway.web.access_log import AccessLog
from rivulet.gateway.web.asgi_edge import Edge
from rivulet.gateway.web.exchange import Ignored, encoded, endpoint
from rivulet.gateway.web.meters import Meters
from rivulet.gateway.web.problems import Problem, answer_of

_SESSION = "/rivulet/v1/sessions/{session_id}"
_MESSAGES = [{"role": "user", "content": ""}]

_ROWS = (
    RouteRow("GET", "/health", models.health),
    RouteRow("GET", "/version", models.version),
    RouteRow("GET", "/rivulet/v1/load", models.load),
    RouteRow("GET", "/v1/models", models.list_models),
    RouteRow("GET", "/v1/models/{model}", models.get_model),
    RouteRow("POST", "/v1/completions", completions.create, [{"model": ""}]),
    RouteRow("POST", "/v1/chat/completions", chat.create, [{"model": "", "messages": _MESSAGES}]),
    RouteRow("POST", "/v1/images/generations", images.create, [{"model": ""}]),
    RouteRow("POST", "/tokenize", tokenizing.tokenize, [{"prompt": ""}, {"messages": _MESSAGES}]),
    RouteRow("POST", "/detokenize", tokenizing.detokenize, [{"tokens": [0]}]),
    RouteRow("GET", "/tokenizer_info", tokenizing.tokenizer_info),
    RouteRow("POST", "/rivulet/v1/sessions", sessions.open_session),
    RouteRow("GET", "/rivulet/v1/sessions", sessions.list_sessions),
    RouteRow("GET", _SESSION, sessions.get_session),
    RouteRow("DELETE", _SESSION, sessions.close_session),
    RouteRow("POST", f"{_SESSION}/append", sessions.append),
    RouteRow("POST", f"{_SESSION}/generate", sessions.generate),
    RouteRow("POST", f"{_SESSION}/fork", sessions.fork),
    RouteRow("POST", f"{_SESSION}/rewind", sessions.rewind),
)


PATHS = tuple(sorted({row.path for row in _ROWS}))


@dataclass(frozen=True)
class Settings:
    """log: None: no log. most_body_bytes: limit on a request's body. metrics_target: the server's --metrics-listen; without it
    there is no GET /metrics. cors_origins: origins of foreign web pages that may call, or "*" for all. hosts: as in Edge. ignored: parameters."""

    meters: Meters
    log: AccessLog | None = None
    most_body_bytes: int = 8 << 20
    metrics_target: str = ""
    cors_origins: tuple[str, ...] = ()
    hosts: frozenset[str] | None = None
    ignored: frozenset[str] = frozenset()


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: "there is no such route", 405: "the route does not have this method"}.get(error.status_code, error.detail)
    if f"/v1{request.url.path}" in PATHS:
        said += f"; there is /v1{request.url.path}: a client's base URL ends with /v1"
    code = {404: "ROUTE_NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code)
    return answer_of(Problem(error.status_code, f"{request.method} {request.url.path}: {said}", code, None, error.headers))


async def _failed(request: Request, error: Exception) -> Response:
    """uvicorn writes the trace to stderr."""
    return answer_of(Problem(500, f"the gateway failed: {type(error).__name__}", "GATEWAY_FAILED"))


def _shared(app: Any, origins: tuple[str, ...]) -> Any:
    """Tells browsers that pages of these origins may call: with any header, because the key is a header; never with cookies, because
    there are none."""
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after", "retry-after-ms"],
    )  # fmt: skip


def create(
    connect: Callable[[], Awaitable[GatewayClient]], ready: Callable[[], None] = lambda: None, settings: Settings | None = None
) -> Any:
    """The application. connect: makes the client when the application starts, in its event loop; the application closes it.
    ready: called once it has started. settings: the defaults, if None."""
    settings = settings or Settings(Meters(PATHS))

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[None, None]:
        async with await connect() as client, WorkerPool() as worker_pool:
            app.state.client = client
            app.state.worker_pool = worker_pool
            app.state.meters = settings.meters
            app.state.most_body_bytes = settings.most_body_bytes
            app.state.metrics_target = settings.metrics_target
            app.state.ignored = Ignored(settings.ignored)
            ready()
            yield

    routes = [Route(row.path, endpoint(row.handler, row.path), methods=[row.method]) for row in _ROWS]
    described = encoded(openapi.document(_ROWS))
    routes.append(Route("/openapi.json", lambda request: Response(described, media_type="application/json"), methods=["GET"]))
    routes += page.routes()
    if settings.metrics_target:
        routes.append(Route("/metrics", meters.show, methods=["GET"]))
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route, Exception: _failed})
    return Edge(_shared(app, settings.cors_origins), settings.meters, settings.log, settings.hosts)
