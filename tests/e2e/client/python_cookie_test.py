# SPDX-License-Identifier: Apache-2.0
"""Sessions of the Python client behind a balancer that gives cookies: every call on a session brings its cookie back, unless another
replica is to be asked."""

import asyncio
import contextlib
import unittest
import unittest.mock

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import grpc
import rivulet
from fake_server import ScriptedServer, cut, fails, fnv1a
from python_clients import Async, Sync
from rivulet import cookies
from rivulet.v1 import inference_pb2, session_service_pb2

EMPTY = {"position": 0, "sequence_hash": fnv1a([])}
LOST = cut(grpc.StatusCode.UNAVAILABLE)
DRAINING, MOVED = fails(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_seconds=0.01), fails(grpc.StatusCode.ABORTED, "SESSION_MOVED")
UNKNOWN_THERE = fails(grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")


class Replica(ScriptedServer):
    """Opens sessions "s0", "s1", ... Replies to Append, Generate and calls that open sessions come with the cookies in `gives`. The
    first Appends and Generates end with `ends`, one each."""

    def __init__(self, *gives):
        self.gives, self.opened, self.ends = gives, 0, []
        pb2 = session_service_pb2
        super().__init__({
            "OpenSession": lambda _, context: pb2.OpenSessionReply(session=self.open(context)),
            "ForkSession": lambda _, context: pb2.ForkSessionReply(sessions=[self.open(context)]),
            "RestoreSession": lambda chunks, context: pb2.RestoreSessionReply(session=list(chunks) and self.open(context)),
            "Append": lambda _, context: self.end(context) or pb2.AppendReply(progress=EMPTY),
            "RewindSession": lambda *_: pb2.RewindSessionReply(session=self.session("s0")),
            "GetSession": lambda *_: pb2.GetSessionReply(session=self.session("s0")),
            "CloseSession": lambda *_: pb2.CloseSessionReply(),
            "SnapshotSession": lambda *_: (),
            "Generate": lambda _, context: self.generate(context),
        })  # fmt: skip

    def session(self, id):
        return {"session_id": id, "model": "m", "progress": EMPTY, "seed": 7}

    def end(self, context):
        context.send_initial_metadata([("set-cookie", value) for value in self.gives])
        if self.ends:
            self.ends.pop(0)(context)

    def generate(self, context):
        self.end(context)
        yield inference_pb2.GenerateReply(session=EMPTY, seed=7, fingerprint=5, finish={"reason": 1}, usage={})

    def open(self, context):
        context.send_initial_metadata([("set-cookie", value) for value in self.gives])
        self.opened += 1
        return self.session(f"s{self.opened - 1}")


class CookieTests:
    def run_on(self, replica, function, max_attempts=1):
        async def run():
            async with self.client(replica.target, max_attempts=max_attempts) as client:
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

    def cookies_of(self, name, ends, *, gives=(), error=None, max_attempts=5):
        """The cookies that calls brought, where the session had "replica=a" and the first calls end with `ends`; and that of the session
        then."""

        async def run(client):
            session = await client.session("s0", cookie="replica=a")
            session.keep()
            replica.ends, replica.gives = list(ends), gives
            with self.assertRaises(error[0]) if error else contextlib.nullcontext() as caught:
                if name == "Append":
                    await session.append([])
                else:
                    self.assertEqual([part.finish.reason.name async for part in session.generate(max_tokens=1)], ["LENGTH"])
            if error:
                self.assertEqual(caught.exception.reason, error[1])
            self.assertEqual(replica.ends, [])
            kept.append(session.cookie)

        replica, kept = Replica(), []
        calls = self.run_on(replica, run, max_attempts)
        return [cookie for called, cookie in calls if called == name], *kept

    def test_a_reply_goes_on_elsewhere_where_its_replica_drains_or_has_lost_the_session(self):
        for left in (DRAINING, MOVED):
            self.assertEqual(self.cookies_of("Generate", [left], gives=["replica=b; path=/"]), (["replica=a", None], "replica=b"))
        self.assertEqual(self.cookies_of("Generate", [LOST]), (["replica=a"] * 2, "replica=a"))
        self.assertEqual(self.cookies_of("Generate", [LOST, LOST, LOST]), (["replica=a"] * 2 + [None] * 2, "replica=a"))

    def test_a_session_that_another_replica_does_not_know_is_asked_for_with_its_cookie(self):
        sent = ["replica=a", None, "replica=a"]
        elsewhere = {"gives": ["replica=b"]}  # a balancer gives it with errors, too
        self.assertEqual(self.cookies_of("Generate", [DRAINING, UNKNOWN_THERE], **elsewhere), (sent, "replica=b"))
        self.assertEqual(self.cookies_of("Generate", [DRAINING, UNKNOWN_THERE, DRAINING]), ([*sent, "replica=a"], "replica=a"))
        gone = rivulet.NotFound, "SESSION_NOT_FOUND"
        self.assertEqual(self.cookies_of("Generate", [DRAINING, UNKNOWN_THERE, UNKNOWN_THERE], error=gone), (sent, "replica=a"))
        self.assertEqual(self.cookies_of("Generate", [UNKNOWN_THERE], error=gone, **elsewhere), (["replica=a"], "replica=a"))
        first = {"error": (rivulet.Unavailable, "DRAINING"), "max_attempts": 2}
        self.assertEqual(self.cookies_of("Generate", [DRAINING, UNKNOWN_THERE], **first), (sent[:2], "replica=a"))

    def test_a_call_is_made_once_more_without_the_cookie(self):
        once = {"max_attempts": 1}  # of gRPC
        for left in (DRAINING, MOVED, LOST):
            self.assertEqual(self.cookies_of("Append", [left], gives=["replica=b"], **once), (["replica=a", None], "replica=b"))
        draining, moved = (rivulet.Unavailable, "DRAINING"), (rivulet.Aborted, "SESSION_MOVED")
        self.assertEqual(self.cookies_of("Append", [DRAINING, UNKNOWN_THERE], error=draining, **once), (["replica=a", None], "replica=a"))
        self.assertEqual(self.cookies_of("Append", [DRAINING, MOVED], error=moved, **once), (["replica=a", None], "replica=a"))
        gone = rivulet.NotFound, "SESSION_NOT_FOUND"
        self.assertEqual(self.cookies_of("Append", [UNKNOWN_THERE], error=gone, **once), (["replica=a"], "replica=a"))

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
            self.assertEqual(session.cookie, "replica=b")  # which answered for it

        replica = Replica()
        self.run_on(replica, run)

    def test_each_session_brings_its_own_cookie_until_it_is_closed_and_other_calls_bring_none(self):
        async def run(client):
            replica.gives = ("replica=a",)
            first = await client.open_session()
            replica.gives = ("replica=b",)
            second = await client.open_session()
            replica.gives = ()
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
