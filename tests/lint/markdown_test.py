#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules for Markdown. Each rule is proved on a small bad example before it judges the tree."""
import fnmatch
import itertools
import posixpath
import re
import unittest

from lint_test import FILES, ROOT, relative

WIDTH = 100
PAGES = [p for p in FILES if p.suffix == ".md"]


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


NAMES = [relative(p) for p in FILES]
FOLDERS = {str(parent) for p in FILES for parent in p.relative_to(ROOT).parents}
SUFFIXES = ("h", "cc", "cu", "py", "sh", "proto", "ts", "md", "cfg", "yaml", "cmake")
# Written by a build, a placeholder (`NAME.h`), an ending (`_cpu.cc`), or a file of gRPC's or
# NVIDIA's.
NOT_OURS = re.compile(r"^(build|\.\.?/|/|~|_)|NAME|^(health\.proto|cuda_pipeline_primitives\.h)$")


def alternatives(span):
    """`a.{h,cc}` names a.h and a.cc."""
    parts = [p[1:-1].split(",") if p.startswith("{") else [p] for p in re.split(r"(\{[^}]*\})", span)]
    return ["".join(choice) for choice in itertools.product(*parts)]


def is_path(span):
    """Whether a code span names a file or folder of the tree: it has a suffix of our files, or
    begins with a folder of the root, or ends with a slash."""
    if not re.fullmatch(r"[\w./*{},-]+", span) or NOT_OURS.search(span):
        return False
    named = re.search(r"\.(\w+|\{[\w,]+\})$", span)
    suffixes = named.group(1).strip("{}").split(",") if named else []
    if suffixes and all(s in SUFFIXES for s in suffixes):
        return True
    return "/" in span and (span.split("/")[0] in FOLDERS or span.endswith("/"))


def missing_paths(folder, text):
    """Paths in code spans of a page in `folder` that are not in the tree. They are relative to the
    page's folder, to a folder above it, or to the root; a bare file name may lie anywhere below."""
    spans = [span for _, line in prose(text) for span in re.findall(r"`([^`]+)`", line)]
    outside = {number for number, _ in prose(text)}
    for number, line in enumerate(text.split("\n"), 1):
        if number not in outside:  # in a drawing or an example
            spans += re.findall(r"(?<![\w./-])(?:\w+/)+\w+\.(?:h|cc|cu)\b", line)
    above = [""] + ["/".join(folder.split("/")[:n]) + "/" for n in range(1, folder.count("/") + 2) if folder]
    found = []
    for path in [p for span in spans if is_path(span) for p in alternatives(span)]:
        places = [a + path.rstrip("/") for a in above]
        if "/" not in path:
            places += [f"{folder}/*/{path}" if folder else f"*/{path}"]
        if not any(place in FOLDERS or fnmatch.filter(NAMES, place) for place in places):
            found.append(path)
    return found


def anchors(text):
    """What #... can name in a page: its headings, spelled as GitHub does."""
    headings = [line.lstrip("#").strip() for _, line in prose(text) if re.match(r"#+ ", line)]
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def missing_links(folder, text, pages):
    """Targets of the links of a page in `folder` that are not in the tree, or name no heading of
    their page. pages: {path: text}; a page that links within itself is pages[""]."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", "\n".join(line for _, line in prose(text))):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = posixpath.normpath(posixpath.join(folder, path)) if path else ""
        if target and target not in NAMES and target not in FOLDERS:
            found.append(link)
        elif anchor and anchor not in anchors(pages.get(target, "")):
            found.append(link)
    return found


def logged_events(text):
    """The names of events that a source of the server logs."""
    return set(re.findall(r'\bLog(?:Limited)?\([^;"]*?"(\w+)"', text))


def section(text, heading):
    """What a page says under `heading`."""
    return re.split(r"^#+ ", text.split(f"\n{heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]


class MarkdownTest(unittest.TestCase):
    def test_prose_is_at_most_100_columns_wide(self):
        long = "word " * 21
        self.assertEqual(long_lines(f"short\n\n{long}\n"), [3])
        self.assertEqual(long_lines(f"- {long}\n"), [1])
        self.assertEqual(long_lines(f"```\n{long}\n```\n| {long} |\n"), [])
        self.assertEqual(long_lines(f"```\n{long}\n```\n{long}\n"), [4])
        self.assertEqual(long_lines("- `" + long + "`\n"), [])
        errors = [f"{relative(p)}:{n}" for p in PAGES
                  for n in long_lines(p.read_text(encoding="utf-8"))]
        self.assertEqual(errors, [])

    def test_paths_exist(self):
        self.assertEqual(missing_paths("server", "`engine/loop/loop.{h,cc}` `server/log.h` `log.h` `loop.h`"), [])
        self.assertEqual(missing_paths("server", "`engine/loop.{h,cc}` `server/lag.h`"),
                         ["engine/loop.h", "engine/loop.cc", "server/lag.h"])
        self.assertEqual(missing_paths("model", "`loop.h` `tests/unit/nowhere/`"), ["loop.h", "tests/unit/nowhere/"])
        self.assertEqual(missing_paths("server", "```\nengine/reply.h engine/replay.h\n```\n"), ["engine/replay.h"])
        self.assertEqual(missing_paths("", "`build/release/bin/rivulet` `a/b` `--slots` `*.h`"), [])
        # The changelog names files of its time.
        errors = [f"{relative(p)}: {path}" for p in PAGES
                  if relative(p) != "CHANGELOG.md" for path in missing_paths(relative(p.parent).removeprefix("."), p.read_text(encoding="utf-8"))]
        self.assertEqual(errors, [])

    def test_links_lead_to_pages_and_headings(self):
        page = "# A page\n## `--slots` and [others](x.md)\n```\n# code\n```\n"
        self.assertEqual(anchors(page), {"a-page", "--slots-and-others"})
        pages = {"": page, "server/README.md": page}
        self.assertEqual(missing_links("docs", "[a](../server/README.md#a-page) [b](#a-page) [c](../kernels) [d](https://x/y)", pages), [])
        self.assertEqual(missing_links("docs", "[a](../server/README.md#code) [b](#b) [c](../lernels) [d](none.md)", pages),
                         ["../server/README.md#code", "#b", "../lernels", "none.md"])
        texts = {relative(p): p.read_text(encoding="utf-8") for p in PAGES}
        errors = [f"{name}: {link}" for name, text in texts.items()
                  for link in missing_links(posixpath.dirname(name), text, texts | {"": text})]
        self.assertEqual(errors, [])

    def test_every_log_event_is_listed(self):
        self.assertEqual(logged_events('Log(LogLevel::kInfo, "one",\n {{"a", 1}});\nLogLimited(bad ? x : y, "two");'), {"one", "two"})
        self.assertEqual(section("# A\n## B\ntext\n## C\nmore\n", "## B"), "text\n")
        sources = [p for p in FILES if relative(p).startswith("server/") and p.suffix == ".cc"]
        events = set().union(*(logged_events(p.read_text(encoding="utf-8")) for p in sources))
        self.assertIn("listening", events)
        for page, heading in (("server/README.md", "## Log events"), ("docs/operations.md", "## The log")):
            listed = section((ROOT / page).read_text(encoding="utf-8"), heading)
            self.assertEqual([e for e in sorted(events) if f"`{e}`" not in listed], [], page)


if __name__ == "__main__":
    unittest.main()
