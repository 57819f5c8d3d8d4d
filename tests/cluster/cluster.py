# SPDX-License-Identifier: Apache-2.0
"""Replicas that share their sessions, disturbed while clients check every token that they get. README.md says what is counted.

usage: build/venv/bin/python tests/cluster/cluster.py [--long] [--clients N] [--seed N] [--other-bin DIR] [SCENARIO...]
"""

import argparse
import collections
import dataclasses
import pathlib
import sys
from collections.abc import Callable

sys.path[:0] = [str(pathlib.Path(__file__).parents[1] / "e2e" / part) for part in ("support", "client")]

import scenarios
from clients import Script
from scenarios import Options, Release
from stores import Directory, LinkedRedis, Nothing, Redis, SentinelRedis, SmallDirectory, SmallRedis


@dataclasses.dataclass(frozen=True)
class Scenario:
    store: type
    happens: Callable
    rounds: int = 2
    long_rounds: int = 10
    long_seconds: float = 0  # of each round
    options: Options = Options()
    loses: bool = False  # the store loses what it has confirmed


BFLOAT16 = (Release(), Release(flags=("--weights", "bf16")))  # two numerics ids
SCENARIOS = {
    "undisturbed": Scenario(Redis, scenarios.nothing, rounds=1, long_rounds=8),
    "undisturbed, cookies kept": Scenario(Redis, scenarios.nothing, rounds=1, long_rounds=8, options=Options(leaves=())),
    "undisturbed, no cookies": Scenario(
        Redis, scenarios.nothing, rounds=1, long_rounds=8, options=Options(leaves=tuple(range(len(Script.REPLIES))))
    ),
    "kill -9 of replicas": Scenario(Redis, scenarios.kill_replicas, rounds=3, long_rounds=100),
    "kill -9 of replicas, dir: store": Scenario(Directory, scenarios.kill_replicas, rounds=3, long_rounds=100),
    "replicas stopped and continued": Scenario(
        Redis, scenarios.stop_replicas, rounds=1, long_rounds=4, long_seconds=30, options=Options(timeout=4)
    ),
    "rolling restart": Scenario(Redis, scenarios.restart_replicas, rounds=1, long_rounds=20),
    "another numerics id": Scenario(Redis, scenarios.change_numerics, rounds=1, options=Options(releases=BFLOAT16)),
    "Redis killed and restarted": Scenario(Redis, scenarios.restart_redis),
    "Redis paused": Scenario(Redis, scenarios.pause_redis, rounds=1, long_seconds=5),
    "port of Redis stalled": Scenario(LinkedRedis, scenarios.pause_redis, rounds=1, long_seconds=5),
    "port of Redis cut": Scenario(LinkedRedis, scenarios.restart_redis),
    "kill -9 of replicas while Redis pauses": Scenario(Redis, scenarios.kill_while_redis_pauses),
    "disk of Redis full": Scenario(SmallRedis, scenarios.fill_disk),
    "disk of the dir: store full": Scenario(SmallDirectory, scenarios.fill_disk),
    "Redis emptied": Scenario(Redis, scenarios.empty_redis, loses=True),
    "Redis restored from an older copy": Scenario(Redis, scenarios.restore_redis, loses=True),
    "Sentinel failover, last writes lost": Scenario(SentinelRedis, scenarios.fail_over, rounds=1, long_rounds=1, loses=True),
}
RESTARTS = (scenarios.restart_redis, scenarios.restore_redis, scenarios.fail_over)  # Redis forgets its figures


def run(name, scripts, long=False, store=None, **options):
    """The cluster of this scenario, after its end. store: another class than the scenario's. options: fields of Options. Errors:
    AssertionError where clients get no further; PermissionError: the store needs root."""
    scenario = SCENARIOS[name]
    with (store or scenario.store)() as opened:
        with scenarios.Cluster(opened, scripts, dataclasses.replace(scenario.options, **options)) as cluster:
            seconds = {"seconds": scenario.long_seconds} if long and scenario.long_seconds else {}
            scenario.happens(cluster, scenario.long_rounds if long else scenario.rounds, **seconds)
        cluster.store_did = cluster.figures() if scenario.happens not in RESTARTS else {}
    return cluster


