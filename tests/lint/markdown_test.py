#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules for Markdown. Each rule is proved on a small bad example before it judges the tree."""
import re
import unittest

from lint_test import FILES, relative

WIDTH = 100
PAGES = [p for p in FILES if p.suffix == ".md"]
# Pages that are not wrapped yet.
LONG = re.compile(r"^(kernels|tests/gpu)/|^deploy/BENCHMARKS\.md$|^server/engine/README\.md$")


def prose(text):
    """(line number, line) of the lines outside fenced code."""
    fence = None
    for number, line in enumerate(text.split("\n"), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if mark and fence is None:
            fence = mark.group(1)
        elif mark and mark.group(1).startswith(fence):
            fence = None
        elif fence is None:
            yield number, line


def long_lines(text):
    """Line numbers of prose longer than WIDTH columns. Tables, and lines that cannot be broken
    because one link or code span fills them, are exempt."""
    found = []
    for number, line in prose(text):
        if len(line) <= WIDTH or re.match(r"\s*(\||\[[^\]]+\]:|<!--)", line):
            continue
        words = re.sub(r"`[^`]*`", lambda span: span.group().replace(" ", "_"), line).split()
        if len(words) > 2:
            found.append(number)
    return found


class MarkdownTest(unittest.TestCase):
    def test_prose_is_at_most_100_columns_wide(self):
        long = "word " * 21
        self.assertEqual(long_lines(f"short\n\n{long}\n"), [3])
        self.assertEqual(long_lines(f"- {long}\n"), [1])
        self.assertEqual(long_lines(f"```\n{long}\n```\n| {long} |\n"), [])
        self.assertEqual(long_lines(f"```\n{long}\n```\n{long}\n"), [4])
        self.assertEqual(long_lines("- `" + long + "`\n"), [])
        errors = [f"{relative(p)}:{n}" for p in PAGES if not LONG.search(relative(p))
                  for n in long_lines(p.read_text(encoding="utf-8"))]
        self.assertEqual(errors, [])


if __name__ == "__main__":
    unittest.main()
