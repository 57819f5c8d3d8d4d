# SPDX-License-Identifier: Apache-2.0
"""A collector of spans that sends SETTINGS without end on its connection: how long does the server take to end after SIGTERM?"""

import contextlib
import multiprocessing
import socket
import sys
import threading
import time

import http2
import victim

sys.path.append(str(victim.SOURCE_DIR / "tests/e2e/support"))

BURST = 5000 * http2.frame(http2.SETTINGS, 0, 0, bytes([0, 4, 0, 0, 255, 255]))
BEGIN = 3  # seconds from the first call until the flood has taken its threads
GIVE_UP = 60  # seconds


def read(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(1 << 16):
            pass


def flood(connection: socket.socket) -> None:
    threading.Thread(target=read, args=(connection,), daemon=True).start()
    with contextlib.suppress(OSError):
        connection.sendall(http2.frame(http2.SETTINGS, 0, 0))
        while True:
            connection.sendall(BURST)


def collect(listener: socket.socket) -> None:
    while True:
        threading.Thread(target=flood, args=(listener.accept()[0],), daemon=True).start()


def end(server: victim.Victim) -> dict[str, object]:
    """After some traced calls."""
    import balancer  # of tests/e2e/support: grpc and the stubs, which bear no fork

    with balancer.grpc.insecure_channel(server.target) as channel:
        for _ in range(3):
            list(balancer.stub(channel).Generate(balancer.request(1, 3), timeout=GIVE_UP))
    time.sleep(BEGIN)
    begin = time.monotonic()
    server.process.terminate()
    with contextlib.suppress(victim.subprocess.TimeoutExpired):
        server.process.wait(timeout=GIVE_UP)
    return {"exit_code": server.process.poll(), "end_s": round(time.monotonic() - begin, 2)}


def main() -> None:
    parser = victim.arguments(__doc__)
    parser.add_argument("--trials", type=int, default=3, help="which thread the flood takes is up to chance")
    parsed = parser.parse_args()
    if parsed.target is not None:
        raise SystemExit("settings_flood.py: a running server has another collector; leave --target out")
    listener = socket.create_server(("127.0.0.1", 0))
    # A process of its own, which does nothing else: a slow flood leaves the server time between two frames.
    collector = multiprocessing.get_context("fork").Process(target=collect, args=(listener,), daemon=True)
    collector.start()
    for _ in range(parsed.trials):
        with victim.Victim.of(parsed, "--otlp-endpoint", f"http://127.0.0.1:{listener.getsockname()[1]}") as server:
            victim.report(attack="settings flood", **end(server))


if __name__ == "__main__":
    main()
