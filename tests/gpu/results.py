# SPDX-License-Identifier: Apache-2.0
"""Runs programs under a deadline and appends what came of each to a file at once, so that a kill loses nothing."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import time

SKIPPED = 77  # exit code of a program that cannot run on this machine
KILL_AFTER = 2  # seconds between SIGTERM and SIGKILL
TAIL = 4000  # characters of output that a result keeps
# A borrowed machine returns so many files of so many bytes.
MOST_FILES, MOST_BYTES = 8, 16 << 20
ROOM_LEFT = 1 << 20  # of these for short lines, once long ones no longer fit
NOT_DONE = ("skipped", "cut", "not_run")  # kinds of an Outcome
now = time.monotonic  # the clock of all deadlines


@dataclasses.dataclass
class Outcome:
    """What came of one program. `kind`: passed, failed, crashed, timed_out, skipped, cut (its step had no more time) or not_run."""

    kind: str
    output: str = ""
    seconds: float = 0.0
    exit_code: int | None = None

    @property
    def good(self) -> bool:
        return self.kind == "passed"

    @property
    def bad(self) -> bool:
        return self.kind in ("failed", "crashed", "timed_out")


class Results:
    """One phase: a file of JSON lines, the first of which is the machine. Appends to what is there. Lines name the step that wrote them."""

    def __init__(self, phase: str, folder: pathlib.Path, seconds: float, machine: dict, say=print, kept: pathlib.Path | None = None):
        """`kept`: a second file with the same lines, of this run alone."""
        self.phase, self.say, self.step = phase, say, ""
        self.end = self.step_end = now() + seconds
        self.kinds: dict[str, list[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / f"{phase}.jsonl").open("a", encoding="utf-8")
        self.kept = kept.open("w", encoding="utf-8") if kept is not None else None
        self._append({"machine": machine, "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    def begin(self, step: str, seconds: float) -> None:
        """Begins a step, which has at most so many seconds, and at most what is left of the phase."""
        self.step, self.step_end, self.cut = step, min(self.end, now() + seconds), False
        self.began = now()

    def finish(self) -> None:
        """Ends a step: whole, or cut, where something in it had no time left."""
        self._append({"ended": "cut" if self.cut else "whole", "seconds": round(now() - self.began, 1)})

    def left(self) -> float:
        """Seconds to the end of the step."""
        return self.step_end - now()

    def record(self, name: str, outcome: Outcome, **more) -> Outcome:
        """Keeps the outcome under `name`; `more` are fields of the line. Output is kept of what is not good."""
        line = {"name": name, "outcome": outcome.kind, "seconds": round(outcome.seconds, 2), "exit_code": outcome.exit_code, **more}
        if not outcome.good:
            line["output"] = outcome.output[-TAIL:]
        self._append(line)
        self.kinds.setdefault(outcome.kind, []).append(name)
        last = outcome.output.strip().rsplit("\n", 1)[-1][:160] if not outcome.good else ""
        self.say(f"{outcome.kind:9} {self.step} {name} ({outcome.seconds:.1f} s) {last}".rstrip())
        return outcome

    def figure(self, name: str, **values) -> None:
        """Keeps measured numbers."""
        self._append({"name": name, "figures": values})

    def run(self, name: str, command: list, limit: float, environment: dict | None = None, **more) -> Outcome:
        """Runs `command` for at most `limit` seconds, and at most until the end of the step, and keeps what came of it."""
        return self.record(name, self.attempt(command, limit, environment), **more)

    def attempt(self, command: list, limit: float, environment: dict | None = None) -> Outcome:
        """As run(), without keeping it. The program and all that it starts are killed when its time is over."""
        left = self.left() - KILL_AFTER
        if left < 1:
            self.cut = True
            return Outcome("not_run", "no time was left")
        outcome = execute([str(part) for part in command], min(limit, left), {**os.environ, **(environment or {})})
        if outcome.kind == "timed_out" and left < limit:
            outcome.kind, self.cut = "cut", True
        return outcome

    def _append(self, line: dict) -> None:
        line = {"step": self.step, **line}
        text = json.dumps(line)
        room = MOST_BYTES - os.fstat(self.file.fileno()).st_size - 1
        if len(text) > room - ROOM_LEFT:  # what follows must still say what came of it
            text = json.dumps({key: value for key, value in line.items() if key not in ("output", "figures")} | {"left_out": len(text)})
            self.kinds.setdefault("failed", []).append(f"{line.get('name')}: {self.phase}.jsonl would have more than {MOST_BYTES} bytes")
        for file in (self.file, self.kept) if len(text) <= room else ():
            if file is not None:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())


def execute(command: list[str], limit: float, environment: dict[str, str]) -> Outcome:
    """What came of a program that may run for so many seconds."""
    begin = now()
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                                   start_new_session=True)  # fmt: skip
    except OSError as error:
        return Outcome("not_run", f"{command[0]}: {error.strerror}")
    output, late = _await(process, limit)
    code = process.returncode
    kind = "timed_out" if late else "passed" if code == 0 else "skipped" if code == SKIPPED else "crashed" if code < 0 else "failed"
    return Outcome(kind, output.decode("utf-8", "replace"), now() - begin, code)


def read_lines(path: pathlib.Path) -> list[dict]:
    """The lines of a file of results."""
    return json_lines(path.read_text(encoding="utf-8")) if path.is_file() else []


def json_lines(text: str) -> list[dict]:
    """The objects among the lines of `text`; one that a kill cut short is left out."""
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [line for line in lines if isinstance(line, dict)]


def _await(process: subprocess.Popen, limit: float) -> tuple[bytes, bool]:
    """The program's output, and whether it had to be killed."""
    try:
        return process.communicate(timeout=limit)[0], False
    except subprocess.TimeoutExpired:
        pass
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.communicate(timeout=KILL_AFTER)[0], True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=KILL_AFTER)[0], True
    except subprocess.TimeoutExpired as hung:  # in the driver, or what it started holds the pipe
        return hung.output or b"", True
