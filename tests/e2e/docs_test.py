# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of docs/ and of the READMEs that users begin with, in order, as their readers would: the `sh` and `python` blocks of a page in one directory that
looks like the project's root after a build. (client/typescript_test.py runs the `ts` blocks.) A comment before a block says what is special about it:

    <!-- background -->        it starts a server, which runs until the page ends
    <!-- not run: REASON -->   it needs what this machine lacks; the test lists it

Addresses of loopback get free ports, so that pages do not meet other servers of the machine, and `rivulet bench` measures for a second."""

import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

from command import BIN_DIR, SOURCE_DIR
from gateway import environment
from rivulet_wheel import PYTHON

BLOCK = re.compile(r"(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)
PAGES = [*sorted((SOURCE_DIR / "docs").glob("*.md")), SOURCE_DIR / "README.md"]
TIMEOUT = 120  # seconds, of any block


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Page:
    """The blocks of one page and the servers that they started, for a `with` statement."""

    def __init__(self, path: pathlib.Path):
        self.blocks = [match.groupdict() for match in BLOCK.finditer(path.read_text())]
        self.ports: dict[str, int] = {}
        self.servers: list[subprocess.Popen] = []

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.scratch.name)
        for name in ("model", "client", "deploy", "proto"):
            (self.root / name).symlink_to(SOURCE_DIR / name)
        (self.root / "build/release").mkdir(parents=True)
        (self.root / "build/release/bin").symlink_to(BIN_DIR)
        return self

    def __exit__(self, *exception):
        for server in self.servers:
            server.terminate()
        for server in self.servers:
            server.communicate(timeout=TIMEOUT)
        self.scratch.cleanup()

    def as_run(self, text: str) -> str:
        def replaced(match):
            return f"127.0.0.1:{self.ports.setdefault(match.group(1), free_port())}"

        return re.sub(r"127\.0\.0\.1:(\d+)", replaced, re.sub(r"(rivulet bench .*--duration) \d+", r"\1 1", text))

    def start(self, text: str) -> None:
        """Starts a server, ours or Prometheus, and waits until it listens."""
        server = subprocess.Popen(["bash", "-ec", f"exec {text}"], cwd=self.root, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.servers.append(server)
        listening = 2 if "rivulet serve" in text else 1  # the server, and then the gateway
        for line in server.stderr:
            listening -= '"event":"listening"' in line or "Server is ready to receive web requests" in line
            if not listening:
                return
        raise AssertionError(f"the server did not start: {text}")

    def run(self, block) -> subprocess.CompletedProcess:
        text = self.as_run(block["text"])
        if block["language"] == "python":
            command = [PYTHON, "-W", "error", "-c", text]
        else:
            # One terminal: what a block exports holds for the next ones.
            command = ["bash", "-euo", "pipefail", "-c", f"[ ! -e .exports ] || . ./.exports\n{text}\nexport -p >.exports"]
        return subprocess.run(command, cwd=self.root, env=environment(), capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)


class DocsTest(unittest.TestCase):
    def test_every_block_of_every_page(self):
        left_out, count = [], 0
        for path in PAGES:
            with Page(path) as page:
                for block in page.blocks:
                    if block["language"] == "ts":
                        self.assertEqual(path.name, "typescript.md", "client/typescript_test.py runs no other page")
                        continue
                    note = block["note"] or ""
                    where = f"{path.relative_to(SOURCE_DIR)}: {block['text'].splitlines()[0]}"
                    with self.subTest(where):
                        self.assertIn(block["language"], ("sh", "python"), "this test knows no other")
                        if note.startswith("not run: "):
                            left_out.append(f"{where} ({note.removeprefix('not run: ')})")
                        elif note == "background":
                            page.start(page.as_run(block["text"]))
                        else:
                            self.assertEqual(note, "", "this test knows no such comment")
                            count += 1
                            result = page.run(block)
                            self.assertEqual(result.returncode, 0, result.stderr)
        print("not run:", *left_out, sep="\n  ")
        self.assertGreater(count, 20)


if __name__ == "__main__":
    unittest.main()
