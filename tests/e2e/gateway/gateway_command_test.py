# SPDX-License-Identifier: Apache-2.0
"""rivulet-gateway as a command, and what it makes of errors, keys and certificates: against a gRPC server that follows a script."""

import asyncio
import http.client
import io
import json
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import rivulet_wheel  # makes rivulet what is imported below
from fake_server import WHOLE, FakeServer, failing
from gateway import PATIENCE, Gateway, run

import grpc
import numpy as np
import openai

from rivulet import Part, TopLogprobs
from rivulet.gateway import command
from rivulet.gateway.upstream import batching as ready
from rivulet.gateway.worker import rendering
from rivulet.gateway.worker.errors import Refused

OPENSSL = shutil.which("openssl")
KEY = "Bearer a-key"
GOOD = "the configuration is good\n"


class ErrorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(FakeServer())
        cls.gateway = cls.enterClassContext(Gateway(cls.server.target))

    def post(self, body=None, headers=None):
        """Status, headers and text of the answer to a completion."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        request = json.dumps({"model": "m", "prompt": "a", **(body or {})})
        connection.request("POST", "/v1/completions", request, {"content-type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()

    def test_every_status_has_its_own_and_names_reason_and_parameter(self):
        code = grpc.StatusCode
        for status, expected, kind in (
            (code.INVALID_ARGUMENT, 400, "invalid_request_error"), (code.OUT_OF_RANGE, 400, "invalid_request_error"),
            (code.UNAUTHENTICATED, 401, "authentication_error"), (code.PERMISSION_DENIED, 403, "permission_error"),
            (code.NOT_FOUND, 404, "invalid_request_error"), (code.FAILED_PRECONDITION, 409, "conflict_error"),
            (code.ABORTED, 409, "conflict_error"), (code.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
            (code.INTERNAL, 500, "server_error"), (code.DATA_LOSS, 500, "server_error"), (code.UNIMPLEMENTED, 501, "server_error"),
            (code.DEADLINE_EXCEEDED, 504, "server_error"),
        ):  # fmt: skip
            for stream in (False, True):
                with self.subTest(status=status, stream=stream):
                    self.server.generate = lambda context: failing(context, status, "A_REASON", "sampling.top_p")
                    got, headers, answer = self.post({"stream": stream})
                    error = {"message": "said by the server", "type": kind, "param": "top_p", "code": "A_REASON"}
                    self.assertEqual((got, json.loads(answer)), (expected, {"error": error}))
                    self.assertEqual(headers["www-authenticate"], "Bearer" if expected == 401 else None)

    def test_a_full_queue_says_when_to_come_back(self):
        self.server.generate = lambda context: failing(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "", 1.25)
        status, headers, answer = self.post()
        self.assertEqual((status, json.loads(answer)["error"]["param"]), (429, None))
        self.assertEqual((headers["retry-after"], headers["retry-after-ms"]), ("2", "1250"))

    def test_an_error_in_mid_stream_is_the_last_event(self):
        def generate(context):
            yield WHOLE[0]
            failing(context, grpc.StatusCode.UNAVAILABLE, "DRAINING")

        self.server.generate = generate
        status, headers, answer = self.post({"stream": True})
        first, last, end = answer.split("\n\n")
        self.assertEqual((status, end), (200, ""))
        self.assertIn("text/event-stream", headers["content-type"])
        self.assertEqual(json.loads(first.removeprefix("data: "))["choices"][0]["text"], "a")
        error = {"message": "said by the server", "type": "server_error", "param": None, "code": "DRAINING"}
        self.assertEqual(json.loads(last.removeprefix("data: ")), {"error": error})
        with openai.OpenAI(base_url=f"{self.gateway.url}/v1", api_key="k", max_retries=0) as client:
            with self.assertRaises(openai.APIError) as caught:
                list(client.completions.create(model="m", prompt="a", stream=True))
        self.assertEqual(caught.exception.code, "DRAINING")

    def test_the_key_is_passed_on_and_salts_the_cache(self):
        self.server.generate = lambda context: iter(WHOLE)
        begin = len(self.server.asked())
        for headers in ({}, {"Authorization": KEY}, {"Authorization": KEY}, {"Authorization": KEY + "2"}):
            status, _, answer = self.post(headers=headers)
            self.assertEqual((status, json.loads(answer)["choices"][0]["text"]), (200, "ab"))
        passed = [call.metadata.get("authorization") for call in self.server.asked()[begin:]]
        self.assertEqual(passed, [None, KEY, KEY, KEY + "2"])
        caches = [call.request.cache for call in self.server.asked()[begin:]]
        self.assertTrue(all(cache.enabled for cache in caches))
        none, first, again, other = (cache.salt for cache in caches)
        self.assertEqual((none, first), ("", again))
        self.assertEqual(len({none, first, other}), 3)
        self.assertNotIn("a-key", first + other)

    def test_the_traceparent_is_passed_on(self):
        self.server.generate = lambda context: iter(WHOLE)
        begin = len(self.server.asked())
        traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        for value in (None, traceparent, "\u00e9".encode("latin-1"), "two words"):
            status, _, _ = self.post(headers={} if value is None else {"traceparent": value})
            self.assertEqual(status, 200)
        passed = [call.metadata.get("traceparent") for call in self.server.asked()[begin:]]
        self.assertEqual(passed, [None, traceparent, None, None])

    def test_a_key_that_no_header_of_grpc_can_hold_is_refused_and_not_repeated(self):
        status, _, answer = self.post(headers={"Authorization": "Bearer \u00e9-secret".encode("latin-1")})
        self.assertEqual((status, json.loads(answer)["error"]["code"]), (401, "UNAUTHENTICATED"))
        self.assertNotIn("secret", answer)


# Arguments, and the line with which they end a start.
BAD = (
    ((), "--target"),
    (("--target", "localhost"), "--target: must be HOST:PORT"),
    (("--target", "a:1", "--port", "3"), "--port"),
    (("--target", "a:1", "--tls-ca", "/absent/ca.pem"), "--tls-ca: /absent/ca.pem: No such file"),
    (("--target", "a:1", "--tls-ca", "/dev/null"), "--tls-ca: /dev/null is empty"),
    (("--target", "a:1", "--tls-ca", ""), "--tls-ca: the path must not be empty"),
    (("--target", "a:1", "--tls-ca", __file__), f"--tls-ca: {__file__} cannot be read as certificates: "),
    (("--target", "a:1", "--tls-cert", "/dev/null"), "--tls-cert: needs --tls-key too"),
    (("--target", "a:1", "--tls-key", "/dev/null"), "--tls-key: needs --tls-cert too"),
    (("--target", "a:1", "--tls-cert", "/dev/null", "--tls-key", "/absent/key.pem"), "--tls-cert: /dev/null is empty"),
    (("--target", "a:1", "--tls-cert", __file__, "--tls-key", "/absent/key.pem"), "--tls-key: /absent/key.pem: No such file"),
    (("--target", "a:1", "--tls-cert", __file__, "--tls-key", __file__), f"--tls-cert: {__file__} and {__file__} are no certificate and its key"),
    (("--target", "a:1", "--drain-seconds", "-1"), "--drain-seconds: must be a whole number from 0 to 86400; got -1"),
    (("--target", "a:1", "--drain-seconds", "1.5"), "--drain-seconds: must be a whole number from 0 to 86400; got '1.5'"),
    (("--target", "a:1", "--workers", "0"), "--workers: must be a whole number from 1 to 256; got 0"),
    (("--target", "a:1", "--max-body-mib", "65"), "--max-body-mib: must be a whole number from 1 to 64; got 65"),
    (("--target", "a:1", "--workers", "two"), "--workers: must be a whole number from 1 to 256; got 'two'"),
    (("--target", "a:1", "--metrics-target", "9464"), "--metrics-target: must be HOST:PORT"),
    (("--target", "a:1", "--metrics-listen", "9465"), "--metrics-listen: must be HOST:PORT"),
    (("--target", "a:1", "--cors-origin", "https://a/b"), "--cors-origin: must be *"),
    (("--target", "a:1", "--allowed-host", "a.example:80"), "--allowed-host: must be *"),
    (("--target", "a:1", "--allowed-host", "2001:db8::1"), "--allowed-host: must be *"),
    (("--target", "a:1", "--https-cert", __file__), "--https-cert: needs --https-key too"),
    (("--target", "a:1", "--https-cert", __file__, "--https-key", __file__), f"--https-cert: {__file__} and {__file__} are no certificate and its key"),
    (("--target", "a:1", "--access-log", "/absent/log"), "--access-log: /absent/log: No such file"),
    (("--target", "a:1", "--access-log", ""), "--access-log: the path must not be empty"),
    (("--target", "a:1", "--access-log", "/"), "--access-log: /: Is a directory"),
    (("--target", "a:1", "--listen", "8000"), "--listen: must be HOST:PORT"),
    (("--target", "a:1", "--listen", "::1:8000"), "--listen: must be HOST:PORT"),
    (("--target", "a:1", "--listen", f"{'a' * 64}:8000"), "--listen: must be HOST:PORT"),
    (("--target", "a:1", "--chat-template", "/absent.jinja"), "--chat-template: /absent.jinja: No such file"),
    (("--target", "a:1", "--chat-template", "/dev/null"), "--chat-template: /dev/null is empty"),
    (("--target", "a:1", "--chat-template", __file__), f"--chat-template: {__file__}: line "),
)


def main(*args):
    """Exit code, stdout and lines of stderr of the command, in this process."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            command.main(args)
        except SystemExit as end:
            code = end.code
    return code, out.getvalue(), [line.removeprefix("rivulet-gateway: ") for line in err.getvalue().splitlines()]


