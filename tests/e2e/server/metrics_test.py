# SPDX-License-Identifier: Apache-2.0
"""/metrics of a real server: what Python's parser and promtool make of it, and whether it counts what was done. (monitoring/prometheus_test.py: Prometheus itself.)"""

import contextlib
import hashlib
import http.client
import json
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from authority import Authority
from command import BIN_DIR, CONFORMANCE, CommandTest, Server, rivulet, token_lines

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs prometheus_client into build/venv")
    sys.exit(77)
if shutil.which("promtool") is None:
    print("skipped: promtool is not installed; deploy/setup.sh --tests installs it (package prometheus)")
    sys.exit(77)

MODEL, OTHER = CONFORMANCE / "tiny-elu-relu", CONFORMANCE / "tiny-image"
NAME = MODEL.name
LIMIT = 60  # seconds that anything awaited may take
FLAGS = ["--backend", "cpu", "--threads", "1"]


def page(server):
    with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=LIMIT) as reply:
        return reply.read().decode()


class Metrics(dict):
    """{(name, labels but empty ones): value} of a page."""

    def __init__(self, text):
        super().__init__()
        self.kinds = {}
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                self[sample.name, frozenset((k, v) for k, v in sample.labels.items() if v)] = sample.value

    def value(self, name, **labels):
        return self[name, frozenset(labels.items())]

    def of(self, model):
        return [key for key in self if ("model", model) in key[1]]


def metrics(server):
    return Metrics(page(server))


