# SPDX-License-Identifier: Apache-2.0
"""The contract of the `rivulet` command: exit codes, one line on stderr on failure, results alone on stdout."""

import json
import math
import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from command import BIN_DIR, CONFORMANCE, ZOO, CommandTest, Result, Server, rivulet, token_lines
from model_files import Model

RFA = CONFORMANCE / "tiny-rfa"  # tokens, bos 0, no limit
CONCAT = CONFORMANCE / "tiny-elu-learned-concat"  # tokens, no bos, 48 positions
IMAGE = CONFORMANCE / "tiny-image"  # 4 x 11 gray, no bos
SHAKESPEARE = ZOO / "shakespeare-rfa"
NOBODY = "127.0.0.1:1"  # nothing listens there


def reply_of(result):
    """What `generate` printed, in whatever parts it came."""
    if not result.out.startswith("{"):
        return result.out
    lines = result.lines()
    return (
        [token for line in lines for token in line.get("tokens", ())],
        [value for line in lines for value in line.get("logprobs", ())],
        [{name: line[name] for name in ("seed", "finish") if name in line} for line in lines if {"seed", "finish"} & set(line)],
        [line["usage"]["completion_tokens"] for line in lines if "usage" in line],
    )


class UsageTest(CommandTest):
    def test_bad_usage_is_exit_code_2(self):
        """One of each command; options_test.cc has the rest."""
        for args in (
            [],
            ["bogus"],
            ["generate", "--model", RFA, "--temperature", "warm"],
            ["generate", "--model", RFA, b"--prompt=\xc0"],
            ["score", "--model", RFA],
            ["tokenize", "--model", RFA],
            ["detokenize", "--model", RFA, "--tokens", "x"],
            ["models", "--model", RFA, "--target", NOBODY],
            ["load", "--target", "localhost"],
            ["health", "--target", NOBODY, "--deadline", "0"],
            ["bench", "--target", NOBODY, "--rate", "0"],
            ["sessions"],
            ["sessions", "list", "--target", "nowhere"],
            ["keys", "bogus"],
        ):
            with self.subTest(args=args):
                self.fails(rivulet(*args), 2)

    def test_help_goes_to_stdout(self):
        for args in (["--help"], ["score", "--help"], ["--version"]):
            result = self.succeeds(rivulet(*args))
            self.assertIn("rivulet", result.out)
            self.assertEqual(result.err, "")
        self.assertIn("--window", rivulet("score", "--help").out)

    def test_a_full_stdout_is_said(self):
        for args in (["models", "--model", RFA], ["--help"], ["--version"]):
            with self.subTest(args=args), open("/dev/full", "wb") as full:
                done = subprocess.run(
                    [BIN_DIR / "rivulet", *args], stdout=full, stderr=subprocess.PIPE
                )
                self.fails(Result(done.returncode, "", done.stderr.decode()), 2, "stdout")

    def test_a_closed_standard_stream_is_never_another_file(self):
        score = ["score", "--model", RFA, "--input", "-"]
        for args, closed, mention in (
            (["models", "--model", RFA], ">&-", "stdout"),
            (["generate", "--model", RFA, "--max-tokens", "3"], ">&-", "stdout"),
            (["--help"], ">&-", "stdout"),
            (score, ">&-", "stdout"),
            (score, "<&-", "-: cannot be read"),
        ):
            with self.subTest(args=args, closed=closed):
                done = subprocess.run(
                    ["sh", "-c", f'exec "$0" "$@" {closed}', BIN_DIR / "rivulet", *args],
                    input=token_lines([[1]]).encode(), capture_output=True, timeout=120,
                )
                self.fails(Result(done.returncode, done.stdout.decode(), done.stderr.decode()), 2, mention)
        # Without stderr there is no line; nor may there be one in a file of the model.
        done = subprocess.run(
            ["sh", "-c", 'exec "$0" "$@" 2>&-', BIN_DIR / "rivulet", *score], input=b"{}\n", capture_output=True
        )
        self.assertEqual((done.returncode, done.stdout), (2, b""))


