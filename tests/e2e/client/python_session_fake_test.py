# SPDX-License-Identifier: Apache-2.0
"""Sessions of the Python client against a server that follows a script: lost replies, wrong hashes, and what is asked again."""

import asyncio
import unittest
import unittest.mock
from concurrent import futures

import rivulet_wheel  # makes rivulet what is imported below

import grpc

import rivulet
from fake_server import ScriptedServer
from google.rpc import status_pb2
from python_clients import Async, Sync, fnv1a, tokens_of
from rivulet.v1 import inference_pb2, session_service_pb2

ID = "0123456789abcdef" * 2
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
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
    """Opens one session of model "m" with seed 7. Call i of Generate gives what is in replies[i]: parts, and at the end a status
    code where it is to fail. Append and RewindSession answer with `sequence`."""

    def __init__(self, *replies, sequence=(), model=None):
        self.replies, self.sequence = list(replies), list(sequence)
        opened = lambda kind: lambda *_: kind(session={"session_id": ID, "model": "m", "progress": progress(self.sequence), "seed": 7})
        super().__init__({
            "Generate": self.generate,
            "GetModel": lambda *_: model,
            "OpenSession": opened(session_service_pb2.OpenSessionReply),
            "Append": lambda *_: session_service_pb2.AppendReply(progress=progress(self.sequence)),
            "RewindSession": opened(session_service_pb2.RewindSessionReply),
            "CloseSession": lambda *_: session_service_pb2.CloseSessionReply(),
        })  # fmt: skip

    def generate(self, request, context):
        for entry in self.replies.pop(0):
            if isinstance(entry, grpc.StatusCode):
                context.set_trailing_metadata((("grpc-status-details-bin", status_pb2.Status().SerializeToString()),))
                context.abort(entry, "not now")
            yield entry

    def generates(self):
        return [call.request for call in self.asked()]


