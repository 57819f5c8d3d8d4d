# SPDX-License-Identifier: Apache-2.0
"""The ASGI application: routes, and answers for what has none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rivulet.gateway import chat, completions, images, models, page, sessions
from rivulet.gateway.calls import endpoint
from rivulet.gateway.edge import Edge
from rivulet.gateway.offload import Offload
from rivulet.gateway.problems import Problem, answer_of
from rivulet.gateway.remembered import GatewayClient

_SESSION = "/rivulet/v1/sessions/{session_id}"

_ROUTES = (
    ("GET", "/health", models.health),
    ("GET", "/rivulet/v1/load", models.load),
    ("GET", "/v1/models", models.list_models),
    ("GET", "/v1/models/{model}", models.get_model),
    ("POST", "/v1/completions", completions.create),
    ("POST", "/v1/chat/completions", chat.create),
    ("POST", "/v1/images/generations", images.create),
    ("POST", "/rivulet/v1/sessions", sessions.open_session),
    ("GET", "/rivulet/v1/sessions", sessions.list_sessions),
    ("GET", _SESSION, sessions.get_session),
    ("DELETE", _SESSION, sessions.close_session),
    ("POST", f"{_SESSION}/append", sessions.append),
    ("POST", f"{_SESSION}/generate", sessions.generate),
    ("POST", f"{_SESSION}/fork", sessions.fork),
    ("POST", f"{_SESSION}/rewind", sessions.rewind),
)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: "there is no such route", 405: "the route does not have this method"}.get(error.status_code, error.detail)
    code = {404: "ROUTE_NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}.get(error.status_code)
    return answer_of(Problem(error.status_code, f"{request.method} {request.url.path}: {said}", code, None, error.headers))


async def _failed(request: Request, error: Exception) -> Response:
    """uvicorn writes the trace to stderr."""
    return answer_of(Problem(500, f"the gateway failed: {type(error).__name__}", "GATEWAY_FAILED"))


def create(connect: Callable[[], Awaitable[GatewayClient]], ready: Callable[[], None] = lambda: None) -> Any:
    """The application. connect: makes the client when the application starts, in its event loop; the application closes it.
    ready: called once it has started."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[None, None]:
        async with await connect() as client, Offload() as offload:
            app.state.client = client
            app.state.offload = offload
            ready()
            yield

    routes = [Route(path, endpoint(handler), methods=[method]) for method, path, handler in _ROUTES]
    routes += page.routes()
    return Edge(Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route, Exception: _failed}))
