# SPDX-License-Identifier: Apache-2.0
"""Sessions of the Python client behind a balancer that gives cookies: every call on a session brings its cookie back."""

import asyncio
import unittest
import unittest.mock
from concurrent import futures

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import grpc

from python_sessions import Async, Sync, fnv1a
from rivulet import cookies
from rivulet.v1 import inference_pb2, session_service_pb2

EMPTY = {"position": 0, "sequence_hash": fnv1a([])}


class Replica:
    """Opens sessions "s0", "s1", ... with the cookies in `gives`, and notes (method, cookie) of every call."""

    def __init__(self, *gives):
        self.gives, self.calls, self.opened = gives, [], 0
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        session = {name: unary for name in ("OpenSession", "ForkSession", "Append", "RewindSession", "CloseSession", "GetSession")}
        session |= {"SnapshotSession": stream, "RestoreSession": grpc.stream_unary_rpc_method_handler}
        for service, package, methods in (
            ("rivulet.v1.SessionService", session_service_pb2, session),
            ("rivulet.v1.InferenceService", inference_pb2, {"Generate": stream}),
        ):
            handlers = {name: self.handler(package, name, kind) for name, kind in methods.items()}
            self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
        self.target = "127.0.0.1:%d" % self.server.add_insecure_port("127.0.0.1:0")

    def handler(self, package, name, kind):
        request, reply = (getattr(package, name + end) for end in ("Request", "Reply"))

        def unary(message, context):
            self.calls.append((name, dict(context.invocation_metadata()).get("cookie")))
            if name == "RestoreSession":
                list(message)
            if name in ("OpenSession", "ForkSession", "RestoreSession"):
                context.send_initial_metadata([("set-cookie", value) for value in self.gives])
                return reply(sessions=[self.session()]) if name == "ForkSession" else reply(session=self.session())
            return reply(session={**self.session(), "session_id": "s0"}) if name in ("RewindSession", "GetSession") else reply(
                **({"progress": EMPTY} if name == "Append" else {})
            )

        def stream(message, context):
            unary(message, context)
            yield from ()

        method = stream if kind is grpc.unary_stream_rpc_method_handler else unary
        return kind(method, request.FromString, reply.SerializeToString)

    def session(self):
        self.opened += 1
        return {"session_id": f"s{self.opened - 1}", "model": "m", "progress": EMPTY, "seed": 7}

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *exception):
        self.server.stop(None).wait()


class CookieTests:
    def run_on(self, replica, function):
        async def run():
            async with self.client(replica.target, max_attempts=1) as client:
                await function(client)

        with replica:
            asyncio.run(run())
        return replica.calls

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


class SyncCookieTest(Sync, CookieTests, unittest.TestCase):
    pass


class AsyncCookieTest(Async, CookieTests, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
