# SPDX-License-Identifier: Apache-2.0
"""`rivulet bench`: what it sends, what it counts, that a stall is not hidden, how it ends. No speed is asserted."""

import json
import math
import os
import pathlib
import pty
import re
import signal
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree

from command import BIN_DIR, CONFORMANCE, CommandTest, Result, Server, rivulet

RFA = CONFORMANCE / "tiny-rfa"  # tokens, bos 0, no limit
NOBODY = "127.0.0.1:1"  # nothing listens there
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
NUMBER = (int, float)
OPTIONAL_NUMBER = (int, float, type(None))

# Every field of the JSON output but those of settings, which depend on the loop, and latency_ms.
SCHEMA = {
    "format": int, "version": str, "started": str, "settings": dict,
    "server": {"target": (str, type(None)), "model": str, "backend": str, "numerics_id": str, "weights_sha256": str,
               "num_parameters": int, "slots": int},
    "client": {"cores": int, "cpu": str, "run_seconds": NUMBER, "cpu_seconds": NUMBER},
    "interrupted": bool,
    "requests": {"succeeded": int, "failed": int, "rejected": int, "late": int, "interrupted": int, "unsent": int,
                 "warmup": int, "tokens": int},
    "errors": list,
    "window": {"seconds": NUMBER, "requests": int, "tokens": int, "messages": int, "requests_per_second": NUMBER,
               "tokens_per_second": NUMBER, "messages_per_second": NUMBER},
    "relative_error": float, "latency_ms": dict,
}
SETTINGS = {
    "loop": str, "requests": OPTIONAL_NUMBER, "duration_seconds": OPTIONAL_NUMBER, "warmup_seconds": NUMBER,
    "warmup_requests": int, "connections": int, "deadline_seconds": OPTIONAL_NUMBER, "kind": str,
    "prompt": (str, type(None)), "tokens": (list, type(None)), "prompt_length": int, "max_tokens": OPTIONAL_NUMBER,
    "ignore_eos": bool, "temperature": OPTIONAL_NUMBER, "top_k": OPTIONAL_NUMBER, "top_p": OPTIONAL_NUMBER,
    "min_p": OPTIONAL_NUMBER, "repetition_penalty": OPTIONAL_NUMBER, "frequency_penalty": OPTIONAL_NUMBER,
    "presence_penalty": OPTIONAL_NUMBER, "logit_bias": list, "seed": int,
}
CLOSED = {"concurrency": int, "think_seconds": NUMBER}
OPEN = {"rate": NUMBER, "arrivals": str, "max_in_flight": int}


def established(port):
    """Connections of this machine's `port` that stand. The kernel may list one several times while others begin and end."""
    tables = [path for path in (pathlib.Path("/proc/net/tcp"), pathlib.Path("/proc/net/tcp6")) if path.exists()]
    lines = [line.split() for path in tables for line in path.read_text().splitlines()[1:]]
    return len({(local, remote) for _, local, remote, state, *_ in lines if local.endswith(f":{port:04X}") and state == "01"})


