# SPDX-License-Identifier: Apache-2.0
"""RestoreSession streams that stop sending: one tenant opens many, each sends a piece of a snapshot and part of another message, and
then nothing. Can another tenant restore its session, what does the server hold, and when does it give it back?"""

import struct
import sys
import time

import grpc
import http2
from victim import SOURCE_DIR, Victim, arguments, report

sys.path.insert(0, str(SOURCE_DIR / "proto"))
pb, services = grpc.protos_and_services("rivulet/v1/session_service.proto")

MIB = 1 << 20
GIVE_UP = 60  # seconds, that a stream gets to send what it sends
SETTLE = 1.5  # seconds until memory is looked at


class Connection:
    """One connection that keeps to the flow control and looks at no header that comes."""

    def __init__(self, address):
        self.socket = http2.connect(address, timeout=30)
        self.buffer, self.streams = b"", {}  # by stream: bytes that it may still send
        self.window, self.initial, self.next, self.ended = 65535, 65535, 1, set()
        self.closed = False

    def open(self, path, **metadata):
        stream, self.next = self.next, self.next + 2
        self.streams[stream] = self.initial
        self.socket.sendall(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, http2.call_headers(path, **metadata)))
        return stream

    def send(self, stream, payload, give_up):
        """False where the stream has ended, or the server takes no more before `give_up`, a time.monotonic()."""
        sent = 0
        while sent < len(payload):
            self.take(0)
            room = min(self.window, self.streams.get(stream, 0), 16384, len(payload) - sent)
            if stream in self.ended or self.closed or time.monotonic() > give_up:
                return False
            if room <= 0:
                self.take(0.05)
                continue
            self.socket.sendall(http2.frame(http2.DATA, 0, stream, payload[sent : sent + room]))
            self.window, self.streams[stream], sent = self.window - room, self.streams[stream] - room, sent + room
        return True

    def take(self, seconds):
        """Looks at what comes within `seconds`."""
        self.socket.setblocking(False) if seconds == 0 else self.socket.settimeout(seconds)
        try:
            piece = self.socket.recv(1 << 16)
            self.closed |= not piece
            self.buffer += piece
        except (BlockingIOError, TimeoutError):
            pass
        except OSError:
            self.closed = True
        self.socket.settimeout(30)
        while len(self.buffer) >= 9 and len(self.buffer) >= 9 + int.from_bytes(self.buffer[:3], "big"):
            size = int.from_bytes(self.buffer[:3], "big")
            self.frame(self.buffer[3], self.buffer[4], int.from_bytes(self.buffer[5:9], "big"), self.buffer[9 : 9 + size])
            self.buffer = self.buffer[9 + size :]

    def frame(self, kind, flags, stream, payload):
        if kind == http2.SETTINGS and not flags & 1:
            for key, value in struct.iter_unpack(">HI", payload):
                if key == 4:
                    for each in self.streams:
                        self.streams[each] += value - self.initial
                    self.initial = value
            self.socket.sendall(http2.frame(http2.SETTINGS, 1, 0))
        elif kind == http2.PING and not flags & 1:
            self.socket.sendall(http2.frame(http2.PING, 1, 0, payload))
        elif kind == http2.WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if stream == 0:
                self.window += more
            elif stream in self.streams:
                self.streams[stream] += more
        elif kind == http2.RST_STREAM or (kind == http2.HEADERS and flags & http2.END_STREAM):
            self.ended.add(stream)


class Tenant:
    """A client of SessionService."""

    def __init__(self, target, tenant):
        self.stub = services.SessionServiceStub(grpc.insecure_channel(target))
        self.options = {"metadata": [("rivulet-tenant", tenant)], "timeout": 20}

    def snapshot(self):
        """Of a session that it opens."""
        session = self.stub.OpenSession(pb.OpenSessionRequest(), **self.options).session
        chunks = self.stub.SnapshotSession(pb.SnapshotSessionRequest(session_id=session.session_id), **self.options)
        return b"".join(chunk.chunk for chunk in chunks)

    def restores(self, snapshot):
        """"OK", or the code and text of the error."""
        try:
            self.stub.RestoreSession(iter([pb.RestoreSessionRequest(chunk=snapshot)]), **self.options)
            return "OK"
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"


def stall(connection, streams, partial_bytes):
    """Opens the streams, each with a whole message and a part of another; how many the server did not end."""
    whole = http2.message(pb.RestoreSessionRequest(chunk=bytes(MIB)).SerializeToString())
    part = struct.pack(">BI", 0, partial_bytes + 1) + bytes(partial_bytes) if partial_bytes else b""
    for _ in range(streams):
        stream = connection.open("/rivulet.v1.SessionService/RestoreSession", rivulet_tenant="a")
        connection.send(stream, whole + part, time.monotonic() + GIVE_UP)
    connection.take(SETTLE)
    return len(connection.streams) - len(connection.ended)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--streams", type=int, default=513)
    parser.add_argument("--partial-mib", type=float, default=0, help="of the second message of each, at most 3.9; 0: none is begun")
    parser.add_argument("--watch", type=float, default=90, help="seconds to wait for the server to end them")
    parsed = parser.parse_args()
    with Victim.of(parsed) as victim:
        other = Tenant(victim.target, "b")
        snapshot = other.snapshot()
        before, begin = victim.rss_mib(), time.monotonic()
        connection = Connection(victim.address)
        held = stall(connection, min(parsed.streams, 999), min(int(parsed.partial_mib * MIB), 4 * MIB - 100))
        stalled, during = victim.rss_mib(), other.restores(snapshot)
        while time.monotonic() - begin < parsed.watch and len(connection.ended) < len(connection.streams):
            connection.take(0.5)
        ended_after = round(time.monotonic() - begin, 1) if len(connection.ended) == len(connection.streams) else None
        time.sleep(SETTLE)
        after, later = victim.rss_mib(), other.restores(snapshot)
        connection.socket.close()
        time.sleep(SETTLE)
        report(
            streams=len(connection.streams), held=held, rss_mib_before=before, rss_mib_stalled=stalled, another_tenant=during,
            all_ended_after_s=ended_after, rss_mib_then=after, another_tenant_then=later, rss_mib_disconnected=victim.rss_mib(),
            peak_rss_mib=victim.peak_rss_mib(),
        )  # fmt: skip


if __name__ == "__main__":
    main()
