# SPDX-License-Identifier: Apache-2.0
"""Sessions of the Python client against a server that follows a script. contract/contract_test.py has what all clients do."""

import asyncio
import time
import unittest
from concurrent import futures

import rivulet_wheel  # makes rivulet what is imported below

import grpc

import rivulet
from fake_server import ScriptedServer, fails, fnv1a, follow, part
from python_clients import Async, Sync, tokens_of
from rivulet.v1 import session_service_pb2

ID = "0123456789abcdef" * 2
LATER = fails(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_seconds=3600)


def progress(tokens):
    return {"position": len(tokens), "sequence_hash": fnv1a(tokens)}


class SessionServer(ScriptedServer):
    """Opens one empty session of model "m" with seed 7. Generate follows the script `replies`."""

    def __init__(self, *replies):
        opened = {"session_id": ID, "model": "m", "progress": progress([]), "seed": 7}
        super().__init__({
            "Generate": follow(list(replies)),
            "OpenSession": lambda *_: session_service_pb2.OpenSessionReply(session=opened),
            "CloseSession": lambda *_: session_service_pb2.CloseSessionReply(),
        })  # fmt: skip


class FakeTests:
    def use(self, server, function):
        """Runs a coroutine function of a session of `server`."""

        async def run():
            async with self.client(server.target) as client:
                async with await client.open_session(seed=7) as session:
                    await function(session)

        with server:
            asyncio.run(run())

    def test_a_gap_and_a_part_that_does_not_say_where_it_is_are_internal(self):
        good = part(tokens=[3], session=progress([1, 2, 3]), seed=7)
        for bad, mention in (
            (part(first_position=2, tokens=[4], session=progress([1, 2, 3, 4])), "token 2 of the reply instead of 1"),
            (part(first_position=1, tokens=[4]), "where"),
        ):

            async def run(session):
                with self.assertRaisesRegex(rivulet.Internal, mention):
                    await tokens_of(session.generate([1, 2], max_tokens=4))
                self.assertEqual((session.position, session.sequence_hash), (3, fnv1a([1, 2, 3])))

            self.use(SessionServer([good, bad]), run)

    def test_a_session_shows_its_id_model_and_position(self):
        async def run(session):
            self.assertRegex(repr(getattr(session, "of", session)), f"^<(Async)?Session {ID} of m at 0>$")

        self.use(SessionServer(), run)


class SyncFakeTest(FakeTests, Sync, unittest.TestCase):
    def test_close_in_another_thread_ends_the_wait_for_another_try(self):
        server = SessionServer([LATER])

        async def run(session):
            stream = session.generate([1, 2])
            with futures.ThreadPoolExecutor(1) as pool:
                tokens = pool.submit(list, stream.of)
                while not server.asked():
                    time.sleep(0.01)
                stream.close()
                with self.assertRaises(rivulet.Cancelled):
                    tokens.result(30)

        self.use(server, run)


class AsyncFakeTest(FakeTests, Async, unittest.TestCase):
    def test_close_by_another_task_ends_the_wait_for_another_try(self):
        server = SessionServer([LATER])

        async def run(session):
            stream = session.generate([1, 2])
            tokens = asyncio.create_task(tokens_of(stream))
            while not server.asked():
                await asyncio.sleep(0.01)
            stream.close()
            with self.assertRaises(rivulet.Cancelled):
                await tokens

        self.use(server, run)


if __name__ == "__main__":
    unittest.main()
