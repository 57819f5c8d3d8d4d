# SPDX-License-Identifier: Apache-2.0
"""What the gateway does before it trusts a request: its key, its framing, the sizes of its parts, the model's chat template, its id."""

import contextlib
import http.client
import json
import pathlib
import re
import socket
import tempfile
import threading
import unittest

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401
from fake_server import MODEL, WHOLE, FakeServer, failing
from gateway import PATIENCE, Gateway

import grpc

from command import ZOO, Server, rivulet
from rivulet.gateway.worker.errors import shown
from rivulet.gateway.upstream import key_cache
from rivulet.v1 import inference_pb2

TEXT = "shakespeare-rfa"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
COMPLETION = {"model": "m", "prompt": "a"}
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class GuardTest(unittest.TestCase):
    """gateway: set by the classes below."""

    @contextlib.contextmanager
    def connected(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            yield connection

    def asked(self, connection, body, path="/v1/completions", key=None, **headers):
        """Status, headers and JSON of the answer. body: bytes, or a value for JSON."""
        own = {"authorization": f"Bearer {key}"} if key else {}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path, raw, {"content-type": "application/json", **own, **headers})
        answer = connection.getresponse()
        return answer.status, answer.headers, json.loads(answer.read())

    def post(self, body, path="/v1/completions", key=None, **headers):
        with self.connected() as connection:
            return self.asked(connection, body, path, key, **headers)

    def refused(self, expected, body, path="/v1/completions"):
        """expected: status, code and param."""
        status, _, answer = self.post(body, path)
        self.assertEqual((status, answer["error"]["code"], answer["error"]["param"]), expected, str(answer)[:300])
        return answer["error"]["message"]

    def answer_to(self, sent):
        """What comes back until the gateway closes the connection or has sent one whole answer."""
        with socket.create_connection(("127.0.0.1", self.gateway.port), PATIENCE) as connection:
            connection.sendall(sent)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            return answer.status, answer.headers, json.loads(answer.read())


class KeyTest(GuardTest):
    """At a server with keys."""

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        file = folder / "keys.json"
        cls.keys = {}
        for name, flags in (("free", ()), ("rare", ("--requests-per-minute", 3))):
            made = rivulet("keys", "new", name, "--keys-file", file, *flags)
            assert made.code == 0, made
            cls.keys[name] = made.out.strip()
        server = cls.enterClassContext(Server(ZOO / TEXT, args=("--threads", "1", "--backend", "cpu", "--keys-file", file)))
        cls.gateway = cls.enterClassContext(Gateway(server.target))

    def test_a_key_is_refused_before_a_byte_of_the_body_is_there(self):
        for key, code in ((None, "API_KEY_MISSING"), ("another", "API_KEY_UNKNOWN")):
            own = f"authorization: Bearer {key}\r\n" if key else ""
            for length in ("content-length: 8000000", "transfer-encoding: chunked"):
                with self.subTest(key=key, length=length):
                    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{own}{length}\r\n\r\n"
                    status, headers, answer = self.answer_to(head.encode())
                    self.assertEqual((status, answer["error"]["code"]), (401, code))
                    self.assertEqual(headers["www-authenticate"], "Bearer")
                    # What has no known end is not waited for.
                    self.assertEqual(headers["connection"], "close" if "chunked" in length else None)

    def test_the_answer_is_the_same_whatever_is_wrong_with_the_body(self):
        for body in (b"[", b'{"\\ud800":1}', {"model": 3}, {"model": TEXT, "prompt": "a" * (9 << 20)}):
            status, _, answer = self.post(body, key="another")
            self.assertEqual((status, answer["error"]["code"]), (401, "API_KEY_UNKNOWN"))

    def test_the_check_does_not_count_in_the_rate_of_the_key(self):
        body = {"model": TEXT, "prompt": "a", "max_tokens": 1}
        found = [self.post(body, key=self.keys["rare"])[0] for _ in range(3)]
        self.assertEqual(found, [200, 200, 200])

    def test_a_request_that_is_larger_than_the_server_takes_is_413(self):
        body = {"model": TEXT, "prompt": "a" * (5 << 20)}
        known = {"model": TEXT, "prompt": "a", "max_tokens": 1, "logprobs": 0}
        for first in (body, known):  # the second one asks for the model, which says how large a request may be
            self.post(first, key=self.keys["free"])
            status, headers, answer = self.post(body, key=self.keys["free"])
            self.assertEqual((status, answer["error"]["code"], headers["retry-after"]), (413, "MESSAGE_TOO_LARGE", None), answer)


