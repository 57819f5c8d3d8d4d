# SPDX-License-Identifier: Apache-2.0
"""The gateway's client of the server. It remembers for a while which keys the server knows, and the descriptions of its
models."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import grpc

from rivulet import AsyncClient, AsyncSession, CallOptions, HealthStatus, Model, TextContent, errors, replies
from rivulet.core import session_messages
from rivulet.core.token_bytes import TokenBytes

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

FROM_FILE = "file"
SECONDS = 30.0  # for which an answer is remembered
_MOST = 1024  # answers
_PATIENCE = 30.0  # seconds for a call that others may wait for, too
_HEALTH_PATIENCE = 5.0  # seconds


class Remembered(Generic[T]):
    """Answers of calls by key. Callers that ask while a call runs share the call. Errors are not remembered. Thread: the event
    loop's."""

    def __init__(self) -> None:
        self._found: OrderedDict[Hashable, tuple[float, asyncio.Task[T]]] = OrderedDict()  # with the time when the call began

    async def get(self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer of `ask`, or an answer that is younger than SECONDS. Errors: the errors of `ask`."""
        began, task = self._found.get(key, (0.0, None))
        if task is None or time.monotonic() - began > SECONDS:
            task = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._ended(key, done))
            self._found[key] = time.monotonic(), task
            self._found.move_to_end(key)
            if len(self._found) > _MOST:
                self._found.popitem(last=False)
        return await asyncio.shield(task)  # if one caller leaves, the call continues for the others

    def _ended(self, key: Hashable, task: asyncio.Task[T]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if failed and self._found.get(key, (0.0, None))[1] is task:
            del self._found[key]


def _authorization(options: CallOptions) -> bytes:
    """A hash of a call's authorization header: keys are not kept."""
    value = dict(options.get("metadata", ())).get("authorization", "")
    return hashlib.sha256(value if isinstance(value, bytes) else value.encode()).digest()


class _LostSession(AsyncSession):
    """A session whose first reply is a lost reply, from its beginning. The server drops the tokens of the lost reply."""

    def _reader(self, *given: Any) -> Any:
        reader = super()._reader(*given)
        reader._request.resume.SetInParent()  # nothing was received
        if not self.sequence_hash:  # 0: not known, not checked
            reader._request.session.ClearField("sequence_hash")
        return reader


class GatewayClient(AsyncClient):
    """As AsyncClient, for callers that each bring a key as `metadata`. chat_template: replaces the template of every text model;
    empty: no replacement."""

    def __init__(self, *args: Any, chat_template: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._chat_template = chat_template
        self._keys: Remembered[None] = Remembered()
        self._models: Remembered[Model] = Remembered()

    @property
    def token_bytes(self) -> TokenBytes:
        """The bytes of tokens. Replies with top_logprobs ask for some tokens themselves."""
        return self._token_bytes

    async def serves(self) -> bool:
        """Whether the server's health is SERVING; False if it does not answer."""
        try:
            return await self.health(timeout=_HEALTH_PATIENCE) is HealthStatus.SERVING
        except errors.RivuletError:
            return False

    async def check_key(self, **options: Unpack[CallOptions]) -> None:
        """Checks that the server knows the key of `options`. This does not count for the key's limits. Errors:
        Unauthenticated; Unavailable and DeadlineExceeded, if the server does not answer."""
        patient: CallOptions = {"timeout": _PATIENCE, **options}
        await self._keys.get(_authorization(options), lambda: self._ask_for_key(patient))

    async def model(self, model: str = "", **options: Unpack[CallOptions]) -> Model:
        """As AsyncClient.model(), remembered for each key alone: a key may not see every model."""
        patient: CallOptions = {"timeout": _PATIENCE, **options}
        return await self._models.get((_authorization(options), model), lambda: self.model_now(model, **patient))

    async def model_now(self, model: str = "", **options: Unpack[CallOptions]) -> Model:
        """As AsyncClient.model(); a chat template from the gateway's file has the name FROM_FILE."""
        found = await super().model(model, **options)
        if not self._chat_template or not isinstance(found.content, TextContent):
            return found
        return replace(found, chat_template=self._chat_template, chat_template_name=FROM_FILE)

    async def session_again(
        self, id: str, position: int, sequence_hash: int, model: str, **options: Unpack[CallOptions]
    ) -> AsyncSession:
        """As AsyncClient.session(), for a lost reply on the session that began at the position. sequence_hash: hash at the
        position, or 0."""
        reply = await self._calls.reply("get_session", session_messages.get_request(id, model), options)
        info = replace(replies.session(reply.session), position=position, sequence_hash=sequence_hash)
        return _LostSession(self, info)

    async def _ask_for_key(self, options: CallOptions) -> None:
        """Calls reflection without a question: it needs a key, costs the server little, and counts for no limit."""
        call = self._calls.start("reflection", iter(()), options)
        try:
            async for _ in call:
                pass
        except grpc.RpcError as error:
            _refuse(errors.from_call(error, options["timeout"]))


def _refuse(error: errors.RivuletError) -> None:
    """Raises an error that says that the key is not known, or that no server answers. Raises nothing if a server or a proxy has no
    reflection: then the next call fails if the key is wrong."""
    if isinstance(error, errors.Unauthenticated):
        # Reflection is gRPC's own service: there the reason begins the message.
        reason = re.fullmatch(r"(API_KEY_[A-Z]+): (.*)", error.message, re.DOTALL)
        if reason is None or error.reason:
            raise error
        raise errors.Unauthenticated(reason.group(2), reason.group(1), "authorization")
    if isinstance(error, (errors.Unavailable, errors.DeadlineExceeded)):
        raise error
