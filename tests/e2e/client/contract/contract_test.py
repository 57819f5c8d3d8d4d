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
from fake_server import ScriptedServer, cut, failing, fails, fnv1a, part
from grpc import StatusCode as Code

from rivulet.v1 import session_service_pb2

logging.getLogger("grpc").setLevel(logging.CRITICAL)
PATIENCE = 100  # seconds that a step may take on a busy machine
ID = "0123456789abcdef" * 2
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


NOT_DURABLE = {"durable": False, "position": 1}
TEXT = [1, 2]  # the tokens of any text
BEHIND = ("FAILED_PRECONDITION", "SESSION_HASH_MISMATCH")


def wait_for_client(context):
    """Until it has left the call, which draws no further token."""
    left = threading.Event()
    if context.add_callback(left.set):
        left.wait()
    context.abort(Code.CANCELLED, "")


class Store(ScriptedServer):
    """Holds one session. Every token that it draws is the one before it and one. durability: what it says of each request. cut: called
    after the next drawn token, to end the call."""

    def __init__(self, durability):
        self.sequence, self.marks, self.said, self.cut = [], {}, {"durability": durability} if durability else {}, None
        replies = session_service_pb2
        super().__init__({
            "OpenSession": lambda *_: replies.OpenSessionReply(session=self.session()),
            "GetSession": lambda *_: replies.GetSessionReply(session=self.session()),
            "Append": self.append,
            "Generate": self.generate,
            "ForkSession": self.fork,
            "RewindSession": self.rewind,
            "SnapshotSession": self.snapshot,
        })  # fmt: skip

    def progress(self):
        return {"position": len(self.sequence), "sequence_hash": fnv1a(self.sequence)}

    def session(self):
        return {"session_id": ID, "model": "m", "progress": self.progress(), "seed": 7, "marks": self.marks}

    def lose(self, position):
        """What comes after it."""
        del self.sequence[position:]
        self.marks = {name: at for name, at in self.marks.items() if at <= position}

    def check(self, context, position, sequence_hash=None):
        if sequence_hash not in (None, fnv1a(self.sequence)):
            failing(context, Code.FAILED_PRECONDITION, "SESSION_HASH_MISMATCH")
        if position > len(self.sequence):
            failing(context, Code.OUT_OF_RANGE, "POSITION_OUT_OF_RANGE")

    def take(self, ref, kind, request):
        self.lose(ref.position)
        self.sequence += TEXT if kind == "text" else request.tokens.ids

    def mark(self, name):
        if name:
            self.marks[name] = len(self.sequence)

    def append(self, request, context):
        self.check(context, request.session.position, request.session.sequence_hash)
        self.take(request.session, request.WhichOneof("content"), request)
        self.mark(request.session.mark)
        return session_service_pb2.AppendReply(progress=self.progress(), **self.said)

    def generate(self, request, context):
        ref, came = request.session, [id for sample in request.resume.samples for id in sample.ids]
        self.check(context, ref.position, None if came else ref.sequence_hash)
        self.take(ref, request.WhichOneof("prompt"), request)
        self.sequence += came
        for index in range(len(came), request.max_tokens):
            self.sequence.append(self.sequence[-1] + 1)
            yield part(first_position=index, tokens=self.sequence[-1:], session=self.progress(), seed=7, fingerprint=11)
            if self.cut:
                cut, self.cut = self.cut, None
                self.peer.wait_until_seen(1)
                cut(context)
        self.mark(ref.mark)
        yield part(first_position=request.max_tokens, finish=END, session=self.progress(), usage={}, **self.said)

    def fork(self, request, context):
        self.check(context, request.session.position, request.session.sequence_hash)
        return session_service_pb2.ForkSessionReply(sessions=[self.session()])

    def rewind(self, request, context):
        if request.mark and request.mark not in self.marks:
            failing(context, Code.NOT_FOUND, "MARK_NOT_FOUND")
        position = self.marks[request.mark] if request.mark else request.position
        self.check(context, position)
        self.lose(position)
        return session_service_pb2.RewindSessionReply(session=self.session())

    def snapshot(self, request, context):
        self.check(context, request.position)
        yield session_service_pb2.SnapshotSessionReply(chunk=bytes(self.sequence[: request.position]))


