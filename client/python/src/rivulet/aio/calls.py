# SPDX-License-Identifier: Apache-2.0
"""The calls of a client, for asyncio. The same as in threads/calls.py."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import grpc
import grpc.aio

from rivulet import errors
from rivulet.aio.streams import cancelled, end
from rivulet.core import requests
from rivulet.core.connection import Connection, ConnectOptions
from rivulet.v1 import session_service_pb2


class AsyncCalls(Connection):
    """As Calls. Thread: the event loop's."""

    def __init__(self, options: ConnectOptions) -> None:
        """Errors: RuntimeError (outside a coroutine), OSError, ValueError."""
        asyncio.get_running_loop()
        super().__init__(options, grpc.aio)
        self._running: weakref.WeakSet[Any] = weakref.WeakSet()

    async def close(self) -> None:
        self._methods = None
        for call in tuple(self._running):  # not every release of gRPC ends them itself
            end(call)
        await self._channel.close()

    def start(self, method: str, message: Any, options: requests.CallOptions, cookie: str = "") -> Any:
        begin, arguments = self._prepare(method, message, options, cookie)
        call = begin(message, **arguments)
        self._running.add(call)
        return call

    async def reply(self, method: str, message: Any, options: requests.CallOptions) -> Any:
        attempts = self._attempts(method, message, options)
        while True:
            call = self.start(method, message, attempts.options(), attempts.cookie)
            try:
                reply = await call
                if self.cookies.concerns(method, message):
                    self.cookies.answered(method, message, reply, await call.initial_metadata(), attempts.cookie)
                return self._noted(reply)
            except grpc.RpcError as ended:
                error = errors.from_call(ended, attempts.deadline.timeout)
            except asyncio.CancelledError:
                raise await cancelled(call) from None
            attempts.failed(error)

    async def snapshot(
        self, request: session_service_pb2.SnapshotSessionRequest, options: requests.CallOptions
    ) -> bytes:
        attempts = self._attempts("snapshot_session", request, options)
        while True:
            call = self.start("snapshot_session", request, attempts.options(), attempts.cookie)
            try:
                snapshot = b"".join([message.chunk async for message in call])
                self.cookies.answered("snapshot_session", request, None, await call.initial_metadata(), attempts.cookie)
                return snapshot
            except grpc.RpcError as ended:
                error = errors.from_call(ended)
            except asyncio.CancelledError:
                raise await cancelled(call) from None
            attempts.failed(error)
