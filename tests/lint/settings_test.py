#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of settings of rivulet-server (server/config/settings.cc) and of rivulet-gateway (its argparse) against docs/settings.md.

    settings_test.py --write    writes the lists in docs/settings.md
"""
import argparse
import ast
import builtins
import re
import sys
import unittest
from unittest import mock

from generated_list import GeneratedList
from lint_test import ROOT

TABLE = ROOT / "server/config/settings.cc"
CONFIG = ROOT / "server/config/server_config.h"
GATEWAY = ROOT / "client/python/src/rivulet/gateway"
SERVER_LIST = GeneratedList(ROOT / "docs/settings.md", "settings of rivulet-server")
GATEWAY_LIST = GeneratedList(ROOT / "docs/settings.md", "settings of rivulet-gateway")
LITERALS = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'


def text(literals):
    """What adjacent literals of C++ say together."""
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')


def number(expression):
    """An integer as C++ writes it: 7, 1 << 24, int64's or int's largest."""
    if "numeric_limits<int>::max" in expression:
        return 2**31 - 1
    base, _, shift = expression.replace("'", "").partition("<<")
    return int(base) << int(shift or 0)


def allowed(rest):
    """Of the part of a row behind the member: its choices, or its range."""
    choices, _, limits = rest.rpartition("}")
    names = re.findall(r'"([^"]*)"', choices)
    if names:
        return ", ".join(f"`{name}`" for name in names)
    ends = [part.strip() for part in limits.split(",") if part.strip()]
    return " to ".join(f"{number(end):,}" for end in ends)


def groups(source):
    """[(title, [(setting, type, sentence, member, allowed)])] in the order of --help."""
    rows = {}
    for name, body in re.findall(r"std::vector<Setting> (\w+)Settings\(\) \{\n(.*?)\n\}\n", source, re.S):
        found = re.findall(
            r'(?:\{|Number\(|Choice\()\s*"([a-z-]+)",\s+(?:"([^"]*)",\s+)?' + LITERALS + r",\s*&C::(\w+),?\s*((?:\{[^}]*\}|[^{}])*?)(?:\}|\)),", body + ",")
        rows[name] = [(setting, kind, text(sentence), member, allowed(rest)) for setting, kind, sentence, member, rest in found]
    titles = re.findall(r'\{"([^"]+)", (\w+)Settings\(\)\}', source[source.index("const std::vector<Setting>& Settings()"):])
    return [(title, rows[name]) for title, name in titles]


def defaults(header):
    """{member: its value as C++ writes it, "auto" of an optional number or a context, or ""} of ServerConfig."""
    body = re.sub(r"//.*", "", header[header.index("struct ServerConfig {"):header.index("\n};")])
    members = re.findall(r"^  (std::[\w:<>]+|int|bool|double|ContextChoice)\s+(\w+)\s*(?:=\s*([^;]*?))?\s*;", body, re.M)
    return {member: "auto" if "optional" in kind or kind == "ContextChoice" else value for kind, member, value in members}


def shown(value):
    """A default, for a cell of the list."""
    if "<<" in value:
        return f"{number(value):,}"
    value = value.strip('"')
    return f"`{value}`" if value else "-"


def cell(sentence):
    return sentence.replace("|", "\\|")


def server_listing(found, held):
    """The server's part of docs/settings.md. `found`: of groups(); `held`: of defaults()."""
    lines = []
    for title, rows in found:
        lines += ["", f"### {title}", "", "| setting | default | allowed | meaning |", "| --- | --- | --- | --- |"]
        for setting, kind, sentence, member, values in rows:
            lines.append(f"| `{setting}` | {shown(held[member])} | {values or kind} | {cell(sentence)} |")
    return "\n".join(lines[1:]) + "\n"


class Parsed(Exception):
    """Carries a parser out of the function that is about to use it."""


def carry_out(parser, *_):
    raise Parsed(parser)


def importer(name, *rest):
    """In place of __import__: the gateway's own packages, which a lint does not have, are stand-ins."""
    if name.partition(".")[0] in sys.stdlib_module_names:
        return __import__(name, *rest)
    return mock.MagicMock(__version__="0")


