# SPDX-License-Identifier: Apache-2.0
"""What was left to be decided by the figures of a device: each rule, what it looks at, and what follows."""

import re

import estimates

HALVES, LIBRARY, LATENCY = 1.15, 1.15, 1.2  # so many times as fast, at least
SHARES = (
    # Title, kernels, least share of them, in which tables, what follows, what else.
    ("Heads and outputs in RWKV-7's state update, the convolution in Mamba-2's: 8 and 4 launches a layer", "Rwkv7Heads|Rwkv7Outputs|CausalConv", 0.1,
     r"(rwkv7|mamba2)\S* \d+$", "build them", "do not build them"),
    ("The state written every fourth step of a run", "Recurrence", 0.55, r" 1024$", "build it", "do not build it"),
    ("A form by chunks (kernels/CHUNKS.md)", "Recurrence", 0.4, " prompt of ", "try its serial kernel", "do not try it"),
)  # fmt: skip
Figures = dict[tuple[str, str], float]  # us by what, products


def ratios(figures: Figures, pairs: list[tuple[tuple, tuple]]) -> list[tuple[str, float, str]]:
    """Of each pair of which both are measured: what, how many times as fast the second is as the first, and words."""
    found = []
    for first, second in pairs:
        if first in figures and second in figures:
            ratio = figures[first] / figures[second]
            found.append((first[0], ratio, f"{first[0]}: {figures[first]:,.1f} and {figures[second]:,.1f} us, {100 * (ratio - 1):+.0f} %"))
    return found


def faster(title: str, least: float, found: list[tuple[str, float, str]], yes: str, no: str) -> str:
    """`yes` where one of the pairs reaches `least`, else `no`."""
    if not found:
        return f"- **{title}**: not decided, not measured.\n"
    reached = [name for name, ratio, _ in found if ratio >= least]
    text = f"{yes} ({', '.join(reached)})" if reached else no
    return f"- **{title}**, at least {100 * (least - 1):.0f} % faster: **{text}**. {'; '.join(words for _, _, words in found)}.\n"


def with_words(figures: Figures, words: str) -> list[tuple[tuple, tuple]]:
    """Pairs of a figure and the same with `words` behind it."""
    return [((what.removesuffix(words), "own"), (what, "own")) for what, products in figures if products == "own" and what.endswith(words)]


def clusters(figures: Figures) -> str:
    title = "A cluster kernel a layer at 64 rows of mnist-linear"
    us = figures.get(("mnist-linear 64", "own"))
    if us is None:
        return f"- **{title}**: not decided, not measured.\n"
    low, high = estimates.CLUSTERS
    text = "build it" if us >= 1.25 * high else "do not build it"
    return f"- **{title}**, if the graph takes {1.25 * high:.0f} us or more (estimate with it: {low} to {high}): **{text}**. {us:,.1f} us.\n"


def share(title: str, pattern: str, least: float, tables: dict[str, list[dict]], yes: str, no: str) -> str:
    """`yes` where the kernels of `pattern` are at least this share of those of a table."""
    shares = {what: sum(one["us"] for one in table if re.search(pattern, one["kernel"])) / (sum(one["us"] for one in table) or 1) for what, table in tables.items()}
    if not shares:
        return f"- **{title}**: not decided, not measured.\n"
    words = ", ".join(f"{what} {100 * one:.0f} %" for what, one in shares.items())
    return f"- **{title}**, if {pattern.replace('|', ', ')} take {100 * least:.0f} % or more: **{yes if max(shares.values()) >= least else no}**. {words}.\n"


def decisions(figures: Figures, kernels: dict[str, list[dict]]) -> str:
    """A line each. Figures and kernels are of a program whose tests passed."""
    library = ratios(figures, [((what, "own"), (what, "auto")) for what, products in figures if products == "auto"])
    return (
        faster("Two half-batches in two branches of the graph", HALVES, ratios(figures, with_words(figures, " in halves")), "build them", "do not build them")
        + clusters(figures)
        + faster("cuBLASLt where it could win", LIBRARY, library, "keep it, with its algorithms timed", "delete it")
        + faster("Plan latency", LATENCY, ratios(figures, with_words(figures, " latency")), "keep it", "delete it")
        + "".join(share(title, pattern, least, {what: table for what, table in kernels.items() if re.search(which, what)}, yes, no)
                  for title, pattern, least, which, yes, no in SHARES)  # fmt: skip
    )