class BodyTest(GuardTest):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(FakeServer())
        cls.gateway = cls.enterClassContext(Gateway(cls.server.target))

    def test_each_part_of_a_body_has_a_limit(self):
        before = len(self.server.asked())
        user = {"role": "user", "content": "a"}
        for expected, body, path in (
            ((400, "INVALID_PARAMETER", "prompt"), {"model": "m", "prompt": [1] * ((1 << 20) + 1)}, "completions"),
            ((400, "INVALID_PARAMETER", "prompt"), {"model": "m", "prompt": [[1] * (1 << 19)] * 3}, "completions"),
            ((400, "TOO_MANY_STOP_STRINGS", "stop"), {**COMPLETION, "stop": ["a"] * 17}, "completions"),
            ((400, "TOO_MANY_STOP_TOKENS", "stop_token_ids"), {**COMPLETION, "stop_token_ids": [1] * 65}, "completions"),
            ((400, "INVALID_PARAMETER", "logit_bias"), {**COMPLETION, "logit_bias": {str(id): 1 for id in range(4097)}}, "completions"),
            ((400, "INVALID_PARAMETER", "messages"), {"model": "m", "messages": [user] * 4097}, "chat/completions"),
            ((400, "INVALID_PARAMETER", "messages"), {"model": "m", "messages": [{"role": "user", "content": [{}] * 70_000}]}, "chat/completions"),
            ((400, "INVALID_PARAMETER", "metadata"), {**COMPLETION, "metadata": [[]] * 70_000}, "completions"),
            ((400, "INVALID_JSON", None), {str(name): 1 for name in range(257)}, "completions"),
        ):
            with self.subTest(expected=expected):
                self.refused(expected, body, f"/v1/{path}")
        self.assertEqual(self.server.asked()[before:], [])

    def test_large_bodies_within_the_limits_arrive_whole(self):
        self.server.generate = lambda context: iter(WHOLE)
        ids, text = [*range(1 << 17)], "\u00e9" * (1 << 20)
        self.assertEqual(self.post({"model": "m", "prompt": ids})[0], 200)
        self.assertEqual(list(self.server.asked()[-1].request.tokens.ids), ids)
        self.assertEqual(self.post({"model": "m", "prompt": text})[0], 200)
        self.assertEqual(self.server.asked()[-1].request.text, text)
        self.assertEqual(self.refused((400, "INVALID_PARAMETER", "prompt[131072]"), {"model": "m", "prompt": [*ids, True]}).count("true"), 1)

    def test_half_a_surrogate_pair_is_refused_wherever_it_stands(self):
        half = "\ud800"
        for expected, body, path in (
            ((400, "UNSUPPORTED_PARAMETER", r"\ud800"), {**COMPLETION, half: 1}, "completions"),
            ((400, "INVALID_PARAMETER", "model"), {"model": half}, "completions"),
            ((400, "INVALID_PARAMETER", "prompt"), {"model": "m", "prompt": half}, "completions"),
            ((400, "INVALID_PARAMETER", "stop[0]"), {**COMPLETION, "stop": half}, "completions"),
            ((400, "INVALID_PARAMETER", "logit_bias"), {**COMPLETION, "logit_bias": {half: 1}}, "completions"),
            ((400, "INVALID_PARAMETER", "messages[0].role"), {"model": "m", "messages": [{"role": half, "content": "a"}]}, "chat/completions"),
            ((400, "INVALID_PARAMETER", "messages[0].content"), {"model": "m", "messages": [{"role": "user", "content": half}]}, "chat/completions"),
            ((400, "UNSUPPORTED_PARAMETER", r"messages[0].\ud800"), {"model": "m", "messages": [{"role": "u", "content": "a", half: 1}]}, "chat/completions"),
        ):
            with self.subTest(expected=expected):
                self.refused(expected, body, f"/v1/{path}")

    def test_errors_do_not_send_back_what_is_long(self):
        for body in ({**COMPLETION, "temperature": "a" * 100_000}, {"model": [1] * 60_000}, {**COMPLETION, "a" * 100_000: 1}):
            status, _, answer = self.post(body)
            self.assertEqual(status, 400)
            self.assertLess(len(answer["error"]["message"]), 3000)

    def test_two_headers_that_name_the_length_are_refused(self):
        body = json.dumps(COMPLETION)
        chunked = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
        for method, path in (("POST", "/v1/completions"), ("GET", "/health"), ("POST", "/absent")):
            head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(chunked)}\r\ntransfer-encoding: chunked\r\n\r\n"
            status, headers, answer = self.answer_to((head + chunked).encode())
            self.assertEqual((status, answer["error"]["code"], headers["connection"]), (400, "INVALID_HEADERS", "close"))

    def test_a_body_that_is_too_large_is_refused_unread_and_the_connection_goes_on(self):
        self.server.generate = lambda context: iter(WHOLE)
        with self.connected() as connection:
            for _ in range(2):
                status, _, answer = self.asked(connection, b" " * (20 << 20))
                self.assertEqual((status, answer["error"]["code"]), (413, "BODY_TOO_LARGE"))
            self.assertEqual(self.asked(connection, COMPLETION)[0], 200)