class FakeTests:
    def use(self, server, function, **options):
        """Runs a coroutine function of a session of `server`."""

        async def run():
            async with self.client(server.target, max_attempts=1, **options) as client:
                async with await client.open_session(seed=7) as session:
                    await function(session)

        with server:
            asyncio.run(run())

    def reads(self, *expected, usage=(2, 4), **options):
        async def run(session):
            stream = session.generate([1, 2], **{"retries": 5, "max_tokens": 4, **options})
            parts = [part async for part in stream]
            self.assertEqual([(part.first_position, part.tokens.tolist()) for part in parts], list(expected))
            self.assertEqual((stream.usage.prompt_tokens, stream.usage.completion_tokens), usage)
            self.assertEqual((session.position, session.sequence_hash), (6, fnv1a([1, 2, 3, 4, 5, 6])))

        return run

    def test_a_lost_reply_is_asked_for_from_the_last_part_with_the_same_seed(self):
        server = SessionServer(
            [part(0, [3], [1, 2, 3], seed=7), UNAVAILABLE],
            [UNAVAILABLE],
            [part(0, [4, 5], [1, 2, 3, 4, 5], seed=7), UNAVAILABLE],
            [part(0, [6], [1, 2, 3, 4, 5, 6], seed=7, usage=USAGE.usage, **LAST)],
        )
        self.use(server, self.reads((0, [3]), (1, [4, 5]), (3, [6]), mark="end", temperature=0.5))
        first, *again = server.generates()
        self.assertEqual((first.session.position, list(first.tokens.ids), first.max_tokens), (0, [1, 2], 4))
        self.assertEqual([request.session.position for request in again], [3, 3, 5])
        self.assertEqual([request.max_tokens for request in again], [3, 3, 1])
        for request in again:
            self.assertIsNone(request.WhichOneof("prompt"))
            self.assertEqual((request.sampling, request.session.mark), (first.sampling, "end"))
        self.assertEqual((first.sampling.seed, first.sampling.HasField("seed")), (7, True))
        self.assertEqual(first.session.sequence_hash, fnv1a([]))  # later the server may hold more than was seen
        self.assertFalse(any(request.session.HasField("sequence_hash") for request in again))

    def test_before_the_first_part_the_same_request_is_sent_again(self):
        whole = [part(0, [3, 4, 5, 6], [1, 2, 3, 4, 5, 6], seed=7, **LAST), USAGE]
        server = SessionServer([UNAVAILABLE], whole)
        self.use(server, self.reads((0, [3, 4, 5, 6])))
        first, again = server.generates()
        first.session.ClearField("sequence_hash")
        self.assertEqual(first, again)

    def test_a_reply_of_which_only_the_usage_is_lost_ends_well(self):
        server = SessionServer([part(0, [3, 4, 5, 6], [1, 2, 3, 4, 5, 6], seed=7, **LAST), UNAVAILABLE])
        self.use(server, self.reads((0, [3, 4, 5, 6])))
        self.assertEqual(len(server.generates()), 1)

    def test_without_max_tokens_the_models_length_is_asked_for(self):
        half = [part(0, [3, 4], [1, 2, 3, 4], seed=7), UNAVAILABLE]
        rest = [part(0, [5, 6], [1, 2, 3, 4, 5, 6], seed=7, **LAST), USAGE]
        image = {"image": {"height": 3, "width": 5, "channels": 1}}
        for content, size, limits, left in (
            (image, {}, {"max_tokens": 100}, 11),
            (image, {}, {"max_tokens": 9}, 7),
            ({}, {"max_sequence_tokens": 20}, {"max_tokens": 100, "default_max_tokens": 50}, 16),
            ({}, {}, {"max_tokens": 100, "default_max_tokens": 50}, 48),
        ):
            model = inference_pb2.GetModelReply(content=content, architecture=size, limits=limits, config_json="{}")
            server = SessionServer(half, rest, model=model)
            self.use(server, self.reads((0, [3, 4]), (2, [5, 6]), max_tokens=None))
            self.assertEqual(server.generates()[1].max_tokens, left)

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

    def test_unavailable_comes_through_without_retries_and_when_they_are_used_up(self):
        begun = [part(0, [3], [1, 2, 3], seed=7), UNAVAILABLE]
        self.fails(rivulet.Unavailable, begun, position=3)
        self.fails(rivulet.Unavailable, begun, [UNAVAILABLE], [UNAVAILABLE], position=3, retries=2)

    def test_other_errors_are_not_retried(self):
        for code, error_type in ((grpc.StatusCode.CANCELLED, rivulet.Cancelled), (grpc.StatusCode.NOT_FOUND, rivulet.NotFound)):
            self.fails(error_type, [part(0, [3], [1, 2, 3], seed=7), code], position=3, retries=5)

    def test_the_timeout_is_for_all_calls_together(self):
        # Each call takes 1000 s of the client's clock, so it does not matter how long it really takes.
        server, clock, left = SessionServer(*[[UNAVAILABLE]] * 99), Clock(), []
        refuse = server.answers["Generate"]

        def generate(request, context):
            left.append(context.time_remaining())
            clock.now += 1000
            return refuse(request, context)

        async def run(session):
            with self.assertRaisesRegex(rivulet.DeadlineExceeded, "not now"):
                await tokens_of(session.generate([1, 2], retries=99, timeout=3000))
            self.assertEqual(session.position, 0)

        server.answers["Generate"] = generate
        with unittest.mock.patch("rivulet.reply_repeat.time", clock):
            self.use(server, run)
        self.assertEqual([round(seconds, -3) for seconds in left], [3000, 2000, 1000])

    def test_tokens_that_differ_from_the_servers_are_data_loss(self):
        good = part(0, [3], [1, 2, 3], seed=7)
        self.fails(rivulet.DataLoss, [part(0, [3], [1, 9, 3], seed=7)], mention="hash", position=0)
        self.fails(rivulet.DataLoss, [part(0, [3], [1, 2, 3, 4], seed=7)], mention="server is at position 4", position=0)
        self.fails(rivulet.DataLoss, [good, part(1, [4], [1, 2, 3, 5])], mention="hash", position=3)
        self.fails(rivulet.DataLoss, [good, part(1, [4], [1, 2, 3, 3, 4])], mention="server is at position 5", position=3)
        # What a server gives that draws other tokens when it is asked again.
        self.fails(rivulet.DataLoss, [good, UNAVAILABLE], [part(0, [4], [1, 2, 8, 4], seed=7)], mention="hash", position=3, retries=1)

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
            [part(0, [3], [1, 2, 3], seed=7), UNAVAILABLE],
            [part(0, [4], [1, 2, 3, 4], seed=7), UNAVAILABLE],
            [part(0, [8], [1, 2, 3, 4, 8], seed=7, **LAST), USAGE],
        )

        async def run(session):
            for prompt, held in (([1, 2], [1, 2, 3]), ([], [1, 2, 3, 4])):
                with self.assertRaises(rivulet.Unavailable):
                    await tokens_of(session.generate(prompt, max_tokens=4))
                server.sequence = held
            self.assertEqual(await tokens_of(session.generate(max_tokens=1)), [8])
            server.sequence = [1, 2, 3, 4, 8, 9]
            await session.append([9])

        self.use(server, run)
        names = [call.name for call in server.calls]
        again = ["RewindSession", "Generate"]
        self.assertEqual(names, ["OpenSession", "Generate", *again, *again, "Append", "CloseSession"])
        self.assertEqual([call.request.position for call in server.calls[2:5:2]], [3, 4])

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
        server = SessionServer(*[[UNAVAILABLE]] * 40)

        async def run(session):
            stream = session.generate([1, 2], retries=40)
            with futures.ThreadPoolExecutor(1) as pool:
                tokens = pool.submit(list, stream.of)
                while len(server.generates()) < 3:
                    pass
                stream.close()
                with self.assertRaises(rivulet.Cancelled):
                    tokens.result(30)

        self.use(server, run)


class AsyncFakeTest(FakeTests, Async, unittest.TestCase):
    def test_close_by_another_task_ends_the_wait_for_another_try(self):
        server = SessionServer(*[[UNAVAILABLE]] * 40)

        async def run(session):
            stream = session.generate([1, 2], retries=40)
            tokens = asyncio.create_task(tokens_of(stream))
            while len(server.generates()) < 3:
                await asyncio.sleep(0.01)
            stream.close()
            with self.assertRaises(rivulet.Cancelled):
                await tokens

        self.use(server, run)


if __name__ == "__main__":
    unittest.main()
