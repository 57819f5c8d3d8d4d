# SPDX-License-Identifier: Apache-2.0
"""Limits of API keys at a real server, as clients meet them: the Python clients, the command, a stream of requests, the gateway."""

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import tempfile
import threading
import time
import unittest

import rivulet_wheel  # noqa: F401  makes rivulet what is imported below
from gateway import PATIENCE, Gateway

import rivulet as package
from command import CONFORMANCE, CommandTest, Server, rivulet

MODEL = "tiny-elu-relu"
# Small, so that a test that makes more calls is refused on a slow machine too.
RATE = 2
# The keys by name, with the limits of each: one key a test, as what one test takes another would miss.
KEYS = {name: {"requests_per_minute": RATE} for name in ("client", "async", "command", "gateway", "reloaded")}
KEYS["stream"] = {"requests_per_minute": 4}
KEYS |= {name: {"tokens_per_minute": 1} for name in ("quota", "quota-gateway", "quota-stream")}
KEYS["sessions"] = {"sessions": 2}
KEYS["slots"] = {"slots": 2}
KEYS["free"] = {}


class KeyLimitsTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-keys-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.file = cls.folder / "keys.json"
        cls.keys = {}
        for name, limits in KEYS.items():
            flags = [text for limit, value in limits.items() for text in (f"--{limit.replace('_', '-')}", value)]
            made = rivulet("keys", "new", name, "--keys-file", cls.file, *flags)
            assert made.code == 0, made
            cls.keys[name] = made.out.strip()
        cls.server = cls.enterClassContext(Server(CONFORMANCE / MODEL, args=["--threads", "1", "--keys-file", cls.file]))

    def client(self, name):
        return self.enterContext(package.Client(self.server.target, key=self.keys[name]))

    def until_refused(self, call, rate):
        """Calls until one is refused, which is after as many as the rate allows. The error."""
        begin = time.monotonic()
        for made in itertools.count():
            try:
                call()
            except package.ResourceExhausted as error:
                refusal = error
                break
        allowed = rate + rate * (time.monotonic() - begin) / 60
        self.assertTrue(rate <= made <= allowed + 1, (made, allowed))
        return refusal

    def check_rate(self, error, rate):
        self.assertEqual((error.reason, error.field), ("API_KEY_REQUEST_RATE", ""))
        self.assertTrue(0 < error.retry_delay <= 60 / rate, error.retry_delay)

    def test_calls_beyond_the_rate_are_refused_and_told_when_to_come_back(self):
        self.check_rate(self.until_refused(self.client("client").models, RATE), RATE)
        for _ in range(10 * RATE):  # others have their own
            self.client("free").models()

    def test_asyncio_learns_the_same(self):
        async def call():
            async with package.AsyncClient(self.server.target, key=self.keys["async"]) as client:
                await client.models()

        self.check_rate(self.until_refused(lambda: asyncio.run(call()), RATE), RATE)

    def test_the_command_ends_as_for_a_server_that_is_full(self):
        file = self.folder / "command.key"
        file.write_text(self.keys["command"])
        while (done := rivulet("models", "--target", self.server.target, "--key-file", file)).code == 0:
            pass
        self.fails(done, 3, "as many requests as it may")
        self.succeeds(rivulet("health", "--target", self.server.target))  # which needs no key, does not count

    def test_requests_of_a_stream_count_and_the_stream_goes_on(self):
        begin, errors, ended = time.monotonic(), [], 0
        with self.client("stream").multiplex(timeout=PATIENCE) as stream:
            for i in range(20):
                stream.generate([i], max_tokens=2)
            for part in stream:
                ended += part.ended
                if part.error is not None:
                    errors.append(part.error)
        rate = KEYS["stream"]["requests_per_minute"]
        allowed = rate + rate * (time.monotonic() - begin) / 60
        self.assertEqual(ended, 20)
        self.assertGreaterEqual(len(errors), 20 - allowed)  # the stream itself is one call more
        self.assertLess(len(errors), 20)
        for error in errors:
            self.assertIsInstance(error, package.ResourceExhausted)
            self.check_rate(error, rate)

    def check_quota(self, error, taken):
        """Of a key with one token a minute."""
        self.assertEqual((error.reason, error.field), ("API_KEY_TOKEN_QUOTA", ""))
        self.assertTrue(0 < error.retry_delay <= 60 * taken, error.retry_delay)

    def test_a_used_up_token_quota_cuts_no_reply_and_refuses_the_next(self):
        client = self.client("quota")
        session = client.open_session()
        self.assertEqual(len(client.generate([1, 2, 3], max_tokens=50).collect().samples[0].tokens), 50)
        for call in (
            lambda: client.generate([1], max_tokens=1).collect(), lambda: client.score([1, 2]), lambda: session.append([1]),
            lambda: session.generate([1], max_tokens=1).collect(),
        ):  # fmt: skip
            with self.assertRaises(package.ResourceExhausted) as raised:
                call()
            self.check_quota(raised.exception, 3 + 50)
        client.models()  # takes no tokens
        client.open_session().close()

    def test_a_used_up_token_quota_refuses_requests_of_a_stream(self):
        with self.client("quota-stream").multiplex(timeout=PATIENCE) as stream:
            first = stream.generate([1], max_tokens=50)
            ends = {part.key: part.error for part in stream if part.ended}
            self.assertIsNone(ends[first])
            second = stream.generate([1], max_tokens=1)
            ends = {part.key: part.error for part in stream if part.ended}
        self.check_quota(ends[second], 1 + 50)

    def test_the_gateway_answers_429_where_the_token_quota_is_used_up(self):
        with Gateway(self.server.target) as gateway:
            answers = [self.ask(gateway, "quota-gateway", "POST", "/v1/completions", {"model": MODEL, "prompt": [1, 2], "max_tokens": 20}) for _ in range(2)]
        self.assertEqual([status for status, _, _ in answers], [200, 429], answers)
        self.assertEqual(answers[1][2]["error"]["code"], "API_KEY_TOKEN_QUOTA")
        self.assertTrue(1 <= int(answers[1][1]["retry-after"]) <= 60 * (2 + 20), answers[1][1].items())

    def test_open_sessions_of_a_key_are_limited(self):
        client, other = self.client("sessions"), self.client("free")
        first, second = client.open_session(), client.open_session()
        for call in (client.open_session, lambda: first.fork(1)):
            with self.assertRaises(package.ResourceExhausted) as raised:
                call()
            self.assertEqual(raised.exception.reason, "API_KEY_SESSION_LIMIT")
        other.open_session().close()
        second.close()
        (fork,) = first.fork(1)
        for session in (fork, first):
            session.close()

    def test_requests_wait_for_slots_of_their_key(self):
        client, other = self.client("slots"), self.client("free")
        with self.assertRaises(package.InvalidArgument) as raised:
            client.generate([1], max_tokens=1, num_samples=3).collect()
        self.assertEqual((raised.exception.reason, raised.exception.field), ("NUM_SAMPLES_OUT_OF_RANGE", "num_samples"))
        self.assertGreater(other.load()[0].slots, 4)
        running = [client.generate([1], max_tokens=1 << 20) for _ in range(2)]
        for reply in running:
            next(reply)
        readers = [threading.Thread(target=self.read_on, args=(reply,)) for reply in running]
        for reader in readers:
            reader.start()
        waiting = client.generate([1], max_tokens=3)
        end = time.monotonic() + PATIENCE
        while other.load()[0].queued < 1:
            self.assertLess(time.monotonic(), end)
        self.assertEqual(len(other.generate([1], max_tokens=3).collect().samples[0].tokens), 3)  # not behind it
        self.assertEqual(other.load()[0].queued, 1)
        running[0].close()
        self.assertEqual(len(waiting.collect().samples[0].tokens), 3)
        running[1].close()
        for reader in readers:
            reader.join(PATIENCE)

    def read_on(self, reply):
        with contextlib.suppress(package.Cancelled):
            for _ in reply:
                pass

    def ask(self, gateway, name, method, path, body=None):
        """Status, headers and parsed body of the gateway's answer."""
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        headers = {"authorization": f"Bearer {self.keys[name]}", "content-type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, json.loads(answer.read())

    def test_the_gateway_answers_429_with_a_time(self):
        with Gateway(self.server.target) as gateway:
            while (answer := self.ask(gateway, "gateway", "GET", "/v1/models"))[0] == 200:
                pass
        status, headers, body = answer
        self.assertEqual((status, body["error"]["type"], body["error"]["code"]), (429, "rate_limit_error", "API_KEY_REQUEST_RATE"))
        self.assertTrue(1 <= int(headers["retry-after"]) <= 60 // RATE, headers.items())

    def test_a_changed_limit_is_in_force_without_a_restart(self):
        client = self.client("reloaded")
        self.until_refused(client.models, RATE)
        entries = json.loads(self.file.read_text())
        for entry in entries:
            if entry["name"] == "reloaded":
                entry["requests_per_minute"] = 10**9
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(entries))
        os.replace(fresh, self.file)
        end, in_a_row = time.monotonic() + PATIENCE, 0
        while in_a_row < 50:  # at the old rate, that took many minutes
            try:
                client.models()
                in_a_row += 1
            except package.ResourceExhausted:
                in_a_row = 0
                self.assertLess(time.monotonic(), end)


if __name__ == "__main__":
    unittest.main()
