# SPDX-License-Identifier: Apache-2.0
"""Traces of requests: what a collector receives from a server, made from the messages of the package opentelemetry-proto."""

import concurrent.futures
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

from authority import Authority
from command import BIN_DIR, CONFORMANCE, SOURCE_DIR, ZOO, CommandTest, Server

sys.path.append(str(SOURCE_DIR / "proto"))
try:
    import grpc
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
    from opentelemetry.proto.trace.v1 import trace_pb2

    pb, inference = grpc.protos_and_services("rivulet/v1/inference.proto")
    session_pb, sessions = grpc.protos_and_services("rivulet/v1/session_service.proto")
    multiplex_pb, multiplex_service = grpc.protos_and_services("rivulet/v1/multiplex.proto")
except (ImportError, NotImplementedError) as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

MODEL = CONFORMANCE / "tiny-elu-relu"
NAME = MODEL.name
LIMIT = 60  # seconds that anything awaited may take
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = ("traceparent", f"00-{TRACE}-{PARENT}-01")
UNSAMPLED = ("traceparent", f"00-{TRACE}-{PARENT}-00")
SERVICES = "rivulet.v1.InferenceService", "rivulet.v1.SessionService", "rivulet.v1.MultiplexService"
SERVER_KIND, INTERNAL_KIND = trace_pb2.Span.SPAN_KIND_SERVER, trace_pb2.Span.SPAN_KIND_INTERNAL


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


class Span:
    def __init__(self, wire):
        self.trace, self.id, self.parent = wire.trace_id.hex(), wire.span_id.hex(), wire.parent_span_id.hex()
        self.name, self.kind, self.flags = wire.name, wire.kind, wire.flags
        self.start, self.end = wire.start_time_unix_nano, wire.end_time_unix_nano
        self.attributes = {entry.key: value_of(entry.value) for entry in wire.attributes}
        self.error = wire.status.message if wire.status.code == trace_pb2.Status.STATUS_CODE_ERROR else None

    def __repr__(self):
        return f"{self.name} {self.trace}/{self.id} in {self.parent or '-'}"


class ReservedPort:
    """A port of loopback where nobody listens, but a collector may: gRPC sets this option of the socket, too."""

    def __enter__(self):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        return self

    def __exit__(self, *exception):
        self.socket.close()


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, port=0, tls=None):
        self.requests = []
        self.lock = threading.Lock()
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self.server)
        address = f"127.0.0.1:{port}"
        self.port = self.server.add_secure_port(address, tls) if tls else self.server.add_insecure_port(address)
        self.server.start()

    def Export(self, request, context):
        with self.lock:
            self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self):
        with self.lock:
            return [Span(span) for request in self.requests for of_process in request.resource_spans
                    for of_library in of_process.scope_spans for span in of_library.spans]

    def stop(self):
        self.server.stop(0).wait(LIMIT)


class TracedServer(Server):
    """Its lines on stderr are read while it runs."""

    def __enter__(self):
        super().__enter__()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        return self

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.decode())

    def events(self, name):
        return [event for event in map(json.loads, list(self.log)) if event["event"] == name]

    def __exit__(self, *exception):
        """The exit code, once all was logged."""
        self.process.terminate()
        code = self.process.wait(LIMIT)
        self.reader.join(LIMIT)
        self.process.stderr.close()
        return code


def generate(max_tokens=3, temperature=1.0):
    sampling = pb.SamplingParams(seed=1, temperature=temperature)
    return pb.GenerateRequest(model=NAME, tokens=pb.TokenSequence(ids=[1, 2]), sampling=sampling, max_tokens=max_tokens)


