# SPDX-License-Identifier: Apache-2.0
"""One HTTP request: its body, its sender, and the sending of its answer until the client leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from rivulet import CallOptions, Model, PromptCache, RivuletError
from rivulet.gateway.process.options import complain
from rivulet.gateway.process.worker_pool import WorkerPool
from rivulet.gateway.routes.tokens import TokenTexts
from rivulet.gateway.upstream.key_cache import GatewayClient
from rivulet.gateway.web import event_ids
from rivulet.gateway.web.body import Body
from rivulet.gateway.web.event_ids import Progress, Sent
from rivulet.gateway.web.problems import Problem, answer_of, of_argument, of_error, of_refused
from rivulet.gateway.worker.errors import Refused

T = TypeVar("T")


class ClientGone(Exception):
    """The HTTP client has closed its connection."""


@dataclass(frozen=True)
class Call:
    """names: parameters of the route that have another name in the server's API; a handler may add entries. digest: hash of route and
    body. lost: Last-Event-ID of a stream to continue."""

    client: GatewayClient
    worker_pool: WorkerPool
    body: Body
    options: CallOptions
    cache: PromptCache
    path: Mapping[str, str]
    query: Mapping[str, str]
    digest: bytes
    lost: Progress | None
    names: dict[str, str] = field(default_factory=dict)

    def token_texts(self, model: Model) -> TokenTexts:
        return TokenTexts(self.client, model, self.options, self.client.token_bytes)

    def progress(self, prompts: int, samples: int) -> Progress:
        """The Progress of the reply to this request: `samples` choices for each prompt. Errors: Problem."""
        if self.lost is None:
            return Progress(self.digest, [0] * prompts, [Sent() for _ in range(prompts * samples)])
        if (len(self.lost.fingerprints), len(self.lost.choices)) != (prompts, prompts * samples):
            raise event_ids.malformed()
        return self.lost


class Ignored:
    """The parameters of --ignore-parameters. Each is logged once, on stderr, when a request has it."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._logged: set[str] = set()

    def drop(self, values: dict[str, Any]) -> None:
        for name in self._names & values.keys():
            del values[name]
            if name not in self._logged:
                self._logged.add(name)
                complain(f"the parameter {name} of a request is ignored (--ignore-parameters)")


def _authorization(request: Request) -> str:
    value = request.headers.get("authorization", "")
    if not re.fullmatch(r"[ -~]*", value):
        raise Problem(401, "the header Authorization must be printable ASCII", "UNAUTHENTICATED", None, {"www-authenticate": "Bearer"})
    return str(value)


def _traced(request: Request) -> dict[str, str]:
    """The request's id and its header traceparent, as metadata. A traceparent that gRPC cannot carry, or a second one, is ignored."""
    values = request.headers.getlist("traceparent")
    parent = {"traceparent": values[0]} if len(values) == 1 and re.fullmatch(r"[!-~]+", values[0]) else {}
    return {"x-request-id": request.state.request_id, **parent}


def _salt(authorization: str) -> str:
    """Gives callers with different keys different salts, so that they share no cached prompts. This is not the hash
    by which a server compares keys."""
    if not authorization:
        return ""
    return hashlib.sha256(b"rivulet-gateway prompt cache\n" + authorization.encode()).hexdigest()[:32]


def _too_large(most: int) -> Problem:
    return Problem(413, f"the body must be at most {most} bytes", "BODY_TOO_LARGE")


async def _read_body(request: Request, digest: Any, most: int) -> bytearray:
    """Reads a body of at most `most` bytes. digest: a hash object that is updated with the body. Errors: Problem. The content type must
    be JSON, which a form of a foreign web page cannot send."""
    length = int(request.headers.get("content-length", 0))  # h11 has checked it
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and (length or "transfer-encoding" in request.headers):
        raise Problem(415, f"the header Content-Type must be application/json; got {kind!r}", "CONTENT_TYPE_UNSUPPORTED")
    if length > most:
        raise _too_large(most)
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        digest.update(chunk)
        if len(raw) > most:
            raise _too_large(most)
    return raw


def _lost(request: Request, digest: bytes) -> Progress | None:
    """Errors: Problem."""
    values = request.headers.getlist("last-event-id")
    lost = event_ids.read(values) if values else None
    if lost is not None and lost.request != digest:
        raise Problem(400, "the header Last-Event-ID is of another request; route and body must be the same", "EVENT_ID_OF_OTHER_REQUEST")
    return lost


