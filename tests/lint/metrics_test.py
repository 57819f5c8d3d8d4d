#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics (server/metrics/metric_table.cc) against the collector and the docs.

    metrics_test.py --write    writes the list in docs/metrics.md from the table
"""
import re
import sys
import unittest

from generated_list import GeneratedList
from lint_test import ROOT

TABLE = ROOT / "server/metrics/metric_table.cc"
COLLECTOR = ROOT / "server/metrics/collector.cc"
LIST = GeneratedList(ROOT / "docs/metrics.md", "metrics")


def table(text):
    """(name, kind, labels, sentence) of each row."""
    rows = re.findall(r'\{"([a-z_]+)",\s+k(\w+),\s+"([a-z_,]*)",\s+((?:"[^"]*"\s*)+)\}', text)
    return [(name, kind.lower(), labels.split(",") if labels else [], "".join(re.findall(r'"([^"]*)"', sentence)))
            for name, kind, labels, sentence in rows]


def collected(text):
    """Names that the collector fills."""
    return re.findall(r'"((?:rivulet|process)_[a-z_]+)"', re.sub(r"//.*", "", text))


def listing(rows):
    """The part of docs/metrics.md between the marks."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for name, kind, labels, sentence in rows:
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels) or '-'} | {sentence} |")
    return "\n".join(lines) + "\n"


class MetricsTest(unittest.TestCase):
    def setUp(self):
        self.rows = table(TABLE.read_text(encoding="utf-8"))

    def test_the_table_is_read_whole(self):
        example = '{"a_b_total", kCounter, "x,y",\n "One "\n "two."},\n{"c", kGauge, "", "Three."},'
        self.assertEqual(table(example), [("a_b_total", "counter", ["x", "y"], "One two."), ("c", "gauge", [], "Three.")])
        self.assertEqual(len(self.rows), TABLE.read_text(encoding="utf-8").count('    {"'))

    def test_the_collector_fills_every_metric_of_the_table_and_no_other(self):
        self.assertEqual(collected('f("rivulet_a"); // "rivulet_b"\ng("x", "process_c");'), ["rivulet_a", "process_c"])
        self.assertEqual(set(collected(COLLECTOR.read_text(encoding="utf-8"))), {row[0] for row in self.rows})

    def test_the_docs_list_the_table(self):
        self.assertEqual(LIST.read(), listing(self.rows), "run tests/lint/metrics_test.py --write")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        LIST.write(listing(table(TABLE.read_text(encoding="utf-8"))))
    else:
        unittest.main()