class TracingTest(CommandTest):
    def collector(self, **how):
        collector = Collector(**how)
        self.addCleanup(collector.stop)
        return collector

    def serve(self, collector, *args, model=MODEL, scheme="http"):
        port = collector if isinstance(collector, int) else collector.port
        server = TracedServer(model, args=["--backend", "cpu", "--threads", "1", "--metrics-listen", "127.0.0.1:0",
                                           "--otlp-endpoint", f"{scheme}://127.0.0.1:{port}", *args])
        server.__enter__()
        self.addCleanup(lambda: server.process.poll() is None and server.__exit__())
        return server

    def channel(self, server):
        channel = grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
        self.addCleanup(channel.close)
        return channel

    def await_true(self, what, condition):
        end = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), end, f"not within {LIMIT} s: {what}")
            time.sleep(0.02)

    def spans_of(self, collector, request_id):
        """(the span of the request, {name: the span of a part}) once the collector has them."""
        def found():
            return [span for span in collector.spans() if span.attributes.get("rivulet.request_id") == request_id]

        self.await_true(f"the span of {request_id}", found)
        (whole,) = found()
        parts = [span for span in collector.spans() if span.parent == whole.id and span.kind == INTERNAL_KIND]
        self.assertEqual(len({part.name for part in parts}), len(parts), parts)
        for part in parts:
            self.assertEqual((part.trace, part.attributes, part.flags), (whole.trace, {}, 0x101), part)
        return whole, {part.name: part for part in parts}

    def in_order(self, *times):
        self.assertEqual(list(times), sorted(times))

    def spans_counted(self, server, result):
        with urllib.request.urlopen(f"http://{server.metrics}/metrics", timeout=LIMIT) as reply:
            text = reply.read().decode()
        return float(re.search(rf'^rivulet_trace_spans_total{{result="{result}"}} (\S+)$', text, re.M).group(1))

    def test_a_generate_has_a_span_and_its_parts(self):
        collector = self.collector()
        server = self.serve(collector)
        stub = inference.InferenceServiceStub(self.channel(server))
        second = 10**9
        before = time.time_ns() - second  # the server's clock may be a little off this one
        tokens = [token for part in stub.Generate(generate(), metadata=[SAMPLED, ("x-request-id", "g")], timeout=LIMIT) for token in part.tokens]
        whole, parts = self.spans_of(collector, "g")
        after = time.time_ns() + second
        self.assertEqual((whole.trace, whole.parent, whole.kind, whole.flags), (TRACE, PARENT, SERVER_KIND, 0x301))
        self.assertEqual((whole.name, whole.error), ("rivulet.v1.InferenceService/Generate", None))
        self.assertEqual(whole.attributes, {
            "rpc.system": "grpc", "rpc.service": "rivulet.v1.InferenceService", "rpc.method": "Generate", "rpc.grpc.status_code": 0,
            "rivulet.request_id": "g", "rivulet.model": NAME, "rivulet.prompt_tokens": 2, "rivulet.generated_tokens": len(tokens)})
        self.assertEqual(set(parts), {"queue", "prefill", "decode"})
        queue, prefill, decode = parts["queue"], parts["prefill"], parts["decode"]
        self.in_order(before, whole.start, queue.start, queue.end, prefill.end, decode.end, whole.end, after)
        self.assertEqual((queue.end, prefill.end), (prefill.start, decode.start))
        self.assertEqual(len({span.id for span in (whole, queue, prefill, decode)}), 4)
        resource = {entry.key: value_of(entry.value) for entry in collector.requests[0].resource_spans[0].resource.attributes}
        self.assertEqual(set(resource), {"service.name", "service.version", "service.instance.id"})
        self.assertEqual(resource["service.name"], "rivulet-server")
        self.assertEqual(collector.requests[0].resource_spans[0].scope_spans[0].scope.name, "rivulet")
        self.await_true("they are counted", lambda: self.spans_counted(server, "sent") == 4)

    def test_other_requests_have_the_parts_that_they_have(self):
        collector = self.collector()
        server = self.serve(collector)
        channel = self.channel(server)
        stub, session_stub = inference.InferenceServiceStub(channel), sessions.SessionServiceStub(channel)
        stub.Score(pb.ScoreRequest(model=NAME, tokens=pb.TokenSequence(ids=[1, 2, 3])), metadata=[("x-request-id", "s")], timeout=LIMIT)
        whole, parts = self.spans_of(collector, "s")
        self.assertEqual((whole.parent, whole.flags, set(parts)), ("", 0x101, {"queue", "prefill"}))
        self.assertNotIn(whole.trace, (TRACE, "0" * 32))
        self.assertEqual(whole.attributes["rivulet.prompt_tokens"], 3)
        self.in_order(whole.start, parts["queue"].start, parts["prefill"].start, parts["prefill"].end, whole.end)

        session = session_stub.OpenSession(session_pb.OpenSessionRequest(model=NAME), metadata=[("x-request-id", "o")], timeout=LIMIT).session
        append = session_pb.AppendRequest(model=NAME, tokens=pb.TokenSequence(ids=[1, 2]))
        append.session.session_id = session.session_id
        session_stub.Append(append, metadata=[SAMPLED, ("x-request-id", "a")], timeout=LIMIT)
        whole, parts = self.spans_of(collector, "a")
        self.assertEqual((whole.name, whole.trace, whole.parent), ("rivulet.v1.SessionService/Append", TRACE, PARENT))
        self.assertEqual(whole.attributes["rivulet.session"], session.session_id)
        self.assertEqual(set(parts), {"queue", "prefill"})
        self.assertEqual(self.spans_of(collector, "o")[1], {})

        with self.assertRaises(grpc.RpcError):
            list(stub.Generate(generate(temperature=-1), metadata=[SAMPLED, ("x-request-id", "bad")], timeout=LIMIT))
        whole, parts = self.spans_of(collector, "bad")
        self.assertEqual((whole.attributes["rpc.grpc.status_code"], whole.error, parts), (3, None, {}), "the client's fault, not the server's")
        self.assertTrue(whole.attributes["rivulet.error_reason"])
        with self.assertRaises(grpc.RpcError):
            channel.unary_unary("/some.Service/Method")(b"", metadata=[SAMPLED, ("x-request-id", "none")], timeout=LIMIT)
        whole, _ = self.spans_of(collector, "none")
        self.assertEqual((whole.name, whole.error, whole.attributes["rpc.grpc.status_code"]), ("unknown", "METHOD_UNKNOWN", 12))

    def multiplex(self, channel, *metadata):
        messages = [multiplex_pb.MultiplexRequest(key=key, generate=generate(max_tokens=key)) for key in (1, 2)]
        messages.append(multiplex_pb.MultiplexRequest(key=3, generate=generate(temperature=-1)))
        stub = multiplex_service.MultiplexServiceStub(channel)
        for _ in stub.Multiplex(iter(messages), metadata=metadata, timeout=LIMIT):
            pass

    def test_requests_of_multiplex_are_part_of_the_clients_trace(self):
        collector = self.collector()
        server = self.serve(collector, "--trace-sample", "0")
        self.multiplex(self.channel(server), SAMPLED, ("x-request-id", "m"))
        stream, _ = self.spans_of(collector, "m")
        self.assertEqual((stream.name, stream.trace, stream.parent), ("rivulet.v1.MultiplexService/Multiplex", TRACE, PARENT))
        for key, names in ((1, {"queue", "prefill", "decode"}), (2, {"queue", "prefill", "decode"}), (3, set())):
            member, parts = self.spans_of(collector, f"m/{key}")
            self.assertEqual((member.name, member.trace, member.parent, member.kind, member.flags), ("Generate", TRACE, stream.id, SERVER_KIND, 0x101))
            self.assertEqual(set(parts), names)
            self.in_order(stream.start, member.start, *(part.start for part in parts.values()), member.end)
            self.assertLess(member.end, stream.end + 10**9)
        self.multiplex(self.channel(server), UNSAMPLED, ("x-request-id", "not"))
        self.multiplex(self.channel(server), ("x-request-id", "nor"))
        self.multiplex(self.channel(server), SAMPLED, ("x-request-id", "last"))
        for key in ("", "/1", "/2", "/3"):
            self.spans_of(collector, f"last{key}")
        self.assertEqual({span.attributes["rivulet.request_id"].partition("/")[0] for span in collector.spans() if span.kind == SERVER_KIND}, {"m", "last"})

    def test_requests_of_multiplex_without_a_trace_begin_their_own(self):
        collector = self.collector()
        server = self.serve(collector)
        self.multiplex(self.channel(server), ("x-request-id", "m"))
        spans = [self.spans_of(collector, name)[0] for name in ("m", "m/1", "m/2", "m/3")]
        self.assertEqual([span.parent for span in spans], [""] * 4)
        self.assertEqual(len({span.trace for span in spans}), 4)

    def test_the_traceparent_decides_before_the_rate(self):
        collector = self.collector()
        never, always = self.serve(collector, "--trace-sample", "0"), self.serve(collector, "--trace-sample", "1")
        malformed = ("traceparent", f"00-{TRACE}-{'0' * 16}-01")
        cases = [(never, [], False), (never, [SAMPLED], True), (never, [malformed], False),
                 (always, [], True), (always, [UNSAMPLED], False), (always, [malformed], True)]
        stubs = {server: inference.InferenceServiceStub(self.channel(server)) for server in (never, always)}
        for at, (server, metadata, _) in enumerate(cases):
            stubs[server].ListModels(pb.ListModelsRequest(), metadata=[*metadata, ("x-request-id", str(at))], timeout=LIMIT)
        for server in (never, always):
            self.assertEqual(server.__exit__(), 0, server.log)  # sends what waits
        seen = {span.attributes["rivulet.request_id"]: span for span in collector.spans()}
        self.assertEqual(sorted(seen), [str(at) for at, (_, _, traced) in enumerate(cases) if traced])
        self.assertEqual([seen[str(at)].trace == TRACE for at in (1, 3, 5)], [True, False, False])

    def test_neither_prompts_nor_replies_are_sent(self):
        collector = self.collector()
        server = self.serve(collector, model=ZOO / "shakespeare-rfa")
        stub = inference.InferenceServiceStub(self.channel(server))
        request = pb.GenerateRequest(text="XYZZY", sampling=pb.SamplingParams(seed=1), max_tokens=40)
        reply = "".join(part.text for part in stub.Generate(request, metadata=[("x-request-id", "g")], timeout=LIMIT))
        self.assertGreater(len(reply), 10)
        self.spans_of(collector, "g")
        sent = b"".join(request.SerializeToString() for request in collector.requests)
        for secret in ("XYZZY", reply[:8], reply[-8:]):
            self.assertNotIn(secret.encode(), sent)

    def test_without_a_collector_requests_run_and_spans_are_dropped(self):
        with ReservedPort() as reserved:
            server = self.serve(reserved.port)
            stub = inference.InferenceServiceStub(self.channel(server))
            # One span each, of which 8192 may wait.
            calls = [stub.ListModels.future(pb.ListModelsRequest(), timeout=LIMIT) for _ in range(500)]
            for call in calls:
                call.result()
            self.assertEqual(sum(len(part.tokens) for part in stub.Generate(generate(), timeout=LIMIT)), 3)
            self.await_true("the log says so", lambda: server.events("collector_away"))
            self.assertEqual(self.spans_counted(server, "sent"), 0)
            self.assertEqual(self.spans_counted(server, "failed"), 0)
            self.assertEqual(server.__exit__(), 0, server.log)
            self.assertEqual(server.events("stopped")[0]["all_replies_ended"], True)
            self.assertEqual([event["spans"] for event in server.events("spans_dropped")], [504])
            self.assertEqual(len(server.events("collector_away")), 1)

    def test_spans_flow_again_once_the_collector_is_back(self):
        with ReservedPort() as reserved:
            server = self.serve(reserved.port)
            stub = inference.InferenceServiceStub(self.channel(server))
            stub.ListModels(pb.ListModelsRequest(), metadata=[("x-request-id", "early")], timeout=LIMIT)
            self.await_true("the collector is missed", lambda: server.events("collector_away"))
            collector = self.collector(port=reserved.port)
            stub.ListModels(pb.ListModelsRequest(), metadata=[("x-request-id", "late")], timeout=LIMIT)
            self.spans_of(collector, "early")
            self.spans_of(collector, "late")
            self.await_true("the log says so", lambda: server.events("collector_back"))
            self.assertEqual(server.events("collector_back")[0]["dropped_spans"], 0)
            self.assertEqual(server.__exit__(), 0, server.log)
            self.assertEqual((len(server.events("collector_away")), len(server.events("collector_back"))), (1, 1))

    def test_a_collector_that_floods_its_connection_does_not_keep_the_server(self):
        script = SOURCE_DIR / "tests/stress/attack/settings_flood.py"
        done = subprocess.run([sys.executable, script, "--server", BIN_DIR / "rivulet-server", "--flag=--threads=1"], capture_output=True,
                              text=True, timeout=4 * LIMIT)
        self.assertEqual(done.returncode, 0, done)
        codes = [json.loads(line)["exit_code"] for line in done.stdout.splitlines()]
        self.assertEqual((len(codes), set(codes)), (3, {0}), done)

    def test_a_collector_behind_tls_is_known_by_its_authority(self):
        with tempfile.TemporaryDirectory(prefix="rivulet-tracing-") as folder:
            authority = Authority(pathlib.Path(folder), "authority")
            stranger = Authority(pathlib.Path(folder), "stranger")
            cert, key = (path.read_bytes() for path in authority.sign("collector"))
            collector = self.collector(tls=grpc.ssl_server_credentials([(key, cert)]))
            trusting = self.serve(collector, "--otlp-ca", str(authority.pem), scheme="https")
            wary = self.serve(collector, "--otlp-ca", str(stranger.pem), scheme="https")
            for server, request_id in ((trusting, "trusted"), (wary, "distrusted")):
                stub = inference.InferenceServiceStub(self.channel(server))
                stub.ListModels(pb.ListModelsRequest(), metadata=[("x-request-id", request_id)], timeout=LIMIT)
            self.spans_of(collector, "trusted")
            self.await_true("the stranger's is refused", lambda: wary.events("collector_away"))
            self.assertEqual(wary.__exit__(), 0, wary.log)
            self.assertEqual([span.attributes["rivulet.request_id"] for span in collector.spans()], ["trusted"])

    def test_the_service_is_named_by_the_environment(self):
        collector = self.collector()
        before = os.environ.get("OTEL_SERVICE_NAME")
        os.environ["OTEL_SERVICE_NAME"] = "digits"
        try:
            server = self.serve(collector)
        finally:
            os.environ.pop("OTEL_SERVICE_NAME")
            if before is not None:
                os.environ["OTEL_SERVICE_NAME"] = before
        inference.InferenceServiceStub(self.channel(server)).ListModels(pb.ListModelsRequest(), metadata=[("x-request-id", "l")], timeout=LIMIT)
        self.spans_of(collector, "l")
        attributes = collector.requests[0].resource_spans[0].resource.attributes
        self.assertIn(("service.name", "digits"), [(entry.key, value_of(entry.value)) for entry in attributes])

    def test_bad_settings_end_the_start(self):
        command = [BIN_DIR / "rivulet-server", "--model", MODEL, "--listen", "127.0.0.1:0"]
        there = ["--otlp-endpoint", "https://127.0.0.1:4317"]
        for flags, mentions in ((["--otlp-endpoint", "127.0.0.1:4317"], ("otlp-endpoint", '"127.0.0.1:4317"', "http://")),
                                (["--otlp-endpoint", "http://127.0.0.1:4318/v1/traces"], ("otlp-endpoint", "OTLP over HTTP")),
                                (["--otlp-ca", "ca.pem"], ("otlp-ca", "without otlp-endpoint")),
                                (["--otlp-ca", "ca.pem", "--otlp-endpoint", "http://127.0.0.1"], ("otlp-ca", "plaintext")),
                                ([*there, "--otlp-ca", "/no/such/file"], ("otlp-ca", "/no/such/file")),
                                ([*there, "--otlp-ca", str(MODEL / "config.json")], ("otlp-ca", "config.json", "no certificate")),
                                (["--trace-sample", "1.5"], ("trace-sample", "1.5", "0 to 1"))):
            done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=LIMIT)
            self.assertEqual(done.returncode, 2, done)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            for mention in mentions:
                self.assertIn(mention, done.stderr)


