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
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode as Code

from rivulet.v1 import inference_pb2, session_service_pb2

logging.getLogger("grpc").setLevel(logging.CRITICAL)
PATIENCE = 100  # seconds that a step may take on a busy machine
HOUR = 3600
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

    def snapshot(self, fails=None):
        return self.do("snapshot", fails=fails)

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
            if not asked:
                self.skipTest("only clients that are compiled run under a sanitizer")
            with futures.ThreadPoolExecutor(len(asked)) as pool:
                outcomes = {name: driver and pool.submit(body, self, Peer(self, driver, LOOP)) for name, driver in asked.items()}
            for name, outcome in outcomes.items():
                with self.subTest(client=name):
                    if outcome is None:
                        self.skipTest("not built: deploy/setup.sh --tests makes build/typescript, the build contract_driver")
                    outcome.result()

        return test

    return make


class Script(ScriptedServer):
    """Opens one session of model "m" with seed 7 at `sequence`. Each Generate gives what the next of `replies` holds, messages and perhaps
    an end, which comes when the client has seen the tokens before it."""

    def __init__(self, *replies, sequence=()):
        self.replies, self.sequence, self.sent = list(replies), list(sequence), 0
        opened = lambda kind: lambda *_: kind(session={"session_id": ID, "model": "m", "progress": self.progress(), "seed": 7})
        super().__init__({
            "Generate": self.generate,
            "OpenSession": opened(session_service_pb2.OpenSessionReply),
            "RewindSession": opened(session_service_pb2.RewindSessionReply),
            "ForkSession": lambda *_: session_service_pb2.ForkSessionReply(),
            "Append": lambda *_: session_service_pb2.AppendReply(progress=self.progress()),
        })  # fmt: skip

    def progress(self):
        return {"position": len(self.sequence), "sequence_hash": fnv1a(self.sequence)}

    def generate(self, request, context):
        if not self.replies:
            failing(context, Code.INTERNAL, "SCRIPT_IS_OVER")
        for entry in self.replies.pop(0):
            if callable(entry):
                self.peer.wait_until_seen(self.sent)
                entry(context)
            self.sent += bool(entry.tokens)
            yield entry

    def requests(self):
        return [call.request for call in self.asked()]

    def names(self):
        return [call.name for call in self.calls]


