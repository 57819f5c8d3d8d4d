# SPDX-License-Identifier: Apache-2.0
"""The flags of every `rivulet` command, as its --help shows them, against their tables in docs/settings.md.

    python3 tests/e2e/cli/flags_test.py --write    writes the tables, by build/release/bin/rivulet
"""

import pathlib
import re
import sys
import unittest
from typing import NamedTuple

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "lint"), str(TESTS / "e2e/support")]

from command import SOURCE_DIR, rivulet  # noqa: E402
from generated_list import GeneratedList  # noqa: E402

FLAGS = GeneratedList(SOURCE_DIR / "docs/settings.md", "flags of rivulet")
COLUMN = 30  # of a line of --help, where a meaning begins
COMMON = 4  # an argument of so many commands stands in the table for several


class Argument(NamedTuple):
    group: str  # its title in --help; "" among the Positionals and Options
    shown: str  # "--count INT" or "SESSION"
    meaning: str


class Command(NamedTuple):
    name: str  # "sessions open"
    meaning: str
    arguments: list[Argument]


def sections(text):
    """{title: [(left, meaning)]} of a --help."""
    found, entries, indent, group = {}, None, 0, ""
    for line in text.split("\n"):
        if title := re.fullmatch(r"( *)([A-Z][\w ]+):", line):
            indent, entries = len(title.group(1)), found.setdefault(group or title.group(2), [])
        elif title := re.fullmatch(r"\[Option Group: (.+)\]", line):
            group, entries = title.group(1), None
        elif not line:
            group, entries = "", None
        elif entries is not None and line.startswith(" " * (indent + COLUMN)):  # the line above has its left part alone
            left, rest = entries[-1]
            entries[-1] = (left + rest, line.strip())
        elif entries is not None:
            entries.append((line[: indent + COLUMN], line[indent + COLUMN :]))
    return {title: [(left.strip(), meaning) for left, meaning in entries] for title, entries in found.items()}


def argument(group, left, meaning):
    """Of an entry such as "--count INT:INT in [1 - 65536] Needs: --out"."""
    kind = re.split(r" ?\b(?:Needs|Excludes): ", left)[0]
    required = kind.endswith(" REQUIRED")
    name, _, kind = kind.removesuffix(" REQUIRED").partition(" ")
    if limits := re.search(r" in \[(\d+) - (\d+)\]$", kind):
        meaning += " ({:,} to {:,})".format(*map(int, limits.groups()))
    shown = f"{name} {kind.partition(':')[0]}" if name.startswith("--") and kind else name
    return Argument(group, shown, meaning + " (required)" * required)


def commands(name="", meaning=""):
    """All that do something by themselves, in the order of --help."""
    found = sections(rivulet(*name.split(), "--help").out)
    subs = found.pop("Subcommands", [])
    entries = [("" if title in ("Positionals", "Options") else title, *entry) for title, listed in found.items() for entry in listed]
    arguments = [argument(*entry) for entry in entries if entry[1] not in ("-h,--help", "--version")]
    own = [Command(name, meaning, arguments)] if arguments else []
    return own + [command for sub, sentence in subs for command in commands(f"{name} {sub}".strip(), sentence)]


def holders(found):
    """{argument: names of the commands that have it}, in order."""
    held = {}
    for command in found:
        for one in command.arguments:
            held.setdefault(one, []).append(command.name)
    return held


def families(found):
    """{"sessions": its commands}"""
    grouped = {}
    for command in found:
        grouped.setdefault(command.name.split(" ")[0], []).append(command)
    return grouped


def named(names, found):
    """Some of the commands `found`, in few words."""
    rest = [command.name for command in found if command.name not in names]
    if len(rest) < len(names):
        return f"all but {named(rest, found)}" if rest else "all"
    words = []
    for family, members in families(found).items():
        some = [command.name for command in members if command.name in names]
        words += [family] if len(some) == len(members) and family not in some else some
    return ", ".join(f"`{word}`" for word in words)


