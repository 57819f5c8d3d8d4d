# SPDX-License-Identifier: Apache-2.0
"""What the Python client makes of the durability of a session: it is told, and what was not durable and is lost is given again."""

import asyncio
import threading
import unittest

import rivulet_wheel  # makes rivulet what is imported below

import grpc

import rivulet
from fake_server import ScriptedServer, failing, fnv1a
from python_clients import Async, Sync, tokens_of
from rivulet.v1 import inference_pb2, session_service_pb2

ID = "0123456789abcdef" * 2
TEXT = [1, 2]  # the tokens of any text
NOT_DURABLE = {"durable": False, "position": 1}


def wait_for_client(context):
    """Until it has left the call, which draws no further token."""
    left = threading.Event()
    if context.add_callback(left.set):
        left.wait()
    context.abort(grpc.StatusCode.CANCELLED, "")


class Replica(ScriptedServer):
    """Holds one session. Every token that it draws is the one before it and one. durability: what it says of each request. cut: called
    after the next drawn token, to end the call."""

    def __init__(self, durability):
        self.sequence, self.marks, self.said, self.cut = [], {}, {"durability": durability} if durability else {}, None
        replies = session_service_pb2
        super().__init__({
            "OpenSession": lambda *_: replies.OpenSessionReply(session=self.session()),
            "GetSession": lambda *_: replies.GetSessionReply(session=self.session()),
            "CloseSession": lambda *_: replies.CloseSessionReply(),
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
            failing(context, grpc.StatusCode.FAILED_PRECONDITION, "SESSION_HASH_MISMATCH")
        if position > len(self.sequence):
            failing(context, grpc.StatusCode.OUT_OF_RANGE, "POSITION_OUT_OF_RANGE")

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
            yield inference_pb2.GenerateReply(
                first_position=index, tokens=self.sequence[-1:], session=self.progress(), seed=7, fingerprint=11
            )
            if self.cut:
                cut, self.cut = self.cut, None
                cut(context)
        self.mark(ref.mark)
        yield inference_pb2.GenerateReply(finish={"reason": "FINISH_REASON_LENGTH"}, session=self.progress(), usage={}, **self.said)

    def fork(self, request, context):
        self.check(context, request.session.position, request.session.sequence_hash)
        return session_service_pb2.ForkSessionReply(sessions=[self.session()])

    def rewind(self, request, context):
        if request.mark and request.mark not in self.marks:
            failing(context, grpc.StatusCode.NOT_FOUND, "MARK_NOT_FOUND")
        position = self.marks[request.mark] if request.mark else request.position
        self.check(context, position)
        self.lose(position)
        return session_service_pb2.RewindSessionReply(session=self.session())

    def snapshot(self, request, context):
        self.check(context, request.position)
        yield session_service_pb2.SnapshotSessionReply(chunk=bytes(self.sequence[: request.position]))


class DurabilityTests:
    def use(self, function, durability=NOT_DURABLE):
        """Runs a coroutine function of a replica and an empty session on it."""

        async def run():
            async with self.client(server.target) as client:
                await function(server, await client.open_session(seed=7))

        with Replica(durability) as server:
            asyncio.run(run())

    def test_the_durability_of_a_reply_and_of_an_append_is_told(self):
        for durability in (NOT_DURABLE, {"durable": True, "position": 3, "other_numerics_id": "cpu"}, None):
            expected = rivulet.Durability(**durability) if durability else None

            async def run(server, session):
                stream = session.generate([1], max_tokens=1)
                self.assertIsNone(stream.durability)
                await tokens_of(stream)
                self.assertEqual(stream.durability, expected)
                self.assertEqual((await session.generate(max_tokens=1).collect()).durability, expected)
                self.assertEqual((await session.append([4])).durability, expected)

            self.use(run, durability)

    async def fill(self, session):
        """[1, 2 | given 3 | 4, 5 | text 1, 2 | 3, 4], with marks."""
        await tokens_of(session.generate([1], max_tokens=1, mark="reply"))
        await session.append([3], mark="given")
        await tokens_of(session.generate(max_tokens=2))
        await session.append("ab", mark="text")
        await tokens_of(session.generate(max_tokens=2))
        self.assertEqual(session.position, 9)

    def test_every_call_gives_again_what_is_lost(self):
        whole = [1, 2, 3, 4, 5, 1, 2, 3, 4]
        marks = {"reply": 2, "given": 3, "text": 7}
        calls = (
            (lambda session: tokens_of(session.generate([8], max_tokens=1)), [*whole, 8, 9]),
            (lambda session: session.append([8]), [*whole, 8]),
            (lambda session: session.fork(), whole),
            (lambda session: session.rewind(position=8), whole[:8]),
            (lambda session: session.rewind(mark="text"), whole[:7]),
            (lambda session: session.snapshot(), whole),
            # What is given again is given, so it goes no further than where the reply begins.
            (lambda session: tokens_of(session.generate(max_tokens=1, position=8)), [*whole[:8], 4]),
        )
        for number, (call, expected) in enumerate(calls):
            for found in (1, 2, 4, 5, 7):  # the durable position, and where more was written before the replica was lost

                async def run(server, session):
                    await self.fill(session)
                    server.lose(found)
                    await call(session)
                    self.assertEqual(server.sequence, expected)
                    self.assertEqual(server.marks, marks)
                    self.assertEqual((session.position, session.sequence_hash), (len(expected), fnv1a(expected)))

                with self.subTest(call=number, found=found):
                    self.use(run)

    def test_a_lost_reply_continues_where_what_came_before_it_is_lost_too(self):
        async def run(server, session):
            await session.append([1, 2, 3])

            def cut(context):
                server.lose(1)
                context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

            server.cut = cut
            self.assertEqual(await tokens_of(session.generate([5], max_tokens=3)), [6, 7, 8])
            self.assertEqual(server.sequence, [1, 2, 3, 5, 6, 7, 8])

        self.use(run)

    def test_tokens_are_given_again_once_for_a_reply(self):
        async def run(server, session):
            await session.append([1, 2, 3])
            held = server.progress()
            server.lose(1)
            server.answers["Append"] = lambda *_: session_service_pb2.AppendReply(progress=held)  # and forgets them
            with self.assertRaises(rivulet.FailedPrecondition):
                await tokens_of(session.generate(max_tokens=1))
            self.assertEqual(len(server.asked("Append")), 2)

        self.use(run)

    def test_a_reply_that_was_left_is_given_again(self):
        async def run(server, session):
            await session.append([1, 2])
            server.cut = wait_for_client
            async for _ in session.generate(max_tokens=3):
                break
            server.lose(1)
            await session.append([7])
            self.assertEqual(server.sequence, [1, 2, 3, 7])

        self.use(run)

        async def without_a_store(server, session):
            server.cut = wait_for_client
            async for _ in session.generate([1], max_tokens=3):
                break
            server.lose(1)
            with self.assertRaises(rivulet.OutOfRange):
                await session.append([7])

        self.use(without_a_store, None)

    def test_what_was_dropped_is_not_given_again(self):
        async def run(server, session):
            await self.fill(session)
            await tokens_of(session.generate([30], max_tokens=1, position=8))
            server.lose(7)
            await session.rewind(position=8)
            self.assertEqual(server.sequence, [1, 2, 3, 4, 5, 1, 2, 3])
            await session.append([9])
            server.lose(8)
            await session.append([10])
            self.assertEqual(server.sequence, [1, 2, 3, 4, 5, 1, 2, 3, 9, 10])

        self.use(run)

    def test_other_sessions_are_left_as_they_are(self):
        cases = (
            ("cut within a text", lambda server: server.lose(6), NOT_DURABLE),
            ("continued by another", lambda server: server.sequence.append(30), NOT_DURABLE),
            ("rewound and continued by another", lambda server: server.sequence.__setitem__(slice(3, None), [30]), NOT_DURABLE),
            ("lost though it was durable", lambda server: server.lose(3), {"durable": True, "position": 99}),
            ("without a store", lambda server: server.lose(3), None),
        )
        for name, change, durability in cases:

            async def run(server, session):
                await self.fill(session)
                change(server)
                found = list(server.sequence)
                with self.assertRaises(rivulet.FailedPrecondition) as caught:
                    await session.append([8])
                self.assertEqual((caught.exception.reason, server.sequence), ("SESSION_HASH_MISMATCH", found))

            with self.subTest(name):
                self.use(run, durability)

    def test_a_reply_that_begins_within_a_text_is_not_repaired(self):
        async def run(server, session):
            await self.fill(session)
            server.lose(3)
            with self.assertRaises(rivulet.FailedPrecondition):
                await tokens_of(session.generate(position=6))
            self.assertEqual(server.sequence, [1, 2, 3])

        self.use(run)

    def test_tokens_that_the_server_takes_otherwise_are_data_loss(self):
        async def run(server, session):
            await session.append([1, 2])
            await session.append("ab")
            server.lose(2)
            server.answers["Append"] = lambda *_: session_service_pb2.AppendReply(progress={"position": 4, "sequence_hash": 5})
            with self.assertRaisesRegex(rivulet.DataLoss, "hash"):
                await tokens_of(session.generate(max_tokens=1))

        self.use(run)


class SyncDurabilityTest(DurabilityTests, Sync, unittest.TestCase):
    pass


class AsyncDurabilityTest(DurabilityTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
