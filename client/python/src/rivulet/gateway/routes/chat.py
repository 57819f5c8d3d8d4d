# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions, for models that come with a chat template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rivulet import Constraint, FinishReason, Model, Part, Reasoning, Sample, Speculation, TextContent, TopLogprobs
from rivulet.core.requests import forms_of
from rivulet.gateway.routes import sampling
from rivulet.gateway.routes.reply_objects import Piece, Reply, finish_reason, ids_of, logprob
from rivulet.gateway.routes.reply_parts import ReplyParts
from rivulet.gateway.routes.tokens import TokenTexts
from rivulet.gateway.web.body import Body
from rivulet.gateway.web.exchange import Call, begun, checked
from rivulet.gateway.web.problems import invalid
from rivulet.gateway.worker.body import CHAT_PARAMETERS
from rivulet.gateway.worker.progress import message_of

_MOST_CHOICES = 128
NAMES = {"prompt": "messages", "prompt.text": "messages", "text": "messages"}  # the template turns messages into a prompt


class ChatForm:
    """texts: for log-probabilities; None: not requested. parts: makes those of a choice; None: all text is content."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, texts: TokenTexts | None, parts: Callable[[int], ReplyParts] | None = None) -> None:
        self._texts = texts
        self._new_parts = parts
        self._parts: dict[int, ReplyParts] = {}
        self._told: dict[str, Any] = {}  # what the piece that was prepared adds to its message

    async def prepare(self, index: int, piece: Piece) -> None:
        if self._texts is not None:
            await self._texts.prepare(ids_of(piece))
        if self._new_parts is None:
            self._told = {"content": piece.text} if piece.text else {}
            return
        if index not in self._parts:
            self._parts[index] = self._new_parts(index)
        cut = piece.finish is not None and piece.finish.reason is FinishReason.LENGTH
        self._told = await self._parts[index].add(piece.text, "cut" if cut else "end" if piece.finish is not None else "")

    def _choice(self, index: int, key: str, message: dict[str, Any], piece: Piece | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, key: message, "logprobs": None, "finish_reason": None}
        if piece is None:
            return choice
        choice["finish_reason"] = finish_reason(piece.finish)
        if self._texts is not None:
            choice["logprobs"] = {"content": _logprobs(self._texts, piece), "refusal": None}
        parts = self._parts.get(index)
        if parts is not None and piece.finish is not None:
            if parts.calls and choice["finish_reason"] == "stop":
                choice["finish_reason"] = "tool_calls"
            if parts.error is not None:
                choice["parsing_error"] = parts.error
        return choice

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, "delta", {"role": "assistant", "content": ""}, None)

    def chunk(self, index: int, part: Part) -> dict[str, Any] | None:
        if not (self._told or part.finish or (part.tokens.size and self._texts is not None)):
            return None
        return self._choice(index, "delta", self._told, part)

    def whole(self, index: int, sample: Sample) -> dict[str, Any]:
        return self._choice(index, "message", message_of(self._told), sample)


def _token(texts: TokenTexts, id: int, value: float) -> dict[str, Any]:
    return {"token": texts.text(id), "logprob": logprob(value), "bytes": list(texts.raw(id))}


def _top(texts: TokenTexts, entry: TopLogprobs) -> list[dict[str, Any]]:
    return [_token(texts, *one) for one in zip(entry.token_ids.tolist(), entry.logprobs.tolist())]


def _logprobs(texts: TokenTexts, piece: Piece) -> list[dict[str, Any]]:
    ids = piece.tokens.tolist()
    values = [] if piece.logprobs is None else piece.logprobs.tolist()
    top = piece.top_logprobs or [None] * len(ids)
    return [
        {**_token(texts, id, value), "top_logprobs": [] if entry is None else _top(texts, entry)}
        for id, value, entry in zip(ids, values, top)
    ]


def take_chat(body: Body) -> dict[str, Any]:
    """The parameters that the prompt and the parts of the reply depend on. The worker checks them."""
    return {name: value for name, types in CHAT_PARAMETERS.items() if (value := body.take(name, *types)) is not None}


async def asked(call: Call, model: Model, body: dict[str, Any], constraint: Constraint | None = None) -> dict[str, Any]:
    """The prompt, and what goes with it: as of worker/chats.chat(). Errors: Problem; Refused."""
    if not model.chat_template and not isinstance(model.content, TextContent):
        raise invalid("model", f"{model.summary.name} has no tokenizer; a chat needs one", "NO_CHAT_TEMPLATE")
    if not model.chat_template:
        raise invalid(
            "model", f"{model.summary.name} has no chat template; start rivulet-gateway with --chat-template FILE to give it one, or use "
            "/v1/completions with a prompt of your own", "NO_CHAT_TEMPLATE",
        )  # fmt: skip
    special = {role: token.content for token in model.special_tokens for role in token.roles}
    return await call.worker_pool.chat({
        "template": model.chat_template, "special_tokens": special, "response_template": model.response_template, "body": body,
        "constraint": None if constraint is None else forms_of(constraint),
    })  # fmt: skip


def _take_max_tokens(call: Call) -> dict[str, Any]:
    found = {key: value for key in ("max_tokens", "max_completion_tokens") if (value := sampling.take_max_tokens(call.body, key)) is not None}
    if len(found) == 2:
        raise invalid("max_tokens", "must not be given beside max_completion_tokens")
    for key, value in found.items():
        call.names["max_tokens"] = key
        return {"max_tokens": value}
    return {}


def _apply(call: Call, made: dict[str, Any], options: dict[str, Any]) -> None:
    """Sets the options that depend on the conversation. made: of asked()."""
    options["add_special_tokens"] = False  # the template writes them out
    if made["constraint"] is not None:
        options["constraint"] = Constraint(**made["constraint"])
        if made["constrains_calls"]:
            call.names.update({"constraint.structural_tag": "tools", "constraint": "tools"})
    elif made["turn_end"]:  # a constraint has an end of its own
        options.setdefault("stop", [made["turn_end"]])
    if made["reasoning"] is not None:
        options["reasoning"] = Reasoning(**made["reasoning"])
    if made["prediction"]:
        options["speculation"] = Speculation(options.get("speculation"), made["prediction"])
    if made["reading"] is not None:
        options.pop("skip_special_tokens", None)  # they may tell the parts of the reply apart


async def create(call: Call) -> Any:
    """The answer to a conversation."""
    body = call.body
    name = body.required_text("model")
    stream, include_usage = sampling.take_stream(body)
    options = sampling.take(body)
    constraint = sampling.take_constraint(body, call.names).get("constraint")
    call.names.update(NAMES)
    options.update(_take_max_tokens(call))
    samples = body.integer("n", 1, _MOST_CHOICES) or 1
    options.update(model=name, num_samples=samples, cache=call.cache, **call.options)
    wants_logprobs, top = body.flag("logprobs"), body.integer("top_logprobs", 0, 20)
    if wants_logprobs:
        options.update(logprobs=True, top_logprobs=top or 0)
    elif top:
        raise invalid("top_logprobs", "needs logprobs = true")
    given = take_chat(body)
    if "messages" not in given:
        raise invalid("messages", "is missing", "PARAMETER_MISSING")
    body.end()
    model = await call.client.model(name, **call.options)
    made = await asked(call, model, given, constraint)
    _apply(call, made, options)
    progress = call.progress(1, samples)
    options.setdefault("seed", progress.seed)
    answer = checked(lambda: call.client.generate(made["prompt"], **options), call.names)

    def parts(index: int) -> ReplyParts:
        return ReplyParts(call.worker_pool, made, f"call_{progress.reply.hex()}{index:03d}")

    form = ChatForm(call.token_texts(model) if wants_logprobs else None, None if made["reading"] is None else parts)
    reply = Reply(form, name, [answer], samples, progress, include_usage)
    return await begun(reply.events(), call.names) if stream else await reply.complete()