class ReplyTest(unittest.TestCase):
    """Replies without a session: "Lost replies" of client/README.md."""

    maxDiff = None

    @for_each_client()
    def test_a_lost_reply_goes_on_behind_what_came_and_nothing_comes_twice(self, peer):
        again = {"seed": 4, "fingerprint": 4}  # no server sends others than before, so they show whose are kept
        server = Script(
            [part(seed=3, fingerprint=2**64 - 1, tokens=[1], text="a"), part(sample_index=1, tokens=[4], text="b\ufffd", finish=END),
             part(first_position=1, tokens=[2, 3], text="c"), DRAINING],
            [part(sample_index=1, first_position=1, text="\ufffd", finish=END), part(first_position=3, tokens=[5], text="d", **again), NOT_NOW],
            [part(sample_index=1, first_position=1, finish=END, **again), part(first_position=4, tokens=[6], text="e", finish=END),
             part(usage={"completion_tokens": 6})],
        )  # fmt: skip
        with peer.at(server):
            parts = peer.generate(num_samples=2, seed=3)["parts"]
        names = ("sample_index", "first_position", "tokens", "text")
        told = [tuple(said[name] for name in names) for said in parts if said.get("tokens")]
        self.assertEqual(told, [(0, 0, [1], "a"), (1, 0, [4], "b\ufffd"), (0, 1, [2, 3], "c"), (0, 3, [5], "d"), (0, 4, [6], "e")])
        self.assertEqual([said["sample_index"] for said in parts if "finish" in said], [1, 0])
        self.assertEqual([(index, str(said["seed"])) for index, said in enumerate(parts) if "seed" in said], [(0, "3")])
        self.assertIn([said["fingerprint"] for said in parts if "fingerprint" in said], ([], [2**64 - 1]))
        self.assertEqual((parts[-1]["usage"]["completion_tokens"], len(parts)), (6, 6))
        first, *later = server.requests()
        for request, tokens in zip(later, ([1, 2, 3], [1, 2, 3, 5]), strict=True):
            self.assertEqual(request.resume, inference_pb2.Resume(fingerprint=2**64 - 1, samples=[{"ids": tokens}, {"ids": [4]}]))
            request.ClearField("resume")
            self.assertEqual(request, first)
        self.assertEqual([call.metadata.get("grpc-previous-rpc-attempts") for call in server.asked()], [None] * 3)

    @for_each_client()
    def test_a_call_that_is_lost_after_the_usage_has_ended_well(self, peer):
        whole = [part(seed=9, tokens=[1], finish=END, usage={"completion_tokens": 1})]
        for end in (LOST, cut(Code.UNKNOWN), cut(Code.INTERNAL)):
            for resume in (True, False):
                with peer.at(Script([*whole, end])):
                    outcome = peer.generate(resume=resume)
                self.assertEqual((tokens_of(outcome), outcome["parts"][-1]["usage"]["completion_tokens"]), ([1], 1))
        with peer.at(Script([*whole, fails(Code.INTERNAL, "A_BUG")])):
            peer.generate(fails=("INTERNAL", "A_BUG"))

    @for_each_client()
    def test_without_a_fingerprint_a_reply_that_has_begun_ends(self, peer):
        with peer.at(Script([NOT_NOW], [part(seed=9, tokens=[1]), DRAINING])):
            self.assertEqual(tokens_of(peer.generate(fails=("UNAVAILABLE", "DRAINING"))), [1])

    @for_each_client()
    def test_where_a_wait_passes_the_deadline_the_error_says_what_was_lost(self, peer):
        later = fails(Code.UNAVAILABLE, "DRAINING", retry_seconds=HOUR)
        for begin in ([], [part(seed=9, fingerprint=7, tokens=[1])]):
            with peer.at(Script([*begin, later])):
                error = peer.generate(timeout=HOUR, fails=("DEADLINE_EXCEEDED", ""))["error"]
            self.assertRegex(error["message"], "leaves no time to try again after: .*(said by the server|DRAINING)")

    @for_each_client(*CPP)
    def test_a_reply_that_breaks_its_promises_is_internal(self, peer):
        usage = {"completion_tokens": 1}
        for messages, mention in (
            ([part(seed=1, tokens=[1], finish=END)], "without seed or usage"),
            ([part(seed=1, tokens=[1]), part(usage=usage)], "sample 0"),
            ([part(seed=1, tokens=[1]), part(first_position=2, tokens=[1], finish=END, usage=usage)], "position 2 instead of 1"),
            ([part(seed=1, tokens=[1], finish=END), part(sample_index=5, tokens=[1], usage=usage)], "sample 5 of 1"),
        ):
            with peer.at(Script(messages)):
                self.assertIn(mention, peer.generate(take="all", fails=("INTERNAL", ""))["error"]["message"])


class Replica(ScriptedServer):
    """Opens sessions "s0", "s1", ... Replies to Append, Generate, SnapshotSession and calls that open sessions come with the cookies
    in `gives`. The first Appends, Generates and SnapshotSessions end with `ends`, one each."""

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
            "SnapshotSession": lambda _, context: self.end(context) or [pb2.SnapshotSessionReply(chunk=b"snapshot")],
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
            session.snapshot()
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
            getattr(session, name.lower().removesuffix("session"))(fails=fails)
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
        self.assertEqual(self.cookies_of(peer, "SnapshotSession", [LOST], gives=[B], **once), ([A, None], B))

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
            (lambda session: session.snapshot(), whole),
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


def placed(first, tokens, sequence, **fields):
    """A part of a reply, after which the session holds `sequence`."""
    return part(first_position=first, tokens=tokens, session={"position": len(sequence), "sequence_hash": fnv1a(sequence)}, **fields)


LAST = {"finish": END}
BEGUN = {"seed": 7, "fingerprint": 11}
USAGE = part(usage={"completion_tokens": 99})
GOOD = placed(0, [3], [1, 2, 3], **BEGUN)
WHOLE = [placed(0, [3, 4, 5, 6], [1, 2, 3, 4, 5, 6], **BEGUN, **LAST), USAGE]
INVALID = fails(Code.INVALID_ARGUMENT, "INVALID_SAMPLING")
DATA_LOSS = ("DATA_LOSS", "")


