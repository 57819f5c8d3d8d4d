# SPDX-License-Identifier: Apache-2.0
"""Random JSON schemas of the keywords in docs/constraints.md, and what the tests that draw them have in common."""

import argparse
import json
import os
import pathlib
import re
import string
import subprocess
import sys
import tempfile
import unittest

BYTES = [bytes([byte]) for byte in range(256)]
WORDS = [word.encode() for word in ('{"', '":', '", "', '":"', "true", "false", "null", '"}', "]}", '",', "é\"", "the ", "19", "00", "a.b", "-0", "\n  ")]


BIN_DIR = pathlib.Path(os.environ["RIVULET_BIN_DIR"])
END = 0  # ends a text


def world_vocabulary(words=WORDS):
    """The file of an RWKV World vocabulary that has BYTES, then words, from id 1 on."""
    return "".join(f"{id} {token!r} {len(token)}\n" for id, token in enumerate(BYTES + words, 1))


@unittest.skipUnless((BIN_DIR / "rivulet-grammar").exists(), "rivulet-grammar was not built: deploy/setup.sh --constraints")
class MasksTest(unittest.TestCase):
    """A test with a text, of which it knows what may follow."""

    WORDS = WORDS

    @classmethod
    def setUpClass(cls):
        cls.tokens = [b"<end>", *BYTES, *cls.WORDS]
        file = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())) / "vocabulary.txt"
        file.write_text(world_vocabulary(cls.WORDS))
        cls.printer = cls.enterClassContext(subprocess.Popen([BIN_DIR / "print_masks", file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        cls.addClassCleanup(cls.printer.stdin.close)

    def ours(self, said):
        """Begins a text of a schema or of a structural tag, or adds tokens to it. Returns what may follow."""
        self.printer.stdin.write(json.dumps(said) + "\n")
        self.printer.stdin.flush()
        line = self.printer.stdout.readline().strip()
        self.assertFalse(line.startswith("error"), f"{said}: {line}")
        if not re.fullmatch("[0-9a-f]+", line):
            return {END} if line == "end" else set()
        words = [int(line[i : i + 8], 16) for i in range(0, len(line), 8)]
        return {id for id in range(len(self.tokens)) if words[id // 32] >> id % 32 & 1}


def main(options, description):
    """Runs the tests of the program. options: integers, which the command line may set."""
    parser = argparse.ArgumentParser(description=description)
    for name, value in vars(options).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    _, rest = parser.parse_known_args(namespace=options)
    unittest.main(argv=[sys.argv[0], *rest])


FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid")


def _name(random):
    if random.random() < 0.1:
        return random.choice(("title", "description", "default", "examples"))
    return "".join(random.choices(string.ascii_letters + " é/~\"", k=random.randint(1, 6)))


def _counts(random, least, most, high):
    found = {}
    low = random.randint(0, high)
    if random.random() < 0.5:
        found[least] = low
    if random.random() < 0.7:
        found[most] = random.randint(low, high)
    return found


def pattern(random, depth=2):
    """A regular expression."""
    kind = random.randrange(8 if depth else 4)
    if kind == 0:
        return random.choice(string.ascii_letters)
    if kind == 1:
        return random.choice((".", r"\d", r"\w", r"[a-f]", r"[^x]", r"[\w.-]", r"\.", r"\s", "é", r"[^\"\\]"))
    if kind < 4:
        return random.choice(string.ascii_lowercase) + random.choice(("+", "*", "?", "{2}", "{1,3}"))
    if kind == 4:
        return f"({pattern(random, depth - 1)}|{pattern(random, depth - 1)})"
    if kind == 5:
        return f"(?:{pattern(random, depth - 1)}){random.choice(('?', '{0,2}', '{2}', '+?'))}"
    return pattern(random, depth - 1) + pattern(random, depth - 1)


def _value(random):
    return random.choice((None, True, random.randint(-99, 99), round(random.random(), 3), _name(random), [1, "a"], {"k": None}))


def _string(random):
    kind = random.randrange(4)
    if kind == 0:
        return {"type": "string", **_counts(random, "minLength", "maxLength", random.choice((12, 12, 12, 200)))}
    if kind == 1:
        return {"type": "string", "pattern": random.choice(("", "^")) + pattern(random) + random.choice(("", "$"))}
    return {"type": "string", "format": random.choice(FORMATS)} if kind == 2 else {"type": "string"}


def _number(random):
    kind = random.choice(("integer", "number"))
    low = random.randint(-1000, 1000)
    high = low + random.randint(2, 1000)
    bounds = {}
    if random.random() < 0.5:
        bounds[random.choice(("minimum", "exclusiveMinimum"))] = low if kind == "integer" else low + random.choice((0, 0.5))
    if random.random() < 0.5:
        bounds[random.choice(("maximum", "exclusiveMaximum"))] = high
    return {"type": kind, **bounds}


def _object(random, depth, names):
    if random.random() < 0.2:
        extra = {} if random.random() < 0.5 else {"additionalProperties": schema(random, depth - 1, names)}
        return {"type": "object", **extra, **_counts(random, "minProperties", "maxProperties", 1)}
    properties = {_name(random): schema(random, depth - 1, names) for _ in range(random.randint(1, 4))}
    required = random.sample(list(properties), random.randint(0, len(properties)))
    more = {} if random.random() < 0.5 else {"additionalProperties": random.random() < 0.5}
    return {"type": "object", "properties": properties, "required": required, **more}


def _array(random, depth, names):
    if random.random() < 0.2:
        first = [schema(random, depth - 1, names) for _ in range(random.randint(1, 3))]
        count = {} if random.random() < 0.5 else {"minItems": random.randint(0, len(first)), "maxItems": len(first)}
        return {"type": "array", "prefixItems": first, **count}
    items = {} if random.random() < 0.1 else {"items": schema(random, depth - 1, names)}
    return {"type": "array", **items, **_counts(random, "minItems", "maxItems", 3)}


def schema(random, depth, names=()):
    """A schema; names: of definitions that it may refer to."""
    kind = random.randrange(13 if depth > 0 else 7)
    if kind < 2:
        return _string(random)
    if kind == 2:
        return _number(random)
    if kind == 3:
        return {"type": random.choice(("boolean", "null", ["integer", "null"], ["string", "boolean"]))}
    if kind == 4:
        return {"enum": [_value(random) for _ in range(random.randint(1, 4))], "description": "some"}
    if kind == 5:
        return {"const": _value(random)}
    if kind == 6:
        return {"$ref": f"#/$defs/{random.choice(names)}"} if names else {"type": "null", "title": "nothing"}
    if kind == 7:
        return {"anyOf": [schema(random, depth - 1, names) for _ in range(random.randint(1, 3))]}
    if kind == 8:
        told = [{"type": "object", "properties": {"k": {"const": key}, "v": schema(random, depth - 1, names)}, "required": ["k"]} for key in "ab"]
        return {"oneOf": told}
    return _array(random, depth, names) if kind == 9 else _object(random, depth, names)


def document(random):
    """A schema with definitions, one of which refers to itself."""
    names = ["leaf", "tree"]
    definitions = {"leaf": schema(random, 0), "tree": {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}}}}
    return {**schema(random, 3, names), "$defs": definitions}
