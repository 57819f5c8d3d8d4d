# SPDX-License-Identifier: Apache-2.0
"""Compares two commands on a machine that is not quiet. Each prints a JSON line, as bench_serve does, or the JSON of Google Benchmark, as
bench_step and bench_engine do with --benchmark_format=json: then the figure, a rate, is the geometric mean over the benchmarks, of each
the best of its --benchmark_repetitions, which neighbours on the machine disturb least.

    python3 tests/bench/pairs.py --pairs 30 --figure tokens_per_second \\
        "build/release/bin/bench_serve --pin" \\
        "build/release/bin/bench_serve --pin --server=--metrics-listen=127.0.0.1:0"

Runs them in turn, every other pair in the opposite order, and prints the figure's medians and the change of the second
against the first, pair by pair: its median with the 95 % interval of that median (bootstrap over the pairs).
"""
import argparse
import json
import random
import shlex
import statistics
import subprocess


def figure_of(command: str, name: str) -> float:
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    try:
        found = json.loads(done.stdout)["benchmarks"]
    except (ValueError, KeyError):
        return float(json.loads(done.stdout.strip().splitlines()[-1])[name])
    best: dict[str, float] = {}
    for one in found:
        if one["run_type"] == "iteration":
            best[one["run_name"]] = max(best.get(one["run_name"], 0.0), float(one[name]))
    return statistics.geometric_mean(best.values())


def interval(ratios: list[float], samples: int = 10000) -> tuple[float, float]:
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(samples))
    return medians[int(0.025 * samples)], medians[int(0.975 * samples)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--figure", default="tokens_per_second")
    parser.add_argument("commands", nargs=2)
    args = parser.parse_args()
    values: tuple[list[float], list[float]] = ([], [])
    for pair in range(args.pairs):
        for i in (0, 1) if pair % 2 == 0 else (1, 0):
            values[i].append(figure_of(args.commands[i], args.figure))
        print(f"pair {pair + 1}: {values[0][-1]:.6g} {values[1][-1]:.6g}", flush=True)
    ratios = [b / a for a, b in zip(*values)]
    low, high = interval(ratios)
    print(f"{args.figure}: medians {statistics.median(values[0]):.6g} and {statistics.median(values[1]):.6g}; "
          f"change {statistics.median(ratios) - 1:+.2%}, 95 % interval {low - 1:+.2%} to {high - 1:+.2%}, "
          f"{args.pairs} pairs")


if __name__ == "__main__":
    main()
