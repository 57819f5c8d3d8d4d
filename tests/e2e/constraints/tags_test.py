#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random texts of structural tags that are shaped as tool calls: each text ends, and is calls whose arguments satisfy their schemas, by
Python's jsonschema. tags_test.py --texts N [--seed S] draws more."""

import argparse
import json
import random
import re

import jsonschema

import random_schemas
from random_schemas import END

SEEDS = argparse.Namespace(texts=12, seed=1)
TRIGGER = "<tool_call>"
PARAMETERS = {
    "type": "object", "required": ["text", "count", "point"], "additionalProperties": False,
    "properties": {
        "text": {"type": "string"}, "unit": {"enum": ["kg", "a b", "<"]}, "count": {"type": "integer", "minimum": 3, "maximum": 40},
        "exact": {"enum": [0.1, None]}, "flag": {"type": "boolean"}, "point": {"$ref": "#/$defs/point"}, "list": {"type": "array", "items": {"type": "null"}},
        "name": {"type": "string", "pattern": "^[a-c]+$"}, "short": {"type": "string", "maxLength": 2}, "maybe": {"type": ["integer", "null"]},
    },
    "$defs": {"point": {"type": "object", "required": ["s"], "properties": {"x": {"type": "number"}, "s": {"type": "string", "minLength": 150}}}},
}  # fmt: skip
RAW = ("text", "unit", "name", "short")  # in XML a string is its text, and another value JSON
SCHEMAS = {"f": PARAMETERS, "g": {"type": "object"}}
CALL = re.compile(r'<tool_call>\n\{"name": "(\w)", "arguments": (.*?)\}\n</tool_call>', re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>]+)>\n(.*?)\n</parameter>\n?", re.DOTALL)
XML_BEGIN = re.compile(r"<tool_call>\n<function=(\w)>\n")
XML_END = "</function>\n</tool_call>"


def call(name):
    content = {"type": "json_schema", "json_schema": SCHEMAS[name]}
    return {"begin": f'{TRIGGER}\n{{"name": "{name}", "arguments": ', "content": content, "end": "}\n</tool_call>"}


def xml_call(name):
    content = {"type": "json_schema", "json_schema": SCHEMAS[name], "style": "qwen_xml"}
    return {"type": "tag", "begin": f"{TRIGGER}\n<function={name}>\n", "content": content, "end": XML_END}


def xml_calls(text):
    """The names and arguments of calls, and what is behind them."""
    calls, at = [], 0
    while begin := XML_BEGIN.match(text, at):
        at, arguments = begin.end(), {}
        while parameter := PARAMETER.match(text, at):
            at, (name, value) = parameter.end(), parameter.groups()
            arguments[name] = value if begin[1] == "g" or name in RAW else json.loads(value)
        calls.append((begin[1], arguments))
        if not text.startswith(XML_END, at):
            break
        at += len(XML_END)
    return calls, text[at:]


class TagsTest(random_schemas.MasksTest):
    # Tokens that end one part of a text and begin another one.
    WORDS = [b"<tool_call>", b"</tool_call>", b"<tool", b"_call>\n", b"}\n</", b"\n</parameter>\n<", b"\n</parameter>", b"</function>\n", b"tool_call><", b"</think>\n"]

    def texts(self, format):
        draw = random.Random(SEEDS.seed)
        ends = {1 + byte for byte in b'"}]\n</p0>'} | set(range(257, 257 + len(self.WORDS)))
        for _ in range(SEEDS.texts):
            text, allowed = b"", self.ours({"type": "structural_tag", "format": format})
            # The end, and tokens that may end a part, are drawn more often the longer the text is.
            while allowed != {END} and not (END in allowed and draw.random() < len(text) / 1500):
                good = sorted(allowed - {END})
                self.assertTrue(good and len(text) < 20000, f"{len(text)} bytes, {len(good)} tokens may follow: {text[-500:]}")
                some = sorted(ends.intersection(good))
                token = draw.choice(some if some and draw.random() < min(0.8, max(0.2, len(text) / 1000)) else good)
                text += self.tokens[token]
                allowed = self.ours([token])
            yield text.decode(errors="surrogateescape")

    def check(self, calls):
        for name, arguments in calls:
            jsonschema.Draft202012Validator(SCHEMAS[name]).validate(arguments)
        self.assertEqual({name for name, _ in calls}, {"f", "g"})

    def test_required_calls_have_their_arguments_and_nothing_else(self):
        calls = []
        for text in self.texts({"type": "tags_with_separator", "tags": [call("f"), call("g")], "separator": "\n", "at_least_one": True}):
            found = [(name, json.loads(arguments)) for name, arguments in CALL.findall(text)]
            self.assertEqual(CALL.sub("", text), "\n" * (len(found) - 1), text)
            calls += found
        self.check(calls)

    def test_free_text_has_no_trigger_without_a_call(self):
        calls, free = [], ""
        for text in self.texts({"type": "triggered_tags", "triggers": [TRIGGER], "tags": [call("f"), call("g")]}):
            calls += [(name, json.loads(arguments)) for name, arguments in CALL.findall(text)]
            free += CALL.sub("|", text)
        self.assertNotIn(TRIGGER, free)
        self.assertGreater(len(free.strip("|")), SEEDS.texts)
        self.check(calls)

    def test_parameters_in_xml(self):
        thoughts = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>\n"}
        either = {"type": "or", "elements": [xml_call("f"), xml_call("g")]}
        calls, thought = [], set()
        for text in self.texts({"type": "sequence", "elements": [{"type": "optional", "content": thoughts}, {"type": "plus", "content": either}]}):
            thought.add(text.startswith("<think>"))
            found, rest = xml_calls(text.split("</think>\n", 1)[1] if text.startswith("<think>") else text)
            self.assertEqual(rest, "", text)
            self.assertTrue(found)
            calls += found
        self.assertEqual(thought, {True, False})
        self.check(calls)


if __name__ == "__main__":
    random_schemas.main(SEEDS, __doc__)
