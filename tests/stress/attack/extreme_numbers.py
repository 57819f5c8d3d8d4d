# SPDX-License-Identifier: Apache-2.0
"""Every number in every request of rivulet.v1 at its extremes, one at a time, while another client's replies go on. The server must
live, every answer must be OK or an error with a reason, and the other client must get its tokens. Needs the packages of
tests/requirements.txt; the messages come from the server's reflection."""

import collections
import re
import sys
import threading
import time

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import http2
import victim

TIMEOUT = 20  # seconds, of any call
INT32 = (2**31 - 1, -(2**31), -1, 0, 2**30)
INT64 = (2**63 - 1, -(2**63), -(2**63) + 1, 2**63 - 2, 2**62, 2**32, 2**31, -1, 0)
UINT64 = (2**64 - 1, 2**63, 2**63 - 1, 0)
FLOAT = (float("inf"), float("-inf"), float("nan"), 3.4e38, -3.4e38, 1e-45, 0.0, -1.0)
EXTREMES = {
    FieldDescriptor.TYPE_INT32: INT32,
    FieldDescriptor.TYPE_INT64: INT64,
    FieldDescriptor.TYPE_UINT64: UINT64,
    FieldDescriptor.TYPE_FIXED64: UINT64,
    FieldDescriptor.TYPE_FLOAT: FLOAT,
    FieldDescriptor.TYPE_ENUM: INT32,
}
# What is not an answer to a bad number, whatever stands beside it.
UNTYPED = {"UNKNOWN", "INTERNAL", "UNIMPLEMENTED", "UNAVAILABLE", "DATA_LOSS"}


def number_fields(descriptor, path=()):
    """(path of field descriptors, key or value of a map) of every number in a message and in what it holds."""
    for field in descriptor.fields:
        here = (*path, field)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for part in ("key", "value"):
                if field.message_type.fields_by_name[part].type in EXTREMES:
                    yield here, part
        elif field.message_type is not None:
            yield from number_fields(field.message_type, here)
        elif field.type in EXTREMES:
            yield here, ""


def put(message, path, part, value):
    """Sets the field at `path`; of a repeated one the first element, of a map its only entry."""
    *outer, field = path
    for step in outer:
        message = getattr(message, step.name)
        if step.is_repeated:
            message = message[0] if message else message.add()
    if part == "key":
        getattr(message, field.name)[value] = 1
    elif part == "value":
        getattr(message, field.name)[1] = value
    elif field.is_repeated:
        del getattr(message, field.name)[:]
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


