# SPDX-License-Identifier: Apache-2.0
"""Replicas of rivulet-server behind HAProxy with the configuration of deploy/haproxy, on free ports of loopback.

Where grpcio or a program is absent, importing this module ends the test as skipped.
"""

import contextlib
import csv
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator

from command import BIN_DIR, CONFORMANCE, SOURCE_DIR, Result, rivulet

sys.path[:0] = [str(SOURCE_DIR / "proto"), str(SOURCE_DIR / "deploy/haproxy")]
try:
    import grpc

    pb, services = grpc.protos_and_services("rivulet/v1/inference.proto")
except (ImportError, NotImplementedError) as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs grpcio and grpcio-tools into build/venv")
    sys.exit(77)
for program in ("haproxy", "openssl"):
    if shutil.which(program) is None:
        print(f"skipped: {program} is not installed; deploy/setup.sh --tests installs it")
        sys.exit(77)

CONFIG = SOURCE_DIR / "deploy/haproxy/haproxy.cfg"
MODEL = CONFORMANCE / "tiny-elu-relu"
ENDLESS = 1 << 20  # tokens: more than any test lets pass
LIMIT = 30  # seconds that anything awaited may take

NO_RETRIES = ("grpc.enable_retries", 0)
SHORT = 50  # tokens


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def await_true(what: str, condition: Callable[[], object]) -> None:
    """Returns once `condition()` holds. Errors: AssertionError naming `what` after LIMIT seconds."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"not within {LIMIT} s: {what}"
        time.sleep(0.02)


def request(seed: int, max_tokens: int = ENDLESS, bulky: bool = False):
    """A GenerateRequest whose tokens are a function of `seed`; `bulky` asks for some 200 bytes with each of them."""
    return pb.GenerateRequest(
        tokens=pb.TokenSequence(ids=[1]),
        sampling=pb.SamplingParams(seed=seed),
        max_tokens=max_tokens,
        logprobs=pb.LogprobOptions(enabled=True, top_n=20) if bulky else None,
    )


def stub(channel: grpc.Channel):
    return services.InferenceServiceStub(channel)


def tokens(replies) -> list[int]:
    """All tokens of a reply of one sample. Errors: grpc.RpcError."""
    return [token for reply in replies for token in reply.tokens]


def generate(target: str, seed: int, max_tokens: int = SHORT, *flags: str) -> Result:
    """The command `rivulet generate`, with the retries of the C++ library."""
    prompt = ["--tokens", 1, "--seed", seed, "--max-tokens", max_tokens]
    return rivulet("generate", "--target", target, *prompt, *flags, timeout=LIMIT)


def outcome(replies) -> tuple[list[int], grpc.RpcError | None]:
    """The tokens of a reply until its end, and the error that ended it."""
    got: list[int] = []
    try:
        for reply in replies:
            got += reply.tokens
    except grpc.RpcError as error:
        return got, error
    return got, None


class Replica:
    """A rivulet-server on a port of its own, which a restart keeps. For a `with` statement."""

    def __init__(self, *flags: str, target: str = ""):
        self.target = target or f"127.0.0.1:{free_port()}"
        self.command = [str(BIN_DIR / "rivulet-server"), "--model", str(MODEL), "--listen", self.target]
        self.command += ["--backend", "cpu", "--threads", "1", *flags]

    def start(self) -> None:
        """Errors: RuntimeError where it does not start."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        log = b""
        for line in self.process.stderr:
            log += line
            if b'"event":"listening"' in line:
                return
        raise RuntimeError(f"the replica did not start: {log.decode()}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def load(self):
        """What the replica itself says about its model: a ModelLoad."""
        with grpc.insecure_channel(self.target) as channel:
            return stub(channel).GetLoad(pb.GetLoadRequest(), timeout=LIMIT).models[0]

    def __enter__(self) -> "Replica":
        self.start()
        return self

    def __exit__(self, *exception) -> None:
        if self.process.poll() is None:
            self.kill()


class NameServer:
    """A DNS server that knows one set of IPv4 addresses, `addresses`, under every name. For a `with` statement."""

    def __init__(self, *addresses: str):
        self.addresses = list(addresses)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve)

    def serve(self) -> None:
        while True:
            query, client = self.socket.recvfrom(4096)
            if not query:
                return
            end = query.index(b"\0", 12) + 5  # of the question: name, type, class
            kind = int.from_bytes(query[end - 4 : end - 2], "big")
            addresses = self.addresses if kind == 1 else []  # of kind A
            header = query[:2] + struct.pack(">HHHHH", 0x8180, 1, len(addresses), 0, 0)
            # Each answer: a pointer to the name at byte 12, kind A, class IN, time to live 1 s, four bytes.
            answers = [struct.pack(">HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address) for address in addresses]
            self.socket.sendto(header + query[12:end] + b"".join(answers), client)

    def __enter__(self) -> "NameServer":
        self.thread.start()
        return self

    def __exit__(self, *exception) -> None:
        self.socket.sendto(b"", self.socket.getsockname())
        self.thread.join()
        self.socket.close()


class Balancer:
    """HAProxy with the committed configuration in front of `replicas` (HOST:PORT). For a `with` statement."""

    def __init__(self, *replicas: str, **variables: str):
        self.target = f"127.0.0.1:{free_port()}"
        self.statistics = f"127.0.0.1:{free_port()}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RIVULET_")},
            **{f"RIVULET_REPLICA_{i + 1}": target for i, target in enumerate(replicas)},
            "RIVULET_LISTEN": self.target,
            "RIVULET_STATS": self.statistics,
            **variables,
        }
        self.names = [f"replica-{i + 1}" for i in range(len(replicas))]

    def check(self) -> str:
        """What HAProxy says about the configuration; "" where it has no complaint."""
        done = subprocess.run(
            ["haproxy", "-c", "-f", str(CONFIG)], env=self.environment, capture_output=True, text=True
        )
        return "" if done.returncode == 0 and done.stdout == "Configuration file is valid\n" else done.stdout + done.stderr

    def spawn(self, *flags: str) -> subprocess.Popen:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                ["haproxy", "-f", str(CONFIG), *flags], env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )

    def rows(self) -> list[dict[str, str]]:
        """HAProxy's statistics: one row for each frontend, backend and server; none while it is not up."""
        try:
            with urllib.request.urlopen(f"http://{self.statistics}/;csv", timeout=LIMIT) as page:
                return list(csv.DictReader(page.read().decode().removeprefix("# ").splitlines()))
        except OSError:
            return []

    def servers(self) -> dict[str, dict[str, str]]:
        """The rows of the replicas by name."""
        return {row["svname"]: row for row in self.rows() if row["pxname"] == "replicas" and row["svname"] != "BACKEND"}

    def state(self, name: str) -> str:
        """Of a replica: "UP", "UP 1/2" while it is going down, "NOLB" while it drains, "DOWN"; "" without HAProxy."""
        return self.servers().get(name, {}).get("status", "")

    def checked(self, name: str) -> bool:
        """Whether the last health check of this replica has passed, or found it draining; no without a check."""
        return self.servers().get(name, {}).get("check_status") in ("L7OK", "L7OKC")

    def streams(self) -> list[dict]:
        """The log lines of streams that have ended, in order."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith('{"event":"stream"')]

    def channel(self, *options: tuple[str, object]) -> grpc.Channel:
        return grpc.insecure_channel(self.target, options=options)

    def __enter__(self) -> "Balancer":
        self.folder = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.folder.name) / "log"
        self.process = self.spawn()
        self.await_checks(*self.names)
        return self

    def await_checks(self, *names: str) -> None:
        await_true(
            f"HAProxy has seen {names}; its log: {self.log.read_text()}", lambda: all(self.checked(n) for n in names)
        )

    def __exit__(self, *exception) -> None:
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


@contextlib.contextmanager
def two_replicas(*flags: str, **variables: str) -> Iterator[tuple[Replica, Replica, Balancer]]:
    """Two replicas with `flags` behind a balancer that has seen both."""
    with Replica(*flags) as first, Replica(*flags) as second:
        with Balancer(first.target, second.target, **variables) as balancer:
            yield first, second, balancer
