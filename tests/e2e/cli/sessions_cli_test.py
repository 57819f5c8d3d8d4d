# SPDX-License-Identifier: Apache-2.0
"""`rivulet sessions` and `rivulet generate --session`, against a real server."""

import os
import pathlib
import re
import tempfile
import unittest

from command import CONFORMANCE, CommandTest, Server, rivulet

RFA, IMAGE = CONFORMANCE / "tiny-rfa", CONFORMANCE / "tiny-image"
MODEL = ["--model-name", "tiny-rfa"]
NOBODY = "127.0.0.1:1"
ABSENT = "0123456789abcdef" * 2


class SessionsTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(RFA, IMAGE, args=["--threads", "1", "--backend", "cpu"])
        cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__)
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def run_sessions(self, action, *args, model=MODEL):
        return rivulet("sessions", action, *args, "--target", self.server.target, *model)

    def sessions(self, action, *args, model=MODEL):
        return self.succeeds(self.run_sessions(action, *args, model=model))

    def open(self, *args):
        return self.sessions("open", *args).out.strip()

    def run_generate(self, session, *args):
        return rivulet("generate", "--session", session, "--target", self.server.target, *MODEL, *args)

    def generate(self, session, *args):
        """Tokens of a reply on a session, and where the session is after it."""
        parts = self.succeeds(self.run_generate(session, "--json", *args)).lines()
        # The last part may hold the usage alone.
        return [token for part in parts for token in part["tokens"]], [p["session"] for p in parts if "session" in p][-1]

    def whole(self, *args):
        result = self.succeeds(rivulet("generate", "--model", RFA, "--tokens", "5,6", *args))
        return [int(token) for token in result.out.split()]

    def test_a_session_goes_on_where_it_is(self):
        opened = self.sessions("open", "--seed", "9")
        session = opened.out.strip()
        self.assertRegex(opened.out, r"^[0-9a-f]{32}\n$")
        self.assertEqual(opened.err, "")
        self.assertEqual(self.sessions("append", session, "--tokens", "5,6").out, "2\n")
        first, at = self.generate(session, "--max-tokens", "4")
        self.assertEqual(at["position"], 6)
        self.assertRegex(at["sequence_hash"], r"^[0-9a-f]{16}$")
        second, at = self.generate(session, "--max-tokens", "3")
        self.assertEqual(at["position"], 9)
        self.assertEqual(first + second, self.whole("--seed", "9", "--max-tokens", "7"))
        again, at = self.generate(session, "--max-tokens", "3", "--position", "6")
        self.assertEqual((again, at["position"]), (second, 9), "what followed is drawn again")
        plain = self.succeeds(self.run_generate(session, "--max-tokens", "2", "--tokens", "1"))
        self.assertIn("position 12", plain.err)

    def test_a_session_continues_only_if_it_holds_what_is_expected(self):
        session = self.open()
        (line,) = self.sessions("append", session, "--tokens", "5,6", "--json").lines()
        self.generate(session, "--max-tokens", "2", "--sequence-hash", line["sequence_hash"])
        for refused in (
            self.run_generate(session, "--sequence-hash", line["sequence_hash"]),
            self.run_sessions("append", session, "--tokens", "5", "--sequence-hash", line["sequence_hash"]),
            self.run_sessions("fork", session, "--sequence-hash", line["sequence_hash"]),
        ):
            self.fails(refused, 2, "session.sequence_hash")

    def test_with_a_store_the_durability_is_told(self):
        store = ["--session-store", f"dir:{self.folder}/store"]
        with Server(RFA, args=["--threads", "1", "--backend", "cpu", *store]) as server:
            to = ["--target", server.target]
            session = self.succeeds(rivulet("sessions", "open", *to)).out.strip()
            appended = self.succeeds(rivulet("sessions", "append", session, "--tokens", "5,6", "--json", *to))
            self.assertEqual(appended.err, self.summary(appended.lines()[0]["durability"], 2) + "\n")
            reply = self.succeeds(rivulet("generate", "--session", session, "--max-tokens", "3", "--json", *to))
            (durability,) = [part["durability"] for part in reply.lines() if "durability" in part]
            self.assertIn("position 5, " + self.summary(durability, 5), reply.err)

    def summary(self, durability, end):
        """What the summary says. A slow disk decides whether a request is durable."""
        self.assertTrue(durability["position"] == end if durability["durable"] else durability["position"] <= end)
        return "durable" if durability["durable"] else f"not durable after position {durability['position']}"

    def test_an_append_may_tell_how_likely_it_was(self):
        session = self.open()
        self.sessions("append", session, "--tokens", "1,2")
        result = self.sessions("append", session, "--tokens", "3,4,5", "--score", "--json")
        (line,) = result.lines()
        self.assertEqual((line["position"], line["num_scored"]), (5, 3))
        self.assertGreater(line["nll_nats"], 0)
        self.assertRegex(result.err, r"^[0-9.]+ nats over 3 tokens\n$")
        self.assertEqual(self.sessions("append", session, "--tokens", "3,4,5", "--position", "2").out, "5\n", "not given twice")
        self.assertEqual(self.sessions("append", session, "--mark", "here").out, "5\n", "nothing but a mark")

    def test_values_of_an_image_can_be_appended(self):
        model = ["--model-name", "tiny-image"]
        session = self.sessions("open", model=model).out.strip()
        self.assertEqual(self.sessions("append", session, "--values", "0,1,2", model=model).out, "3\n")
        path = self.folder / "values"
        path.write_bytes(bytes([3, 4]))
        self.assertEqual(self.sessions("append", session, "--values-file", path, model=model).out, "5\n")
        self.fails(self.run_sessions("append", session, "--values-file", self.folder, model=model), 2, str(self.folder))

    def test_a_fork_goes_on_by_itself(self):
        session = self.open()
        self.sessions("append", session, "--tokens", "5,6")
        forks = self.sessions("fork", session, "--count", "3", "--seed", "20").out.split()
        self.assertEqual(len(set(forks + [session])), 4)
        for i, fork in enumerate(forks):
            tokens, _ = self.generate(fork, "--max-tokens", "6")
            self.assertEqual(tokens, self.whole("--seed", str(20 + i), "--max-tokens", "6"))
        (line,) = self.sessions("fork", session, "--position", "1", "--json").lines()
        self.assertEqual((line["position"], line["model"]), (1, "tiny-rfa"))
        self.fails(self.run_sessions("fork", session, "--position", "3"), 2, "position")

    def test_rewind_goes_back_to_a_position_or_a_mark(self):
        session = self.open()
        self.sessions("append", session, "--tokens", "5,6", "--mark", "begin")
        self.sessions("append", session, "--tokens", "7,8,9")
        self.assertEqual(self.sessions("rewind", session, "--position", "4").out, "4\n")
        (line,) = self.sessions("rewind", session, "--mark", "begin", "--json").lines()
        self.assertEqual((line["position"], line["marks"]), (2, {"begin": 2}))
        tokens, _ = self.generate(session, "--max-tokens", "5", "--seed", "3", "--mark", "end")
        self.assertEqual(tokens, self.whole("--seed", "3", "--max-tokens", "5"))
        listed = {line["session_id"]: line for line in self.sessions("list", "--json").lines()}
        self.assertEqual(listed[session]["marks"], {"begin": 2, "end": 7})
        self.fails(self.run_sessions("rewind", session, "--mark", "nowhere"), 2, "to.mark")
        self.fails(self.run_sessions("rewind", session, "--position", "8"), 2, "position")

    def test_a_snapshot_goes_through_a_file(self):
        session = self.open("--seed", "4")
        self.sessions("append", session, "--tokens", "5,6")
        path = self.folder / "session.snapshot"
        written = self.sessions("snapshot", session, "--out", path)
        self.assertEqual(written.out, "")
        self.assertEqual(written.err, f"{path.stat().st_size} bytes in {path}\n")
        restored = self.sessions("restore", "--input", path, "--idle-timeout", "60.5", "--json")
        (line,) = restored.lines()
        self.assertNotEqual(line["session_id"], session)
        self.assertNotIn("cookie", line, "no balancer gave one")
        self.assertEqual((line["position"], line["seed"], line["idle_timeout_seconds"]), (2, 4, 60.5))
        self.assertIn("bit for bit", restored.err)
        tokens, _ = self.generate(line["session_id"], "--max-tokens", "6")
        self.assertEqual(tokens, self.whole("--seed", "4", "--max-tokens", "6"))

        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        bad = self.folder / "damaged.snapshot"
        bad.write_bytes(damaged)
        self.fails(self.run_sessions("restore", "--input", bad), 2)
        self.fails(self.run_sessions("restore", "--input", self.folder / "absent"), 2, "absent")
        self.fails(self.run_sessions("restore", "--input", self.folder), 2, str(self.folder))
        self.fails(self.run_sessions("restore", "--input", path, model=["--model-name", "tiny-image"]), 2)

    def test_a_snapshot_replaces_a_regular_file_alone_and_only_when_it_is_whole(self):
        session = self.open()
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for path in (pipe, self.folder, "/dev/null", self.folder / "no/where"):
            with self.subTest(path=path):
                self.fails(self.run_sessions("snapshot", session, "--out", path), 2, str(path))
        kept = self.folder / "kept"
        kept.write_text("mine")
        before = sorted(self.folder.iterdir())
        self.fails(self.run_sessions("snapshot", ABSENT, "--out", kept), 2, "session")
        self.assertEqual(kept.read_text(), "mine")
        self.assertEqual(sorted(self.folder.iterdir()), before, "nothing is left behind")
        self.sessions("snapshot", session, "--out", kept)
        self.assertNotEqual(kept.read_bytes(), b"mine")

    def test_tenants_see_their_own_sessions(self):
        session = self.sessions("open", "--tenant", "alice").out.strip()
        self.assertIn(session, self.sessions("list", "--tenant", "alice").out)
        self.assertNotIn(session, self.sessions("list").out)
        self.fails(self.run_sessions("append", session, "--tokens", "1"), 2, "session")
        self.fails(self.run_generate(session), 2, "session")
        self.succeeds(self.run_generate(session, "--tenant", "alice", "--tokens", "1", "--max-tokens", "1"))
        self.fails(self.run_sessions("list", "--tenant", "a b"), 2, "tenant")

    def test_list_is_a_table_and_close_ends_a_session(self):
        tenant = ["--tenant", "table"]
        self.assertEqual(self.sessions("list", *tenant).out, "SESSION  POSITION  STATE  IDLE  BUSY  MARKS\n")
        first, second = (self.sessions("open", *tenant).out.strip() for _ in range(2))
        self.sessions("append", first, "--tokens", "1,2,3", "--mark", "three", *tenant)
        rows = [re.split(r"\s{2,}", row.strip()) for row in self.sessions("list", *tenant).out.splitlines()]
        self.assertEqual([row[0] for row in rows], ["SESSION", second, first], "the one used longest ago first")
        self.assertEqual((rows[2][1], rows[2][4:]), ("3", ["no", "three=3"]))
        closed = self.sessions("close", first, *tenant)
        self.assertEqual((closed.out, closed.err), ("", ""))
        self.fails(self.run_sessions("close", first, *tenant), 2, "session")
        self.assertEqual(len(self.sessions("list", "--json", *tenant).lines()), 1)

    def test_prompts_that_begin_alike_are_fed_once(self):
        prompt = ["--tokens", ",".join(str(1 + i % 7) for i in range(40)), "--seed", "3", "--max-tokens", "6"]

        def cached(*args, prompt=prompt):
            """Cached tokens, and all tokens."""
            result = self.succeeds(self.run_cached(*prompt, "--json", *args))
            usage = result.lines()[-1]["usage"]
            tokens = [token for part in result.lines() for token in part["tokens"]]
            expected = f", {usage['cached_prompt_tokens']} of {usage['prompt_tokens']} prompt tokens cached"
            self.assertEqual(expected in result.err, "--cache" in args, result)
            return usage["cached_prompt_tokens"], tokens

        alone = cached()
        self.assertEqual(alone[0], 0)
        self.assertEqual([cached("--cache") for _ in range(2)], [(0, alone[1]), (39, alone[1])])
        self.assertEqual(cached(), alone, "not asked for")
        salted = ("--cache", "--cache-salt", "other")
        self.assertEqual([cached(*salted) for _ in range(2)], [(0, alone[1]), (39, alone[1])])
        begin = ",".join(prompt[1].split(",")[:22])
        cached("--cache", "--cache-salt", "at", "--cache-position", "22", "--cache-position", "18")
        parts = ["--tokens", begin + ",9,9", "--max-tokens", "1"]
        self.assertEqual(cached("--cache", "--cache-salt", "at", prompt=parts)[0], 22)

        session = self.open("--seed", "3")
        appended = self.sessions("append", session, *prompt[:2], "--cache", "--json")
        self.assertEqual((appended.lines()[0]["cached_tokens"], appended.err), (39, "39 tokens cached\n"))
        self.assertEqual(self.generate(session, "--max-tokens", "6", "--cache")[0], alone[1])
        both = self.sessions("append", self.open(), *prompt[:2], "--cache", "--score")
        self.assertRegex(both.err, r"^[0-9.]+ nats over 40 tokens, [0-9]+ tokens cached\n$")

    def run_cached(self, *args):
        return rivulet("generate", "--target", self.server.target, *MODEL, *args)

    def test_what_the_server_refuses_is_exit_code_2_and_an_absent_server_3(self):
        self.fails(self.run_sessions("append", "no-id", "--tokens", "1"), 2, "session_id")
        self.fails(self.run_sessions("open", "--idle-timeout", "0.5"), 2, "idle_timeout")
        self.fails(rivulet("sessions", "list", "--target", NOBODY), 3)

    def test_help_names_every_action(self):
        text = self.succeeds(rivulet("sessions", "--help")).out
        for action in ("open", "append", "fork", "rewind", "snapshot", "restore", "list", "close"):
            self.assertIn(f"  {action} ", text)
            self.assertIn("--target", self.succeeds(rivulet("sessions", action, "--help")).out)


if __name__ == "__main__":
    unittest.main()