class TemplateTest(GuardTest):
    ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(FakeServer())
        cls.gateway = cls.enterClassContext(Gateway(cls.server.target))
        cls.templates = {
            "plain": "{{ messages[0].content }}", "endless": cls.ENDLESS, "memory": "{{ ('a' * 1024) * 2097152 }}",
            "output": "{% for a in range(9999) %}{{ 'a' * 65536 }}{% endfor %}",
        }  # fmt: skip
        cls.server.model = lambda request, context: inference_pb2.GetModelReply(
            summary={"name": request.model}, config_json="{}", chat_template=cls.templates[request.model]
        )

    def chat(self, model):
        return self.post({**CHAT, "model": model}, "/v1/chat/completions")

    def check_others(self):
        self.server.generate = lambda context: iter(WHOLE)
        self.assertEqual(self.chat("plain")[0], 200)
        self.assertEqual(self.server.asked()[-1].request.text, "a")

    def test_a_template_without_an_end_holds_up_nobody_and_is_ended(self):
        answers = []
        asking = threading.Thread(target=lambda: answers.append(self.chat("endless")))
        asking.start()
        served = 0
        while not answers:  # health is answered while the template runs
            with self.connected() as connection:
                connection.request("GET", "/health")
                served += connection.getresponse().status in (200, 501)  # the server of this test has no health
        asking.join()
        self.assertGreater(served, 0)
        (status, _, answer), = answers
        self.assertEqual((status, answer["error"]["code"]), (400, "CHAT_TEMPLATE_TOO_HARD"), answer)
        self.assertIn("1 s", answer["error"]["message"])
        self.check_others()

    def test_a_template_takes_neither_all_memory_nor_writes_without_end(self):
        for name, mention in (("memory", "memory"), ("output", f"{64 << 20} bytes")):
            status, _, answer = self.chat(name)
            self.assertEqual((status, answer["error"]["code"]), (400, "CHAT_TEMPLATE_TOO_HARD"), answer)
            self.assertIn(mention, answer["error"]["message"])
            self.check_others()

    def test_a_client_that_leaves_leaves_the_worker_to_others(self):
        body = json.dumps({**CHAT, "model": "endless"}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", self.gateway.port)) as connection:
                connection.sendall(head.encode() + body)
        self.check_others()


class RequestIdTest(GuardTest):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(FakeServer())
        cls.gateway = cls.enterClassContext(Gateway(cls.server.target))

    def setUp(self):
        self.server.generate = lambda context: iter(WHOLE)

    def ids_of_calls(self, begin):
        return [call.metadata.get("x-request-id") for call in self.server.calls[begin:]]

    def test_an_id_goes_to_the_server_and_comes_back(self):
        for stream in (False, True):
            begin = len(self.server.calls)
            with self.connected() as connection:
                body = json.dumps({**CHAT, "stream": stream})
                connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json", "x-request-id": f"my-id-{stream}"})
                answer = connection.getresponse()
                answer.read()
            self.assertEqual((answer.status, answer.headers.get_all("x-request-id")), (200, [f"my-id-{stream}"]))
            self.assertEqual(set(self.ids_of_calls(begin)), {f"my-id-{stream}"})

    def test_what_is_no_id_is_replaced(self):
        for value in (None, "two words", "a" * 129, 'a"b', "a,b"):
            begin = len(self.server.calls)
            _, headers, _ = self.post(COMPLETION, **({} if value is None else {"x_request_id": value}))
            (id,) = headers.get_all("x-request-id")
            self.assertTrue(UUID.fullmatch(id), id)
            self.assertEqual(set(self.ids_of_calls(begin)), {id})

    def test_every_answer_has_one(self):
        self.server.generate = lambda context: failing(context, grpc.StatusCode.INTERNAL, "A_REASON")
        for method, path, body in (
            ("GET", "/health", None), ("GET", "/", None), ("GET", "/absent", None), ("PUT", "/v1/completions", None),
            ("POST", "/v1/completions", "["), ("POST", "/v1/completions", json.dumps(COMPLETION)),
        ):  # fmt: skip
            with self.connected() as connection:
                connection.request(method, path, body, {"content-type": "application/json", "x-request-id": "mine"})
                answer = connection.getresponse()
                answer.read()
                self.assertEqual(answer.headers.get_all("x-request-id"), ["mine"], (method, path))


class RememberedTest(GuardTest):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(FakeServer())
        cls.gateway = cls.enterClassContext(Gateway(cls.server.target))

    def calls(self, begin):
        return [call.name for call in self.server.calls[begin:]]

    def chat(self, key, **more):
        return self.post({**CHAT, **more}, "/v1/chat/completions", key)

    def test_a_chat_is_one_call_to_the_server(self):
        begin = len(self.server.calls)
        for _ in range(4):
            self.assertEqual(self.chat("one")[0], 200)
        self.assertEqual(self.calls(begin).count("GetModel"), 1)
        self.assertEqual(self.calls(begin).count("ServerReflectionInfo"), 1)
        begin = len(self.server.calls)
        self.assertEqual(self.chat("one")[0], 200)
        self.assertEqual(self.calls(begin), ["Generate"])

    def test_what_one_key_sees_is_not_told_to_another(self):
        def model(request, context):
            if dict(context.invocation_metadata()).get("authorization") != "Bearer sees":
                failing(context, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", "model")
            return MODEL

        self.server.model = model
        self.addCleanup(setattr, self.server, "model", lambda request, context: MODEL)
        for _ in range(2):
            self.assertEqual(self.chat("sees")[0], 200)
            status, _, answer = self.chat("blind")
            self.assertEqual((status, answer["error"]["code"]), (404, "MODEL_NOT_FOUND"))

    def test_an_answer_is_remembered_for_a_bounded_time(self):
        self.assertLessEqual(key_cache.SECONDS, 60)


class WorkerTest(unittest.TestCase):
    def test_an_answer_to_what_is_shown_is_short(self):
        for value in ("a" * 10**6, [["a"] * 10**5] * 3, {"a": {"b": [1] * 10**5}}, 10**4000):
            self.assertLessEqual(len(shown(value)), 80)


if __name__ == "__main__":
    unittest.main()