def table(*rows):
    """rows: the first has the titles."""
    titles, *rest = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {titles} |", f"| {' | '.join('---' for _ in rows[0])} |", *(f"| {row} |" for row in rest), ""]


def held_by(found, left_out=()):
    """Table of arguments by group, with the commands that have them where there are several commands."""
    titles = ("argument", "meaning", "commands") if len(found) > 1 else ("argument", "meaning")
    rows = {"": []}
    for one, names in holders(found).items():
        if one not in left_out:
            first = [(f"**{one.group}**", "", "")]
            rows.setdefault(one.group, first).append((f"`{one.shown}`", one.meaning, named(names, found)))
    listed = [row[: len(titles)] for group in rows.values() for row in group]
    return table(titles, *listed) if listed else []


def listing(found):
    """The part of docs/settings.md."""
    held = holders(found)
    common = [one for one, names in held.items() if len({name.split(" ")[0] for name in names}) >= COMMON]
    lines = ["### Of several commands", "", *held_by(found, left_out=[one for one in held if one not in common])]
    for family, members in families(found).items():
        about = [f"- `{one.name}`: {one.meaning}." for one in members] if len(members) > 1 else [f"{members[0].meaning}."]
        lines += [f"### rivulet {family}", *about, "", *held_by(members, left_out=common)]
    return "\n".join(lines[:-1]) + "\n"


class FlagsTest(unittest.TestCase):
    def test_a_help_is_read_whole(self):
        text = (
            "Does it\nUsage: rivulet a [OPTIONS] B\n\nPositionals:\n  B TEXT REQUIRED             The b\n\nOptions:\n"
            "  -h,--help                   Print this help message and exit\n"
            "  --cc TEXT:{x,y} Needs: --dd The c\n"
            "  --dd INT:INT in [1 - 65536] Needs: --cc Excludes: --ee\n                              The d\n\n"
            "Model in use:\n  --hh                        The h\n"
            "[Option Group: Prompt]\n  What it is \n  [At most 1 of the following options are allowed]\n  Options:\n"
            "    --ee                        The e\n    --ffffff TEXT Excludes: --gggggg\n                                The f\n\n"
            "Subcommands:\n  h                           The h\n"
        )
        found = sections(text)
        self.assertEqual(found["Subcommands"], [("h", "The h")])
        self.assertEqual(found["Positionals"], [("B TEXT REQUIRED", "The b")])
        self.assertEqual([argument("", *entry)[1:] for entry in found["Positionals"] + found["Options"][1:]],
                         [("B", "The b (required)"), ("--cc TEXT", "The c"), ("--dd INT", "The d (1 to 65,536)")])  # fmt: skip
        self.assertEqual(found["Model in use"], [("--hh", "The h")])
        self.assertEqual([argument("Prompt", *entry)[1:] for entry in found["Prompt"]], [("--ee", "The e"), ("--ffffff TEXT", "The f")])

    def test_every_flag_of_a_group_is_a_flag_of_a_command(self):
        grouped = re.findall(r'"(--[a-z-]+)"', (SOURCE_DIR / "client/cli/options/help_groups.cc").read_text())
        self.assertEqual(set(grouped) - {one.shown.split()[0] for command in commands() for one in command.arguments if one.group}, set())

    def test_every_command_has_an_example_of_its_flags(self):
        for family in families(commands()):
            with self.subTest(family):
                example = re.match(rf".*\nExample: rivulet ({family}\b.*)\nUsage: ", rivulet(family, "--help").out).group(1)
                shown = {one.shown.split()[0] for command in commands(family) for one in command.arguments}
                self.assertEqual(set(re.findall(r"--[a-z-]+", example)) - shown, set())

    def test_the_docs_list_the_flags_of_all_commands(self):
        found = commands()
        self.assertIn("sessions append", [command.name for command in found])
        self.assertEqual(FLAGS.read(), listing(found), "run tests/e2e/cli/flags_test.py --write")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FLAGS.write(listing(commands()))
    else:
        unittest.main()