class GenerateTest(CommandTest):
    def tokens(self, *args):
        """Token ids of each sample."""
        result = self.succeeds(rivulet("generate", "--json", *args))
        samples = {}
        for part in result.lines():
            sample = samples.setdefault(part["sample_index"], [])
            if part["tokens"]:
                self.assertEqual(part["first_position"], len(sample))
            sample += part["tokens"]
        return [samples[i] for i in range(len(samples))]

    def test_equal_seeds_give_equal_tokens(self):
        args = ["--model", RFA, "--tokens", "3,4", "--max-tokens", "40"]
        self.assertEqual(self.tokens(*args, "--seed", "7"), self.tokens(*args, "--seed", "7"))
        self.assertNotEqual(self.tokens(*args, "--seed", "7"), self.tokens(*args, "--seed", "8"))

    def test_a_drawn_seed_is_told_and_can_be_repeated(self):
        args = ["generate", "--model", RFA, "--max-tokens", "20"]
        first = self.succeeds(rivulet(*args))
        seed = first.err.strip().rsplit("seed ", 1)[1]
        self.assertEqual(self.succeeds(rivulet(*args, "--seed", seed)).out, first.out)

    def test_more_samples_begin_with_the_same_ones(self):
        args = ["--model", RFA, "--max-tokens", "10", "--seed", "5"]
        three, five = self.tokens(*args, "--num-samples", "3"), self.tokens(*args, "--num-samples", "5")
        self.assertEqual(five[:3], three)
        self.assertEqual(len({tuple(sample) for sample in five}), 5)

    def test_temperature_0_needs_no_seed(self):
        args = ["--model", RFA, "--max-tokens", "10", "--temperature", "0"]
        self.assertEqual(self.tokens(*args, "--seed", "1"), self.tokens(*args, "--seed", "2"))

    def test_plain_output_is_the_ids_or_the_text(self):
        args = ["--max-tokens", "12", "--seed", "3"]
        (ids,) = self.tokens("--model", RFA, *args)
        plain = self.succeeds(rivulet("generate", "--model", RFA, *args))
        self.assertEqual(plain.out, " ".join(map(str, ids)) + "\n")
        prompt = ["--model", SHAKESPEARE, "--prompt", "ROMEO:\n", *args]
        parts = self.succeeds(rivulet("generate", "--json", *prompt)).lines()
        plain = self.succeeds(rivulet("generate", *prompt))
        text = "".join(part.get("text", "") for part in parts)
        self.assertEqual(len(text), 12)
        self.assertEqual(plain.out, text if text.endswith("\n") else text + "\n")

    def test_text_arrives_before_the_end(self):
        process = subprocess.Popen(
            [BIN_DIR / "rivulet", "generate", "--model", SHAKESPEARE, "--prompt", "A", "--max-tokens", "1000000"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        try:
            self.assertEqual(len(process.stdout.read(30)), 30)
            self.assertIsNone(process.poll())
        finally:
            process.kill()
            process.communicate()

    def test_an_interrupted_command_ends(self):
        process = subprocess.Popen(
            [BIN_DIR / "rivulet", "generate", "--model", SHAKESPEARE, "--prompt", "A", "--max-tokens", "1000000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(err, b"")

    def test_stop_conditions_end_the_output(self):
        parts = self.succeeds(
            rivulet(
                "generate", "--model", SHAKESPEARE, "--prompt", "ROMEO:", "--seed", "1", "--stop", "e",
                "--max-tokens", "2000", "--json",
            )
        ).lines()
        (finish,) = [part["finish"] for part in parts if "finish" in part]
        self.assertEqual(finish, {"reason": "stop_string", "stop_string": "e"})
        self.assertNotIn("e", "".join(part.get("text", "") for part in parts))
        (free,) = self.tokens("--model", RFA, "--seed", "1", "--max-tokens", "50")
        (cut,) = self.tokens("--model", RFA, "--seed", "1", "--max-tokens", "50", "--stop-token", str(free[9]))
        self.assertEqual(cut, free[: free.index(free[9])])

    def test_logprobs_without_json_are_a_table(self):
        for model, prompt in ((SHAKESPEARE, ("--prompt", "ROMEO:")), (RFA, ())):
            generate = ("generate", "--model", model, *prompt, "--seed", "1", "--max-tokens", "5", "--num-samples", "2", "--logprobs")
            header, *rows = self.succeeds(rivulet(*generate)).out.splitlines()
            parts = self.succeeds(rivulet(*generate, "--json")).lines()
            self.assertEqual(header.split(), ["SAMPLE", "TOKEN", "LOGPROB"] + ["TEXT"] * bool(prompt))
            cells = [row.split(maxsplit=3) for row in rows]
            for sample in (0, 1):
                mine, theirs = ([row for row in cells if row[0] == str(sample)], [part for part in parts if part["sample_index"] == sample])
                for column, name in ((1, "tokens"), (2, "logprobs")):
                    self.assertEqual([row[column] for row in mine], [f"{value:.{4 * (column - 1)}f}" for part in theirs for value in part.get(name, ())])
                if prompt:
                    self.assertEqual("".join(json.loads(row[3]) for row in mine), "".join(part.get("text", "") for part in theirs))

    def test_logprobs_are_given_for_each_token(self):
        result = self.succeeds(
            rivulet(
                "generate", "--model", RFA, "--max-tokens", "5", "--seed", "1", "--json", "--logprobs",
                "--top-logprobs", "3",
            )
        )
        for part in result.lines():
            # The last part may hold the usage alone.
            logprobs, tops = part.get("logprobs", []), part.get("top_logprobs", [])
            self.assertEqual([len(logprobs), len(tops)], [len(part["tokens"])] * 2)
            for token, logprob, top in zip(part["tokens"], logprobs, tops):
                self.assertEqual(len(top["token_ids"]), 3)
                if token in top["token_ids"]:
                    self.assertEqual(top["logprobs"][top["token_ids"].index(token)], logprob)

    def test_a_bad_request_is_exit_code_2_and_names_the_field(self):
        for args, mention in (
            (["--temperature", "nan"], "temperature"),
            (["--temperature", "-1"], "temperature"),
            (["--top-p", "0"], "top_p"),
            (["--top-k", "-1"], "top_k"),
            (["--min-p", "2"], "min_p"),
            (["--repetition-penalty", "0"], "repetition_penalty"),
            (["--frequency-penalty", "3"], "frequency_penalty"),
            (["--presence-penalty", "-3"], "presence_penalty"),
            (["--logit-bias", "99:1"], "logit_bias"),
            (["--logit-bias", "1:1000"], "logit_bias"),
            (["--max-tokens", "0"], "max_tokens"),
            (["--max-tokens", "-1"], "max_tokens"),
            (["--max-tokens", "9223372036854775807"], "max_tokens"),
            (["--num-samples", "0"], "num_samples"),
            (["--num-samples", "2147483647"], "num_samples"),
            (["--tokens", "37"], "tokens[0]"),
            (["--prompt", "text"], "text"),
            (["--values", "1"], "image_values"),
            (["--stop", "a"], "stop.strings"),
            (["--stop-token", "99"], "stop.token_ids"),
            (["--json", "--logprobs", "--top-logprobs", "21"], "top_n"),
        ):
            with self.subTest(args=args):
                self.fails(rivulet("generate", "--model", RFA, *args), 2, mention)
        self.fails(rivulet("generate", "--model", CONCAT), 2, "prompt")
        self.fails(rivulet("generate", "--model", CONCAT, "--tokens", ",".join(["1"] * 50)), 2, "tokens")


class TargetTest(CommandTest):
    def test_an_unreachable_target_is_exit_code_3(self):
        for command in (["models"], ["health"], ["generate"], ["score", "--input", "-"]):
            with self.subTest(command=command):
                self.fails(rivulet(*command, "--target", NOBODY, stdin=token_lines([[1]])), 3)
        self.fails(rivulet("models", "--target", "no-such-host.invalid:50051"), 3)

    def test_an_absent_backend_is_exit_code_3(self):
        if pathlib.Path("/dev/nvidia0").exists():
            self.skipTest("this machine may have the backend")
        for command in (["models"], ["health"], ["generate"], ["score", "--input", "-"]):
            with self.subTest(command=command):
                self.fails(rivulet(*command, "--model", RFA, "--backend", "cuda"), 3, 'backend is "cuda"; allowed here: cpu, auto')

    def test_a_model_too_large_for_this_machine_is_exit_code_2(self):
        model = Model("tiny-elu-relu")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        # States of 2 layers and 2 heads in float32: two of them (one is a spare) do not fit, and the weights are small.
        dim = 8 * (math.isqrt(memory // (2 * 16)) // 8 + 2)
        for name in ("key_dim", "value_dim"):
            model.config[name] = dim

        def widen(name, entry, chunk):
            if ".attention." not in name or name.endswith("out_projection.bias"):
                return chunk
            wide = 1 if "out_projection" in name else 0
            entry["shape"] = [2 * dim if i == wide else n for i, n in enumerate(entry["shape"])]
            return bytes(4 * math.prod(entry["shape"]))

        model.rebuild(widen)
        with tempfile.TemporaryDirectory() as folder:
            model.write(pathlib.Path(folder))
            self.fails(rivulet("generate", "--model", folder, "--weights", "f32"), 2, "1 slots of")

    def test_the_own_process_keeps_the_sessions_that_it_can_use(self):
        (model,) = self.succeeds(rivulet("models", "--model", RFA, "--backend", "cpu", "--json")).lines()
        self.assertEqual((model["limits"]["slots"], model["limits"]["max_num_samples"]), (256, 64))

    def test_the_own_process_takes_long_lines(self):
        line = token_lines([[1] * 200])
        long = '{"tokens":[' + "1," * (5 << 20) + "37]}\n"  # more than a server's 4 MiB; refused for its last id
        self.fails(rivulet("score", "--model", RFA, "--input", "-", stdin=line + long), 2, "-:2", f"tokens[{5 << 20}]", out=None)

    def test_a_server_gives_what_the_own_process_gives(self):
        lines = token_lines([[1, 2, 3], [4] * 40])
        generate = ["generate", "--max-tokens", "30", "--seed", "9", "--tokens", "5"]
        with Server(RFA, IMAGE) as server:
            remote = ["--target", server.target, "--model-name", "tiny-rfa"]
            for command in (["score", "--input", "-", "--outputs", "0,2"], generate):
                with self.subTest(command=command):
                    there = self.succeeds(rivulet(*command, *remote, stdin=lines))
                    here = self.succeeds(rivulet(*command, "--model", RFA, stdin=lines))
                    self.assertEqual(there.out, here.out)

    def test_a_server_of_two_models_needs_a_name(self):
        with Server(RFA, IMAGE) as server:
            target = ["--target", server.target]
            self.fails(rivulet("generate", *target), 2, "model")
            self.fails(rivulet("generate", *target, "--model-name", "absent"), 2, "absent")
            table = self.succeeds(rivulet("models", *target)).out.splitlines()
            self.assertEqual([row.split()[0] for row in table], ["NAME", "tiny-rfa", "tiny-image"])
            models = self.succeeds(rivulet("models", *target, "--json")).lines()
            self.assertEqual([model["name"] for model in models], ["tiny-rfa", "tiny-image"])
            (one,) = self.succeeds(rivulet("models", *target, "--model-name", "tiny-image", "--json")).lines()
            self.assertEqual(one["content"], "image 4x11x1")

    def test_health_is_exit_code_0_while_serving(self):
        with Server(RFA, IMAGE) as server:
            result = self.succeeds(rivulet("health", "--target", server.target))
            self.assertEqual(
                [row.split() for row in result.out.splitlines()],
                [["server", "SERVING"], ["tiny-rfa", "SERVING"], ["tiny-image", "SERVING"]],
            )
            self.assertEqual(result.err, "")
            self.succeeds(rivulet("health", "--target", server.target, "--model-name", "tiny-rfa"))
            self.fails(rivulet("health", "--target", server.target, "--model-name", "absent"), 2, "absent", "is not served")
            self.fails(rivulet("health", "--target", server.target, "--tls-ca", "/absent"), 2, "--tls-ca /absent")
        self.fails(rivulet("health", "--target", server.target), 3)

    def test_a_deadline_is_exit_code_3(self):
        with Server(SHAKESPEARE) as server:
            result = rivulet(
                "generate", "--target", server.target, "--prompt", "A", "--max-tokens", "1000000",
                "--deadline", "0.5",
            )
            self.fails(result, 3, out=None)

    def test_a_server_that_drains_ends_running_replies(self):
        with Server(SHAKESPEARE, args=["--drain-seconds", "0"]) as server:
            process = subprocess.Popen(
                [
                    BIN_DIR / "rivulet", "generate", "--target", server.target, "--prompt", "A",
                    "--max-tokens", "1000000",
                ],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            self.assertEqual(len(process.stdout.read(5)), 5)
            server.process.terminate()
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 3, err)
            self.assertEqual(err.count(b"\n"), 1, err)

    def test_a_reply_whose_server_is_killed_goes_on_at_another(self):
        bulky = ("--json", "--logprobs", "--top-logprobs", "20")  # more than connection and pipe hold, so it is cut
        for model, args, code in (
            (SHAKESPEARE, ("--max-tokens", "600", "--prompt", "A"), 0),
            (RFA, ("--max-tokens", "15000", "--tokens", "3", *bulky), 0),
            (RFA, ("--max-tokens", "15000", "--tokens", "3", *bulky, "--no-resume"), 3),
        ):
            command = ["generate", *args, "--seed", "5"]
            with Server(model) as other, Server(model) as server:
                process = subprocess.Popen(
                    [BIN_DIR / "rivulet", *command, "--target", f"ipv4:{server.target},{other.target}"],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                )
                begin = process.stdout.read(1)
                server.process.kill()
                rest, err = process.communicate(timeout=120)
                self.assertEqual(process.returncode, code, err)
                if code == 0:
                    whole = self.succeeds(rivulet(*command, "--target", other.target))
                    self.assertEqual(reply_of(Result(0, (begin + rest).decode(), "")), reply_of(whole))

    def test_a_request_past_the_message_limit_is_bad_input(self):
        with Server(RFA) as server:
            result = rivulet(
                "score", "--target", server.target, "--input", "-", stdin=token_lines([[1] * (5 << 20)])
            )
            self.fails(result, 2, "-:1", str(4 << 20))

    def test_tls_options_are_checked(self):
        self.fails(rivulet("models", "--target", NOBODY, "--tls-ca", "/nonexistent.pem"), 2, "/nonexistent.pem")
        with Server(RFA) as server:
            self.fails(rivulet("models", "--target", server.target, "--tls"), 3)


if __name__ == "__main__":
    unittest.main()
