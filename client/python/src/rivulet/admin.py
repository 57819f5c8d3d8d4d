# SPDX-License-Identifier: Apache-2.0
"""What Client and AsyncClient ask of AdminService, at a server's --admin-listen."""

from __future__ import annotations

from dataclasses import dataclass

from rivulet import requests
from rivulet.v1 import admin_service_pb2


@dataclass(frozen=True)
class Unloaded:
    """What ended with a model.

    all_ended: every running request ended by itself; False: some were cut at the end of the drain time.
    sessions_closed: client sessions that were open.
    """

    all_ended: bool
    sessions_closed: int


def load_request(model: str) -> admin_service_pb2.LoadModelRequest:
    """Errors: TypeError, ValueError (text that is no UTF-8)."""
    return admin_service_pb2.LoadModelRequest(model=requests.text("model", model))


def unload_request(model: str, drain_timeout: float | None) -> admin_service_pb2.UnloadModelRequest:
    """Errors: TypeError, ValueError (text that is no UTF-8, seconds that are none)."""
    request = admin_service_pb2.UnloadModelRequest(model=requests.text("model", model))
    if drain_timeout is not None:
        seconds = requests.real("drain_timeout", drain_timeout)
        if not 0 <= seconds <= 86400:
            raise ValueError(f"drain_timeout: {drain_timeout}; 0 to 86400 seconds are allowed")
        request.drain_timeout.FromNanoseconds(round(seconds * 1e9))
    return request


def unloaded(reply: admin_service_pb2.UnloadModelReply) -> Unloaded:
    """The reply as a dataclass."""
    return Unloaded(reply.all_ended, reply.sessions_closed)
