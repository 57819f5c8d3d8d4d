# SPDX-License-Identifier: Apache-2.0
"""Sessions, under /rivulet/v1/sessions."""

from __future__ import annotations

from typing import Any, Union

from rivulet import AsyncSession, SessionInfo
from rivulet.gateway.routes import sampling
from rivulet.gateway.routes.completions import DEFAULT_MAX_TOKENS, CompletionForm, take_logprobs
from rivulet.gateway.routes.reply_objects import Reply, durability_of
from rivulet.gateway.web.body import PROMPT_TYPES, own_prompt
from rivulet.gateway.web.event_ids import Progress
from rivulet.gateway.web.exchange import Call, begun, checked
from rivulet.gateway.web.problems import invalid

_LAST_POSITION = 2**63 - 1
_LAST_SEED = 2**64 - 1


def _entry(session: Union[AsyncSession, SessionInfo]) -> dict[str, Any]:
    return {
        "id": session.id, "object": "rivulet.session", "model": session.model, "position": session.position,
        "seed": session.seed, "marks": dict(session.marks), "idle_timeout": session.idle_timeout,
    }  # fmt: skip


def _model(call: Call) -> str:
    """The name in the body or the query; it may be absent if the server serves exactly one model."""
    return call.body.text("model") or call.query.get("model", "")


async def _session(call: Call, model: str) -> AsyncSession:
    return await call.client.session(call.path["session_id"], model=model, **call.options)


async def open_session(call: Call) -> Any:
    """Opens a session."""
    body = call.body
    model, seed, idle_timeout = _model(call), body.integer("seed", 0, _LAST_SEED), body.number("idle_timeout", 1e9)
    body.end()
    return _entry(await call.client.open_session(model=model, seed=seed, idle_timeout=idle_timeout, **call.options))


async def list_sessions(call: Call) -> Any:
    """The open sessions."""
    found = await call.client.sessions(model=_model(call), **call.options)
    return {"object": "list", "data": [_entry(info) for info in found]}


async def get_session(call: Call) -> Any:
    """A session."""
    return _entry(await _session(call, _model(call)))


async def close_session(call: Call) -> Any:
    """Closes a session."""
    session = await _session(call, _model(call))
    await session.close(**call.options)
    return {"id": session.id, "object": "rivulet.session.closed"}


async def append(call: Call) -> Any:
    """Appends a prompt to a session."""
    body = call.body
    model, given, mark = _model(call), own_prompt(body.take("prompt", *PROMPT_TYPES)), body.text("mark")
    body.end()
    session = await _session(call, model)
    done = await session.append(given, mark=mark, cache=call.cache, **call.options)
    return _entry(session) | durability_of(done.durability)


async def fork(call: Call) -> Any:
    """Copies of a session, from its end or a position."""
    body = call.body
    model, count = _model(call), body.integer("count", 1, 256) or 1
    seed, position = body.integer("seed", 0, _LAST_SEED), body.integer("position", 0, _LAST_POSITION)
    body.end()
    session = await _session(call, model)
    forks = await session.fork(count, seed=seed, position=position, **call.options)
    return {"object": "list", "data": [_entry(one) for one in forks]}


async def rewind(call: Call) -> Any:
    """Takes a session back to a position or a mark."""
    body = call.body
    model, position, mark = _model(call), body.integer("position", 0, _LAST_POSITION), body.text("mark")
    body.end()
    if (position is None) == (mark is None):
        raise invalid("position", "exactly one of position and mark must be given")
    session = await _session(call, model)
    await session.rewind(position=position, mark=mark, **call.options)
    return _entry(session)


async def _session_of(call: Call, model: str, progress: Progress, position: int | None) -> AsyncSession:
    """The session, at the position where its lost reply began, or else at its end. Sets the session's fields of `progress`."""
    if call.lost is not None:
        return await call.client.session_again(call.path["session_id"], progress.position, progress.sequence_hash, model, **call.options)
    session = await _session(call, model)
    progress.position = session.position if position is None else position
    progress.sequence_hash = session.sequence_hash if progress.position == session.position else 0
    return session


async def generate(call: Call) -> Any:
    """Text after a session and a prompt: as a completion, without n, echo and several prompts."""
    body = call.body
    name, given = _model(call), own_prompt(body.take("prompt", *PROMPT_TYPES))
    stream, include_usage = sampling.take_stream(body)
    options = sampling.take(body)
    options.update(sampling.take_constraint(body, call.names))
    most = sampling.take_max_tokens(body, "max_tokens")
    options.update(max_tokens=DEFAULT_MAX_TOKENS if most is None else most, cache=call.cache, **call.options)
    options["position"] = body.integer("position", 0, _LAST_POSITION)
    options["mark"] = body.text("mark")
    ids, wants_logprobs = body.flag("return_token_ids"), take_logprobs(call, options)
    body.only("n", 1)
    body.end()
    progress = call.progress(1, 1)
    session = await _session_of(call, name, progress, options["position"])
    texts = call.token_texts(await call.client.model(session.model, **call.options)) if wants_logprobs else None
    answer = checked(lambda: session.generate(given, **options), call.names)
    state = {"id": session.id, "position": session.position}
    reply = Reply(CompletionForm(None, None, texts, ids), session.model, [answer], 1, progress, include_usage, state)
    if stream:
        return await begun(reply.events(), call.names)
    complete = await reply.complete()
    state["position"] = session.position
    return complete
