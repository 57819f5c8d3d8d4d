# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio. threads/client.py has the same for programs with threads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import wrappers_pb2
from numpy.typing import NDArray

from rivulet import errors, model_replies, replies
from rivulet.aio.bulk import generate_all, score_many
from rivulet.aio.calls import AsyncCalls
from rivulet.aio.drawing import snapshots
from rivulet.aio.multiplex import AsyncMultiplex, generate_many
from rivulet.aio.session import AsyncSession
from rivulet.aio.streams import AsyncGenerateStream
from rivulet.core import admin, images, requests, session_messages
from rivulet.core.bulk import BulkGeneration, Failure, Patience
from rivulet.core.connection import ConnectOptions, TlsOptions
from rivulet.core.multiplex import MultiplexPart, many
from rivulet.core.reply_reader import Reader
from rivulet.core.token_bytes import AsyncQuestions, ModelQuestions, TokenBytes
from rivulet.v1 import admin_service_pb2, inference_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class AsyncClient:
    """A connection to the Rivulet server at `target`: "HOST:PORT", or a name with one of gRPC's schemes, such as
    "dns:///HOST:PORT" or "unix:PATH".
    Connects with the first call. It belongs to one event loop: create it in a coroutine.

    tls: absent: plaintext, for loopback and for networks that are protected by other means.
    connect_timeout: seconds, 0.001 to 3600; gRPC gives an attempt at least about one second. A connection attempt that
      takes longer fails, and calls that wait for it raise Unavailable.
    wait_for_ready: calls wait until the server is reachable, up to their timeout, instead of raising Unavailable.
    max_attempts: attempts per call, 1 to 5. A call is tried again, after 0.1 s to 2 s, only if it ends with
      UNAVAILABLE before the first message of its reply. A reply of generate() that has begun is resumed
      (GenerateStream).
    max_receive_bytes: largest message accepted from the server.
    metadata: sent with every call.
    tenant: the tenant of the calls, at most 64 of A-Z a-z 0-9 . _ -: sent as metadata "rivulet-tenant". Leave it empty
      if a proxy sets it, or if there is a key.
    key: API key, if the server requires one: sent as metadata "authorization". Without `tls` everybody on the network
      path can read it.

    Every call takes `timeout` (seconds for the whole call) and `metadata`. If a task is cancelled, its call ends.
    Thread: the event loop's; calls may run concurrently.
    Errors: RuntimeError (outside a coroutine), TypeError, ValueError (arguments), OSError (a certificate file cannot be
    read); calls raise rivulet.RivuletError.
    """

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
        options = ConnectOptions(
            target, tls, connect_timeout, wait_for_ready, max_attempts, max_receive_bytes, metadata, tenant, key
        )
        self._calls = AsyncCalls(options)
        self._token_bytes = TokenBytes()

    async def close(self) -> None:
        """Closes the connection. Running calls end with Cancelled; later calls raise ValueError."""
        await self._calls.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def generate(self, prompt: requests.Prompt = (), **options: Unpack[requests.GenerateOptions]) -> AsyncGenerateStream:
        """Streams generated tokens: `async for part in client.generate("ROMEO:", max_tokens=100): ...`. For the whole reply:
        `await client.generate(...).collect()`.

        prompt: text (str), token ids (a sequence or array of integers, [n]), or the first values of an image (bytes, or a numpy
          array of uint8, [n]). May be empty for a model with a bos.
        options: model, max_tokens, num_samples, temperature, top_k, top_p, min_p, repetition_penalty, frequency_penalty,
          presence_penalty, logit_bias, seed, stop, stop_token_ids, include_stop_string, ignore_eos, min_tokens,
          skip_special_tokens, reasoning, speculation, logprobs, top_logprobs,
          cache, priority, add_special_tokens, parse_special_tokens, resume, timeout, metadata: see rivulet.GenerateOptions.
        Errors: TypeError, ValueError (arguments); while iterating the errors of AsyncGenerateStream.
        """
        request = requests.generate(prompt, options)
        reader = Reader(request, options, self._calls.max_attempts)

        def start(message: inference_pb2.GenerateRequest) -> Any:
            return self._calls.start("generate", message, reader.call_options())

        return AsyncGenerateStream(start, reader, self._asks(request.model, reader.call_options))

    def _asks(self, model: str, own: Callable[[], requests.CallOptions]) -> AsyncQuestions:
        """The calls by which a reply asks the server about its model. own: returns the options of a call that begins now."""
        return ModelQuestions(
            lambda: self.model(model, **own()), lambda ids: self.detokenize(ids, model=model, **own()), self._token_bytes
        )

    def multiplex(self, **options: Unpack[requests.CallOptions]) -> AsyncMultiplex:
        """Opens a stream for many requests at once: `async with client.multiplex() as stream: ...`, then stream.generate()
        for each request and one loop over the parts of all requests. `timeout` is for the whole stream."""

        def start(messages: Any, timeout: float | None) -> Any:
            return self._calls.start("multiplex", messages, {**options, "timeout": timeout})

        return AsyncMultiplex(start, options.get("timeout"), self._calls.max_attempts, self._calls.too_large)

    def generate_many(
        self, prompts: Iterable[requests.Prompt], *, at_once: int = 256, **options: Unpack[requests.GenerateOptions]
    ) -> AsyncGenerator[MultiplexPart, None]:
        """Generates after each of many prompts, over one stream, and yields the parts of all replies as they arrive.
        `key` of a part is the index of its prompt. If a request fails, its last part has the `error`.

        prompts: read as requests end; may be infinite.
        at_once: maximum number of open requests, at least 1.
        options: as generate(), for all; prompt i draws with `seed` + i. `timeout` is for each request.
        Errors: TypeError, ValueError (arguments); while iterating the errors of AsyncMultiplex.
        """
        return generate_many(lambda: self._ask_most_bytes(options), self.multiplex, many(prompts, at_once, options), at_once)

    def generate_all(
        self,
        prompts: Iterable[requests.Prompt],
        *,
        at_once: int = 256,
        patience: float = 60.0,
        **options: Unpack[requests.GenerateOptions],
    ) -> AsyncGenerator[replies.Generation | Failure, None]:
        """Generates after each of many prompts, over one stream, and yields the whole replies in the order of the prompts.
        If a prompt fails, its error is yielded in its place: a RivuletError, or a TypeError or ValueError for an invalid prompt.
        After a temporary error (the server cannot be reached, or its queue is full) the prompt is sent again, also after a
        restart of the server.

        prompts: read as requests end; may be infinite.
        at_once: maximum number of open requests, at least 1.
        patience: seconds without a reply after which a temporary error is yielded.
        options: as generate(), for all; prompt i draws with `seed` + i. `timeout` is for each request.
        Errors: TypeError, ValueError (arguments); while iterating the errors of AsyncMultiplex, except Unavailable.
        """
        own = options.copy()
        metadata = own.pop("metadata", ())
        requests.generate((), own)  # raises errors of the options, which are not a prompt's
        bulk = BulkGeneration(many(prompts, at_once, own), at_once, patience)
        return generate_all(lambda: self._ask_most_bytes(options), lambda: self.multiplex(metadata=metadata), bulk)

    async def _ask_most_bytes(self, options: requests.GenerateOptions) -> None:
        """Called before a stream of many requests: a request above the server's size limit would end the stream with all its
        requests. An error of this call is ignored, because the stream gets it too."""
        if not self._calls.knows_most_bytes:
            with suppress(errors.RivuletError):
                await self.model(options.get("model", ""), timeout=options.get("timeout"), metadata=options.get("metadata", ()))

    def score_many(
        self,
        contents: Iterable[str | Sequence[int] | NDArray[np.integer[Any]]],
        *,
        at_once: int = 32,
        patience: float = 60.0,
        **options: Unpack[requests.ScoreOptions],
    ) -> AsyncGenerator[replies.Score | Failure, None]:
        """Yields how likely each of many contents is, in their order. If a content fails, its error is yielded in its place.
        Temporary errors are handled as in generate_all().

        at_once: maximum number of calls at a time, at least 1.
        options: as score(), for all.
        Errors: TypeError, ValueError (arguments).
        """
        if isinstance(contents, (str, bytes)):
            raise TypeError(f"contents: must be several contents; got one: {contents!r}")
        requests.refuse_unknown("score_many", options, requests.ScoreOptions)
        requests.count("at_once", at_once)
        requests.check_score(options)
        return score_many(lambda content: self.score(content, **options), iter(contents), at_once, Patience(patience))

    async def open_session(
        self,
        *,
        model: str = "",
        seed: int | None = None,
        idle_timeout: float | None = None,
        **options: Unpack[requests.CallOptions],
    ) -> AsyncSession:
        """Opens a session without tokens. Tokens are processed once, and the session can be continued, forked and rewound at
        any position. Leaving its block, `async with await client.open_session() as session: ...`, closes it.

        seed: used by every generate() without its own seed; absent: the server draws one.
        idle_timeout: seconds, 1 to 86400, without a call after which the server closes it; absent: the server's default.
        Errors: InvalidArgument, NotFound, ResourceExhausted (SESSION_LIMIT, TENANT_SESSION_LIMIT, API_KEY_SESSION_LIMIT), Unavailable, DeadlineExceeded.
        """
        request = session_messages.open_request(model, seed, idle_timeout)
        reply = await self._calls.reply("open_session", request, options)
        return AsyncSession(self, replies.session(reply.session))

    async def session(
        self, id: str, *, model: str = "", cookie: str = "", **options: Unpack[requests.CallOptions]
    ) -> AsyncSession:
        """Returns the session with this id, at its current position, to continue it in another program. One AsyncSession
        object at a time may use it. cookie: AsyncSession.cookie of the other object; only needed behind a balancer.
        Errors: InvalidArgument (SESSION_ID_MALFORMED), NotFound (SESSION_NOT_FOUND: unknown, closed, idle for too long, or another
        tenant's)."""
        self._calls.cookies.set(requests.text("id", id), requests.text("cookie", cookie))
        reply = await self._calls.reply("get_session", session_messages.get_request(id, model), options)
        return AsyncSession(self, replies.session(reply.session))

    async def sessions(self, *, model: str = "", **options: Unpack[requests.CallOptions]) -> tuple[replies.SessionInfo, ...]:
        """Lists the tenant's sessions, the least recently used first. A session that is used meanwhile may be listed twice."""
        request, found = session_messages.list_request(model), []
        while True:
            reply = await self._calls.reply("list_sessions", request, options)
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
        """Opens a session from a snapshot of AsyncSession.snapshot(), made by this server or another. Its `same_numerics`
        says whether further tokens are bit-identical.

        snapshot: the bytes, whole or in pieces of any size; an AsyncIterable is read whole before the call.
        Errors: DataLoss (damaged), FailedPrecondition (another model, version or key), PermissionDenied (another tenant's),
          OutOfRange (longer than any snapshot of this model), ResourceExhausted (SESSION_LIMIT, TENANT_SESSION_LIMIT, API_KEY_SESSION_LIMIT,
          RESTORE_MEMORY), Aborted (RESTORE_TOO_SLOW), and any exception that iterating over `snapshot` raises.
        """
        if isinstance(snapshot, AsyncIterable):
            snapshot = [chunk async for chunk in snapshot]
        messages = session_messages.RestoreMessages(snapshot, model, idle_timeout)
        try:
            reply = await self._calls.reply("restore_session", messages, options)
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
        """Returns how likely a text or a sequence of token ids [n] is. With a bos every token is scored; without a bos,
        all but the first.

        window: cuts a long sequence into windows of this many scored tokens, each scored from an empty state.
        output_positions: indices of scored tokens (0 = the first) whose raw head outputs are returned.
        logprobs: return the log-likelihood of each scored token.
        priority: order among the tenant's own requests that wait for a slot.
        add_special_tokens, parse_special_tokens: for a text, as in GenerateOptions.
        Errors: InvalidArgument, NotFound, OutOfRange, ResourceExhausted, Unavailable, DeadlineExceeded.
        """
        request = requests.score(
            content, model, window, output_positions, logprobs, priority, add_special_tokens, parse_special_tokens
        )
        return replies.score(await self._calls.reply("score", request, options), logprobs, output_positions is not None)

    async def tokenize(
        self,
        text: str,
        *,
        model: str = "",
        add_special_tokens: bool | None = None,
        parse_special_tokens: bool | None = None,
        **options: Unpack[requests.CallOptions],
    ) -> replies.Tokens:
        """Converts a text to tokens of the model, and tells which bytes of the text each token stands for.

        add_special_tokens: add the tokens with which the tokenizer begins and ends a text; absent: True.
        parse_special_tokens: names of control tokens in the text become these tokens; absent: True.
        Errors: InvalidArgument (TEXT_NOT_SUPPORTED: the model has no tokenizer; TEXT_NOT_IN_ALPHABET,
          TEXT_NOT_IN_VOCABULARY), NotFound, ResourceExhausted, DeadlineExceeded.
        """
        request = requests.tokenize(text, model, add_special_tokens, parse_special_tokens)
        return replies.tokens(await self._calls.reply("tokenize", request, options))

    async def detokenize(
        self,
        ids: Sequence[int] | NDArray[np.integer[Any]],
        *,
        model: str = "",
        skip_special_tokens: bool = False,
        **options: Unpack[requests.CallOptions],
    ) -> replies.Text:
        """Returns the text of token ids [n].

        skip_special_tokens: leave out the text of control tokens.
        Errors: InvalidArgument (TEXT_NOT_SUPPORTED, TOKEN_OUT_OF_RANGE, TEXT_TOO_LONG), NotFound,
          ResourceExhausted, DeadlineExceeded.
        """
        reply = await self._calls.reply("detokenize", requests.detokenize(ids, model, skip_special_tokens), options)
        return replies.text(reply)

    async def models(self, **options: Unpack[requests.CallOptions]) -> tuple[model_replies.ModelSummary, ...]:
        """The models that the server serves."""
        reply = await self._calls.reply("list_models", inference_pb2.ListModelsRequest(), options)
        return tuple(model_replies.summary(model) for model in reply.models)

    async def model(self, model: str = "", **options: Unpack[requests.CallOptions]) -> model_replies.Model:
        """Describes one model. The name may be empty if the server serves exactly one model. Errors: NotFound."""
        request = inference_pb2.GetModelRequest(model=requests.text("model", model))
        return model_replies.model(await self._calls.reply("get_model", request, options))

    async def load(self, model: str = "", **options: Unpack[requests.CallOptions]) -> tuple[model_replies.ModelLoad, ...]:
        """Current capacity and load of one model, or of every model if the name is empty. Errors: NotFound."""
        request = inference_pb2.GetLoadRequest(model=requests.text("model", model))
        reply = await self._calls.reply("get_load", request, options)
        return tuple(model_replies.load(entry) for entry in reply.models)

    async def server_load(self, **options: Unpack[requests.CallOptions]) -> model_replies.ServerLoad:
        """Current connections, and refusals since the server started."""
        reply = await self._calls.reply("get_load", inference_pb2.GetLoadRequest(), options)
        return model_replies.server_load(reply.server)

    async def load_model(self, model: str, **options: Unpack[requests.CallOptions]) -> model_replies.ModelSummary:
        """Loads a model by its name and waits until it serves. For operators: the client's target must be the server's
        --admin-listen. Errors: NotFound (MODEL_NOT_IN_REPOSITORY), AlreadyExists, Aborted (MODEL_BUSY),
        FailedPrecondition (its directory holds no valid model), DataLoss, ResourceExhausted (OUT_OF_MEMORY), Unimplemented."""
        reply = await self._calls.reply("load_model", admin.load_request(model), options)
        return model_replies.summary(reply.model)

    async def unload_model(
        self, model: str, *, drain_timeout: float | None = None, **options: Unpack[requests.CallOptions]
    ) -> admin.Unloaded:
        """Unloads a model and waits until its memory is free. For operators, as load_model(). The model's sessions end
        with it.

        drain_timeout: seconds, 0 to 86400, for which running requests may continue; absent: the server's own.
        Errors: NotFound, Aborted (MODEL_BUSY), Unimplemented (no AdminService at the target).
        """
        request = admin.unload_request(model, drain_timeout)
        return admin.unloaded(await self._calls.reply("unload_model", request, options))

    async def log_level(self, **options: Unpack[requests.CallOptions]) -> admin.LogLevel:
        """Returns the log level: the server logs lines of this level and above. For operators, as load_model()."""
        reply = await self._calls.reply("get_log_level", admin_service_pb2.GetLogLevelRequest(), options)
        return admin.log_level(reply.level)

    async def set_log_level(self, level: admin.LogLevel, **options: Unpack[requests.CallOptions]) -> admin.LogLevel:
        """Sets the log level until the process ends, and returns the previous level. For operators, as load_model()."""
        reply = await self._calls.reply("set_log_level", admin.log_level_request(level), options)
        return admin.log_level(reply.previous)

    async def health(self, service: str = "", **options: Unpack[requests.CallOptions]) -> replies.HealthStatus:
        """Health as in grpc.health.v1, of a model by its name, or of the whole server. Errors: NotFound (no such service)."""
        request = wrappers_pb2.StringValue(value=requests.text("service", service))
        reply = await self._calls.reply("health", request, options)
        return replies.HealthStatus(reply.value)

    def stream_images(
        self, count: int = 1, *, seed: int | None = None, **options: Unpack[requests.ImageOptions]
    ) -> AsyncGenerator[images.Snapshot, None]:
        """Draws `count` images and yields a snapshot every `interval` seconds; the last one is complete. Closing or
        dropping the generator ends the calls.

        seed: image i is a function of model, prompt, temperature, seed and i; absent: a random one (see Snapshot.seed).
        options: model, temperature, prompt, interval, timeout (seconds for the whole), metadata: see rivulet.ImageOptions.
        Errors: ValueError, TypeError; while iterating also ValueError (for example a model that does not generate
        images) and the errors of AsyncGenerateStream.
        """
        order = images.Order("stream_images", count, seed, options)
        return snapshots(order, self.model, self.generate)

    async def generate_images(
        self,
        count: int = 1,
        *,
        seed: int | None = None,
        on_progress: Callable[[images.Snapshot], object] | None = None,
        **options: Unpack[requests.ImageOptions],
    ) -> NDArray[np.uint8]:
        """Draws `count` images: uint8 [count, height, width], or [count, height, width, channels] for several channels;
        values 0 to num_levels - 1. Arguments and errors: stream_images(). `on_progress` is called in this task,
        and must not block, with every snapshot, the last one included, for example with rivulet.draw.live()."""
        async for snapshot in self.stream_images(count, seed=seed, **options):
            if on_progress is not None:
                on_progress(snapshot)
        return snapshot.images
