#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one Generate crosses: server/README.md lists the files and structs, this counts them and looks for files that are missing."""
import re
import unittest

from lint_test import ROOT

SERVER = ROOT / "server"
# Folders of which each file is either on the route or named here, with what it is for.
FOLDERS = ("engine", "engine/loop", "engine/policy", "engine/replicas", "engine/sequences", "grpc/calls", "grpc/generate", "grpc/wire")
BESIDE = {
    "engine/clock": "times", "engine/engine_parts": "tests", "engine/load": "GetLoad", "engine/loop/host_memory": "start",
    "engine/session_command": "sessions", "engine/session_calls": "sessions", "engine/sequences/live_session_command": "sessions",
    "engine/policy/speculation": "drafts", "engine/sequences/drafter": "drafts", "engine/sequences/lookup_index": "drafts",
    "engine/sequences/sample_constraint": "constraints", "engine/sequences/end_mask": "min_tokens",
    "engine/sequences/reasoning_counter": "reasoning", "engine/sequences/score_sequence": "Score, Append", "grpc/generate/engine_call": "unary calls",
    "grpc/calls/reflection_guard": "reflection", "grpc/calls/unknown_methods": "unknown methods",
    **{f"engine/replicas/{name}": "replicas" for name in ("loop_mailbox", "replicated_lookups", "replicated_records", "replicated_sessions", "replicated_states")},
    "grpc/wire/convert_session": "sessions", "grpc/wire/error_counts": "errors", "grpc/wire/serialized": "snapshots", "grpc/wire/wire_field": "errors",
}


def section(readme):
    return readme[readme.index("## The route of a Generate"):readme.index("**Coalescing and back-pressure**")]


def files(route):
    """A header and its source are one, named without suffix."""
    return set(re.findall(r"\b((?:base|engine|grpc|process|request_log)/[\w/]+)\.(?:h|cc)\b", route))


def structs(route):
    """Those in parentheses in the drawing, except those that the text below it names."""
    drawing, text = route.split("```")[1:]
    excepted = re.search(r"above but (.*?), which", text, re.S).group(1)
    return set(re.findall(r"[\w:<>]+", " ".join(re.findall(r"\(([\w:<>, ]+)\)", drawing)))) - set(re.findall(r"`(\w+)`", excepted))


def sources(folder):
    return {f"{folder}/{path.stem}" for path in (SERVER / folder).iterdir() if path.suffix in (".h", ".cc")}


class RouteTest(unittest.TestCase):
    def setUp(self):
        self.route = section((SERVER / "README.md").read_text(encoding="utf-8"))

    def test_reads_a_drawing(self):
        route = "```\n grpc/a.h  -> (v1::X, Y), or an error\n  engine/b/c.cc (Z)\n grpc/a.cc\n```\n those above but `Y` and `W`, which do not: `base/d.h`"
        self.assertEqual(files(route), {"grpc/a", "engine/b/c", "base/d"})
        self.assertEqual(structs(route), {"v1::X", "Z"})

    def test_names_exist(self):
        self.assertEqual([name for name in files(self.route) if not any((SERVER / name).with_suffix(end).exists() for end in (".h", ".cc"))], [])
        declarations = "".join(path.read_text(encoding="utf-8") for folder, end in (("server", "h"), ("model", "h"), ("proto", "proto"))
                               for path in (ROOT / folder).rglob(f"*.{end}"))
        names = {part for name in structs(self.route) for part in re.findall(r"\w+", name)} - {"v1"}
        self.assertEqual([name for name in names if not re.search(rf"\b(struct|class|message) {name}\b", declarations)], [])

    def test_no_file_is_left_out(self):
        all_sources = set().union(*map(sources, FOLDERS))
        route = files(self.route)
        self.assertEqual(all_sources - route - set(BESIDE), set(), "to be named in server/README.md or in BESIDE")
        self.assertEqual(set(BESIDE) & route | set(BESIDE) - all_sources, set(), "on the route, or gone")

    def test_counts(self):
        counts = {"files": len(files(self.route)), "structs": len(structs(self.route))}
        self.assertEqual({what: int(number) for number, what in re.findall(r"\*\*(\d+) (files|structs)\*\*", self.route)}, counts)


if __name__ == "__main__":
    unittest.main()
