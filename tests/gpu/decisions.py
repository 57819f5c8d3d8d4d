# SPDX-License-Identifier: Apache-2.0
"""What was left to be decided by the figures of a device: each rule, what it looks at, and what follows."""

import re

import estimates

HALVES, LIBRARY, LATENCY = 1.15, 1.15, 1.2  # so many times as fast, at least
UPDATE = 0.4  # share of a prompt's kernels from which chunks may be worth their cost
AROUND = 0.1  # share of a step's kernels from which those around the state update may be worth one kernel with it
MANY = 1024  # rows from which cuBLASLt counts
Figures = dict[tuple[str, str], float]  # us by what, products


def compared(figures: Figures, pairs: list[tuple[str, tuple, tuple]]) -> list[tuple[str, float, str]]:
    """Of each pair of which both are measured: its name, how many times as fast the second is as the first, and words."""
    found = []
    for name, first, second in pairs:
        if first in figures and second in figures:
            ratio = figures[first] / figures[second]
            found.append((name, ratio, f"{name}: {figures[first]:,.1f} and {figures[second]:,.1f} us, {100 * (ratio - 1):+.0f} %"))
    return found


def decision(title: str, least: float, found: list[tuple[str, float, str]], yes: str, no: str, lacks: str) -> str:
    """`yes` where one of the pairs reaches `least`, else `no`; where there is none, what it lacks."""
    if not found:
        return f"- **{title}**: not decided, it lacks {lacks}.\n"
    reached = [name for name, ratio, _ in found if ratio >= least]
    text = f"{yes} ({', '.join(reached)})" if reached else no
    return f"- **{title}**, at least {100 * (least - 1):.0f} % faster: **{text}**. {'; '.join(words for _, _, words in found)}.\n"


def at_once(what: str) -> int:
    """Token rows of one product of a step or a prompt."""
    prompt = re.search(r" prompt of (\d+)(?:, (\d+) at once)?$", what)
    if prompt:
        return int(prompt.group(1)) * int(prompt.group(2) or 1)
    step = re.search(r" (\d+)( throughput)?$", what)
    return int(step.group(1)) if step else 0


def clusters(figures: Figures) -> str:
    title = "A cluster kernel a layer at 64 rows of mnist-linear"
    us = figures.get(("mnist-linear 64", "own"), figures.get(("mnist-linear 64 throughput", "own")))
    if us is None:
        return f"- **{title}**: not decided, it lacks the step at 64 rows.\n"
    low, high = estimates.CLUSTERS
    text = "build it" if us >= 1.25 * high else "do not build it"
    return f"- **{title}**, if the graph takes {1.25 * high:.0f} us or more (estimate with it: {low} to {high}): **{text}**. {us:,.1f} us.\n"


def part(title: str, subject: str, pattern: str, least: float, tables: dict[str, list[dict]], whole: str, yes: str, no: str) -> str:
    """`yes` where the kernels of `pattern` are at least this share of those of a table that has them."""
    shares = {what: sum(one["us"] for one in table if re.search(pattern, one["kernel"])) / (sum(one["us"] for one in table) or 1) for what, table in tables.items()}
    if not shares:
        return f"- **{title}**: not decided, it lacks the kernels of a {whole}.\n"
    text = yes if max(shares.values()) >= least else no
    words = ", ".join(f"{what} {100 * share:.0f} %" for what, share in shares.items())
    return f"- **{title}**, if {subject} {100 * least:.0f} % of a {whole} or more: **{text}**. {words}.\n"


def decisions(figures: Figures, kernels: dict[str, list[dict]]) -> str:
    """A line each. Figures and kernels are of a program whose tests passed."""
    steps = [f"mnist-linear {rows}" for rows in (1024, 4096)]
    halves = compared(figures, [(step, (step, "own"), (f"{step} throughput in halves", "own")) for step in steps])
    library = compared(figures, [(what, (what, "own"), (what, "auto")) for what, products in figures if products == "own" and at_once(what) >= MANY])
    models = [what.removesuffix(" 1 latency") for what, products in figures if products == "own" and what.endswith(" 1 latency")]
    latency = compared(figures, [(model, (f"{model} 1 throughput", "own"), (f"{model} 1 latency", "own")) for model in models])
    prompts = {what: table for what, table in kernels.items() if " prompt of " in what}
    family = {what: table for what, table in kernels.items() if re.match(r"(rwkv7|mamba2)\S* \d+$", what)}
    timed = "keep it, with its algorithms timed, in auto alone"
    return (
        decision("Two half-batches in two branches of the graph", HALVES, halves, "build them", "do not build them", "steps as two halves at once")
        + clusters(figures)
        + decision(f"cuBLASLt from {MANY} rows on", LIBRARY, library, timed, "delete it", f"steps of {MANY} rows with auto")
        + decision("Plan latency at one row", LATENCY, latency, "keep it", "delete it", "steps of one row with both plans")
        + part("Heads and outputs in RWKV-7's state update, the convolution in Mamba-2's: 8 and 4 launches a layer", "they are", "Rwkv7Heads|Rwkv7Outputs|CausalConv",
               AROUND, family, "step", "build them", "do not build them")
        + part("A form by chunks (kernels/CHUNKS.md)", "the state update is", "Recurrence", UPDATE, prompts, "prompt", "try its serial kernel", "do not try it")
    )
