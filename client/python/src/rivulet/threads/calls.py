# SPDX-License-Identifier: Apache-2.0
"""The calls of a client, for programs with threads. aio/calls.py has the same for asyncio."""

from __future__ import annotations

from typing import Any

import grpc

from rivulet import errors
from rivulet.core import requests
from rivulet.core.connection import Connection, ConnectOptions
from rivulet.v1 import session_service_pb2


class Calls(Connection):
    """The calls of a client and its sessions. Thread: any. Errors of each: RivuletError, TypeError, ValueError (also after
    close())."""

    def __init__(self, options: ConnectOptions) -> None:
        """Errors: OSError, ValueError."""
        super().__init__(options, grpc)

    def close(self) -> None:
        """Ends running calls."""
        self._methods = None
        self._channel.close()

    def start(self, method: str, message: Any, options: requests.CallOptions, cookie: str = "") -> Any:
        """Begins a call whose reply streams. Returns gRPC's call."""
        begin, arguments = self._prepare(method, message, options, cookie)
        try:
            return begin(message, **arguments)
        except grpc.RpcError as error:
            raise errors.from_call(error, arguments["timeout"]) from None

    def reply(self, method: str, message: Any, options: requests.CallOptions) -> Any:
        """Makes a call with a single reply message, and returns the message."""
        attempts = self._attempts(method, message, options)
        while True:
            begin, arguments = self._prepare(method, message, attempts.options(), attempts.cookie)
            try:
                if not self.cookies.concerns(method, message):
                    return self._noted(begin(message, **arguments))
                reply, call = begin.with_call(message, **arguments)
            except grpc.RpcError as ended:
                error = errors.from_call(ended, attempts.deadline.timeout)
            else:
                self.cookies.answered(method, message, reply, call.initial_metadata(), attempts.cookie)
                return reply
            attempts.failed(error)

    def snapshot(self, request: session_service_pb2.SnapshotSessionRequest, options: requests.CallOptions) -> bytes:
        """The bytes of a session's snapshot."""
        attempts = self._attempts("snapshot_session", request, options)
        while True:
            call = self.start("snapshot_session", request, attempts.options(), attempts.cookie)
            try:
                snapshot = b"".join(message.chunk for message in call)
            except grpc.RpcError:
                error = errors.from_call(call)
            else:
                self.cookies.answered("snapshot_session", request, None, call.initial_metadata(), attempts.cookie)
                return snapshot
            attempts.failed(error)
