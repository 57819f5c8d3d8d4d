# SPDX-License-Identifier: Apache-2.0
"""The calls of a client, for programs with threads. aio_calls.py has the same for asyncio."""

from __future__ import annotations

from typing import Any

import grpc

from rivulet import errors, requests
from rivulet.connection import Connection, ConnectOptions
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

    def start(self, method: str, message: Any, options: requests.CallOptions) -> Any:
        """Begins a call whose reply streams. Returns gRPC's call."""
        begin, arguments = self._prepare(method, message, options)
        try:
            return begin(message, **arguments)
        except grpc.RpcError as error:
            raise errors.from_call(error, arguments["timeout"]) from None

    def reply(self, method: str, message: Any, options: requests.CallOptions) -> Any:
        """The only message of a reply."""
        begin, arguments = self._prepare(method, message, options)
        try:
            if not self.cookies.opens(method):
                return begin(message, **arguments)
            reply, call = begin.with_call(message, **arguments)
            self.cookies.opened(message, reply, call.initial_metadata())
            return reply
        except grpc.RpcError as error:
            raise errors.from_call(error, arguments["timeout"]) from None

    def snapshot(self, request: session_service_pb2.SnapshotSessionRequest, options: requests.CallOptions) -> bytes:
        """The bytes of a session."""
        call = self.start("snapshot_session", request, options)
        try:
            return b"".join(message.chunk for message in call)
        except grpc.RpcError:
            raise errors.from_call(call) from None
