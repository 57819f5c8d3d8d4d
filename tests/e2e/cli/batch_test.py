# SPDX-License-Identifier: Apache-2.0
"""`rivulet batch`: a result for every line, whatever stops the command or its server in between."""

import json
import math
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest
import unittest.mock

import text_models
from command import BIN_DIR, CONFORMANCE, ZOO, CommandTest, Server, rivulet, token_lines

RFA = CONFORMANCE / "tiny-rfa"  # tokens, bos 0, no limit
IMAGE = CONFORMANCE / "tiny-image"
SHAKESPEARE = ZOO / "shakespeare-rfa"


def lines_of(*values):
    return "".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values)


def many(count, max_tokens):
    return lines_of(*({"prompt": [i % 37], "max_tokens": max_tokens} for i in range(count)))


class BatchTest(CommandTest):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.into, self.out = self.folder / "in.jsonl", self.folder / "out.jsonl"

    def args(self, target, *args):
        return ("batch", self.into, self.out, *target, *args)

    def batch(self, target, *args):
        return rivulet(*self.args(target, *args))

    def results(self, path=None):
        return [json.loads(line) for line in (path or self.out).read_text().splitlines()]

    def record(self):
        return json.loads(pathlib.Path(f"{self.out}.batch").read_text())

    def start(self, target, *args):
        """The command in the background, once it has written something."""
        process = subprocess.Popen([BIN_DIR / "rivulet", *map(str, self.args(target, *args))], stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not (self.out.exists() and self.out.stat().st_size):
            self.assertIsNone(process.poll(), "it has ended before it wrote anything")
            time.sleep(0.002)
        return process


class BatchFormsTest(BatchTest):
    def test_every_line_has_its_result_in_its_form_and_in_its_place(self):
        body = {"prompt": "ROMEO:", "max_tokens": 12, "temperature": 0.5, "seed": 5}
        self.into.write_text(
            lines_of(
                {"custom_id": "short", **body},
                {"custom_id": "long", "method": "POST", "url": "/v1/completions", "body": {"model": "shakespeare-rfa", **body, "n": 2}},
                {"score": "To be, or not to be", "logprobs": True},
                '{"custom_id": "broken", ',
                {"custom_id": "short", "prompt": "again"},
                {"custom_id": "bad", "prompt": "ROMEO:", "temperature": -1},
                {"custom_id": "worse", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "top_p": "all"}},
                {"custom_id": "elsewhere", "prompt": "a", "model": "absent"},
                {"custom_id": "talk", "messages": [{"role": "user", "content": "Good morrow"}]},
                {"prompt": "JULIET:", "max_tokens": 3, "return_token_ids": True, "logprobs": True, "stop": "zz"},
            ).rstrip("\n")  # the last line need not end with one
        )
        target = ("--model", SHAKESPEARE)
        done = self.succeeds(self.batch(target))
        self.assertRegex(done.err, r"^4 results, 6 errors \(CUSTOM_ID_REPEATED 1, .*\), [\d.]+ s, .* tokens/s\n$")
        found = self.results()
        self.assertEqual([result["line"] for result in found], list(range(1, 11)))
        short, long, score, broken, again, bad, worse, elsewhere, talk, last = found
        alone = rivulet("generate", *target, "--prompt", "ROMEO:", "--max-tokens", 12, "--temperature", 0.5, "--seed", 5)
        self.assertEqual(short["text"].rstrip("\n"), alone.out.rstrip("\n"))
        self.assertEqual({key: short[key] for key in short if key != "text"}, {
            "line": 1, "custom_id": "short", "finish": "length", "seed": 5, "usage": {"prompt_tokens": 6, "completion_tokens": 12},
        })
        self.assertEqual((long["id"], long["custom_id"], long["error"]), ("batch_req_2", "long", None))
        reply = long["response"]["body"]
        self.assertEqual((long["response"]["status_code"], reply["object"], reply["model"]), (200, "text_completion", "shakespeare-rfa"))
        self.assertEqual([choice["text"] == short["text"] for choice in reply["choices"]], [True, False])
        self.assertEqual(reply["usage"], {"prompt_tokens": 6, "completion_tokens": 24, "total_tokens": 30, "completion_tokens_details": {"reasoning_tokens": 0}})
        (alone,) = rivulet("score", *target, "--input", "-", stdin='{"text":"To be, or not to be"}\n').lines()
        self.assertEqual(score["num_scored"], alone["num_scored"])
        self.assertAlmostEqual(score["nll_nats"], alone["nll_nats"], delta=1e-9)
        self.assertAlmostEqual(score["perplexity"], math.exp(score["nll_nats"] / score["num_scored"]), delta=1e-9)
        self.assertAlmostEqual(-sum(score["logprobs"]), score["nll_nats"], delta=1e-3)
        self.assertEqual((broken["error"]["reason"], "custom_id" in broken), ("INVALID_JSON", False))
        self.assertEqual((again["error"]["reason"], again["error"]["field"]), ("CUSTOM_ID_REPEATED", "custom_id"))
        self.assertIn("line 1", again["error"]["message"])
        self.assertEqual((bad["error"]["reason"], bad["error"]["field"]), ("INVALID_SAMPLING", "temperature"))
        problem = worse["response"]
        self.assertEqual((problem["status_code"], problem["body"]["error"]["param"]), (400, "top_p"))
        self.assertIn('"all"', problem["body"]["error"]["message"])
        self.assertEqual((elsewhere["error"]["code"], elsewhere["error"]["reason"]), ("NOT_FOUND", "MODEL_NOT_FOUND"))
        self.assertEqual((talk["error"]["reason"], talk["error"]["field"]), ("NO_CHAT_TEMPLATE", "messages"))
        self.assertIn("--chat-template FILE", talk["error"]["message"])
        self.assertEqual((len(last["tokens"]), len(last["logprobs"])), (3, 3))
        self.assertEqual(last["seed"], self.record()["seed"] and int(self.record()["seed"]) + 10)
        # A second run has nothing left to do.
        again = self.succeeds(self.batch(target))
        self.assertIn("0 results, 0 errors, 10 lines were done before", again.err)
        self.assertEqual(self.results(), found)
        self.out.unlink()
        pathlib.Path(f"{self.out}.batch").unlink()
        self.fails(self.batch(target, "--fail-on-error"), 2, "4 results, 6 errors")

    def test_other_numbers_do_not_continue_a_batch(self):
        self.into.write_text(lines_of({"prompt": [1], "max_tokens": 2}))
        self.succeeds(self.batch(("--model", RFA)))
        self.fails(self.batch(("--model", RFA, "--weights", "bf16")), 2, "was begun with numerics ")

    def test_defaults_of_lines_come_from_the_command_line(self):
        self.into.write_text(lines_of({"prompt": [1]}, {"prompt": [1], "max_tokens": 2}))
        self.succeeds(self.batch(("--model", RFA), "--max-tokens", 5, "--temperature", 0, "--seed", 7))
        first, second = self.results()
        self.assertEqual((len(first["tokens"]), len(second["tokens"])), (5, 2))
        self.assertEqual(first["tokens"][:2], second["tokens"])  # without a temperature they would differ
        self.assertEqual((first["seed"], second["seed"]), (8, 9))


