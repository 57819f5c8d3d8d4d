# SPDX-License-Identifier: Apache-2.0
"""POST /tokenize and /detokenize and GET /tokenizer_info, as vLLM has them: lm-evaluation-harness and load generators call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rivulet import Model, TextContent
from rivulet.gateway.routes import chat
from rivulet.gateway.web.body import Body, one_prompt
from rivulet.gateway.web.exchange import Call
from rivulet.gateway.web.problems import invalid
from rivulet.gateway.worker.body import ids
from rivulet.gateway.worker.errors import shown


async def _model(call: Call, name: str) -> Model:
    """name: may be "" if the server serves exactly one model. Errors: the server's errors."""
    return await call.client.model(name, **call.options)


async def tokenize(call: Call) -> Any:
    """The tokens of a prompt, or of a conversation as /v1/chat/completions would send it."""
    body = call.body
    name = body.text("model") or ""
    messages, prompt = body.take("messages", "array"), body.take("prompt", "string")
    if (messages is None) == (prompt is None):
        raise invalid("prompt", "exactly one of prompt and messages must be given")
    wants_special = body.take("add_special_tokens", "boolean")
    if wants_special not in (None, True, False):
        raise invalid("add_special_tokens", "must be true or false")
    wants_texts = body.flag("return_token_strs")
    text = "" if prompt is None else one_prompt("prompt", prompt)
    if not isinstance(text, str):
        raise invalid("prompt", "must be a string")
    given = {} if messages is None else {**chat.take_chat(body), "messages": messages}
    body.end()
    model = await _model(call, name)
    if messages is not None:
        call.names.update(chat.NAMES)
        text = (await chat.asked(call, model, given))["prompt"]
    # As vLLM: the default adds special tokens to a prompt, but not to a conversation, whose template has written them.
    special = messages is None if wants_special is None else bool(wants_special)
    reply = await call.client.tokenize(text, model=model.summary.name, add_special_tokens=special, **call.options)
    tokens = reply.ids.tolist()
    texts = None
    if wants_texts:
        known = call.token_texts(model)
        await known.prepare(tokens)
        texts = [known.text(id) for id in tokens]
    return {"count": len(tokens), "max_model_len": model.limits.max_tokens, "tokens": tokens, "token_strs": texts}


async def detokenize(call: Call) -> Any:
    """The text of tokens."""
    body, call.names["ids"] = call.body, "tokens"
    name = body.text("model") or ""
    tokens = _tokens(body)
    body.end()
    return {"prompt": (await call.client.detokenize(tokens, model=name, **call.options)).text}


def _tokens(body: Body) -> Sequence[int]:
    """Errors: Problem; worker.Refused."""
    value = body.take("tokens", "array")
    if not isinstance(value, list):
        raise invalid("tokens", f"must be an array of token ids; got {shown(value)}")
    return ids("tokens", value)


async def tokenizer_info(call: Call) -> Any:
    """The data that a client needs to prepare texts by itself. The query has `model`."""
    model = await _model(call, call.query.get("model", ""))
    roles = {role: token.content for token in model.special_tokens for role in token.roles}
    own = {name: roles.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    kind = "text" if isinstance(model.content, TextContent) else "none"
    return {
        "tokenizer_class": f"rivulet.{kind}", **own, "chat_template": model.chat_template or None,
        "model_max_length": model.limits.max_tokens,
    }  # fmt: skip
