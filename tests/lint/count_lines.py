#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lines and files of source code by folder, product and tests apart, as a Markdown table: count_lines.py [REF] of a commit (HEAD
unless given), count_lines.py FROM TO with the difference between two. count_lines.py --write sets the ceilings of the folders
(line_ceilings.tsv, which lint_test.py holds) to what the working tree has."""
import collections
import subprocess
import sys

from lint_test import CEILINGS, ROOT, counted_folder, tree_lines


def counts(ref):
    """{folder of two levels: (lines, files)} of a commit."""
    out = subprocess.run(["git", "grep", "-I", "-c", "", ref], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = collections.Counter(), collections.Counter()
    for row in out.splitlines():
        name, _, lines = row.removeprefix(f"{ref}:").rpartition(":")
        if folder := counted_folder(name):
            found[0][folder] += int(lines)
            found[1][folder] += 1
    return {folder: (found[0][folder], found[1][folder]) for folder in found[0]}


def total(counted, tests):
    chosen = [count for folder, count in counted.items() if folder.startswith("tests") == tests]
    return tuple(map(sum, zip(*chosen)))


def table(refs):
    """The rows, the first with the titles."""
    counted = [counts(ref) for ref in refs]
    rows = []
    for title, tests in (("product", False), ("tests", True)):
        folders = sorted({folder for of in counted for folder in of if folder.startswith("tests") == tests})
        rows += [(folder, [of.get(folder, (0, 0)) for of in counted]) for folder in folders]
        rows.append((f"**{title}**", [total(of, tests) for of in counted]))
    compared = len(refs) == 2
    yield ["folder", *(f"{what} {ref}" for ref in refs for what in ("lines", "files")), *(["lines more", "files more"] if compared else [])]
    for folder, values in rows:
        differences = [f"{last - first:+,}" for first, last in zip(*values)] if compared else []
        yield [folder, *(f"{number:,}" for value in values for number in value), *differences]


def main():
    refs = sys.argv[1:] or ["HEAD"]
    if refs == ["--write"]:
        CEILINGS.write_text("".join(f"{folder}\t{-(-count // 50) * 50}\n" for folder, count in sorted(tree_lines().items())), encoding="utf-8")
        return
    if len(refs) > 2 or refs[0].startswith("-"):
        raise SystemExit(__doc__)
    for row, cells in enumerate(table(refs)):
        print(f"| {' | '.join(cells)} |")
        if row == 0:
            print(f"| --- |{' ---: |' * (len(cells) - 1)}")


if __name__ == "__main__":
    main()
