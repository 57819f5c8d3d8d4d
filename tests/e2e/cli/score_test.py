# SPDX-License-Identifier: Apache-2.0
"""`rivulet score`: order, windows, outputs, numbers, and the line that a bad input is named by."""

import json
import math
import os
import pathlib
import pty
import re
import select
import subprocess
import tempfile
import unittest

from command import BIN_DIR, CONFORMANCE, ZOO, CommandTest, rivulet, token_lines

RFA = CONFORMANCE / "tiny-rfa"  # tokens, bos 0, no limit
CONCAT = CONFORMANCE / "tiny-elu-learned-concat"  # tokens, no bos, 48 positions
IMAGE = CONFORMANCE / "tiny-image"  # 4 x 11 gray, no bos
SHAKESPEARE = ZOO / "shakespeare-rfa"


class ScoreTest(CommandTest):
    def score(self, model, sequences, *args):
        result = self.succeeds(
            rivulet("score", "--model", model, "--input", "-", *args, stdin=token_lines(sequences))
        )
        return result.lines()

    def test_results_come_in_the_order_of_the_lines(self):
        # Lines of very different length, more than are ever in flight.
        sequences = [[i % 37] * (1 + (i * 37) % 200) for i in range(150)]
        lines = self.score(RFA, sequences)
        self.assertEqual([line["num_scored"] for line in lines], [len(s) for s in sequences])
        for index in (0, 17, 149):
            self.assertEqual(lines[index], self.score(RFA, [sequences[index]])[0])

    def test_empty_sequences_score_nothing(self):
        nothing = {"nll_nats": 0, "num_scored": 0}
        self.assertEqual(self.score(RFA, [[]]), [nothing])
        self.assertEqual(self.score(CONCAT, [[], [5]]), [nothing, nothing])
        self.assertEqual(self.score(RFA, [[5]])[0]["num_scored"], 1)

    def test_outputs_are_raw_and_in_the_order_asked_for(self):
        (line,) = self.score(RFA, [[3, 1, 4, 1, 5]], "--outputs", "4,0,4")
        self.assertEqual([len(row) for row in line["outputs"]], [37] * 3)
        self.assertEqual(line["outputs"][0], line["outputs"][2])
        (first,) = self.score(RFA, [[3]], "--outputs", "0")
        self.assertEqual(line["outputs"][1], first["outputs"][0])

    def test_windows_are_scored_as_if_alone(self):
        tokens = [(7 * i) % 37 for i in range(23)]
        # With a bos window i is tokens iN to (i+1)N-1; without, neighbours share a token.
        for model, pieces in (
            (RFA, [tokens[i : i + 5] for i in range(0, 23, 5)]),
            (CONCAT, [tokens[i : i + 6] for i in range(0, 22, 5)]),
        ):
            with self.subTest(model.name):
                (whole,) = self.score(model, [tokens], "--window", "5", "--outputs", "0,5,21")
                parts = self.score(model, pieces)
                self.assertEqual(whole["num_scored"], sum(part["num_scored"] for part in parts))
                self.assertAlmostEqual(
                    whole["nll_nats"], sum(part["nll_nats"] for part in parts), delta=1e-9
                )
                # Positions count over the whole line: 5 is the first scored token of the second window.
                (second,) = self.score(model, [pieces[1]], "--outputs", "0")
                self.assertEqual(whole["outputs"][1], second["outputs"][0])
                (once,) = self.score(model, [tokens])
                self.assertNotAlmostEqual(whole["nll_nats"], once["nll_nats"], delta=1e-3)

    def test_a_window_lifts_the_limit_on_positions(self):
        long = [1] * 200
        result = rivulet("score", "--model", CONCAT, "--input", "-", stdin=token_lines([long]))
        self.fails(result, 2, "-:1", "--window N scores it in windows of N tokens")
        (line,) = self.score(CONCAT, [long], "--window", "48")
        self.assertEqual(line["num_scored"], 199)

    def test_numbers_read_back_unchanged(self):
        result = rivulet(
            "score", "--model", RFA, "--input", "-", "--outputs", "0,1", stdin=token_lines([[1, 2]])
        )
        text = result.out.strip()
        again = json.dumps(json.loads(text), separators=(",", ":"))
        self.assertEqual(json.loads(text), json.loads(again))
        # Shortest forms: no number carries digits that it does not need as a float32.
        for number in text.split('"outputs":[[')[1].split("]")[0].split(","):
            self.assertLessEqual(len(number.lstrip("-").split("e")[0].replace(".", "").lstrip("0")), 9, number)

    def test_a_bad_line_is_named_after_the_good_ones_are_printed(self):
        good = '{"tokens":[1,2]}\n'
        for bad, mention in (
            ("{", "JSON"),  # score_line_test.cc has all that a line may not be
            ('{"tokens":[1,37]}', "tokens[1]"),
            ('{"tokens":[1,-1]}', "tokens[1]"),
            ('{"text":"no text model"}', "text"),
        ):
            with self.subTest(bad=bad), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "lines.jsonl"
                path.write_text(good * 3 + bad + "\n" + good)
                result = rivulet("score", "--model", RFA, "--input", path)
                self.fails(result, 2, f"{path}:4: ", mention, out=None)
                self.assertEqual([line["num_scored"] for line in result.lines()], [2, 2, 2])

    def test_ids_come_back_with_perplexities(self):
        lines = '{"id":"a","tokens":[1,2]}\n{"tokens":[3],"id":7}\n{"tokens":[]}\n'
        result = self.succeeds(rivulet("score", "--model", RFA, "--input", "-", stdin=lines))
        first, second, nothing = result.lines()
        self.assertEqual((first["id"], second["id"], set(nothing)), ("a", 7, {"nll_nats", "num_scored"}))
        self.assertAlmostEqual(first["perplexity"], math.exp(first["nll_nats"] / 2), delta=1e-9)
        mean = (first["nll_nats"] + second["nll_nats"]) / 3
        self.assertAlmostEqual(float(re.search(r"nats/token, perplexity ([\d.]+)", result.err)[1]), math.exp(mean), delta=1e-3)

    def test_wrong_lines_do_not_end_a_run_that_keeps_going(self):
        lines = '{"id":1,"tokens":[1]}\n{"id":2,"tokens":[37]}\n{"id":3,"tokens":"x"}\n{"id":4,"text":"a"}\n{"id":5,"tokens":[1]}\n'
        result = rivulet("score", "--model", RFA, "--input", "-", "--keep-going", stdin=lines)
        self.fails(result, 2, "2 items, 2 tokens, ", "; 3 lines failed, the first: -:2: ", out=None)
        found = result.lines()
        self.assertEqual([line["id"] for line in found], [1, 2, 3, 4, 5])
        self.assertEqual(found[0]["nll_nats"], found[4]["nll_nats"])
        self.assertEqual([line["error"].get("reason") for line in found[1:4]], ["TOKEN_OUT_OF_RANGE", None, "TEXT_NOT_SUPPORTED"])
        self.assertIn("-:3: tokens: a string", found[2]["error"]["message"])
        self.fails(rivulet("score", "--model", SHAKESPEARE, "--text", "x", "--keep-going"), 2, "--input")

    def test_a_line_is_answered_before_the_next_one_is_written(self):
        process = subprocess.Popen(
            [BIN_DIR / "rivulet", "score", "--model", RFA, "--input", "-"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        try:
            for length in (1, 3, 2):
                process.stdin.write(token_lines([[1] * length]).encode())
                process.stdin.flush()
                self.assertTrue(select.select([process.stdout], [], [], 60)[0], "no answer within 60 s")
                self.assertEqual(json.loads(process.stdout.readline())["num_scored"], length)
            # So is one that fails, here only at the server.
            process.stdin.write(token_lines([[37]]).encode())
            process.stdin.flush()
            self.assertEqual(process.wait(timeout=60), 2)
            self.assertIn(b"-:4: ", process.stderr.read())
        finally:
            process.kill()
            process.communicate()

    def test_an_output_position_past_the_end_is_bad_input(self):
        result = rivulet(
            "score", "--model", RFA, "--input", "-", "--outputs", "2", stdin=token_lines([[1, 2, 3], [1, 2]])
        )
        self.fails(result, 2, "-:2", "output_positions[0]", out=None)
        self.assertEqual(len(result.lines()), 1)

    def test_an_input_that_cannot_be_read_is_exit_code_2(self):
        self.fails(rivulet("score", "--model", RFA, "--input", "/nonexistent"), 2, "/nonexistent")
        self.fails(rivulet("score", "--model", RFA, "--input", CONFORMANCE), 2, str(CONFORMANCE))
        self.fails(rivulet("score", "--model", RFA, "--idx", "/nonexistent"), 2, "--idx")
        self.fails(rivulet("score", "--model", RFA, "--text", "/nonexistent"), 2, "--text")

    def test_images_and_texts_have_their_own_inputs(self):
        with tempfile.TemporaryDirectory() as folder:
            idx = pathlib.Path(folder) / "images.idx"
            values = [bytes((i * j) % 256 for j in range(44)) for i in range(3)]
            idx.write_bytes(b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 4, 11)) + b"".join(values))
            result = self.succeeds(rivulet("score", "--model", IMAGE, "--idx", idx, "--limit", "2"))
            self.assertEqual(result.lines(), self.score(IMAGE, [list(v) for v in values[:2]]))
            self.assertIn("bits/dim", result.err)
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("First Citizen: " * 10)
            tail = self.succeeds(rivulet("score", "--model", SHAKESPEARE, "--text", text, "--tail", "0.1"))
            line = self.succeeds(
                rivulet("score", "--model", SHAKESPEARE, "--input", "-", stdin='{"text":"First Citizen: "}\n')
            )
            self.assertEqual(tail.out, line.out)
            self.assertIn("nats/token", tail.err)
            text.write_text("naïve")
            self.fails(rivulet("score", "--model", SHAKESPEARE, "--text", text), 2, str(text), "U+00EF")

    def test_a_long_text_is_scored_as_one_line_whatever_is_sent_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("".join("KING HENRY:\nSo %s we.\n" % ("a" * (i % 7)) for i in range(450)))
            self.assertGreater(len(text.read_text()), 8192)
            score = ["score", "--model", SHAKESPEARE, "--window", "500"]
            (pieces,) = self.succeeds(rivulet(*score, "--text", text)).lines()
            line = json.dumps({"text": text.read_text()}) + "\n"
            (whole,) = self.succeeds(rivulet(*score, "--input", "-", stdin=line)).lines()
            self.assertEqual(pieces["num_scored"], whole["num_scored"])
            self.assertAlmostEqual(pieces["nll_nats"], whole["nll_nats"], delta=1e-6)
            # Log-probabilities are those of all pieces.
            (pieces,) = self.succeeds(rivulet(*score, "--text", text, "--logprobs")).lines()
            (whole,) = self.succeeds(rivulet(*score, "--input", "-", "--logprobs", stdin=line)).lines()
            self.assertEqual(pieces["logprobs"], whole["logprobs"])

    def test_a_terminal_shows_the_tokens_that_are_scored(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("First Citizen: " * 200)
            terminal, end = pty.openpty()
            command = [BIN_DIR / "rivulet", "score", "--model", SHAKESPEARE, "--text", text, "--window", "100"]
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=end, env={**os.environ, "TERM": "xterm"}, timeout=120, check=True)
            shown = os.read(terminal, 1 << 16).decode()
            os.close(end)
            os.close(terminal)
        self.assertRegex(shown, r"/3k tokens  [\d.k]+/s  \d+:\d\d left")

    def test_logprobs_have_the_form_of_a_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            lines, out = pathlib.Path(folder, "in.jsonl"), pathlib.Path(folder, "out.jsonl")
            lines.write_text(json.dumps({"score": [3, 1, 4], "logprobs": True}) + "\n")
            self.succeeds(rivulet("batch", lines, out, "--model", RFA))
            of_batch = json.loads(out.read_text())
            del of_batch["line"]
        (line, nothing) = self.score(RFA, [[3, 1, 4], []], "--logprobs")
        self.assertEqual(list(line), ["nll_nats", "num_scored", "perplexity", "logprobs"])
        self.assertEqual(line, of_batch)
        self.assertAlmostEqual(-sum(line["logprobs"]), line["nll_nats"], delta=1e-5)
        self.assertNotIn("logprobs", nothing)

    def test_a_limit_scores_the_first_tokens_of_a_text(self):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text.txt"
            text.write_text("First Citizen: " * 10)
            score = ("score", "--model", SHAKESPEARE, "--window", "7")
            limited = self.succeeds(rivulet(*score, "--text", text, "--limit", "15"))
            line = json.dumps({"text": "First Citizen: F"}) + "\n"  # without a bos the first token is not scored
            self.assertEqual(limited.out, self.succeeds(rivulet(*score, "--input", "-", stdin=line)).out)
            self.assertEqual(limited.lines()[0]["num_scored"], 15)
            self.fails(rivulet(*score, "--text", text, "--limit", "151"), 2, f"--limit: 151; {text} holds 149 tokens to score")
            self.fails(rivulet(*score, "--input", "-", "--limit", "1"), 2, "--input", "--limit")


if __name__ == "__main__":
    unittest.main()
