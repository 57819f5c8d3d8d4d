# SPDX-License-Identifier: Apache-2.0
"""load_model() and unload_model() of the Python client, sync and asyncio, at --admin-listen of a real server."""

import asyncio
import unittest

import rivulet_wheel  # noqa: F401  makes rivulet what is imported below

import rivulet
from command import CONFORMANCE, Server

MODEL = "tiny-image"


class SyncAdminTest(unittest.TestCase):
    def call(self, function):
        with rivulet.Client(self.target) as client:
            return function(client)

    def setUp(self):
        args = ["--admin-listen", "127.0.0.1:0", "--model-repository", CONFORMANCE, "--threads", "1", "--backend", "cpu"]
        server = Server(CONFORMANCE / "tiny-rfa", args=args)
        server.__enter__()
        self.addCleanup(server.__exit__)
        self.target, self.public = server.admin, server.target

    def names(self):
        with rivulet.Client(self.public) as client:
            return [model.name for model in client.models()]

    def test_a_model_is_loaded_and_unloaded(self):
        loaded = self.call(lambda client: client.load_model(MODEL))
        self.assertEqual((loaded.name, loaded.backend), (MODEL, "cpu"))
        self.assertEqual(self.names(), ["tiny-rfa", MODEL])
        with self.assertRaises(rivulet.AlreadyExists) as raised:
            self.call(lambda client: client.load_model(MODEL))
        self.assertEqual((raised.exception.reason, raised.exception.field), ("MODEL_ALREADY_LOADED", "model"))
        with rivulet.Client(self.public) as client:
            session = client.open_session(model=MODEL)
            unloaded = self.call(lambda admin: admin.unload_model(MODEL, drain_timeout=0.5))
            self.assertEqual(unloaded, rivulet.Unloaded(all_ended=True, sessions_closed=1))
            with self.assertRaises(rivulet.NotFound) as raised:
                session.append([1])
            self.assertEqual(raised.exception.reason, "MODEL_NOT_FOUND")
        self.assertEqual(self.names(), ["tiny-rfa"])

    def test_replies_that_run_are_cut_when_their_time_is_over(self):
        with rivulet.Client(self.public) as client:
            reply = client.generate([1], model="tiny-rfa", max_tokens=1 << 19, resume=False)
            next(reply)
            unloaded = self.call(lambda admin: admin.unload_model("tiny-rfa", drain_timeout=0))
            self.assertEqual(unloaded, rivulet.Unloaded(all_ended=False, sessions_closed=0))
            with self.assertRaises(rivulet.Unavailable) as raised:
                list(reply)
            self.assertEqual(raised.exception.reason, "DRAINING")

    def test_the_log_level_is_shown_and_set(self):
        self.assertEqual(self.call(lambda client: client.log_level()), "info")
        self.assertEqual(self.call(lambda client: client.set_log_level("debug")), "info")
        self.assertEqual(self.call(lambda client: client.log_level()), "debug")

    def test_bad_arguments_are_refused_here_or_there(self):
        for function, error in (
            (lambda client: client.load_model(1), TypeError),
            (lambda client: client.set_log_level("loud"), ValueError),
            (lambda client: client.unload_model(MODEL, drain_timeout=-1), ValueError),
            (lambda client: client.unload_model(MODEL, drain_timeout=86401), ValueError),
            (lambda client: client.unload_model(MODEL, drain_timeout=float("nan")), ValueError),
            (lambda client: client.load_model(".."), rivulet.InvalidArgument),
            (lambda client: client.load_model("absent"), rivulet.NotFound),
            (lambda client: client.unload_model(MODEL), rivulet.NotFound),
        ):
            with self.assertRaises(error):
                self.call(function)
        self.target = self.public
        with self.assertRaises(rivulet.Unimplemented):
            self.call(lambda client: client.unload_model("tiny-rfa"))
        self.assertEqual(self.names(), ["tiny-rfa"])


class AsyncAdminTest(SyncAdminTest):
    def call(self, function):
        async def run():
            async with rivulet.AsyncClient(self.target) as client:
                return await function(client)

        return asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
