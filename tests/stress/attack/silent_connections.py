#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""More silent TCP connections than the server has descriptors; then all close. How long is no new client served?

A server that this script starts gets --soft-limit as its soft limit of descriptors.
"""

import contextlib
import resource
import socket
import time

import http2
from victim import Victim, arguments, report


def serves(address: tuple[str, int], seconds: float) -> bool:
    """Whether a new client gets the server's SETTINGS within so many seconds."""
    try:
        with http2.connect(address, seconds) as connection:
            got, _ = http2.receive(connection, 0.1)
            end = time.monotonic() + seconds
            while len(got) < 9 and time.monotonic() < end:
                more, ended = http2.receive(connection, 0.1)
                got += more
                if ended:
                    break
            return len(got) >= 9 and got[3] == http2.SETTINGS
    except OSError:
        return False


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--connections", type=int, default=1100, choices=range(1, 5001), metavar="1..5000")
    parser.add_argument("--soft-limit", type=int, default=1024, help="of descriptors of the server")
    parser.add_argument("--patience", type=float, default=80, help="seconds to wait for service after all have closed")
    parsed = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(parsed.soft_limit, hard), hard))

    with Victim.of(parsed, preexec=limit) as victim, contextlib.ExitStack() as silent:
        figures = {"served_before": serves(victim.address, 5), "rss_mib_before": victim.rss_mib()}
        for _ in range(parsed.connections):
            silent.enter_context(socket.create_connection(victim.address, 5))
        time.sleep(1)
        figures |= {"descriptors": victim.descriptors(), "rss_mib": victim.rss_mib()}
        figures["served_meanwhile"] = serves(victim.address, 5)
        silent.close()
        begun = time.monotonic()
        served = False
        while not served and time.monotonic() < begun + parsed.patience:
            served = serves(victim.address, 5)
        figures["served_after_s"] = round(time.monotonic() - begun, 1) if served else None
        report(attack="silent_connections", connections=parsed.connections, **figures, alive=victim.alive())


if __name__ == "__main__":
    main()
