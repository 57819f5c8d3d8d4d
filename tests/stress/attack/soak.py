# SPDX-License-Identifier: Apache-2.0
"""Honest and hostile clients, for an hour or more. Does the server's memory still grow at the end?

Honest clients open sessions, generate, fork, rewind, snapshot, restore and close them, and make calls of every other kind. Hostile
clients reset calls, vanish with open calls, send bytes that are no message and metadata that is too large. Both go at a fixed rate,
so that two runs can be compared. What the server keeps on purpose (states of sessions and cached prompts) is limited to a few MiB, which
fill in the first minutes; its own count of them is reported. Needs the packages of tests/requirements.txt."""

import pathlib
import random
import socket
import statistics
import struct
import sys
import threading
import time

import grpc

import http2
import victim

sys.path.insert(0, str(victim.SOURCE_DIR / "proto"))
pb, services = grpc.protos_and_services("rivulet/v1/inference.proto")
sessions_pb, session_services = grpc.protos_and_services("rivulet/v1/session_service.proto")
GENERATE = "/rivulet.v1.InferenceService/Generate"
TIMEOUT = 60  # seconds, of any honest call
# Quantiles 0.975 of Student's t by degrees of freedom, for the 95 % interval of a slope; 1.96 beyond.
STUDENT = {3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 10: 2.23, 12: 2.18, 16: 2.12, 20: 2.09, 28: 2.05}


class Honest:
    """Calls as programs make them; each session sees all that can be done with one."""

    def __init__(self, target: str, seed: int):
        self.random = random.Random(seed)
        self.channel = grpc.insecure_channel(target)
        self.inference = services.InferenceServiceStub(self.channel)
        self.sessions = session_services.SessionServiceStub(self.channel)

    def tokens(self, most: int):
        return pb.TokenSequence(ids=[self.random.randrange(1, 6) for _ in range(self.random.randrange(1, most))])

    def generate(self, session: str = "", **fields) -> None:
        request = pb.GenerateRequest(
            tokens=self.tokens(200),
            max_tokens=self.random.randrange(1, 60),
            sampling=pb.SamplingParams(seed=self.random.randrange(1 << 30)),
            session={"session_id": session} if session else None,
            **fields,
        )
        list(self.inference.Generate(request, timeout=TIMEOUT))

    def one_session(self) -> None:
        session = self.sessions.OpenSession(sessions_pb.OpenSessionRequest(), timeout=TIMEOUT).session.session_id
        of = {"session_id": session}
        opened = [session]
        for _ in range(self.random.randrange(1, 4)):
            self.generate(session)
        self.sessions.Append(sessions_pb.AppendRequest(session=of, tokens=self.tokens(100)), timeout=TIMEOUT)
        forked = self.sessions.ForkSession(sessions_pb.ForkSessionRequest(session=of, count=3), timeout=TIMEOUT)
        opened += [fork.session_id for fork in forked.sessions]
        self.generate(opened[-1])
        self.sessions.RewindSession(sessions_pb.RewindSessionRequest(session_id=session, position=1), timeout=TIMEOUT)
        self.generate(session)
        parts = self.sessions.SnapshotSession(sessions_pb.SnapshotSessionRequest(session_id=session), timeout=TIMEOUT)
        snapshot = b"".join(part.chunk for part in parts)
        pieces = iter([sessions_pb.RestoreSessionRequest(chunk=snapshot)])
        opened.append(self.sessions.RestoreSession(pieces, timeout=TIMEOUT).session.session_id)
        self.generate(opened[-1])
        for session in opened:
            self.sessions.CloseSession(sessions_pb.CloseSessionRequest(session_id=session), timeout=TIMEOUT)

    def others(self) -> None:
        self.generate(num_samples=4)
        self.generate(cache=pb.PromptCache(enabled=True))
        self.inference.Score(pb.ScoreRequest(tokens=self.tokens(300)), timeout=TIMEOUT)
        self.inference.GetLoad(pb.GetLoadRequest(), timeout=TIMEOUT)
        self.inference.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT)

    def run(self) -> None:
        self.random.choice((self.one_session, self.others))()


class Hostile:
    """What no library sends."""

    def __init__(self, address: tuple[str, int], seed: int):
        self.address, self.random = address, random.Random(seed)

    def resets(self, connection: socket.socket) -> None:
        begin = http2.frame(http2.HEADERS, http2.END_HEADERS, 0, http2.call_headers(GENERATE))
        end = http2.rst_stream(0)
        for stream in range(1, 401, 2):
            place = struct.pack(">I", stream)
            connection.sendall(begin[:5] + place + begin[9:] + end[:5] + place + end[9:])

    def endless_then_gone(self, connection: socket.socket) -> None:
        prompt = b"\x12\x03\x0a\x01\x01" + b"\x38\x80\x80\x40"  # GenerateRequest{tokens{ids: 1}, max_tokens: 2^20}
        for stream in range(1, 21, 2):
            connection.sendall(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, http2.call_headers(GENERATE)))
            connection.sendall(http2.frame(http2.DATA, http2.END_STREAM, stream, http2.message(prompt)))
        time.sleep(0.2)

    def garbage(self, connection: socket.socket) -> None:
        for stream in range(1, 41, 2):
            connection.sendall(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, http2.call_headers(GENERATE)))
            junk = self.random.randbytes(self.random.randrange(1, 4000))
            connection.sendall(http2.frame(http2.DATA, http2.END_STREAM, stream, http2.message(junk)))

    def large_metadata(self, connection: socket.socket) -> None:
        block = http2.call_headers(GENERATE, x="a" * 12000)
        for stream in range(1, 21, 2):
            connection.sendall(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block))

    def many_paths(self, connection: socket.socket) -> None:
        for stream in range(1, 101, 2):
            path = f"/{self.random.randbytes(20).hex()}/{self.random.randbytes(20).hex()}"
            connection.sendall(http2.frame(http2.HEADERS, http2.END_HEADERS, stream, http2.call_headers(path)))

    def run(self) -> None:
        attack = self.random.choice((self.resets, self.endless_then_gone, self.garbage, self.large_metadata, self.many_paths))
        try:
            with http2.connect(self.address) as connection:
                attack(connection)
                http2.receive(connection, 0.1)
        except OSError:
            pass  # the server may close it at any time


