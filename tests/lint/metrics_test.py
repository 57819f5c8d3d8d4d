#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics (server/metrics/metric_table.cc) against the collector, the docs and deploy/prometheus; alerts against the runbook.

    metrics_test.py --write    writes the list in docs/metrics.md from the table
"""
import re
import sys
import unittest

import error_reasons_test
from generated_list import GeneratedList
from lint_test import FILES, ROOT, relative

TABLE = ROOT / "server/metrics/metric_table.cc"
COLLECTOR = ROOT / "server/metrics/collector.cc"
LIST = GeneratedList(ROOT / "docs/metrics.md", "metrics")
RUNBOOK = ROOT / "docs/runbook.md"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
GATEWAY = ROOT / "client/python/src/rivulet/gateway/web/meters.py"
RECORDED = {"rivulet_slots_wanted_ratio"}  # names of recording rules without a colon, which adapters do not take


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


def queried(text):
    """Metrics of ours that a file of queries names, as the table has them; recorded ones have a colon."""
    names = re.findall(r"(?<![\w:])(?:rivulet|process)_[a-z_]+(?![\w:])", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}


def reasons(text):
    """Reasons that the label matchers of a file of queries name."""
    return {reason for values in re.findall(r'\breason(?:=|!=|=~|!~)\\?"([^"\\]*)', text) for reason in values.split("|") if reason}


def alerts(text):
    """[(name, runbook_url)] of the rules."""
    return re.findall(r"- alert: (\w+)\n(?:(?!- alert:).|\n)*?runbook_url: (\S+)", text)


def sections(text):
    """Headings of the runbook that are names of alerts."""
    return re.findall(r"^## (Rivulet\w+)$", text, re.M)


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

    def test_queries_name_metrics_and_reasons_that_exist(self):
        example = 'sum(rate(rivulet_a_seconds_bucket{reason=~"A_B|C"}[5m])) / job:rivulet_b:rate5m + process_c{reason!="D_E"}'
        self.assertEqual(queried(example), {"rivulet_a_seconds", "process_c"})
        self.assertEqual(reasons(example), {"A_B", "C", "D_E"})
        self.assertEqual(reasons(r'"expr": "a{reason=~\"A_B\"}"'), {"A_B"})
        files = [p for p in FILES if p == RUNBOOK or relative(p).startswith(("deploy/prometheus/", "deploy/grafana/", "deploy/k8s/"))]
        of_gateway = {f"rivulet_gateway_{name}" for name in re.findall(r'\bshow\("(\w+)", "(?:counter|gauge|histogram)"', GATEWAY.read_text(encoding="utf-8"))}
        self.assertGreater(len(of_gateway), 5)
        known = {row[0] for row in self.rows} | RECORDED | of_gateway
        codes = {row[0] for row in error_reasons_test.table(error_reasons_test.TABLE.read_text(encoding="utf-8"))}
        self.assertGreater(len(files), 3)
        for path in files:
            text = path.read_text(encoding="utf-8")
            self.assertEqual(queried(text) - known, set(), relative(path))
            self.assertEqual(reasons(text) - codes, set(), relative(path))

    def test_alerts_and_sections_of_the_runbook_agree(self):
        example = "- alert: RivuletA\n  expr: a\n  annotations:\n    runbook_url: x#a\n- alert: RivuletB\n  expr: b\n"
        self.assertEqual(alerts(example), [("RivuletA", "x#a")])
        text = ALERTS.read_text(encoding="utf-8")
        found = alerts(text)
        self.assertEqual(len(found), text.count("- alert:"), "an alert without runbook_url")
        self.assertEqual(sorted(sections(RUNBOOK.read_text(encoding="utf-8"))), sorted(name for name, _ in found))
        for name, url in found:
            self.assertEqual(url, f"{relative(RUNBOOK)}#{name.lower()}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        LIST.write(listing(table(TABLE.read_text(encoding="utf-8"))))
    else:
        unittest.main()
