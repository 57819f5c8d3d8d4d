# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio. The same methods, arguments and errors as those of Client."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import numpy as np
from google.protobuf import wrappers_pb2
from numpy.typing import NDArray

from rivulet import admin, errors, images, model_replies, replies, requests, session_messages
from rivulet.aio_multiplex import AsyncMultiplex, generate_many
from rivulet.aio_session import AsyncSession
from rivulet.aio_streams import AsyncGenerateStream, cancelled, end
from rivulet.connection import ConnectOptions, Methods, TlsOptions
from rivulet.cookies import SessionCookies
from rivulet.multiplex_core import MultiplexPart, many
from rivulet.reply_reader import Reader
from rivulet.token_bytes import ModelQuestions, TokenBytes
from rivulet.v1 import inference_pb2, session_service_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncClient:
    """A connection to the Rivulet server at `target`, for one event loop: create it in a coroutine. Arguments and
    errors: as Client. If a task is cancelled, its call ends. Thread: that of the event loop."""

    def __init__(
        self,
        target: str,
        *,
        tls: TlsOptions | None = None,
        connect_timeout: float = 5.0,
        wait_for_ready: bool = False,
        max_attempts: int = 4,
        max_receive_bytes: int = 256 << 20,
        metadata: requests.Metadata = (),
        tenant: str = "",
        key: str = "",
    ) -> None:
        self._options = ConnectOptions(
            target, tls, connect_timeout, wait_for_ready, max_attempts, max_receive_bytes, metadata, tenant, key
        )
        asyncio.get_running_loop()  # RuntimeError outside a coroutine
        self._channel = self._options.open(grpc.aio)
        self._methods: Methods | None = Methods(self._channel)
        self._cookies = SessionCookies()
        self._token_bytes = TokenBytes()
        self._running: weakref.WeakSet[Any] = weakref.WeakSet()

    async def close(self) -> None:
        """Closes the connection. Running calls end with Cancelled; later calls raise ValueError."""
        self._methods = None
        for call in tuple(self._running):  # not every release of gRPC does so itself
            end(call)
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _start(self, method: str, message: Any, options: requests.CallOptions) -> Any:
        arguments = self._options.call_arguments(method, options, self._cookies.of_call(message))
        if self._methods is None:
            raise ValueError("the client is closed")
        call = getattr(self._methods, method)(message, **arguments)
        self._running.add(call)
        return call

    async def _call(self, method: str, message: Any, options: requests.CallOptions) -> Any:
        call = self._start(method, message, options)
        try:
            reply = await call
            if self._cookies.opens(method):
                self._cookies.opened(message, reply, await call.initial_metadata())
            return reply
        except grpc.RpcError as error:
            raise errors.from_call(error, requests.timeout(options.get("timeout"))) from None
        except asyncio.CancelledError:
            raise await cancelled(call) from None

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.GenerateOptions]) -> AsyncGenerateStream:
        """Streams generated tokens: `async for part in client.generate("ROMEO:", max_tokens=100): ...`. For the whole
        reply: `await client.generate(...).collect()`. Arguments and errors: as Client.generate()."""
        request = requests.generate(prompt, options)
        own = requests.call_options(options)
        call = self._start("generate", request, own)
        return AsyncGenerateStream(call, Reader(request), self._asks(request.model, lambda: own), own["timeout"])

    def _asks(self, model: str, own: Callable[[], requests.CallOptions]) -> ModelQuestions[Awaitable[model_replies.Model], Awaitable[replies.Text]]:
        """What replies of the model ask. own: options of a call that begins now."""
        return ModelQuestions(
            lambda: self.model(model, **own()), lambda ids: self.detokenize(ids, model=model, **own()), self._token_bytes
        )

    def multiplex(self, **options: Unpack[requests.CallOptions]) -> AsyncMultiplex:
        """A stream for many requests at once, for `async with`. Arguments and errors: as Client.multiplex()."""
        return AsyncMultiplex(lambda messages: self._start("multiplex", messages, options))

    def generate_many(
        self, prompts: Iterable[requests.Prompt], *, at_once: int = 256, **options: Unpack[requests.GenerateOptions]
    ) -> AsyncGenerator[MultiplexPart, None]:
        """Generates after each of many prompts, over one stream, for `async for`. Arguments and errors: as
        Client.generate_many()."""
        return generate_many(self.multiplex, many(prompts, at_once, options), at_once)

    async def open_session(
        self,
        *,
        model: str = "",
        seed: int | None = None,
        idle_timeout: float | None = None,
        **options: Unpack[requests.CallOptions],
    ) -> AsyncSession:
        """Opens a session without tokens, for `async with await client.open_session(): ...`. Arguments and errors: as
        Client.open_session()."""
        request = session_messages.open_request(model, seed, idle_timeout)
        return AsyncSession(self, replies.session((await self._call("open_session", request, options)).session))

    async def session(
        self, id: str, *, model: str = "", cookie: str = "", **options: Unpack[requests.CallOptions]
    ) -> AsyncSession:
        """Returns the session with this id, at its current position. Errors: as Client.session()."""
        self._cookies.set(requests.text("id", id), requests.text("cookie", cookie))
        reply = await self._call("get_session", session_messages.get_request(id, model), options)
        return AsyncSession(self, replies.session(reply.session))

    async def sessions(self, *, model: str = "", **options: Unpack[requests.CallOptions]) -> tuple[replies.SessionInfo, ...]:
        """Lists the tenant's sessions, the least recently used first. As Client.sessions()."""
        request, found = session_messages.list_request(model), []
        while True:
            reply = await self._call("list_sessions", request, options)
            found += [replies.session(entry) for entry in reply.sessions]
            request.page_token = reply.next_page_token
            if not request.page_token:
                return tuple(found)

    async def restore_session(
        self,
        snapshot: bytes | Iterable[bytes] | AsyncIterable[bytes],
        *,
        model: str = "",
        idle_timeout: float | None = None,
        **options: Unpack[requests.CallOptions],
    ) -> AsyncSession:
        """Opens a session from a snapshot of AsyncSession.snapshot(). Arguments and errors: as
        Client.restore_session()."""
        if isinstance(snapshot, AsyncIterable):
            snapshot = [chunk async for chunk in snapshot]
        messages = session_messages.RestoreMessages(snapshot, model, idle_timeout)
        try:
            reply = await self._call("restore_session", messages, options)
        except errors.RivuletError:
            if messages.error is not None:
                raise messages.error from None
            raise
        return AsyncSession(self, replies.session(reply.session), same_numerics=reply.same_numerics)

    async def score(
        self,
        content: str | Sequence[int] | NDArray[np.integer[Any]],
        *,
        model: str = "",
        window: int | None = None,
        output_positions: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        logprobs: bool = False,
        priority: requests.Priority | requests.PriorityName | None = None,
        add_special_tokens: bool | None = None,
        parse_special_tokens: bool | None = None,
        **options: Unpack[requests.CallOptions],
    ) -> replies.Score:
        """How likely a text or a sequence of token ids [n] is. Arguments and errors: as Client.score()."""
        request = requests.score(
            content, model, window, output_positions, logprobs, priority, add_special_tokens, parse_special_tokens
        )
        return replies.score(await self._call("score", request, options), logprobs, output_positions is not None)

    async def tokenize(
        self,
        text: str,
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
        parse_special_tokens: bool | None = None,
        **options: Unpack[requests.CallOptions],
    ) -> replies.Tokens:
        """A text as tokens. Arguments and errors: as Client.tokenize()."""
        request = requests.tokenize(text, model, add_special_tokens, parse_special_tokens)
        return replies.tokens(await self._call("tokenize", request, options))

    async def detokenize(
        self,
        ids: Sequence[int] | NDArray[np.integer[Any]],
        *,
        model: str = "",
        skip_special_tokens: bool = False,
        **options: Unpack[requests.CallOptions],
    ) -> replies.Text:
        """The text of token ids [n]. Arguments and errors: as Client.detokenize()."""
        reply = await self._call("detokenize", requests.detokenize(ids, model, skip_special_tokens), options)
        return replies.text(reply)

    async def models(self, **options: Unpack[requests.CallOptions]) -> tuple[model_replies.ModelSummary, ...]:
        """The models that the server serves."""
        reply = await self._call("list_models", inference_pb2.ListModelsRequest(), options)
        return tuple(model_replies.summary(model) for model in reply.models)

    async def model(self, model: str = "", **options: Unpack[requests.CallOptions]) -> model_replies.Model:
        """Describes one model. The name may be empty if the server serves exactly one model. Errors: NotFound."""
        request = inference_pb2.GetModelRequest(model=requests.text("model", model))
        return model_replies.model(await self._call("get_model", request, options))

    async def load(self, model: str = "", **options: Unpack[requests.CallOptions]) -> tuple[model_replies.ModelLoad, ...]:
        """Current capacity and load of one model, or of every model if the name is empty. Errors: NotFound."""
        request = inference_pb2.GetLoadRequest(model=requests.text("model", model))
        return tuple(model_replies.load(entry) for entry in (await self._call("get_load", request, options)).models)

    async def server_load(self, **options: Unpack[requests.CallOptions]) -> model_replies.ServerLoad:
        """As Client.server_load()."""
        return model_replies.server_load((await self._call("get_load", inference_pb2.GetLoadRequest(), options)).server)

    async def load_model(self, model: str, **options: Unpack[requests.CallOptions]) -> model_replies.ModelSummary:
        """As Client.load_model()."""
        return model_replies.summary((await self._call("load_model", admin.load_request(model), options)).model)

    async def unload_model(
        self, model: str, *, drain_timeout: float | None = None, **options: Unpack[requests.CallOptions]
    ) -> admin.Unloaded:
        """As Client.unload_model()."""
        request = admin.unload_request(model, drain_timeout)
        return admin.unloaded(await self._call("unload_model", request, options))

    async def health(self, service: str = "", **options: Unpack[requests.CallOptions]) -> replies.HealthStatus:
        """Health as in grpc.health.v1, of a model by its name, or of the whole server. Errors: NotFound (no such
        service)."""
        request = wrappers_pb2.StringValue(value=requests.text("service", service))
        return replies.HealthStatus((await self._call("health", request, options)).value)

    def stream_images(
        self, count: int = 1, *, seed: int | None = None, **options: Unpack[requests.ImageOptions]
    ) -> AsyncGenerator[images.Snapshot, None]:
        """Draws `count` images and yields snapshots while they are drawn, for `async for`. Arguments and errors: as
        Client.stream_images(). Errors that depend on the model are raised while iterating."""
        return self._snapshots(images.Order("stream_images", count, seed, options))

    async def _snapshots(self, order: images.Order) -> AsyncGenerator[images.Snapshot, None]:
        canvas = images.Canvas(order, await self.model(order.model, **order.call_options()))
        left = canvas.plan()[::-1]

        async def work() -> None:
            while left:
                request = left.pop()
                prompt, options = canvas.generate_arguments(request)
                async with self.generate(prompt, **options) as parts:
                    async for part in parts:
                        canvas.add(request, part)

        tasks = {asyncio.create_task(work()) for _ in range(min(len(left), images.REQUESTS_AT_ONCE))}
        running = tasks
        try:
            while running:
                done, running = await asyncio.wait(running, timeout=order.interval)
                for task in done:
                    task.result()
                if not done or not running:
                    yield canvas.snapshot()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def generate_images(
        self,
        count: int = 1,
        *,
        seed: int | None = None,
        on_progress: Callable[[images.Snapshot], object] | None = None,
        **options: Unpack[requests.ImageOptions],
    ) -> NDArray[np.uint8]:
        """Draws `count` images: uint8 [count, height, width], or [count, height, width, channels] for several channels.
        Arguments and errors: as Client.generate_images(); `on_progress` must not block."""
        async for snapshot in self.stream_images(count, seed=seed, **options):
            if on_progress is not None:
                on_progress(snapshot)
        return snapshot.images
