#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a constraint costs the reply that has it, and what it costs its neighbours.

    constraints.py HOST:PORT MODEL --rows 16 --pairs 20 [--schema FILE] [--max-tokens 48] [--neighbours]

In turn, `rows` replies with the constraint and `rows` without. --neighbours: half of the rows have it, and what is compared
are the other half. Prints the ratios of tokens/s pair by pair (median, mean, 95 % interval), and with --neighbours also the
gaps between messages in ms (p50, p99)."""

import argparse
import json
import math
import random
import statistics
import threading
import time

import rivulet

STEP = {
    "type": "object",
    "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}, "score": {"type": "integer"}},
    "required": ["explanation", "output", "score"],
}
STEPS = {"type": "object", "properties": {"steps": {"type": "array", "minItems": 20, "items": STEP}}, "required": ["steps"]}


def reply(args, schema, rates, gaps):
    """One reply: adds its tokens/s behind the first message, and the gaps between its messages."""
    with rivulet.Client(args.target) as client:
        end = {"ignore_eos": True} if schema is None else {"constraint": schema}
        stream = client.generate("Hello there", model=args.model, max_tokens=args.max_tokens, seed=random.getrandbits(32), **end)
        times, tokens = [], []
        for part in stream:
            times.append(time.perf_counter())
            tokens.append(len(part.tokens))
    if times[-1] > times[0]:
        rates.append(sum(tokens[1:]) / (times[-1] - times[0]))
    gaps += [after - before for before, after in zip(times, times[1:])]


def measure(args, schemas):
    """The mean rate and the gaps of the replies without a schema; of all, if each has one."""
    free, other = ([], []), ([], [])
    all_have = None not in schemas
    threads = [threading.Thread(target=reply, args=(args, schema, *(free if all_have or schema is None else other))) for schema in schemas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.mean(free[0]), free[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--schema", type=argparse.FileType())
    parser.add_argument("--neighbours", action="store_true")
    args = parser.parse_args()
    schema = json.load(args.schema) if args.schema else STEPS
    half = args.rows // 2 if args.neighbours else 0
    with_it, without = [None] * half + [schema] * (args.rows - half), [None] * args.rows
    measure(args, with_it)  # compiles the grammar
    ratios, gaps = [], {"with": [], "without": []}
    for pair in range(args.pairs):
        rates = {}
        for name, schemas in (("with", with_it), ("without", without))[:: 1 if pair % 2 else -1]:
            rates[name], found = measure(args, schemas)
            gaps[name] += found
        ratios.append(rates["with"] / rates["without"])
    mean, error = statistics.mean(ratios), statistics.stdev(ratios) / math.sqrt(len(ratios))
    result = {"rows": args.rows, "median": statistics.median(ratios), "mean": mean, "ci95": [mean - 1.96 * error, mean + 1.96 * error]}
    if args.neighbours:
        for name, found in gaps.items():
            cuts = statistics.quantiles(found, n=100)
            result[f"gap_ms_{name}"] = [1e3 * cuts[49], 1e3 * cuts[98]]
    print(json.dumps(result, default=str))


if __name__ == "__main__":
    main()
