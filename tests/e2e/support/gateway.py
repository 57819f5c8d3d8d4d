# SPDX-License-Identifier: Apache-2.0
"""Runs rivulet-gateway. Importing this ends the script with code 77 where a package that it needs is absent."""

import importlib.util
import json
import os
import subprocess
import sys

from rivulet_wheel import PYTHON

for _needed in ("jinja2", "openai", "starlette", "uvicorn"):
    if importlib.util.find_spec(_needed) is None:
        print(f"skipped: {sys.executable} has no {_needed} (deploy/setup.sh --tests)", file=sys.stderr)
        sys.exit(77)

COMMAND = PYTHON.parent / "rivulet-gateway"
PATIENCE = 120  # seconds, for anything that has to happen


def environment():
    """That of a user who has installed the wheel, without the settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("OPENAI_")}
    return {**kept, "PATH": f"{COMMAND.parent}:{kept['PATH']}"}


def run(*args, stdin=""):
    """Exit code, stdout and stderr of a gateway that ends."""
    done = subprocess.run([COMMAND, *args], input=stdin, capture_output=True, text=True, timeout=PATIENCE, env=environment())
    return done.returncode, done.stdout, done.stderr


def events(answer):
    """Of the text of a stream of server-sent events, without comments: [(id or None, JSON or "[DONE]")]."""
    *given, rest = answer.split("\n\n")
    if rest:
        raise ValueError(f"an event without end: {rest!r}")
    found = []
    for lines in (one.split("\n") for one in given):
        fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
        if fields:
            found.append((fields.pop("id", None), _value(**fields)))
    return found


def _value(data):
    return data if data == "[DONE]" else json.loads(data)


class Gateway:
    """A gateway on a free port in front of `target`, for a `with` statement. url: its root. metrics: the port of --metrics-listen."""

    def __init__(self, target, *args):
        self.command = [COMMAND, "--target", target, "--listen", "127.0.0.1:0", *args]

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()
        )
        line = self.process.stderr.readline()
        if '"event":"metrics_listening"' in line:
            self.metrics = json.loads(line)["port"]
            line = self.process.stderr.readline()
        if '"event":"listening"' not in line:
            self.process.kill()
            raise RuntimeError(f"the gateway did not start: {line}{self.process.communicate()[1]}")
        self.port = json.loads(line)["port"]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def stop(self):
        """Ends it; its exit code, and what it has written since it started."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, log

    def __exit__(self, *exception):
        if self.process.returncode is None:
            self.stop()
