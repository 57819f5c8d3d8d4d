# SPDX-License-Identifier: Apache-2.0
"""`rivulet-server --check-config`: it says of each fault what a start says, all faults at once, and changes nothing."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from authority import Authority
from command import BIN_DIR, CONFORMANCE, ZOO, Server
from model_files import Model

MODEL, OTHER = CONFORMANCE / "tiny-elu-relu", CONFORMANCE / "tiny-image"
LARGE = ZOO / "mnist-linear"  # of states
LIMIT = 60  # seconds that a command may take
GOOD = "the configuration is good\n"


def server(*flags):
    command = [BIN_DIR / "rivulet-server", *(str(flag) for flag in flags)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)


class CheckConfigTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-check-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def model(self, name, change, base=MODEL):
        """A copy of a model that `change` has spoilt."""
        spoilt = Model(base.name)
        change(spoilt)
        directory = self.folder / name
        directory.mkdir()
        spoilt.write(directory)
        return directory

    def tree(self):
        return {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in self.folder.rglob("*")}

    def check(self, *flags, code=0, listen="127.0.0.1:0"):
        """Lines of stderr. Nothing may change on disk."""
        before = self.tree()
        done = server("--check-config", "--listen", listen, *flags)
        self.assertEqual((done.returncode, done.stdout), (code, GOOD if code == 0 else ""), done)
        self.assertEqual(self.tree(), before, "--check-config changed files")
        return [line.removeprefix("rivulet-server: ") for line in done.stderr.splitlines()]

    def faults(self):
        """{what is wrong: (flags, exit code)}: each alone ends a start."""
        authority = Authority(self.folder, "authority")
        cert, key = authority.sign("server")
        other_key = Authority(self.folder, "stranger").key("stranger")
        short = self.file("short.key", "too short\n")
        text = self.file("text", "plain text\n")
        no_tensor = self.model("no-tensor", lambda model: model.remove("embedding.weight"))
        bad_value = self.model("bad-value", lambda model: model.config.update(hidden_size=-1))
        store = f"dir:{self.folder / 'store'}"
        good = ["--model", MODEL]
        return {
            "no model there": (["--model", self.folder / "absent"], 2),
            "a value of config.json": (["--model", bad_value], 2),
            "a tensor": (["--model", no_tensor], 2),
            "two models of a name": ([*good, "--model", f"{MODEL.name}={OTHER}"], 2),
            "an unknown type of weights": ([*good, "--weights", "f8"], 2),
            "weights of no model": ([*good, "--model-weights", "absent=int8"], 2),
            "weights of a model twice": ([*good, "--model-weights", f"{MODEL.name}=f16", "--model-weights", f"{MODEL.name}=f32"], 2),
            "weights of a model in no repository": (
                ["--admin-listen", "127.0.0.1:0", "--model-repository", self.folder, "--model-weights", "absent=int8"], 2),
            "more slots than memory": (["--model", LARGE, "--backend", "cpu", "--slots", 1 << 24], 2),
            "less memory than paused replies need": ([*good, "--backend", "cpu", "--slots", "100000", "--parked-state-mib", "1"], 2),
            "settings that do not fit each other": ([*good, "--max-message-mib", "400"], 2),
            "more connections than descriptors": ([*good, "--max-connections", "16000000"], 2),
            "a number out of range": ([*good, "--threads", "-1"], 2),
            "a number that models use out of range": ([*good, "--slots", "0"], 2),
            "a number that another one bounds out of range": ([*good, "--restore-memory-mib", "0", "--max-message-mib", "300"], 2),
            "a certificate without its key": ([*good, "--tls-cert", cert, "--tls-key", other_key], 2),
            "a file that is no certificate": ([*good, "--tls-cert", text, "--tls-key", key], 2),
            "authorities of clients": ([*good, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", text], 2),
            "keys": ([*good, "--keys-file", text], 2),
            "a key of snapshots": ([*good, "--snapshot-key-file", short], 2),
            "the request log": ([*good, "--request-log", self.folder / "absent/requests.jsonl"], 2),
            "a collector's authorities": ([*good, "--otlp-endpoint", "https://localhost", "--otlp-ca", self.folder / "absent.pem"], 2),
            "warm states": ([*good, "--warm-states", text], 2),
            "a kind of session store": ([*good, "--session-store", "memcached://localhost"], 2),
            "keys of the session store": ([*good, "--session-store", store, "--session-store-encryption-keys", text], 2),
            "a port of Redis": ([*good, "--session-store", "redis://localhost:99999"], 2),
            "a place of states": ([*good, "--session-states", "nowhere"], 2),
            "a repository": ([*good, "--admin-listen", "127.0.0.1:0", "--model-repository", text], 2),
            "an address of another machine": ([*good, "--metrics-listen", "192.0.2.1:1"], 3),
            "a backend": ([*good, "--backend", "cuda", "--device", "1000"], None),
        }

    def test_each_fault_is_what_a_start_says(self):
        for what, (flags, code) in self.faults().items():
            with self.subTest(what):
                started = server("--listen", "127.0.0.1:0", *flags)
                self.assertEqual(started.stderr.count("\n"), 1, started)
                self.assertIn(started.returncode, (2, 3) if code is None else (code,), started)
                (checked,) = self.check(*flags, code=started.returncode)
                # Bytes of weights are estimated, and a server that has begun has more open files.
                without_numbers = lambda text: re.sub(r"\d+", "#", text)
                said = started.stderr.removeprefix("rivulet-server: ").rstrip("\n")
                # The backend is no fault of the model that a start names.
                said = said.removeprefix(f"{MODEL}: ") if what == "a backend" else said
                self.assertEqual(without_numbers(checked), without_numbers(said))

    def test_directories_that_cannot_be_made(self):
        text = self.file("text", "plain text\n")
        for flags, said in ((("--state-dir", text), "state-dir: "), (("--session-store", f"dir:{text}"), "session-store: ")):
            with self.subTest(flags):
                started = server("--listen", "127.0.0.1:0", "--model", MODEL, *flags)
                self.assertEqual(started.returncode, 2, started)
                self.assertIn(said, started.stderr)
                self.assertEqual(self.check("--model", MODEL, *flags, code=2), [f"{said}{text} is no directory"])

    def test_all_faults_are_said_at_once_and_the_gravest_decides(self):
        broken = self.model("broken", lambda model: model.config.update(hidden_size=-1))
        config = self.file("server.json", json.dumps({
            "model": [str(MODEL), str(broken), str(self.folder / "absent")], "slots": "many", "no-such-setting": 1, "max-queue": -1,
            "metrics-listen": "192.0.2.1:1", "keys-file": str(self.folder / "keys.json"), "snapshot-key-file": str(self.folder / "key"),
        }))  # fmt: skip
        tls = ("--tls-cert", self.folder / "cert.pem", "--tls-key", self.folder / "key.pem")
        lines = self.check("--threads", "x", "--config", config, "--modle", MODEL, "--request-log", self.folder / "no/log", *tls, code=2)
        mentions = ['threads is "x"', "did you mean --model?", 'slots is "many"', "no-such-setting", "max-queue is -1", "hidden_size", "absent", "keys.json", "snapshot-key-file /",
                    "request-log is", "192.0.2.1", "cert.pem: no such file", "key.pem: no such file"]  # fmt: skip
        for mention in mentions:
            self.assertEqual(len([line for line in lines if mention in line]), 1, (mention, lines))
        self.assertEqual(len(lines), len(mentions), lines)
        self.check("--model", MODEL, "--metrics-listen", "192.0.2.1:1", listen="192.0.2.2:1", code=3)

    def test_two_settings_with_one_address(self):
        for flags, settings in (
            (["--listen", "127.0.0.1:57100", "--admin-listen", "127.0.0.1:57100"], ["listen", "admin-listen"]),
            (["--listen", "0.0.0.0:57100", "--metrics-listen", "localhost:57100"], ["listen", "metrics-listen"]),
            (["--metrics-listen", "127.0.0.1:50051"], ["listen", "metrics-listen"]),  # the default
            (["--listen", "127.0.0.1:57100", "--admin-listen", "127.0.0.1:57101"], []),
            (["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"], []),
        ):
            with self.subTest(flags):
                done = server("--check-config", "--model", MODEL, *flags)
                self.assertEqual(done.returncode, 3 if settings else 0, done)
                if settings:
                    self.assertIn(f", the value of {settings[1]}: it is the address of {settings[0]}\n", done.stderr)

    def test_a_good_configuration_is_good_beside_the_server_that_has_it(self):
        states, store, log = self.folder / "states", self.folder / "store", self.folder / "log.jsonl"
        flags = ["--model", MODEL, "--state-dir", states, "--session-store", f"dir:{store}", "--request-log", log]
        self.assertEqual(self.check(*flags), [])  # none of the three is there, and none is made
        with Server(args=[str(flag) for flag in flags]) as running:
            port = running.target.split(":")[1]
            done = server("--check-config", "--listen", f"127.0.0.1:{port}", *flags)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, GOOD, ""))

    def test_weights_are_not_read(self):
        shutil.copytree(MODEL, self.folder / "zeros")
        weights = self.folder / "zeros/model.safetensors"
        header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
        content = weights.read_bytes()
        weights.write_bytes(content[:header] + b"\xff" * (len(content) - header))  # NaN everywhere
        self.assertEqual(self.check("--model", self.folder / "zeros"), [])
        self.assertEqual(server("--model", self.folder / "zeros", "--listen", "127.0.0.1:0").returncode, 2)

    def test_what_a_start_only_warns_of_is_a_warning(self):
        keys = self.file("keys.json", "[]")
        (away,) = self.check("--model", MODEL, "--session-store", "redis://127.0.0.1:1")
        self.assertRegex(away, "^warning: .*127.0.0.1:1.*keeps trying$")
        (open_to_all,) = self.check("--model", MODEL, "--admin-listen", "0.0.0.0:0")
        self.assertRegex(open_to_all, "^warning: admin-listen is 0.0.0.0:0: whoever reaches .*keys-file")
        (readable,) = self.check("--model", MODEL, "--admin-listen", "0.0.0.0:0", "--keys-file", keys)
        self.assertRegex(readable, "^warning: admin-listen is 0.0.0.0:0: keys cross .*tls-cert")

    def test_a_start_logs_the_warnings(self):
        authority = Authority(self.folder, "authority")
        cert, key = authority.sign("server")
        tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
        for args, events in (
            (["--admin-listen", "0.0.0.0:0"], [("open_without_keys", "admin-listen")]),
            (["--admin-listen", "0.0.0.0:0", *tls], [("open_without_keys", "admin-listen")]),
            (["--admin-listen", "0.0.0.0:0", *tls, "--tls-client-ca", str(authority.pem)], []),
            (["--admin-listen", "127.0.0.1:0"], []),
        ):
            with self.subTest(args=args):
                # The line after "listening" comes at once: the end of the log has all of them.
                running = Server(MODEL, args=args)
                running.__enter__()
                running.process.terminate()
                rest = running.process.stderr.read()
                running.process.wait(LIMIT)
                lines = [json.loads(line) for line in [*running.log, *rest.decode().splitlines()]]
                found = [(line["event"], line["setting"]) for line in lines if line["level"] == "warning"]
                self.assertEqual(found, events)

    def test_it_stands_alone(self):
        done = server("--check-config", "--print-config", "--model", MODEL)
        self.assertEqual(done.returncode, 2, done)
        self.assertIn("--check-config", done.stderr)


if __name__ == "__main__":
    unittest.main()
