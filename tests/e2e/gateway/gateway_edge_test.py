# SPDX-License-Identifier: Apache-2.0
"""What the gateway needs to stand in front: its access log, its metrics, HTTPS, limits of what a client may hold, several processes, and pages of
other origins."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401
from fake_server import WHOLE, FakeServer, failing
from gateway import PATIENCE, Gateway, run

import grpc
import openai
from prometheus_client.parser import text_string_to_metric_families

from command import CONFORMANCE, Server
from rivulet.gateway import command
from rivulet.gateway.process import options

OPENSSL = shutil.which("openssl")
JSON = {"content-type": "application/json"}
BODY = json.dumps({"model": "m", "prompt": "a"})


def series(text):
    """{name: {labels: value}} of a page of metrics."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


class EdgeTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.server = self.enterContext(FakeServer())
        self.server.generate = lambda context: iter(WHOLE)

    def serve(self, *args):
        return self.enterContext(Gateway(self.server.target, *args))

    def ask(self, gateway, method="POST", path="/v1/completions", body=BODY, **headers):
        """Status, headers and bytes of an answer on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, JSON | {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

    def await_true(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), end, f"not within {PATIENCE} s: {what}")
            time.sleep(0.02)

    def closed(self, connection):
        """Everything that comes until the gateway closes the connection."""
        connection.settimeout(PATIENCE)
        found = b""
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(1 << 16):
                found += more
        return found


class AccessLogTest(EdgeTest):
    def test_each_request_has_a_line_with_its_id_and_a_renamed_file_is_opened_again(self):
        log = self.folder / "access.jsonl"
        gateway = self.serve("--access-log", str(log))
        _, headers, answer = self.ask(gateway, x_request_id="abc-1")
        self.assertEqual(headers["x-request-id"], "abc-1")
        self.assertEqual(self.ask(gateway, path="/v1/completions?key=secret", body="{")[0], 400)
        self.assertEqual(self.ask(gateway, "GET", "/none", None)[0], 404)
        self.await_true("three lines", lambda: log.exists() and log.read_text().count("\n") == 3)
        first, second, third = map(json.loads, log.read_text().splitlines())
        self.assertEqual((first["request_id"], first["method"], first["path"], first["status"], first["bytes"], first["whole"]),
                         ("abc-1", "POST", "/v1/completions", 200, len(answer), True))  # fmt: skip
        self.assertEqual(first["event"], "http")
        self.assertGreaterEqual(first["duration_seconds"], first["first_byte_seconds"])
        self.assertRegex(first["peer"], r"^127\.0\.0\.1:\d+$")
        self.assertEqual((second["status"], second["path"], third["status"]), (400, "/v1/completions", 404))
        log.rename(self.folder / "access.1")
        self.ask(gateway)
        self.await_true("a line in the new file", lambda: log.exists() and log.read_text().count("\n") == 1)

    def test_a_client_that_leaves_is_499_and_a_stream_is_logged_at_its_end(self):
        log, go_on = self.folder / "access.jsonl", threading.Event()
        gateway = self.serve("--access-log", str(log))

        def generate(context):
            yield WHOLE[0]
            context.add_callback(go_on.set)
            go_on.wait(PATIENCE)

        self.server.generate = generate
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps({"model": "m", "prompt": "a", "stream": True}), JSON)
        answer = connection.getresponse()
        answer.read(1)
        self.assertFalse(log.read_text())
        answer.close()
        connection.close()
        self.await_true("a line", lambda: log.read_text().count("\n") == 1)
        line = json.loads(log.read_text())
        self.assertEqual((line["status"], line["whole"]), (200, False))
        self.assertTrue(go_on.wait(PATIENCE), "the call to the server ends")

    def test_a_file_that_cannot_be_written_ends_the_start(self):
        code, _, err = run("--target", self.server.target, "--listen", "127.0.0.1:0", "--access-log", "/absent/log")
        self.assertEqual((code, err), (2, "rivulet-gateway: --access-log: /absent/log: No such file or directory\n"))


class LimitsTest(EdgeTest):
    def test_connections_beyond_the_limit_are_told_so(self):
        gateway = self.serve("--max-connections", "2")
        with socket.create_connection(("127.0.0.1", gateway.port)) as one, socket.create_connection(("127.0.0.1", gateway.port)) as two:
            self.await_true("both are counted", lambda: b" 503 " in self.refused(gateway))
            answer = self.refused(gateway)
            self.assertIn(b"TOO_MANY_CONNECTIONS", answer)
            self.assertIn(b"retry-after: 1\r\n", answer.lower())
            two.close()
            self.await_true("one has left", lambda: b" 503 " not in self.refused(gateway))
            one.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
            self.assertIn(b" 200 ", one.recv(100))

    def refused(self, gateway):
        with socket.create_connection(("127.0.0.1", gateway.port)) as third:
            third.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            return self.closed(third)

    def test_a_request_that_does_not_arrive_is_cut_off(self):
        gateway = self.serve("--request-seconds", "1")
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n"
        for sent in (b"", b"POST /v1", head + b"{"):
            with self.subTest(sent), socket.create_connection(("127.0.0.1", gateway.port)) as slow:
                slow.sendall(sent)
                self.assertEqual(self.closed(slow), b"")
        with socket.create_connection(("127.0.0.1", gateway.port)) as kept:  # the second request of a connection, too
            kept.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\nPOST /v1")
            self.assertEqual(self.closed(kept).count(b"HTTP/1.1 200"), 1)
        self.assertEqual(self.ask(gateway)[0], 200)

    def test_an_answer_may_take_longer_than_its_request(self):
        gateway = self.serve("--request-seconds", "1", "--reader-seconds", "1")

        def generate(context):
            yield WHOLE[0]
            time.sleep(2.5)
            yield from WHOLE[1:]

        self.server.generate = generate
        status, _, answer = self.ask(gateway, body=json.dumps({"model": "m", "prompt": "a", "stream": True}))
        self.assertEqual((status, answer.count(b"data: ")), (200, 3))

    def test_a_client_that_does_not_read_is_cut_off(self):
        ended = threading.Event()

        def generate(context):
            context.add_callback(ended.set)
            while not ended.is_set():
                yield type(WHOLE[0])(seed=1, tokens=[1], text="a" * 10000)

        self.server.generate = generate
        gateway = self.serve("--reader-seconds", "1")
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(("127.0.0.1", gateway.port))
            body = json.dumps({"model": "m", "prompt": "a", "stream": True}).encode()
            lazy.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            self.assertTrue(ended.wait(PATIENCE), "the call to the server ends")

    def test_the_limit_of_a_body_is_a_flag(self):
        gateway = self.serve("--max-body-mib", "1")
        status, _, answer = self.ask(gateway, body=BODY + " " * (1 << 20))
        self.assertEqual((status, json.loads(answer)["error"]["message"]), (413, "the body must be at most 1048576 bytes"))
        self.assertEqual(self.ask(gateway, body=BODY + " " * (1 << 19))[0], 200)


class MetricsTest(EdgeTest):
    def test_there_is_no_page_unless_the_servers_is_named(self):
        self.assertEqual(self.ask(self.serve(), "GET", "/metrics", None)[0], 404)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            target = f"127.0.0.1:{silent.getsockname()[1]}"
        status, _, answer = self.ask(self.serve("--metrics-target", target), "GET", "/metrics", None)
        self.assertEqual((status, json.loads(answer)["error"]["code"]), (503, "METRICS_UNAVAILABLE"))

    def test_the_gateways_own_numbers_have_an_address_over_all_processes(self):
        for count in (1, 2):
            with self.subTest(workers=count), contextlib.ExitStack() as server:
                target = server.enter_context(Server(CONFORMANCE / "tiny-elu-relu", args=("--backend", "cpu", "--threads", "1"))).target
                gateway = self.enterContext(Gateway(target, "--workers", str(count), "--metrics-listen", "127.0.0.1:0"))
                for _ in range(4):
                    self.assertEqual(self.ask(gateway, "GET", "/v1/models", None)[0], 200)
                page = f"http://127.0.0.1:{gateway.metrics}/metrics"

                def numbers(page=page):
                    with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
                        return series(answer.read().decode())

                self.await_true("the server serves", lambda: numbers()["rivulet_gateway_server_serving"] == {(): 1})
                found = numbers()
                self.assertEqual(found["rivulet_gateway_requests_total"], {(("route", "/v1/models"), ("status", "200")): 4})
                self.assertEqual({name for name in found if not name.startswith("rivulet_gateway_")}, set())
                with self.assertRaises(urllib.error.HTTPError) as refused:
                    numbers(page + "/more")
                refused.exception.close()
                self.assertEqual(refused.exception.code, 404)
                server.close()
                self.await_true("the server is gone", lambda: numbers()["rivulet_gateway_server_serving"] == {(): 0})

    def test_the_page_has_the_servers_numbers_and_its_own(self):
        model = CONFORMANCE / "tiny-elu-relu"
        with Server(model, args=("--metrics-listen", "127.0.0.1:0", "--backend", "cpu", "--threads", "1")) as server:
            with Gateway(server.target, "--metrics-target", server.metrics) as gateway:
                body = json.dumps({"model": model.name, "prompt": [1, 2], "max_tokens": 3, "seed": 1})
                self.assertEqual(self.ask(gateway, body=body)[0], 200)
                self.assertEqual(self.ask(gateway, body="{")[0], 400)
                status, headers, answer = self.ask(gateway, "GET", "/metrics", None)
        self.assertEqual(status, 200)
        self.assertTrue(headers["content-type"].startswith("text/plain; version=0.0.4"))
        found = series(answer.decode())
        self.assertEqual(found["rivulet_generated_tokens_total"], {(("model", model.name),): 3})
        for name in ("rivulet_queue_depth", "rivulet_requests_running", "rivulet_slots_used_ratio"):
            self.assertEqual(found[name], {(("model", model.name),): 0})
        requests = found["rivulet_gateway_requests_total"]
        self.assertEqual(requests, {(("route", "/v1/completions"), ("status", status)): 1 for status in ("200", "400")})
        self.assertEqual(found["rivulet_gateway_requests_running"], {(): 1})
        self.assertEqual(found["rivulet_gateway_connections"], {(): 1})
        self.assertEqual(found["rivulet_gateway_request_duration_seconds_count"], {(): 2})
        self.assertEqual(found["rivulet_gateway_request_duration_seconds_bucket"][(("le", "+Inf"),)], 2)


class CorsTest(EdgeTest):
    def test_only_pages_of_named_origins_may_call(self):
        gateway = self.serve("--cors-origin", "https://app.example", "--cors-origin", "http://localhost:3000")
        wish = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,content-type,x-stainless-os"}
        for origin, allowed in (("https://app.example", True), ("http://localhost:3000", True), ("https://evil.example", False)):
            with self.subTest(origin):
                status, headers, _ = self.ask(gateway, "OPTIONS", body=None, origin=origin, **wish)
                self.assertEqual((status, headers["access-control-allow-origin"]), (200, origin) if allowed else (400, None))
                status, headers, _ = self.ask(gateway, origin=origin)
                self.assertEqual((status, headers["access-control-allow-origin"]), (200, origin if allowed else None))
                self.assertIsNone(headers["access-control-allow-credentials"])
        self.assertEqual(self.ask(self.serve("--cors-origin", "*"), origin="https://any.example")[1]["access-control-allow-origin"], "*")
        self.assertIsNone(self.ask(self.serve(), origin="https://any.example")[1]["access-control-allow-origin"])


class HostTest(EdgeTest):
    """A web page whose name was pointed to this machine calls with its own name as the host."""

    def status(self, gateway, host, version="1.1", path="/v1/models"):
        """host: None for no header."""
        header = "" if host is None else f"host: {host}\r\n"
        with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
            connection.sendall(f"GET {path} HTTP/{version}\r\n{header}connection: close\r\n\r\n".encode("latin-1"))
            head, _, body = self.closed(connection).partition(b"\r\n\r\n")
        if b" 403 " in head:
            said = "the header Host must be localhost, an address of loopback or a host that --allowed-host names; got"
            self.assertEqual(json.loads(body)["error"] | {"message": said}, {
                "message": said, "type": "permission_error", "param": None, "code": "HOST_NOT_ALLOWED"})  # fmt: skip
            self.assertTrue(json.loads(body)["error"]["message"].startswith(f"{said} '{host}'"), body)
        return int(head.split()[1])

    def test_on_loopback_without_keys_only_known_hosts_are_answered(self):
        gateway = self.serve("--allowed-host", "Gate.example", "--allowed-host", "[2001:DB8::1]", "--metrics-target", "127.0.0.1:1")
        plain = self.serve("--workers", "2")
        for host in ("localhost", "LocalHost:8000", "localhost.:1", "127.0.0.1", "127.8.9.1:65535", "[::1]:80", "[::ffff:127.0.0.1]",
                     "gate.EXAMPLE:443", "gate.example.", "[2001:db8::1]:443"):  # fmt: skip
            with self.subTest(host):
                self.assertEqual(self.status(gateway, host), 200)
                self.assertEqual(self.status(plain, host), 403 if "gate" in host.lower() or "db8" in host else 200)
        for host in ("evil.example", "localhost.evil.example", "evil-localhost", "127.0.0.1.evil.example", "128.0.0.1", "0.0.0.0", "[::]",
                     "localhost@evil", "localhost, evil", "", "[localhost]", "\u00e9"):  # fmt: skip
            with self.subTest(host):
                self.assertEqual(self.status(gateway, host), 403)
        self.assertEqual((self.status(gateway, None, "1.0"), self.status(gateway, None)), (200, 400))
        for path in ("/", "/health", "/metrics", "/absent"):  # whatever the route
            self.assertEqual(self.status(gateway, "evil.example", path=path), 403)

    def test_any_host_is_answered_where_a_page_gains_nothing_or_the_flag_says_so(self):
        for address, flags, hosts in (
            ("127.0.0.1", (), set()), ("127.0.0.2", ("a.example",), {"a.example"}), ("127.0.0.1", ("a.example", "*"), None),
            ("0.0.0.0", (), None), ("0.0.0.0", ("A.example", "[2001:DB8::1]"), {"a.example", "[2001:db8::1]"}),
        ):  # fmt: skip
            with self.subTest(address=address, flags=flags), socket.create_server((address, 0)) as listener:
                given = options.parse([f"--allowed-host={flag}" for flag in flags])
                self.assertEqual(command._hosts(given, listener), hosts)
        self.server.answers["ListModels"] = lambda request, context: failing(context, grpc.StatusCode.UNAUTHENTICATED, "API_KEY_MISSING")
        self.assertEqual(self.status(self.serve("--workers", "2"), "a.example"), 401)


@unittest.skipUnless(OPENSSL, "openssl is absent")
class HttpsTest(EdgeTest):
    def certificate(self, name):
        subprocess.run(
            [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", self.folder / f"{name}.key", "-out", self.folder / f"{name}.pem"],
            check=True, capture_output=True,
        )  # fmt: skip

    def shown(self, gateway):
        with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE) as plain:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(plain) as connection:
                return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True))

    def test_https_with_a_certificate_that_may_change(self):
        for name in ("one", "two"):
            self.certificate(name)
        cert, key = self.folder / "cert.pem", self.folder / "key.pem"
        shutil.copy(self.folder / "one.pem", cert), shutil.copy(self.folder / "one.key", key)
        gateway = self.serve("--https-cert", str(cert), "--https-key", str(key))
        with openai.OpenAI(base_url=f"https://127.0.0.1:{gateway.port}/v1", api_key="k", http_client=openai.DefaultHttpxClient(
                verify=ssl.create_default_context(cafile=self.folder / "one.pem"))) as client:  # fmt: skip
            self.assertEqual(client.completions.create(model="m", prompt="a").choices[0].text, "ab")
            chunks = client.completions.create(model="m", prompt="a", stream=True)
            self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), "ab")
        with socket.create_connection(("127.0.0.1", gateway.port)) as plain:
            plain.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
            self.assertNotIn(b"200", self.closed(plain))
        (self.folder / "cert.new").write_bytes((self.folder / "two.pem").read_bytes())
        os.replace(self.folder / "cert.new", cert)  # without its key, which comes later
        self.assertIn('"event":"tls_reload_failed"', gateway.process.stderr.readline())
        self.assertEqual(self.shown(gateway), (self.folder / "one.pem").read_text())
        key.write_bytes((self.folder / "two.key").read_bytes())
        self.assertIn('"event":"tls_reloaded"', gateway.process.stderr.readline())
        self.assertEqual(self.shown(gateway), (self.folder / "two.pem").read_text())


class WorkersTest(EdgeTest):
    def test_processes_share_the_address_the_metrics_and_the_end(self):
        model, log = CONFORMANCE / "tiny-elu-relu", self.folder / "access.jsonl"
        with Server(model, args=("--metrics-listen", "127.0.0.1:0", "--backend", "cpu", "--threads", "1")) as server:
            with Gateway(server.target, "--workers", "2", "--metrics-target", server.metrics, "--access-log", str(log)) as gateway:
                body = json.dumps({"model": model.name, "prompt": [1, 2], "max_tokens": 3, "seed": 1})
                for _ in range(8):
                    self.assertEqual(self.ask(gateway, body=body)[0], 200)
                for _ in range(4):  # whichever process answers
                    found = series(self.ask(gateway, "GET", "/metrics", None)[2].decode())
                    self.assertEqual(found["rivulet_gateway_requests_total"][(("route", "/v1/completions"), ("status", "200"))], 8)
                lines = lambda: [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
                self.await_true("the lines, of which a process that is killed loses those that wait", lambda: len(lines()) == 12)
                children = pathlib.Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
                self.assertEqual(len(children), 2)
                os.kill(int(children[0]), signal.SIGKILL)
                line = json.loads(gateway.process.stderr.readline())
                self.assertEqual((line["event"], line["pid"], line["code"]), ("worker_ended", int(children[0]), -9))
                for _ in range(8):  # those that the killed process had waiting, too
                    self.assertEqual(self.ask(gateway, body=body)[0], 200)
                self.await_true("all lines", lambda: len(lines()) == 20)
                self.assertEqual(len({line["request_id"] for line in lines()}), 20)
                code, err = gateway.stop()
        self.assertEqual(code, 0, err)
        self.assertIn('"event":"stopped"', err)

    def test_what_ends_the_start_of_one_ends_it_for_all(self):
        # The first process reads all of stdin, and leaves nothing to the others.
        args = ("--target", self.server.target, "--listen", "127.0.0.1:0", "--workers", "2", "--chat-template", "/dev/stdin")
        code, _, err = run(*args, stdin="{{ messages }}")
        self.assertEqual(code, 2, err)
        self.assertIn("rivulet-gateway: --chat-template: /dev/stdin is empty", err)

    def test_processes_end_with_their_parent(self):
        gateway = self.serve("--workers", "2")
        children = pathlib.Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children").read_text().split()
        gateway.process.kill()
        self.await_true("they are gone", lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in children))


if __name__ == "__main__":
    unittest.main()