class MetricsTest(CommandTest):
    def serve(self, *models, args=()):
        server = Server(*models, args=["--metrics-listen", "127.0.0.1:0", *FLAGS, *args])
        server.__enter__()
        self.addCleanup(server.__exit__)
        return server

    def generate(self, server, *args):
        return rivulet("generate", "--target", server.target, "--model-name", NAME, "--tokens", "1,2,3", "--seed", "1", *args)

    def await_true(self, what, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), end, f"not within {LIMIT} s: {what}")
            time.sleep(0.05)

    def test_counts_are_what_the_client_did(self):
        server = self.serve(MODEL)
        before = metrics(server)
        self.assertEqual(before.value("rivulet_requests_started_total", model=NAME, method="Generate"), 0)
        self.assertEqual(before.value("rivulet_generated_tokens_total", model=NAME), 0)
        for _ in range(3):
            self.succeeds(self.generate(server, "--max-tokens", "7"))
        for _ in range(2):
            self.assertNotEqual(self.generate(server, "--max-tokens", "7", "--temperature", "-1").code, 0)
        session = self.succeeds(rivulet("sessions", "open", "--target", server.target, "--model-name", NAME)).out.strip()
        after = metrics(server)
        self.assertEqual(after.value("rivulet_requests_started_total", model=NAME, method="Generate"), 3)
        self.assertEqual(after.value("rivulet_requests_finished_total", model=NAME, method="Generate", code="OK"), 3)
        self.assertEqual(after.value("rivulet_errors_total", code="INVALID_ARGUMENT", reason="INVALID_SAMPLING"), 2)
        self.assertEqual(after.value("rivulet_generated_tokens_total", model=NAME), 3 * 7)
        self.assertGreaterEqual(after.value("rivulet_prompt_tokens_total", model=NAME), 3 * 3)
        for name in ("queue_time", "time_to_first_token", "request_duration"):
            self.assertGreaterEqual(after.value(f"rivulet_{name}_seconds_count", model=NAME), 3, name)
            self.assertEqual(after.value(f"rivulet_{name}_seconds_count", model=NAME),
                             after.value(f"rivulet_{name}_seconds_bucket", model=NAME, le="+Inf"), name)
        self.assertEqual(after.value("rivulet_time_to_first_token_seconds_count", model=NAME), 3)
        self.assertEqual(after.value("rivulet_run_rows_count", model=NAME), after.value("rivulet_run_duration_seconds_count", model=NAME))
        self.assertEqual(after.value("rivulet_sessions", model=NAME), 1)
        self.assertEqual(after.value("rivulet_requests_finished_total", model=NAME, method="OpenSession", code="OK"), 1)
        self.succeeds(rivulet("sessions", "close", "--target", server.target, "--model-name", NAME, session))
        self.assertEqual(metrics(server).value("rivulet_sessions", model=NAME), 0)
        self.await_true("the last run is no longer owed", lambda: metrics(server).value("rivulet_run_age_seconds", model=NAME) == 0)
        self.assertEqual(after.value("rivulet_backend_healthy", model=NAME), 1)
        self.assertEqual(after.value("rivulet_model_info", model=NAME, backend="cpu"), 1)
        self.assertGreater(after.value("rivulet_connections_accepted_total"), 0)

    def test_usage_by_tenant_and_key_is_that_of_the_request_log(self):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-usage-")
        self.addCleanup(folder.cleanup)
        log, keys = pathlib.Path(folder.name) / "requests.jsonl", pathlib.Path(folder.name) / "keys.json"
        keys.write_text(json.dumps([
            {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "tenant": tenant}
            for name, tenant in (("reader", "acme"), ("writer", "acme"), ("other", "globex"))
        ]))  # fmt: skip
        server = self.serve(MODEL, args=["--keys-file", str(keys), "--request-log", str(log)])

        def call(key, command, *args, **kwargs):
            file = pathlib.Path(folder.name) / key
            file.write_text(key)
            return self.succeeds(rivulet(command, *args, "--target", server.target, "--model-name", NAME, "--key-file", file, **kwargs))

        generate = ["--tokens", "1,2,3", "--seed", "1", "--max-tokens"]
        call("reader", "generate", *generate, "7")
        call("reader", "generate", *generate, "5", "--num-samples", "2")
        call("writer", "generate", *generate, "4")
        call("other", "score", "--input", "-", stdin=token_lines([[1, 2, 3, 4], [1, 2]]))
        session = call("other", "sessions", "open").out.strip()
        call("other", "sessions", "append", session, "--tokens", "5,6")
        self.assertNotEqual(self.generate(server, "--max-tokens", "7").code, 0)  # without a key
        page_now = metrics(server)
        usage = {}
        for caller in (("acme", "reader"), ("acme", "writer"), ("globex", "other")):
            labels = {"model": NAME, "tenant": caller[0], "key": caller[1]}
            usage[caller] = tuple(page_now.value(f"rivulet_usage_{what}_tokens_total", **labels) for what in ("given", "generated"))
        self.assertEqual(usage, {("acme", "reader"): (6, 17), ("acme", "writer"): (3, 4), ("globex", "other"): (8, 0)})
        self.assertEqual(len([key for key in page_now if key[0].startswith("rivulet_usage_given")]), 3)

        def logged():
            sums = {}
            for line in map(json.loads, log.read_text().splitlines()):
                if "key" in line and "prompt_tokens" in line:
                    given, generated = sums.get((line["tenant"], line["key"]), (0, 0))
                    sums[line["tenant"], line["key"]] = (given + line["prompt_tokens"], generated + line.get("generated_tokens", 0))
            return sums

        self.await_true(f"the log says {usage}", lambda: logged() == usage)

    def test_the_end_of_the_certificate_in_use(self):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-metrics-")
        self.addCleanup(folder.cleanup)
        authority = Authority(pathlib.Path(folder.name), "authority")
        cert, key = authority.sign("server")
        server = self.serve(MODEL, args=["--tls-cert", str(cert), "--tls-key", str(key)])
        end = lambda: metrics(server).value("rivulet_tls_certificate_end_timestamp_seconds")

        def written(pem):
            text = subprocess.run(["openssl", "x509", "-enddate", "-noout", "-in", pem], check=True, capture_output=True, text=True).stdout
            return ssl.cert_time_to_seconds(text.strip().removeprefix("notAfter="))

        self.assertEqual(end(), written(cert))
        time.sleep(1.1)  # certificates have whole seconds
        self.assertNotEqual(written(authority.sign("server")[0]), end())
        self.await_true("the renewed certificate's end", lambda: end() == written(cert))
        plain = self.serve(MODEL)
        self.assertEqual([key for key in metrics(plain) if "certificate" in key[0]], [])

    def test_a_running_reply_holds_a_slot_and_its_cancellation_is_counted(self):
        server = self.serve(MODEL)
        command = [BIN_DIR / "rivulet", "generate", "--target", server.target, "--model-name", NAME, "--tokens", "1", "--seed", "1",
                   "--max-tokens", "1000000"]
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        try:
            self.assertTrue(client.stdout.read(1), "a reply has begun")
            # The loop tells its load between two runs, so perhaps after the first message.
            self.await_true("it holds a slot", lambda: metrics(server).value("rivulet_slots_used", model=NAME) == 1)
            self.assertGreaterEqual(metrics(server).value("rivulet_connections"), 1)
            now = metrics(server)
            slots = now.value("rivulet_slots", model=NAME)
            self.assertGreater(slots, 1)
            self.assertEqual(now.value("rivulet_slots_used_ratio", model=NAME), 1 / slots)
            self.assertEqual(now.value("rivulet_requests_running", model=NAME), 1)
        finally:
            client.kill()
            client.communicate()
        self.await_true("the slot is free", lambda: metrics(server).value("rivulet_slots_used", model=NAME) == 0)
        cancelled = dict(model=NAME, method="Generate", code="CANCELLED", reason="CANCELLED")
        self.assertEqual(metrics(server).value("rivulet_requests_finished_total", **cancelled), 1)

    def test_the_page_is_good_to_promtool_and_says_what_the_process_has(self):
        server = self.serve(MODEL)
        self.succeeds(self.generate(server, "--max-tokens", "3"))
        text = page(server)
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=LIMIT)
        # The library's own metrics are not ours to name.
        complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if line and not line.startswith("exposer_")]
        self.assertEqual(complaints, [])
        seen = Metrics(text)
        limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
        soft = next(line.split()[3] for line in limits.splitlines() if line.startswith("Max open files"))
        self.assertEqual(seen.value("process_max_fds"), float(soft))
        self.assertGreater(seen.value("process_open_fds"), 3)
        self.assertGreater(seen.value("process_resident_memory_bytes"), 1 << 20)
        self.assertEqual(seen.kinds["rivulet_run_rows"], "histogram")
        version = subprocess.run([BIN_DIR / "rivulet-server", "--version"], capture_output=True, text=True, timeout=LIMIT).stdout.split()[-1]
        self.assertEqual(seen.value("rivulet_build_info", version=version), 1)

    def test_a_model_that_is_unloaded_leaves_no_series(self):
        with tempfile.TemporaryDirectory() as repository:
            shutil.copytree(OTHER, pathlib.Path(repository) / OTHER.name)
            server = self.serve(MODEL, args=["--admin-listen", "127.0.0.1:0", "--model-repository", repository])
            self.assertEqual(metrics(server).of(OTHER.name), [])
            self.succeeds(rivulet("models", "load", OTHER.name, "--target", server.admin))
            self.assertGreater(len(metrics(server).of(OTHER.name)), 30)
            self.succeeds(rivulet("models", "unload", OTHER.name, "--target", server.admin))
            after = metrics(server)
            self.assertEqual(after.of(OTHER.name), [])
            self.assertGreater(len(after.of(NAME)), 30)

    def test_clients_add_no_series_but_those_of_their_usage(self):
        server = self.serve(MODEL)
        self.succeeds(self.generate(server, "--max-tokens", "1"))
        before = set(metrics(server))
        for i in range(5):
            self.succeeds(self.generate(server, "--max-tokens", "1", "--tenant", f"tenant-{i}"))
        # Of which there are at most 1000 for a model: token_usage_test.cc.
        added = {(name, dict(labels).get("tenant")) for name, labels in set(metrics(server)) - before}
        self.assertEqual(added, {(f"rivulet_usage_{what}_tokens_total", f"tenant-{i}") for what in ("given", "generated") for i in range(5)})

    def test_addresses_that_cannot_be_used_are_one_line_and_other_paths_are_not_found(self):
        server = self.serve(MODEL)
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{server.metrics}/other", timeout=LIMIT)
        self.assertEqual(refused.exception.code, 404)
        for address, code, mention in ((server.metrics, 3, "in use"), ("127.0.0.1", 2, "port"), ("192.0.2.1:9464", 3, "assign")):
            command = [BIN_DIR / "rivulet-server", "--model", MODEL, "--listen", "127.0.0.1:0", *FLAGS, "--metrics-listen", address]
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            for what in ("metrics-listen", address, mention):
                self.assertIn(what, done.stderr)

    def test_a_few_silent_connections_keep_no_scrape_waiting(self):
        server = self.serve(MODEL)
        tasks = pathlib.Path(f"/proc/{server.process.pid}/task")
        # Each names itself once it runs, which may be after the first scrape.
        self.await_true("there are 16 threads for scrapes",
                        lambda: sum(path.read_text().startswith("civetweb-worker") for path in tasks.glob("*/comm")) == 16)  # fmt: skip
        host, port = server.metrics.rsplit(":", 1)
        with contextlib.ExitStack() as silent:
            for _ in range(15):
                silent.enter_context(socket.create_connection((host, int(port)), timeout=LIMIT)).sendall(b"GET /metrics HTTP/1.1\r\n")
            self.assertIn("rivulet_slots", page(server))

    def test_scrapes_and_silent_connections_do_not_disturb_each_other_or_the_end(self):
        server = self.serve(MODEL)
        host, port = server.metrics.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=LIMIT):
            pages = []
            threads = [threading.Thread(target=lambda: pages.extend(page(server) for _ in range(10))) for _ in range(2)]
            for thread in threads:
                thread.start()
            self.succeeds(self.generate(server, "--max-tokens", "50"))
            for thread in threads:
                thread.join()
            self.assertEqual(len(pages), 20)
            server.process.terminate()
            server.process.communicate(timeout=LIMIT)
            self.assertEqual(server.process.returncode, 0)
        with self.assertRaises((ConnectionError, http.client.HTTPException, urllib.error.URLError)):
            page(server)


if __name__ == "__main__":
    unittest.main()
