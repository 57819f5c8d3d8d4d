# SPDX-License-Identifier: Apache-2.0
"""The Python client's `key`, sync and asyncio, at a server with --keys-file."""

import asyncio
import pathlib
import tempfile
import unittest

import rivulet_wheel  # noqa: F401  makes rivulet what is imported below

import rivulet as package
from command import CONFORMANCE, Server, rivulet
from rivulet.core.connection import ConnectOptions

MODEL = "tiny-elu-relu"


class KeysTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-keys-")
        cls.addClassCleanup(folder.cleanup)
        file = pathlib.Path(folder.name) / "keys.json"
        made = rivulet("keys", "new", "alice", "--keys-file", file)
        assert made.code == 0, made
        cls.key = made.out.strip()
        server = Server(CONFORMANCE / MODEL, args=["--threads", "1", "--keys-file", file])
        server.__enter__()
        cls.addClassCleanup(server.__exit__)
        cls.target = server.target

    def test_calls_show_the_key(self):
        with package.Client(self.target, key=self.key) as client:
            self.assertEqual([model.name for model in client.models()], [MODEL])
            session = client.open_session()
            session.append([1, 2])
            self.assertEqual(len(list(client.sessions())), 1)

    def test_calls_of_asyncio_show_the_key(self):
        async def names():
            async with package.AsyncClient(self.target, key=self.key) as client:
                return [model.name for model in await client.models()]

        self.assertEqual(asyncio.run(names()), [MODEL])

    def test_other_keys_are_unauthenticated(self):
        for key, reason in (("", "API_KEY_MISSING"), ("wrong-secret", "API_KEY_UNKNOWN")):
            with package.Client(self.target, key=key) as client:
                with self.assertRaises(package.Unauthenticated) as raised:
                    client.models()
            self.assertEqual((raised.exception.reason, raised.exception.field), (reason, "authorization"))
            self.assertNotIn("wrong-secret", str(raised.exception))

    def test_what_a_client_was_given_shows_no_secret(self):
        given = ConnectOptions(
            target="a:1", tls=None, connect_timeout=1, wait_for_ready=True, max_attempts=1, max_receive_bytes=9,
            metadata={"authorization": "secret"}, tenant="b", key="secret",
        )  # fmt: skip
        self.assertIn("'a:1'", repr(given))
        self.assertNotIn("secret", repr(given))

    def test_a_key_that_cannot_be_sent_is_refused_without_quoting_it(self):
        for key, error in (("two secrets", ValueError), ("secrets\n", ValueError), (b"secrets", TypeError)):
            with self.assertRaisesRegex(error, "^key: ") as raised:
                package.Client(self.target, key=key)
            self.assertNotIn("secrets", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