class SessionTest(unittest.TestCase):
    """Lost replies of a session, wrong hashes, and what is dropped of a reply that ended early."""

    def reads(self, peer, server, *expected, **options):
        """A reply of these parts, after which the session is behind it. The requests."""
        with peer.at(server):
            session = peer.session(options={"seed": 7})
            parts = session.generate([1, 2], max_tokens=4, **options)["parts"]
        self.assertEqual([(said["first_position"], said["tokens"]) for said in parts[:-1] if said["tokens"]], list(expected))
        self.assertEqual(sum("finish" in said for said in parts), 1)
        self.assertEqual(parts[-1]["usage"]["completion_tokens"], 99)  # as the server says
        self.assertEqual(session.place, (6, fnv1a([1, 2, 3, 4, 5, 6])))
        self.assertEqual(session.state["marks"], {options["mark"]: 6} if "mark" in options else {})
        self.assertEqual(set(server.names()), {"OpenSession", "Generate"})
        return server.requests()

    @for_each_client(*CPP)
    def test_a_lost_reply_is_asked_for_again_with_what_came(self, peer):
        server = Script(
            [NOT_NOW],
            [GOOD, NOT_NOW],
            [NOT_NOW],
            [placed(1, [4, 5], [1, 2, 3, 4, 5], **BEGUN), NOT_NOW],
            [placed(3, [6], [1, 2, 3, 4, 5, 6], usage=USAGE.usage, **BEGUN, **LAST)],
        )
        first, same, *again = self.reads(peer, server, (0, [3]), (1, [4, 5]), (3, [6]), mark="end", temperature=0.5)
        self.assertEqual((first.session.position, list(first.tokens.ids), first.max_tokens), (0, [1, 2], 4))
        self.assertEqual((first.session.sequence_hash, first.session.mark, first.sampling.temperature), (fnv1a([]), "end", 0.5))
        self.assertEqual(same.resume, inference_pb2.Resume())
        for request, tokens in zip(again, ([3], [3], [3, 4, 5]), strict=True):
            self.assertEqual(request.resume, inference_pb2.Resume(fingerprint=11, samples=[{"ids": tokens}]))
        for request in (same, *again):
            self.assertTrue(request.HasField("resume"))
            request.ClearField("resume")
            self.assertEqual(request, first)

    @for_each_client(*CPP)
    def test_a_reply_of_which_only_the_usage_is_lost_ends_once(self, peer):
        self.reads(peer, Script([WHOLE[0], NOT_NOW], [placed(4, [], [1, 2, 3, 4, 5, 6], **BEGUN, **LAST), USAGE]), (0, [3, 4, 5, 6]))

    @for_each_client(*CPP)
    def test_a_request_that_goes_back_is_sent_again_without_the_hash_of_what_it_dropped(self, peer):
        server = Script([NOT_NOW], [placed(0, [3], [1, 3], seed=7, **LAST), USAGE], sequence=[1, 2])
        with peer.at(server):
            self.assertEqual(tokens_of(peer.session().generate(position=1, max_tokens=1)), [3])
        first, again = server.requests()
        self.assertEqual((first.session.position, first.session.sequence_hash), (1, fnv1a([1, 2])))
        self.assertEqual((again.session.position, again.session.HasField("sequence_hash")), (1, False))

    @for_each_client(*CPP)
    def test_a_request_that_goes_back_is_the_same_where_its_reply_has_begun(self, peer):
        server = Script([placed(0, [3], [1, 3], **BEGUN), NOT_NOW], [placed(1, [4], [1, 3, 4], **BEGUN, **LAST), USAGE], sequence=[1, 2])
        with peer.at(server):
            self.assertEqual(tokens_of(peer.session().generate(position=1, max_tokens=2)), [3, 4])
        first, again = server.requests()
        again.ClearField("resume")
        self.assertEqual(again, first)

    @for_each_client(*CPP)
    def test_a_session_that_has_moved_is_a_lost_reply(self, peer):
        rest = [placed(1, [4, 5, 6], [1, 2, 3, 4, 5, 6], **BEGUN, **LAST), USAGE]
        self.reads(peer, Script([MOVED], [MOVED], [GOOD, *rest]), (0, [3]), (1, [4, 5, 6]))
        self.reads(peer, Script([GOOD, MOVED], [MOVED], rest), (0, [3]), (1, [4, 5, 6]))

    @for_each_client(*CPP)
    def test_after_a_lost_reply_the_next_call_first_drops_what_was_not_seen(self, peer):
        for replies, error, drops in (
            ([[MOVED]], ("ABORTED", "SESSION_MOVED"), True),  # what it generated before may be there
            ([[NOT_NOW]], ("UNAVAILABLE", "NOT_NOW"), True),
            ([[INVALID]], ("INVALID_ARGUMENT", "INVALID_SAMPLING"), False),
        ):
            self.drops(peer, Script(*replies), error, drops, max_attempts=1)
        refused = fails(Code.FAILED_PRECONDITION, "RESUME_MISMATCH")
        self.drops(peer, Script([NOT_NOW], [refused]), ("FAILED_PRECONDITION", "RESUME_MISMATCH"), True)

    def drops(self, peer, server, error, drops, **options):
        with peer.at(server, **options):
            session = peer.session()
            session.generate(fails=error)
            session.append()
            session.append()
        generates = ["Generate"] * len(server.requests())
        self.assertEqual(server.names(), ["OpenSession", *generates, *["RewindSession"] * drops, "Append", "Append"])

    @for_each_client(*CPP)
    def test_each_lost_reply_is_dropped_behind_what_was_seen_of_it(self, peer):
        server = Script(
            [placed(0, [3], [1, 2, 3], seed=7), NOT_NOW],
            [placed(0, [4], [1, 2, 3, 4], seed=7), NOT_NOW],
            [placed(0, [8], [1, 2, 3, 4, 8], seed=7, **LAST), USAGE],
        )
        with peer.at(server):
            session = peer.session()
            for prompt, held in (([1, 2], [1, 2, 3]), ([], [1, 2, 3, 4])):
                session.generate(prompt, resume=False, fails=("UNAVAILABLE", "NOT_NOW"))
                self.assertEqual(session.place, (len(held), fnv1a(held)))
                server.sequence = held
            self.assertEqual(tokens_of(session.generate(max_tokens=1)), [8])
            server.sequence = [1, 2, 3, 4, 8, 9]
            session.append([9])
        again = ["RewindSession", "Generate"]
        self.assertEqual(server.names(), ["OpenSession", "Generate", *again, *again, "Append"])
        self.assertEqual([(call.request.session_id, call.request.position) for call in server.calls[2:5:2]], [(ID, 3), (ID, 4)])

    def ends(self, peer, error, *replies, mention=".", position, **options):
        """A reply that ends in an error; its session must then be where the last good part left it."""
        server = Script(*replies)
        with peer.at(server):
            session = peer.session()
            message = session.generate([1, 2], fails=error, **options)["error"]["message"]
            self.assertRegex(message, mention)
            self.assertEqual(session.place, (position, fnv1a([1, 2, 3][:position])))
        self.assertEqual(server.replies, [])

    @for_each_client(*CPP)
    def test_a_reply_that_is_lost_for_good_ends_with_its_error(self, peer):
        self.ends(peer, GONE, [GOOD, NOT_NOW], [UNKNOWN_THERE], position=3)
        for code in (Code.CANCELLED, Code.NOT_FOUND):
            self.ends(peer, (code.name, ""), [GOOD, cut(code)], position=3)

    @for_each_client(*CPP)
    def test_tokens_that_differ_from_those_of_the_server_are_data_loss(self, peer):
        self.ends(peer, DATA_LOSS, [placed(0, [3], [1, 9, 3], seed=7)], mention="hash", position=0)
        self.ends(peer, DATA_LOSS, [placed(0, [3], [1, 2, 3, 4], seed=7)], mention="position 4", position=0)
        self.ends(peer, DATA_LOSS, [GOOD, placed(1, [4], [1, 2, 3, 5])], mention="hash", position=3)
        self.ends(peer, DATA_LOSS, [GOOD, placed(1, [4], [1, 2, 3, 3, 4])], mention="position 5", position=3)
        # What a server gives that draws other tokens when it is asked again.
        self.ends(peer, DATA_LOSS, [GOOD, NOT_NOW], [placed(1, [4], [1, 2, 8, 4], seed=7)], mention="hash", position=3)
        # Before the end of a session the client knows no hash, but how many tokens there are.
        with peer.at(Script([placed(0, [1], [1, 2, 3], seed=1)], sequence=[1])):
            peer.session().generate(position=0, fails=DATA_LOSS)

    @for_each_client(*CPP)
    def test_an_append_that_the_server_hashes_otherwise_is_data_loss(self, peer):
        server = Script()
        with peer.at(server):
            session = peer.session()
            server.sequence = [1, 2]
            session.append("two characters")  # whose tokens only the server knows
            self.assertEqual(session.place, (2, fnv1a([1, 2])))
            server.sequence = [1, 2, 3, 4]
            session.append([3, 4])
            server.sequence = [1, 2, 3, 4, 5]
            self.assertIn("hash", session.append([6], fails=DATA_LOSS)["error"]["message"])

    @for_each_client(*CPP)
    def test_the_text_of_a_prompt_is_taken_on_trust_and_nothing_after_it(self, peer):
        with peer.at(Script([placed(0, [3], [1, 2, 3], seed=7), placed(1, [4], [1, 2, 3, 9])])):
            session = peer.session()
            self.assertEqual(tokens_of(session.generate("ab", fails=DATA_LOSS)), [3])
            self.assertEqual(session.place, (3, fnv1a([1, 2, 3])))

    @for_each_client(*CPP)
    def test_the_tenant_is_sent_with_every_call(self, peer):
        server = Script(WHOLE)
        with peer.at(server, tenant="team-1"):
            peer.session().generate([1, 2])
        self.assertEqual([call.metadata.get("rivulet-tenant") for call in server.calls], ["team-1"] * 2)


