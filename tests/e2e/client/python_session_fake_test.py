# SPDX-License-Identifier: Apache-2.0
"""Sessions of the Python client against a server that follows a script: lost replies, wrong hashes, and what is asked again."""

import asyncio
import time
import unittest
import unittest.mock
from concurrent import futures

import rivulet_wheel  # makes rivulet what is imported below

import grpc

import rivulet
from fake_server import ScriptedServer, cut, fails, fnv1a, follow
from python_clients import Async, Sync, tokens_of
from rivulet.v1 import inference_pb2, session_service_pb2

ID = "0123456789abcdef" * 2
LOST = cut(grpc.StatusCode.UNAVAILABLE, "not now")
LATER = fails(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_seconds=3600)
LAST = {"finish": {"reason": "FINISH_REASON_LENGTH"}}


def progress(tokens):
    return {"position": len(tokens), "sequence_hash": fnv1a(tokens)}


def part(first, tokens, sequence, **fields):
    """A part of a reply, after which the session holds `sequence`."""
    return inference_pb2.GenerateReply(first_position=first, tokens=tokens, session=progress(sequence), **fields)


USAGE = inference_pb2.GenerateReply(usage={"completion_tokens": 99, "total_time": {"seconds": 2}})


class Clock:
    """In place of the module `time`."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class SessionServer(ScriptedServer):
    """Opens one session of model "m" with seed 7. Generate follows the script `replies`. Append and RewindSession answer with
    `sequence`."""

    def __init__(self, *replies, sequence=()):
        self.replies, self.sequence = list(replies), list(sequence)
        opened = lambda kind: lambda *_: kind(session={"session_id": ID, "model": "m", "progress": progress(self.sequence), "seed": 7})
        super().__init__({
            "Generate": follow(self.replies),
            "OpenSession": opened(session_service_pb2.OpenSessionReply),
            "Append": lambda *_: session_service_pb2.AppendReply(progress=progress(self.sequence)),
            "RewindSession": opened(session_service_pb2.RewindSessionReply),
            "CloseSession": lambda *_: session_service_pb2.CloseSessionReply(),
        })  # fmt: skip

    def generates(self):
        return [call.request for call in self.asked()]


class FakeTests:
    def use(self, server, function, **options):
        """Runs a coroutine function of a session of `server`."""

        async def run():
            async with self.client(server.target, **options) as client:
                async with await client.open_session(seed=7) as session:
                    await function(session)

        with server:
            asyncio.run(run())

    def reads(self, *expected, **options):
        async def run(session):
            stream = session.generate([1, 2], **{"max_tokens": 4, **options})
            parts = [part async for part in stream]
            self.assertEqual([(part.first_position, part.tokens.tolist()) for part in parts], list(expected))
            self.assertEqual(stream.usage.completion_tokens, 99)  # as the server says
            self.assertEqual((session.position, session.sequence_hash), (6, fnv1a([1, 2, 3, 4, 5, 6])))

        return run

    def test_a_lost_reply_is_asked_for_again_with_what_came(self):
        server = SessionServer(
            [part(0, [3], [1, 2, 3], seed=7, fingerprint=11), LOST],
            [LOST],
            [part(1, [4, 5], [1, 2, 3, 4, 5], seed=7, fingerprint=11), LOST],
            [part(3, [6], [1, 2, 3, 4, 5, 6], seed=7, fingerprint=11, usage=USAGE.usage, **LAST)],
        )
        self.use(server, self.reads((0, [3]), (1, [4, 5]), (3, [6]), mark="end", temperature=0.5))
        first, *again = server.generates()
        self.assertEqual((first.session.position, list(first.tokens.ids), first.max_tokens), (0, [1, 2], 4))
        self.assertEqual((first.session.sequence_hash, first.session.mark, first.sampling.seed), (fnv1a([]), "end", 7))
        for request, tokens in zip(again, ([3], [3], [3, 4, 5]), strict=True):
            self.assertEqual(request.resume, inference_pb2.Resume(fingerprint=11, samples=[{"ids": tokens}]))
            request.ClearField("resume")
            self.assertEqual(request, first)

    def test_a_request_that_goes_back_is_sent_again_without_the_hash_of_what_it_dropped(self):
        server = SessionServer([LOST], [part(0, [3], [1, 3], seed=7, **LAST), USAGE], sequence=[1, 2])

        async def run(session):
            self.assertEqual(await tokens_of(session.generate(position=1, max_tokens=1)), [3])

        self.use(server, run)
        first, again = server.generates()
        self.assertEqual((first.session.position, first.session.sequence_hash), (1, fnv1a([1, 2])))
        self.assertEqual((again.session.position, again.session.HasField("sequence_hash")), (1, False))

    def test_a_request_that_goes_back_is_the_same_where_its_reply_has_begun(self):
        begun, rest = part(0, [3], [1, 3], seed=7, fingerprint=11), part(1, [4], [1, 3, 4], seed=7, fingerprint=11, **LAST)
        server = SessionServer([begun, LOST], [rest, USAGE], sequence=[1, 2])

        async def run(session):
            self.assertEqual(await tokens_of(session.generate(position=1, max_tokens=2)), [3, 4])

        self.use(server, run)
        first, again = server.generates()
        again.ClearField("resume")
        self.assertEqual(again, first)

    def test_a_session_that_has_moved_is_a_lost_reply(self):
        moved = fails(grpc.StatusCode.ABORTED, "SESSION_MOVED")
        rest = [part(1, [4, 5, 6], [1, 2, 3, 4, 5, 6], seed=7, fingerprint=11, **LAST), USAGE]
        for begun in ([], [part(0, [3], [1, 2, 3], seed=7, fingerprint=11)]):
            server = SessionServer([*begun, moved], [moved], [*([] if begun else [part(0, [3], [1, 2, 3], seed=7)]), *rest])
            self.use(server, self.reads((0, [3]), (1, [4, 5, 6])))
        # What it generated before may be there.
        server = SessionServer([moved])

        async def run(session):
            with self.assertRaises(rivulet.Aborted):
                await tokens_of(session.generate([1, 2]))
            await session.append([])

        self.use(server, run, max_attempts=1)
        self.assertEqual([call.name for call in server.calls], ["OpenSession", "Generate", "RewindSession", "Append", "CloseSession"])

    def test_before_the_first_part_the_same_request_is_sent_again(self):
        whole = [part(0, [3, 4, 5, 6], [1, 2, 3, 4, 5, 6], seed=7, **LAST), USAGE]
        server = SessionServer([LOST], whole)
        self.use(server, self.reads((0, [3, 4, 5, 6])))
        first, again = server.generates()
        first.resume.SetInParent()
        self.assertEqual(first, again)

    def test_a_reply_of_which_only_the_usage_is_lost_ends_once(self):
        last = part(0, [3, 4, 5, 6], [1, 2, 3, 4, 5, 6], seed=7, fingerprint=11, **LAST)
        server = SessionServer([last, LOST], [part(4, [], [1, 2, 3, 4, 5, 6], seed=7, fingerprint=11, **LAST), USAGE])
        self.use(server, self.reads((0, [3, 4, 5, 6])))

    def fails(self, error_type, *replies, mention="", position, **options):
        """A generate() that ends in an error; its session must then be where the last good part left it."""
        server = SessionServer(*replies)

        async def run(session):
            stream = session.generate([1, 2], **{"max_tokens": 4, **options})
            with self.assertRaisesRegex(error_type, mention):
                await tokens_of(stream)
            self.assertEqual(session.position, position)
            self.assertEqual(session.sequence_hash, fnv1a([1, 2, 3][:position]))

        self.use(server, run)
        self.assertEqual(server.replies, [])

    def test_a_reply_that_is_lost_for_good_ends_with_its_error(self):
        begun = [part(0, [3], [1, 2, 3], seed=7, fingerprint=11), LOST]
        self.fails(rivulet.Unavailable, begun, position=3, resume=False)
        self.fails(rivulet.NotFound, begun, [fails(grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")], position=3)

    def test_other_errors_are_not_repeated(self):
        for code, error_type in ((grpc.StatusCode.CANCELLED, rivulet.Cancelled), (grpc.StatusCode.NOT_FOUND, rivulet.NotFound)):
            self.fails(error_type, [part(0, [3], [1, 2, 3], seed=7, fingerprint=11), cut(code)], position=3)

    def test_the_timeout_is_for_all_calls_together(self):
        # Each call takes 1000 s of the client's clock, so it does not matter how long it really takes.
        server, clock, left = SessionServer(*[[LOST]] * 99), Clock(), []
        refuse = server.answers["Generate"]

        def generate(request, context):
            left.append(context.time_remaining())
            clock.now += 1000
            return refuse(request, context)

        async def run(session):
            with self.assertRaisesRegex(rivulet.DeadlineExceeded, "not now"):
                await tokens_of(session.generate([1, 2], timeout=3000))
            self.assertEqual(session.position, 0)

        server.answers["Generate"] = generate
        with unittest.mock.patch("rivulet.core.reply_repeat.time", clock):
            self.use(server, run)
        self.assertEqual([round(seconds, -3) for seconds in left], [3000, 2000, 1000])

    def test_tokens_that_differ_from_the_servers_are_data_loss(self):
        good = part(0, [3], [1, 2, 3], seed=7, fingerprint=11)
        self.fails(rivulet.DataLoss, [part(0, [3], [1, 9, 3], seed=7)], mention="hash", position=0)
        self.fails(rivulet.DataLoss, [part(0, [3], [1, 2, 3, 4], seed=7)], mention="server is at position 4", position=0)
        self.fails(rivulet.DataLoss, [good, part(1, [4], [1, 2, 3, 5])], mention="hash", position=3)
        self.fails(rivulet.DataLoss, [good, part(1, [4], [1, 2, 3, 3, 4])], mention="server is at position 5", position=3)
        # What a server gives that draws other tokens when it is asked again.
        self.fails(rivulet.DataLoss, [good, LOST], [part(1, [4], [1, 2, 8, 4], seed=7)], mention="hash", position=3)

    def test_a_gap_and_a_part_that_does_not_say_where_it_is_are_internal(self):
        good = part(0, [3], [1, 2, 3], seed=7)
        self.fails(rivulet.Internal, [good, part(2, [4], [1, 2, 3, 4])], mention="token 2 of the reply instead of 1", position=3)
        self.fails(rivulet.Internal, [good, inference_pb2.GenerateReply(first_position=1, tokens=[4])], mention="where", position=3)

    def test_an_append_that_the_server_hashes_otherwise_is_data_loss(self):
        async def run(session):
            await session.append("two characters")  # whose tokens only the server knows
            self.assertEqual((session.position, session.sequence_hash), (2, fnv1a([1, 2])))
            server.sequence = [1, 2, 3, 4]
            await session.append([3, 4])
            server.sequence = [1, 2, 3, 4, 5]
            with self.assertRaisesRegex(rivulet.DataLoss, "hash"):
                await session.append([6])

        server = SessionServer()

        async def begin(session):
            server.sequence = [1, 2]
            await run(session)

        self.use(server, begin)

    def test_the_text_of_a_prompt_is_taken_on_trust_and_nothing_after_it(self):
        server = SessionServer([part(0, [3], [1, 2, 3], seed=7), part(1, [4], [1, 2, 3, 9])])

        async def run(session):
            stream = session.generate("ab", max_tokens=4)
            await stream.__anext__()
            self.assertEqual((session.position, session.sequence_hash), (3, fnv1a([1, 2, 3])))
            with self.assertRaisesRegex(rivulet.DataLoss, "hash"):
                await stream.__anext__()

        self.use(server, run)

    def test_after_a_lost_reply_another_call_first_drops_what_was_not_seen(self):
        server = SessionServer(
            [part(0, [3], [1, 2, 3], seed=7), LOST],
            [part(0, [4], [1, 2, 3, 4], seed=7), LOST],
            [part(0, [8], [1, 2, 3, 4, 8], seed=7, **LAST), USAGE],
        )

        async def run(session):
            for prompt, held in (([1, 2], [1, 2, 3]), ([], [1, 2, 3, 4])):
                with self.assertRaises(rivulet.Unavailable):
                    await tokens_of(session.generate(prompt, max_tokens=4, resume=False))
                server.sequence = held
            self.assertEqual(await tokens_of(session.generate(max_tokens=1)), [8])
            server.sequence = [1, 2, 3, 4, 8, 9]
            await session.append([9])

        self.use(server, run)
        names = [call.name for call in server.calls]
        again = ["RewindSession", "Generate"]
        self.assertEqual(names, ["OpenSession", "Generate", *again, *again, "Append", "CloseSession"])
        self.assertEqual([call.request.position for call in server.calls[2:5:2]], [3, 4])

    def test_after_a_later_call_is_refused_too_what_was_not_seen_is_dropped_first(self):
        server = SessionServer([LOST], [fails(grpc.StatusCode.FAILED_PRECONDITION, "RESUME_MISMATCH")])

        async def run(session):
            with self.assertRaises(rivulet.FailedPrecondition):
                await tokens_of(session.generate([1, 2]))
            await session.append([])

        self.use(server, run)
        names = [call.name for call in server.calls]
        self.assertEqual(names, ["OpenSession", "Generate", "Generate", "RewindSession", "Append", "CloseSession"])

    def test_a_session_shows_its_id_model_and_position(self):
        async def run(session):
            self.assertRegex(repr(getattr(session, "of", session)), f"^<(Async)?Session {ID} of m at 0>$")

        self.use(SessionServer(), run)

    def test_the_tenant_is_sent_with_every_call(self):
        server = SessionServer([part(0, [3], [3], seed=7, **LAST), USAGE])

        async def run(session):
            await tokens_of(session.generate())

        self.use(server, run, tenant="team-1")
        self.assertEqual([call.metadata.get("rivulet-tenant") for call in server.calls], ["team-1"] * 3)


class SyncFakeTest(FakeTests, Sync, unittest.TestCase):
    def test_close_in_another_thread_ends_the_wait_for_another_try(self):
        server = SessionServer([LATER])

        async def run(session):
            stream = session.generate([1, 2])
            with futures.ThreadPoolExecutor(1) as pool:
                tokens = pool.submit(list, stream.of)
                while not server.generates():
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
            while not server.generates():
                await asyncio.sleep(0.01)
            stream.close()
            with self.assertRaises(rivulet.Cancelled):
                await tokens

        self.use(server, run)


if __name__ == "__main__":
    unittest.main()
