#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tables of what run.py left in RESULTS: Markdown on stdout, for deploy/BENCHMARKS.md.

With --before, a folder of earlier results, each figure stands beside the earlier one. Keep the folders: the tables can be made again.
"""

import argparse
import pathlib
import sys

import limits
import phases
from results import NOT_DONE, read_lines

PHASES = ("smoke", "first", "second")
TESTS = ("smoke", "backend", "memcheck", "short soak", "soak", "again", "again without", "again sanitized")  # steps that say whether it is right
BAD = ("failed", "crashed", "timed_out")


class Report:
    """The last run of each phase in a folder."""

    def __init__(self, folder: pathlib.Path | None):
        found = {} if folder is None else {name: phases.last_run(read_lines(folder / f"{name}.jsonl")) for name in PHASES}
        self.phases = {name: lines for name, lines in found.items() if lines}
        self.lines = [line for lines in self.phases.values() for line in lines]
        self.about = next((line for line in self.lines if "machine" in line), {})
        self.device = self.about.get("machine", {}).get("name", "no device")

    def outcomes(self, *steps: str) -> list[dict]:
        return [line for line in self.lines if "outcome" in line and line.get("step", "") in steps]

    def figures(self, *steps: str) -> list[tuple[str, dict]]:
        return [(line["name"], line["figures"]) for line in self.lines if "figures" in line and (not steps or line.get("step", "") in steps)]

    def measured(self) -> dict[tuple[str, str], dict]:
        """Figures of bench_step by what they are of, and products."""
        return {(values["of"], values.get("products", "own")): values for _, values in self.figures() if "of" in values and "steps" not in values}

    def failed(self) -> list[str]:
        return [step for step in TESTS if any(line["outcome"] in BAD for line in self.outcomes(step))]


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def share(value) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def steps_of(lines: list[dict], phase: str) -> str:
    """Each step of a phase: whole, cut or missing, how many of each outcome, and by name what is not good."""
    red = any(line.get("step", "").startswith("again") for line in lines)
    wanted = {"smoke": phases.SMOKE, "first": phases.FIRST, "second": phases.RED if red else phases.GREEN}[phase]
    text = f"**{phase}**\n"
    for step in [""] * any("outcome" in line and not line.get("step", "") for line in lines) + [step.name for step in wanted]:
        mine = [line for line in lines if line.get("step", "") == step]
        ended = next((line for line in mine if "ended" in line), {"ended": "" if not step else "missing" if not mine else "cut by the machine"})
        kinds: dict[str, list[dict]] = {}
        for line in mine:
            if "outcome" in line:
                kinds.setdefault(line["outcome"], []).append(line)
        counts = ", ".join(f"{len(ones)} {kind}" for kind, ones in sorted(kinds.items()))
        text += f"- {', '.join(filter(None, (step, ended['ended'], counts, f'''{ended['seconds']} s''' if 'seconds' in ended else '')))}\n"
        for kind in (*BAD, *NOT_DONE):
            for line in kinds.get(kind, []):
                text += f"  - {kind} `{line['name']}`: {line.get('output', '').strip().rsplit(chr(10), 1)[-1][:200]}\n"
    return text


def time(values: dict) -> float | None:
    return values.get("us/step", values.get("real_time"))


def limit(values: dict, device: str) -> float | None:
    """In so many us the device's memory moves the bytes of a step."""
    rate = limits.memory(device)
    return values["GB/s"] * values["us/step"] / rate if rate and {"GB/s", "us/step"} <= set(values) else None


def fastest_peers(report: Report) -> dict[str, float]:
    """us of the fastest peer by model and rows."""
    fastest: dict[str, float] = {}
    for _, values in report.figures("peers"):
        if "us" in values:
            what = f"{values.get('model')} {values.get('rows')}"
            fastest[what] = min(values["us"], fastest.get(what, values["us"]))
    return fastest


def steps(report: Report, before: Report) -> str:
    """Steps and prompts of bench_step: our own kernels beside limit, peer and published record, and with --products auto."""
    now, earlier, peers = report.measured(), before.measured(), fastest_peers(report)
    rows = []
    for (what, products), values in now.items():
        if products != "own":
            continue
        us, old_us, least = time(values), time(earlier.get((what, products), {})), limit(values, report.device)
        rows.append([what, number(us), number(least), share(least / us if least and us else None), share(values.get("share")),
                     number(peers.get(what)),
                     number(time(now.get((what, "auto"), {}))), number(values.get("tok/s", 0) / 1000), number(limits.RECORDS[what] / 1000) if what in limits.RECORDS else "",
                     f"{us / old_us:.2f}" if us and old_us else ""])  # fmt: skip
    header = ["model, rows", "us", "limit, us", "share of the limit", "share of the copy rate", "fastest peer, us", "auto, us",
              "thousand tok/s", "published, thousand tok/s", "time / before"]  # fmt: skip
    ran: dict[str, list[str]] = {}
    for (what, products), values in now.items():
        if products != "own" and values.get("label"):
            ran.setdefault(values["label"], []).append(what)
    return (table(header, rows) if rows else "No figures of steps.\n") + "".join(f"- auto ran `{label}` for {', '.join(whats)}\n" for label, whats in ran.items())


