#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which tokens a schema allows, compared with llguidance, state by state, on random texts of random schemas. Each difference is of one
of CLASSES. Not compared: formats, and lists and objects as values, which llguidance writes with white space. Strings with a length or a
pattern are given to llguidance as a pattern without characters that JSON escapes. peer_test.py --states N [--seed S] compares more."""

import argparse
import json
import random
import re

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

import random_schemas
from random_schemas import END

SEEDS = argparse.Namespace(states=3000, seed=1)
TOKENS = [b"<end>", *random_schemas.BYTES, *random_schemas.WORDS]
# White space and separators as ours.
OPTIONS = {"whitespace_pattern": r"[ \n\r\t]{0,12}", "item_separator": ",", "key_separator": ":", "coerce_one_of": True}
# The atoms of random_schemas.pattern, without the characters that JSON escapes.
SET = r'[^"\\\x00-\x1f\x7f]'
ATOMS = {
    ".": r'[^"\\\x00-\x1f\x7f\u2028\u2029]', r"\d": "[0-9]", r"\w": "[0-9A-Za-z_]", "[^x]": r'[^x"\\\x00-\x1f\x7f]', r"[\w.-]": "[0-9A-Za-z_.-]",
    r"\s": r"[ \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]", r"[^\"\\]": SET,
}  # fmt: skip
# What differs: who allows it, and the text with the token.
CLASSES = {
    "strings: U+007F, the escapes \\/ and \\u, surrogates in UTF-8": ("ours", rb"\x7f|\\/$|\\u[0-9a-fA-F]*[a-z. ]{0,3}$|\xed[\xa0-\xbf]$"),
    "integers: no -0": ("theirs", rb"(^|[^0-9.eE])-0+$"),
    "numbers with bounds: at most 6 decimals": ("theirs", rb"\.[0-9]{7,}$"),
    "numbers with bounds: zeros at the end": ("ours", rb"(\.[0-9]*0(<end>|[\s,\]}][\s,\]}\"]*)|(^|[^0-9])0\.0*)$"),
    "white space: twice 12 in an empty list of prefixItems": ("ours", rb"\[[ \n\r\t]{13,}$"),
}
# An example of each: a schema, a text, and the text that only one lets follow.
EXAMPLES = [
    ({"type": "string"}, '"\\', "/"),
    ({"type": "integer"}, "", "-0"),
    ({"type": "number", "minimum": 1, "maximum": 2}, "1.500000", "1"),
    ({"type": "number", "minimum": -1.5, "maximum": 0}, "0", "."),
    ({"type": "array", "prefixItems": [{"type": "null"}]}, "[" + 12 * " ", " "),
]


class Vocabulary:
    """For llguidance."""

    eos_token_id, bos_token_id, tokens, special_token_ids = END, None, TOKENS, [END]

    def __call__(self, text):
        return [1 + byte for byte in (text if isinstance(text, bytes) else text.encode())]


def anchored(pattern):
    known = sorted(ATOMS, key=len, reverse=True)
    parts = re.split("(" + "|".join(re.escape(atom) for atom in known) + r"|\\.)", pattern.removeprefix("^").removesuffix("$"))
    return "^(?:" + "".join(ATOMS.get(part, part) for part in parts) + ")$"


def simple(schema):
    """The schema without what is not compared."""
    if isinstance(schema, list):
        return [simple(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "format" in schema:
        return {"type": "string"}
    if isinstance(schema.get("const"), list | dict):
        return {"const": 1}
    if "enum" in schema:
        return {"enum": [0.5, *(value for value in schema["enum"] if not isinstance(value, list | dict))]}
    return {key: simple(value) for key, value in schema.items()}


def of_theirs(schema):
    """The schema that says to llguidance what `schema` says to us."""
    if isinstance(schema, list):
        return [of_theirs(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "minLength" in schema or "maxLength" in schema:
        return {"type": "string", "pattern": f"^{SET}{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}$"}
    if "pattern" in schema:
        return {**schema, "pattern": anchored(schema["pattern"])}
    closed = {"additionalProperties": False} if "properties" in schema else {}
    if "prefixItems" in schema:
        closed = {"items": False}
    return {key: of_theirs(value) for key, value in schema.items()} | closed


class PeerTest(random_schemas.MasksTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = LLTokenizer(TokenizerWrapper(Vocabulary()), slices=[])

    def theirs(self, schema):
        matcher = LLMatcher(self.tokenizer, LLMatcher.grammar_from_json_schema(schema, overrides=OPTIONS))
        self.assertFalse(matcher.is_error(), f"{schema}: {matcher.get_error()}")
        return matcher

    @staticmethod
    def allowed(matcher):
        if matcher.is_stopped():
            return {END}
        mask = matcher.compute_bitmask()
        return {id for id in range(len(TOKENS)) if mask[id // 8] >> id % 8 & 1}

    def compare(self, text, ours, theirs):
        """The classes of the tokens that one alone allows, and the tokens without a class."""
        classes, unexplained = set(), []
        for token in ours ^ theirs:
            who = "ours" if token in ours else "theirs"
            found = [name for name, (allows, pattern) in CLASSES.items() if who == allows and re.search(pattern, text + TOKENS[token])]
            classes.update(found)
            if not found:
                unexplained.append((who, TOKENS[token]))
        return classes, unexplained

    def test_each_class_of_differences_has_an_example(self):
        for (name, (who, _)), (schema, text, token) in zip(CLASSES.items(), EXAMPLES, strict=True):
            with self.subTest(name):
                written, token = [1 + byte for byte in text.encode()], TOKENS.index(token.encode())
                self.ours(json.dumps(schema))
                ours, matcher = self.ours(written), self.theirs(of_theirs(schema))
                self.assertTrue(matcher.consume_tokens(written))
                theirs = self.allowed(matcher)
                self.assertEqual((token in ours, token in theirs), (who == "ours", who == "theirs"))
                self.assertEqual(self.compare(text.encode(), {token} & ours, {token} & theirs), ({name}, []))

    def test_the_same_tokens_may_follow(self):
        draw = random.Random(SEEDS.seed)
        states, seen = 0, set()
        while states < SEEDS.states:
            schema = simple(random_schemas.document(draw))
            ours, matcher, text = self.ours(json.dumps(schema)), self.theirs(of_theirs(schema)), b""
            for _ in range(60):
                forced = matcher.compute_ff_bytes()
                theirs = self.allowed(matcher)
                if forced:  # then llguidance allows only the token that its tokenizer gives
                    theirs |= {id for id, token in enumerate(TOKENS) if id != END and forced.startswith(token)}
                    ours = {id for id in ours if not TOKENS[id].startswith(forced)} | (ours & theirs)
                states += 1
                classes, unexplained = self.compare(text, ours, theirs)
                seen |= classes
                self.assertEqual(unexplained, [], f"{json.dumps(schema)}\n{text!r}")
                both = sorted((ours & theirs) - {END})
                if not both:
                    break
                token = draw.choice(both)
                text += TOKENS[token]
                ours = self.ours([token])
                matcher.consume_token(token)
        print(f"{states} states; classes of differences: {sorted(seen)}")


if __name__ == "__main__":
    random_schemas.main(SEEDS, __doc__)
