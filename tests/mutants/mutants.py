#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small faults in the clients and in the engine's sessions, made by rule, and which test finds each. README.md says how it is used."""

import argparse
import concurrent.futures
import csv
import io
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tokenize
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = pathlib.Path(__file__).with_name("mutants.tsv")
COLUMNS = ("number", "file", "line", "rule", "original", "mutant", "first", "last")
SEED = 24
WORK = ROOT / "build/mutants"
TREE, BUILD = WORK / "tree", WORK / "build"
VARIABLE = "RIVULET_MUTANT"
LIMIT = 60  # seconds that a test program gets in addition to three times its usual time

# How many mutants of which sources.
QUOTA = {
    "client/python/src/rivulet/[act]*/*.py": 45,  # aio, core, threads
    "client/python/src/rivulet/core/cookies.py": 4,
    "client/python/src/rivulet/core/session*.py": 6,  # what a session owes, and its durability
    "client/typescript/src/*.ts": 27,
    "client/cli/options/*.cc": 20,
    "client/cli/input/*.cc": 4,
    "client/cli/output/*.cc": 4,
    "client/cpp/*.cc": 20,
    "server/sessions/**/*.cc": 10,
    "server/engine/**/*.cc": 10,
}
GENERATED = {"threads/client.py", "threads/session.py"}  # an editable install of the Python client writes them; git ignores them
ENGINE = ["engine_unit_test", "engine_state_test", "session_store_test", "redis_session_store_test", "server_e2e_test", "simulation_test", "replicas_test"]
TARGETS = ("rivulet", "rivulet-server", "client_test", "client_e2e_test", "multiplex_e2e_test", "contract_driver", *ENGINE)

# The tests of a source, the quick ones first: programs of tests/e2e, with the classes to run where not all, and GoogleTest programs.
CLIENT = [f"client/{name}" for name in (
    "python_session_fake_test", "python_cookie_test", "python_token_text_test", "python_client_calls_test", "python_client_cancel_test",
    "python_multiplex_test", "python_text_test", "python_cache_test", "python_client_connection_test",
    "python_hints_test SyncHintsTest AsyncHintsTest HelpTest", "python_session_test SyncSessionTest AsyncSessionTest", "python_resume_test", "contract/contract_test", "contract/lost_replies_test",
)]  # fmt: skip
IMAGES = ["client/python_client_images_test"]
TYPESCRIPT = ["client/typescript_test", "client/contract/contract_test", "client/contract/lost_replies_test"]
COMMAND = ["client_test", *(f"cli/{name}" for name in ("cli_hints_test", "keys_cli_test", "sessions_cli_test", "score_test", "text_test", "cli_test"))]
TESTS = {
    "client/python/src/rivulet/core/admin.py": ["client/python_admin_test"],
    "client/python/src/rivulet/draw.py": IMAGES,
    "client/python/src/rivulet/threads/drawing.py": IMAGES,
    "client/python/src/rivulet/aio/drawing.py": IMAGES,
    "client/python/src/rivulet/core/images.py": IMAGES,
    "client/python/src/rivulet/core/connection.py": ["client/python_client_connection_test", "client/python_keys_test", *CLIENT],
    "client/python/src/rivulet/core/requests.py": ["client/python_priority_test", *CLIENT, *IMAGES],
    "client/python/": CLIENT,
    "client/typescript/": TYPESCRIPT,
    "client/cli/options/bench_options.cc": [*COMMAND, "cli/bench_cli_test EndTest"],
    "client/cli/options/": COMMAND,
    "client/cli/input/": COMMAND,
    "client/cli/output/": COMMAND,
    "client/cpp/": ["client_test", "client_e2e_test", "multiplex_e2e_test", "client/contract/contract_test", "client/contract/lost_replies_test"],
    "server/": ENGINE,
}  # fmt: skip


