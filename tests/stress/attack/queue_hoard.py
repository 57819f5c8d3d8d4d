# SPDX-License-Identifier: Apache-2.0
"""Tenants send as many requests as are taken, one tenant after the other. How many of the last tenant's are taken then?"""

import collections
import time

from tenants import Tenants, grpc, reason
from victim import Victim, arguments, report


def send(tenants, tenant, count):
    """Sends `count` requests that last for hours. Returns those that were taken, and the others by the reason of their refusal."""
    before = tenants.load().refused_total
    taken_before = tenants.load().queued + tenants.load().slots_used
    streams = [tenants.generate(tenant) for _ in range(count)]
    end = time.monotonic() + 60
    while time.monotonic() < end:
        load = tenants.load()
        refused = load.refused_total - before
        answered = load.queued + load.slots_used - taken_before + refused
        if answered == count and sum(stream.done() for stream in streams) == refused:
            break
        time.sleep(0.02)
    refusals = collections.Counter()
    taken = []
    for stream in streams:
        if not stream.done():
            taken.append(stream)
            continue
        try:
            next(stream)
        except grpc.RpcError as error:
            refusals[reason(error)] += 1
    return taken, refusals


def main():
    parser = arguments(__doc__)
    parser.add_argument("--tenants", type=int, default=3)
    parsed = parser.parse_args()
    flags = ("--slots", "4", "--max-queue", "256", "--max-streams", "10000")
    with Victim.of(parsed, *flags) as victim, Tenants(victim.target) as tenants:
        taken, refused, streams = {}, {}, []
        for tenant in "abcdefgh"[: parsed.tenants]:
            mine, refusals = send(tenants, tenant, 300)
            streams += mine
            taken[tenant], refused[tenant] = len(mine), dict(refusals)
        load = tenants.load()
        for stream in streams:
            stream.cancel()
        report(
            attack="queue_hoard", slots=load.slots, max_queue=load.max_queue, taken=taken, refused=refused, alive=victim.alive(),
            peak_rss_mib=victim.peak_rss_mib(),
        )


if __name__ == "__main__":
    main()
