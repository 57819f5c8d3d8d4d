#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients that begin HTTP/2, make no call and vanish: nothing they are sent is ever answered. When does the server notice?"""

import resource
import select
import time

import http2
from victim import Victim, arguments, report


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=300, choices=range(1, 5001), metavar="1..5000")
    parser.add_argument("--seconds", type=float, default=90, help="how long they are watched")
    parsed = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Victim.of(parsed) as victim:
        before = victim.rss_mib()
        begun = time.monotonic()
        still_open = {}
        poll = select.poll()
        for _ in range(parsed.clients):
            connection = http2.connect(victim.address)
            connection.sendall(http2.frame(http2.SETTINGS, 1, 0))
            still_open[connection.fileno()] = connection
            poll.register(connection, select.POLLIN)
        closed, pings = [], 0
        rss = victim.rss_mib()
        while still_open and time.monotonic() < begun + parsed.seconds:
            for fd, _ in poll.poll(1000):
                got, ended = http2.receive(still_open[fd], 0.01)
                pings += got.count(http2.frame(http2.PING, 0, 0, b"\0" * 8)[:9])
                if ended:
                    poll.unregister(fd)
                    still_open.pop(fd).close()
                    closed.append(round(time.monotonic() - begun, 1))
        report(
            attack="vanished_clients", clients=parsed.clients, watched_s=parsed.seconds, open_at_end=len(still_open), pings=pings,
            first_closed_s=min(closed, default=None), last_closed_s=max(closed, default=None), rss_mib_before=before, rss_mib=rss,
            alive=victim.alive(),
        )  # fmt: skip


if __name__ == "__main__":
    main()