class StartAndEndTest(unittest.TestCase):
    def fails(self, code, mention, *args):
        got, out, err = run(*args)
        self.assertEqual((got, out, err.count("\n")), (code, "", 1), err)
        self.assertTrue(err.startswith("rivulet-gateway: "), err)
        self.assertIn(mention, err)

    def test_bad_options_end_with_one_line(self):
        for args, mention in BAD:
            with self.subTest(args):
                code, out, lines = main(*args)
                self.assertEqual((code, out, len(lines)), (2, "", 1), lines)
                self.assertIn(mention, lines[0])

    def test_version(self):
        self.assertEqual(main("--version"), (0, f"rivulet-gateway {rivulet_wheel.WHEEL.name.split('-')[1]}\n", []))

    def test_what_cannot_be_reached_or_listened_on_ends_with_one_line(self):
        with FakeServer() as server, socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            self.fails(3, f"--listen: cannot listen on {address}: Address already in use", "--target", server.target, "--listen", address)
            target = server.target
        self.fails(3, f"--target: {target}: ", "--target", target)

    def test_sigterm_lets_a_stream_end(self):
        begun, go_on = threading.Event(), threading.Event()

        def generate(context):
            yield WHOLE[0]
            begun.set()
            go_on.wait(PATIENCE)
            yield from WHOLE[1:]

        with FakeServer() as server, Gateway(server.target) as gateway:
            server.generate = generate
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0, timeout=PATIENCE) as client:
                stream = client.completions.create(model="m", prompt="a", stream=True)
                chunks = iter(stream)
                text = next(chunks).choices[0].text
                self.assertTrue(begun.wait(PATIENCE))
                gateway.process.send_signal(signal.SIGTERM)
                go_on.set()
                text += "".join(chunk.choices[0].text for chunk in chunks)
            _, log = gateway.process.communicate(timeout=PATIENCE)
        self.assertEqual((text, gateway.process.returncode), ("ab", 0), log)
        self.assertIn('"event":"stopped"', log)

    def test_a_stream_that_does_not_end_is_ended_after_the_drain_time(self):
        begun, ended = threading.Event(), threading.Event()

        def generate(context):
            context.add_callback(ended.set)
            yield WHOLE[0]
            begun.set()
            ended.wait(PATIENCE)

        with FakeServer() as server, Gateway(server.target, "--drain-seconds", "0") as gateway:
            server.generate = generate
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0, timeout=PATIENCE) as client:
                stream = client.completions.create(model="m", prompt="a", stream=True)
                chunks = iter(stream)
                next(chunks)
                code, log = gateway.stop()
                self.assertTrue(ended.wait(PATIENCE))
                with self.assertRaisesRegex(openai.APIError, "the gateway stops") as raised:
                    next(chunks)
                self.assertEqual(raised.exception.code, "GATEWAY_STOPPED")
        self.assertEqual((code, "Traceback" in log), (0, False), log)

    @unittest.skipUnless(OPENSSL, "openssl is absent")
    def test_tls_to_the_server(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for host in ("server", "other"):
                subprocess.run(
                    [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                     "-subj", f"/CN={host}", "-addext", "subjectAltName=IP:127.0.0.1",
                     "-keyout", folder / f"{host}.key", "-out", folder / f"{host}.pem"],
                    check=True, capture_output=True,
                )  # fmt: skip
            pair = ((folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes())
            with FakeServer(grpc.ssl_server_credentials([pair])) as server:
                with Gateway(server.target, "--tls-ca", str(folder / "server.pem")) as gateway:
                    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k") as client:
                        self.assertEqual([model.id for model in client.models.list()], ["m"])
                for wrong in (("--tls-ca", str(folder / "other.pem")), ()):
                    with self.subTest(wrong):
                        self.fails(3, f"--target: {server.target}: ", "--target", server.target, *wrong)
            mutual = grpc.ssl_server_credentials([pair], (folder / "other.pem").read_bytes(), require_client_auth=True)
            with FakeServer(mutual) as server:
                ca = ("--tls-ca", str(folder / "server.pem"))
                with Gateway(server.target, *ca, "--tls-cert", str(folder / "other.pem"), "--tls-key", str(folder / "other.key")) as gateway:
                    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k") as client:
                        self.assertEqual([model.id for model in client.models.list()], ["m"])
                self.fails(3, f"--target: {server.target}: ", "--target", server.target, *ca)


class CheckConfigTest(unittest.TestCase):
    """--check-config: it says of each fault what a start says, all faults at once."""

    def check(self, *args):
        """Exit code, stdout and lines of stderr. Nothing listens."""
        with mock.patch.object(socket.socket, "listen", side_effect=AssertionError("it listens")):
            return main("--check-config", *args)

    def test_each_fault_is_what_a_start_says(self):
        for args, _ in (*BAD, (("--target", "a:1", "--listen", "192.0.2.1:1"), None)):
            with self.subTest(args):
                code, out, lines = self.check(*args)
                started, _, (line,) = main(*args)
                self.assertEqual((code, out, lines[0]), (started, "", line))

    def test_all_faults_are_said_at_once_and_the_gravest_decides(self):
        code, out, lines = self.check(
            "--port", "3", "--workers", "0", "--max-body-mib", "many", "--metrics-target", "9464", "--cors-origin", "https://a/b", "--cors-origin", "b", "--allowed-host", "",
            "--tls-ca", "/absent/ca.pem", "--tls-cert", "/dev/null", "--https-cert", __file__, "--https-key", __file__, "--access-log", "/absent/log",
            "--listen", "192.0.2.1:1", "--chat-template", __file__,
        )  # fmt: skip
        mentions = (
            "unrecognized arguments: --port 3", "--target HOST:PORT is required", "--workers: must be a whole number from 1 to 256; got 0",
            "--max-body-mib: must be a whole number from 1 to 64; got 'many'", "--metrics-target: ", "got 'https://a/b'", "got 'b'", "--allowed-host: ", "--tls-ca: ",
            "--tls-cert: needs --tls-key", "--tls-cert: /dev/null is empty", "--https-cert: ", "--access-log: ",
            "--listen: cannot listen on 192.0.2.1:1: ", "--chat-template: ",
        )  # fmt: skip
        self.assertEqual((code, out, len(lines)), (2, "", len(mentions)), lines)
        for line, mention in zip(lines, mentions):
            self.assertIn(mention, line)
        code, _, lines = self.check("--target", "a:1", "--listen", "192.0.2.1:1")
        self.assertEqual((code, len(lines)), (3, 1), lines)

    def test_a_good_configuration_is_good_beside_the_gateway_that_has_it_and_without_its_target(self):
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as target:
            log = Path(folder) / "log"
            args = ("--target", f"127.0.0.1:{target.getsockname()[1]}", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--access-log", str(log))
            self.assertEqual(self.check(*args), (0, GOOD, []))
            self.assertEqual(run("--check-config", *args), (0, GOOD, ""))
            self.assertFalse(log.exists(), "it has made the log")
            target.setblocking(False)
            with self.assertRaises(BlockingIOError, msg="it has connected to the target"):
                target.accept()

    def test_a_chat_template_keeps_to_the_limits_or_is_refused_in_one_line(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            for template, mention in (
                ("{{ 'a' * 536870912 }}", "more than 512 MiB of memory"),  # Jinja makes a constant of it
                (f"{{{{ {'(' * 20000}1{')' * 20000} }}}}", "maximum recursion depth exceeded"),
                ("{{ raise_exception('a conversation that it refuses') }}", None),
            ):  # fmt: skip
                file.seek(0), file.truncate(), file.write(template), file.flush()
                code, _, lines = self.check("--target", "a:1", "--chat-template", file.name)
                self.assertEqual((code, len(lines)), (2, 1) if mention else (0, 0), lines)
                if mention:
                    self.assertIn(f"--chat-template: {file.name}: ", lines[0])
                    self.assertIn(mention, lines[0])

    def test_a_package_that_is_absent_is_one_fault_among_others(self):
        for package in ("jinja2", "regex", "starlette", "uvicorn"):
            with self.subTest(package):
                script = f"import sys; sys.modules[{package!r}] = None; from rivulet.gateway.command import main; main()"
                code, out, err = rivulet_wheel.run("-c", script, "--check-config", "--target", "a:1", "--workers", "0", "--chat-template", "/dev/null")
                self.assertEqual((code, out), (2, ""))
                self.assertRegex(err, rf"^rivulet-gateway: --workers: .*\nrivulet-gateway: {package}[.a-z]* is not installed: install the wheel .*\n$")

    @unittest.skipUnless(OPENSSL, "openssl is absent")
    def test_certificates(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for host in ("one", "other"):  # with keys that TLS of this machine may refuse, and gRPC does not
                subprocess.run(
                    [OPENSSL, "req", "-x509", "-newkey", "rsa:1024", "-nodes", "-subj", f"/CN={host}", "-keyout", folder / f"{host}.key",
                     "-out", folder / f"{host}.pem"],
                    check=True, capture_output=True,
                )  # fmt: skip
            pem, key, other = (str(folder / file) for file in ("one.pem", "one.key", "other.key"))
            self.assertEqual(self.check("--target", "a:1", "--tls-ca", pem, "--tls-cert", pem, "--tls-key", key), (0, GOOD, []))
            code, _, (line,) = self.check("--target", "a:1", "--tls-cert", pem, "--tls-key", other)
            self.assertEqual(code, 2)
            self.assertIn(f"--tls-cert: {pem} and {other} are no certificate and its key: ", line)


class ReadyTest(unittest.IsolatedAsyncioTestCase):
    """Parts of a reply that are ready together."""

    def part(self, position, text, sample=0, finish=None, numbers=True):
        tokens = np.array([position], np.int32)
        top = (TopLogprobs(tokens, np.array([-0.5], np.float32), None),) if numbers else None
        return Part(sample, position, tokens, text, np.array([-1.0 - position], np.float32) if numbers else None, top, finish, None)

    async def test_they_come_together_in_order_and_an_error_comes_after_them(self):
        go_on, given = asyncio.Event(), [(0, self.part(i, "ab"[i])) for i in range(2)]

        async def parts():
            for one in given:
                yield one
            await go_on.wait()
            yield 1, self.part(0, "c")
            raise ValueError("the call ended")

        groups = ready.together(parts())
        self.assertEqual(await asyncio.wait_for(anext(groups), PATIENCE), given)
        go_on.set()
        ((number, part),) = await asyncio.wait_for(anext(groups), PATIENCE)
        self.assertEqual((number, part.text), (1, "c"))
        with self.assertRaisesRegex(ValueError, "the call ended"):
            await asyncio.wait_for(anext(groups), PATIENCE)

    async def test_no_more_are_read_than_a_client_takes(self):
        read = 0

        async def parts():
            nonlocal read
            while True:
                read += 1
                yield 0, self.part(read, "a")

        groups = ready.together(parts())
        found = await asyncio.wait_for(anext(groups), PATIENCE)
        for _ in range(20):
            await asyncio.sleep(0)
        self.assertLess(read - len(found), 2 * ready._MOST)
        await groups.aclose()

    def test_those_of_a_sample_become_one(self):
        found = [(0, self.part(3, "a")), (0, self.part(0, "x", sample=1)), (1, self.part(7, "y")), (0, self.part(4, "b", finish="end"))]
        (first, one), (second, other), (third, last) = ready.merged(found)
        self.assertEqual((first, second, third, other.text, last.text), (0, 0, 1, "x", "y"))
        self.assertEqual((one.text, one.first_position, one.tokens.tolist(), one.finish), ("ab", 3, [3, 4], "end"))
        self.assertEqual((one.logprobs.tolist(), [entry.token_ids.tolist() for entry in one.top_logprobs]), ([-4.0, -5.0], [[3], [4]]))
        (_, plain), = ready.merged([(0, self.part(0, "a", numbers=False)), (0, self.part(1, "b", numbers=False))])
        self.assertEqual((plain.text, plain.logprobs, plain.top_logprobs), ("ab", None, None))


class TemplateTest(unittest.TestCase):
    """Templates as the files of published models write them."""

    CHATML = (
        "{%- for message in messages %}\n    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
    )
    MESSAGES = [{"role": "user", "content": "a < b & \u00e9"}]

    def render(self, template):
        return rendering.render(template, {"messages": self.MESSAGES})

    def test_a_conversation_becomes_a_prompt(self):
        self.assertEqual(
            self.render(self.CHATML), "<|im_start|>user\na < b & \u00e9<|im_end|>\n<|im_start|>assistant\n"
        )
        marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        self.assertEqual(self.render(marked), "a < b & \u00e9")
        template = "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
        twice = rendering.render(template, {"messages": self.MESSAGES * 2, "bos_token": "<s>"})
        self.assertEqual(twice, '<s>{"role": "user", "content": "a < b & \u00e9"}')

    def test_a_template_that_refuses_fails_or_reaches_out_is_an_error(self):
        for template, mention in (
            ("{{ raise_exception('only one turn') }}", "only one turn"),
            ("{% for %}", "Expected an expression"),
            ("{{ messages[9].content }}", "no element 9"),
            ("{{ 1 / 0 }}", "division by zero"),
            ("{{ messages.__class__.__mro__ }}", "unsafe"),
            ("{{ messages.append(1) }}", "unsafe"),
            ("{% include '/etc/passwd' %}", "loader"),
        ):
            with self.subTest(template), self.assertRaises(Refused) as caught:
                self.render(template)
            self.assertEqual((caught.exception.code, caught.exception.param), ("CHAT_TEMPLATE_REFUSED", "messages"))
            self.assertIn(mention, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