class Reflected:
    """Any method of a server, called with messages that it describes itself. Thread: any one."""

    def __init__(self, target):
        self.channel = grpc.insecure_channel(target)
        self.database = ProtoReflectionDescriptorDatabase(self.channel)
        self.pool = descriptor_pool.DescriptorPool(self.database)

    def methods(self):
        for name in sorted(self.database.get_services()):
            if name.startswith("rivulet.v1."):
                yield from self.pool.FindServiceByName(name).methods

    def method(self, name):
        return next(method for method in self.methods() if method.name == name)

    def call(self, method, *requests, timeout=TIMEOUT, metadata=()):
        """The replies, in a list. Errors: grpc.RpcError."""
        kinds = {(0, 0): "unary_unary", (0, 1): "unary_stream", (1, 0): "stream_unary", (1, 1): "stream_stream"}
        make = getattr(self.channel, kinds[method.client_streaming, method.server_streaming])
        reply = message_factory.GetMessageClass(method.output_type)
        stub = make(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        answer = stub(iter(requests) if method.client_streaming else requests[0], timeout=timeout, metadata=metadata)
        return list(answer) if method.server_streaming else [answer]

    def request(self, method, **fields):
        return json_format.ParseDict(fields, message_factory.GetMessageClass(method.input_type)())

    def do(self, name, metadata=(), **fields):
        method = self.method(name)
        return self.call(method, self.request(method, **fields), metadata=metadata)


def reason_in(status):
    """The ErrorInfo's reason in a google.rpc.Status; empty where it has none of ours."""
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == "rivulet":
            return info.reason
    return ""


def verdict(error):
    """(code, reason) of a failed call."""
    packed = [value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"]
    return error.code().name, reason_in(status_pb2.Status.FromString(packed[0])) if packed else ""


class Attack:
    """`judged` counts answers by code and reason; `wrong` describes those that are no answer."""

    def __init__(self, server):
        self.server = server
        self.judged = collections.Counter()
        self.wrong = []

    def session(self):
        """An open session of three given tokens and three generated ones."""
        session = self.server.do("OpenSession")[0].session.session_id
        at = {"session_id": session}
        self.server.do("Generate", session=at, tokens={"ids": [1, 2, 3]}, max_tokens="3", sampling={"temperature": 0})
        return session

    def bases(self, method):
        """What is asked for beside the extreme number: (its name, the request's fields)."""
        words = {"tokens": {"ids": [1]}, "sampling": {"temperature": 0}}
        generate = {**words, "max_tokens": "2"}
        plain = {
            "Generate": generate,
            "Score": {"tokens": {"ids": [1, 2, 3]}, "logprobs": True},
            "Multiplex": {"key": "1", "generate": generate},
            "Tokenize": {"text": "a"},
            "Detokenize": {"ids": [1]},
            "ListModels": {},
            "GetModel": {},
            "GetLoad": {},
            "OpenSession": {},
            "ListSessions": {},
            "RestoreSession": {"chunk": "UlZMVFNOQVA="},
            "LoadModel": {"model": "nothing-here"},
            "UnloadModel": {"model": "nothing-here"},
            "GetLogLevel": {},
            "SetLogLevel": {"level": "LOG_LEVEL_INFO"},
        }
        of_session = {
            "Generate": {**generate, "session": {}},
            "Multiplex": {"key": "1", "generate": {**generate, "session": {}}},
            "Append": {"tokens": {"ids": [1, 2]}, "session": {}, "score": True},
            "ForkSession": {"session": {}},
            "RewindSession": {"position": "2"},
            "SnapshotSession": {},
            "CloseSession": {},
            "GetSession": {},
        }
        known = [(what, fields[method.name]) for what, fields in (("", plain), ("session", of_session)) if method.name in fields]
        assert known, f"this script knows no request of {method.full_name}"
        return known

    def run(self, method):
        for what, fields in self.bases(method):
            base = self.server.request(method, **fields)
            for path, part in number_fields(base.DESCRIPTOR):
                if what == "" and any(step.name == "session" for step in path):
                    continue
                field = path[-1].message_type.fields_by_name[part] if part else path[-1]
                for value in EXTREMES[field.type]:
                    request = type(base)()
                    request.CopyFrom(base)
                    put(request, path, part, value)
                    name = f"{method.name}{' on a session' if what else ''}: {'.'.join(step.name for step in path)}{part and '.' + part} = {value}"
                    self.judge(name, method, request, with_session=what != "")

    def judge(self, name, method, request, with_session):
        session = self.session() if with_session else None
        if session:
            inner = request.generate if method.name == "Multiplex" else request
            (inner.session if "session" in inner.DESCRIPTOR.fields_by_name else inner).session_id = session
        try:
            replies = self.server.call(method, request)
            refused = [part.error if part.HasField("error") else part.refused for reply in replies for part in getattr(reply, "parts", ()) if part.HasField("error") or part.HasField("refused")]
            outcomes = [(code_pb2.Code.Name(status.code), reason_in(status)) for status in refused] or [("OK", "")]
        except grpc.RpcError as error:
            outcomes = [verdict(error)]
        for code, reason in outcomes:
            self.judged[f"{code} {reason}".strip()] += 1
            # A snapshot that is cut short is damaged, and says so.
            right = code == "OK" or (reason and (code not in UNTYPED or reason == "SNAPSHOT_DAMAGED"))
            if not right:
                self.wrong.append(f"{name}: {code} {reason}")
        if self.wrong and outcomes[0][0] == "UNAVAILABLE":
            raise RuntimeError(f"the server is gone: {self.wrong[-1]}")
        if session:
            try:
                self.server.do("CloseSession", session_id=session)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.NOT_FOUND, error

    def deadlines(self, address):
        """Time-outs that only a hand-written client sends: each must leave the call time enough."""
        method = self.server.method("Generate")
        request = self.server.request(method, tokens={"ids": [1]}, max_tokens="2").SerializeToString()
        for value in ("99999999H", "27000H", "99999999M", "99999999S"):
            with http2.connect(address) as connection:
                headers = http2.call_headers(f"/{method.containing_service.full_name}/{method.name}", grpc_timeout=value)
                connection.sendall(http2.frame(http2.HEADERS, http2.END_HEADERS, 1, headers) + http2.frame(http2.DATA, http2.END_STREAM, 1, http2.message(request)))
                got, _ = http2.receive(connection, 0.5)
            served = any(kind == http2.DATA for kind in frame_kinds(got))
            self.judged[f"grpc-timeout {'OK' if served else 'not served'}"] += 1
            if not served:
                self.wrong.append(f"grpc-timeout {value}: no tokens")


def frame_kinds(received):
    """The types of the HTTP/2 frames in what was received."""
    at = 0
    while at + 9 <= len(received):
        yield received[at + 3]
        at += 9 + int.from_bytes(received[at : at + 3], "big")


class Honest(threading.Thread):
    """Another client, for a `with` statement: asks for the same reply again and again."""

    def __init__(self, target):
        super().__init__(daemon=True)
        self.server = Reflected(target)
        self.over = threading.Event()
        self.replies, self.failure = 0, None

    def reply(self):
        fields = {"tokens": {"ids": [5]}, "max_tokens": "40", "sampling": {"seed": "99"}}
        return [token for message in self.server.do("Generate", **fields) for token in message.tokens]

    def run(self):
        try:
            want = self.reply()
            while not self.over.is_set():
                if self.reply() != want:
                    raise ValueError("other tokens")
                self.replies += 1
        except Exception as error:  # whatever it is, it is the finding
            self.failure = str(error)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self.over.set()
        self.join()


def admin_target(server):
    """HOST:PORT of AdminService of a server that the script has started; None otherwise."""
    found = re.search(rb'"event":"admin_listening".*"port":(\d+)', b"".join(server.log))
    return f"127.0.0.1:{int(found.group(1))}" if found else None


def attack(server):
    """Attacks a victim.Victim. Returns the figures; "wrong" and "honest_failure" tell what did not hold."""
    began = time.monotonic()
    attacked = Attack(Reflected(server.target))
    ended = None
    with Honest(server.target) as honest:
        try:
            for method in attacked.server.methods():
                attacked.run(method)
            attacked.deadlines(server.address)
            if (admin := admin_target(server)) is not None:
                attacked.server = Reflected(admin)
                for method in attacked.server.methods():
                    attacked.run(method)
        except (RuntimeError, grpc.RpcError) as error:
            ended = str(error)
    return {
        "calls": sum(attacked.judged.values()),
        "answers": dict(sorted(attacked.judged.items())),
        "wrong": attacked.wrong,
        "ended_early": ended,
        "alive": server.alive(),
        "honest_replies": honest.replies,
        "honest_failure": honest.failure,
        "seconds": round(time.monotonic() - began, 1),
    }


def main():
    parsed = victim.arguments(__doc__).parse_args()
    with victim.Victim.of(parsed, "--admin-listen", "127.0.0.1:0") as server:
        figures = attack(server)
    victim.report(**figures)
    return 0 if figures["alive"] and not figures["wrong"] and not figures["honest_failure"] else 1


if __name__ == "__main__":
    sys.exit(main())
