# SPDX-License-Identifier: Apache-2.0
"""deploy/rolling_restart.sh: what it prints where all is well, that it notices losses and other texts, and that it leaves nothing."""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from command import BIN_DIR, SOURCE_DIR

for program in ("haproxy", "redis-server"):
    if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin") is None:
        print(f"skipped: {program} is not installed; deploy/setup.sh --tests installs it")
        sys.exit(77)

# Replicas do not share their sessions, and the server without a store has other weights.
BROKEN = f"""#!/bin/sh
case "$*" in
  *--session-store*) exec "{BIN_DIR}/rivulet-server" "$@" --session-store-key-prefix "rivulet:$$:" ;;
  *) exec "{BIN_DIR}/rivulet-server" "$@" --weights bf16 ;;
esac
"""


class RollingRestartTest(unittest.TestCase):
    def start(self, build=BIN_DIR.parent, python=sys.executable):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)  # for what the script writes
        command = [SOURCE_DIR / "deploy/rolling_restart.sh", "--build", build, "--seconds", "1", "--replicas", "2", "--clients", "4"]
        environment = {**os.environ, "TMPDIR": folder.name, "RIVULET_PYTHON": python}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, process, code):
        out = process.communicate(timeout=500)[0]
        self.assertEqual((process.returncode, list(self.folder.iterdir())), (code, []), out)
        return out, {name: int(count) for name, count in re.findall(r"^([a-z ]+): (\d+)$", out, re.M)}

    def test_no_reply_is_lost_and_no_text_differs(self):
        out, counts = self.finish(self.start(), 0)
        events = re.findall(r"(replica-\d): (SIGTERM|kill -9) \(streams: [1-9]", out)
        self.assertEqual(events, [("replica-1", "SIGTERM"), ("replica-2", "SIGTERM"), ("replica-1", "kill -9")])
        self.assertGreater(counts["replies"], counts["sessions"])
        self.assertGreater(counts["sessions"], 0)
        self.assertEqual((counts["replies lost"], counts["texts that differ"]), (0, 0))

    def test_sessions_that_are_not_shared_are_lost_and_other_weights_differ(self):
        with tempfile.TemporaryDirectory() as build:
            server = pathlib.Path(build, "bin/rivulet-server")
            server.parent.mkdir()
            server.write_text(BROKEN)
            server.chmod(0o755)
            out, counts = self.finish(self.start(build), 1)
        self.assertIn("SESSION_NOT_FOUND", out)
        self.assertGreater(counts["replies lost"], 0, out)
        self.assertGreater(counts["texts that differ"], 0, out)

    def test_ctrl_c_ends_everything(self):
        process = self.start()
        port = next(int(found[1]) for line in process.stdout if (found := re.search(r"HAProxy on 127\.0\.0\.1:(\d+)", line)))
        process.send_signal(signal.SIGINT)
        self.finish(process, 130)
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))

    def test_what_is_missing_is_named(self):
        out, _ = self.finish(self.start(python="/nowhere/python"), 2)
        self.assertEqual(out, "rolling_restart.sh: /nowhere/python is missing, or has no grpcio; deploy/setup.sh --tests installs it\n")


if __name__ == "__main__":
    unittest.main()
