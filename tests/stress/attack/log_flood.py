# SPDX-License-Identifier: Apache-2.0
"""Requests that are refused, as fast as one connection carries them: compressed ones, which gRPC itself refuses and reports, and
ones with a bad field. Each once cost a line of the log or more."""

import collections
import json
import sys
import time

import victim

sys.path.append(str(victim.SOURCE_DIR / "tests/e2e/support"))

CALLS = 3000
TOLD = 5  # seconds until the number of those left out is in the log


def flood(channel, options: dict, request) -> dict[str, int]:
    """Status codes of CALLS calls, by number."""
    import balancer  # of tests/e2e/support: grpc and the stubs

    codes: collections.Counter[str] = collections.Counter()
    for _ in range(CALLS):
        try:
            for _reply in balancer.stub(channel).Generate(request, timeout=10, **options):
                pass
            codes["OK"] += 1
        except balancer.grpc.RpcError as error:
            codes[error.code().name] += 1
    return dict(codes)


def counts(lines: list[bytes]) -> dict[str, int]:
    """Lines by event, and what `suppressed` counted."""
    found: collections.Counter[str] = collections.Counter()
    for line in lines:
        entry = json.loads(line)
        found[entry["event"]] += 1
        if entry["event"] == "suppressed":
            found[f"{entry['of']} left out"] += entry["count"]
    return dict(found)


def main() -> None:
    parsed = victim.arguments(__doc__).parse_args()
    if parsed.target is not None:
        raise SystemExit("log_flood.py: the log of a running server cannot be read; leave --target out")
    import balancer

    with victim.Victim.of(parsed) as server, balancer.grpc.insecure_channel(server.target) as channel:
        bad = balancer.request(1, 1)
        bad.sampling.top_p = 2
        floods = {
            "compressed": ({"compression": balancer.grpc.Compression.Gzip}, balancer.request(1, 1)),
            "bad field": ({}, bad),
        }
        for name, (options, request) in floods.items():
            begin = len(server.log)
            codes = flood(channel, options, request)
            time.sleep(TOLD)
            lines = server.log[begin:]
            victim.report(attack=name, calls=CALLS, codes=codes, log_bytes=sum(map(len, lines)), lines=len(lines), events=counts(lines))
        victim.report(alive=server.alive())


if __name__ == "__main__":
    main()
