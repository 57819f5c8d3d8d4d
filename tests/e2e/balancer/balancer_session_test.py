# SPDX-License-Identifier: Apache-2.0
"""Client sessions behind HAProxy, exactly as deploy/haproxy configures it: they keep to their replica, and to their tenant."""

import hashlib
import json
import pathlib
import subprocess
import tempfile
import unittest

from balancer import LIMIT, await_true, free_port, grpc, two_replicas
from command import CommandTest

pb, services = grpc.protos_and_services("rivulet/v1/session_service.proto")
session_pb, _ = grpc.protos_and_services("rivulet/v1/session.proto")


def open_session(channel, tenant=""):
    """The id of a new session, and the cookie that came with it, as a client brings it back."""
    metadata = [("rivulet-tenant", tenant)] if tenant else []
    stub = services.SessionServiceStub(channel)
    reply, call = stub.OpenSession.with_call(pb.OpenSessionRequest(), metadata=metadata, timeout=LIMIT)
    cookies = [value for key, value in call.initial_metadata() if key == "set-cookie"]
    return reply.session.session_id, "; ".join(cookie.split(";")[0] for cookie in cookies)


def append(channel, session_id, cookie):
    """The position after one more token. Errors: grpc.RpcError."""
    request = pb.AppendRequest(session=session_pb.SessionRef(session_id=session_id), tokens={"ids": [1]})
    metadata = [("cookie", cookie)] if cookie else []
    return services.SessionServiceStub(channel).Append(request, metadata=metadata, timeout=LIMIT).progress.position


def sessions(channel, tenant=None):
    metadata = [] if tenant is None else [("rivulet-tenant", tenant)]
    reply = services.SessionServiceStub(channel).ListSessions(pb.ListSessionsRequest(), metadata=metadata, timeout=LIMIT)
    return [session.session_id for session in reply.sessions]


class SessionTest(CommandTest):
    def test_a_session_is_found_again_with_the_cookie_of_the_reply_that_opened_it(self):
        with two_replicas() as (first, second, balancer), balancer.channel() as channel:
            opened = [open_session(channel) for _ in range(4)]
            self.assertEqual({replica.load().sessions for replica in (first, second)}, {2}, "they spread")
            for session_id, cookie in opened:
                for position in (1, 2, 3):
                    self.assertEqual(append(channel, session_id, cookie), position)
            # With the cookie of the other replica it is not found: the cookie decides.
            other = next(cookie for _, cookie in opened if cookie != opened[0][1])
            with self.assertRaises(grpc.RpcError) as raised:
                append(channel, opened[0][0], other)
            self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_a_draining_replica_still_gets_the_calls_of_its_sessions(self):
        with two_replicas("--drain-delay-seconds", "60") as (first, _, balancer), balancer.channel() as channel:
            opened = [open_session(channel) for _ in range(2)]
            first.terminate()
            await_true("the balancer sees the drain", lambda: balancer.state("replica-1").startswith("NOLB"))
            for session_id, cookie in opened:
                self.assertEqual(append(channel, session_id, cookie), 1)
            self.assertEqual({open_session(channel)[1] for _ in range(4)}, {opened[1][1]}, "new ones go elsewhere")

    def test_a_session_whose_replica_is_gone_is_not_found_elsewhere(self):
        with two_replicas() as (first, _, balancer), balancer.channel() as channel:
            opened = [open_session(channel) for _ in range(2)]
            first.kill()
            await_true("the balancer sees the loss", lambda: balancer.state("replica-1").startswith("DOWN"))
            results = []
            for session_id, cookie in opened:
                try:
                    results.append(append(channel, session_id, cookie))
                except grpc.RpcError as error:
                    results.append(error.code())
            self.assertEqual(results, [grpc.StatusCode.NOT_FOUND, 1])


