# SPDX-License-Identifier: Apache-2.0
"""What every client makes of a server's answers, against a server that follows a script: each test runs with each client. Lost replies of
a real server are in lost_replies_test.py."""

import asyncio
import contextlib
import itertools
import logging
import pathlib
import tempfile
import threading
import unittest
from concurrent import futures

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

from drivers import drivers
from fake_server import ScriptedServer, cut, fails, fnv1a, part
from grpc import StatusCode as Code

from rivulet.v1 import session_service_pb2

logging.getLogger("grpc").setLevel(logging.CRITICAL)
PATIENCE = 100  # seconds that a step may take on a busy machine
END = {"reason": "FINISH_REASON_LENGTH"}
LOST = cut(Code.UNAVAILABLE, "gone")
DRAINING, MOVED = fails(Code.UNAVAILABLE, "DRAINING", retry_seconds=0.01), fails(Code.ABORTED, "SESSION_MOVED")
NOT_NOW = fails(Code.UNAVAILABLE, "NOT_NOW", retry_seconds=0.01)
UNKNOWN_THERE = fails(Code.NOT_FOUND, "SESSION_NOT_FOUND")
CPP = ("c++ wait", "c++ async")


class Peer:
    """A client in a driver. Its steps fail the test that they are made for, unless they end with the code and the reason in `fails`."""

    numbers = itertools.count()

    def __init__(self, test, driver, loop):
        self.test, self.driver, self.loop = test, driver, loop
        self.name = f"client {next(self.numbers)}"
        self.seen, self.changed = 0, threading.Condition()
        driver.peers[self.name] = self

    def saw(self):
        with self.changed:
            self.seen += 1
            self.changed.notify_all()

    def wait_until_seen(self, parts):
        """Some clients give out an error before the parts that came before it."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.seen >= parts, PATIENCE)

    @contextlib.contextmanager
    def at(self, server, **options):
        """Connected to a server."""
        with server:
            server.peer, self.seen = self, 0
            self.do("connect", target=server.target, options=options)
            yield self

    def do(self, step, fails=None, session=None, take=None, options=None, **fields):
        job = {"step": step, "client": self.name, "session": session, "take": take, "options": options or {}, **fields}
        outcome = asyncio.run_coroutine_threadsafe(self.driver.run(job), self.loop).result(PATIENCE)
        error = outcome["error"]
        self.test.assertEqual(error and (error["code"], error["reason"]), fails, error)
        return outcome

    def session(self, step="open_session", **fields):
        return Session(self, step, **fields)

    def generate(self, take=None, fails=None, prompt="p", **options):
        return self.do("generate", prompt=prompt, take=take, fails=fails, options=options)


class Session:
    """A session of a peer, and what its client says of it."""

    def __init__(self, peer, step, **fields):
        self.peer, self.name = peer, f"session {next(Peer.numbers)}"
        self.do(step, **fields)

    def do(self, step, **fields):
        outcome = self.peer.do(step, session=self.name, **fields)
        self.state = outcome.get("session")
        return outcome

    def generate(self, prompt=(), take=None, fails=None, **options):
        return self.do("generate", prompt=prompt, take=take, fails=fails, options=options)

    def append(self, content=(), fails=None, **options):
        return self.do("append", content=content, fails=fails, options=options)

    @property
    def cookie(self):
        return self.state["cookie"]

    @property
    def place(self):
        return self.state["position"], int(self.state["sequence_hash"])


def tokens_of(outcome):
    return [token for said in outcome["parts"] for token in said.get("tokens", ())]


def setUpModule():
    global LOOP, DRIVERS
    LOOP = asyncio.new_event_loop()
    thread = threading.Thread(target=LOOP.run_forever)
    thread.start()
    wait = lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, LOOP).result(PATIENCE)
    folder = tempfile.TemporaryDirectory()
    DRIVERS = {name: driver for name, driver in drivers(pathlib.Path(folder.name)).items() if "multiplex" not in name and name != "command"}
    for driver in filter(None, DRIVERS.values()):
        driver.peers = {}
        driver.saw = lambda client, driver=driver: driver.peers[client].saw()
        wait(driver.start())

    def stop():
        for driver in filter(None, DRIVERS.values()):
            wait(driver.stop())
        LOOP.call_soon_threadsafe(LOOP.stop)
        thread.join()
        LOOP.close()
        folder.cleanup()

    unittest.addModuleCleanup(stop)


def for_each_client(*without):
    """Makes a test of a function of a test case and a Peer. without: names of clients that have no such call."""

    def make(body):
        def test(self):
            asked = {name: driver for name, driver in DRIVERS.items() if name not in without}
            with futures.ThreadPoolExecutor(len(asked)) as pool:
                outcomes = {name: driver and pool.submit(body, self, Peer(self, driver, LOOP)) for name, driver in asked.items()}
            for name, outcome in outcomes.items():
                with self.subTest(client=name):
                    if outcome is None:
                        self.skipTest("not built: deploy/setup.sh --tests makes build/typescript, the build contract_driver")
                    outcome.result()

        return test

    return make


class Replica(ScriptedServer):
    """Opens sessions "s0", "s1", ... Replies to Append, Generate and calls that open sessions come with the cookies in `gives`. The
    first Appends and Generates end with `ends`, one each."""

    def __init__(self, *gives):
        self.gives, self.opened, self.ends = gives, 0, []
        pb2 = session_service_pb2
        super().__init__({
            "OpenSession": lambda _, context: pb2.OpenSessionReply(session=self.open(context)),
            "ForkSession": lambda _, context: pb2.ForkSessionReply(sessions=[self.open(context), self.session("last")]),
            "RestoreSession": lambda chunks, context: pb2.RestoreSessionReply(session=list(chunks) and self.open(context)),
            "Append": lambda _, context: self.end(context) or pb2.AppendReply(progress=self.session("s0")["progress"]),
            "RewindSession": lambda *_: pb2.RewindSessionReply(session=self.session("s0")),
            "GetSession": lambda *_: pb2.GetSessionReply(session=self.session("s0")),
            "CloseSession": lambda *_: pb2.CloseSessionReply(),
            "SnapshotSession": lambda *_: (),
            "Generate": lambda _, context: self.generate(context),
        })  # fmt: skip

    def session(self, id):
        return {"session_id": id, "model": "m", "progress": {"position": 0, "sequence_hash": fnv1a([])}, "seed": 7}

    def give(self, context):
        context.send_initial_metadata([("set-cookie", value) for value in self.gives])

    def end(self, context):
        self.give(context)
        if self.ends:
            self.ends.pop(0)(context)

    def generate(self, context):
        self.end(context)
        yield part(session=self.session("s0")["progress"], seed=7, fingerprint=5, finish=END, usage={})

    def open(self, context):
        self.give(context)
        self.opened += 1
        return self.session(f"s{self.opened - 1}")

    def cookies(self, *names):
        return [(call.name, call.metadata.get("cookie")) for call in self.calls if not names or call.name in names]


A, B = "replica=a", "replica=b"
GONE, LEFT = ("NOT_FOUND", "SESSION_NOT_FOUND"), ("UNAVAILABLE", "DRAINING")


class CookieTest(unittest.TestCase):
    """Sessions behind a balancer that gives cookies."""

    @for_each_client()
    def test_every_call_on_a_session_brings_the_cookie_of_the_reply_that_opened_it(self, peer):
        server, cookie = Replica("replica=a; path=/; HttpOnly", "zone = b"), "replica=a; zone = b"
        with peer.at(server):
            session = peer.session()
            self.assertEqual(session.cookie, cookie)
            server.gives = ()
            session.append()
            session.do("rewind", options={"position": 0})
            session.do("snapshot")
            session.generate()
            session.do("close")
        names = ("Append", "RewindSession", "SnapshotSession", "Generate", "CloseSession")
        self.assertEqual(server.cookies(), [("OpenSession", None), *((name, cookie) for name in names)])

    def cookies_of(self, peer, name, ends, gives=(), fails=None, max_attempts=5, cookie=A):
        """The cookies that calls brought, where the session had `cookie` and the first calls end with `ends`; and that of the session
        then."""
        server = Replica()
        with peer.at(server, max_attempts=max_attempts):
            session = peer.session("session", of="s0", options={"cookie": cookie})
            server.ends, server.gives = list(ends), gives
            getattr(session, name.lower())(fails=fails)
            self.assertEqual(server.ends, [])
        return [cookie for _, cookie in server.cookies(name)], session.cookie

    @for_each_client()
    def test_a_reply_goes_on_elsewhere_where_its_replica_drains_or_has_lost_the_session(self, peer):
        for left in (DRAINING, MOVED):
            self.assertEqual(self.cookies_of(peer, "Generate", [left], gives=["replica=b; path=/"]), ([A, None], B))
        self.assertEqual(self.cookies_of(peer, "Generate", [NOT_NOW]), ([A, A], A))
        self.assertEqual(self.cookies_of(peer, "Generate", [LOST, NOT_NOW, NOT_NOW]), ([A, A, None, None], A))

    @for_each_client()
    def test_a_session_that_another_replica_does_not_know_is_asked_for_with_its_cookie(self, peer):
        sent = [A, None, A]
        elsewhere = {"gives": [B]}  # a balancer gives it with errors, too
        self.assertEqual(self.cookies_of(peer, "Generate", [DRAINING, UNKNOWN_THERE], **elsewhere), (sent, B))
        self.assertEqual(self.cookies_of(peer, "Generate", [DRAINING, UNKNOWN_THERE, DRAINING]), ([*sent, A], A))
        self.assertEqual(self.cookies_of(peer, "Generate", [DRAINING, UNKNOWN_THERE, UNKNOWN_THERE], fails=GONE), (sent, A))
        self.assertEqual(self.cookies_of(peer, "Generate", [UNKNOWN_THERE], fails=GONE, **elsewhere), ([A], A))
        self.assertEqual(self.cookies_of(peer, "Generate", [DRAINING, UNKNOWN_THERE], fails=LEFT, max_attempts=2), (sent[:2], A))
        self.assertEqual(self.cookies_of(peer, "Generate", [DRAINING, UNKNOWN_THERE], fails=GONE, cookie=""), ([None, None], ""))

    @for_each_client()
    def test_a_call_is_made_once_more_without_the_cookie(self, peer):
        once = {"max_attempts": 1}  # of gRPC
        for left in (DRAINING, MOVED, LOST):
            self.assertEqual(self.cookies_of(peer, "Append", [left], gives=[B], **once), ([A, None], B))
        self.assertEqual(self.cookies_of(peer, "Append", [DRAINING, UNKNOWN_THERE], gives=[B], fails=LEFT, **once), ([A, None], A))
        self.assertEqual(self.cookies_of(peer, "Append", [DRAINING, MOVED], fails=("ABORTED", "SESSION_MOVED"), **once), ([A, None], A))
        self.assertEqual(self.cookies_of(peer, "Append", [UNKNOWN_THERE], fails=GONE, **once), ([A], A))

    @for_each_client("python sync", "python async", "typescript")
    def test_an_append_without_a_position_may_have_been_fed(self, peer):
        server = Replica()
        with peer.at(server, max_attempts=1):
            session = peer.session("session", of="s0", options={"cookie": A})
            server.ends = [LOST]
            session.do("append", no_position=True, fails=("UNAVAILABLE", ""))
        self.assertEqual(server.cookies("Append"), [("Append", A)])

    @for_each_client()
    def test_forks_and_restored_sessions_have_the_cookie_of_their_own_reply(self, peer):
        server = Replica(A)
        with peer.at(server):
            session = peer.session()
            for gives, expected in (((), A), ((B,), B)):
                server.gives = gives
                self.assertEqual([fork["cookie"] for fork in session.do("fork")["forks"]], [expected] * 2)
            self.assertEqual(session.cookie, B)  # which answered for it
            server.gives = ("replica=c",)
            self.assertEqual(peer.session("restore").cookie, "replica=c")
        self.assertEqual(server.cookies("ForkSession"), [("ForkSession", A)] * 2)

    @for_each_client()
    def test_each_session_brings_its_own_cookie_and_other_calls_bring_none(self, peer):
        server = Replica(A)
        with peer.at(server):
            first = peer.session()
            server.gives = (B,)
            second = peer.session()
            server.gives = ()
            plain = peer.session()
            self.assertEqual((first.cookie, second.cookie, plain.cookie), (A, B, ""))
            for session in (second, first, plain):
                session.append()
            peer.generate()
        appends = [("Append", B), ("Append", A), ("Append", None)]
        self.assertEqual(server.cookies(), [("OpenSession", None)] * 3 + appends + [("Generate", None)])

    @for_each_client("typescript")
    def test_a_session_that_is_closed_has_no_cookie(self, peer):
        server = Replica(A)
        with peer.at(server):
            session = peer.session()
            server.gives = ()
            session.do("close")
            self.assertEqual(session.cookie, "")
            session.append()
        self.assertEqual(server.cookies("Append"), [("Append", None)])

    @for_each_client()
    def test_another_program_goes_on_with_id_and_cookie(self, peer):
        server = Replica()
        with peer.at(server):
            session = peer.session("session", of="s0", options={"cookie": "replica=d"})
            session.append()
        self.assertEqual({cookie for _, cookie in server.cookies()}, {"replica=d"})


if __name__ == "__main__":
    unittest.main()