class BatchChatTest(BatchTest):
    TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}<end>{% endfor %}"

    def test_messages_are_rendered_by_the_models_template(self):
        folder = text_models.with_tokenizer("mamba2", self.folder, "chatty")
        config = {"bos_token": "<s>", "eos_token": "<end>", "chat_template": self.TEMPLATE + "{% if not messages[0].content %}{{ raise_exception('empty') }}{% endif %}"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        common = {"max_tokens": 9, "seed": 3}
        self.into.write_text(
            lines_of(
                {"messages": [{"role": "user", "content": "the band"}], **common},
                {"prompt": "<s>the band<end>", "add_special_tokens": False, "stop": "<end>", **common},
                {"custom_id": "o", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "the band"}], **common}},
                {"messages": [{"role": "user", "content": ""}], **common},
            )
        )
        self.succeeds(self.batch(("--model", folder)))
        chat, plain, openai, refused = self.results()
        self.assertEqual(chat["text"], plain["text"])
        message = openai["response"]["body"]["choices"][0]["message"]
        self.assertEqual((message["role"], message["content"]), ("assistant", plain["text"]))
        self.assertEqual((refused["error"]["reason"], refused["error"]["field"]), ("CHAT_TEMPLATE_REFUSED", "messages"))
        self.assertIn("empty", refused["error"]["message"])

    def test_a_template_that_is_too_hard_is_an_error_of_its_lines(self):
        folder = text_models.with_tokenizer("mamba2", self.folder, "hard")
        config = {"chat_template": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        message = {"messages": [{"role": "user", "content": "the band"}]}
        self.into.write_text(
            lines_of(message, {"prompt": "the band", "max_tokens": 9, "seed": 3}, {"custom_id": "o", "method": "POST", "url": "/v1/chat/completions", "body": message})
        )
        with unittest.mock.patch.dict(os.environ, RIVULET_PYTHON="/bin/false"):
            # Lines would get their errors for good; so the batch waits for somebody to install what is missing.
            self.fails(self.batch(("--model", folder)), 2, "tried: /bin/false (exit code 1)", "python3-jinja2")
            self.assertEqual(self.results(), [])
        self.succeeds(self.batch(("--model", folder)))
        hard, plain, openai = self.results()
        self.assertEqual((hard["error"]["code"], hard["error"]["reason"], hard["error"]["field"]), ("INVALID_ARGUMENT", "CHAT_TEMPLATE_TOO_HARD", "messages"))
        self.assertIn("chat template of hard: ", hard["error"]["message"])
        self.assertEqual(len(plain["text"]) > 0, True)
        self.assertEqual((openai["response"]["status_code"], openai["response"]["body"]["error"]["code"]), (400, "CHAT_TEMPLATE_TOO_HARD"))

    def test_a_template_from_a_file_is_part_of_the_batch(self):
        file, other = self.folder / "template.jinja", self.folder / "other.jinja"
        file.write_text("{% for message in messages %}{{ message.content }}{% endfor %}:")
        other.write_text("{{ messages[0].content }}")
        common = {"max_tokens": 9, "seed": 3}
        self.into.write_text(lines_of({"messages": [{"role": "user", "content": "ROMEO"}], **common}, {"prompt": "ROMEO:", **common}))
        self.succeeds(self.batch(("--model", SHAKESPEARE), "--chat-template", file))
        chat, plain = self.results()
        self.assertEqual(chat["text"], plain["text"])
        self.fails(self.batch(("--model", SHAKESPEARE), "--chat-template", other), 2, "was begun with --chat-template ")
        self.out.unlink()
        pathlib.Path(f"{self.out}.batch").unlink()
        self.succeeds(self.batch(("--model", SHAKESPEARE)))
        without, _ = self.results()
        self.assertEqual((without["error"]["reason"], without["error"]["field"]), ("NO_CHAT_TEMPLATE", "messages"))
        self.assertIn("--chat-template FILE", without["error"]["message"])
        other.write_text("{% if %}")
        self.fails(self.batch(("--model", SHAKESPEARE), "--chat-template", other), 2, f"--chat-template {other}")


class BatchServerTest(BatchTest):
    @classmethod
    def setUpClass(cls):
        arguments = ("--slots", "2", "--max-queue", "1", "--threads", "1", "--max-message-mib", "1")
        cls.server = cls.enterClassContext(Server(RFA, IMAGE, args=arguments))
        cls.target = ("--target", cls.server.target, "--model-name", "tiny-rfa")

    def test_a_killed_batch_continues_as_if_it_had_not_been(self):
        for order in ((), ("--unordered",)):
            with self.subTest(order=order):
                self.into.write_text(many(120, 300))
                process = self.start(self.target, *order)
                process.kill()
                process.wait()
                whole = self.out.read_bytes().count(b"\n")
                self.assertLess(whole, 120)
                with self.out.open("ab") as file:
                    file.write(b'{"line":119,"tokens":[1,')  # cut off by the kill
                done = self.succeeds(self.batch(self.target, *order))
                self.assertRegex(done.err, rf"^{120 - whole} results, 0 errors, {whole} lines were done before, ")
                found = self.out.read_text().splitlines()
                seed = int(self.record()["seed"])
                first = json.loads(found[0])
                self.assertEqual(first["seed"], seed + first["line"])
                self.out = self.folder / f"undisturbed{len(order)}.jsonl"
                self.succeeds(self.batch(self.target, "--seed", seed))
                undisturbed = self.out.read_text().splitlines()
                self.assertEqual(sorted(found) if order else found, sorted(undisturbed) if order else undisturbed)
                self.assertEqual(len(set(undisturbed)), 120)
                self.out = self.folder / "out2.jsonl"

    def test_an_interrupted_batch_keeps_what_is_computed_and_continues(self):
        short, endless = {"prompt": [1], "max_tokens": 3}, {"prompt": [2], "max_tokens": 1_000_000}
        self.into.write_text(lines_of(short, "", endless, " \t\r", *[short] * 30))
        process = self.start(self.target, "--at-once", "3", "--progress", "1")
        for shown in process.stderr:
            if b", 30 behind an earlier line, " in shown:
                break
        self.assertRegex(shown.decode(), "^1/32 lines ")  # those that are safe
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), 3)
        said = f"rivulet: interrupted; 31 of 32 results are in {self.out}; the same command continues\n"
        self.assertIn(said, process.stderr.read().decode())
        self.assertEqual([result["line"] for result in self.results()], [1, *range(5, 35)])
        # What such a file becomes, with a line that ends.
        self.out = self.folder / "out2.jsonl"
        self.into.write_text(lines_of(short, "", short, " \t\r", *[short] * 30))
        self.succeeds(self.batch(self.target))
        undisturbed = self.out.read_text()
        first, second, *later = undisturbed.splitlines(keepends=True)
        self.out.write_text(first + "".join(later))
        done = self.succeeds(self.batch(self.target))
        self.assertRegex(done.err, r"^1 results, 0 errors, 31 lines were done before, ")
        self.assertEqual(self.out.read_text(), undisturbed)

    def test_what_is_of_another_batch_is_refused(self):
        self.into.write_text(many(3, 2))
        self.succeeds(self.batch(self.target, "--temperature", "0.5"))
        before = self.out.read_text()
        self.fails(self.batch(self.target), 2, "was begun with --temperature 0.5, and this command has no --temperature")
        self.fails(self.batch(self.target, "--temperature", "0.5", "--unordered"), 2, "no --unordered")
        self.fails(self.batch(("--target", self.server.target, "--model-name", "tiny-image"), "--temperature", "0.5"), 2, "model tiny-rfa")
        self.into.write_text(many(4, 2))
        self.fails(self.batch(self.target, "--temperature", "0.5"), 2, "for an input with SHA-256")
        self.into.write_text(many(3, 2))
        of_another = before.replace('{"line":2,', '{"line":2,"custom_id":"x",')
        for changed, error in (
            (before + '{"line":2,"tokens":[]}\n', f"{self.out}: line 4 is not what this command writes"),
            (before[:-9] + "GARBAGE\n", f"{self.out}: line 3 is not what this command writes"),
            ('{"line":1}\n', f"{self.out}: line 1 is not what this command writes"),
            (of_another, f"{self.out}: the result of line 2 has not the custom_id of that line, which has none"),
        ):
            self.out.write_text(changed)
            self.fails(self.batch(self.target, "--temperature", "0.5"), 2, error)
        pathlib.Path(f"{self.out}.batch").unlink()
        self.fails(self.batch(self.target, "--temperature", "0.5"), 2, "is not the output of a batch")
        self.fails(rivulet("batch", "-", self.out, *self.target), 2, "IN and OUT must be files")
        self.fails(rivulet("batch", "/dev/null", self.out, *self.target), 2, "is no regular file")

    def test_two_processes_do_not_write_one_file(self):
        self.into.write_text(many(300, 400))
        process = self.start(self.target)
        self.fails(self.batch(self.target), 2, "another process writes this file")
        self.assertIsNone(process.poll(), "it ended before the other one began")

    def test_what_is_refused_for_now_is_sent_again(self):
        self.into.write_text(many(40, 5))  # far more at once than slots and queue hold
        self.succeeds(self.batch(self.target, "--at-once", "40"))
        self.assertTrue(all(result["finish"] == "length" for result in self.results()))
        load = rivulet("load", "--target", self.server.target, "--json").lines()[-1]["server"]
        self.assertGreater(sum(load["refusals"].values()), 0, load)

    def test_a_line_that_is_too_large_harms_no_other(self):
        large = {"score": [1] * 1_100_000}
        text = {"custom_id": "text", "prompt": "a" * 1_100_000}
        self.into.write_text(lines_of({"prompt": [1], "max_tokens": 500}, large, {"prompt": large["score"]}, text, {"score": [1, 2]}))
        self.succeeds(self.batch(self.target))
        first, second, third, fourth, last = self.results()
        self.assertEqual(fourth["custom_id"], "text")
        self.assertEqual((len(first["tokens"]), last["num_scored"]), (500, 2))
        for result in (second, third, fourth):
            self.assertEqual(result["error"]["reason"], "MESSAGE_TOO_LARGE")
            self.assertRegex(result["error"]["message"], r" of 1100\d\d\d bytes .* 1048576 ")
        refused = rivulet("score", *self.target, "--input", "-", stdin=token_lines([large["score"]]))
        self.fails(refused, 2, "-:1: a ScoreRequest of 1100", "1048576")

    def test_lines_may_name_their_models(self):
        self.into.write_text(lines_of({"prompt": [1], "max_tokens": 2, "model": "tiny-rfa"}, {"score": [1, 2], "model": "tiny-image"}, {"prompt": [1]}))
        self.succeeds(self.batch(("--target", self.server.target)))
        generated, scored, nameless = self.results()
        self.assertEqual((len(generated["tokens"]), scored["num_scored"]), (2, 1))
        self.assertEqual(nameless["error"]["reason"], "MODEL_NAME_MISSING")

    def test_progress_is_told_where_nobody_looks(self):
        self.into.write_text(many(200, 100) + "{\n")
        told = self.succeeds(self.batch(self.target, "--progress", "0.05")).err.splitlines()
        self.assertRegex(told[-2], r"^[\d.]+/201 lines  [\d.k]+/s  \d+:\d\d left, [01] errors, \d+ in flight, \d+ to repeat, \d+ behind an earlier line, [\d.]+k? tokens/s$")
        self.assertRegex(told[-1], r"^200 results, 1 errors \(INVALID_JSON 1\), ")
        self.out = self.folder / "silent.jsonl"
        self.assertEqual(self.succeeds(self.batch(self.target, "--progress", "0")).err.count("\n"), 1)