class TenantTest(CommandTest):
    def test_nobody_says_himself_which_tenant_he_is(self):
        with two_replicas() as (first, second, balancer), balancer.channel() as channel:
            opened, _ = open_session(channel, tenant="somebody")
            self.assertEqual(self.found(first, second, "somebody"), [])
            self.assertEqual(self.found(first, second, None), [opened])

    def test_unless_the_operator_trusts_the_clients(self):
        with two_replicas(RIVULET_TRUST_TENANT="1") as (first, second, balancer), balancer.channel() as channel:
            opened, _ = open_session(channel, tenant="somebody")
            self.assertEqual(self.found(first, second, "somebody"), [opened])

    def test_a_client_certificate_names_the_tenant(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("localhost", "tenant-a"):
                make_certificate(folder, name)
            port = free_port()
            variables = {
                "RIVULET_TLS_LISTEN": f"127.0.0.1:{port}",
                "RIVULET_TLS_CERT": f"{folder}/localhost.pem",
                "RIVULET_TLS_CLIENT_CA": f"{folder}/tenant-a.pem",
            }
            with two_replicas(**variables) as (first, second, _):
                with grpc.secure_channel(f"127.0.0.1:{port}", credentials(folder, "tenant-a")) as channel:
                    opened, _ = open_session(channel, tenant="tenant-b")
                    self.assertEqual(self.found(first, second, "tenant-a"), [opened])
                with grpc.secure_channel(f"127.0.0.1:{port}", credentials(folder, "")) as channel:
                    with self.assertRaises(grpc.RpcError) as raised:
                        open_session(channel)
                    self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def test_with_keys_neither_a_header_nor_a_certificate_names_the_tenant(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("localhost", "tenant-a"):
                make_certificate(folder, name)
            keys = [{"name": "alice", "sha256": hashlib.sha256(b"secret").hexdigest(), "tenant": "alice"}]
            pathlib.Path(folder, "keys.json").write_text(json.dumps(keys))
            port = free_port()
            variables = {
                "RIVULET_KEYS": "1",
                "RIVULET_TRUST_TENANT": "1",
                "RIVULET_TLS_LISTEN": f"127.0.0.1:{port}",
                "RIVULET_TLS_CERT": f"{folder}/localhost.pem",
                "RIVULET_TLS_CLIENT_CA": f"{folder}/tenant-a.pem",
            }
            key = ("authorization", "Bearer secret")
            with two_replicas("--keys-file", f"{folder}/keys.json", **variables) as (_, _, balancer):
                with grpc.secure_channel(f"127.0.0.1:{port}", credentials(folder, "tenant-a")) as secure, balancer.channel() as plain:
                    for channel in (secure, plain):
                        stub = services.SessionServiceStub(channel)
                        metadata = [key, ("rivulet-tenant", "tenant-b")]
                        stub.OpenSession(pb.OpenSessionRequest(), metadata=metadata, timeout=LIMIT)  # that of the key
                        with self.assertRaises(grpc.RpcError) as raised:
                            stub.OpenSession(pb.OpenSessionRequest(), timeout=LIMIT)
                        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAUTHENTICATED)

    def found(self, first, second, tenant):
        """The tenant's sessions, asked of the replicas themselves."""
        ids = []
        for replica in (first, second):
            with grpc.insecure_channel(replica.target) as channel:
                ids += sessions(channel, tenant)
        return ids


def make_certificate(folder, name):
    """A self-signed certificate with its key in FOLDER/NAME.pem."""
    path = f"{folder}/{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{path}.key", "-out", path]
    subprocess.run(command, check=True, capture_output=True)
    with open(path, "a") as both, open(f"{path}.key") as key:
        both.write(key.read())


def credentials(folder, name):
    """Of a client that trusts "localhost" and shows the certificate of `name`; "": none."""
    with open(f"{folder}/localhost.pem", "rb") as root:
        if not name:
            return grpc.ssl_channel_credentials(root.read())
        with open(f"{folder}/{name}.pem", "rb") as own:
            both = own.read()
            return grpc.ssl_channel_credentials(root.read(), private_key=both, certificate_chain=both)


if __name__ == "__main__":
    unittest.main()
