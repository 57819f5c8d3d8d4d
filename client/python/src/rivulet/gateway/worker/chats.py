# SPDX-License-Identifier: Apache-2.0
"""Chats, for the gateway, `rivulet batch` and `rivulet chat`: the parameters of OpenAI's chat completions that the prompt and the parts of the
reply depend on, checked and made into what the server takes; and the replies. Arguments and results can be JSON."""

from __future__ import annotations

import json
import re
from typing import Any

from . import calls, contents, rendering, replies, response_template
from .errors import encodable, flag, invalid, members, only, shown, text
from .progress import Progress, untold

Json = dict[str, Any]

_ONLY = {"functions": [], "function_call": "none", "modalities": ["text"], "store": False}
_MESSAGE = {"role", "content", "name", "refusal", "annotations", "audio", "function_call", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"}
_OWN = {"messages", "tools", "documents", "add_generation_prompt"}  # not for chat_template_kwargs


def _content(name: str, value: Any) -> str:
    """A text, or the texts of an array of parts. Errors: Refused."""
    if not isinstance(value, list):
        if isinstance(value, str):
            return encodable(name, value)
        raise invalid(name, f"must be a string or an array of text parts; got {shown(value)}")
    texts = []
    for index, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(f"{name}[{index}]", f'only parts {{"type": "text", "text": "..."}} are supported; got {shown(part)}')
        texts.append(encodable(f"{name}[{index}].text", part["text"]))
    return "".join(texts)


def _call(name: str, value: Any) -> Json:
    """A call of an assistant's message, with its arguments as an object, which templates expect. Errors: Refused."""
    function = members(f"{name}.function", members(name, value).get("function"))
    given = function.get("arguments", "{}")
    try:
        arguments = json.loads(given or "{}") if isinstance(given, str) else given
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise invalid(f"{name}.function.arguments", f"must be a JSON object, as a string; got {shown(given)}")
    encodable(f"{name}.function.arguments", json.dumps(arguments, ensure_ascii=False))
    called = {"type": "function", "function": {"name": text(f"{name}.function.name", function.get("name")), "arguments": arguments}}
    return {"id": text(f"{name}.id", value["id"]), **called} if value.get("id") is not None else called


def _message(name: str, value: Any) -> Json:
    """As templates take it. Errors: Refused."""
    given = members(name, value)
    if unknown := sorted(set(given) - _MESSAGE):
        raise invalid(f"{name}.{unknown[0]}", "the parameter is not supported", "UNSUPPORTED_PARAMETER")
    for old in {"function_call", "audio"} & set(given):
        raise invalid(f"{name}.{old}", f"only null is supported; got {shown(given[old])}", "UNSUPPORTED_PARAMETER")
    role = text(f"{name}.role", given.get("role"))
    for key in ("tool_calls", "reasoning_content", "reasoning") if role != "assistant" else ():
        if key in given:
            raise invalid(f"{name}.{key}", f"is for the role assistant; got {shown(role)}", "UNSUPPORTED_PARAMETER")
    message: Json = {"role": "system" if role == "developer" else role}
    made = given.get("tool_calls") or given.get("reasoning_content") or given.get("reasoning")
    message["content"] = "" if made and given.get("content") is None else _content(f"{name}.content", given.get("content"))
    if role == "tool":
        message.update({key: text(f"{name}.{key}", given[key]) for key in ("tool_call_id", "name") if key in given})
    for key in ("reasoning", "reasoning_content"):
        if key in given:
            message["reasoning_content"] = text(f"{name}.{key}", given[key])
    if "tool_calls" in given:
        if not isinstance(given["tool_calls"], list):
            raise invalid(f"{name}.tool_calls", f"must be an array; got {shown(given['tool_calls'])}")
        message["tool_calls"] = [_call(f"{name}.tool_calls[{index}]", one) for index, one in enumerate(given["tool_calls"])]
    return message


def _messages(value: Any) -> list[Json]:
    if not isinstance(value, list) or not value:
        raise invalid("messages", "must be an array of at least one message")
    return [_message(f"messages[{index}]", one) for index, one in enumerate(value)]


def _tools(value: Any) -> list[Json]:
    """Errors: Refused."""
    if not isinstance(value or [], list):
        raise invalid("tools", f"must be an array; got {shown(value)}")
    names: set[str] = set()
    for index, tool in enumerate(value or []):
        name = f"tools[{index}]"
        given = members(name, tool)
        if given.get("type") != "function":
            raise invalid(f"{name}.type", f'only "function" is supported; got {shown(given.get("type"))}', "UNSUPPORTED_PARAMETER")
        function = members(f"{name}.function", given.get("function"))
        called = text(f"{name}.function.name", function.get("name"))
        if not re.fullmatch(r"[\w.-]{1,64}", called, re.ASCII) or called in names:
            raise invalid(f"{name}.function.name", f"must be 1 to 64 letters, digits, _, . and -, and no other tool's; got {shown(called)}")
        names.add(called)
        if not isinstance(function.get("parameters", {}), dict):
            raise invalid(f"{name}.function.parameters", f"must be a JSON schema, as an object; got {shown(function['parameters'])}")
        if not isinstance(function.get("strict", False), bool):
            raise invalid(f"{name}.function.strict", f"must be true or false; got {shown(function['strict'])}")
        encodable(name, json.dumps(tool, ensure_ascii=False))
    return list(value or [])


def _prediction(value: Any) -> str:
    """The text that the reply will repeat in part; "": none. Errors: Refused."""
    if value is None:
        return ""
    given = members("prediction", value)
    if unknown := sorted(set(given) - {"type", "content"}):
        raise invalid(f"prediction.{unknown[0]}", "the parameter is not supported", "UNSUPPORTED_PARAMETER")
    if given.get("type") != "content":
        raise invalid("prediction.type", f'only "content" is supported; got {shown(given.get("type"))}', "UNSUPPORTED_PARAMETER")
    return _content("prediction.content", given.get("content"))


def _chosen(body: Json) -> calls.Chosen | None:
    """The tools that the model may call; None: none. Errors: Refused."""
    tools, choice = _tools(body.get("tools")), body.get("tool_choice")
    parallel = flag("parallel_tool_calls", body.get("parallel_tool_calls"), True)
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise invalid("tool_choice.type", f'only "function" is supported; got {shown(choice.get("type"))}', "UNSUPPORTED_PARAMETER")
        choice = text("tool_choice.function.name", members("tool_choice.function", choice.get("function")).get("name"))
        if choice not in [tool["function"]["name"] for tool in tools]:
            raise invalid("tool_choice.function.name", f"must be a function of tools; got {shown(choice)}")
        return calls.Chosen(tools, choice, parallel)
    if choice not in (None, "auto", "none", "required"):
        raise invalid("tool_choice", f'must be "auto", "none", "required" or a function; got {shown(choice)}')
    if choice == "required" and not tools:
        raise invalid("tool_choice", 'is "required", but there are no tools')
    return calls.Chosen(tools, choice or "auto", parallel) if tools and choice != "none" else None


def _values(template: str, special_tokens: Json, body: Json, chosen: calls.Chosen | None) -> Json:
    """The variables of the chat template. Errors: Refused."""
    reads = rendering.variables(template)
    more = members("chat_template_kwargs", body.get("chat_template_kwargs") or {})
    for key in more:
        if key in _OWN or key not in reads:
            raise invalid(f"chat_template_kwargs.{key}", "the model's chat template does not read it", "UNSUPPORTED_PARAMETER")
    if (effort := body.get("reasoning_effort")) is not None:
        if "reasoning_effort" not in reads:
            raise invalid("reasoning_effort", "the model's chat template does not read it", "UNSUPPORTED_PARAMETER")
        more["reasoning_effort"] = text("reasoning_effort", effort)
    if chosen is not None and "tools" not in reads:
        raise invalid("tools", "the model's chat template does not read it", "UNSUPPORTED_PARAMETER")
    return {**special_tokens, **more, "messages": _messages(body.get("messages")), "tools": chosen and chosen.tools}


def _prompt(template: str, body: Json, values: Json) -> str:
    continues = flag("continue_final_message", body.get("continue_final_message"), False)
    if continues and flag("add_generation_prompt", body.get("add_generation_prompt"), False):
        raise invalid("continue_final_message", "must not be true beside add_generation_prompt")
    if continues:
        return rendering.to_continue(template, values)
    return rendering.render(template, {**values, "add_generation_prompt": flag("add_generation_prompt", body.get("add_generation_prompt"), True)})


def _check_others(body: Json) -> None:
    """Errors: Refused."""
    for name, value in body.items():
        if name in _ONLY:
            only(name, value, _ONLY[name])


def chat(asked: Json) -> Json:
    """asked: `template`, `special_tokens` (texts by role), `response_template` (JSON or ""), `body` (of body.CHAT_PARAMETERS) and `constraint`
    ({FORM: VALUE}, as in the server's Constraint, or null). Returns `prompt`; `turn_end` (a stop string for replies without a constraint, or
    ""); `constraint` (with `after`, or null); `constrains_calls`: it is about tools; `reasoning` (begin and end, or null);
    `prediction` (a text, or ""); `reading`, `progress`, `untold` and `passing` for divide() (null: the reply is content). Errors: Refused; MemoryError."""
    template, body = asked["template"], asked["body"]
    _check_others(body)
    chosen = _chosen(body)
    values = _values(template, asked["special_tokens"], body, chosen)
    prompt = _prompt(template, body, values)
    found: Json = {
        "prompt": prompt, "turn_end": rendering.turn_end(template, json.dumps(asked["special_tokens"])), "constraint": asked["constraint"],
        "constrains_calls": False, "reasoning": None, "reading": None, "progress": None, "prediction": _prediction(body.get("prediction")),
    }  # fmt: skip
    form = asked["response_template"]
    if chosen is not None and (not form or "tool_calls" not in response_template.load(form).fields):
        raise invalid("tools", "the model has no response template that tells its calls from other text", "UNSUPPORTED_PARAMETER")
    if not form:
        return found
    reading = replies.Reading(form, {} if chosen is None else contents.casts_of(chosen.tools), chosen is not None)
    progress, passing = replies.begin(reading, prompt)
    reasoning = calls.reasoning_of(reading, progress)
    if reasoning is not None:
        found["reasoning"] = {"begin": reasoning.begin, "end": reasoning.ends[0]}
    constraint = calls.constraint_of(form, chosen, asked["constraint"], reasoning)
    made = chosen is not None and constraint is not None
    return {
        **found, "constraint": constraint, "constrains_calls": made, "reading": vars(reading), "progress": vars(progress),
        "untold": untold(progress), "passing": passing and vars(passing),
    }  # fmt: skip


def check(asked: list[Any]) -> str:
    """asked: a chat template and special tokens. Its turn end. Errors: Refused; MemoryError."""
    return rendering.turn_end(asked[0], json.dumps(asked[1]))


def divide(asked: list[Any]) -> Json:
    """asked: `reading` and `progress`, a text, and its end. As replies.divide()."""
    reading, progress, text, end = asked
    return replies.divide(replies.Reading(**reading), Progress(**progress), text, end)
