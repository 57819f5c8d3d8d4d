# SPDX-License-Identifier: Apache-2.0
"""`rivulet chat`: with a model in its process, and with a server, which counts what it is given."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import tempfile
import time
import unittest
import unittest.mock
import urllib.request

import text_models
from command import BIN_DIR, ZOO, CommandTest, Server, rivulet

TEXT = "shakespeare-rfa"
TURNS = "{% for m in messages %}{{ {'user': 'ROMEO', 'assistant': 'JULIET', 'system': 'CHORUS'}[m.role] }}:\n{{ m.content }}\n\n{% endfor %}{{ 'JULIET:\\n' }}"
QUESTIONS = ("Where art thou?", "O speak again!")


def prompt(*said, system=None):
    """What TURNS makes of questions and answers in turn. A character is a token."""
    names = ("ROMEO", "JULIET")
    turns = [("CHORUS", system)] if system else []
    turns += [(names[index % 2], text) for index, text in enumerate(said)]
    return "".join(f"{name}:\n{text}\n\n" for name, text in turns) + "JULIET:\n"


class ChatTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        args = ("--threads", "1", "--backend", "cpu", "--metrics-listen", "127.0.0.1:0")
        cls.server = cls.enterClassContext(Server(ZOO / TEXT, args=args))
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.form = cls.folder / "turns.jinja"
        cls.form.write_text(TURNS)

    def command(self, *args):
        return ["chat", "--target", self.server.target, "--chat-template", self.form, "--max-tokens", "30", "--seed", "5", *args]

    def chat(self, *lines, args=()):
        return self.succeeds(rivulet(*self.command(*args), stdin="".join(line + "\n" for line in lines)))

    def answer(self, given, seed=5):
        """That of the model alone, without a session, as `rivulet chat` ends it."""
        args = ("--max-tokens", "30", "--seed", str(seed), "--stop", "\n\nROMEO:", "--json")
        parts = self.succeeds(rivulet("generate", "--target", self.server.target, "--prompt", given, *args)).lines()
        return "".join(part.get("text", "") for part in parts)

    def fed(self):
        """Tokens that the server has been given and has computed since it started."""
        with urllib.request.urlopen(f"http://{self.server.metrics}/metrics") as answer:
            return int(re.search(rb"^rivulet_prompt_tokens_total\{[^}]*\} (\d+)", answer.read(), re.M)[1])

    def shown(self, *answers):
        """What stdout has of answers: each begins with its first letter."""
        return "".join(text.lstrip() + "\n" for text in answers)

    def test_each_turn_feeds_what_is_new(self):
        first = self.answer(prompt(QUESTIONS[0]))
        second = self.answer(prompt(QUESTIONS[0], first, QUESTIONS[1]))
        before = self.fed()
        result = self.chat(*QUESTIONS, args=("--stats",))
        self.assertEqual(result.out, self.shown(first, second))
        whole = [len(prompt(QUESTIONS[0])), len(prompt(QUESTIONS[0], first, QUESTIONS[1]))]
        # The session holds the first prompt and its answer; a stop string that begins within the tokens is not in the template's text.
        new = [whole[0], len(prompt(QUESTIONS[0], first, QUESTIONS[1])) - len(prompt(QUESTIONS[0])) - len(first)]
        given = [(int(one), int(all)) for one, all in re.findall(r"(\d+) of (\d+) prompt tokens were new,", result.err)]
        self.assertEqual(given, list(zip(new, whole)), result)
        self.assertEqual(self.fed() - before, sum(new) + 1)  # and the last token of the first answer, which was drawn last
        self.assertRegex(result.err, rf"\n2 answers of \d+ tokens, {sum(new)} of {sum(whole)} prompt tokens were new to the session, seed 5\n$")
        self.assertEqual(self.succeeds(rivulet("sessions", "list", "--target", self.server.target, "--json")).out, "", "closed at the end")

    def test_undo_seed_system_and_reset_change_what_follows(self):
        ask, again = QUESTIONS
        first, other = self.answer(prompt(ask)), self.answer(prompt(ask), seed=9)
        self.assertNotEqual(first, other)
        lines = (ask, "/undo", ask, "/undo", "/seed 9", ask, "/system Be brief.", again, "/reset", ask, "/system", "/reset", "/seed 5", ask)
        ruled = self.answer(prompt(ask, other, again, system="Be brief."), seed=9)
        alone = self.answer(prompt(ask, system="Be brief."), seed=9)
        self.assertEqual(self.chat(*lines).out, self.shown(first, first, other, ruled, alone, first))

    def test_a_fork_goes_on_by_itself(self):
        ask, again = QUESTIONS
        first = self.answer(prompt(ask))
        mine, theirs = (self.answer(prompt(ask, first, again), seed) for seed in (5, 6))
        result = self.chat(ask, "/fork", again, "/switch 1", again, args=("--stats",))
        self.assertEqual(result.out, self.shown(first, theirs, mine))
        self.assertIn("conversation 2, a copy of 1, seed 6; /switch 1 goes back", result.err)
        new = [int(one) for one in re.findall(r"(\d+) of \d+ prompt tokens were new,", result.err)]
        self.assertEqual(new[1], new[2])
        self.assertEqual(new[1], len(prompt(ask, first, again)) - len(prompt(ask)) - len(first))

    def test_a_saved_conversation_is_loaded(self):
        ask, again = QUESTIONS
        first = self.answer(prompt(ask, system="Be brief."))
        path = self.folder / "chat.json"
        self.chat("/system Be brief.", ask, f"/save {path}")
        saved = json.loads(path.read_text())
        roles = [(message["role"], message["content"]) for message in saved["messages"]]
        self.assertEqual(roles, [("system", "Be brief."), ("user", ask), ("assistant", first)])
        loaded = self.chat("/seed 8", f"/load {path}", again)
        self.assertEqual(loaded.out, self.shown(self.answer(prompt(ask, first, again, system="Be brief."))))
        for change, mention in (
            ({"seed": -1}, "seed must be"), ({"version": 2}, "version must be 1"), ({"format": "x"}, "is not a file of /save"),
            ({"messages": saved["messages"][:2]}, "messages must end with an answer"), ({"messages": 3}, "messages must be an array"),
            ({"messages": [{"role": "user"}]}, "messages[0] must have"),
            ({"messages": [saved["messages"][2]]}, 'messages[0].role must be "user"; got "assistant"'),
        ):  # fmt: skip
            bad = self.folder / "bad.json"
            bad.write_text(json.dumps({**saved, **change}))
            self.fails(rivulet(*self.command(), stdin=f"/load {bad}\n"), 2, str(bad), mention)
        self.fails(rivulet(*self.command(), stdin=f"/load {self.folder}/absent\n"), 2, "/load", "absent")
        self.fails(rivulet(*self.command(), stdin=f"/save {self.folder}\n"), 2, str(self.folder))

    def test_what_is_wrong_names_the_command(self):
        for line, mention in (
            ("/frob", 'unknown command "/frob"'), ("/undo", "/undo: there is no answer"), ("/switch 2", '/switch must be 1 to 1; got "2"'),
            ("/seed -1", '/seed must be an integer from 0 to 2^64-1; got "-1"'), ("/save", "/save needs a file"), ("/load", "/load needs a file"),
        ):  # fmt: skip
            self.fails(rivulet(*self.command(), stdin=f"{line}\n"), 2, mention)
        self.fails(rivulet(*self.command(), stdin=b"\xff\n"), 2, "not valid UTF-8")
        self.fails(rivulet(*self.command(), stdin="\u0416\n"), 2, "characters of the model's alphabet")
        self.form.with_name("bad.jinja").write_text("{{ raise_exception('never') }}")
        bad = ("--chat-template", self.folder / "bad.jinja")
        self.fails(rivulet("chat", "--target", self.server.target, *bad, stdin="a\n"), 2, "bad.jinja: never")
        (self.folder / "bad.jinja").write_text("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
        self.fails(rivulet("chat", "--target", self.server.target, *bad, stdin="a\n"), 2, "bad.jinja: ", "takes too much (more than 1 s)")
        with unittest.mock.patch.dict(os.environ, RIVULET_PYTHON="/bin/false"):
            self.fails(rivulet(*self.command(), stdin="a\n"), 2, "jinja2", "tried: /bin/false (exit code 1)", "python3-jinja2", "rivulet-server[chat]")
        self.form.with_name("empty.jinja").write_text("\n")
        self.fails(rivulet("chat", "--target", self.server.target, "--chat-template", self.folder / "empty.jinja"), 2, "empty.jinja is empty")
        absent = ("--chat-template", self.folder / "absent.jinja")
        self.fails(rivulet("chat", "--target", self.server.target, *absent), 2, "--chat-template", "absent.jinja")
        self.fails(rivulet("chat", "--target", self.server.target), 2, "NO_CHAT_TEMPLATE", TEXT, "--chat-template FILE")
        self.fails(rivulet("chat", "--model", ZOO / "mnist-linear"), 2, "mnist-linear", "has no tokenizer")

    def test_the_worker_uses_modules_of_the_user_and_none_of_the_environment(self):
        (self.folder / "jinja2.py").write_text("raise SystemExit(3)")
        with unittest.mock.patch.dict(os.environ, PYTHONPATH=str(self.folder)):
            self.chat(QUESTIONS[0])
        # Stands in for an interpreter that has jinja2 only where its user has installed it.
        python = self.folder / "python"
        python.write_text('#!/bin/sh\n[ "$1" != -I ] && [ "$1" != -s ] && exec python3 "$@"\n')
        python.chmod(0o700)
        with unittest.mock.patch.dict(os.environ, RIVULET_PYTHON=str(python)):
            self.chat(QUESTIONS[0])

    def test_lines_that_go_on_and_questions_that_begin_with_a_slash(self):
        result = rivulet(*self.command("--show-prompt"), stdin="a\\\nb\n/reset\n//c\n")
        self.assertIn("ROMEO:\na\nb\n\nJULIET:\n", result.err)
        self.assertIn("ROMEO:\n/c\n\nJULIET:\n", result.err)
        self.assertEqual(result.code, 2, "the model has no slash")

    def test_a_lost_session_is_opened_again(self):
        ask, again = QUESTIONS
        process = subprocess.Popen([BIN_DIR / "rivulet", *map(str, self.command())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)  # fmt: skip
        first = self.answer(prompt(ask))
        second = self.answer(prompt(ask, first, again))
        process.stdin.write(ask + "\n")
        process.stdin.flush()
        for _ in self.shown(first).splitlines():
            process.stdout.readline()
        (session,) = self.succeeds(rivulet("sessions", "list", "--target", self.server.target, "--json")).lines()
        self.succeeds(rivulet("sessions", "close", session["session_id"], "--target", self.server.target))
        out, err = process.communicate(again + "\n", timeout=120)
        self.assertEqual((process.returncode, out), (0, self.shown(second)), err)
        self.assertIn("the server had lost the session", err)


class LocalTest(CommandTest):
    """Models that come with a template, in the process of the command."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def test_the_models_own_template(self):
        model = text_models.with_tokenizer("mamba2", self.folder)
        result = self.succeeds(rivulet("chat", "--model", model, "--max-tokens", "5", "--seed", "1", "--show-prompt", stdin="the band\n"))
        self.assertTrue(result.err.startswith("the band<end>\n"), result)
        given = ("--prompt", "the band<end>", "--add-special-tokens", "false", "--max-tokens", "5", "--seed", "1")
        self.assertEqual(result.out.strip(), self.succeeds(rivulet("generate", "--model", model, *given)).out.strip())

    def test_world_has_a_built_in_one_that_is_named(self):
        model = text_models.with_world("rwkv7", self.folder, "world")
        result = rivulet("chat", "--model", model, "--show-prompt", stdin="abc\n")
        self.assertIn('the model "world" has no chat template; using the built-in one, rwkv-world\n', result.err)
        self.assertIn("User: abc\n\nAssistant:\n", result.err)
        (described,) = self.succeeds(rivulet("models", "--model", model, "--backend", "cpu", "--json")).lines()
        self.assertEqual(described["chat_template_name"], "rwkv-world")


