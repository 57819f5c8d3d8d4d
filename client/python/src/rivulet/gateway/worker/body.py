# SPDX-License-Identifier: Apache-2.0
"""Parses the body of a request."""

from __future__ import annotations

import json
from array import array
from typing import Any

from .errors import Refused, shown

MOST_PROMPTS = 64
MOST_IDS = 1 << 20  # of all prompts together
MOST_NAMES = 256  # parameters of a body
MOST_VALUES = 1 << 16  # members of arrays and objects within a parameter that is not a prompt
# Most entries of a parameter, with the error code: the server's code, if it has one.
_MOST_ENTRIES = {
    "messages": (4096, "INVALID_PARAMETER"), "logit_bias": (4096, "INVALID_PARAMETER"), "stop": (16, "TOO_MANY_STOP_STRINGS"),
    "stop_token_ids": (64, "TOO_MANY_STOP_TOKENS"), "tools": (128, "INVALID_PARAMETER"),
}  # fmt: skip
# The parameters that chats.chat() takes, with their JSON types.
CHAT_PARAMETERS: dict[str, tuple[str, ...]] = {
    "messages": ("array",), "tools": ("array",), "tool_choice": ("string", "object"), "parallel_tool_calls": ("boolean",),
    "chat_template_kwargs": ("object",), "reasoning_effort": ("string",), "add_generation_prompt": ("boolean",),
    "continue_final_message": ("boolean",), "functions": ("array",), "function_call": ("string",), "modalities": ("array",),
    "store": ("boolean",), "prediction": ("object",),
}  # fmt: skip


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _holds_more(value: Any, most: int) -> bool:
    """Whether there are more than `most` members in the arrays and objects of a value."""
    left, held = [value], 0
    while left:
        one = left.pop()
        if isinstance(one, (list, dict)):
            held += len(one)
            if held > most:
                return True
            left.extend(one.values() if isinstance(one, dict) else one)
    return False


def ids(name: str, value: list[Any]) -> array[int]:
    """Errors: Refused."""
    if set(map(type, value)) <= {int} and min(value, default=0) >= 0 and max(value, default=0) < 2**31:
        return array("i", value)
    for index, token in enumerate(value):
        if type(token) is not int or not 0 <= token < 2**31:
            raise Refused("INVALID_PARAMETER", f"{name}[{index}]", f"must be a token id; got {shown(token)}")
    raise AssertionError("a list without a bad entry was not accepted")


def _prompt(value: Any) -> Any:
    """The parameter `prompt` with its token ids as arrays: one prompt or several. Errors: Refused."""
    if not isinstance(value, list):
        return value
    several = bool(value) and isinstance(value[0], (str, list))
    if several and len(value) > MOST_PROMPTS:
        raise Refused("INVALID_PARAMETER", "prompt", f"must be at most {MOST_PROMPTS} prompts; got {len(value)}")
    lists = [one for one in value if isinstance(one, list)] if several else [value]
    if (given := sum(map(len, lists))) > MOST_IDS:
        raise Refused("INVALID_PARAMETER", "prompt", f"must be at most {MOST_IDS} token ids; got {given}")
    if not several:
        return ids("prompt", value)
    return [ids(f"prompt[{index}]", one) if isinstance(one, list) else one for index, one in enumerate(value)]


def _limited(name: str, value: Any) -> Any:
    """Returns a parameter that is within the limits. Errors: Refused."""
    if name == "prompt":
        value = _prompt(value)
    most, code = _MOST_ENTRIES.get(name, (MOST_VALUES, "INVALID_PARAMETER"))
    if isinstance(value, (list, dict)) and len(value) > most:
        raise Refused(code, name, f"must have at most {most} entries; got {len(value)}")
    if _holds_more(value, MOST_VALUES):
        raise Refused("INVALID_PARAMETER", name, f"must hold at most {MOST_VALUES} values in all")
    return value


def parse(raw: bytes | bytearray) -> dict[str, Any]:
    """The parameters of a body; `prompt` has token ids as arrays of int32. Errors: Refused."""
    try:
        value = json.loads(raw or b"{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refused("INVALID_JSON", None, f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused("INVALID_JSON", None, f"the body must be a JSON object; got {shown(value)}")
    if len(value) > MOST_NAMES:
        raise Refused("INVALID_JSON", None, f"the body must have at most {MOST_NAMES} parameters; got {len(value)}")
    return {name: _limited(name, one) for name, one in value.items()}