class Language:
    """How a source is read, and how a fault is built in beside what it replaces. chosen: an expression, true for one mutant."""

    def __init__(self, suffix):
        self.python, self.typescript = suffix == ".py", suffix == ".ts"

    def mask(self, text):
        """`text` with \\0 for every character of a string or a comment."""
        if self.python:
            return mask_python(text)
        pattern = r"R\"\((?:.|\n)*?\)\"|\b\d[\d']*|//[^\n]*|/\*(?:.|\n)*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`"
        return re.sub(pattern, lambda found: found[0] if found[0][0].isdigit() else re.sub(r"[^\n]", "\0", found[0]), text)

    def chosen(self, number):
        if self.python:
            return f'__import__("os").environ.get("{VARIABLE}") == "{number}"'
        return f"process.env['{VARIABLE}'] === '{number}'" if self.typescript else f"RivuletMutant({number})"

    def either(self, number, mutant, original):
        """An expression."""
        if self.python:
            return f"(({mutant}) if {self.chosen(number)} else ({original}))"
        return f"({self.chosen(number)} ? ({mutant}) : ({original}))"

    def statement(self, number, indent, mutant, original):
        if self.python:
            return f"{indent}if {self.chosen(number)}: {mutant or 'pass'}\n{indent}else: {original}"
        return f"{indent}{{ if ({self.chosen(number)}) {{ {mutant} }} else {{ {original} }} }}"

    def header(self):
        """What a source with mutants begins with."""
        if self.typescript:
            return "// @ts-nocheck\n"
        return "" if self.python else (
            "#ifndef RIVULET_MUTANTS_OF_A_TREE\n#define RIVULET_MUTANTS_OF_A_TREE\n#include <cstdlib>\n"
            f'inline bool RivuletMutant(int n) {{ const char* chosen = getenv("{VARIABLE}"); return chosen != nullptr && atoi(chosen) == n; }}\n'
            '#endif\n#pragma GCC diagnostic ignored "-Wparentheses"\n'
        )  # fmt: skip


def mask_python(text):
    lines = [list(line) for line in text.splitlines(keepends=True)]
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        depth += (name == "FSTRING_START") - (name == "FSTRING_END")
        if name not in ("STRING", "COMMENT", "FSTRING_END") and depth == 0:
            continue
        (first, begin), (last, end) = token.start, token.end
        for row in range(first, last + 1):
            line = lines[row - 1]
            for column in range(begin if row == first else 0, end if row == last else len(line)):
                if line[column] != "\n":
                    line[column] = "\0"
    return "".join("".join(line) for line in lines)


def balanced(text):
    return all(text.count(opening) == text.count(closing) for opening, closing in ("()", "[]", "{}"))


def condition(language, masked):
    """(begin, end) of the condition of a line that is a whole header of `if` or `while`; None where it is none."""
    if language.python:
        found = re.fullmatch(r"\s+(?:if|elif|while) (.+):", masked)
        return found.span(1) if found and balanced(masked) else None
    found = re.match(r"\s+(?:\} else )?(?:if|while) \(", masked)
    depth = 1
    for at in range(found.end() if found else len(masked), len(masked)):
        depth += (masked[at] == "(") - (masked[at] == ")")
        if depth == 0:
            begin = max(found.end(), masked.rfind("; ", 0, at) + 2)  # of `if (declaration; condition)`
            return begin, at
    return None


def statement(language, masked, before):
    """(begin, end) of a line that is one simple statement and declares nothing; None where it is none. before: the code before it."""
    if language.python:
        pattern = r"\s+(return .+|raise .+|(?:await )?[\w.]+\(.*\)|[\w.\[\]]+ [-+|]?= .+)"
    else:
        pattern = r"\s+(return [^;{}]+;|[\w.:#?!\[\]>-]+\([^;{}]*\);|[\w.:#\[\]>*-]+ (?:\|\||[-+|])?= [^;{}]+;)"
    found = re.fullmatch(pattern, masked)
    if found is None or not balanced(masked) or re.match(r"\s+(?:throw|super|using|case|->|[#?:.])", masked):
        return None
    if not (balanced(before) if language.python else re.search(r"(?:^|[;{}):])\s*$", before)):
        return None  # a part of a longer one
    return found.span(1)


