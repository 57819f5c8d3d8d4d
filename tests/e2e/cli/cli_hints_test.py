# SPDX-License-Identifier: Apache-2.0
"""What the `rivulet` command and the server say to somebody who uses them for the first time."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from command import BIN_DIR, CONFORMANCE, ZOO, CommandTest, Result, Server, rivulet

RFA, IMAGE = CONFORMANCE / "tiny-rfa", CONFORMANCE / "tiny-image"
NOBODY = "127.0.0.1:1"  # nothing listens there


def run_with(variables, *args):
    """`rivulet` with variables in its environment."""
    done = subprocess.run([BIN_DIR / "rivulet", *map(str, args)], env={**os.environ, **variables}, capture_output=True, timeout=120)
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def server(*args):
    """A server that ends by itself: with an error, or after printing something."""
    done = subprocess.run([BIN_DIR / "rivulet-server", *map(str, args)], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


class CommandHintsTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(RFA, IMAGE, args=("--slots", "7", "--threads", "1")))

    def test_load_prints_slots_queues_and_connections(self):
        result = self.succeeds(rivulet("load", "--target", self.server.target))
        header, *rows = result.out.splitlines()
        self.assertTrue(header.startswith("NAME "), header)
        for column in ("SLOTS USED", "QUEUED", "OLDEST WAIT", "TOKENS/S", "SESSIONS"):
            self.assertIn(column, header)
        self.assertRegex("\n".join(rows), r"^tiny-rfa +[01]/7 +0/1024 .*\ntiny-image +0/7 +0/1024 ")  # the test before may still end
        self.assertRegex(result.err, r"^[1-9]\d* of \d+ connections \(\d+ since start, 0 refused, 0 closed\); requests refused: none\n$")

    def test_load_as_json_holds_what_the_api_says(self):
        self.succeeds(rivulet("generate", "--target", self.server.target, "--model-name", "tiny-rfa", "--tokens", "1", "--max-tokens", "9"))
        result = self.succeeds(rivulet("load", "--target", self.server.target, "--model-name", "tiny-rfa", "--json"))
        self.assertEqual(result.err, "")
        model, of_server = result.lines()
        self.assertEqual((model["model"], model["slots"], model["max_queue"], model["draining"]), ("tiny-rfa", 7, 1024, False))
        self.assertGreaterEqual(model["tokens_total"], 9)
        proto = (pathlib.Path(__file__).parents[3] / "proto/rivulet/v1/inference.proto").read_text()
        message = lambda name: proto.split(f"message {name} {{")[1].split("\n}")[0]
        declared = lambda name: set(re.findall(r"^  [^/\n]* (\w+) = \d+;$", message(name), re.M))
        self.assertEqual(set(model), declared("ModelLoad"))
        self.assertEqual(set(of_server["server"]), declared("ServerLoad"))
        self.fails(rivulet("load", "--target", self.server.target, "--model-name", "absent"), 2, "absent")

    def test_the_environment_names_target_and_model(self):
        variables = {"RIVULET_TARGET": self.server.target, "RIVULET_MODEL": "tiny-rfa"}
        generate = ("generate", "--tokens", "1", "--max-tokens", "5", "--seed", "3")
        named = self.succeeds(rivulet(*generate, "--target", self.server.target, "--model-name", "tiny-rfa"))
        self.assertEqual(self.succeeds(run_with(variables, *generate)).out, named.out)
        self.assertEqual(self.succeeds(run_with(variables, *generate, "--model", RFA)).out, named.out)
        self.assertEqual(self.succeeds(run_with(variables, "models")).out.count("\n"), 3)
        session = self.succeeds(run_with(variables, "sessions", "open")).out.strip()
        self.succeeds(run_with(variables, "sessions", "close", session))
        # The command line wins, and an error says where a value came from.
        self.fails(run_with(variables, *generate, "--model-name", "absent"), 2, "absent")
        self.fails(run_with(variables, *generate, "--target", NOBODY), 3)
        self.fails(run_with({"RIVULET_TARGET": "http://h:1"}, "models"), 2, "got the URL", "--target=http://h:1 (RIVULET_TARGET)")

    def test_errors_of_a_server_name_the_option_that_helps(self):
        generate = ("generate", "--tokens", "1", "--max-tokens", "1")
        self.fails(rivulet(*generate, "--target", self.server.target), 2, "model is empty", '"tiny-rfa", "tiny-image" (--model-name NAME chooses one)')
        with tempfile.TemporaryDirectory() as folder:
            keys, key = pathlib.Path(folder, "keys.json"), pathlib.Path(folder, "key")
            key.write_text(self.succeeds(rivulet("keys", "new", "reader", "--tenant", "acme", "--keys-file", keys)).out)
            with Server(RFA, args=("--keys-file", str(keys), "--threads", "1")) as keyed:
                call = (*generate, "--target", keyed.target)
                self.fails(rivulet(*call), 2, "needs a key", "(--key-file FILE or the variable RIVULET_KEY holds it)")
                self.fails(run_with({"RIVULET_KEY": "no-such-key"}, *call), 2, "does not know the key (it comes from --key-file")
                self.fails(rivulet(*call, "--key-file", key, "--tenant", "other"), 2, "(--tenant sets it)")
                self.succeeds(rivulet(*call, "--key-file", key))

    def test_a_deadline_is_named(self):
        args = ("generate", "--target", self.server.target, "--model-name", "tiny-rfa", "--tokens", "1", "--max-tokens", "500000")
        self.fails(rivulet(*args, "--deadline", "0.25"), 3, "no end within --deadline 0.25 s", out=None)

    def test_a_directory_is_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for args in (
                ("generate", "--model", IMAGE, "--values-file", folder),
                ("score", "--model", ZOO / "shakespeare-rfa", "--text", folder),
                ("score", "--model", IMAGE, "--idx", folder),
                ("sessions", "restore", "--target", self.server.target, "--model-name", "tiny-rfa", "--input", folder),
            ):
                self.fails(rivulet(*args), 2, f"{folder}: is a directory; expected a file")
            self.fails(rivulet("generate", "--model", IMAGE, "--values-file", f"{folder}/absent"), 2, "No such file")


    def test_flags_of_other_programs_are_called_by_our_names(self):
        for flag, meant in (("-m", "--model"), ("-p", "--prompt"), ("-n", "--num-samples, --count or --max-tokens"), ("--temp", "--temperature"), ("--port", "--target HOST:PORT")):
            self.fails(rivulet("generate", "--target", NOBODY, flag, "x"), 2, f"unknown option {flag} of generate; did you mean {meant}?")
        for flag, meant in (("-m", "--model"), ("--port", "--listen HOST:PORT"), ("-ngl", "--backend cuda"), ("--api-key", "--keys-file FILE")):
            self.assertEqual(server(flag, "x"), (2, "", f"rivulet-server: unknown option {flag}; did you mean {meant}? (see --help)\n"))


class ServerHintsTest(unittest.TestCase):
    def test_settings_are_printed_without_a_model(self):
        code, out, err = server("--print-config", "--slots", "9")
        self.assertEqual((code, err), (0, ""))
        self.assertEqual((json.loads(out)["slots"], json.loads(out)["model"]), (9, []))

    def test_a_key_file_that_is_none_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, why in ((folder, "must be a regular file, it is a directory"), (f"{folder}/absent", "no such file")):
                code, _, err = server("--model", RFA, "--listen", "127.0.0.1:0", "--snapshot-key-file", path)
                self.assertEqual((code, err), (2, f"rivulet-server: snapshot-key-file {path}: {why}\n"))

    def test_another_librarys_checkpoint_is_called_by_its_name(self):
        names = ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"]
        header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)})
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
            code, out, err = server("--model", folder)
        expected = f"{folder}: this looks like a softmax transformer checkpoint of transformers, which is not supported"
        self.assertEqual((code, out, err.count("\n")), (2, "", 1))
        self.assertIn(expected, err)

    def test_a_machine_without_a_gpu_is_no_fault(self):
        process = subprocess.Popen(
            [BIN_DIR / "rivulet-server", "--model", RFA, "--listen", "127.0.0.1:0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        log = []
        for line in process.stderr:
            log.append(json.loads(line))
            if log[-1]["event"] == "listening":
                break
        process.terminate()
        process.communicate(timeout=60)
        chosen = [event for event in log if event["event"] == "backend_chosen"]
        if not chosen:
            self.skipTest("this machine has a GPU")
        self.assertEqual((chosen[0]["level"], chosen[0]["backend"]), ("info", "cpu"))
        self.assertIn(chosen[0]["reason"], ("this build has no CUDA backend", "no CUDA device: no NVIDIA driver is installed"))


if __name__ == "__main__":
    unittest.main()
