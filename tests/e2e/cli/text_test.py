#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text from a model's directory to the user, through the command: tokenize, detokenize, generate, sessions, score."""

import json
import math
import pathlib
import re
import tempfile
import unittest

import text_models
from command import CommandTest, Server, rivulet, token_lines
from text_models import END, NAME, PIECES, START

ID = {piece: i for i, piece in enumerate(PIECES)}


class TextTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.scratch.name)
        cls.model = text_models.with_tokenizer("rwkv7", cls.root, "text")
        cls.plain = text_models.copy("rwkv7", cls.root, "plain")
        cls.addClassCleanup(cls.scratch.cleanup)

    def tokenize(self, text, *args, model=None):
        (line,) = self.succeeds(rivulet("tokenize", "--model", model or self.model, "--text", text, "--json", *args)).lines()
        return line["ids"], line["offsets"]

    def generate(self, *args, model=None, max_tokens=60):
        """Tokens, text and the end of one sample."""
        result = rivulet("generate", "--model", model or self.model, "--json", "--ignore-eos", "--max-tokens", max_tokens, *args)
        parts = self.succeeds(result).lines()
        tokens = [token for part in parts for token in part.get("tokens", [])]
        return tokens, "".join(part.get("text", "") for part in parts)

    def test_a_text_becomes_tokens_with_offsets(self):
        ids, offsets = self.tokenize("the é and")
        self.assertEqual(ids, [START, ID["the"], ID["Ġ"], ID["Ã©"], ID["Ġand"]])
        self.assertEqual(offsets, [[0, 0], [0, 3], [3, 4], [4, 6], [6, 10]])
        self.assertEqual(self.tokenize("a<end><name>b")[0], [START, ID["a"], END, NAME, ID["b"]])
        self.assertEqual(self.tokenize("and", "--add-special-tokens", "false")[0], [ID["and"]])
        # Only what is no control token is looked for: "<" is in no vocabulary.
        self.fails(rivulet("tokenize", "--model", self.model, "--text", "a<end>", "--parse-special-tokens", "false"), 2, "U+003C at byte 1")
        self.assertEqual(self.tokenize("a<name>", "--parse-special-tokens", "false")[0], [START, ID["a"], NAME])
        plain = self.succeeds(rivulet("tokenize", "--model", self.model, "--file", "-", stdin="and the"))
        self.assertEqual((plain.out, plain.err), (f"{START},{ID['and']},{ID['Ġthe']}\n", "3 tokens, 7 bytes\n"))
        self.fails(rivulet("tokenize", "--model", self.model, "--text", "xyz"), 2, "U+0078 at byte 0")
        self.fails(rivulet("tokenize", "--model", self.model, "--file", "-", stdin=b"a\xff"), 2, "not UTF-8 at byte 1")
        self.fails(rivulet("tokenize", "--model", self.plain, "--text", "a"), 2, 'model "plain" has no tokenizer')

    def test_what_a_training_run_left_in_the_tokenizer_is_ignored_with_a_warning(self):
        model = text_models.with_tokenizer("rwkv7", self.root, "left")
        left = {"truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0}, "padding": {"strategy": "BatchLongest", "pad_id": 2}}
        (model / "tokenizer.json").write_text(json.dumps(text_models.tokenizer_json() | left))
        self.assertEqual(self.tokenize("the é and", model=model), self.tokenize("the é and"))
        with Server(model, self.model) as server:
            warnings = [json.loads(line) for line in server.log if '"level":"warning"' in line]
        self.assertEqual([(line["event"], line["model"], line["settings"]) for line in warnings], [("tokenizer_settings", "left", "truncation, padding")])

    def test_tokens_become_text(self):
        def detokenize(ids, *args):
            return self.succeeds(rivulet("detokenize", "--model", self.model, "--tokens", ",".join(map(str, ids)), *args))

        ids = [START, ID["the"], ID["Ã"], 38, ID["©"], END]
        self.assertEqual(detokenize(ids).out, "<s>theé<end>\n")
        self.assertEqual(detokenize(ids, "--skip-special-tokens", "--bytes").out, "theé")
        self.assertEqual(detokenize([ID["a"], ID["Ã"]]).out, "a\ufffd\n")
        self.fails(rivulet("detokenize", "--model", self.model, "--tokens", "1,39"), 2, "ids[1] is 39", "0 to 38")
        self.fails(rivulet("detokenize", "--model", self.plain, "--tokens", "1"), 2, "has no tokenizer")

    def test_every_kind_streams_text(self):
        drawn = set()
        for kind in text_models.KINDS:
            model = text_models.with_tokenizer(kind, self.root)
            with self.subTest(kind):
                tokens, text = self.generate("--prompt", "the and", "--seed", "1", model=model)
                self.assertEqual(len(tokens), 60)
                self.assertEqual(text, text_models.decode(tokens))
                given = f"{START},{ID['the']},{ID['Ġand']}"
                self.assertEqual(self.generate("--tokens", given, "--seed", "1", model=model), (tokens, text))
                drawn.update(tokens)
        self.assertGreaterEqual(max(drawn), text_models.SIZE, "an id beyond the tokenizer has no text")
        shown = self.succeeds(rivulet("generate", "--model", model, "--prompt", "the", "--seed", "1", "--max-tokens", "20")).out
        self.assertNotRegex(shown, r"^\d+ \d+", "text, not ids")

    def test_a_stop_string_ends_the_text_within_tokens(self):
        whole, text = self.generate("--prompt", "the", "--seed", "5", max_tokens=80)
        checked = 0
        for begin in range(len(text) - 4):
            stop = text[begin : begin + 4]
            if "\ufffd" in stop or text.index(stop) != begin or begin % 11 > 0:
                continue
            checked += 1
            with self.subTest(stop=stop):
                tokens, cut = self.generate("--prompt", "the", "--seed", "5", "--stop", stop, max_tokens=80)
                self.assertEqual(cut, text[:begin])
                self.assertEqual(tokens, whole[: len(tokens)])
                self.assertTrue(text_models.decode(tokens).startswith(cut), "the tokens spell what comes before")
                self.assertLess(len(tokens), len(whole))
        self.assertGreaterEqual(checked, 2)

    def test_a_prompt_without_tokens_and_a_text_without_a_tokenizer_are_errors(self):
        self.fails(rivulet("generate", "--model", self.model, "--prompt", "", "--add-special-tokens", "false"), 2, "prompt is empty")
        self.fails(rivulet("generate", "--model", self.plain), 2, "prompt is empty")
        self.fails(rivulet("generate", "--model", self.plain, "--prompt", "a"), 2, "prompt.text is given", "has no tokenizer", "--tokens")
        self.fails(rivulet("score", "--model", self.plain, "--text", __file__), 2, "--text", "has no tokenizer", "--input")
        self.fails(rivulet("generate", "--model", self.plain, "--tokens", "1", "--stop", "a"), 2, "stop.strings")
        self.fails(rivulet("generate", "--model", self.plain, "--tokens", "1", "--max-tokens", "3", "--min-tokens", "4"), 2, "stop.min_tokens is 4")
        only_start = self.generate("--tokens", START, "--seed", "3", max_tokens=5)
        for flags in (("--prompt", ""), ("--prompt", "", "--add-special-tokens", "true"), ()):
            self.assertEqual(self.generate(*flags, "--seed", "3", max_tokens=5), only_start)
        self.fails(
            rivulet("generate", "--model", self.model, "--tokens", "1", "--add-special-tokens", "true"), 2,
            "add_special_tokens is true, but prompt.text is not given",
        )  # fmt: skip

    def test_count_prints_whole_samples_one_a_line(self):
        given = ("generate", "--model", self.model, "--max-tokens", "9", "--ignore-eos", "--stop", "\n")
        done = self.succeeds(rivulet(*given, "--count", "70", "--seed", "3"))
        for seed, count, lines in ((3, 64, done.out.splitlines()[:64]), (4, 6, done.out.splitlines()[64:])):
            samples = self.succeeds(rivulet(*given, "--num-samples", str(count), "--seed", str(seed))).out
            self.assertEqual(lines, re.sub(r"=== sample \d+ ===\n", "", samples).splitlines())
        self.assertRegex(done.err, r"^70 samples in .* samples/s, .* tokens/s, seed 3\n$")

    def test_only_the_beginning_of_a_session_gets_start_tokens(self):
        with Server(self.model) as server:
            def sessions(action, *args):
                return self.succeeds(rivulet("sessions", action, *args, "--target", server.target)).out.strip()

            def generate(session, *args):
                command = ("generate", "--session", session, "--target", server.target, "--json", "--ignore-eos", "--max-tokens", "8")
                parts = self.succeeds(rivulet(*command, *args)).lines()
                return [token for part in parts for token in part.get("tokens", [])]

            text, ids = sessions("open", "--seed", "9"), sessions("open", "--seed", "9")
            sessions("append", text, "--prompt", "the")
            sessions("append", ids, "--tokens", f"{START},{ID['the']}")
            sessions("append", text, "--prompt", " and")
            sessions("append", ids, "--tokens", ID["Ġand"])
            self.assertEqual(generate(text, "--prompt", "b"), generate(ids, "--tokens", ID["b"]))
            # Asked again from the beginning, the text is what it was there.
            sessions("rewind", text, "--position", "0")
            sessions("rewind", ids, "--position", "0")
            self.assertEqual(generate(text, "--prompt", "the", "--position", "0"), generate(ids, "--tokens", f"{START},{ID['the']}"))
            always = ("--prompt", "b", "--add-special-tokens", "true")
            self.assertEqual(generate(text, *always), generate(ids, "--tokens", f"{START},{ID['b']}"))
            never = ("--prompt", "b", "--add-special-tokens", "false")
            self.assertEqual(generate(text, *never), generate(ids, "--tokens", ID["b"]))

    def test_score_counts_tokens_and_bytes(self):
        file = self.root / "score.txt"
        text = "the and a bed. é\n" * 9
        file.write_text(text)
        ids, offsets = self.tokenize(text)
        window = ("--window", "7")
        whole = self.succeeds(rivulet("score", "--model", self.model, "--text", file, *window))
        (line,) = whole.lines()
        (same,) = self.succeeds(rivulet("score", "--model", self.model, "--input", "-", *window, stdin=token_lines([ids]))).lines()
        self.assertEqual((line["num_scored"], line["nll_nats"]), (len(ids) - 1, same["nll_nats"]))
        nats, bits = (float(re.search(rf"([0-9.]+) {unit}", whole.err).group(1)) for unit in ("nats/token", "bits/byte"))
        self.assertAlmostEqual(nats, line["nll_nats"] / line["num_scored"], delta=2e-6)
        # The first token, which is not scored, stands for no byte.
        self.assertEqual(offsets[0], [0, 0])
        self.assertAlmostEqual(bits, line["nll_nats"] / math.log(2) / len(text.encode()), delta=2e-6)

    def test_the_world_vocabulary_is_a_tokenizer_too(self):
        model = text_models.with_world("rwkv7", self.root, "world")
        self.assertEqual(self.tokenize("ab abcd.", model=model)[0], [1, 2, 27, 300, 4, 28])
        tokens, text = self.generate("--prompt", "a cab.", "--seed", "2", model=model)
        letters = "\0abcdefghijklmnopqrstuvwxyz .\n"
        self.assertEqual(len(tokens), 60)
        own = [token for token in tokens if 0 < token < len(letters)]
        self.assertEqual("".join(c for c in text if c in letters[1:]), "".join(letters[token] for token in own))
        (described,) = self.succeeds(rivulet("models", "--model", model, "--backend", "cpu", "--json")).lines()
        (plain,) = self.succeeds(rivulet("models", "--model", self.plain, "--backend", "cpu", "--json")).lines()
        self.assertEqual(described["eos_token_ids"], [*plain.get("eos_token_ids", []), 0], "token 0 ends a text")
        self.assertNotIn(0, plain.get("eos_token_ids", []))
        # Token 300 is none of the model's.
        self.fails(rivulet("generate", "--model", model, "--prompt", "x abc"), 2, "prompt.text", "at byte 2", "token 300", "0 to 38")

    def test_the_description_has_template_and_special_tokens(self):
        (model,) = self.succeeds(rivulet("models", "--model", self.model, "--backend", "cpu", "--json")).lines()
        self.assertEqual(model["content"], "text")
        self.assertEqual(model["tokenizer"], {"kind": "tokenizer.json", "size": text_models.SIZE})
        self.assertEqual(model["chat_template"], text_models.TEMPLATE)
        self.assertEqual(
            model["special_tokens"],
            [
                {"id": START, "content": "<s>", "roles": ["bos_token"]},
                {"id": END, "content": "<end>", "roles": ["eos_token"]},
                {"id": None, "content": "<unk>", "roles": ["unk_token"]},
            ],
        )

    def test_a_wrong_tokenizer_ends_the_start_and_is_named(self):
        model = text_models.with_tokenizer("gla", self.root, "wrong")
        for change, mentions in (
            ({"model": {"type": "WordPiece"}}, ("tokenizer.json", "model.type", "WordPiece")),
            ({"normalizer": {"type": "Lowercase"}}, ("tokenizer.json", "normalizer.type", "Lowercase")),
            ({"version": "2.0"}, ("tokenizer.json", "version", "2.0")),
        ):
            (model / "tokenizer.json").write_text(json.dumps({**text_models.tokenizer_json(), **change}))
            self.fails(rivulet("generate", "--model", model, "--prompt", "a"), 2, *mentions)
        (model / "tokenizer.json").unlink()
        (model / "rwkv_vocab_v20230424.txt").write_text("1 'a' 1\n2 b'\\xff' 2\n")
        self.fails(rivulet("generate", "--model", model, "--prompt", "a"), 2, "rwkv_vocab_v20230424.txt", "line 2")


if __name__ == "__main__":
    unittest.main()