SWAPS = {
    "comparison": {"==": "!=", "!=": "==", "===": "!==", "!==": "===", "<": "<=", "<=": "<", ">": ">=", ">=": ">",
                   "is": "is not", "is not": "is", "in": "not in", "not in": "in"},
    "logic": {"and": "or", "or": "and", "&&": "||", "||": "&&"},
    "arithmetic": {"+": "-", "-": "+", "+=": "-=", "-=": "+="},
}  # fmt: skip


def swaps(rule, line, masked, begin, end):
    """The lines in which one operator between `begin` and `end` is another one."""
    words = sorted(SWAPS[rule], key=len, reverse=True)
    for found in re.finditer(" (" + "|".join(map(re.escape, words)) + ") ", masked[begin:end]):
        if found[1] == "in" and " for " in masked[: begin + found.start()]:
            continue
        at = begin + found.start(1)
        yield line[:at] + SWAPS[rule][found[1]] + line[at + len(found[1]) :]


def inline(language, line, masked):
    """(rule, begin, end, replacement) of constants."""
    if re.match(r"\s*(?:import|from|export|type|enum|case|constexpr|template|static|using|#|@|class|def|async def|namespace|\w+ = )", masked):
        return
    literals = {"True": "False", "False": "True"} if language.python else {"true": "false", "false": "true"}
    for found in re.finditer(r"(?<![\w.'<\[])(?:\d+|[Tt]rue|[Ff]alse)(?![\w.'>])", masked):
        if found[0] in literals and not re.search(r":\s*$|: bool = $", masked[: found.start()]):
            yield "constant", *found.span(), literals[found[0]]
        elif found[0].isdigit() and not re.search(r"\w: [\w. |]+ = $", masked[: found.start()]):
            yield "constant", *found.span(), str(int(found[0]) + 1)


def faults(language, line, masked, before):
    """(rule, the line with the fault) of every fault that a rule makes of a line."""
    for rule, begin, end, replacement in inline(language, line, masked):
        yield rule, line[:begin] + replacement + line[end:]
    at, single = condition(language, masked), statement(language, masked, before)
    for rule in SWAPS:
        for span in filter(None, (at, single)):
            yield from ((rule, fault) for fault in swaps(rule, line, masked, *span))
    if at:
        negated = f"not ({line[slice(*at)]})" if language.python else f"!({line[slice(*at)]})"
        yield "negation", line[: at[0]] + negated + line[at[1] :]
    if single:
        text = line[slice(*single)]
        if not text.startswith(("return", "raise")):
            yield "dropped", line[: single[0]]
        if language.python and text.startswith("return ") and text != "return None":
            yield "returned", line[: single[0]] + "return None"


def with_switch(language, number, line, masked, fault):
    """The line that is `line`, or, where the mutant is chosen, `fault`."""
    for _, begin, end, replacement in inline(language, line, masked):
        if line[:begin] + replacement + line[end:] == fault:
            return line[:begin] + language.either(number, replacement, line[begin:end]) + line[end:]
    if at := condition(language, masked):
        begin, end = at
        return line[:begin] + language.either(number, fault[begin : len(fault) - (len(line) - end)], line[begin:end]) + line[end:]
    begin = len(line) - len(line.lstrip())
    return language.statement(number, line[:begin], fault[begin:], line[begin:])


def sources(pattern):
    generated = tuple(f"rivulet/{name}" for name in GENERATED)
    return [path for path in sorted(ROOT.glob(pattern)) if not path.as_posix().endswith((*generated, "__init__.py", ".d.ts"))]


def candidates(pattern):
    """{rule: [(file, line, original, mutant)]}"""
    found = {}
    for path in sources(pattern):
        language, text = Language(path.suffix), path.read_text(encoding="utf-8")
        before = ""
        for at, (line, masked) in enumerate(zip(text.split("\n"), language.mask(text).split("\n")), 1):
            for rule, fault in faults(language, line, masked, before):
                found.setdefault(rule, []).append((path.relative_to(ROOT).as_posix(), at, line, fault))
            before += masked.replace("\0", " ") + "\n"
    return found


