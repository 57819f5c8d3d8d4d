# SPDX-License-Identifier: Apache-2.0
"""GET /openapi.json: a description of the routes, as OpenAPI 3.1. The parameters are those that the handlers take: each handler runs on
an example until it has taken its parameters, and what it took is recorded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from rivulet import PromptCache, __version__
from rivulet.gateway.web.body import Body
from rivulet.gateway.web.exchange import Call, Handler
from rivulet.gateway.web.problems import Problem
from rivulet.gateway.worker.errors import Refused

Json = dict[str, Any]
_ERROR = {
    "type": "object", "required": ["error"],
    "properties": {"error": {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
        "message": {"type": "string"}, "type": {"type": "string"}, "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]},
    }}},
}  # fmt: skip


class RouteRow(NamedTuple):
    """examples: bodies that `handler` takes parameters from without an error; together they lead to all of its parameters."""

    method: str
    path: str
    handler: Handler
    examples: Sequence[Json] = ({},)


class _Taken(Exception):
    """The handler has taken its parameters."""


class _Recorder(Body):
    """properties: what was taken, as JSON Schema."""

    def __init__(self, values: Json) -> None:
        super().__init__(values)
        self.properties: dict[str, Json] = {}
        self.ended = False

    def take(self, name: str, *types: str) -> Any:
        self.properties[name] = {"type": types[0] if len(types) == 1 else list(types)} if types else {}
        return super().take(name)

    def text(self, name: str, path: str = "") -> str | None:
        value = super().text(name, path)
        self.properties[name] = {"type": "string"}
        return value

    def flag(self, name: str) -> bool:
        value = super().flag(name)
        self.properties[name] = {"type": "boolean"}
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = super().integer(name, low, high)
        self.properties[name] = {"type": "integer", "minimum": low, "maximum": high}
        return value

    def number(self, name: str, most: float) -> float | None:
        value = super().number(name, most)
        self.properties[name] = {"type": "number", "minimum": 0, "maximum": most}
        return value

    def ignore(self, *names: str) -> None:
        super().ignore(*names)
        self.properties.update({name: {"description": "Accepted, without effect."} for name in names})

    def only(self, name: str, *allowed: Any) -> None:
        super().only(name, *allowed)
        self.properties[name] = {"enum": list(allowed)}

    def end(self, path: str = "") -> NoReturn:
        super().end(path)
        self.ended = True
        raise _Taken


class _Query(dict[str, str]):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def get(self, name: str, default: Any = None) -> Any:
        self.names.append(name)
        return default


class _NoServer:
    """The client of a handler that is recorded. A handler without a body has taken its parameters when it calls the server."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        return self._call

    def _call(self, *_: object, **__: object) -> NoReturn:
        raise _Taken


def _recorded(row: RouteRow, example: Json) -> tuple[_Recorder, _Query]:
    """Errors: Problem; Refused."""
    body, query = _Recorder(example), _Query()
    server: Any = _NoServer()
    running = row.handler(Call(server, server, body, {"metadata": {}}, PromptCache(), defaultdict(str), query, b"", None))
    try:
        running.send(None)
    except (_Taken, StopIteration):
        if body.ended or row.method != "POST":
            return body, query
    finally:
        running.close()
    raise AssertionError(f"{row.path}: the handler must call body.end() before it calls the server")


def _is_required(row: RouteRow, name: str) -> bool:
    """Whether no example is valid without this parameter."""
    for example in row.examples:
        try:
            _recorded(row, {key: value for key, value in example.items() if key != name})
        except (Problem, Refused):
            continue
        return False
    return True


def _schema(row: RouteRow) -> Json:
    properties: dict[str, Json] = {}
    for example in row.examples:
        properties |= _recorded(row, example)[0].properties
    shared = set.intersection(*(set(example) for example in row.examples))
    required = sorted(name for name in shared if _is_required(row, name))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _operation(row: RouteRow) -> Json:
    inside = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in re.findall(r"{(\w+)}", row.path)]
    query = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in _recorded(row, row.examples[0])[1].names]
    answer: Json = {"application/json": {}}
    found: Json = {
        "operationId": f"{row.method.lower()}{re.sub(r'[^a-z0-9]+', '_', row.path)}".rstrip("_"),
        "summary": (row.handler.__doc__ or "").partition("\n")[0], "parameters": inside + query,
        "responses": {"200": {"description": "The answer.", "content": answer}, "default": {"$ref": "#/components/responses/Error"}},
    }  # fmt: skip
    if row.method == "POST":
        schema = _schema(row)
        found["requestBody"] = {"required": bool(schema["required"]), "content": {"application/json": {"schema": schema}}}
        if schema["properties"].get("stream") == {"type": "boolean"}:
            answer["text/event-stream"] = {}
    return found


def document(rows: Iterable[RouteRow]) -> Json:
    """The description of the routes."""
    paths: dict[str, Json] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    error = {"description": "An error.", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rivulet's gateway", "version": __version__, "description": "A parameter that is null counts as absent."},
        "security": [{}, {"key": []}], "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR}, "responses": {"Error": error}, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }  # fmt: skip
