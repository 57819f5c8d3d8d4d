# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions, for models that come with a chat template."""

from __future__ import annotations

from typing import Any

from rivulet import Model, Part, Sample, TextContent, TopLogprobs
from rivulet.gateway.routes import sampling
from rivulet.gateway.routes.reply_objects import Piece, Reply, finish_reason, ids_of, logprob
from rivulet.gateway.routes.tokens import TokenTexts
from rivulet.gateway.web.body import Body, encodable, object_of
from rivulet.gateway.web.exchange import Call, begun, checked
from rivulet.gateway.web.problems import invalid
from rivulet.gateway.worker import shown

_MOST_CHOICES = 128
NAMES = {"prompt": "messages", "prompt.text": "messages", "text": "messages"}  # the template turns messages into a prompt


class ChatForm:
    """texts: for log-probabilities; None: not requested."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, texts: TokenTexts | None) -> None:
        self._texts = texts

    async def prepare(self, piece: Piece) -> None:
        if self._texts is not None:
            await self._texts.prepare(ids_of(piece))

    def _choice(self, index: int, key: str, message: dict[str, Any], piece: Piece | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, key: message, "logprobs": None, "finish_reason": None}
        if piece is not None:
            choice["finish_reason"] = finish_reason(piece.finish)
            if self._texts is not None:
                choice["logprobs"] = {"content": _logprobs(self._texts, piece), "refusal": None}
        return choice

    def opening(self, index: int) -> dict[str, Any] | None:
        return self._choice(index, "delta", {"role": "assistant", "content": ""}, None)

    def chunk(self, index: int, part: Part) -> dict[str, Any] | None:
        if not (part.text or part.finish or (part.tokens.size and self._texts is not None)):
            return None
        return self._choice(index, "delta", {"content": part.text} if part.text else {}, part)

    def whole(self, index: int, sample: Sample) -> dict[str, Any]:
        message = {"role": "assistant", "content": sample.text, "refusal": None}
        return self._choice(index, "message", message, sample)


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


def _content(name: str, value: Any) -> str:
    """A text, or the texts of an array of parts. Errors: Problem."""
    if isinstance(value, str):
        return encodable(name, value)
    if not isinstance(value, list):
        raise invalid(name, f"must be a string or an array of text parts; got {shown(value)}")
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(f"{name}[{index}]", f'only parts {{"type": "text", "text": "..."}} are supported; got {shown(part)}')
        texts.append(encodable(f"{name}[{index}].text", part["text"]))
    return "".join(texts)


def _messages(value: Any) -> list[dict[str, str]]:
    """Errors: Problem."""
    if not isinstance(value, list) or not value:
        raise invalid("messages", "must be an array of at least one message")
    found = []
    for index, entry in enumerate(value):
        name = f"messages[{index}]"
        message = object_of(name, entry)
        role = message.required_text("role", name)
        content = _content(f"{name}.content", message.take("content"))
        message.ignore("name", "refusal")
        message.end(f"{name}.")
        found.append({"role": "system" if role == "developer" else role, "content": content})
    return found


async def _prompt(call: Call, model: Model, messages: list[dict[str, str]]) -> tuple[str, str]:
    """The prompt, and the text that the template writes between an answer and the next question, or "". Errors: Problem;
    worker.Refused."""
    if not model.chat_template and not isinstance(model.content, TextContent):
        raise invalid("model", f"{model.summary.name} has no tokenizer; a chat needs one", "NO_CHAT_TEMPLATE")
    if not model.chat_template:
        raise invalid(
            "model", f"{model.summary.name} has no chat template; start rivulet-gateway with --chat-template FILE to give it one, or use "
            "/v1/completions with a prompt of your own", "NO_CHAT_TEMPLATE",
        )  # fmt: skip
    special = {role: token.content for token in model.special_tokens for role in token.roles}
    prompt = await call.worker_pool.render(model.chat_template, messages, special)
    return prompt, await call.worker_pool.turn_end(model.chat_template, special)


async def prompt_of(call: Call, model: Model, messages: Any) -> str:
    """The prompt that a chat with the parameter `messages` would send. Errors: Problem; worker.Refused."""
    prompt, _ = await _prompt(call, model, _messages(messages))
    return prompt


def _refuse(body: Body) -> None:
    """Parameters with one supported value. Errors: Problem."""
    body.only("tools", [])
    body.only("tool_choice", "none")
    body.only("functions", [])
    body.only("function_call", "none")
    body.only("modalities", ["text"])
    body.only("store", False)
    body.ignore("parallel_tool_calls", "prediction")


async def create(call: Call) -> Any:
    """The answer to a conversation."""
    body = call.body
    name = body.required_text("model")
    messages = _messages(body.take("messages", "array"))
    stream, include_usage = sampling.take_stream(body)
    options = sampling.take(body)
    options.update(sampling.take_constraint(body, call.names))
    call.names.update(NAMES)
    both = {key: value for key in ("max_tokens", "max_completion_tokens") if (value := sampling.take_max_tokens(body, key)) is not None}
    if len(both) == 2:
        raise invalid("max_tokens", "must not be given beside max_completion_tokens")
    for key, value in both.items():
        call.names["max_tokens"] = key
        options["max_tokens"] = value
    samples = body.integer("n", 1, _MOST_CHOICES) or 1
    options.update(model=name, num_samples=samples, cache=call.cache, **call.options)
    wants_logprobs, top = body.flag("logprobs"), body.integer("top_logprobs", 0, 20)
    if wants_logprobs:
        options.update(logprobs=True, top_logprobs=top or 0)
    elif top:
        raise invalid("top_logprobs", "needs logprobs = true")
    _refuse(body)
    body.end()
    model = await call.client.model(name, **call.options)
    prompt, turn_end = await _prompt(call, model, messages)
    options["add_special_tokens"] = False  # the template writes them out
    if turn_end and "constraint" not in options:  # which has an end of its own
        options.setdefault("stop", [turn_end])
    progress = call.progress(1, samples)
    options.setdefault("seed", progress.seed)
    answer = checked(lambda: call.client.generate(prompt, **options), call.names)
    reply = Reply(ChatForm(call.token_texts(model) if wants_logprobs else None), name, [answer], samples, progress, include_usage)
    return await begun(reply.events(), call.names) if stream else await reply.complete()