class TerminalTest(CommandTest):
    """With a terminal, an error and Ctrl-C end neither the chat nor what was said."""

    def test_an_answer_can_be_stopped(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        form = folder / "turns.jinja"
        form.write_text(TURNS)
        here, there = pty.openpty()
        self.addCleanup(os.close, here)
        command = [BIN_DIR / "rivulet", "chat", "--model", ZOO / TEXT, "--backend", "cpu", "--threads", "1", "--chat-template", form,
                   "--max-tokens", "1000000", "--seed", "5"]  # fmt: skip
        process = subprocess.Popen(command, stdin=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        os.close(there)
        said = b""
        for expected in (b"> ", b"> > ", b"> > \n> "):
            while not said.endswith(expected):
                said += process.stderr.read(1)
            if expected == b"> ":
                os.write(here, b"a question that is not asked\\\n")
            elif expected == b"> > ":
                process.send_signal(signal.SIGINT)
        os.write(here, b"/frob\n")
        for number, question in enumerate(QUESTIONS):
            os.write(here, question.encode() + b"\n")
            shown = process.stdout.read(1).decode()
            process.send_signal(signal.SIGINT)
            while not process.stderr.readline().endswith(b"stopped\n"):
                self.assertIsNone(process.poll())
            os.write(here, f"/save {folder / str(number)}\n".encode())
            answers = self.answers(folder / str(number))
            self.assertEqual(len(answers), number + 1)
            shown += process.stdout.read(len(answers[-1].lstrip())).decode()
            self.assertEqual(shown, answers[-1].lstrip() + "\n")
        os.write(here, b"/exit\n")
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        self.assertRegex(err.decode(), r"2 answers of \d+ tokens, ")

    def answers(self, path):
        """Of a saved conversation, once it is there."""
        while not path.exists():
            time.sleep(0.01)
        return [message["content"] for message in json.loads(path.read_text())["messages"] if message["role"] == "assistant"]


class ZooTest(CommandTest):
    """The bundled chat model, with its own tokenizer and chat template."""

    QUESTIONS = (
        "What news, my lord?", "Where is the king?", "I pray you, tell me what you think of love.", "Who comes here?", "Good morrow, cousin.",
        "Is he dead?", "What shall we do tonight?", "Give me your hand.", "Why do you weep?", "Farewell, my friend.",
    )  # fmt: skip

    def test_nine_of_ten_answers_end_with_the_end_token(self):
        most = 300
        args = ("--system", "You are JULIET.", "--temperature", "0.8", "--seed", "1", "--max-tokens", most, "--stats")
        chat = self.succeeds(rivulet("chat", "--model", ZOO / "shakespeare-chat", *args, stdin="".join(f"{line}\n" for line in self.QUESTIONS)))
        sizes = [int(size) for size in re.findall(r"(\d+) tokens in", chat.err)]
        self.assertEqual(len(sizes), len(self.QUESTIONS), chat)
        self.assertGreaterEqual(sum(1 < size < most for size in sizes), 9, sizes)
        self.assertNotRegex(chat.out, "<\\|im_|<think>", chat)


if __name__ == "__main__":
    unittest.main()
