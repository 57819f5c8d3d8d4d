# SPDX-License-Identifier: Apache-2.0
"""Metadata larger than the server takes, beside other streams of the same connection: directly, and through HAProxy."""

import pathlib
import socket
import struct
import sys
import time

import http2
import victim

sys.path.append(str(victim.SOURCE_DIR / "tests/e2e/support"))

SIZES_KIB = (7, 9, 12, 14, 20, 40, 60, 100)
ACK = 1
WINDOW = (1 << 31) - 1 - 65535
LIMIT = 10  # seconds until a stream counts as ended


class Client:
    """A client of `front` (HOST:PORT) with `replies` endless replies on one connection, for a `with` statement. HAProxy sends calls of one
    connection over one connection to `replica`, and gives that to other clients later."""

    def __init__(self, front: str, replica: str, replies: int = 4):
        import balancer  # of tests/e2e/support: grpc and the stubs

        self.balancer = balancer
        self.replica, self.expected = replica, replies
        options = [("grpc.use_local_subchannel_pool", 1), balancer.NO_RETRIES]
        self.channel = balancer.grpc.insecure_channel(front, options)

    def __enter__(self) -> "Client":
        stub = self.balancer.stub(self.channel)
        self.replies = [stub.Generate(self.balancer.request(seed)) for seed in range(self.expected)]
        for reply in self.replies:
            next(reply)
        return self

    def load(self, channel, metadata=()):
        stub = self.balancer.stub(channel)
        return stub.GetLoad(self.balancer.pb.GetLoadRequest(), metadata=metadata, timeout=LIMIT).models[0]

    def attack(self, size: int, fields: int = 1):
        """The grpc.RpcError of a call with metadata of `size` bytes in `fields` fields; None where it succeeds."""
        try:
            self.load(self.channel, [(f"x{i}", "a" * (size // fields)) for i in range(fields)])
        except self.balancer.grpc.RpcError as error:
            return error
        return None

    def running(self) -> int:
        """How many replies still run: the end of a connection frees the slots of its own."""
        with self.balancer.grpc.insecure_channel(self.replica) as channel:
            return self.load(channel).slots_used

    def __exit__(self, *exception) -> None:
        for reply in self.replies:
            reply.cancel()
        self.channel.close()


class RawConnection:
    """One connection with an endless reply on stream 1, for a `with` statement."""

    def __init__(self, address: tuple[str, int]):
        self.connection = http2.connect(address)
        self.stream = 1
        self.left = b""
        window = struct.pack(">I", WINDOW)
        prompt = b"\x12\x03\x0a\x01\x01" + b"\x38\x80\x80\x40"  # GenerateRequest{tokens{ids: 1}, max_tokens: 2^20}
        self.connection.sendall(
            http2.frame(http2.WINDOW_UPDATE, 0, 0, window)
            + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.call_headers("/rivulet.v1.InferenceService/Generate"))
            + http2.frame(http2.WINDOW_UPDATE, 0, 1, window)
            + http2.frame(http2.DATA, http2.END_STREAM, 1, http2.message(prompt))
        )

    def frames(self, seconds: float):
        """(kind, flags, stream) of what comes. Errors: OSError where the connection has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while len(self.left) >= 9 and len(self.left) >= 9 + (length := int.from_bytes(self.left[:3], "big")):
                kind, flags, stream = self.left[3], self.left[4], int.from_bytes(self.left[5:9], "big")
                self.left = self.left[9 + length :]
                if kind == http2.SETTINGS and not flags & ACK:
                    self.connection.sendall(http2.frame(http2.SETTINGS, ACK, 0))  # its limits hold from here on
                yield kind, flags, stream
            self.connection.settimeout(seconds)
            more = self.connection.recv(1 << 16)
            if not more:
                raise ConnectionError("closed by the server")
            self.left += more

    def goes_on(self) -> bool:
        """Whether the reply of stream 1 does: more of it comes after the answer to a ping."""
        answered = False
        try:
            self.connection.sendall(http2.frame(http2.PING, 0, 0, b"rivulet!"))
            for kind, flags, stream in self.frames(LIMIT):
                answered |= kind == http2.PING and bool(flags & ACK)
                if answered and (kind, stream) == (http2.DATA, 1):
                    return True
        except OSError:
            pass
        return False

    def send_metadata(self, size: int) -> str:
        """Begins another call with metadata of `size` bytes: "answered", "reset", or "closed" for the whole connection."""
        self.stream += 2
        block = http2.call_headers("/rivulet.v1.InferenceService/GetLoad", x="a" * size)
        pieces = [block[i : i + 16384] for i in range(0, len(block), 16384)]
        sent = b""
        for i, piece in enumerate(pieces):
            flags = http2.END_HEADERS if i == len(pieces) - 1 else 0
            sent += http2.frame(http2.HEADERS if i == 0 else http2.CONTINUATION, flags, self.stream, piece)
        sent += http2.frame(http2.DATA, http2.END_STREAM, self.stream, http2.message(b""))
        try:
            self.connection.sendall(sent)
            for kind, _, stream in self.frames(LIMIT):
                if stream == self.stream and kind in (http2.HEADERS, http2.RST_STREAM):
                    return "answered" if kind == http2.HEADERS else "reset"
        except OSError:
            return "closed"
        return "silent"

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *exception) -> None:
        self.connection.close()


def main() -> None:
    parser = victim.arguments(__doc__)
    parser.add_argument("--haproxy", action="store_true", help="attack through HAProxy, as deploy/haproxy configures it")
    parsed = parser.parse_args()
    with victim.Victim.of(parsed) as server:
        outcomes = through_haproxy(server) if parsed.haproxy else direct(server)
    victim.report(attack=pathlib.Path(__file__).stem, haproxy=parsed.haproxy, by_kib=outcomes)


def direct(server: victim.Victim) -> dict:
    """By size: what became of the call, and of another stream of that connection."""
    outcomes = {}
    for kib in SIZES_KIB:
        with RawConnection(server.address) as shared:
            assert shared.goes_on(), "the reply did not begin"
            outcomes[kib] = {"call": shared.send_metadata(kib << 10), "other stream": "goes on" if shared.goes_on() else "ended"}
    return outcomes


def through_haproxy(server: victim.Victim) -> dict:
    """By size: what became of the call, and how many of the replies beside it were left."""
    import balancer

    outcomes = {}
    for kib in SIZES_KIB:
        with balancer.Balancer(server.target) as front, Client(front.target, server.target) as client:
            error = client.attack(kib << 10)
            answer = "answered" if error is None else error.code().name
            outcomes[kib] = {"call": answer, "other replies": f"{client.running()} of {client.expected}"}
    return outcomes


if __name__ == "__main__":
    main()