class Paced(threading.Thread):
    """Runs `client.run()` `rate` times a second, or as often as it can, until `over` is set; `done` times so far."""

    def __init__(self, client, rate: float, over: threading.Event):
        super().__init__(daemon=True)
        self.client, self.rate, self.over = client, rate, over
        self.done, self.failures = 0, {}

    def run(self) -> None:
        due = time.monotonic()
        while not self.over.wait(max(0.0, due - time.monotonic())):
            due = max(due + 1 / self.rate, time.monotonic() - 5)
            try:
                self.client.run()
                self.done += 1
            except grpc.RpcError as error:
                name = f"{error.code().name}: {error.details()}"[:120]
                self.failures[name] = self.failures.get(name, 0) + 1


def slope(minutes: list[float], mib: list[float], blocks: int = 12) -> dict:
    """MiB a minute with its 95 % interval, by least squares over the means of blocks: neighbouring samples are not independent."""
    size = len(mib) // blocks
    if size == 0:
        return {}
    xs = [statistics.fmean(minutes[i * size : (i + 1) * size]) for i in range(blocks)]
    ys = [statistics.fmean(mib[i * size : (i + 1) * size]) for i in range(blocks)]
    line = statistics.linear_regression(xs, ys)
    middle = statistics.fmean(xs)
    residual = sum((y - line.intercept - line.slope * x) ** 2 for x, y in zip(xs, ys)) / (blocks - 2)
    half = STUDENT.get(blocks - 2, 1.96) * (residual / sum((x - middle) ** 2 for x in xs)) ** 0.5
    return {"mib_a_minute": round(line.slope, 3), "low": round(line.slope - half, 3), "high": round(line.slope + half, 3)}


def kept_mib(target: str) -> float:
    """What the server counts as kept: states of sessions, which include those of cached prompts, and the tokens of the latter."""
    with grpc.insecure_channel(target) as channel:
        load = services.InferenceServiceStub(channel).GetLoad(pb.GetLoadRequest(), timeout=TIMEOUT).models[0]
    return round(max(load.session_state_bytes, load.prompt_cache_bytes) / 1024**2, 1)


def sampled(server: victim.Victim, seconds: float, every: float) -> tuple[list[float], list[float]]:
    """Minutes and resident MiB; a line on stderr every five minutes. Ends early with the server."""
    minutes, mib, begun = [], [], time.monotonic()
    while (passed := time.monotonic() - begun) < seconds and server.alive():
        minutes.append(passed / 60)
        mib.append(server.rss_mib() or 0)
        if len(mib) % int(300 / every) == 1:
            print(f"{minutes[-1]:.0f} min: {mib[-1]:.1f} MiB, {kept_mib(server.target)} kept", file=sys.stderr, flush=True)
        time.sleep(every)
    return minutes, mib


def main() -> None:
    parser = victim.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=90, help="at most 240")
    parser.add_argument("--honest-rate", type=float, default=4, help="sessions or rounds of calls a second, of each of two clients")
    parser.add_argument("--hostile-rate", type=float, default=2, help="hostile connections a second; 0: none")
    parser.add_argument("--model", type=pathlib.Path, default=victim.MODEL)
    parser.add_argument("--samples", type=pathlib.Path, help="a file for minutes and MiB, one sample a line")
    parsed = parser.parse_args()
    over = threading.Event()
    flags = ("--max-connections=500", "--session-state-mib=4", "--prefix-cache-mib=2")
    with victim.Victim.of(parsed, *flags, model=parsed.model) as server:
        clients = [Paced(Honest(server.target, seed), parsed.honest_rate, over) for seed in (1, 2)]
        if parsed.hostile_rate > 0:
            clients.append(Paced(Hostile(server.address, 3), parsed.hostile_rate, over))
        for client in clients:
            client.start()
        minutes, mib = sampled(server, 60 * min(parsed.minutes, 240), every=2)
        over.set()
        for client in clients:
            client.join(TIMEOUT)
        time.sleep(5)
        if parsed.samples is not None:
            parsed.samples.write_text("".join(f"{x:.3f} {y:.1f}\n" for x, y in zip(minutes, mib)))
        parts = {name: (len(mib) * k // 3, len(mib) * (k + 1) // 3) for k, name in enumerate(("first", "middle", "last"))}
        failures = {reason: count for client in clients for reason, count in client.failures.items()}
        victim.report(
            attack=pathlib.Path(__file__).stem,
            minutes=round(minutes[-1], 1),
            done=[client.done for client in clients],
            failures=failures,
            alive=server.alive(),
            kept_mib=kept_mib(server.target),
            rss_mib={"first": mib[0], "last": mib[-1], "idle": server.rss_mib(), "peak": server.peak_rss_mib()},
            slopes={name: slope(minutes[first:last], mib[first:last]) for name, (first, last) in parts.items()},
        )


if __name__ == "__main__":
    main()
