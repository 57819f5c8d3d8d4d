# SPDX-License-Identifier: Apache-2.0
"""Calls of AdminService (a server's --admin-listen), for Client and AsyncClient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from rivulet.core import requests
from rivulet.v1 import admin_service_pb2


@dataclass(frozen=True)
class Unloaded:
    """The result of unload_model().

    all_ended: True if every running request completed; False if some were ended when the drain time was over.
    sessions_closed: number of open sessions that ended with the model.
    """

    all_ended: bool
    sessions_closed: int


LogLevel = Literal["debug", "info", "warning", "error"]


def load_request(model: str) -> admin_service_pb2.LoadModelRequest:
    """Errors: TypeError, ValueError (text that is not UTF-8)."""
    return admin_service_pb2.LoadModelRequest(model=requests.text("model", model))


def unload_request(model: str, drain_timeout: float | None) -> admin_service_pb2.UnloadModelRequest:
    """Errors: TypeError, ValueError (text that is not UTF-8, an invalid number of seconds)."""
    request = admin_service_pb2.UnloadModelRequest(model=requests.text("model", model))
    if drain_timeout is not None:
        seconds = requests.real("drain_timeout", drain_timeout)
        if not 0 <= seconds <= 86400:
            raise ValueError(f"drain_timeout: must be 0 to 86400 seconds; got {drain_timeout}")
        request.drain_timeout.FromNanoseconds(round(seconds * 1e9))
    return request


def unloaded(reply: admin_service_pb2.UnloadModelReply) -> Unloaded:
    """The reply as a dataclass."""
    return Unloaded(reply.all_ended, reply.sessions_closed)


def log_level_request(level: LogLevel) -> admin_service_pb2.SetLogLevelRequest:
    """Errors: TypeError, ValueError (no level)."""
    if requests.text("level", level) not in get_args(LogLevel):
        raise ValueError(f"level: must be one of {', '.join(get_args(LogLevel))}; got {level!r}")
    return admin_service_pb2.SetLogLevelRequest(level=admin_service_pb2.LogLevel.Value(f"LOG_LEVEL_{level.upper()}"))


def log_level(level: admin_service_pb2.LogLevel) -> LogLevel:
    """The level of a reply by its name."""
    return cast("LogLevel", admin_service_pb2.LogLevel.Name(level).removeprefix("LOG_LEVEL_").lower())
