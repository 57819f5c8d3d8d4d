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
KILL_AFTER = 5  # seconds between SIGTERM and SIGKILL
TAIL = 4000  # characters of output that a result keeps
# A lent machine returns so many files of so many bytes.
MOST_FILES, MOST_BYTES = 8, 16 << 20
ROOM_LEFT = 1 << 20  # of these for short lines, once long ones no longer fit


@dataclasses.dataclass
class Outcome:
    """What came of one program. `kind`: passed, failed, crashed, timed_out, skipped or not_run."""

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
    """One phase: a file of JSON lines, the first of which is the machine. Appends to what is there."""

    def __init__(self, phase: str, folder: pathlib.Path, seconds: float, machine: dict, say=print):
        self.phase, self.say = phase, say
        self.end = time.monotonic() + seconds
        self.kinds: dict[str, list[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self.file = (folder / f"{phase}.jsonl").open("a", encoding="utf-8")
        self._append({"machine": machine, "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})

    def left(self) -> float:
        """Seconds to the phase's deadline."""
        return self.end - time.monotonic()

    def record(self, name: str, outcome: Outcome, **more) -> Outcome:
        """Keeps the outcome under `name`; `more` are fields of the line. Output is kept of what is not good."""
        line = {"name": name, "outcome": outcome.kind, "seconds": round(outcome.seconds, 2), "exit_code": outcome.exit_code, **more}
        if not outcome.good:
            line["output"] = outcome.output[-TAIL:]
        self._append(line)
        self.kinds.setdefault(outcome.kind, []).append(name)
        last = outcome.output.strip().rsplit("\n", 1)[-1][:160] if not outcome.good else ""
        self.say(f"{outcome.kind:9} {self.phase} {name} ({outcome.seconds:.1f} s) {last}".rstrip())
        return outcome

    def figure(self, name: str, **values) -> None:
        """Keeps measured numbers."""
        self._append({"name": name, "figures": values})

    def run(self, name: str, command: list, limit: float, environment: dict | None = None, **more) -> Outcome:
        """Runs `command` for at most `limit` seconds, and at most until the deadline, and keeps what came of it."""
        return self.record(name, self.attempt(command, limit, environment), **more)

    def attempt(self, command: list, limit: float, environment: dict | None = None) -> Outcome:
        """As run(), without keeping it. The program and all that it starts are killed when its time is over."""
        left = self.left() - KILL_AFTER
        if left < 1:
            return Outcome("not_run", "no time was left")
        begin = time.monotonic()
        try:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            return Outcome("not_run", f"{command[0]}: {error.strerror}")
        output, late = _await(process, min(limit, left))
        seconds = time.monotonic() - begin
        text = output.decode("utf-8", "replace")
        if late:
            return Outcome("timed_out", text, seconds, process.returncode)
        code = process.returncode
        kind = "passed" if code == 0 else "skipped" if code == SKIPPED else "crashed" if code < 0 else "failed"
        return Outcome(kind, text, seconds, code)

    def _append(self, line: dict) -> None:
        text = json.dumps(line)
        room = MOST_BYTES - os.fstat(self.file.fileno()).st_size - 1
        if len(text) > room - ROOM_LEFT:  # what follows must still say what came of it
            text = json.dumps({key: value for key, value in line.items() if key not in ("output", "figures")} | {"left_out": len(text)})
            self.kinds.setdefault("failed", []).append(f"{line.get('name')}: {self.phase}.jsonl would have more than {MOST_BYTES} bytes")
        if len(text) > room:
            return
        self.file.write(text + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())


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
        return process.communicate()[0], True
