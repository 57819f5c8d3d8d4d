#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tables of what run.py left in RESULTS: Markdown on stdout, for deploy/BENCHMARKS.md.

With --before, a folder of earlier results, each figure stands beside the earlier one. Keep the folders: the tables can be made again.
"""

import argparse
import pathlib
import re
import sys

from phases import read_lines

PHASES = ("smoke", "facts", "parity", "speed", "profile", "sanitizer")
BAD = ("failed", "crashed", "timed_out")


class Phase:
    """The last run of one phase in a folder. `lines` is empty where there is none."""

    def __init__(self, folder: pathlib.Path, name: str):
        self.name = name
        self.about: dict = {}
        self.lines: list[dict] = []
        for line in read_lines(folder / f"{name}.jsonl"):
            if "machine" in line:
                self.about, self.lines = line, []
            else:
                self.lines.append(line)

    def outcomes(self) -> dict[str, list[dict]]:
        kinds: dict[str, list[dict]] = {}
        for line in self.lines:
            if "outcome" in line:
                kinds.setdefault(line["outcome"], []).append(line)
        return kinds

    def figures(self) -> list[dict]:
        return [line for line in self.lines if "figures" in line]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def share(value) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def tests(phase: Phase) -> str:
    """How many of each outcome, and by name what is not good."""
    kinds = phase.outcomes()
    counts = ", ".join(f"{len(lines)} {kind}" for kind, lines in sorted(kinds.items())) or "no result"
    text = f"**{phase.name}**: {counts}.\n"
    for kind in (*BAD, "skipped", "not_run"):
        for line in kinds.get(kind, []):
            last = line.get("output", "").strip().rsplit("\n", 1)[-1]
            text += f"- {kind} `{line['name']}`: {last[:200]}\n"
    return text


def steps(phase: Phase, before: Phase) -> str:
    """Steps and prompts of bench_step: our own kernels, beside cuBLASLt for all products and the mixture that users get."""

    def time(values: dict) -> float | None:
        return values.get("us/step", values.get("real_time"))

    def of(from_phase: Phase) -> dict[tuple[str, str], dict]:
        found = [line["figures"] for line in from_phase.figures() if "of" in line["figures"]]
        return {(values["of"], values.get("products", "own")): values for values in found}

    now, earlier = of(phase), of(before)
    rows = []
    for (what, products), values in now.items():
        if products != "own":
            continue
        us, old_us = time(values), time(earlier.get((what, products), {}))
        peer, mixed = (time(now.get((what, other), {})) for other in ("cublaslt", "auto"))
        change = f"{us / old_us:.2f}" if us and old_us else ""
        rows.append([what, number(us), number(peer), number(mixed), number(values.get("tok/s", 0) / 1000),
                     number(values.get("GB/s"), 0), number(values.get("TFLOP/s")), share(values.get("share")), change])  # fmt: skip
    header = ["model, rows, plan", "us", "cuBLASLt, us", "auto, us", "thousand tok/s", "GB/s", "TFLOP/s", "share of the limit", "time / before"]
    if not rows:
        return "No figures of steps.\n"
    ran: dict[str, list[str]] = {}
    for (what, products), values in now.items():
        if products == "auto" and values.get("label"):
            ran.setdefault(values["label"], []).append(what)
    return table(header, rows) + "".join(f"- auto ran `{label}` for {', '.join(whats)}\n" for label, whats in ran.items())


def kernels(phase: Phase) -> str:
    """Every kernel of a step, the longest first."""
    text = ""
    for line in phase.figures():
        values = line["figures"]
        if "kernels" not in values:
            continue
        rows = [[f"`{short(one['kernel'])}`", one["grid"], str(one["launches"]), number(one["us"]), share(one["us"] / values["us"] if values["us"] else None)]
                for one in values["kernels"]]  # fmt: skip
        text += f"\nStep of {line['name'].removeprefix('kernels ')} rows: {number(values['us'])} us of kernels, one after another\n\n"
        text += table(["kernel", "grid", "launches", "us", "share"], rows)
    return text


def short(kernel: str) -> str:
    """A kernel's name without its arguments and namespaces."""
    return re.sub(r"\(anonymous namespace\)::|\b[a-z_]+::|^void ", "", kernel).split("(")[0].strip()


def peers(phase: Phase) -> str:
    rows = [
        [values.get("model", ""), str(values.get("rows", "")), values.get("matrices", ""), number(values.get("us")), number(values.get("gb_per_s"), 0)]
        for line in phase.figures()
        if line["name"].startswith("peer") and (values := line["figures"])
    ]
    return table(["peer: the step by hand in PyTorch, in a CUDA graph", "rows", "matrices", "us", "GB/s"], rows) if rows else "No figures of peers.\n"


def streams(phase: Phase) -> str:
    rows = []
    for line in phase.figures():
        if not line["name"].startswith("server "):
            continue
        values = line["figures"]
        latency = values.get("latency_ms", {})
        first, gap = latency.get("first_token", {}), latency.get("message_gap", {})
        rate = values.get("window", {}).get("tokens_per_second")
        rows.append([line["name"].removeprefix("server "), number(rate, 0), *(number(x, 2) for x in
                     (first.get("p50"), first.get("p99"), gap.get("p50"), gap.get("p99")))])  # fmt: skip
    header = ["streams through gRPC", "tok/s", "first token p50, ms", "p99", "gap p50, ms", "p99"]
    return table(header, rows) if rows else "No figures of the server.\n"


def report(folder: pathlib.Path, earlier: pathlib.Path | None) -> str:
    phases = {name: Phase(folder, name) for name in PHASES}
    old = {name: Phase(earlier, name) if earlier is not None else Phase(folder, "") for name in ("facts", "speed")}
    about = next((phase.about for phase in phases.values() if phase.about), {})
    machine = about.get("machine", {})
    rate = next((line["figures"]["gb_per_s"] for line in phases["smoke"].figures() if "gb_per_s" in line["figures"]), None)
    text = f"### {machine.get('name', 'no device')}, {about.get('began', '')[:10]}, commit {machine.get('commit', 'unknown')}\n\n"
    text += f"Driver {machine.get('driver_version', 'unknown')}, {machine.get('clocks.max.sm', '?')}. "
    text += f"Copy rate, read and written: {number(rate, 0) or 'not measured'} GB/s. Bytes of a step: all weights once, every state read and written\n"
    text += "once; above 100 % the caches answered.\n\n"
    failed = [name for name in ("smoke", "parity") for kind in BAD if phases[name].outcomes().get(kind)]
    if failed:
        text += f"**Tests failed ({', '.join(sorted(set(failed)))}): the figures below are of a program that is not known to be right.**\n\n"
    for name in PHASES:
        if phases[name].about:
            text += tests(phases[name]) + "\n"
    if phases["facts"].about:
        text += steps(phases["facts"], old["facts"]) + kernels(phases["facts"]) + "\n"
    if phases["speed"].about:
        text += "\n".join((steps(phases["speed"], old["speed"]), peers(phases["speed"]), streams(phases["speed"])))
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, metavar="RESULTS")
    parser.add_argument("--before", type=pathlib.Path, metavar="RESULTS")
    options = parser.parse_args()
    for folder in filter(None, (options.results, options.before)):
        if not any((folder / f"{name}.jsonl").is_file() for name in PHASES):
            print(f"report.py: {folder} holds no results of run.py", file=sys.stderr)
            return 2
    print(report(options.results, options.before), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