class MessagesTest(unittest.TestCase):
    """proto/opentelemetry against the package's messages."""

    def ours(self):
        files = sorted(path.relative_to(SOURCE_DIR / "proto") for path in (SOURCE_DIR / "proto/opentelemetry").rglob("*.proto"))
        with tempfile.NamedTemporaryFile(suffix=".binpb") as out:
            code = protoc.main(["protoc", f"-I{SOURCE_DIR / 'proto'}", f"--descriptor_set_out={out.name}", *map(str, files)])
            self.assertEqual(code, 0)
            return descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(out.name).read_bytes()).file

    def members(self, prefix, message):
        """{full name: what is on the wire} of the fields and values of a message."""
        name = f"{prefix}.{message.name}"
        found = {f"{name}.{field.name}": (field.number, field.type, field.label, field.type_name) for field in message.field}
        for enum in message.enum_type:
            found |= {f"{name}.{enum.name}.{value.name}": value.number for value in enum.value}
        for nested in message.nested_type:
            found |= self.members(name, nested)
        return found

    def all_members(self, files):
        found = {}
        for file in files:
            for message in file.message_type:
                found |= self.members(file.package, message)
            for service in file.service:
                found |= {f"{file.package}.{service.name}.{method.name}": (method.input_type, method.output_type) for method in service.method}
        return found

    def test_they_have_the_names_numbers_and_types_of_the_package(self):
        theirs = []
        pool = trace_service_pb2.DESCRIPTOR.pool
        for file in self.ours():
            copy = descriptor_pb2.FileDescriptorProto()
            pool.FindFileByName(file.name).CopyToProto(copy)
            theirs.append(copy)
        ours, known = self.all_members(self.ours()), self.all_members(theirs)
        self.assertGreater(len(ours), 30)
        self.assertEqual({name: known.get(name) for name in ours}, ours)


if __name__ == "__main__":
    unittest.main()