class CallTest(unittest.TestCase):
    """Calls that gRPC repeats, and how they fail."""

    def failing(self, times, end):
        """A Score that ends so, so often, then answers."""

        def score(request, context):
            if len(server.calls) <= times:
                end(context)
            return inference_pb2.ScoreReply(num_scored=7)

        server = ScriptedServer({"Score": score})
        return server

    def score(self, peer, fails=None):
        return peer.do("score", content=[1, 2], fails=fails)

    @for_each_client()
    def test_unavailable_is_tried_again_until_there_is_an_answer(self, peer):
        server = self.failing(3, fails(Code.UNAVAILABLE, "NOT_NOW"))
        with peer.at(server):
            self.assertEqual(self.score(peer)["num_scored"], 7)
        self.assertEqual([call.metadata.get("grpc-previous-rpc-attempts") for call in server.calls], [None, "1", "2", "3"])
        self.assertRegex(server.calls[0].metadata["user-agent"], r"^rivulet-(python|typescript|cpp)/\d")

    @for_each_client()
    def test_four_attempts_are_made_or_as_many_as_asked_for(self, peer):
        for options, attempts in (({}, 4), ({"max_attempts": 1}, 1), ({"max_attempts": 2}, 2)):
            server = self.failing(99, fails(Code.UNAVAILABLE, "NOT_NOW"))
            with peer.at(server, **options):
                self.score(peer, fails=("UNAVAILABLE", "NOT_NOW"))
            self.assertEqual(len(server.calls), attempts)

    @for_each_client()
    def test_other_codes_are_not_tried_again_and_the_error_says_what_the_server_said(self, peer):
        for code in (Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED, Code.INTERNAL):
            server = self.failing(1, fails(code, "FULL", "prompt.tokens[3]", 2.5, "so it is", queued="8"))
            with peer.at(server):
                error = self.score(peer, fails=(code.name, "FULL"))["error"]
            self.assertEqual((len(server.calls), error["message"]), (1, "so it is"))
            if "field" in error:
                self.assertEqual((error["field"], error["retry_delay"], error["metadata"]), ("prompt.tokens[3]", 2.5, {"queued": "8"}))

    @for_each_client(*CPP)
    def test_an_end_without_a_status_of_the_server_is_unavailable(self, peer):
        """What a balancer makes of a replica that died, as clients see it."""
        for code in (Code.UNKNOWN, Code.INTERNAL):
            for end in (cut(code, "Stream removed"), self.with_details(code, "Stream removed")):
                with peer.at(self.failing(9, end), max_attempts=1):
                    self.assertIn("Stream removed", self.score(peer, fails=("UNAVAILABLE", ""))["error"]["message"])
            request = error_details_pb2.RequestInfo(request_id="1")
            for end, reason in ((fails(code, "A_BUG"), "A_BUG"), (self.with_details(code, "a bug", request), "")):
                with peer.at(self.failing(9, end), max_attempts=1):
                    self.score(peer, fails=(code.name, reason))

    def with_details(self, code, message, *details):
        """An end with a google.rpc.Status of these details."""

        def end(context):
            status = status_pb2.Status(code=code.value[0], message=message)
            for detail in details:
                status.details.add().Pack(detail)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(code, message)

        return end

    @for_each_client()
    def test_details_that_are_no_status_leave_code_and_text(self, peer):
        def end(context):
            context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff"),))
            context.abort(Code.ABORTED, "of a proxy")

        with peer.at(self.failing(9, end)):
            self.assertIn("of a proxy", self.score(peer, fails=("ABORTED", ""))["error"]["message"])

    @for_each_client()
    def test_calls_that_create_a_session_are_made_once_and_others_are_repeated(self, peer):
        left = {"OpenSession": 1, "Append": 2, "ForkSession": 1}
        server = Script()

        def then(name, answer):
            def answered(request, context):
                left[name] -= 1
                return NOT_NOW(context) if left[name] >= 0 else answer(request, context)

            return answered

        for name in left:
            server.answers[name] = then(name, server.answers[name])
        with peer.at(server):
            peer.do("open_session", session="none", fails=("UNAVAILABLE", "NOT_NOW"))
            session = peer.session()
            session.append()
            session.do("fork", fails=("UNAVAILABLE", "NOT_NOW"))
        self.assertEqual(server.names(), ["OpenSession"] * 2 + ["Append"] * 3 + ["ForkSession"])


if __name__ == "__main__":
    unittest.main()