class BatchRestartTest(BatchTest):
    def test_a_batch_outlives_its_server(self):
        self.into.write_text(many(120, 300))
        with Server(RFA, args=("--threads", "1")) as first:
            target = ("--target", first.target)
            self.succeeds(self.batch(target, "--seed", "1"))
            expected, self.out = self.out.read_text(), self.folder / "lost.jsonl"
            process = self.start(target, "--seed", "1", "--at-once", "8", "--give-up-after", "2")
            first.process.send_signal(signal.SIGKILL)
        _, told = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, told)
        self.assertRegex(told.decode(), r"^rivulet: no line has succeeded for 2 s .*; the same command continues from here")
        self.assertLess(self.out.read_text().count("\n"), 120)

        def server():
            return subprocess.Popen(
                [BIN_DIR / "rivulet-server", "--model", RFA, "--listen", first.target, "--threads", "1"], stderr=subprocess.DEVNULL
            )

        again = server()
        self.addCleanup(lambda: (again.kill(), again.wait()))
        while rivulet("health", *target).code != 0:
            time.sleep(0.02)
        left = self.out.stat().st_size
        command = [BIN_DIR / "rivulet", *map(str, self.args(target, "--seed", "1", "--at-once", "8"))]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            while self.out.stat().st_size == left:
                time.sleep(0.002)
            again.kill()  # and, this time, comes back
            again.wait()
            self.assertIsNone(process.poll(), "it ended before the server did")
            again = server()
            _, told = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, told)
        self.assertEqual(self.out.read_text(), expected)


if __name__ == "__main__":
    unittest.main()
