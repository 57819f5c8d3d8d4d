# SPDX-License-Identifier: Apache-2.0
"""`rivulet keys`, and the command's calls with a key: from a new key to a call, and until it is revoked."""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import stat
import subprocess
import tempfile
import time
import unittest

from command import BIN_DIR, CONFORMANCE, CommandTest, Result, Server, rivulet

MODEL = CONFORMANCE / "tiny-elu-relu"
LIMIT = 60  # seconds that anything awaited may take


class KeysCommandTest(CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-keys-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "keys.json"

    def keys(self, action, *arguments):
        return rivulet("keys", action, "--keys-file", self.file, *arguments)

    def new(self, name, *arguments):
        """The new key."""
        result = self.succeeds(self.keys("new", name, *arguments))
        self.assertEqual(result.out.count("\n"), 1)
        self.assertNotIn(result.out.strip(), result.err)
        return result.out.strip()

    def entries(self):
        return json.loads(self.file.read_text())

    def test_a_new_key_is_printed_and_only_its_hash_is_kept(self):
        key = self.new("alice")
        self.assertRegex(key, r"^rivulet_[A-Za-z0-9_-]{43}$")
        self.assertEqual(self.entries(), [{"name": "alice", "sha256": hashlib.sha256(key.encode()).hexdigest(), "tenant": "alice"}])
        self.assertNotIn(key, self.file.read_text())
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        self.assertNotEqual(self.new("bob"), key)
        self.assertEqual([entry["name"] for entry in self.entries()], ["alice", "bob"])
        self.assertEqual(os.listdir(self.folder), ["keys.json"])

    def test_what_a_key_may_do_is_written_and_listed(self):
        limits = {"requests_per_minute": 60, "tokens_per_minute": 1000000000, "text_bytes_per_minute": 9, "slots": 1, "sessions": 7}
        flags = [text for name, value in limits.items() for text in (f"--{name.replace('_', '-')}", value)]
        self.new("ops", "--tenant", "team.a", "--model-name", "m-1", "--model-name", "m-2", "--admin", "--expires", "2999-01-31T02:00:00+02:00", *flags)
        (entry,) = self.entries()
        del entry["sha256"]
        self.assertEqual(entry, {"name": "ops", "tenant": "team.a", "models": ["m-1", "m-2"], "admin": True, "expires": "2999-01-31T00:00:00Z", **limits})
        self.new("old", "--expires", "2020-01-01T00:00:00Z")
        shown = self.succeeds(self.keys("list")).out.splitlines()
        self.assertEqual([line.split() for line in shown], [
            ["ops", "team.a", "m-1,m-2", "admin", "until", "2999-01-31T00:00:00Z", ",".join(f"{name}={value}" for name, value in limits.items())],
            ["old", "old", "all", "models", "client", "expired", "2020-01-01T00:00:00Z", "no", "limits"],
        ])  # fmt: skip
        listed = self.succeeds(self.keys("list", "--json")).lines()
        self.assertEqual([(entry["name"], entry["expired"]) for entry in listed], [("ops", False), ("old", True)])
        self.assertEqual([{name: entry[name] for name in limits if name in entry} for entry in listed], [limits, {}])
        for entry in self.entries():
            self.assertNotIn(entry["sha256"], "".join(shown))

    def test_what_the_server_would_refuse_is_not_written(self):
        self.new("alice")
        before = self.file.read_bytes()
        for arguments, mention in (
            (["alice"], "has a key named alice already"),
            (["a b"], '"a b"'),
            (["b", "--tenant", "x/y"], '"x/y"'),
            (["b", "--model-name", "Large"], '"Large"'),
            (["b", "--expires", "tomorrow"], '--expires is "tomorrow"'),
            (["b", "--requests-per-minute", "0"], "--requests-per-minute"),
            (["b", "--sessions", "1000000001"], "--sessions"),
        ):
            self.fails(self.keys("new", *arguments), 2, mention)
        self.fails(self.keys("revoke", "nobody"), 2, "has no key named nobody")
        self.assertEqual(self.file.read_bytes(), before)
        self.file.write_text("[{}]")
        self.fails(self.keys("new", "b"), 2, f"keys-file {self.file}", "[0].name is missing")
        self.fails(self.keys("list"), 2, f"keys-file {self.file}")
        self.assertEqual(self.file.read_text(), "[{}]")
        self.file.unlink()
        self.fails(self.keys("revoke", "b"), 2, f"keys-file {self.file}", "no such file")
        self.fails(rivulet("keys", "new", "b", "--keys-file", self.folder / "absent/keys.json"), 2, "absent/keys.json")

    def test_a_revoked_key_is_removed_and_the_others_stay(self):
        self.new("alice")
        self.new("bob")
        self.succeeds(self.keys("revoke", "alice"))
        self.assertEqual([entry["name"] for entry in self.entries()], ["bob"])

    def test_a_symlink_stays(self):
        self.new("alice")
        link = self.folder / "link.json"
        link.symlink_to("keys.json")
        self.succeeds(rivulet("keys", "new", "bob", "--keys-file", link))
        self.assertTrue(link.is_symlink())
        self.assertEqual(len(self.entries()), 2)

    def test_edits_at_the_same_time_lose_nothing(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(self.new, [f"key-{i}" for i in range(16)]))
        self.assertEqual(sorted(entry["name"] for entry in self.entries()), sorted(f"key-{i}" for i in range(16)))

    def call(self, *arguments, key=None):
        """`rivulet` with RIVULET_KEY in its environment, or without."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RIVULET_")}
        if key is not None:
            environment["RIVULET_KEY"] = key
        done = subprocess.run([BIN_DIR / "rivulet", *map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment)
        return Result(done.returncode, done.stdout, done.stderr)

    def test_a_key_opens_the_server_until_it_is_revoked(self):
        key, admin = self.new("alice"), self.new("ops", "--admin")
        file = self.folder / "alice.key"
        file.write_text(f"{key}\n")
        with Server(MODEL, args=["--threads", "1", "--admin-listen", "127.0.0.1:0", "--keys-file", self.file]) as server:
            models = ["models", "--target", server.target]
            self.fails(self.call(*models), 2, "needs a key")
            health = ["health", "--target", server.target]
            self.assertEqual(self.succeeds(self.call(*health)).out.split(), ["server", "SERVING"])
            self.assertEqual(self.succeeds(self.call(*health, key=key)).out.split(), ["server", "SERVING", "tiny-elu-relu", "SERVING"])
            self.fails(self.call(*health, key="wrong-secret"), 2, "does not know the key")
            self.succeeds(self.call(*models, "--key-file", file))
            self.succeeds(self.call(*models, key=key))
            self.succeeds(self.call(*models, "--key-file", file, key="wrong"))  # the option wins
            generate = ["generate", "--target", server.target, "--tokens", "1", "--max-tokens", "3", "--seed", "1"]
            self.assertEqual(
                self.succeeds(self.call(*generate, key=key)).out, self.succeeds(self.call("generate", "--model", MODEL, *generate[3:])).out
            )
            wrong = self.fails(self.call(*models, key="wrong-secret"), 2, "does not know the key")
            self.assertNotIn("wrong-secret", wrong.err)
            unload = ["models", "unload", "tiny-elu-relu", "--target", server.admin]
            self.fails(self.call(*unload, key=key), 2, "admin")
            self.succeeds(self.keys("revoke", "alice"))
            end = time.monotonic() + LIMIT
            while self.call(*models, key=key).code == 0:
                self.assertLess(time.monotonic(), end)
            self.fails(self.call(*models, key=key), 2, "does not know the key")
            self.succeeds(self.call(*unload, key=admin))

    def test_a_server_in_the_process_of_the_command_needs_no_key(self):
        self.succeeds(self.call("models", "--model", MODEL, key="any"))

    def test_a_key_that_cannot_be_sent_is_named_by_its_source(self):
        file = self.folder / "file.key"
        models = ["models", "--target", "127.0.0.1:1", "--key-file", file]
        self.fails(self.call(*models), 2, f"--key-file {file}")
        file.write_text(" \n")
        self.fails(self.call(*models), 2, f"--key-file {file} holds no key")
        file.write_text("two secrets\n")
        result = self.fails(self.call(*models), 2, f"--key-file {file} must hold one key")
        self.assertNotIn("secrets", result.err)
        result = self.fails(self.call("models", "--target", "127.0.0.1:1", key="two secrets"), 2, "RIVULET_KEY must hold one key")
        self.assertNotIn("secrets", result.err)


if __name__ == "__main__":
    unittest.main()
