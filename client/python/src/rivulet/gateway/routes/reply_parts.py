# SPDX-License-Identifier: Apache-2.0
"""The parts of a choice of a chat: reasoning, content and tool calls. A process divides the text (worker/chats.py); text that it would only
pass on does not go there."""

from __future__ import annotations

from typing import Any

from rivulet.gateway.process.worker_pool import WorkerPool
from rivulet.gateway.worker.errors import Refused
from rivulet.gateway.worker.progress import Passing, Progress, add_text, give_up, pass_on


class ReplyParts:
    """Of one choice. calls: tool calls so far. error: code and message, if its text could not be divided: the rest is content then."""

    def __init__(self, pool: WorkerPool, made: dict[str, Any], id: str) -> None:
        """made: of worker/chats.chat(). id: with which the ids of calls begin."""
        self._pool = pool
        self._reading = {**made["reading"], "id": id}
        self._progress = Progress(**{**made["progress"], "state": dict(made["progress"]["state"])})  # each choice has its own
        self._pass(made["passing"] and Passing(**made["passing"]))
        self._held = ""
        self.error: dict[str, str] | None = None

    def _pass(self, passing: Passing | None) -> None:
        self._passing, self._watch = passing, frozenset(passing.watch if passing else "")

    @property
    def calls(self) -> int:
        return self._progress.calls

    async def add(self, text: str, end: str) -> dict[str, Any]:
        """What a text adds to the message. end: as of worker/replies.divide()."""
        text, self._held = self._held + text, ""
        passing = self._passing
        if passing is None or (end and not passing.ends) or not self._watch.isdisjoint(text):
            return await self._divide(text, end) if text or end else {}
        delta: dict[str, Any] = {}
        self._held = pass_on(passing, self._progress, text, delta)
        return delta

    async def _divide(self, text: str, end: str) -> dict[str, Any]:
        try:
            answer = await self._pool.divide([self._reading, vars(self._progress), text, end])
        except (Refused, OSError) as error:
            self.error = {"code": getattr(error, "code", "RESPONSE_PARSE_FAILED"), "message": f"{error}; the rest of the reply is given as content"}
            delta: dict[str, Any] = {}
            add_text(delta, "content", give_up(self._progress) + text)
            self._pass(Passing("", "content", ends=True))
            return delta
        self._progress = Progress(**answer["progress"])
        self._pass(answer["passing"] and Passing(**answer["passing"]))
        self.error = answer["error"] or self.error
        found: dict[str, Any] = answer["delta"]
        return found