COUNTS = ("turns", "tokens", "tokens wrong", "durable and lost", "sessions lost", "tokens given again", "not durable", "lost calls")
COLUMNS = (
    "scenario", *COUNTS, "errors", "resumed p50 / p99 ms", "taken over", "first token p50 / p99 ms, taken over", "not taken over",
    "Redis commands a request / session", "bytes in", "bytes out",
)  # fmt: skip


def row(name, cluster):
    tally, store_did = cluster.tally, cluster.store_did
    counts = [str(tally.counts[column]) for column in COUNTS]
    taken, others = tally.first_tokens[True], tally.first_tokens[False]
    share = f"{100 * len(taken) / (len(taken) + len(others)):.1f} %" if taken or others else "-"
    times = [percentiles(tally.resumes), share, percentiles(taken), percentiles(others)]
    requests, sessions = tally.counts["requests on sessions"], tally.counts["sessions"]
    store = [f"{did / requests:.1f} / {did / sessions:.0f}" for did in store_did.values()] if sessions else []
    return [name, *counts, str(sum(tally.errors.values())), *times, *(store or ["-"] * 3)]


def percentiles(seconds):
    """The median and the 99th percentile, in ms."""
    ordered = sorted(seconds)
    return " / ".join(f"{1000 * ordered[int(part * len(ordered))]:.0f}" for part in (0.5, 0.99)) if ordered else "-"


def table_line(cells):
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--long", action="store_true", help="many rounds, 60 clients: figures for deploy/BENCHMARKS.md")
    parser.add_argument("--clients", type=int, default=0, help="12; with --long 60")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of replicas")
    parser.add_argument("--no-store", action="store_true", help="replicas share nothing: faults must be counted")
    parser.add_argument("--other-bin", type=pathlib.Path, metavar="DIR", help="rolling restarts go to the binaries there, and back")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="; ".join(SCENARIOS))
    options = parser.parse_args()
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"SCENARIO: one of {list(SCENARIOS)}; got {unknown[0]!r}")
    print(table_line(COLUMNS), table_line(["---"] * len(COLUMNS)), sep="\n", flush=True)
    totals, faults = collections.Counter(), 0
    for name in options.scenarios or SCENARIOS:
        try:
            cluster = run_as(options, name)
        except PermissionError as error:
            print(f"{name}: not run: {error}", file=sys.stderr, flush=True)
            continue
        print(table_line(row(name, cluster)), flush=True)
        print(f"{name}: {dict(cluster.tally.errors)}, {dict(cluster.tally.counts)}", file=sys.stderr, flush=True)
        totals += cluster.tally.counts
        wrong = wrong_faults(name, cluster.tally)
        faults += len(wrong)
        for fault in wrong[:20]:
            print(f"FAULT in {name}: {fault}", file=sys.stderr, flush=True)
    print(table_line(["all", *(str(totals[column]) for column in COUNTS), *["-"] * (len(COLUMNS) - len(COUNTS) - 1)]))
    print(f"faults: {faults}")
    return 1 if faults else 0


def run_as(options, name):
    """As run(), with the options of the command line."""
    releases = SCENARIOS[name].options.releases
    if options.other_bin and SCENARIOS[name].happens is scenarios.restart_replicas:
        releases = (Release(), Release(folder=options.other_bin))
    scripts = scenarios.scripts(options.clients or (60 if options.long else 12), releases)
    return run(name, scripts, options.long, Nothing if options.no_store else None, seed=options.seed, releases=releases)


def wrong_faults(name, tally):
    """Those that the scenario does not explain."""
    if not SCENARIOS[name].loses:
        return tally.faults
    return [fault for fault in tally.faults if not fault.startswith("durable and lost")]


if __name__ == "__main__":
    sys.exit(main())
