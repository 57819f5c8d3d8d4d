# SPDX-License-Identifier: Apache-2.0
"""The requests about sessions that a client sends. No input or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rivulet.core import requests
from rivulet.v1 import session_service_pb2

CHUNK_BYTES = 1 << 16  # of a snapshot in one message; the server ends a restore that sends less in 30 s
PAGE_SIZE = 1000  # sessions in one message, at most


def open_request(model: str, seed: int | None, idle_timeout: float | None) -> session_service_pb2.OpenSessionRequest:
    request = session_service_pb2.OpenSessionRequest(model=requests.text("model", model))
    if seed is not None:
        request.seed = requests.uint64("seed", seed)
    _set_idle_timeout(request, idle_timeout)
    return request


def _set_idle_timeout(request: Any, seconds: float | None) -> None:
    if seconds is None:
        return
    value = requests.real("idle_timeout", seconds)
    if not abs(value) <= 1e9:
        raise ValueError(f"idle_timeout: must be seconds; got {seconds!r}")
    request.idle_timeout.FromNanoseconds(round(value * 1e9))


class RestoreMessages(Iterator[session_service_pb2.RestoreSessionRequest]):
    """The messages of a snapshot, whole or in pieces. `error`: the exception that iterating over the pieces raised,
    which gRPC does not pass on. Errors: TypeError."""

    def __init__(self, snapshot: bytes | Iterable[bytes], model: str, idle_timeout: float | None) -> None:
        if isinstance(snapshot, str) or not isinstance(snapshot, Iterable):
            raise TypeError(f"snapshot: must be bytes or an iterable of bytes; got {snapshot!r}")
        self._chunks = (snapshot,) if isinstance(snapshot, (bytes, bytearray, memoryview)) else snapshot
        self._messages = self._make(restore_request(model, idle_timeout))
        self.error: Exception | None = None

    def _make(
        self, message: session_service_pb2.RestoreSessionRequest
    ) -> Iterator[session_service_pb2.RestoreSessionRequest]:
        yield message  # names the model; needed even if there are no bytes
        for chunk in self._chunks:
            yield from restore_chunks(chunk)

    def __next__(self) -> session_service_pb2.RestoreSessionRequest:
        try:
            return next(self._messages)
        except StopIteration:
            raise
        except Exception as error:
            self.error = error
            raise


def restore_request(model: str, idle_timeout: float | None) -> session_service_pb2.RestoreSessionRequest:
    """The first message, without bytes."""
    request = session_service_pb2.RestoreSessionRequest(model=requests.text("model", model))
    _set_idle_timeout(request, idle_timeout)
    return request


def restore_chunks(chunk: Any) -> Iterator[session_service_pb2.RestoreSessionRequest]:
    """Messages with the bytes of a piece of a snapshot. Errors: TypeError."""
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise TypeError(f"snapshot: every piece must be bytes; got {chunk!r}")
    data = bytes(chunk)
    for begin in range(0, len(data), CHUNK_BYTES):
        yield session_service_pb2.RestoreSessionRequest(chunk=data[begin : begin + CHUNK_BYTES])


def get_request(id: str, model: str) -> session_service_pb2.GetSessionRequest:
    return session_service_pb2.GetSessionRequest(model=requests.text("model", model), session_id=requests.text("id", id))


def list_request(model: str) -> session_service_pb2.ListSessionsRequest:
    """The request for the first page; the caller sets page_token for later ones."""
    return session_service_pb2.ListSessionsRequest(model=requests.text("model", model), page_size=PAGE_SIZE)