class BenchTest(CommandTest):
    def check_form(self, value, schema, path="$"):
        """`value` has the fields of `schema`, no other, with their types."""
        self.assertEqual(list(value), list(schema), path)
        for name, kind in schema.items():
            if isinstance(kind, dict):
                self.check_form(value[name], kind, f"{path}.{name}")
            else:
                self.assertIsInstance(value[name], kind, f"{path}.{name}")

    def check_histogram(self, histogram, relative_error):
        buckets = histogram["buckets"]
        self.assertEqual(sum(count for _, _, count in buckets), histogram["count"])
        for (_, high, _), (low, _, _) in zip(buckets, buckets[1:]):
            self.assertLessEqual(high, low)
        self.assertLessEqual(buckets[0][0], histogram["min"])
        self.assertLessEqual(histogram["max"], buckets[-1][1])
        order = ["min", *QUANTILES, "max"]
        self.assertEqual([histogram[name] for name in order], sorted(histogram[name] for name in order))
        for name, q in QUANTILES.items():
            rank, below = max(math.ceil(q * histogram["count"] - 1e-9), 1), 0
            for low, high, count in buckets:
                below += count
                if below >= rank:
                    break
            self.assertLessEqual(low, histogram[name])
            self.assertLessEqual(histogram[name], high)
            self.assertLessEqual(high - low, max(low * 2 * relative_error * 1.001, 1.001e-6))

    def check(self, out):
        """The JSON output in `out`, checked for form and for what must agree in it."""
        self.assertEqual(out.count("\n"), 1)
        run = json.loads(out)
        self.check_form(run, SCHEMA)
        self.assertEqual(run["settings"].keys(), (SETTINGS | (OPEN if run["settings"]["loop"] == "open" else CLOSED)).keys())
        for name, kind in (SETTINGS | OPEN | CLOSED).items():
            if name in run["settings"]:
                self.assertIsInstance(run["settings"][name], kind, name)
        for error in run["errors"]:
            self.check_form(error, {"code": str, "reason": str, "count": int, "message": str})
        self.assertEqual(sum(error["count"] for error in run["errors"]), run["requests"]["failed"])
        names = ["end_to_end"] if run["settings"]["kind"] == "score" else ["first_token", "message_gap", "end_to_end"]
        if run["settings"]["loop"] == "open":
            names += ["end_to_end_sent", "send_delay"]
            if run["settings"]["kind"] == "generate":
                names.insert(3, "first_token_sent")
        self.assertEqual(list(run["latency_ms"]), names)
        for histogram in run["latency_ms"].values():
            if histogram["count"]:
                self.check_histogram(histogram, run["relative_error"])
        self.assertEqual(run["latency_ms"]["end_to_end"]["count"], run["requests"]["succeeded"])
        return run

    def bench(self, server, *args):
        """What a run that succeeds prints as JSON; stderr must hold its table."""
        result = self.succeeds(rivulet("bench", "--target", server.target, "--json", "-", *args))
        self.assertRegex(result.err, r"\A(generate|score) tiny-rfa ")
        self.assertNotIn("\x1b", result.err)
        return self.check(result.out)

    def start(self, server, *args):
        """A run in the background, with JSON to stdout."""
        process = subprocess.Popen(
            [BIN_DIR / "rivulet", "bench", "--target", server.target, "--json", "-", *map(str, args)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.addCleanup(process.kill)  # of a run that a failed test left behind
        return process

    def end(self, process):
        out, err = process.communicate(timeout=120)
        return Result(process.returncode, out, err)


class LoadTest(BenchTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(RFA).__enter__()
        cls.addClassCleanup(cls.server.__exit__)

    def test_a_closed_loop_measures_every_request_once(self):
        run = self.bench(self.server, "--requests", 20, "--warmup-requests", 5, "--concurrency", 4, "--max-tokens", 8,
                         "--tokens", "3,4", "--temperature", "0.5", "--ignore-eos")
        self.assertEqual(run["requests"], {"succeeded": 20, "failed": 0, "rejected": 0, "late": 0, "interrupted": 0, "unsent": 0,
                                           "warmup": 5, "tokens": 160})
        latency = run["latency_ms"]
        self.assertEqual(latency["first_token"]["count"], 20)
        # Each message but the first of a reply ends a gap; a message holds at least one token.
        self.assertLessEqual(latency["message_gap"]["count"], 140)
        self.assertLessEqual(latency["first_token"]["max"], latency["end_to_end"]["max"])
        self.assertGreaterEqual(run["window"]["requests"], 20)
        self.assertGreaterEqual(run["window"]["tokens"], 160)
        self.assertGreater(run["window"]["seconds"], 0)
        settings = run["settings"]
        self.assertEqual((settings["loop"], settings["concurrency"], settings["tokens"], settings["temperature"]),
                         ("closed", 4, [3, 4], 0.5))
        self.assertEqual(run["server"]["target"], self.server.target)
        self.assertTrue(run["server"]["numerics_id"].startswith("cpu-"))
        self.assertEqual(run["client"]["cores"], len(os.sched_getaffinity(0)))

    def test_a_duration_is_the_window(self):
        run = self.bench(self.server, "--duration", "0.7", "--warmup", "0.5", "--concurrency", 2, "--max-tokens", 3)
        self.assertAlmostEqual(run["window"]["seconds"], 0.7)
        self.assertGreater(run["requests"]["warmup"], 0)
        self.assertGreater(run["requests"]["succeeded"], 0)

    def test_an_open_loop_sends_what_the_schedule_says(self):
        for arrivals in ("constant", "poisson"):
            with self.subTest(arrivals=arrivals):
                run = self.bench(self.server, "--rate", 100, "--arrivals", arrivals, "--requests", 50, "--max-tokens", 2)
                self.assertEqual(run["requests"]["succeeded"], 50)
                self.assertEqual(run["latency_ms"]["send_delay"]["count"], 50)
                self.assertLessEqual(run["latency_ms"]["end_to_end_sent"]["mean"], run["latency_ms"]["end_to_end"]["mean"])
        # 40 requests/s for half a second: those due at 0, 25, ... 475 ms, however late they are.
        run = self.bench(self.server, "--rate", 40, "--arrivals", "constant", "--duration", "0.5", "--max-tokens", 1)
        self.assertEqual(run["requests"]["succeeded"], 20)
        # With a gap of 50 ms the 20th request is due 950 ms after the first, whatever this machine does.
        self.assertGreaterEqual(
            self.bench(self.server, "--rate", 20, "--arrivals", "constant", "--requests", 20, "--max-tokens", 1)["client"]["run_seconds"],
            0.95)

    def test_what_is_due_is_sent_however_late(self):
        # Far more than one at a time can be: most are sent after the end of the duration.
        run = self.bench(self.server, "--rate", 2000, "--arrivals", "constant", "--duration", "0.5", "--max-in-flight", 1,
                         "--max-tokens", 400, "--ignore-eos")
        self.assertEqual((run["requests"]["succeeded"], run["requests"]["unsent"]), (1000, 0))
        self.assertEqual(run["latency_ms"]["end_to_end"]["count"], 1000)

    def test_equal_seeds_give_equal_poisson_schedules(self):
        args = ["--rate", 200, "--duration", "0.5", "--max-tokens", 1]
        counts = [self.bench(self.server, *args, "--seed", seed)["requests"]["succeeded"] for seed in (5, 5, 6, 7, 8)]
        self.assertEqual(counts[0], counts[1])
        self.assertGreater(len(set(counts)), 1)

    def test_workers_think(self):
        run = self.bench(self.server, "--requests", 5, "--think-ms", 200, "--max-tokens", 1)
        self.assertGreaterEqual(run["client"]["run_seconds"], 0.8)

    def test_scores_are_measured_too(self):
        run = self.bench(self.server, "--kind", "score", "--prompt-length", 20, "--requests", 7, "--concurrency", 3)
        self.assertEqual(run["requests"]["tokens"], 140)
        run = self.bench(self.server, "--kind", "score", "--tokens", "1,2", "--requests", 7, "--rate", 100)
        self.assertEqual(run["requests"]["tokens"], 14)

    def test_as_many_connections_as_asked_for(self):
        port = int(self.server.target.rsplit(":", 1)[1])
        for connections in (1, 3):
            process = self.start(self.server, "--duration", 600, "--concurrency", 6, "--max-tokens", 5, "--connections", connections)
            try:
                deadline = time.monotonic() + 60
                while established(port) < connections and time.monotonic() < deadline:
                    time.sleep(0.05)
                time.sleep(0.5)
                self.assertEqual(established(port), connections)
            finally:
                process.send_signal(signal.SIGINT)
                self.succeeds(self.end(process))
            while established(port) > 0 and time.monotonic() < deadline:
                time.sleep(0.05)

    def test_a_model_in_this_process(self):
        result = self.succeeds(rivulet("bench", "--model", RFA, "--requests", 10, "--concurrency", 2, "--max-tokens", 4, "--json", "-"))
        run = self.check(result.out)
        self.assertEqual((run["server"]["target"], run["requests"]["tokens"]), (None, 40))
        self.assertIn("in this process", result.err)

    def test_files_hold_the_json_and_a_picture(self):
        with tempfile.TemporaryDirectory() as directory:
            for loop, curves in ((["--concurrency", "2"], 3), (["--rate", "100"], 5)):
                path, picture = pathlib.Path(directory, "run.json"), pathlib.Path(directory, "run.svg")
                result = self.succeeds(rivulet("bench", "--target", self.server.target, "--requests", 30, "--max-tokens", 300, *loop,
                                               "--json", path, "--picture", picture))
                self.assertEqual(result.out, "")
                run = self.check(path.read_text())
                self.assertEqual(run["requests"]["succeeded"], 30)
                if run["latency_ms"]["message_gap"]["count"] == 0:  # on a busy machine each reply may come in one message
                    curves -= 1
                svg = xml.etree.ElementTree.parse(picture).getroot()
                self.assertEqual(len(svg.findall("{http://www.w3.org/2000/svg}polyline")), curves)
                text = "".join(svg.itertext())
                self.assertIn("generate tiny-rfa", text)
                self.assertIn("p99.9", text)

    def test_a_terminal_sees_progress_and_then_the_table_alone(self):
        try:
            terminal, stderr = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminal here: {error}")
        process = subprocess.Popen(
            [BIN_DIR / "rivulet", "bench", "--target", self.server.target, "--duration", "1", "--max-tokens", "5"],
            stdout=subprocess.DEVNULL, stderr=stderr, env=os.environ | {"TERM": "xterm"},
        )
        os.close(stderr)
        seen = b""
        try:
            while chunk := os.read(terminal, 4096):
                seen += chunk
        except OSError:  # the other end is closed
            pass
        os.close(terminal)
        self.assertEqual(process.wait(timeout=60), 0)
        shown, _, table = seen.decode().rpartition("\x1b[J")
        self.assertIn("in flight", shown)
        self.assertIn("/1 seconds", shown)
        self.assertNotIn("in flight", table)
        self.assertIn("first token", table)


class StallTest(BenchTest):
    """The server stands still for a while: every request that was due then must show it."""

    STALL = 1.2
    RATE = 50

    def stalled(self, *args):
        with Server(RFA) as server:
            process = self.start(server, "--rate", self.RATE, "--arrivals", "constant", "--duration", 6, "--max-tokens", 1, *args)
            time.sleep(2.5)  # the run has begun
            server.process.send_signal(signal.SIGSTOP)
            try:
                time.sleep(self.STALL)
            finally:
                server.process.send_signal(signal.SIGCONT)
            run = self.check(self.succeeds(self.end(process)).out)
        self.assertEqual(run["requests"]["succeeded"], self.RATE * 6)
        return run

    @staticmethod
    def above(histogram, ms):
        """Values that are surely at least `ms`."""
        return sum(count for low, _, count in histogram["buckets"] if low >= ms)

    def test_a_stall_shows_in_every_request_that_was_due(self):
        latency = self.stalled()["latency_ms"]
        # Of the 60 requests due in the stall 45 were due more than 300 ms before its end.
        self.assertGreaterEqual(self.above(latency["end_to_end"], 300), 30)
        self.assertGreaterEqual(latency["end_to_end"]["p99"], 600)
        self.assertGreaterEqual(latency["first_token"]["p99"], 600)
        self.assertGreaterEqual(latency["end_to_end"]["max"], 900)

    def test_what_waits_in_the_client_counts_from_the_intended_time(self):
        run = self.stalled("--max-in-flight", 1)
        latency = run["latency_ms"]
        # One request at a time: from the time of sending only one saw the stall, which is the omission.
        for name in ("end_to_end", "first_token"):
            self.assertGreaterEqual(self.above(latency[name], 300), 30)
            self.assertGreaterEqual(latency[name]["p99"], 600)
        self.assertLess(self.above(latency["end_to_end_sent"], 600), 5)
        self.assertGreaterEqual(run["requests"]["late"], 30)
        self.assertGreaterEqual(latency["send_delay"]["p99"], 600)


class EndTest(BenchTest):
    """Exit codes, errors by reason, interruption."""

    def test_what_cannot_run_fails_with_one_line(self):
        with Server(RFA) as server:
            target = ["bench", "--target", server.target]
            self.fails(rivulet(*target, "--model-name", "nope", "--json", "-"), 2, "nope")
            self.fails(rivulet(*target, "--temperature", "-1", "--json", "-"), 2, "sampling.temperature", "-1")
            self.fails(rivulet(*target, "--prompt", "text", "--rate", "5"), 2)
            self.fails(rivulet(*target, "--tokens", "99999", "--kind", "score"), 2, "99999")
        self.fails(rivulet("bench", "--target", NOBODY, "--json", "-"), 3)
        # Before anything is sent.
        for option in ("--json", "--picture"):
            self.fails(rivulet("bench", "--target", NOBODY, option, "/nonexistent/file"), 2, "/nonexistent/file")

    def test_a_full_queue_is_counted_by_reason(self):
        with Server(RFA, args=["--slots", "1", "--max-queue", "1"]) as server:
            args = ["--requests", 40, "--concurrency", 8, "--max-tokens", 300]
            run = self.bench(server, *args)
            (error,) = run["errors"]
            self.assertEqual((error["code"], error["reason"]), ("RESOURCE_EXHAUSTED", "QUEUE_FULL"))
            self.assertGreater(error["count"], 0)
            self.assertEqual(run["requests"]["rejected"], error["count"])
            self.assertGreater(run["requests"]["succeeded"], 0)
            self.assertEqual(run["requests"]["succeeded"] + error["count"], 40)
            strict = rivulet("bench", "--target", server.target, *args, "--fail-on-error", "--json", "-")
            self.fails(strict, 3, "of 40 requests failed: RESOURCE_EXHAUSTED QUEUE_FULL", out=None)
            self.assertGreater(self.check(strict.out)["requests"]["rejected"], 0)

    def test_a_run_in_which_nothing_succeeds_fails(self):
        with Server(RFA) as server:
            result = rivulet("bench", "--target", server.target, "--requests", 3, "--max-tokens", 1000000, "--deadline", "0.2",
                             "--json", "-")
        self.fails(result, 3, "3 of 3 requests failed: DEADLINE_EXCEEDED", out=None)
        run = self.check(result.out)
        self.assertEqual(run["requests"]["failed"], 3)
        self.assertEqual(run["latency_ms"]["end_to_end"], {"count": 0})

    def test_a_server_that_dies_is_counted_as_unavailable(self):
        with Server(RFA) as server:
            process = self.start(server, "--duration", 5, "--max-tokens", 3)
            time.sleep(2.5)
            server.process.kill()
            run = self.check(self.succeeds(self.end(process)).out)
        self.assertEqual({error["code"] for error in run["errors"]}, {"UNAVAILABLE"})
        self.assertGreater(run["requests"]["succeeded"], 0)
        # A worker pauses after an error: a dead target does not turn into millions of them.
        self.assertLess(run["requests"]["failed"], 60)

    def test_a_reply_that_is_lost_has_failed_though_another_server_could_go_on(self):
        with Server(RFA) as other, Server(RFA) as server:
            command = ["bench", "--requests", "1", "--max-tokens", str(1 << 19), "--target", f"ipv4:{server.target},{other.target}"]
            process = subprocess.Popen([BIN_DIR / "rivulet", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(process.kill)
            while self.succeeds(rivulet("load", "--target", server.target, "--json")).lines()[0]["slots_used"] == 0:
                pass  # until the reply runs
            server.process.kill()
            self.fails(self.end(process), 3, "1 of 1 requests failed: UNAVAILABLE")

    def test_an_interrupted_run_prints_what_it_measured(self):
        with Server(RFA) as server:
            for number in (signal.SIGINT, signal.SIGTERM):
                process = self.start(server, "--duration", 600, "--concurrency", 3, "--max-tokens", 4)
                time.sleep(2)
                process.send_signal(number)
                result = self.succeeds(self.end(process))
                run = self.check(result.out)
                self.assertTrue(run["interrupted"])
                self.assertIn("INTERRUPTED", result.err)
                self.assertGreater(run["requests"]["succeeded"], 0)
                self.assertEqual(run["requests"]["failed"], 0)
                self.assertLess(run["window"]["seconds"], 120)

    def test_an_interrupted_run_says_what_it_did_not_send(self):
        with Server(RFA) as server:
            process = self.start(server, "--rate", 40, "--max-in-flight", 3, "--duration", 600, "--max-tokens", 1)
            time.sleep(2.5)
            server.process.send_signal(signal.SIGSTOP)
            try:
                time.sleep(1.5)
                process.send_signal(signal.SIGINT)
                run = self.check(self.succeeds(self.end(process)).out)
            finally:
                server.process.send_signal(signal.SIGCONT)
        self.assertEqual(run["requests"]["interrupted"], 3)
        self.assertGreater(run["requests"]["unsent"], 10)
        self.assertEqual(run["requests"]["failed"], 0)

    def test_a_second_interrupt_ends_a_run_at_once(self):
        with Server(RFA) as server:
            process = self.start(server, "--duration", 600, "--max-tokens", 1)
            time.sleep(1.5)
            process.send_signal(signal.SIGSTOP)  # so that it meets both signals
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            self.assertIn(self.end(process).code, (0, -signal.SIGTERM))


if __name__ == "__main__":
    unittest.main()
