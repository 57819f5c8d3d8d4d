# SPDX-License-Identifier: Apache-2.0
"""Replicas that share their sessions, disturbed while clients check every token that they get. README.md says what is counted.

usage: build/venv/bin/python tests/cluster/cluster.py [--long] [--clients N] [--seed N] [SCENARIO...]
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable

sys.path[:0] = [str(pathlib.Path(__file__).parents[1] / "e2e" / part) for part in ("support", "client")]

import scenarios
from stores import Directory, Nothing, Redis, SentinelRedis


@dataclasses.dataclass(frozen=True)
class Scenario:
    store: type
    happens: Callable
    rounds: int = 2
    long_rounds: int = 20
    long_seconds: float = 0  # of each round
    timeout: float = scenarios.PATIENCE  # of a client's call, in seconds
    loses: bool = False  # the store loses what it has confirmed


SCENARIOS = {
    "undisturbed": Scenario(Redis, scenarios.nothing, rounds=1),
    "kill -9 of replicas": Scenario(Redis, scenarios.kill_replicas, rounds=3, long_rounds=50),
    "kill -9 of replicas, dir: store": Scenario(Directory, scenarios.kill_replicas, rounds=3, long_rounds=50),
    "replicas stopped and continued": Scenario(Redis, scenarios.stop_replicas, rounds=1, long_rounds=4, long_seconds=30, timeout=4),
    "rolling restart": Scenario(Redis, scenarios.restart_replicas, rounds=1, long_rounds=5),
    "Redis killed and restarted": Scenario(Redis, scenarios.restart_redis),
    "Redis paused": Scenario(Redis, scenarios.pause_redis, rounds=1, long_seconds=5),
    "kill -9 of replicas while Redis pauses": Scenario(Redis, scenarios.kill_while_redis_pauses),
    "Redis emptied": Scenario(Redis, scenarios.empty_redis, loses=True),
    "Sentinel failover, last writes lost": Scenario(SentinelRedis, scenarios.fail_over, rounds=1, long_rounds=1, loses=True),
}


def run(name, scripts, long=False, seed=0, store=None):
    """The cluster of this scenario, after its end. store: another class than the scenario's. Errors: AssertionError where clients get
    no further."""
    scenario = SCENARIOS[name]
    with (store or scenario.store)() as opened:
        with scenarios.Cluster(opened, scripts, seed, scenario.timeout) as cluster:
            options = {"seconds": scenario.long_seconds} if long and scenario.long_seconds else {}
            scenario.happens(cluster, scenario.long_rounds if long else scenario.rounds, **options)
        redis_answers = scenario.happens not in (scenarios.restart_redis, scenarios.fail_over)
        cluster.per_request = cluster.figures() if redis_answers else {}
    return cluster


COLUMNS = (
    "scenario", "turns", "tokens", "tokens wrong", "durable and lost", "sessions lost", "tokens given again", "not durable",
    "lost calls", "errors", "resumed p50 / p99 ms", "Redis commands a session request", "bytes in / out",
)  # fmt: skip


def row(name, cluster):
    tally, per_request = cluster.tally, cluster.per_request
    counts = [str(tally.counts[column]) for column in COLUMNS[1:9]]
    resumed = " / ".join(f"{tally.resume_ms(part):.0f}" for part in (0.5, 0.99)) if tally.resumes else "-"
    commands = f"{per_request['commands']:.1f}" if per_request else "-"
    sizes = f"{per_request['bytes in']:.0f} / {per_request['bytes out']:.0f}" if per_request else "-"
    return [name, *counts, str(sum(tally.errors.values())), resumed, commands, sizes]


def table_line(cells):
    return "| " + " | ".join(cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--long", action="store_true", help="many rounds, 60 clients: figures for deploy/BENCHMARKS.md")
    parser.add_argument("--clients", type=int, default=0, help="12; with --long 60")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of replicas")
    parser.add_argument("--no-store", action="store_true", help="replicas share nothing: faults must be counted")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="; ".join(SCENARIOS))
    options = parser.parse_args()
    unknown = [name for name in options.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"SCENARIO: one of {list(SCENARIOS)}; got {unknown[0]!r}")
    scripts = scenarios.scripts(options.clients or (60 if options.long else 12))
    print(table_line(COLUMNS), table_line(["---"] * len(COLUMNS)), sep="\n", flush=True)
    faults = 0
    for name in options.scenarios or SCENARIOS:
        cluster = run(name, scripts, options.long, options.seed, Nothing if options.no_store else None)
        print(table_line(row(name, cluster)), flush=True)
        print(f"{name}: {dict(cluster.tally.errors)}, {dict(cluster.tally.counts)}", file=sys.stderr, flush=True)
        allowed = ("durable and lost",) if SCENARIOS[name].loses else ()
        wrong = [fault for fault in cluster.tally.faults if not fault.startswith(allowed)] if allowed else cluster.tally.faults
        faults += len(wrong)
        for fault in wrong[:20]:
            print(f"FAULT in {name}: {fault}", file=sys.stderr, flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
