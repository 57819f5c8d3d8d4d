# SPDX-License-Identifier: Apache-2.0
"""One tenant asks for all slots for hours: 4 requests x 64 samples x 1,048,576 tokens. How long does another tenant wait for one token?"""

import threading
import time

from tenants import Tenants, grpc, reason
from victim import Victim, arguments, report


def read(stream, read_tokens, tenant, ends):
    try:
        for message in stream:
            read_tokens[tenant] += len(message.tokens)
        ends.append("OK")
    except grpc.RpcError as error:
        ends.append(reason(error))


def main():
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="how long the other tenant waits for its token at most")
    parser.add_argument("--tries", type=int, default=5, help="tokens that it asks for, one after the other")
    parsed = parser.parse_args()
    with Victim.of(parsed) as victim, Tenants(victim.target) as tenants:
        alone = tenants.first_token_seconds("b", parsed.seconds)
        read_tokens, ends = {"a": 0}, []
        streams = [tenants.generate("a", samples=64) for _ in range(4)]
        readers = [threading.Thread(target=read, args=(stream, read_tokens, "a", ends)) for stream in streams]
        for reader in readers:
            reader.start()
        end = time.monotonic() + 30
        while (load := tenants.load()).slots_used < min(load.slots, 256) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1)
        waits = []
        for _ in range(parsed.tries):
            waits.append(tenants.first_token_seconds("b", parsed.seconds))
            if waits[-1] is None:
                break
        load = tenants.load()
        for stream in streams:
            stream.cancel()
        for reader in readers:
            reader.join()
        report(
            attack="slot_hoard", slots=load.slots, alone_seconds=alone, seconds=waits, limit_seconds=parsed.seconds,
            tokens_of_a=read_tokens["a"], preempted_total=load.preempted_total, ends=sorted(set(ends)), alive=victim.alive(),
            peak_rss_mib=victim.peak_rss_mib(),
        )


if __name__ == "__main__":
    main()
