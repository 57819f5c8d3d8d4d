# SPDX-License-Identifier: Apache-2.0
"""Bytes that are no message: every method of rivulet.v1 says so, and the connection's other streams go on. Methods come from the
server's reflection, so a new one is tested too."""

import re
import sys
import threading
import unittest

try:
    import grpc
    from google.protobuf import descriptor_pool, message_factory
    from google.rpc import error_details_pb2
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
    from grpc_status import rpc_status
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

from command import CONFORMANCE, SOURCE_DIR, Server

TIMEOUT = 60  # seconds, of any call
MODEL = "tiny-elu-relu"
MAX_MESSAGE_MIB = 4


class Service:
    """The services of a listener, by reflection. `channel` is its connection."""

    def __init__(self, target):
        self.channel = grpc.insecure_channel(target)
        database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(database)
        self.services = [self.pool.FindServiceByName(name) for name in database.get_services() if name.startswith("rivulet.")]

    def message(self, full_name):
        return message_factory.GetMessageClass(self.pool.FindMessageTypeByName(full_name))

    def open(self, path, requests, metadata=(), compression=None):
        """A call of any kind that sends the bytes in `requests`; iterate it for the bytes that come."""
        return self.channel.stream_stream(path)(iter(requests), timeout=TIMEOUT, metadata=metadata, compression=compression)


def path_of(method):
    return f"/{method.containing_service.full_name}/{method.name}"


def bad_text(message):
    """(the field's path, an encoded `message` in which it is not UTF-8); (None, None) where the message holds no text."""
    for field in message.fields:
        if field.type == field.TYPE_STRING:
            value, path = b"\xc3\x28", field.name  # a byte that begins two, and none that goes on
        elif field.type == field.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            path, value = bad_text(field.message_type)
            if path is None:
                continue
            path = f"{field.name}.{path}"
        else:
            continue
        if field.is_repeated:
            path = path.replace(field.name, f"{field.name}[0]", 1)
        if field.containing_oneof and not field.containing_oneof.name.startswith("_"):  # a level of its own
            path = f"{field.containing_oneof.name}.{path}"
        return path, bytes([field.number << 3 | 2, len(value)]) + value
    return None, None


class Hanging:
    """Yields what it is given, then waits until it is let go: the client does not half-close."""

    def __init__(self, *messages):
        self.messages, self.over = messages, threading.Event()

    def __iter__(self):
        yield from self.messages
        self.over.wait(TIMEOUT)


class MalformedMessageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = cls.enterClassContext(Server(CONFORMANCE / MODEL, args=("--backend", "cpu", "--admin-listen", "127.0.0.1:0")))
        cls.clients, cls.admin = Service(server.target), Service(server.admin)
        for service in (cls.clients, cls.admin):
            cls.addClassCleanup(service.channel.close)
        cls.methods = [(s, m) for s in (cls.clients, cls.admin) for service in s.services for m in service.methods]

    def end_of(self, call):
        """(code, message, details by type) of a call that must end without a message."""
        with self.assertRaises(grpc.RpcError) as raised:
            messages = list(call)
            self.fail(f"messages came, and an end without error: {messages}")
        status = rpc_status.from_call(raised.exception)
        details = {}
        for detail in status.details if status else ():
            for kind in (error_details_pb2.ErrorInfo, error_details_pb2.BadRequest):
                message = kind()
                if detail.Unpack(message):
                    details[kind.__name__] = message
        return raised.exception.code(), raised.exception.details(), details

    def expect_malformed(self, call, *mentions, field=None):
        code, message, details = self.end_of(call)
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT, message)
        self.assertEqual((details["ErrorInfo"].domain, details["ErrorInfo"].reason), ("rivulet", "MESSAGE_MALFORMED"))
        for mention in mentions:
            self.assertIn(mention, message)
        if field is None:
            self.assertNotIn("BadRequest", details)
        else:
            (violation,) = details["BadRequest"].field_violations
            self.assertEqual(violation.field, field)

    def test_every_service_of_the_api_is_tried(self):
        text = "".join(path.read_text() for path in (SOURCE_DIR / "proto/rivulet/v1").glob("*.proto"))
        declared = set(re.findall(r"^service (\w+)", text, re.MULTILINE))
        self.assertEqual({f"rivulet.v1.{name}" for name in declared}, {m.containing_service.full_name for _, m in self.methods})
        self.assertGreater(len(self.methods), 15)

    def test_bytes_that_do_not_parse(self):
        garbage = [b"\xff", b"\x00\x00", b"\x0a\x7fab", b"\xff" * 5000]
        for service, method in self.methods:
            for sent in garbage:
                with self.subTest(method=method.full_name, sent=sent[:8]):
                    requests = Hanging(sent) if method.client_streaming else [sent]
                    self.expect_malformed(service.open(path_of(method), requests), f"{len(sent)} bytes", method.input_type.full_name)

    def test_text_that_is_not_utf8(self):
        tried = 0
        for service, method in self.methods:
            field, sent = bad_text(method.input_type)
            if field is None:
                continue
            tried += 1
            with self.subTest(method=method.full_name, field=field):
                requests = Hanging(sent) if method.client_streaming else [sent]
                self.expect_malformed(service.open(path_of(method), requests), f"{field} is not valid UTF-8", field=field)
        self.assertGreater(tried, 15)

    def test_a_chunk_in_the_midst_of_a_snapshot(self):
        request = self.clients.message("rivulet.v1.RestoreSessionRequest")
        good = request(model=MODEL, chunk=b"RVLT" * 100).SerializeToString()
        for sent in ([good, b"\xff"], [b"\xff", good], [good, good, b"\x1a\x7f"]):
            with self.subTest(sent=[len(message) for message in sent]):
                call = self.clients.open("/rivulet.v1.SessionService/RestoreSession", Hanging(*sent))
                self.expect_malformed(call, "rivulet.v1.RestoreSessionRequest")

    def multiplexed(self, key, max_tokens):
        request = self.clients.message("rivulet.v1.MultiplexRequest")(key=key)
        request.generate.model = MODEL
        request.generate.tokens.ids.append(1)
        request.generate.max_tokens = max_tokens
        return request.SerializeToString()

    def slots_used(self):
        path = "/rivulet.v1.InferenceService/GetLoad"
        (reply,) = self.clients.open(path, [b""])
        return self.clients.message("rivulet.v1.GetLoadReply").FromString(reply).models[0].slots_used

    def test_a_multiplex_stream_ends_with_its_requests_and_another_goes_on(self):
        path, part = "/rivulet.v1.MultiplexService/Multiplex", self.clients.message("rivulet.v1.MultiplexReply")
        bystander = Hanging(self.multiplexed(1, 1 << 20))
        other = self.clients.open(path, bystander)
        next(other)
        spoil = threading.Event()

        def requests():
            yield self.multiplexed(7, 1 << 20)
            spoil.wait(TIMEOUT)
            yield b"\xff"
            bystander.over.wait(TIMEOUT)

        call = self.clients.open(path, requests())
        next(call)
        spoil.set()
        with self.assertRaises(grpc.RpcError) as raised:
            for _ in call:
                pass
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("rivulet.v1.MultiplexRequest", raised.exception.details())
        while self.slots_used() != 1:  # that of the bystander; ends with TIMEOUT of its stream at the latest
            self.assertTrue(other.is_active())
        self.assertEqual({p.key for p in part.FromString(next(other)).parts}, {1})
        other.cancel()
        bystander.over.set()

    def test_calls_with_another_number_of_messages(self):
        get_load, score = "/rivulet.v1.InferenceService/GetLoad", "/rivulet.v1.InferenceService/Score"
        for path, kind in ((get_load, "GetLoadRequest"), (score, "ScoreRequest"), ("/rivulet.v1.InferenceService/Generate", "GenerateRequest")):
            with self.subTest(path=path):
                self.expect_malformed(self.clients.open(path, []), "no message", f"rivulet.v1.{kind}")
        self.assertEqual(len(list(self.clients.open(get_load, [b"", b""]))), 1)  # gRPC reads one and answers that

    def test_messages_that_grpc_itself_refuses(self):
        path = "/rivulet.v1.InferenceService/GetLoad"
        code, message, _ = self.end_of(self.clients.open(path, [bytes((MAX_MESSAGE_MIB << 20) + 1)]))
        self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("larger than max", message)
        long_name = self.clients.message("rivulet.v1.GetLoadRequest")(model="x" * 5000).SerializeToString()
        code, message, _ = self.end_of(self.clients.open(path, [long_name], compression=grpc.Compression.Gzip))
        self.assertEqual(code, grpc.StatusCode.UNIMPLEMENTED)
        self.assertIn("gzip", message)


if __name__ == "__main__":
    unittest.main()
