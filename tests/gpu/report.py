#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tables of what run.py left in RESULTS: Markdown on stdout, for deploy/BENCHMARKS.md.

With --before, a folder of earlier results, each figure stands beside the earlier one. Keep the folders: the tables can be made again.
"""

import argparse
import pathlib
import re
import sys

import decisions
import estimates
from phases import SOAK, read_lines

PHASES = ("smoke", "facts", "parity", "speed", "soak", "profile", "sanitizer")
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


def time(values: dict) -> float | None:
    return values.get("us/step", values.get("real_time"))


def measured(phase: Phase) -> dict[tuple[str, str], dict]:
    """Figures of bench_step by what they are of, and products."""
    found = [line["figures"] for line in phase.figures() if "of" in line["figures"]]
    return {(values["of"], values.get("products", "own")): values for values in found}


def limit(values: dict, device: str) -> float | None:
    """In so many us the device's memory moves the bytes of a step."""
    rate = estimates.memory(device)
    return values["GB/s"] * values["us/step"] / rate if rate and {"GB/s", "us/step"} <= set(values) else None


def estimate(what: str) -> str:
    low_high = estimates.microseconds(what)
    return "" if low_high is None else f"{low_high[0]:,.0f} to {low_high[1]:,.0f}"


def fastest_peers(phase: Phase) -> dict[str, float]:
    """us of the fastest peer by model and rows."""
    fastest: dict[str, float] = {}
    for line in phase.figures():
        if line["name"].startswith("peer") and "us" in line["figures"]:
            values = line["figures"]
            what = f"{values.get('model', 'mnist-linear')} {values.get('rows')}"  # peer_pytorch has one model
            fastest[what] = min(values["us"], fastest.get(what, values["us"]))
    return fastest


def steps(phase: Phase, before: Phase, peer_us: dict[str, float]) -> str:
    """Steps and prompts of bench_step: our own kernels beside limit, estimate and peer, cuBLASLt for all products, and the mixture that
    users get."""
    now, earlier = measured(phase), measured(before)
    device = phase.about.get("machine", {}).get("name", "")
    rows = []
    for (what, products), values in now.items():
        if products != "own":
            continue
        us, old_us = time(values), time(earlier.get((what, products), {}))
        library, mixed = (time(now.get((what, other), {})) for other in ("cublaslt", "auto"))
        change = f"{us / old_us:.2f}" if us and old_us else ""
        peer = peer_us.get(re.sub(" (latency|throughput)$", "", what))
        rows.append([what, number(us), number(limit(values, device)), estimate(what), number(peer), number(library), number(mixed),
                     number(values.get("tok/s", 0) / 1000),
                     number(values.get("GB/s"), 0), number(values.get("TFLOP/s")), share(values.get("share")), change])  # fmt: skip
    header = ["model, rows, plan", "us", "limit, us", f"estimate for an {estimates.DEVICE}, us", "fastest peer, us", "cuBLASLt, us", "auto, us",
              "thousand tok/s", "GB/s", "TFLOP/s", "share of the copy rate", "time / before"]  # fmt: skip
    if not rows:
        return "No figures of steps.\n"
    ran: dict[tuple[str, str], list[str]] = {}
    for (what, products), values in now.items():
        if products != "own" and values.get("label"):
            ran.setdefault((products, values["label"]), []).append(what)
    return table(header, rows) + "".join(f"- {products} ran `{label}` for {', '.join(whats)}\n" for (products, label), whats in ran.items())


def kernels(phase: Phase) -> str:
    """Every kernel of a step or a prompt, the longest first."""
    text = ""
    for line in phase.figures():
        values = line["figures"]
        if "kernels" not in values:
            continue
        rows = [[f"`{short(one['kernel'])}`", one["grid"], str(one["launches"]), number(one["us"]), share(one["us"] / values["us"] if values["us"] else None)]
                for one in values["kernels"]]  # fmt: skip
        what = line["name"].removeprefix("kernels ")
        text += f"\n{what if 'prompt' in what else f'Step of {what} rows'}: {number(values['us'])} us of kernels, one after another\n\n"
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


def soak(phase: Phase) -> str:
    """Steps that had the same bits twice, and what two processes were called."""
    text = ""
    for plan in dict.fromkeys(plan for *_, plan in SOAK):
        parts = [(values["of"].removesuffix(f" {plan}"), values["steps"]) for values in (line["figures"] for line in phase.figures())
                 if "steps" in values and values["of"].endswith(plan)]  # fmt: skip
        wanted = sum(steps for _, _, steps, of_plan in SOAK if of_plan == plan)
        done = ", ".join(f"{what} rows {steps:,.0f}" for what, steps in parts) or "none"
        text += f"- plan {plan}: {sum(steps for _, steps in parts):,.0f} of {wanted:,} steps had the bits of a second run on graphs ({done})\n"
    ids = [line for line in phase.figures() if "numerics_id" in line["figures"]]
    return text + "".join(f"- {line['name']}: `{line['figures']['numerics_id']}`, {line['figures']['products']}\n" for line in ids)


def report(folder: pathlib.Path, earlier: pathlib.Path | None) -> str:
    phases = {name: Phase(folder, name) for name in PHASES}
    old = {name: Phase(earlier, name) if earlier is not None else Phase(folder, "") for name in ("facts", "speed")}
    about = next((phase.about for phase in phases.values() if phase.about), {})
    machine = about.get("machine", {})
    rate = next((line["figures"]["gb_per_s"] for line in phases["smoke"].figures() if "gb_per_s" in line["figures"]), None)
    text = f"### {machine.get('name', 'no device')}, {about.get('began', '')[:10]}, commit {machine.get('commit', 'unknown')}\n\n"
    text += f"Driver {machine.get('driver_version', 'unknown')}, {machine.get('clocks.max.sm', '?')}. "
    text += f"Copy rate, read and written: {number(rate, 0) or 'not measured'} GB/s. Bytes of a step: all weights once, every state read and written\n"
    text += "once; above 100 % the caches answered. The limit moves them at the rate that the device's maker says.\n\n"
    failed = [name for name in ("smoke", "parity", "soak") for kind in BAD if phases[name].outcomes().get(kind)]
    if failed:
        text += f"**Tests failed ({', '.join(sorted(set(failed)))}): the figures below are of a program that is not known to be right.**\n\n"
    for name in PHASES:
        if phases[name].about:
            text += tests(phases[name]) + "\n"
    peer_us = fastest_peers(phases["speed"])
    if phases["facts"].about:
        text += steps(phases["facts"], old["facts"], peer_us) + kernels(phases["facts"]) + "\n"
    if phases["speed"].about:
        text += "\n".join((steps(phases["speed"], old["speed"], peer_us), peers(phases["speed"]), streams(phases["speed"]))) + "\n"
    if phases["soak"].about:
        text += soak(phases["soak"]) + "\n"
    both = measured(phases["speed"]) | measured(phases["facts"])
    figures = {key: us for key, values in both.items() if (us := time(values))}
    tables = {line["name"].removeprefix("kernels "): line["figures"]["kernels"] for line in phases["facts"].figures() if "kernels" in line["figures"]}
    return text + ("Nothing is decided, because tests failed.\n" if failed else decisions.decisions(figures, tables) if figures else "")


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