def make():
    """Draws the list: a rule, then one of its faults; at most one in a line."""
    rows, lines = [], set()
    for pattern, wanted in QUOTA.items():
        draw, found, drawn = random.Random(f"{SEED} {pattern}"), candidates(pattern), 0
        while drawn < wanted:
            rule = draw.choice(sorted(found))
            file, line, original, mutant = draw.choice(found[rule])
            if (file, line) in lines:
                continue
            lines.add((file, line))
            drawn += 1
            rows.append({"file": file, "line": line, "rule": rule, "original": original, "mutant": mutant, "first": "", "last": ""})
    for number, row in enumerate(rows, 1):
        row["number"] = number
    write(rows)


def read():
    with open(LIST, encoding="utf-8", newline="") as file:
        return [{**row, "number": int(row["number"]), "line": int(row["line"])} for row in csv.DictReader(file, delimiter="\t")]


def write(rows):
    with open(LIST, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def copy_tree():
    """The tree without what git ignores; files that are the same keep their time."""
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = {name for name in out.splitlines() if (ROOT / name).is_file()}
    for old in [path for path in TREE.rglob("*") if path.is_file() and "build" not in path.relative_to(TREE).parts]:
        if old.relative_to(TREE).as_posix() not in names:
            old.unlink()
    return names


def put(path, content):
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def with_mutants(file, rows):
    """The source with a switch for each of its mutants, which are looked for near the lines where they were."""
    path = ROOT / file
    language, text = Language(path.suffix), path.read_text(encoding="utf-8")
    lines, masks = text.split("\n"), language.mask(text).split("\n")
    for row in rows:
        places = [at for at, line in enumerate(lines) if line == row["original"]]
        at = min(places, key=lambda place: abs(place + 1 - row["line"]))
        lines[at] = with_switch(language, row["number"], lines[at], masks[at], row["mutant"])
    return language.header() + "\n".join(lines)


def is_gone(row):
    """Whether the line of a mutant was rewritten since the list was made."""
    path = ROOT / row["file"]
    return not path.exists() or row["original"] not in path.read_text(encoding="utf-8").split("\n")


def prepare(rows):
    """Builds the tree that holds all mutants."""
    by_file = {}
    for row in rows:
        by_file.setdefault(row["file"], []).append(row)
    for name in sorted(copy_tree()):
        path = ROOT / name
        if name in by_file:
            put(TREE / name, with_mutants(name, by_file[name]).encode())
        else:
            put(TREE / name, path.read_bytes())
            shutil.copymode(path, TREE / name)
    (TREE / "build").mkdir(exist_ok=True)
    for name in ("venv", "node", "typescript"):
        if not (TREE / "build" / name).exists():
            (TREE / "build" / name).symlink_to((ROOT / "build" / name).resolve())
    environment = os.environ | {"CCACHE_BASEDIR": str(TREE), "CCACHE_NOHASHDIR": "1"}
    configure = ["cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DRIVULET_CUDA=OFF", "-DRIVULET_UNITY=ON"]
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD, "-j2", "--target", *TARGETS], check=True, env=environment)


def environment_of(number):
    own = {
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(TREE / "tests/e2e/support"), "RIVULET_SOURCE_DIR": str(TREE),
        "RIVULET_BIN_DIR": str(BUILD / "bin"), "GTEST_FAIL_FAST": "1", "GTEST_BRIEF": "1",
    }  # fmt: skip
    return os.environ | own | ({VARIABLE: str(number)} if number else {})


class Program:
    """A test program. usual: the seconds that it takes without a mutant."""

    def __init__(self, name):
        self.name, self.usual = name, 300

    def command(self):
        name, *classes = self.name.split()
        if "/" not in name:
            return [BUILD / "tests" / name]
        return [TREE / "tests/support/in_venv.sh", TREE / "tests/e2e" / f"{name}.py", "-f", *classes]

    def failure(self, number):
        """The test that fails, "" where all pass."""
        process = subprocess.Popen(
            self.command(), env=environment_of(number), cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            out, _ = process.communicate(timeout=LIMIT + 3 * self.usual)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)  # with the servers that it started
            process.communicate()
            return f"{self.name.split()[0]}: not done after {LIMIT + 3 * self.usual:.0f} s"
        if process.returncode == 0:
            return ""
        text = out.decode(errors="replace")
        found = re.search(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)|^\[  FAILED  \] ([\w./]+)", text, re.M)
        if found is None:
            print(text[-3000:])
        return f"{self.name.split()[0]}: {(found[3] or found[1]) if found else f'exit code {process.returncode}'}"


