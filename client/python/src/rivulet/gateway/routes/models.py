# SPDX-License-Identifier: Apache-2.0
"""GET /v1/models, /v1/models/{model}, /rivulet/v1/load, /health and /version."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rivulet import HealthStatus, ImageContent, Model, ModelSummary, TextContent, __version__
from rivulet.core.images import num_levels
from rivulet.gateway.web.exchange import Call
from rivulet.gateway.web.problems import Problem


def _entry(summary: ModelSummary) -> dict[str, Any]:
    # The server does not know when a model was made; OpenAI's clients need a number.
    return {"id": summary.name, "object": "model", "created": 0, "owned_by": "rivulet"}


def _content(model: Model) -> str:
    return {ImageContent: "image", TextContent: "text"}.get(type(model.content), "tokens")


def _memory(model: Model) -> dict[str, Any]:
    """What the model keeps of a sequence, and for how many tokens. Models of checkpoints have a limit only if they have a KV cache."""
    kind, limit = model.architecture.kind, model.architecture.max_sequence_tokens
    attention = kind if kind in ("linear", "softmax") else "linear" if limit is None else "hybrid"
    return {"attention": attention} if limit is None else {"attention": attention, "max_sequence_tokens": limit}


async def list_models(call: Call) -> Any:
    """The models."""
    return {"object": "list", "data": [_entry(summary) for summary in await call.client.models(**call.options)]}


async def get_model(call: Call) -> Any:
    """A model."""
    model = await call.client.model_now(call.path["model"], **call.options)
    details: dict[str, Any] = {
        "content": _content(model), "max_tokens": model.limits.max_tokens, "weights_sha256": model.summary.weights_sha256,
        "numerics_id": model.numerics_id, "max_num_samples": model.limits.max_num_samples, **_memory(model),
    }  # fmt: skip
    if isinstance(model.content, TextContent) and model.content.alphabet:
        details["alphabet"] = model.content.alphabet
    if model.chat_template:
        details["chat_template"] = model.chat_template_name or "model"
    if model.response_template:
        details["response_template"] = model.response_template_name or "model"
    if isinstance(model.content, ImageContent):
        details["image"] = {**asdict(model.content), "num_levels": num_levels(model)}
    return {**_entry(model.summary), "rivulet": details}


async def load(call: Call) -> Any:
    """The load of each model."""
    found = await call.client.load(call.query.get("model", ""), **call.options)
    return {"object": "list", "data": [asdict(entry) for entry in found]}


async def version(call: Call) -> Any:
    """The version of the gateway."""
    return {"version": __version__}


async def health(call: Call) -> Any:
    """The health of the server; 503 while it is not SERVING."""
    status = await call.client.health(**call.options)
    if status is not HealthStatus.SERVING:
        raise Problem(503, f"the server's health is {status.name}", status.name)
    return {"status": status.name}