def kernels(report: Report) -> str:
    """Every kernel of a step or a prompt, the longest first."""
    text = ""
    for name, values in report.figures("kernels"):
        rows = [[f"`{phases.short(one['kernel'])}`", one["grid"], str(one["launches"]), number(one["us"]), share(one["us"] / values["us"] if values["us"] else None)]
                for one in values["kernels"]]  # fmt: skip
        what = name.removeprefix("kernels ")
        text += f"\n{what if 'prompt' in what else f'Step of {what} rows'}: {number(values['us'])} us of kernels, one after another\n\n"
        text += table(["kernel", "grid", "launches", "us", "share"], rows)
    return text


def sections(report: Report) -> str:
    """What ncu says of the longest kernels."""
    text = ""
    for name, values in report.figures("sections"):
        text += f"\n`{name.removeprefix('sections ')}`, why it waits\n\n"
        text += table(["metric", "unit", "value"], [[str(part or "") for part in (row[2], row[3], row[4])] for row in values["rows"]])
    return text


def peers(report: Report) -> str:
    rows = [[values.get("model", ""), str(values.get("rows", "")), values.get("matrices", ""), number(values["us"]), number(values.get("gb_per_s"), 0)]
            for _, values in report.figures("peers") if "us" in values]  # fmt: skip
    left = [f"- not measured: {values.get('model', '')} {values.get('rows', '')} {values.get('error', values.get('left_out', ''))}\n"
            for _, values in report.figures("peers") if "us" not in values]  # fmt: skip
    header = ["peer: the step by hand in PyTorch, in a CUDA graph; kernels of flash-linear-attention", "rows", "matrices", "us", "GB/s"]
    return (table(header, rows) if rows else "No figures of peers.\n") + "".join(left)


def streams(report: Report) -> str:
    rows = []
    for name, values in report.figures("server"):
        first, gap = (values.get("latency_ms", {}).get(what, {}) for what in ("first_token", "message_gap"))
        rate = values.get("window", {}).get("tokens_per_second")
        rows.append([name.removeprefix("server "), number(rate, 0), *(number(one.get(which), 2) for one in (first, gap) for which in ("p50", "p99"))])
    header = ["streams through gRPC", "tok/s", "first token p50, ms", "p99", "gap p50, ms", "p99"]
    return table(header, rows) if rows else "No figures of the server.\n"


def soak(report: Report) -> str:
    """Steps that had the same bits twice, and what two processes were called."""
    wanted = [*phases.SHORT_SOAK, *phases.SOAK]
    done = [values for _, values in report.figures("short soak", "soak") if "steps" in values]
    parts = ", ".join(f"{values['of'].removesuffix(' soaked')} rows {values['steps']:,.0f}" for values in done) or "none"
    text = f"- {sum(values['steps'] for values in done):,.0f} of {sum(steps for _, _, steps in wanted):,} steps had the bits of a second run ({parts})\n"
    return text + "".join(f"- {name}: `{values['numerics_id']}`, {values['products']}\n" for name, values in report.figures("ids"))


def render(report: Report, before: Report) -> str:
    machine = report.about.get("machine", {})
    rate = next((values["gb_per_s"] for name, values in report.figures("copy rate") if "gb_per_s" in values), None)
    text = f"### {report.device}, {report.about.get('began', '')[:10]}, commit {machine.get('commit', 'unknown')}\n\n"
    text += f"Driver {machine.get('driver_version', 'unknown')}, {machine.get('clocks.max.sm', '?')}. "
    text += f"Copy rate, read and written: {number(rate, 0) or 'not measured'} GB/s. Bytes of a step: all weights once, every state read and written\n"
    text += "once; above 100 % the caches answered. The limit moves them at the rate that the device's maker says.\n\n"
    failed = report.failed()
    if failed:
        text += f"**Tests failed ({', '.join(failed)}): the figures below are of a program that is not known to be right.**\n\n"
    text += "\n".join(steps_of(lines, phase) for phase, lines in report.phases.items()) + "\n"
    return text + "\n".join((steps(report, before), peers(report), kernels(report), sections(report), streams(report), soak(report)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, metavar="RESULTS")
    parser.add_argument("--before", type=pathlib.Path, metavar="RESULTS")
    options = parser.parse_args()
    for folder in filter(None, (options.results, options.before)):
        if not any((folder / f"{name}.jsonl").is_file() for name in PHASES):
            print(f"report.py: {folder} holds no results of run.py", file=sys.stderr)
            return 2
    print(render(Report(options.results), Report(options.before)), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