class TypescriptProgram(Program):
    """The package is packed and compiled once, in this process; every mutant is in it."""

    suite = None

    def failure(self, number):
        os.environ |= environment_of(number)
        if not number:
            os.environ.pop(VARIABLE, None)
        if self.suite is None:
            sys.path[:0] = [str(TREE / "tests/e2e/support"), str(TREE / "tests/e2e/client")]
            import typescript_test

            typescript_test.PATIENCE = 2 * LIMIT  # of a program that a mutant makes hang
            type(self).suite = typescript_test.TypescriptTest
            self.suite.setUpClass()
        for model in ("text", "plain"):  # that a test writes
            shutil.rmtree(self.suite.root / model, ignore_errors=True)
        for name in (
            "test_with_servers_that_fail_and_a_balancer", "test_with_a_server", "test_with_a_tokenizer", "test_lost_replies",
        ):  # fmt: skip
            result = unittest.TestResult()
            self.suite(name).run(result)
            for _, text in result.failures + result.errors:
                found = re.search(r"^not ok \d+ - (.*)$", text, re.M)
                if found is None:
                    print(text[-3000:])
                return f"client/typescript_test: {found[1] if found else name}"
        return ""


def tests_of(file):
    return TESTS[max((prefix for prefix in TESTS if file.startswith(prefix)), key=len)]


def killer(number, programs):
    """The first test that fails, or "survived"."""
    return next(filter(None, (program.failure(number) for program in programs)), "survived")


def run(column, numbers):
    rows = read()
    there = [row for row in rows if not is_gone(row)]
    for row in rows:
        if row not in there:
            row[column] = "line gone"
    chosen = [row for row in there if not numbers or row["number"] in numbers]
    prepare(there)
    programs = {}
    for name in dict.fromkeys(name for row in chosen for name in tests_of(row["file"])):
        program = programs[name] = (TypescriptProgram if name == TYPESCRIPT[0] else Program)(name)
        begin = time.monotonic()
        if failure := program.failure(0):
            raise SystemExit(f"without a mutant: {failure}")
        program.usual = time.monotonic() - begin
        print(f"{name}: {program.usual:.0f} s", flush=True)

    def judge(row):
        # What found it first goes first.
        names = sorted(tests_of(row["file"]), key=lambda name: not row["first"].startswith(f"{name.split()[0]}:"))
        row[column] = killer(row["number"], [programs[name] for name in names])
        print(f"{row['number']} {row['file']}:{row['line']} {row['mutant'].strip()}: {row[column]}", flush=True)

    apart = [row for row in chosen if tests_of(row["file"]) == TYPESCRIPT]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in pool.map(judge, [row for row in chosen if row not in apart]):
            write(rows)
    for row in apart:  # in this process, which has one environment
        judge(row)
        write(rows)
    report(rows)


def report(rows):
    for column in ("first", "last"):
        judged = [row for row in rows if row[column] not in ("", "line gone")]
        print(f"{column}: {sum(row[column] != 'survived' for row in judged)} of {len(judged)} killed")
    lost = [row["number"] for row in rows if row["first"] not in ("", "survived") and row["last"] == "survived"]
    print(f"killed at first and not at last: {lost}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("make", "first", "last", "report"))
    parser.add_argument("numbers", nargs="*", type=int, help="only these mutants")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and with it the tests' programs
    if arguments.action == "make":
        make()
    elif arguments.action == "report":
        report(read())
    else:
        run(arguments.action, set(arguments.numbers))


if __name__ == "__main__":
    main()
