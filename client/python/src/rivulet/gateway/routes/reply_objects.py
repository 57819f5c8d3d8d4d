# SPDX-License-Identifier: Apache-2.0
"""Replies of the server as OpenAI's objects: complete objects, and the chunks of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Union

from rivulet import AsyncGenerateStream, Durability, Finish, FinishReason, Generation, Part, Sample, Usage
from rivulet.errors import Internal
from rivulet.gateway.upstream.batching import merged, together
from rivulet.gateway.web.event_ids import Progress
from rivulet.gateway.web.exchange import DONE, LEFT_OUT, encoded, event

Piece = Union[Part, Sample]

_LEAST_LOGPROB = -9999.0  # JSON has no infinity


def finish_reason(finish: Finish | None) -> str | None:
    if finish is None:
        return None
    return "length" if finish.reason is FinishReason.LENGTH else "stop"


def logprob(value: float) -> float:
    return max(float(value), _LEAST_LOGPROB)


def ids_of(piece: Piece) -> set[int]:
    """The ids of all tokens that a part's log-probabilities name."""
    return {*piece.tokens.tolist(), *(id for entry in piece.top_logprobs or () for id in entry.token_ids.tolist())}


def durability_of(durability: Durability | None) -> dict[str, Any]:
    """A durability as a JSON object of an answer."""
    if durability is None:
        return {}
    told: dict[str, Any] = {"durable": durability.durable, "position": durability.position}
    if durability.other_numerics_id:
        told["other_numerics_id"] = durability.other_numerics_id
    return {"durability": told}


def usage_of(usages: Iterable[Usage | None]) -> dict[str, Any]:
    """The usage over all prompts of a request. Errors: Internal."""
    prompt = completion = cached = reasoning = drafted = accepted = 0
    for usage in usages:
        if usage is None:
            raise Internal("the reply ended without usage")
        prompt += usage.prompt_tokens
        completion += usage.completion_tokens
        cached += usage.cached_prompt_tokens
        reasoning += usage.reasoning_tokens
        drafted += usage.drafted_tokens
        accepted += usage.accepted_tokens
    return {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning, "accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted,
        },
    }  # fmt: skip


class Form(Protocol):
    """Writes the choices of a route. index: number of the choice, over all prompts of the request."""

    kind: str
    chunk_kind: str
    id_prefix: str

    async def prepare(self, index: int, piece: Piece) -> None:
        """To be called before chunk() or whole() of this piece. Errors: the server's errors."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk of a choice before its first part."""

    def chunk(self, index: int, part: Part) -> dict[str, Any] | None:
        """A part of a choice; None if it holds nothing to send."""

    def whole(self, index: int, sample: Sample) -> dict[str, Any]: ...


@dataclass
class Reply:
    """One request: a reply of the server for each of its prompts, `samples` choices each."""

    form: Form
    model: str
    streams: Sequence[AsyncGenerateStream]
    samples: int
    progress: Progress
    include_usage: bool = False
    session: dict[str, Any] | None = None  # of a reply on a session: id, position so far, and at the end durability
    _head: bytes = b""  # beginning of every event, up to its choices

    def _object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        session = {} if self.session is None else {"session": self.session}
        id = f"{self.form.id_prefix}-{self.progress.reply.hex()}"
        head = {"id": id, "object": kind, "created": self.progress.created, "model": self.model}
        return {**head, "choices": choices, **session, **more}

    def _moved(self, pieces: Iterable[Part]) -> None:
        for piece in pieces:
            if self.session is not None and piece.proto.HasField("session"):
                self.session["position"] = piece.proto.session.position

    def _ended(self) -> None:
        if self.session is not None:
            self.session.update(durability_of(self.streams[0].durability))

    async def complete(self) -> dict[str, Any]:
        """The whole reply. Errors: the server's errors."""
        generations = await _collected(self.streams)
        self._ended()
        choices: list[dict[str, Any]] = []
        for sample in (sample for generation in generations for sample in generation.samples):
            await self.form.prepare(len(choices), sample)
            choices.append(self.form.whole(len(choices), sample))
        return self._object(self.form.kind, choices, usage=usage_of(one.usage for one in generations))

    def given(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """The whole reply without generated tokens."""
        return self._object(self.form.kind, choices, usage=usage)

    async def given_events(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """The same as chunks, without the part that the client has."""
        for sent, choice in zip(self.progress.choices, choices):
            if not sent.ended:
                sent.ended = True
                yield self._event([choice])
        if self.include_usage and not self.progress.usage_sent:
            self.progress.usage_sent = True
            yield self._event([], usage)
        yield DONE

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The chunks of the reply, without the part that the client has. Closing it ends the calls to the server."""
        begun: set[int] = set()
        groups = together(_interleaved(self.streams))
        try:
            async for found in groups:
                chunks = b""
                for number, part in found:
                    if number not in begun:
                        self.progress.begins(number, part)
                        begun.add(number)
                    self._moved((part,))
                for number, part in merged(found):
                    chunks += await self._chunks(number * self.samples + part.sample_index, part)
                if chunks:
                    yield chunks
        finally:
            await groups.aclose()
        if self.include_usage and not self.progress.usage_sent:
            self.progress.usage_sent = True
            self._ended()
            yield self._event([], usage_of(stream.usage for stream in self.streams))
        yield DONE

    async def _chunks(self, index: int, part: Part) -> bytes:
        old, new = self.progress.split(index, part)
        if old is not None:  # what is told of the new piece depends on it
            await self.form.prepare(index, old)
            self.form.chunk(index, old)
        if new is None:
            return LEFT_OUT
        await self.form.prepare(index, new)
        sent, chunks = self.progress.choices[index], b""
        opening = None if sent.opened else self.form.opening(index)
        sent.opened = True
        if opening is not None:
            chunks += self._event([opening])
        sent.take(new)
        chunk = self.form.chunk(index, new)
        return chunks if chunk is None else chunks + self._event([chunk])

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        if usage is not None or self.include_usage or self.session is not None:
            more = {"usage": usage} if self.include_usage else {}
            return event(self._object(self.form.chunk_kind, choices, **more), self.progress.line())
        if not self._head:  # equal in all events
            self._head = encoded(self._object(self.form.chunk_kind, []))[: -len(b"[]}")]
        return self.progress.line() + b"data: " + self._head + encoded(choices) + b"}\n\n"


async def _end(tasks: Iterable[asyncio.Future[Any]], streams: Sequence[AsyncGenerateStream]) -> None:
    """Ends the readers of the streams, and their calls to the server."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for stream in streams:
        stream.close()


async def _collected(streams: Sequence[AsyncGenerateStream]) -> list[Generation]:
    """All replies; if one reply fails, the other calls are ended."""
    tasks = [asyncio.ensure_future(stream.collect()) for stream in streams]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await _end(tasks, streams)


async def _next(stream: AsyncGenerateStream) -> Part | None:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None


async def _interleaved(streams: Sequence[AsyncGenerateStream]) -> AsyncGenerator[tuple[int, Part], None]:
    """The parts of all replies as they arrive, each with the number of its stream."""
    tasks: dict[asyncio.Task[Part | None], int] = {}
    try:
        if len(streams) == 1:
            async for part in streams[0]:
                yield 0, part
            return
        tasks = {asyncio.create_task(_next(stream)): number for number, stream in enumerate(streams)}
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number, found = tasks.pop(task), task.result()
                if found is not None:
                    yield number, found
                    tasks[asyncio.create_task(_next(streams[number]))] = number
    finally:
        await _end(tasks, streams)
