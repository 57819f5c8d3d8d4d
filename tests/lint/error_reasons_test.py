#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of error reasons (server/base/error_reasons.cc) against the code and the docs.

    error_reasons_test.py --write    writes the list in docs/api.md from the table
"""
import re
import sys
import unittest

from generated_list import GeneratedList
from lint_test import ROOT, TEXTS, relative

TABLE = ROOT / "server/base/error_reasons.cc"
LIST = GeneratedList(ROOT / "docs/api.md", "error reasons")
# A literal of a reason: what an error is made with, or compared with.
LITERAL = re.compile(r'"([A-Z][A-Z0-9]*_[A-Z0-9_]+|CANCELLED|DRAINING|SHUTDOWN|UNKNOWN)"')
# Names of status codes, which are the reasons of errors without one, and a macro of NVIDIA's.
NOT_REASONS = {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED",
               "FAILED_PRECONDITION", "OUT_OF_RANGE", "DATA_LOSS", "NOT_SERVING", "OTEL_SERVICE_NAME"}
TENSOR_TYPE = re.compile(r"T?I?Q\d_\w+")  # of GGUF: Q4_K, IQ2_XXS


def table(text):
    """(name, code, scope, sentence) of each row."""
    rows = re.findall(r'\{"([A-Z0-9_]+)",\s+k(\w+),\s+k(Call|Start),\s+((?:"[^"]*"\s*)+)\}', text)
    return [(name, re.sub(r"(?<!^)(?=[A-Z])", "_", code).upper(), scope, "".join(re.findall(r'"([^"]*)"', sentence)))
            for name, code, scope, sentence in rows]


def literals(texts):
    """Reasons that occur in the sources, with one place of each."""
    found = {}
    for name, text in texts.items():
        for reason in LITERAL.findall(re.sub(r"//.*", "", text)):
            if reason not in NOT_REASONS and not TENSOR_TYPE.fullmatch(reason):
                found.setdefault(reason, name)
    return found


def listing(rows):
    """The part of docs/api.md between the marks."""
    lines = []
    for scope, head in (("Call", "Errors of calls:"),
                        ("Start", "Errors of settings, model directories and backends. They end the start of a server. LoadModel\n"
                         "returns them with `FAILED_PRECONDITION` in place of `INVALID_ARGUMENT`, `NOT_FOUND` and\n`OUT_OF_RANGE`:")):
        lines += ["", head, "", "| reason | code | meaning |", "| --- | --- | --- |"]
        lines += [f"| `{name}` | `{code}` | {sentence} |" for name, code, s, sentence in rows if s == scope]
    return "\n".join(lines[1:]) + "\n"


class ErrorReasonsTest(unittest.TestCase):
    def setUp(self):
        self.rows = table(TABLE.read_text(encoding="utf-8"))

    def test_the_table_is_read_whole(self):
        self.assertEqual(table('{"A_B", kOutOfRange, kCall,\n "One "\n "two."},'), [("A_B", "OUT_OF_RANGE", "Call", "One two.")])
        self.assertEqual(len(self.rows), TABLE.read_text(encoding="utf-8").count('    {"'))

    def test_every_reason_of_the_code_is_in_the_table_and_none_is_unused(self):
        self.assertEqual(literals({"a.cc": 'f("A_B"); // "C_D"\ng("NOT_FOUND", "DRAINING", "Q4_K");'}), {"A_B": "a.cc", "DRAINING": "a.cc"})
        texts = {relative(p): t for p, t in TEXTS.items() if p.suffix in (".h", ".cc") and p != TABLE
                 and relative(p).startswith(("server/", "model/"))}
        used, listed = literals(texts), {row[0] for row in self.rows}
        self.assertEqual({reason: place for reason, place in used.items() if reason not in listed}, {}, "not in the table")
        self.assertEqual(sorted(listed - used.keys()), [], "in the table, but in no error")

    def test_the_docs_list_the_table(self):
        self.assertEqual(LIST.read(), listing(self.rows), "run tests/lint/error_reasons_test.py --write")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        LIST.write(listing(table(TABLE.read_text(encoding="utf-8"))))
    else:
        unittest.main()
