# SPDX-License-Identifier: Apache-2.0
"""RestoreSession streams whose client stops sending: they hold a tenant's share of the memory, and not for long; a slow client that
keeps sending is not cut."""

import sys
import threading
import time
import unittest

from command import CONFORMANCE, SOURCE_DIR, Server

try:
    import grpc
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    sys.path.insert(0, str(SOURCE_DIR / "proto"))
    pb, services = grpc.protos_and_services("rivulet/v1/session_service.proto")
    inference_pb, inference_services = grpc.protos_and_services("rivulet/v1/inference.proto")
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

MEMORY_MIB, MESSAGE_MIB = 32, 2
STREAMS = 40  # each holds a message and the MiB that it has sent
MOST_HELD = MEMORY_MIB * 7 // 8 // (MESSAGE_MIB + 1)
TIMEOUT = 5  # seconds, of the server
PATIENCE = 120  # seconds, for what must happen


def reason(error):
    """Of its ErrorInfo; None where it has no details."""
    status = rpc_status.from_call(error)
    if status is None:
        return None
    (info,) = [detail for detail in status.details if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    message = error_details_pb2.ErrorInfo()
    info.Unpack(message)
    return message.reason


class Tenant:
    """A client of the server's sessions."""

    def __init__(self, channel, name):
        self.stub = services.SessionServiceStub(channel)
        self.options = {"metadata": [("rivulet-tenant", name)], "timeout": PATIENCE}

    def snapshot(self, tokens):
        session = self.stub.OpenSession(pb.OpenSessionRequest(), **self.options).session
        append = pb.AppendRequest(session=dict(session_id=session.session_id), tokens=dict(ids=[1] * tokens))
        self.stub.Append(append, **self.options)
        chunks = self.stub.SnapshotSession(pb.SnapshotSessionRequest(session_id=session.session_id), **self.options)
        return b"".join(chunk.chunk for chunk in chunks)

    def restore(self, chunks):
        """The new session. Errors: grpc.RpcError."""
        return self.stub.RestoreSession((pb.RestoreSessionRequest(chunk=chunk) for chunk in chunks), **self.options).session

    def stall(self, over):
        """A stream that sends a MiB and stops until `over`, an event; as a future."""

        def requests():
            yield pb.RestoreSessionRequest(chunk=bytes(1 << 20))
            over.wait(PATIENCE)

        return self.stub.RestoreSession.future(requests(), **self.options)


class StalledRestoreTest(unittest.TestCase):
    def serve(self, timeout):
        """Starts the server; `timeout`: seconds."""
        args = ("--backend", "cpu", "--threads", "1", "--restore-memory-mib", str(MEMORY_MIB), "--max-message-mib", str(MESSAGE_MIB))
        server = self.enterContext(Server(CONFORMANCE / "tiny-elu-relu", args=(*args, "--restore-timeout-seconds", str(timeout))))
        self.channel = self.enterContext(grpc.insecure_channel(server.target))
        self.over = threading.Event()
        self.addCleanup(self.over.set)

    def refusals(self):
        stub = inference_services.InferenceServiceStub(self.channel)
        return dict(stub.GetLoad(inference_pb.GetLoadRequest(), timeout=PATIENCE).server.refusals)

    def test_they_take_a_tenants_share_and_give_it_back(self):
        self.serve(2 * TIMEOUT)  # all are tried before the first is ended
        a, b = Tenant(self.channel, "a"), Tenant(self.channel, "b")
        of_a, of_b = a.snapshot(100), b.snapshot(100)
        ended = threading.Semaphore(0)
        stalled = [a.stall(self.over) for _ in range(STREAMS)]
        for each in stalled:
            each.add_done_callback(lambda _: ended.release())
        for _ in range(STREAMS - MOST_HELD):
            self.assertTrue(ended.acquire(timeout=PATIENCE), "more are held than a tenant's share has room for")
        b.restore([of_b])
        reasons = []
        for each in stalled:
            with self.assertRaises(grpc.RpcError) as raised:
                each.result(timeout=PATIENCE)
            reasons.append((raised.exception.code().name, reason(raised.exception)))
        slow, refused = ("ABORTED", "RESTORE_TOO_SLOW"), ("RESOURCE_EXHAUSTED", "RESTORE_MEMORY")
        self.assertEqual(set(reasons), {slow, refused})
        self.assertLessEqual(reasons.count(slow), MOST_HELD)
        self.assertEqual(self.refusals(), {"RESTORE_MEMORY": reasons.count(refused)})
        a.restore([of_a])

    def test_a_slow_client_that_keeps_sending_is_not_cut(self):
        self.serve(TIMEOUT)
        tenant = Tenant(self.channel, "a")
        snapshot = tenant.snapshot(170_000)
        piece = 1 << 16
        pieces = [snapshot[begin : begin + piece] for begin in range(0, len(snapshot), piece)]
        self.assertGreater(len(pieces), 2 * TIMEOUT)

        def slowly():
            for chunk in pieces:
                yield chunk
                time.sleep(1)  # a tardy sender is what is tested

        begin = time.monotonic()
        self.assertEqual(tenant.restore(slowly()).progress.position, 170_000)
        self.assertGreater(time.monotonic() - begin, 2 * TIMEOUT)

    def test_empty_messages_are_no_progress(self):
        def nothing():
            while not self.over.wait(0.2):
                yield b""

        self.serve(TIMEOUT)
        with self.assertRaises(grpc.RpcError) as raised:
            Tenant(self.channel, "a").restore(nothing())
        self.assertEqual(reason(raised.exception), "RESTORE_TOO_SLOW")


if __name__ == "__main__":
    unittest.main()
