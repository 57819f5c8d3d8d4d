# SPDX-License-Identifier: Apache-2.0
"""Divides a reply by a response_template, as its text comes. What has been found is a function of the text so far, however it was cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .progress import State
from .response_template import Anchor, Field, ResponseTemplate

_CONTEXT = 64  # characters before the text that is left, which a pattern may look behind


class Event(NamedTuple):
    """kind: "open", "text" (of a field that streams, or part of another field's text, as it comes), or "close", with the field's value."""

    kind: str
    field: Field
    value: Any = None


class _Found(NamedTuple):
    field: Field
    opens: bool
    match: Any


class ReplyParser:
    def __init__(self, template: ResponseTemplate, state: State, tell: Callable[[Event], None]) -> None:
        """tell: may raise a ValueError, as feed() does."""
        self.template = template
        self.state = state
        self._tell = tell

    def feed(self, text: str, end: str = "") -> None:
        """end: "", or if no text follows "end", or "cut" where the model would have gone on. Errors: ValueError, for a text that is not as the
        template says, and for a part that is cut and has no value; the state is then as before the end of the part."""
        self.state.left += text
        while self._step(bool(end), end == "cut"):
            pass
        missing = [one.name for one in self.template.fields.values() if not one.optional and one.name not in self.state.ended]
        if end and missing:
            raise ValueError(f"{missing[0]} is missing")

    def _step(self, ends: bool, cut: bool) -> bool:
        """Takes the next anchor, if it is there. Returns whether to go on."""
        state, begin = self.state, len(self.state.before)
        found, decided = self._scan(state.before + state.left, begin, ends)
        if found is None:
            self._take(decided - begin)
            if ends:
                self._close(cut)
            return False
        self._take(found.match.start() - begin)
        was_open, length = state.opened, found.match.end() - found.match.start()
        groups = {name: text for name, text in found.match.groupdict().items() if text is not None}
        if found.opens:
            self._close()
            self._skip(length)
            state.current, state.opened, state.captures = found.field.name, True, groups
            state.opener = "" if found.field.streams else found.match[0]
            self._tell(Event("open", found.field))
            return True
        state.captures.update(groups)
        self._close()
        self._skip(length)
        return was_open or length > 0

    def anchors(self) -> list[tuple[Field, bool, Anchor]]:
        """Those that may come next: the field, whether it begins there, and the anchor."""
        fields, state = self.template.fields, self.state
        if state.current is not None and state.current != self.template.implicit:
            field = fields[state.current]
            return [] if field.close is None else [(field, False, field.close)]
        watched = [(field, True, field.open) for field in fields.values() if field.open is not None]
        implicit = None if state.current is None else fields[state.current]
        if implicit is not None and implicit.close is not None:
            watched.append((implicit, False, implicit.close))
        return watched

    def _scan(self, text: str, begin: int, ends: bool) -> tuple[_Found | None, int]:
        """The next anchor, and where the text ends that no anchor can begin in: before anything that more text could complete or extend."""
        best: tuple[Any, _Found] | None = None
        decided = len(text)
        for field, opens, anchor in self.anchors():
            match = anchor.pattern.search(text, begin) if ends else anchor.pattern.search(text, begin, partial=True)
            if match is None:
                continue
            if not ends and (match.partial or _may_change(anchor, match, text)):
                decided = min(decided, match.start())
                continue
            key = (match.start(), match.start() - match.end(), not opens, field.name)
            if best is None or key < best[0]:
                best = key, _Found(field, opens, match)
        if best is not None and best[1].match.start() < decided:
            return best[1], decided
        return None, decided

    def _skip(self, length: int) -> None:
        state = self.state
        state.before = (state.before + state.left[:length])[-_CONTEXT:]
        state.left = state.left[length:]

    def _take(self, length: int) -> None:
        """Takes so many characters as text of the current field."""
        state = self.state
        text = state.left[:length]
        if text and state.current is not None:
            field = self.template.fields[state.current]
            if not state.opened:
                state.opened = True
                self._tell(Event("open", field))
            if not field.streams:
                state.body += text
            self._tell(Event("text", field, text))
        self._skip(length)

    def _close(self, cut: bool = False) -> None:
        state = self.state
        if state.current is not None and state.opened:
            field = self.template.fields[state.current]
            if cut and not field.streams and field.open is not None and field.close is not None:
                raise ValueError("the reply was cut off within it")
            value = None if field.streams else field.value(state.body, state.captures)
            self._tell(Event("close", field, value))
            if field.name not in state.ended:
                state.ended.append(field.name)
        state.current, state.opened, state.captures, state.opener, state.body = self.template.implicit, False, {}, "", ""


def _may_change(anchor: Anchor, match: Any, text: str) -> bool:
    """Whether a match could be another one once more text has come."""
    if anchor.literals is not None:
        rest = text[match.start() :]
        return any(len(one) > len(rest) and one.startswith(rest) for one in anchor.literals)
    if match.end() == len(text):
        return True
    # A pattern can look ahead, to the end of the text, too.
    longer = anchor.pattern.match(text + "\0", match.start())
    return longer is None or longer.span() != match.span() or longer.groupdict() != match.groupdict()