def flags(source):
    """[(title, [(flag, metavar, sentence)])] of the parser that a Python source makes; none where it makes none."""
    makers = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and ".add_argument(" in ast.unparse(node)]
    module = {"__name__": "gateway", "__builtins__": {**vars(builtins), "__import__": importer}}
    for maker in makers:
        exec(compile(source, "gateway", "exec"), module)
        with mock.patch.object(argparse.ArgumentParser, "parse_known_args", carry_out):
            try:
                module[maker]([])
            except Parsed as caught:
                (parser,) = caught.args
        listed = [(group.title, [(action.option_strings[-1], action.metavar or "", action.help.replace("%(default)s", str(action.default)))
                                 for action in group._group_actions if action.help != argparse.SUPPRESS and action.dest != "help"])
                  for group in parser._action_groups]
        return [(title.capitalize(), rows) for title, rows in listed if rows]
    return []


def gateway_listing(found):
    """The gateway's part of docs/settings.md. `found`: of flags()."""
    lines = []
    for title, rows in found:
        lines += ["", f"### Gateway: {title.lower()}", "", "| flag | meaning |", "| --- | --- |"]
        lines += [f"| `{cell(f'{flag} {metavar}'.strip())}` | {cell(sentence)} |" for flag, metavar, sentence in rows]
    return "\n".join(lines[1:]) + "\n"


def gateway_groups():
    return [group for path in sorted(GATEWAY.rglob("*.py")) for group in flags(path.read_text(encoding="utf-8"))]


class SettingsTest(unittest.TestCase):
    def setUp(self):
        self.groups = groups(TABLE.read_text(encoding="utf-8"))
        self.defaults = defaults(CONFIG.read_text(encoding="utf-8"))

    def test_the_table_is_read_whole(self):
        example = (
            'std::vector<Setting> ASettings() {\n  return {\n      {"a-b", "FILE", "One "\n "\\"two\\"", &C::a_b},\n'
            '      Number("c", "Three", &C::c, 0, 1 << 4),\n      Choice("d", "Four", &C::d, {"x", "y"}),\n'
            '      {"e", "RATE", "Five", &C::e, {}, 0, 1},\n  };\n}\n'
            'const std::vector<Setting>& Settings() {\n  {"A b", ASettings()},\n}')
        self.assertEqual(groups(example), [("A b", [
            ("a-b", "FILE", 'One "two"', "a_b", ""), ("c", "", "Three", "c", "0 to 16"), ("d", "", "Four", "d", "`x`, `y`"),
            ("e", "RATE", "Five", "e", "0 to 1")])])
        header = 'struct ServerConfig {\n  std::string a_b;  // x = 1;\n  int c =\n      1 << 4;\n  std::optional<int> d;\n  double e = 0.5;\n\n};'
        self.assertEqual(defaults(header), {"a_b": "", "c": "1 << 4", "d": "auto", "e": "0.5"})
        members = [member for _, rows in self.groups for _, _, _, member, _ in rows]
        self.assertEqual(sorted(members), sorted(self.defaults), "a setting without a row, or a row that is not read")

    def test_the_parser_of_the_gateway_is_read_whole(self):
        example = (
            "import argparse\nfrom rivulet import Client\nNUMBERS = [('--a', 1)]\ndef parse(given):\n    p = argparse.ArgumentParser()\n"
            "    for flag, default in NUMBERS:\n        p.add_argument(flag, default=default, metavar='N', help='b (%(default)s)')\n"
            "    g = p.add_argument_group('F')\n    g.add_argument('--c', required=True, help='d')\n    p.add_argument('--e', help=argparse.SUPPRESS)\n    return p.parse_args(given)\n")
        self.assertEqual(flags(example), [("Options", [("--a", "N", "b (1)")]), ("F", [("--c", "", "d")])])
        self.assertEqual(flags("def f(): pass"), [])
        self.assertIn("--target", [flag for _, rows in gateway_groups() for flag, _, _ in rows])

    def test_the_docs_list_the_settings_of_the_server(self):
        self.assertEqual(SERVER_LIST.read(), server_listing(self.groups, self.defaults), "run tests/lint/settings_test.py --write")

    def test_the_docs_list_the_flags_of_the_gateway(self):
        self.assertEqual(GATEWAY_LIST.read(), gateway_listing(gateway_groups()), "run tests/lint/settings_test.py --write")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        SERVER_LIST.write(server_listing(groups(TABLE.read_text(encoding="utf-8")), defaults(CONFIG.read_text(encoding="utf-8"))))
        GATEWAY_LIST.write(gateway_listing(gateway_groups()))
    else:
        unittest.main()