async def _call(request: Request, names: dict[str, str]) -> Call:
    """The Call of a request. The server checks the key before the body is read. Errors: Problem; Refused; RivuletError."""
    state, authorization = request.app.state, _authorization(request)
    key = {"authorization": authorization} if authorization else {}
    options: CallOptions = {"metadata": key | _traced(request)}
    body, digest, lost = Body({}), b"", None
    if request.method == "POST":
        await state.client.check_key(**options)
        whole = hashlib.sha256(f"{request.url.path}?{request.url.query}\n".encode())
        raw = await _read_body(request, whole, state.most_body_bytes)
        digest = whole.digest()[:8]
        lost = _lost(request, digest)
        values = await state.worker_pool.parse(raw)
        state.ignored.drop(values)
        body = Body(values)
    cache = PromptCache(salt=_salt(authorization))
    return Call(state.client, state.worker_pool, body, options, cache, request.path_params, request.query_params, digest, lost, names)


async def _until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def unless_gone(work: Coroutine[Any, Any, T], receive: Callable[[], Awaitable[Any]]) -> T:
    """The result of `work`, which is cancelled if the client leaves. Errors: ClientGone."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
    finally:
        await _ended(task, gone)
    raise ClientGone


# uvicorn cancels what still runs at the end of --drain-seconds.
_STOPPED = Problem(503, "the gateway stops, and the answer did not end within --drain-seconds", "GATEWAY_STOPPED")


class EventStream:
    """An answer as server-sent events; the first event is ready. When the client leaves, the events and their calls to the
    server end. An error of the server is the last event, and so is the gateway's end."""

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None], names: Mapping[str, str]) -> None:
        self._first = first
        self._events = events
        self._names = names

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        try:
            await unless_gone(self._send(send), receive)
        except (ClientGone, OSError):
            pass
        except asyncio.CancelledError:
            await self._last(send, _STOPPED)
        finally:
            await self._events.aclose()

    async def _send(self, send: Callable[[Any], Awaitable[None]]) -> None:
        # no-transform and X-Accel-Buffering: a proxy in between must not hold events back.
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache, no-transform"),
            (b"x-accel-buffering", b"no"),
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for one in self._events:
                await send({"type": "http.response.body", "body": one, "more_body": True})
        except RivuletError as error:
            await self._last(send, of_error(error, self._names))
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _last(self, send: Callable[[Any], Awaitable[None]], problem: Problem) -> None:
        await send({"type": "http.response.body", "body": event(problem.body()), "more_body": False})


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # json.dumps() would make one each time


def encoded(value: Any) -> bytes:
    """As compact JSON."""
    return _ENCODER.encode(value).encode()


def event(value: Any, id: bytes = b"") -> bytes:
    """id: the id line, or empty."""
    return id + b"data: " + encoded(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
LEFT_OUT = b":\n\n"  # a comment instead of an event that the client has, so that no proxy closes an idle stream


async def begun(events: AsyncGenerator[bytes, None], names: Mapping[str, str]) -> EventStream:
    """Waits for the first event, so that an error before it has its HTTP status."""
    try:
        return EventStream(await events.__anext__(), events, names)
    except BaseException:
        await events.aclose()
        raise


Handler = Callable[[Call], Coroutine[Any, Any, Any]]


def endpoint(handler: Handler, path: str) -> Callable[[Request], Awaitable[Any]]:
    """Makes a route's function from a function that takes a Call and returns a value for JSON, or an EventStream."""

    async def respond(request: Request) -> Any:
        request.state.route = path  # for logs and meters
        names: dict[str, str] = {}
        try:
            call = await _call(request, names)
            result = await unless_gone(handler(call), request.receive)
            return result if isinstance(result, EventStream) else JSONResponse(result)
        except Problem as problem:
            return answer_of(problem)
        except Refused as refused:
            return answer_of(of_refused(refused))
        except RivuletError as error:
            return answer_of(of_error(error, names))
        except (ClientGone, ClientDisconnect):
            return Response(status_code=499)
        except asyncio.CancelledError:
            return answer_of(_STOPPED)

    return respond


def checked(make: Callable[[], T], names: Mapping[str, str]) -> T:
    """The result of `make`, which checks its arguments. Errors: Problem."""
    try:
        return make()
    except (TypeError, ValueError, OverflowError) as error:
        raise of_argument(error, names) from None
