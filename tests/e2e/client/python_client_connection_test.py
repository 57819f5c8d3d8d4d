# SPDX-License-Identifier: Apache-2.0
"""The Python client's connection, against a server made for each case: statuses, TLS, metadata, sizes, a full queue. Retries are in
contract/contract_test.py."""

import asyncio
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest
from concurrent import futures
from pathlib import Path

import rivulet_wheel  # makes rivulet what is imported below

import grpc

import rivulet
from command import CONFORMANCE, Server
from fake_server import WHOLE, ScriptedServer, failing
from python_clients import Async, Sync
from rivulet.v1 import inference_pb2

OPENSSL = shutil.which("openssl")


def server_of(generate=None, score=None, **options):
    return ScriptedServer({"Generate": generate, "Score": score}, **options)


def collect(client):
    return client.generate([1]).collect()


class ConnectionTests:
    def test_every_status_is_an_exception_of_its_own(self):
        def score(request, context):
            failing(context, next(code for code in grpc.StatusCode if code.value[0] == request.tokens.ids[0]), message="so it is")

        classes = set()
        with server_of(score=score) as server:
            for code in rivulet.Code:
                with self.assertRaises(rivulet.RivuletError) as caught:
                    self.call(server.target, lambda c: c.score([code]), max_attempts=1)
                self.assertEqual((caught.exception.code, caught.exception.message), (code, "so it is"))
                self.assertEqual(type(caught.exception).__name__.lower(), code.name.replace("_", "").lower())
                classes.add(type(caught.exception))
        self.assertEqual(len(classes), 16)

    def test_large_replies_are_taken_up_to_the_limit(self):
        reply = inference_pb2.ScoreReply(num_scored=1 << 22, logprobs=[-1.5] * (1 << 22))  # 16 MiB
        with server_of(score=lambda request, context: reply) as server:
            score = self.call(server.target, lambda c: c.score([1], logprobs=True))
            self.assertEqual((score.logprobs.size, score.logprobs[-1]), (1 << 22, -1.5))
            with self.assertRaises(rivulet.ResourceExhausted):
                self.call(server.target, lambda c: c.score([1], logprobs=True), max_receive_bytes=1 << 20)

    def test_metadata_of_client_and_call_and_the_name_of_the_client_are_sent(self):
        with server_of(lambda request, context: iter(WHOLE)) as server:
            self.call(
                server.target, lambda c: c.generate([1], metadata=[("trace-bin", b"\0\xff"), ("x", "2")]).collect(),
                metadata={"authorization": "Bearer me"},
            )
            ((_, _, seen),) = server.calls
        self.assertEqual((seen["authorization"], seen["trace-bin"], seen["x"]), ("Bearer me", b"\0\xff", "2"))
        self.assertTrue(seen["user-agent"].startswith("rivulet-python/"), seen)

    def test_nobody_there_is_unavailable_and_wait_for_ready_waits(self):
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
        with self.assertRaises(rivulet.Unavailable):
            self.call(f"127.0.0.1:{port}", collect)
        late = []
        timer = threading.Timer(0.7, lambda: late.append(server_of(lambda request, context: iter(WHOLE), port=port).__enter__()))
        timer.start()
        patient = {"wait_for_ready": True, "max_attempts": 1}
        self.assertEqual(self.call(f"127.0.0.1:{port}", collect, **patient).tokens.tolist(), [1, 2])
        timer.join()
        late[0].__exit__()
        with self.assertRaises(rivulet.DeadlineExceeded):
            self.call(f"127.0.0.1:{port}", lambda c: c.generate([1], timeout=0.3).collect(), **patient)

    def test_a_server_that_never_speaks_is_given_up(self):
        with socket.create_server(("127.0.0.1", 0)) as mute:
            target = "127.0.0.1:%d" % mute.getsockname()[1]
            # gRPC itself would give it 20 s.
            with self.assertRaises(rivulet.Unavailable):
                self.call(target, lambda c: c.generate([1], timeout=15).collect(), connect_timeout=0.3, max_attempts=1)

    def test_a_full_queue_says_when_to_come_back(self):
        endless = {"model": "tiny-rfa", "max_tokens": 1 << 19}
        with Server(CONFORMANCE / "tiny-rfa", args=("--slots", "1", "--max-queue", "1")) as server:
            with rivulet.Client(server.target) as client, client.generate([1], **endless) as first:
                next(first)
                with client.generate([1], **endless):
                    while client.load()[0].queued == 0:
                        pass
                    with self.assertRaises(rivulet.ResourceExhausted) as caught:
                        self.call(server.target, lambda c: c.generate([1], **endless).collect())
                load = self.call(server.target, lambda c: c.server_load())
        self.assertEqual(load.refusals, {"QUEUE_FULL": 1})
        self.assertEqual(caught.exception.reason, "QUEUE_FULL")
        self.assertGreater(caught.exception.retry_delay, 0)

    def test_bad_options_are_named(self):
        for options, error_type, mention in (
            ({"target": ""}, ValueError, "^target: must be HOST:PORT.*; got ''"),
            ({"target": 5}, TypeError, "^target: must .*; got 5"),
            ({"tls": True}, TypeError, "^tls: must .*; got True"),
            ({"connect_timeout": 0}, ValueError, "^connect_timeout: must .*; got 0"),
            ({"connect_timeout": "1"}, TypeError, "^connect_timeout: must .*; got '1'"),
            ({"max_attempts": 6}, ValueError, "^max_attempts: must .*; got 6"),
            ({"max_receive_bytes": 0}, ValueError, "max_receive_bytes: must be 1 to 2147483647; got 0"),
            ({"wait_for_ready": 1}, TypeError, "^wait_for_ready: must .*; got 1"),
            ({"metadata": {"A": "b"}}, ValueError, "^metadata: a key must .*; got 'A'"),
            ({"tls": rivulet.TlsOptions(client_cert_file="a.pem")}, ValueError, "client_key_file"),
            ({"tls": rivulet.TlsOptions(root_certs_file="/absent/ca.pem")}, FileNotFoundError, r"tls\.root_certs_file"),
            ({"tls": rivulet.TlsOptions(root_certs_file="/dev/null")}, ValueError, r"tls\.root_certs_file: /dev/null is empty"),
        ):
            with self.subTest(options=options), self.assertRaises(error_type) as caught:
                self.call(**{"target": "127.0.0.1:1", "function": collect, **options})
            self.assertRegex(str(caught.exception), mention)


