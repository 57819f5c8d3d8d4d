# SPDX-License-Identifier: Apache-2.0
"""How far the division of a reply is, and what can be done without the process that divides it (replies.py). The gateway imports it, so it
imports little: what else the process needs would cost each gateway start-up time, memory and garbage collections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

REASONING, CALLS = "reasoning_content", "tool_calls"  # members of messages


@dataclass
class State:
    """Where a parser is. current: the field that the text is in; None: none, and text is dropped. opened: the field has begun. captures:
    groups of its opener. opener, body: unless it streams, what began it, and its text so far. left: text that is not decided, behind
    `before`, the end of what is. ended: fields that have."""

    current: str | None = None
    opened: bool = False
    captures: dict[str, str] = field(default_factory=dict)
    opener: str = ""
    body: str = ""
    before: str = ""
    left: str = ""
    ended: list[str] = field(default_factory=list)


@dataclass
class Progress:
    """Of one reply. state: a State. begun: of the current field's text, some has been told; space: white space that is told if more text
    follows. calls: number of calls. failed: the rest is content, as it is."""

    state: dict[str, Any]
    begun: bool = False
    space: str = ""
    calls: int = 0
    failed: bool = False


@dataclass(frozen=True)
class Passing:
    """What to do with text that has none of the characters `watch`: without this process, which would do the same. to: the member of a delta
    that it is added to; holds: to none, it is to be given with the text behind it. ends: the reply may end with such a text."""

    watch: str
    to: str = ""
    strips: bool = False
    holds: bool = False
    ends: bool = False


def add_text(delta: dict[str, Any], to: str, text: str) -> None:
    if text:
        delta[to] = delta.get(to, "") + text
        if to == REASONING:
            delta["reasoning"] = delta[to]  # vLLM's name


def message_of(delta: dict[str, Any]) -> dict[str, Any]:
    """The message of a reply that came in one delta."""
    message = {"role": "assistant", "content": "", "refusal": None, **delta}
    if CALLS in delta:
        message["content"] = message["content"] or None
        message[CALLS] = [{key: value for key, value in call.items() if key != "index"} for call in delta[CALLS]]  # chunks have it
    return message


def pass_on(passing: Passing, progress: Progress, text: str, delta: dict[str, Any]) -> str:
    """Adds to a delta what is to be told of a text. Returns the text that is to be given with the text behind it. REQUIRES: the text has no
    character that is watched."""
    if not text or passing.holds or (passing.strips and not progress.begun and text.isspace()):
        return text
    progress.state["opened"] = True
    if passing.strips:
        whole = progress.space + (text if progress.begun else text.lstrip())
        text = whole.rstrip()
        progress.space = whole[len(text) :]
    progress.begun = True
    add_text(delta, passing.to, text)
    return ""


def untold(progress: Progress) -> str:
    """The text that has not been told."""
    state = progress.state
    return str(progress.space + state["opener"] + state["body"] + state["left"])


def give_up(progress: Progress) -> str:
    """The text that has not been told; from here on all text is content."""
    text = untold(progress)
    progress.failed, progress.space, progress.state = True, "", vars(State())
    return text
