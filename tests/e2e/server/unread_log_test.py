# SPDX-License-Identifier: Apache-2.0
"""Logs that nobody reads: a full pipe behind stderr, or behind the request log, delays no call and no end of the server."""

import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

from command import BIN_DIR, CONFORMANCE, CommandTest, rivulet
from unread_pipe import Pipe

MODEL = CONFORMANCE / "tiny-elu-relu"
FLAGS = ["--listen", "127.0.0.1:0", "--backend", "cpu", "--threads", "1", "--metrics-listen", "127.0.0.1:0"]
LIMIT = 60  # seconds that anything awaited may take
GENERATE = ["generate", "--tokens", "1", "--max-tokens", "3", "--seed", "1"]


class UnreadLogTest(CommandTest):
    def start(self, *flags):
        """A server whose stderr is a pipe."""
        self.pipe = Pipe()
        self.process = subprocess.Popen([BIN_DIR / "rivulet-server", *FLAGS, *flags], stdout=subprocess.DEVNULL, stderr=self.pipe.writer)
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)

    def serve(self, *flags):
        self.start("--model", str(MODEL), *flags)
        log = self.pipe.read_until(b'"event":"listening"')
        self.lines = log.count('"event"')
        self.target, self.metrics = (
            "127.0.0.1:" + re.search(rf'"event":"{event}".*"port":(\d+)', log).group(1) for event in ("listening", "metrics_listening")
        )

    def generate(self, *flags):
        return rivulet(*GENERATE, "--target", self.target, *flags, timeout=LIMIT)

    def calls_are_answered(self):
        """Bad ones, each of which is a line of the log, and good ones."""
        for _ in range(3):
            self.assertIn("temperature", self.generate("--temperature", "-1").err)
            self.succeeds(self.generate())

    def counted(self, name, result):
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=LIMIT) as page:
            return float(re.search(rf'^{name}{{result="{result}"}} (\S+)$', page.read().decode(), re.M).group(1))

    def ends(self, by=signal.SIGTERM, code=0):
        self.process.send_signal(by)
        self.assertEqual(self.process.wait(timeout=LIMIT), code)

    def test_a_full_pipe_behind_stderr_delays_no_call_and_no_end(self):
        self.serve()
        end = time.monotonic() + LIMIT
        while self.counted("rivulet_log_lines_total", "written") < self.lines:  # counted behind the write
            self.assertLess(time.monotonic(), end)
        self.pipe.fill()
        self.calls_are_answered()
        self.assertEqual(self.counted("rivulet_log_lines_total", "written"), self.lines)
        self.ends()

    def test_nor_does_it_with_the_request_log_on_stderr(self):
        self.serve("--request-log", "stderr")
        self.pipe.fill()
        self.calls_are_answered()
        self.assertEqual(self.counted("rivulet_request_log_lines_total", "written"), 0)
        self.ends()

    def test_nor_does_a_request_log_on_a_fifo(self):
        with tempfile.TemporaryDirectory(prefix="rivulet-unread-") as folder:
            path = pathlib.Path(folder) / "fifo"
            fifo = Pipe(path)
            self.serve("--request-log", str(path))
            fifo.fill()
            self.calls_are_answered()
            self.ends()
            # Lines that nobody took until the end are told.
            failed = [event for event in self.pipe.events() if event["event"] == "request_log_failed"]
            self.assertEqual([event["path"] for event in failed], [str(path)])
            fifo.events()

    def test_what_waited_is_written_once_the_log_is_read_again(self):
        self.serve()
        self.pipe.fill()
        self.assertIn("temperature", self.generate("--temperature", "-1").err)
        self.pipe.read_until(b'"event":"request_error"')
        self.ends()
        self.assertEqual(self.pipe.events()[-1]["event"], "stopped")

    def test_the_end_is_told_to_a_reader_that_returns_in_time(self):
        self.serve()
        self.pipe.fill()
        self.process.terminate()
        self.pipe.read_until(b'"event":"stopped"')
        self.assertEqual(self.process.wait(timeout=LIMIT), 0)

    def test_a_second_signal_ends_it(self):
        self.serve("--drain-delay-seconds", str(10 * LIMIT))
        self.pipe.fill()
        end = time.monotonic() + LIMIT
        while self.process.poll() is None:
            self.assertLess(time.monotonic(), end)
            self.process.terminate()
            time.sleep(0.1)
        self.assertEqual(self.process.returncode, 0)

    def test_a_crash_ends_it(self):
        self.serve()
        self.pipe.fill()
        self.ends(signal.SIGABRT, -signal.SIGABRT)

    def test_a_failed_start_ends(self):
        pipe = Pipe()
        pipe.fill()
        process = subprocess.Popen([BIN_DIR / "rivulet-server", "--model", "/no/such/model"], stderr=pipe.writer)
        self.addCleanup(process.kill)
        self.assertEqual(process.wait(timeout=LIMIT), 2)


if __name__ == "__main__":
    unittest.main()