@unittest.skipUnless(OPENSSL, "openssl is absent")
class TlsTests:
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        for name in ("server", "client"):
            subprocess.run(
                [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                 "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}.test",
                 "-keyout", cls.folder / f"{name}.key", "-out", cls.folder / f"{name}.pem"],
                check=True, capture_output=True,
            )  # fmt: skip

    def server(self, mutual=False):
        pair = [((self.folder / "server.key").read_bytes(), (self.folder / "server.pem").read_bytes())]
        roots = (self.folder / "client.pem").read_bytes() if mutual else None
        return server_of(lambda request, context: iter(WHOLE), credentials=grpc.ssl_server_credentials(pair, roots, mutual))

    def options(self, **changed):
        return rivulet.TlsOptions(**{"root_certs_file": self.folder / "server.pem", "server_name": "server.test", **changed})

    def test_a_server_that_the_roots_vouch_for_is_trusted(self):
        with self.server() as server:
            self.assertEqual(self.call(server.target, collect, tls=self.options()).tokens.tolist(), [1, 2])

    def test_another_name_other_roots_and_plaintext_are_unavailable(self):
        with self.server() as server:
            for tls in (
                self.options(server_name="other.test"), self.options(server_name=None), rivulet.TlsOptions(server_name="server.test"), None
            ):
                with self.subTest(tls=tls), self.assertRaises(rivulet.Unavailable) as caught:
                    self.call(server.target, collect, tls=tls, max_attempts=1)
                self.assertEqual("does the server speak TLS?" in str(caught.exception), tls is None, caught.exception)
            self.assertEqual(server.calls, [])

    def test_a_client_shows_its_own_certificate(self):
        pair = {"client_cert_file": str(self.folder / "client.pem"), "client_key_file": self.folder / "client.key"}
        with self.server(mutual=True) as server:
            self.assertEqual(self.call(server.target, collect, tls=self.options(**pair)).tokens.tolist(), [1, 2])
            with self.assertRaises(rivulet.Unavailable):
                self.call(server.target, collect, tls=self.options(), max_attempts=1)


class Waiting:
    """A Score that waits until its call has ended."""

    def __enter__(self):
        self.arrived = threading.Event()
        ended = threading.Event()

        def score(request, context):
            context.add_callback(ended.set)
            self.arrived.set()
            ended.wait(60)

        self.server = server_of(score=score)
        return self.server.__enter__()

    def __exit__(self, *exception):
        self.server.__exit__()


class SyncConnectionTest(ConnectionTests, Sync, unittest.TestCase):
    def test_closing_the_client_ends_a_call_that_waits(self):
        waiting = Waiting()
        with waiting as server, futures.ThreadPoolExecutor(1) as pool:
            client = rivulet.Client(server.target)
            score = pool.submit(client.score, [1])
            self.assertTrue(waiting.arrived.wait(30))
            client.close()
            with self.assertRaises(rivulet.Cancelled):
                score.result(30)


class AsyncConnectionTest(ConnectionTests, Async, unittest.TestCase):
    def wait_for_score(self, end):
        """Runs `end` of client and task while the task waits for a score, then awaits the task."""
        waiting = Waiting()

        async def run(server):
            async with rivulet.AsyncClient(server.target) as client:
                task = asyncio.create_task(client.score([1]))
                self.assertTrue(await asyncio.to_thread(waiting.arrived.wait, 30))
                await end(client, task)
                await task

        with waiting as server:
            asyncio.run(run(server))

    def test_closing_the_client_ends_a_call_that_waits(self):
        with self.assertRaises(rivulet.Cancelled):
            self.wait_for_score(lambda client, task: client.close())

    def test_cancelling_the_task_ends_a_call_that_waits(self):
        async def end(client, task):
            task.cancel()

        with self.assertRaises(asyncio.CancelledError):
            self.wait_for_score(end)


class SyncTlsTest(TlsTests, Sync, unittest.TestCase):
    pass


class AsyncTlsTest(TlsTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
