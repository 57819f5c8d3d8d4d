# SPDX-License-Identifier: Apache-2.0
"""API keys of a real server: which methods need one, what is refused and how, and a file that changes while it serves."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import grpc
    from google.protobuf import descriptor_pool
    from google.rpc import error_details_pb2
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
    from grpc_status import rpc_status
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

from command import BIN_DIR, CONFORMANCE, SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "tests/stress/attack"))
from victim import Victim

SERVER = BIN_DIR / "rivulet-server"
MODEL, OTHER_MODEL = CONFORMANCE / "tiny-elu-relu", CONFORMANCE / "tiny-image"
LIMIT = 60  # seconds that anything awaited may take
HEALTH = ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"]
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
ADMIN = ["/rivulet.v1.AdminService/LoadModel", "/rivulet.v1.AdminService/UnloadModel"]
USER, NARROW, OPERATOR, EXPIRED = "user-secret", "narrow-secret", "operator-secret", "expired-secret"
SECRETS = [USER, NARROW, OPERATOR, EXPIRED, "unknown-secret"]


def entry(name, key, **members):
    return {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": name, **members}


def bearer(key):
    return [("authorization", f"Bearer {key}")]


def refusal(error):
    """(code, reason) of a failed call. gRPC's own services have no details: there the message begins with the reason."""
    status = rpc_status.from_call(error)
    if status is None:
        return error.code(), error.details().split(":")[0]
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info), status
    return error.code(), info.reason


class KeysTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-keys-")
        cls.addClassCleanup(folder.cleanup)
        cls.file = pathlib.Path(folder.name) / "keys.json"

    def setUp(self):
        self.write()
        flags = ["--threads", "1", "--model", OTHER_MODEL, "--admin-listen", "127.0.0.1:0", "--keys-file", self.file]
        self.server = Victim(SERVER, *map(str, flags), model=MODEL)
        self.server.__enter__()
        self.addCleanup(self.server.__exit__, None, None, None)
        self.channel = self.connect(self.server.target)
        port = self.events("admin_listening")[0]["port"]
        self.admin = self.connect(f"127.0.0.1:{port}")

    def connect(self, target):
        channel = grpc.insecure_channel(target)
        self.addCleanup(channel.close)
        return channel

    def write(self, *more):
        keys = [
            entry("user", USER),
            entry("narrow", NARROW, models=["tiny-image"]),
            entry("operator", OPERATOR, admin=True, expires="2999-01-01T00:00:00Z"),
            entry("expired", EXPIRED, admin=True, expires="2020-01-01T00:00:00Z"),
            *more,
        ]
        self.replace(json.dumps(keys))

    def replace(self, text):
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.file)

    def events(self, name):
        return [fields for fields in map(json.loads, list(self.server.log)) if fields["event"] == name]

    def call(self, channel, path, metadata=(), request=b"", wait=LIMIT):
        """The messages of a call of any method, as bytes, with one message from us."""
        call = channel.stream_stream(path, request_serializer=None, response_deserializer=None)
        return list(call(iter([request]), metadata=metadata, timeout=wait))

    def refused(self, channel, path, metadata=(), request=b""):
        with self.assertRaises(grpc.RpcError) as raised:
            self.call(channel, path, metadata, request)
        for secret in SECRETS:
            self.assertNotIn(secret, str(raised.exception.details()))
            self.assertNotIn(secret.encode(), b"".join(value if isinstance(value, bytes) else value.encode()
                                                       for _, value in raised.exception.trailing_metadata()))
        return refusal(raised.exception)

    def methods(self, channel, key):
        """The paths of all methods that the descriptors of a listener's reflection have."""
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        reply = next(iter(stub.ServerReflectionInfo(iter([ask]), metadata=bearer(key), timeout=LIMIT)))
        paths = []
        for service in reply.list_services_response.service:
            database = ProtoReflectionDescriptorDatabase(KeyedChannel(channel, key))
            found = descriptor_pool.DescriptorPool(database).FindServiceByName(service.name)
            paths += [f"/{service.name}/{method.name}" for method in found.methods]
        return paths

    def test_every_method_of_the_descriptors_needs_a_key(self):
        clients = self.methods(self.channel, USER)
        self.assertGreaterEqual(len(clients), 20)
        for service in ("InferenceService/", "SessionService/", "MultiplexService/"):
            self.assertTrue(any(f"/rivulet.v1.{service}" in path for path in clients), clients)
        operators = self.methods(self.admin, OPERATOR)
        self.assertEqual(set(ADMIN) - set(operators), set())
        bad = {"API_KEY_MISSING": [], "API_KEY_UNKNOWN": bearer("unknown-secret"), "API_KEY_EXPIRED": bearer(EXPIRED),
               "API_KEY_MALFORMED": [("authorization", USER)]}  # fmt: skip
        open_methods = []
        for channel, paths in ((self.channel, clients), (self.admin, operators)):
            for path in [*paths, "/rivulet.v1.InferenceService/NoSuchMethod", "/any.Service/Method"]:
                if path.startswith("/grpc.health.v1.Health/"):
                    open_methods.append(path)
                    continue
                for reason, metadata in bad.items():
                    with self.subTest(path=path, reason=reason):
                        self.assertEqual(self.refused(channel, path, metadata), (grpc.StatusCode.UNAUTHENTICATED, reason))
        self.assertEqual(sorted(open_methods), HEALTH)

    def test_health_is_open(self):
        self.assertEqual(self.call(self.channel, HEALTH[0]), [b"\x08\x01"])

    def test_admin_service_needs_the_key_of_an_admin(self):
        for path in ADMIN:
            self.assertEqual(self.refused(self.admin, path, bearer(USER)), (grpc.StatusCode.PERMISSION_DENIED, "API_KEY_NOT_ADMIN"))
            # An admin's call arrives: it is the empty name that is wrong.
            self.assertEqual(self.refused(self.admin, path, bearer(OPERATOR)), (grpc.StatusCode.INVALID_ARGUMENT, "MODEL_NAME_MALFORMED"))

    def test_reflection_sends_nothing_to_a_caller_without_a_key(self):
        ask = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
        for _ in range(50):
            received = []
            call = self.channel.stream_stream(REFLECTION, request_serializer=None, response_deserializer=None)
            with self.assertRaises(grpc.RpcError) as raised:
                for message in call(iter([ask]), timeout=LIMIT):
                    received.append(message)
            self.assertEqual(refusal(raised.exception), (grpc.StatusCode.UNAUTHENTICATED, "API_KEY_MISSING"))
            self.assertEqual(received, [])

    def test_a_tenant_must_be_that_of_the_key(self):
        path = "/rivulet.v1.SessionService/ListSessions"
        request = b"\x0a\x0d" + b"tiny-elu-relu"  # model
        self.call(self.channel, path, [*bearer(USER), ("rivulet-tenant", "user")], request)
        denied = self.refused(self.channel, path, [*bearer(USER), ("rivulet-tenant", "narrow")], request)
        self.assertEqual(denied, (grpc.StatusCode.PERMISSION_DENIED, "API_KEY_TENANT"))

    def test_sessions_belong_to_the_tenant_of_the_key(self):
        opened = self.call(self.channel, "/rivulet.v1.SessionService/OpenSession", bearer(USER), b"\x0a\x0atiny-image")
        self.assertEqual(len(opened), 1)
        listing = ("/rivulet.v1.SessionService/ListSessions", b"\x0a\x0atiny-image")
        self.assertEqual(self.call(self.channel, listing[0], bearer(NARROW), listing[1]), [b""])
        self.assertNotEqual(self.call(self.channel, listing[0], bearer(USER), listing[1]), [b""])

    def test_models_that_are_not_of_the_key_do_not_exist_for_it(self):
        get = "/rivulet.v1.InferenceService/GetModel"
        self.call(self.channel, get, bearer(NARROW), b"\x0a\x0atiny-image")
        self.assertEqual(self.refused(self.channel, get, bearer(NARROW), b"\x0a\x0dtiny-elu-relu"), (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"))
        for method in ("ListModels", "GetLoad"):
            (all_models,) = self.call(self.channel, f"/rivulet.v1.InferenceService/{method}", bearer(USER))
            (own,) = self.call(self.channel, f"/rivulet.v1.InferenceService/{method}", bearer(NARROW))
            self.assertIn(b"tiny-elu-relu", all_models)
            self.assertIn(b"tiny-image", own)
            self.assertNotIn(b"tiny-elu-relu", own)

    def await_call(self, path, metadata, wanted):
        """Calls until the outcome is `wanted`: "" or a reason."""
        end = time.monotonic() + LIMIT
        while True:
            try:
                self.call(self.channel, path, metadata)
                outcome = ""
            except grpc.RpcError as error:
                outcome = refusal(error)[1]
            if outcome == wanted:
                return
            self.assertLess(time.monotonic(), end, (outcome, self.server.log))
            time.sleep(0.05)

    def test_a_changed_file_is_used_and_a_bad_one_is_not(self):
        path = "/rivulet.v1.InferenceService/ListModels"
        self.write(entry("new", "new-secret"))
        self.await_call(path, bearer("new-secret"), "")
        self.replace('[{"name": "new"}]')
        end = time.monotonic() + LIMIT
        while not self.events("keys_reload_failed"):
            self.assertLess(time.monotonic(), end, self.server.log)
            self.call(self.channel, path, bearer("new-secret"))  # goes on meanwhile
            time.sleep(0.05)
        self.assertIn("[0].sha256 is missing", self.events("keys_reload_failed")[0]["reason"])
        self.call(self.channel, path, bearer("new-secret"))
        self.write()  # the key is revoked
        self.await_call(path, bearer("new-secret"), "API_KEY_UNKNOWN")
        self.call(self.channel, path, bearer(USER))

    def test_sighup_reads_the_file_without_a_call(self):
        before = len(self.events("keys_reloaded"))
        os.kill(self.server.pid, signal.SIGHUP)
        end = time.monotonic() + LIMIT
        while len(self.events("keys_reloaded")) == before:
            self.assertLess(time.monotonic(), end, self.server.log)
            time.sleep(0.05)
        self.assertEqual(len(self.events("sighup")), 1)

    def test_no_key_is_logged(self):
        for secret in SECRETS:
            for path in ("/rivulet.v1.InferenceService/ListModels", ADMIN[0], REFLECTION):
                for channel in (self.channel, self.admin):
                    try:
                        self.call(channel, path, bearer(secret))
                    except grpc.RpcError:
                        pass
        self.server.process.terminate()
        self.server.process.wait(timeout=LIMIT)
        log = b"".join(self.server.log)
        self.assertIn(b"listening", log)
        for secret in SECRETS:
            self.assertNotIn(secret.encode(), log)
            self.assertNotIn(hashlib.sha256(secret.encode()).hexdigest().encode(), log)

    def start(self, *flags):
        command = [SERVER, "--model", MODEL, "--threads", "1", *map(str, flags)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)

    def test_a_start_with_a_bad_file_says_what_is_wrong(self):
        for text, message in (("[", "keys-file"), ("[{}]", "[0].name is missing"), (None, "no such file")):
            if text is None:
                self.file.unlink()
            else:
                self.replace(text)
            done = self.start("--listen", "127.0.0.1:0", "--keys-file", self.file)
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done)
            self.assertIn(f"keys-file {self.file}", done.stderr)
            self.assertIn(message, done.stderr)

    def test_keys_without_tls_beyond_loopback_are_warned_of(self):
        for address, warned in (("0.0.0.0:0", True), ("127.0.0.1:0", False)):
            command = [SERVER, "--model", MODEL, "--threads", "1", "--listen", address, "--keys-file", self.file]
            with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE) as server:
                self.addCleanup(server.kill)
                events = []
                while "listening" not in events:
                    events.append(json.loads(server.stderr.readline())["event"])
                server.terminate()
                events += [json.loads(line)["event"] for line in server.stderr]
            self.assertEqual("keys_without_tls" in events, warned, events)


class KeyedChannel:
    """A channel whose streams show a key, for helpers that know no metadata."""

    def __init__(self, channel, key):
        self.channel, self.metadata = channel, bearer(key)

    def __getattr__(self, name):
        make = getattr(self.channel, name)

        def with_key(*arguments, **options):
            call = make(*arguments, **options)
            return lambda request, **more: call(request, **{**more, "metadata": self.metadata})

        return with_key


if __name__ == "__main__":
    unittest.main()
