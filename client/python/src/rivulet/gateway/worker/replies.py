# SPDX-License-Identifier: Apache-2.0
"""A reply of a model as parts of OpenAI's message: reasoning, content and tool calls."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

from . import contents, response_template
from .errors import Refused
from .progress import CALLS, REASONING, Passing, Progress, State, add_text, give_up, message_of, pass_on, untold
from .reply_parser import Event, ReplyParser
from .response_template import Field, ResponseTemplate

_MOST_KEPT = 256  # characters of a reply's beginning
NAMES_OF_REASONING = ("thinking", "reasoning", "reasoning_content")  # names of the same field in published templates


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
        return response_template.load(self.template, "" if self.calls else CALLS)


def _member(field: Field) -> str:
    return REASONING if field.name in NAMES_OF_REASONING else field.name


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
        if field.name == CALLS:
            for one in value if isinstance(value, list) else [value]:
                self._tell_call(one)
            return
        member, text = _member(field), json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # JSON has no NaN, UTF-8 no halves of surrogate pairs: a ValueError
        if member in ("content", REASONING):
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
        self.delta.setdefault(CALLS, []).append(call)
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


@functools.lru_cache(maxsize=32)
def _begun(template: str, calls: bool, text: str) -> str:
    """As begin(), as JSON: nobody changes what is kept. text: the reply's beginning, mostly the same for all prompts. Errors: Refused."""
    reading = Reading(template, {}, calls)
    division = _Division(reading, Progress(vars(State(reading.loaded().implicit))))
    division.feed(text, "")
    if division.error is not None:
        raise Refused("RESPONSE_TEMPLATE_INVALID", "model", f"the model's response template cannot read the prompt: {division.error['message']}")
    progress = division.progress
    progress.space, progress.calls = "", 0
    if not progress.state["left"].strip():  # white space of the prompt is no part of the reply
        progress.state["before"] += progress.state["left"]
        progress.state["left"] = ""
    passing = division.passing()
    return json.dumps([vars(progress), passing and vars(passing)])


def begin(reading: Reading, prompt: str) -> tuple[Progress, Passing | None]:
    """The progress of a reply to the prompt, of which the reply's beginning may be a part; and as divide() returns it. Errors: Refused."""
    text = reading.loaded().begun(prompt)
    found = (_begun if len(text) <= _MOST_KEPT else _begun.__wrapped__)(reading.template, reading.calls, text)
    progress, passing = json.loads(found)
    return Progress(**progress), passing and Passing(**passing)


def divide(reading: Reading, progress: Progress, text: str, end: str) -> dict[str, Any]:
    """The next text of a reply. `delta`: members of a message (reasoning_content, content, tool_calls); `message`: if that is all;
    `progress`; `untold`: what would be content if this process ended now; `passing`: None if all text is to be given to this process;
    `error`: code and message, if the text could not be divided: it is content then. end: "", "end", or "cut" where the model would have gone
    on. Errors: Refused."""
    division = _Division(reading, progress)
    division.feed(text, end)
    passing = division.passing()
    return {
        "delta": division.delta, "message": message_of(division.delta) if end else None, "progress": vars(division.progress),
        "untold": untold(division.progress), "passing": passing and vars(passing), "error": division.error,
    }  # fmt: skip
