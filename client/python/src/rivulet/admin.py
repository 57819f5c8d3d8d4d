# SPDX-License-Identifier: Apache-2.0
"""Calls of AdminService (a server's --admin-listen), for Client and AsyncClient."""

from __future__ import annotations

from dataclasses import dataclass

from rivulet import requests
from rivulet.v1 import admin_service_pb2


@dataclass(frozen=True)
class Unloaded:
    """The result of unload_model().

    all_ended: True if every running request completed; False if some were ended when the drain time was over.
    sessions_closed: number of open sessions that ended with the model.
    """

    all_ended: bool
    sessions_closed: int


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
