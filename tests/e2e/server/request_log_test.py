# SPDX-License-Identifier: Apache-2.0
"""The request log of a real server: every kind of end of a request has its line, and nothing that a client said is in it."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

from command import BIN_DIR, CONFORMANCE, SOURCE_DIR, ZOO, Server

sys.path.insert(0, str(SOURCE_DIR / "proto"))
try:
    import grpc

    pb, inference = grpc.protos_and_services("rivulet/v1/inference.proto")
    session_pb, session_service = grpc.protos_and_services("rivulet/v1/session_service.proto")
    multiplex_pb, multiplex_service = grpc.protos_and_services("rivulet/v1/multiplex.proto")
    admin_pb, admin_service = grpc.protos_and_services("rivulet/v1/admin_service.proto")
except (ImportError, NotImplementedError) as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

MODEL, TEXT = CONFORMANCE / "tiny-elu-relu", ZOO / "shakespeare-rfa"
NAME, TEXT_NAME = MODEL.name, TEXT.name
FLAGS = ["--backend", "cpu", "--threads", "1"]
LIMIT = 120  # seconds that anything awaited may take
ENDLESS = 1 << 20  # tokens: more than any test lets pass
SECRET = "Xyzzy"  # part of everything that a client sends and the log must not hold; no hexadecimal digits
ID_KEY = "x-request-id"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"

COUNT = (int, lambda value: value >= 0)
SECONDS = ((int, float), lambda value: 0 <= value < 10 * LIMIT)
ANY = (str, bool)
# {field: (type, test, whether each line has it)}
SCHEMA = {
    "ts": (str, re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z").fullmatch, True),
    "event": (str, lambda value: value == "request", True),
    "request_id": (*ANY, True),
    "method": (str, re.compile(r"[A-Za-z]+").fullmatch, True),
    "code": (str, lambda value: getattr(grpc.StatusCode, value), True),
    "reason": (str, re.compile(r"[A-Z_]+").fullmatch, False),
    "tenant": (*ANY, False),
    "key": (*ANY, False),
    "model": (str, lambda value: value in (NAME, TEXT_NAME), False),
    "session": (str, re.compile(r"[0-9a-f]{32}").fullmatch, False),
    "prompt_tokens": (*COUNT, False),
    "generated_tokens": (*COUNT, False),
    "queue_seconds": (*SECONDS, False),
    "first_token_seconds": (*SECONDS, False),
    "duration_seconds": (*SECONDS, True),
    "trace_id": (str, re.compile(r"[0-9a-f]{32}").fullmatch, False),
    "peer": (str, re.compile(r"ipv4:127\.0\.0\.1:\d+").fullmatch, True),
}


def prompt(max_tokens=3, **fields):
    return pb.GenerateRequest(model=NAME, tokens=pb.TokenSequence(ids=[1, 2]), sampling=pb.SamplingParams(seed=1), max_tokens=max_tokens, **fields)


class RequestLogTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-request-log-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "requests.jsonl"
        self.calls = 0

    def serve(self, *args, models=(MODEL,), log=None):
        server = Server(*models, args=["--request-log", str(log or self.path), *FLAGS, *args])
        server.__enter__()
        self.addCleanup(lambda: server.process.poll() is None and server.__exit__())
        return server

    def connect(self, target, *options):
        channel = grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1), *options])
        self.addCleanup(channel.close)
        return channel

    def stubs(self, server):
        channel = self.connect(server.target)
        return inference.InferenceServiceStub(channel), session_service.SessionServiceStub(channel)

    def lines(self, path=None):
        """{request id: line} of the complete lines of a file."""
        text = (path or self.path).read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        found = {line["request_id"]: line for line in lines}
        self.assertEqual(len(found), len(lines), "an id has two lines")
        return found

    def await_true(self, what, condition):
        end = time.monotonic() + LIMIT
        while not (result := condition()):
            self.assertLess(time.monotonic(), end, f"not within {LIMIT} s: {what}")
            time.sleep(0.02)
        return result

    def line(self, request_id, **fields):
        """The line of a request, once it is there; `fields` are what it must say, None: nothing."""
        line = self.await_true(f"the line of {request_id}", lambda: self.lines().get(request_id))
        for field, (kind, test, always) in SCHEMA.items():
            if field in line:
                self.assertIsInstance(line[field], kind, line)
                self.assertTrue(test(line[field]), line)
            else:
                self.assertFalse(always, f"{field} is missing in {line}")
        self.assertEqual(set(line) - set(SCHEMA), set(), line)
        self.assertEqual("reason" in line, line["code"] != "OK", line)
        for field, value in fields.items():
            self.assertEqual(line.get(field), value, line)
        return line

    def named(self, metadata):
        """Options of a call with an id of its own."""
        self.calls += 1
        return f"call-{self.calls}", {"metadata": [(ID_KEY, f"call-{self.calls}"), *metadata], "timeout": LIMIT}

    def succeeds(self, call, request, metadata=(), **fields):
        """The reply of a call, or its messages where it streams; its line says OK and `fields`."""
        request_id, options = self.named(metadata)
        reply = call(request, **options)
        reply = list(reply) if isinstance(reply, grpc.Call) else reply
        self.line(request_id, code="OK", **fields)
        return reply

    def fails(self, code, reason, call, request, metadata=(), **fields):
        """The call fails, and its line says so."""
        request_id, options = self.named(metadata)
        with self.assertRaises(grpc.RpcError) as raised:
            reply = call(request, **options)
            list(reply)
        self.assertEqual(raised.exception.code().name, code, raised.exception)
        return self.line(request_id, code=code, reason=reason, **fields)

    def test_every_end_of_a_call_has_its_line(self):
        stub, sessions = self.stubs(self.serve("--max-open-sessions", "1", models=(MODEL, TEXT)))
        metadata = [("rivulet-tenant", "acme"), ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")]
        self.succeeds(stub.Generate, prompt(5), metadata, method="Generate", model=NAME, tenant="acme", prompt_tokens=2, generated_tokens=5,
                      trace_id=TRACE, session=None, key=None)
        line = self.lines()["call-1"]
        self.assertLessEqual(line["queue_seconds"], line["first_token_seconds"])
        self.assertLessEqual(line["first_token_seconds"], line["duration_seconds"])
        bad = pb.GenerateRequest(model=NAME, tokens=pb.TokenSequence(ids=[1]), sampling=pb.SamplingParams(temperature=-1))
        self.fails("INVALID_ARGUMENT", "INVALID_SAMPLING", stub.Generate, bad, method="Generate", model=NAME, tenant=None, trace_id=None,
                   generated_tokens=None)
        call = stub.Generate(prompt(ENDLESS), metadata=[(ID_KEY, "left")], timeout=LIMIT)
        next(call)
        call.cancel()
        line = self.line("left", method="Generate", code="CANCELLED", reason="CANCELLED")
        self.assertGreater(line["generated_tokens"], 0)
        self.succeeds(stub.Score, pb.ScoreRequest(model=NAME, tokens=pb.TokenSequence(ids=[1, 2, 3])), method="Score", model=NAME,
                      prompt_tokens=3, generated_tokens=None, first_token_seconds=None)
        self.assertIn("queue_seconds", self.lines()[f"call-{self.calls}"])
        self.succeeds(stub.ListModels, pb.ListModelsRequest(), method="ListModels", model=None, prompt_tokens=None)
        self.succeeds(stub.GetLoad, pb.GetLoadRequest(model=NAME), method="GetLoad", model=NAME)
        self.succeeds(sessions.OpenSession, session_pb.OpenSessionRequest(model=NAME), method="OpenSession", model=NAME)
        self.fails("RESOURCE_EXHAUSTED", "SESSION_LIMIT", sessions.OpenSession, session_pb.OpenSessionRequest(model=NAME), method="OpenSession")

    def test_calls_of_sessions_name_the_session(self):
        stub, sessions = self.stubs(self.serve())
        opened = self.succeeds(sessions.OpenSession, session_pb.OpenSessionRequest(model=NAME), method="OpenSession")
        name = opened.session.session_id
        self.line(f"call-{self.calls}", session=name)
        append = session_pb.AppendRequest(model=NAME, session={"session_id": name}, tokens={"ids": [1, 2, 3]})
        ref = append.session
        self.succeeds(sessions.Append, append, method="Append", session=name, prompt_tokens=3)
        self.succeeds(stub.Generate, prompt(4, session=ref), method="Generate", session=name, prompt_tokens=2, generated_tokens=4)
        self.succeeds(sessions.GetSession, session_pb.GetSessionRequest(model=NAME, session_id=name), method="GetSession", session=name)
        self.succeeds(sessions.ForkSession, session_pb.ForkSessionRequest(model=NAME, session=ref), method="ForkSession", session=name)
        replies = self.succeeds(sessions.SnapshotSession, session_pb.SnapshotSessionRequest(model=NAME, session_id=name),
                                method="SnapshotSession", session=name, model=NAME)
        snapshot = b"".join(reply.chunk for reply in replies)
        restored = self.succeeds(sessions.RestoreSession, iter([session_pb.RestoreSessionRequest(model=NAME, chunk=snapshot)]),
                                 method="RestoreSession", model=NAME)
        self.line(f"call-{self.calls}", session=restored.session.session_id)
        self.fails("DATA_LOSS", "SNAPSHOT_DAMAGED", sessions.RestoreSession,
                   iter([session_pb.RestoreSessionRequest(model=NAME, chunk=snapshot[:-1])]), method="RestoreSession", session=None)
        close = session_pb.CloseSessionRequest(model=NAME, session_id=name)
        self.succeeds(sessions.CloseSession, close, method="CloseSession", session=name)
        self.fails("NOT_FOUND", "SESSION_NOT_FOUND", sessions.CloseSession, close, method="CloseSession", session=name)

    def test_members_of_multiplex_have_lines_of_their_own(self):
        stub = multiplex_service.MultiplexServiceStub(self.connect(self.serve().target))

        def request(key, **fields):
            return multiplex_pb.MultiplexRequest(key=key, generate=prompt(**fields))

        metadata = [("rivulet-tenant", "acme"), ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")]
        messages = [request(1, max_tokens=3), request(2, max_tokens=4), request(3, max_tokens=-1)]
        list(stub.Multiplex(iter(messages), metadata=[(ID_KEY, "stream"), *metadata], timeout=LIMIT))
        of_call = {"tenant": "acme", "trace_id": TRACE}
        self.line("stream/1", method="Generate", code="OK", generated_tokens=3, prompt_tokens=2, model=NAME, **of_call)
        self.line("stream/2", method="Generate", code="OK", generated_tokens=4, prompt_tokens=2, model=NAME, **of_call)
        self.line("stream/3", method="Generate", code="INVALID_ARGUMENT", generated_tokens=None, **of_call)
        self.line("stream", method="Multiplex", code="OK", model=None, **of_call)

        over = threading.Event()

        def endless():
            yield request(7, max_tokens=ENDLESS)
            over.wait(LIMIT)

        call = stub.Multiplex(endless(), metadata=[(ID_KEY, "broken")], timeout=LIMIT)
        next(call)
        call.cancel()
        over.set()
        self.line("broken/7", method="Generate", code="CANCELLED", model=NAME)
        self.line("broken", method="Multiplex", code="CANCELLED")
        self.assertEqual(len(self.lines()), 6)

    def test_keys_are_named_and_refused_calls_have_lines(self):
        keys, key = self.path.with_name("keys.json"), f"{SECRET}-key"
        keys.write_text(json.dumps([{"name": "reader", "sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": "acme", "admin": True}]))
        server = self.serve("--keys-file", str(keys), "--admin-listen", "127.0.0.1:0")
        stub, _ = self.stubs(server)
        metadata = [("authorization", f"Bearer {key}")]
        self.succeeds(stub.Generate, prompt(), metadata, tenant="acme", key="reader")
        self.fails("UNAUTHENTICATED", "API_KEY_UNKNOWN", stub.Generate, prompt(), [("authorization", f"Bearer {key}-2")], method="Generate",
                   tenant=None, key=None, model=None)
        members = multiplex_service.MultiplexServiceStub(self.connect(server.target))
        list(members.Multiplex(iter([multiplex_pb.MultiplexRequest(key=1, generate=prompt())]), metadata=[(ID_KEY, "stream"), *metadata],
                               timeout=LIMIT))
        self.line("stream/1", tenant="acme", key="reader")
        unknown = self.connect(server.target).unary_unary("/no.Such/Method")
        self.fails("UNAUTHENTICATED", "API_KEY_MISSING", unknown, b"", method="unknown")
        # Operators' calls are in it, too.
        admin = admin_service.AdminServiceStub(self.connect(server.admin))
        unload = admin_pb.UnloadModelRequest(model=NAME)
        self.fails("UNAUTHENTICATED", "API_KEY_MISSING", admin.UnloadModel, unload, method="UnloadModel", model=None)
        self.succeeds(admin.UnloadModel, unload, metadata, method="UnloadModel", model=NAME, tenant="acme", key="reader")
        self.assertNotIn(SECRET, self.path.read_text(encoding="utf-8"))

    def test_health_and_reflection_are_not_logged(self):
        server = self.serve()
        channel = self.connect(server.target)
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=LIMIT)
        reflection = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        list(reflection(iter([b"\x3a\x00"]), timeout=LIMIT))
        server.process.terminate()
        server.process.communicate(timeout=LIMIT)
        self.assertEqual(self.path.read_text(encoding="utf-8"), "")

    def test_a_drain_is_in_the_log_to_its_last_call(self):
        server = self.serve("--drain-seconds", str(LIMIT))
        stub = inference.InferenceServiceStub(self.connect(server.target, ("grpc.enable_retries", 0)))
        call = stub.Generate(prompt(ENDLESS), metadata=[(ID_KEY, "running")], timeout=LIMIT)
        next(call)
        server.process.terminate()
        for line in server.process.stderr:
            if b'"event":"draining"' in line:
                break
        # The engine refuses some time after that line.
        for i in range(1000):
            try:
                list(stub.Generate(prompt(1), metadata=[(ID_KEY, f"late-{i}")], timeout=LIMIT))
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE, error)
                break
        else:
            self.fail("a draining server took a thousand requests")
        call.cancel()
        server.process.communicate(timeout=LIMIT)
        self.assertEqual(server.process.returncode, 0)
        self.line(f"late-{i}", method="Generate", code="UNAVAILABLE", reason="DRAINING")
        self.line("running", code="CANCELLED")
        self.assertEqual(len(self.lines()), i + 2)

    def test_nothing_that_a_client_says_is_in_the_log(self):
        server = self.serve("--log-level", "debug", models=(TEXT,))
        channel = self.connect(server.target)
        stub, sessions = inference.InferenceServiceStub(channel), session_service.SessionServiceStub(channel)
        text = pb.GenerateRequest(model=TEXT_NAME, text=f"{SECRET}:", max_tokens=5, sampling=pb.SamplingParams(seed=1),
                                  stop=pb.StopConditions(strings=[SECRET]))
        self.succeeds(stub.Generate, text, prompt_tokens=len(SECRET) + 1, generated_tokens=5)
        self.fails("NOT_FOUND", "MODEL_NOT_FOUND", stub.Generate, pb.GenerateRequest(model=SECRET, text=SECRET), model=None)
        self.fails("INVALID_ARGUMENT", "TENANT_MALFORMED", stub.Generate, text, [("rivulet-tenant", f"{SECRET} {SECRET}")], tenant=None)
        self.fails("INVALID_ARGUMENT", "SESSION_ID_MALFORMED", sessions.GetSession,
                   session_pb.GetSessionRequest(model=TEXT_NAME, session_id=SECRET), session=None)
        self.fails("UNIMPLEMENTED", "METHOD_UNKNOWN", channel.unary_unary(f"/{SECRET}/{SECRET}"), b"", method="unknown")
        self.fails("INVALID_ARGUMENT", "MESSAGE_MALFORMED", channel.unary_unary("/rivulet.v1.InferenceService/Score"), SECRET.encode(),
                   method="Score")
        # What is no id and no trace is not kept either.
        self.succeeds(stub.ListModels, pb.ListModelsRequest(), [("traceparent", f"00-{SECRET}")], trace_id=None)
        stub.ListModels(pb.ListModelsRequest(), metadata=[(ID_KEY, f"{SECRET} {SECRET}")], timeout=LIMIT)
        server.process.terminate()
        _, said = server.process.communicate(timeout=LIMIT)
        self.assertEqual(len(self.lines()), self.calls + 1)
        for output in (self.path.read_bytes(), said, "".join(server.log).encode()):
            self.assertNotIn(SECRET.encode(), output)
        self.assertIn(b'"event":"request_error"', said)

    def test_sampling_leaves_errors_in(self):
        server = self.serve("--request-log-sample", "0")
        stub, _ = self.stubs(server)
        for i in range(20):
            stub.ListModels(pb.ListModelsRequest(), timeout=LIMIT)
            with self.assertRaises(grpc.RpcError):
                stub.GetModel(pb.GetModelRequest(model="none"), metadata=[(ID_KEY, f"bad-{i}")], timeout=LIMIT)
        server.process.terminate()
        server.process.communicate(timeout=LIMIT)
        self.assertEqual(set(self.lines()), {f"bad-{i}" for i in range(20)})

    def test_a_hang_up_opens_a_renamed_file_again_and_loses_no_line(self):
        server = self.serve()
        stub, _ = self.stubs(server)
        sent, over = [], threading.Event()

        def call():
            while not over.is_set():
                sent.append(f"call-{len(sent)}")
                stub.ListModels(pb.ListModelsRequest(), metadata=[(ID_KEY, sent[-1])], timeout=LIMIT)

        thread = threading.Thread(target=call)
        thread.start()
        renamed = [self.path.with_suffix(f".{i}") for i in range(3)]
        try:
            for path in renamed:
                self.path.rename(path)
                os.kill(server.process.pid, signal.SIGHUP)
                self.await_true("the file is made again, and written", lambda: self.path.exists() and self.path.stat().st_size > 0)
        finally:
            over.set()
            thread.join()
        server.process.terminate()
        _, said = server.process.communicate(timeout=LIMIT)
        self.assertEqual(server.process.returncode, 0)
        self.assertEqual(said.count(b'"event":"sighup","action":"request log opened again"'), 3, said)
        found = [name for path in (*renamed, self.path) for name in self.lines(path)]
        self.assertEqual(sorted(found), sorted(sent))

    def test_the_log_may_go_to_stderr(self):
        server = self.serve("--metrics-listen", "127.0.0.1:0", log="stderr")
        stub, _ = self.stubs(server)
        stub.ListModels(pb.ListModelsRequest(), metadata=[(ID_KEY, "on-stderr")], timeout=LIMIT)
        self.await_true("the line is counted", lambda: self.metric(server, "written") == 1)
        server.process.terminate()
        _, said = server.process.communicate(timeout=LIMIT)
        events = [json.loads(line) for line in said.splitlines()]
        self.assertEqual([event["request_id"] for event in events if event["event"] == "request"], ["on-stderr"])

    def test_a_full_disk_is_said_once_and_costs_no_request(self):
        server = self.serve("--metrics-listen", "127.0.0.1:0", log="/dev/full")
        stub, _ = self.stubs(server)
        for _ in range(20):
            self.assertEqual(sum(len(reply.tokens) for reply in stub.Generate(prompt(), timeout=LIMIT)), 3)
        self.await_true("20 lines have failed", lambda: self.metric(server, "failed") == 20)
        self.assertEqual((self.metric(server, "written"), self.metric(server, "dropped")), (0, 0))
        server.process.terminate()
        _, said = server.process.communicate(timeout=LIMIT)
        self.assertEqual(server.process.returncode, 0)
        failed = [line for line in said.splitlines() if json.loads(line)["event"] == "request_log_failed"]
        self.assertEqual(len(failed), 1, said)
        self.assertIn(b"No space left on device", failed[0])

    def metric(self, server, result):
        with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=LIMIT) as reply:
            page = reply.read().decode()
        return float(re.search(rf'^rivulet_request_log_lines_total{{result="{result}"}} (\S+)$', page, re.MULTILINE).group(1))

    def test_a_setting_that_cannot_be_used_ends_the_start(self):
        command = [BIN_DIR / "rivulet-server", "--model", MODEL, "--listen", "127.0.0.1:0", *FLAGS]
        for flags, mentions in ((["--request-log", self.path.parent], ("request-log", str(self.path.parent), "directory")),
                                (["--request-log", self.path / "log"], ("request-log", str(self.path / "log"), "No such file")),
                                (["--request-log", ""], ("request-log", '""', "a path, stderr or none")),
                                (["--request-log-sample", "1.5"], ("request-log-sample", "1.5", "0 to 1")),
                                (["--request-log-sample", "nan"], ("request-log-sample", "nan", "0 to 1")),
                                (["--request-log-sample", "half"], ("request-log-sample", "half"))):
            done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            for mention in mentions:
                self.assertIn(mention, done.stderr)


if __name__ == "__main__":
    unittest.main()
