# SPDX-License-Identifier: Apache-2.0
"""The calls of a client, for asyncio. The same as in calls.py."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import grpc
import grpc.aio

from rivulet import errors, requests
from rivulet.aio_streams import cancelled, end
from rivulet.connection import Connection, ConnectOptions
from rivulet.v1 import session_service_pb2


class AsyncCalls(Connection):
    """As Calls. Thread: that of the event loop."""

    def __init__(self, options: ConnectOptions) -> None:
        """Errors: RuntimeError (outside a coroutine), OSError, ValueError."""
        asyncio.get_running_loop()
        super().__init__(options, grpc.aio)
        self._running: weakref.WeakSet[Any] = weakref.WeakSet()

    async def close(self) -> None:
        self._methods = None
        for call in tuple(self._running):  # not every release of gRPC does so itself
            end(call)
        await self._channel.close()

    def start(self, method: str, message: Any, options: requests.CallOptions) -> Any:
        begin, arguments = self._prepare(method, message, options)
        call = begin(message, **arguments)
        self._running.add(call)
        return call

    async def reply(self, method: str, message: Any, options: requests.CallOptions) -> Any:
        call = self.start(method, message, options)
        try:
            reply = await call
            if self.cookies.opens(method):
                self.cookies.opened(message, reply, await call.initial_metadata())
            return reply
        except grpc.RpcError as error:
            raise errors.from_call(error, requests.timeout(options.get("timeout"))) from None
        except asyncio.CancelledError:
            raise await cancelled(call) from None

    async def snapshot(
        self, request: session_service_pb2.SnapshotSessionRequest, options: requests.CallOptions
    ) -> bytes:
        call = self.start("snapshot_session", request, options)
        try:
            return b"".join([message.chunk async for message in call])
        except grpc.RpcError as error:
            raise errors.from_call(error) from None
        except asyncio.CancelledError:
            raise await cancelled(call) from None
