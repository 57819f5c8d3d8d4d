# SPDX-License-Identifier: Apache-2.0
"""A reply of a model as parts of OpenAI's message: reasoning, content and tool calls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from . import contents, response_template
from .errors import Refused
from .reply_parser import Event, ReplyParser, State
from .response_template import Field, ResponseTemplate

REASONING = ("thinking", "reasoning", "reasoning_content")  # names of the same field in published templates
_REASONING, _CALLS = "reasoning_content", "tool_calls"  # members of messages


@dataclass(frozen=True)
class Reading:
    """How the replies to one request are read. template: the response_template, as JSON. casts: as contents.casts_of(). calls: whether
    tool calls are read; else they are content. id: with which the ids of calls begin."""

    template: str
    casts: dict[str, dict[str, list[str]]]
    calls: bool
    id: str = ""

    def loaded(self) -> ResponseTemplate:
        """Errors: Refused."""
        template = response_template.load(self.template)
        return template if self.calls else template.without(_CALLS)


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
        if to == _REASONING:
            delta["reasoning"] = delta[to]  # vLLM's name


def message_of(delta: dict[str, Any]) -> dict[str, Any]:
    """The message of a reply that came in one delta."""
    message = {"role": "assistant", "content": "", "refusal": None, **delta}
    if _CALLS in delta:
        message["content"] = message["content"] or None
        message[_CALLS] = [{key: value for key, value in call.items() if key != "index"} for call in delta[_CALLS]]  # chunks have it
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


def _member(field: Field) -> str:
    return _REASONING if field.name in REASONING else field.name


class _Division:
    """Takes the next text of a reply apart. delta: what is told of it. error: as in divide()."""

    def __init__(self, reading: Reading, progress: Progress) -> None:
        self.parser = ReplyParser(reading.loaded(), State(**progress.state), self._tell)
        self.progress = progress
        progress.state = vars(self.parser.state)  # not a copy: it goes on with the parser
        self.delta: dict[str, Any] = {}
        self.error: dict[str, str] | None = None
        self._reading = reading

    def feed(self, text: str, end: str) -> None:
        if self.progress.failed:
            add_text(self.delta, "content", text)
            return
        try:
            self.parser.feed(text, end)
        except MemoryError:
            raise
        except Exception as error:  # content_args can cause nearly all of them
            why = f"{self.parser.state.current}: {str(error)[:500]}; the rest of the reply is given as content"
            self.error = {"code": "RESPONSE_PARSE_FAILED", "message": why}
            add_text(self.delta, "content", give_up(self.progress))

    def _tell(self, event: Event) -> None:
        """Errors: ValueError."""
        progress, field = self.progress, event.field
        if event.kind == "open":
            progress.begun, progress.space = False, ""
            if field.streams and field.join is not None and field.name in self.parser.state.ended:
                add_text(self.delta, _member(field), field.join)
        elif event.kind == "text" and field.streams:
            pass_on(Passing("", _member(field), field.strips), progress, event.value, self.delta)
        elif event.kind == "close":
            progress.begun, progress.space = False, ""
            if not field.streams:
                self._tell_value(field, event.value)

    def _tell_value(self, field: Field, value: Any) -> None:
        if field.name == _CALLS:
            for one in value if isinstance(value, list) else [value]:
                self._tell_call(one)
            return
        member, text = _member(field), json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # JSON has no NaN, UTF-8 no halves of surrogate pairs: a ValueError
        if member in ("content", _REASONING):
            add_text(self.delta, member, value if isinstance(value, str) else text)
        elif field.repeats:
            self.delta.setdefault(member, []).append(value)
        else:
            self.delta[member] = value

    def _tell_call(self, value: Any) -> None:
        function = value.get("function", value) if isinstance(value, dict) else None
        name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(arguments, (dict, str)):
            raise ValueError("a call must have a name and arguments")
        if isinstance(arguments, dict):
            arguments = {key: self._cast(name, key, one) for key, one in arguments.items()}
            arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + arguments).encode()  # UTF-8 has no halves of surrogate pairs: a ValueError
        number = self.progress.calls
        call = {"index": number, "id": f"{self._reading.id}{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        self.delta.setdefault(_CALLS, []).append(call)
        self.progress.calls += 1

    def _cast(self, name: str, key: str, value: Any) -> Any:
        types = self._reading.casts.get(name, {}).get(key)
        if not types:
            return value
        if isinstance(value, str):
            return contents.cast(value, types)
        if isinstance(value, list) and "array" not in types:  # of merge_duplicates
            return [contents.cast(one, types) if isinstance(one, str) else one for one in value]
        return value

    def passing(self) -> Passing | None:
        state, template = self.parser.state, self.parser.template
        if self.progress.failed:
            return Passing("", "content", ends=True)
        field = None if state.current is None else template.fields[state.current]
        # What a field writes between its texts is told where it opens.
        if state.left or field is None or not (state.opened or field.name not in state.ended):
            return None
        watch: set[str] = set()
        for _, _, anchor in self.parser.anchors():
            if anchor.first is None or (anchor.spaced and field.streams):
                return None
            watch |= anchor.first
        if not field.streams:
            return Passing("".join(sorted(watch)), holds=True)
        ends = all(one.optional or one is field or one.name in state.ended for one in template.fields.values())
        return Passing("".join(sorted(watch)), _member(field), field.strips, ends=ends)


def give_up(progress: Progress) -> str:
    """The text that has not been told; from here on all text is content."""
    state = progress.state
    text = progress.space + state["opener"] + state["body"] + state["left"]
    progress.failed, progress.space, progress.state = True, "", vars(State())
    return str(text)


def begin(reading: Reading, prompt: str) -> tuple[Progress, Passing | None]:
    """The progress of a reply to the prompt, of which the reply's beginning may be a part; and as divide() returns it. Errors: Refused."""
    template = reading.loaded()
    division = _Division(reading, Progress(vars(State(template.implicit))))
    division.feed(template.begun(prompt), "")
    if division.error is not None:
        raise Refused("RESPONSE_TEMPLATE_INVALID", "model", f"the model's response template cannot read the prompt: {division.error['message']}")
    progress = division.progress
    progress.space, progress.calls = "", 0
    if not progress.state["left"].strip():  # white space of the prompt is no part of the reply
        progress.state["before"] += progress.state["left"]
        progress.state["left"] = ""
    return progress, division.passing()


def divide(reading: Reading, progress: Progress, text: str, end: str) -> dict[str, Any]:
    """The next text of a reply. `delta`: members of a message (reasoning_content, content, tool_calls); `message`: if that is all;
    `progress`; `passing`: None if all text is to be given to this process; `error`: code and message, if the text could not be divided: it is
    content then. end: "", "end", or "cut" where the model would have gone on. Errors: Refused."""
    division = _Division(reading, progress)
    division.feed(text, end)
    passing = division.passing()
    return {
        "delta": division.delta, "message": message_of(division.delta) if end else None, "progress": vars(division.progress),
        "passing": passing and vars(passing), "error": division.error,
    }  # fmt: skip
