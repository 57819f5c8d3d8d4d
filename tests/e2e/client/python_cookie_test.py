# SPDX-License-Identifier: Apache-2.0
"""Sessions of the Python client behind a balancer that gives cookies: every call on a session brings its cookie back."""

import asyncio
import unittest
import unittest.mock

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

from fake_server import ScriptedServer
from python_clients import Async, Sync, fnv1a
from rivulet import cookies
from rivulet.v1 import session_service_pb2

EMPTY = {"position": 0, "sequence_hash": fnv1a([])}


class Replica(ScriptedServer):
    """Opens sessions "s0", "s1", ... with the cookies in `gives`."""

    def __init__(self, *gives):
        self.gives, self.opened = gives, 0
        pb2 = session_service_pb2
        super().__init__({
            "OpenSession": lambda _, context: pb2.OpenSessionReply(session=self.open(context)),
            "ForkSession": lambda _, context: pb2.ForkSessionReply(sessions=[self.open(context)]),
            "RestoreSession": lambda chunks, context: pb2.RestoreSessionReply(session=list(chunks) and self.open(context)),
            "Append": lambda *_: pb2.AppendReply(progress=EMPTY),
            "RewindSession": lambda *_: pb2.RewindSessionReply(session=self.session("s0")),
            "GetSession": lambda *_: pb2.GetSessionReply(session=self.session("s0")),
            "CloseSession": lambda *_: pb2.CloseSessionReply(),
            "SnapshotSession": lambda *_: (),
            "Generate": lambda *_: (),
        })  # fmt: skip

    def session(self, id):
        return {"session_id": id, "model": "m", "progress": EMPTY, "seed": 7}

    def open(self, context):
        context.send_initial_metadata([("set-cookie", value) for value in self.gives])
        self.opened += 1
        return self.session(f"s{self.opened - 1}")


class CookieTests:
    def run_on(self, replica, function):
        async def run():
            async with self.client(replica.target, max_attempts=1) as client:
                await function(client)

        with replica:
            asyncio.run(run())
        return [(call.name, call.metadata.get("cookie")) for call in replica.calls]

    def test_every_call_on_a_session_brings_the_cookie_of_the_reply_that_opened_it(self):
        async def run(client):
            async with await client.open_session() as session:
                self.assertEqual(session.cookie, "replica=a; zone=b")
                await session.append([])
                await session.rewind(position=0)
                await session.snapshot()
                async for _ in session.generate(max_tokens=1):
                    pass

        calls = self.run_on(Replica("replica=a; path=/; HttpOnly", "zone=b"), run)
        self.assertEqual(calls[0], ("OpenSession", None))
        self.assertEqual({cookie for _, cookie in calls[1:]}, {"replica=a; zone=b"})
        self.assertLessEqual({"Append", "RewindSession", "SnapshotSession", "Generate", "CloseSession"}, {name for name, _ in calls})

    def test_forks_and_restored_sessions_have_the_cookie_of_their_own_reply(self):
        async def run(client):
            replica.gives = ("replica=a",)
            session = await client.open_session()
            replica.gives = ()
            self.assertEqual((await session.fork())[0].cookie, "replica=a")
            replica.gives = ("replica=b",)
            self.assertEqual((await session.fork())[0].cookie, "replica=b")
            replica.gives = ("replica=c",)
            self.assertEqual((await client.restore_session(b"bytes")).cookie, "replica=c")
            self.assertEqual(session.cookie, "replica=a")

        replica = Replica()
        self.run_on(replica, run)

    def test_each_session_brings_its_own_cookie_until_it_is_closed_and_other_calls_bring_none(self):
        async def run(client):
            replica.gives = ("replica=a",)
            first = await client.open_session()
            replica.gives = ("replica=b",)
            second = await client.open_session()
            await second.append([])
            await first.append([])
            async for _ in client.generate(max_tokens=1):
                pass
            await first.close()
            self.assertEqual((first.cookie, second.cookie), ("", "replica=b"))
            await first.append([])
            await second.append([])

        replica = Replica()
        self.assertEqual(self.run_on(replica, run), [
            ("OpenSession", None), ("OpenSession", None), ("Append", "replica=b"), ("Append", "replica=a"), ("Generate", None),
            ("CloseSession", "replica=a"), ("Append", None), ("Append", "replica=b"),
        ])  # fmt: skip

    def test_without_a_balancer_no_cookie_is_sent(self):
        async def run(client):
            async with await client.open_session() as session:
                self.assertEqual(session.cookie, "")

        self.assertEqual(self.run_on(Replica(), run), [("OpenSession", None), ("CloseSession", None)])

    def test_another_program_goes_on_with_id_and_cookie(self):
        async def run(client):
            session = await client.session("s0", cookie="replica=d")
            await session.append([])
            with self.assertRaisesRegex(ValueError, "cookie"):
                await client.session("s0", cookie="a\nb")

        calls = self.run_on(Replica(), run)
        self.assertEqual({cookie for _, cookie in calls}, {"replica=d"})


class KeptCookiesTest(unittest.TestCase):
    def setUp(self):
        self.enterContext(unittest.mock.patch.object(cookies, "MOST", 3))
        self.kept = cookies.SessionCookies()

    def set(self, *ids):
        for id in ids:
            self.kept.set(id, f"replica={id}")

    def known(self, *ids):
        return "".join(id for id in ids if self.kept.get(id))

    def test_the_oldest_is_forgotten_beyond_the_most(self):
        self.set(*"abcd")
        self.assertEqual(self.known(*"abcd"), "bcd")

    def test_a_cookie_that_is_set_again_takes_no_second_place(self):
        self.set(*"abbbbc")
        self.kept.set("b", "replica=2")
        self.assertEqual((self.known(*"abc"), self.kept.get("b")), ("abc", "replica=2"))

    def test_a_forgotten_session_takes_no_place(self):
        self.set(*"ab")
        self.kept.forget("b")
        self.kept.forget("never there")
        self.set(*"cd")
        self.assertEqual(self.known(*"abcd"), "acd")
        self.kept.forget("a")
        self.set("a", "e")
        self.assertEqual(self.known(*"acde"), "ade")


class SyncCookieTest(CookieTests, Sync, unittest.TestCase):
    pass


class AsyncCookieTest(CookieTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