class DurabilityTest(unittest.TestCase):
    """The durability of a session is told, and what was not durable and is lost is given again: "Lost tokens" of client/README.md."""

    @contextlib.contextmanager
    def at(self, peer, durability=NOT_DURABLE):
        """A store, and an empty session on it."""
        server = Store(durability)
        with peer.at(server):
            yield server, peer.session(options={"seed": 7})

    @for_each_client(*CPP)
    def test_the_durability_of_a_reply_and_of_an_append_is_told(self, peer):
        for durability in (NOT_DURABLE, {"durable": True, "position": 3, "other_numerics_id": "cpu"}, None):
            expected = durability and {"other_numerics_id": "", **durability}
            with self.at(peer, durability) as (_, session):
                reply = session.generate([1], max_tokens=1)
                self.assertEqual((reply["early"], reply["durability"]), (None, expected))
                self.assertEqual(session.generate(max_tokens=1, take="all")["durability"], expected)
                self.assertEqual(session.append([4])["durability"], expected)

    def fill(self, session):
        """[1, 2 | given 3 | 4, 5 | text 1, 2 | 3, 4], with marks."""
        session.generate([1], max_tokens=1, mark="reply")
        session.append([3], mark="given")
        session.generate(max_tokens=2)
        session.append("ab", mark="text")
        session.generate(max_tokens=2)
        self.assertEqual(session.place[0], 9)

    @for_each_client(*CPP)
    def test_every_call_gives_again_what_is_lost(self, peer):
        whole = [1, 2, 3, 4, 5, 1, 2, 3, 4]
        calls = (
            (lambda session: session.generate([8], max_tokens=1), [*whole, 8, 9]),
            (lambda session: session.append([8]), [*whole, 8]),
            (lambda session: session.do("fork"), whole),
            (lambda session: session.do("rewind", options={"position": 8}), whole[:8]),
            (lambda session: session.do("rewind", options={"mark": "text"}), whole[:7]),
            (lambda session: session.do("snapshot"), whole),
            # What is given again is given, so it goes no further than where the reply begins.
            (lambda session: session.generate(max_tokens=1, position=8), [*whole[:8], 4]),
        )
        for number, (call, expected) in enumerate(calls):
            for found in (1, 2, 4, 5, 7):  # the durable position, and where more was written before the replica was lost
                with self.at(peer) as (server, session):
                    self.fill(session)
                    server.lose(found)
                    call(session)
                    self.assertEqual(server.sequence, expected, (number, found))
                    self.assertEqual(server.marks, {"reply": 2, "given": 3, "text": 7})
                    self.assertEqual(session.place, (len(expected), fnv1a(expected)))

    @for_each_client(*CPP)
    def test_a_lost_reply_continues_where_what_came_before_it_is_lost_too(self, peer):
        with self.at(peer) as (server, session):
            session.append([1, 2, 3])

            def cut(context):
                server.lose(1)
                context.abort(Code.UNAVAILABLE, "cut")

            server.cut = cut
            self.assertEqual(tokens_of(session.generate([5], max_tokens=3)), [6, 7, 8])
            self.assertEqual(server.sequence, [1, 2, 3, 5, 6, 7, 8])

    @for_each_client(*CPP)
    def test_tokens_are_given_again_once_for_a_reply(self, peer):
        with self.at(peer) as (server, session):
            session.append([1, 2, 3])
            held = server.progress()
            server.lose(1)
            server.answers["Append"] = lambda *_: session_service_pb2.AppendReply(progress=held)  # and forgets them
            session.generate(max_tokens=1, fails=BEHIND)
            self.assertEqual(len(server.asked("Append")), 2)

    @for_each_client(*CPP)
    def test_a_reply_that_was_left_is_given_again(self, peer):
        with self.at(peer) as (server, session):
            session.append([1, 2])
            server.cut = wait_for_client
            session.generate(max_tokens=3, take=1)
            server.lose(1)
            session.append([7])
            self.assertEqual(server.sequence, [1, 2, 3, 7])
        with self.at(peer, None) as (server, session):
            server.cut = wait_for_client
            session.generate([1], max_tokens=3, take=1)
            server.lose(1)
            session.append([7], fails=("OUT_OF_RANGE", "POSITION_OUT_OF_RANGE"))

    @for_each_client(*CPP)
    def test_what_was_dropped_is_not_given_again(self, peer):
        with self.at(peer) as (server, session):
            self.fill(session)
            session.generate([30], max_tokens=1, position=8)
            server.lose(7)
            session.do("rewind", options={"position": 8})
            self.assertEqual(server.sequence, [1, 2, 3, 4, 5, 1, 2, 3])
            session.append([9])
            server.lose(8)
            session.append([10])
            self.assertEqual(server.sequence, [1, 2, 3, 4, 5, 1, 2, 3, 9, 10])

    @for_each_client(*CPP)
    def test_other_sessions_are_left_as_they_are(self, peer):
        for name, change, durability in (
            ("cut within a text", lambda server: server.lose(6), NOT_DURABLE),
            ("continued by another", lambda server: server.sequence.append(30), NOT_DURABLE),
            ("rewound and continued by another", lambda server: server.sequence.__setitem__(slice(3, None), [30]), NOT_DURABLE),
            ("lost though it was durable", lambda server: server.lose(3), {"durable": True, "position": 99}),
            ("without a store", lambda server: server.lose(3), None),
        ):
            with self.at(peer, durability) as (server, session):
                self.fill(session)
                change(server)
                found = list(server.sequence)
                session.append([8], fails=BEHIND)
                self.assertEqual(server.sequence, found, name)

    @for_each_client(*CPP)
    def test_a_reply_that_begins_within_a_text_is_not_repaired(self, peer):
        with self.at(peer) as (server, session):
            self.fill(session)
            server.lose(3)
            session.generate(position=6, fails=BEHIND)
            self.assertEqual(server.sequence, [1, 2, 3])

    @for_each_client(*CPP)
    def test_tokens_that_the_server_takes_otherwise_are_data_loss(self, peer):
        with self.at(peer) as (server, session):
            session.append([1, 2])
            session.append("ab")
            server.lose(2)
            server.answers["Append"] = lambda *_: session_service_pb2.AppendReply(progress={"position": 4, "sequence_hash": 5})
            self.assertIn("hash", session.generate(max_tokens=1, fails=("DATA_LOSS", ""))["error"]["message"])
            self.assertEqual(len(server.asked("Append")), 3)


if __name__ == "__main__":
    unittest.main()
