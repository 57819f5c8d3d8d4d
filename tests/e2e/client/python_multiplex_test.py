# SPDX-License-Identifier: Apache-2.0
"""Many requests over one stream of the Python client, and what the calls on sessions learned with it, against the real server; lost
streams against one that follows a script. Client and AsyncClient by the same tests."""

import asyncio
import itertools
import logging
import time
import unittest
import unittest.mock
from concurrent import futures

import rivulet_wheel  # makes rivulet what is imported below

import grpc

import rivulet
from command import CONFORMANCE, Server
from fake_server import ScriptedServer, cut, error_status, fails
from python_client_calls_test import ENDLESS, STREAM
from python_clients import Async, Sync
from rivulet.core import multiplex as multiplex_core, reply_repeat, requests
from rivulet.v1 import inference_pb2, multiplex_pb2

logging.getLogger("grpc").setLevel(logging.CRITICAL)


class MultiplexTests:
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(
            Server(CONFORMANCE / STREAM, args=("--threads", "1", "--backend", "cpu", "--max-multiplexed", "300"))
        )
        cls.plain = cls.enterClassContext(rivulet.Client(cls.server.target))

    def alone(self, prompt, **options):
        return self.plain.generate(prompt, **options).collect().samples

    def test_two_hundred_replies_side_by_side_are_those_of_lone_calls(self):
        async def run(client):
            async with client.multiplex(timeout=100) as stream:
                wanted = {}
                for i in range(200):
                    options = {"seed": i % 7, "max_tokens": 1 + i % 30, "num_samples": 1 + i % 2, "logprobs": i % 3 == 0}
                    wanted[stream.generate([i % 37], **options)] = ([i % 37], options)
                self.assertEqual((list(wanted), stream.open_requests), (list(range(200)), 200))
                tokens, logprobs, ended, seeds = {}, {}, {}, {}
                async for part in stream:
                    self.assertNotIn(part.key, ended)
                    own = tokens.setdefault((part.key, part.sample_index), [])
                    if part.tokens:
                        self.assertEqual(part.first_position, len(own))
                    own += part.tokens
                    logprobs.setdefault((part.key, part.sample_index), []).extend(part.logprobs or [])
                    if part.seed is not None:
                        self.assertNotIn(part.key, seeds)
                        seeds[part.key] = part.seed
                    if part.ended:
                        self.assertIsNone(part.error)
                        ended[part.key] = part.usage.completion_tokens
                self.assertEqual(stream.open_requests, 0)
                again = stream.generate([1], seed=1, max_tokens=2)  # after the end of all more may come
                async for part in stream:
                    self.assertEqual(part.key, again)
            for key, (prompt, options) in wanted.items():
                samples = self.alone(prompt, **options)
                self.assertEqual(seeds[key], options["seed"])
                self.assertEqual(ended[key], sum(len(sample.tokens) for sample in samples))
                for index, sample in enumerate(samples):
                    self.assertEqual(tokens[key, index], sample.tokens.tolist(), key)
                    if options["logprobs"]:
                        self.assertEqual(logprobs[key, index], sample.logprobs.tolist())

        self.use(run)

    def test_errors_cancels_and_timeouts_end_one_request(self):
        async def run(client):
            async with client.multiplex() as stream:
                bad = stream.generate([1], top_p=2)
                stopped = stream.generate([1], max_tokens=ENDLESS)
                late = stream.generate([1], max_tokens=ENDLESS, timeout=0.05)
                good = stream.generate([1], seed=3, max_tokens=8)
                ends, tokens = {}, []
                stream.cancel(stopped)
                async for part in stream:
                    tokens += part.tokens if part.key == good else []
                    if part.ended:
                        ends[part.key] = part.error
                stream.cancel(stopped)
                self.assertEqual(sorted(ends), [bad, stopped, late, good])
                self.assertEqual((type(ends[bad]), ends[bad].field), (rivulet.InvalidArgument, "sampling.top_p"))
                self.assertEqual(type(ends[stopped]), rivulet.Cancelled)
                self.assertEqual(type(ends[late]), rivulet.DeadlineExceeded)
                self.assertIsNone(ends[good])
                self.assertEqual(tokens, self.alone([1], seed=3, max_tokens=8)[0].tokens.tolist())
                for options, named in (({"metadata": {"a": "b"}}, "metadata"), ({"top_k": "x"}, "top_k"), ({"timeout": 0}, "timeout")):
                    with self.assertRaisesRegex((TypeError, ValueError), named):
                        stream.generate([1], **options)
                self.assertEqual(stream.open_requests, 0)

        self.use(run)

    def test_leaving_the_stream_frees_every_slot_and_its_timeout_ends_it(self):
        async def run(client):
            for parts in (0, 1, 2, 7):
                async with client.multiplex() as stream:
                    for i in range(5):
                        stream.generate([i], max_tokens=ENDLESS)
                    seen = 0
                    while seen < parts:
                        async for part in stream:
                            seen += 1
                            if seen >= parts:
                                break
                self.assertTrue(rivulet_wheel.await_idle(self.plain, STREAM), parts)
            async with client.multiplex(timeout=0.3) as stream:
                stream.generate([1], max_tokens=ENDLESS)
                error = None
                try:
                    async for part in stream:
                        error = part.error  # the server was first
                except rivulet.DeadlineExceeded as raised:
                    error = raised
                self.assertEqual((type(error), stream.open_requests), (rivulet.DeadlineExceeded, 0))
            self.assertTrue(rivulet_wheel.await_idle(self.plain, STREAM))

        self.use(run)

    def test_generate_many_asks_for_prompts_as_requests_end(self):
        async def run(client):
            prompts = ([i % 37] for i in range(50))
            tokens = {}
            async for part in client.generate_many(prompts, at_once=4, seed=100, max_tokens=5):
                self.assertIsNone(part.error)
                tokens.setdefault(part.key, []).extend(part.tokens)
                self.assertLessEqual(max(tokens), sum(1 for own in tokens.values() if len(own) == 5) + 4)
            self.assertEqual(sorted(tokens), list(range(50)))
            for key in (0, 7, 49):
                self.assertEqual(tokens[key], self.alone([key % 37], seed=100 + key, max_tokens=5)[0].tokens.tolist())
            endless = client.generate_many(([i % 37] for i in itertools.count()), at_once=3, max_tokens=ENDLESS)
            async for part in endless:
                break
            await endless.aclose()
            self.assertTrue(rivulet_wheel.await_idle(self.plain, STREAM))
            for prompts, options, error in (("text", {}, TypeError), ([[1]], {"at_once": 0}, ValueError), ([[1]], {"seed": -1}, ValueError)):
                with self.assertRaises(error):
                    client.generate_many(prompts, **options)

        self.use(run)

    def test_a_second_object_of_a_session_learns_of_the_first(self):
        async def run(client):
            first = await client.open_session(seed=5)
            await first.append([3, 1])
            second = await client.session(first.id)
            self.assertEqual(second.position, 2)
            await first.generate(max_tokens=9).collect()
            for attempt in (
                lambda: second.generate(max_tokens=4).collect(), lambda: second.append([1]), lambda: second.fork(2),
            ):  # fmt: skip
                with self.assertRaises(rivulet.FailedPrecondition) as caught:
                    await attempt()
                self.assertEqual((caught.exception.reason, second.position), ("SESSION_HASH_MISMATCH", 2))
                self.assertEqual(caught.exception.field, "session.sequence_hash")
            third = await client.session(first.id)
            self.assertEqual(third.position, 11)
            await third.generate(max_tokens=4, position=6).collect()  # it knows what it drops
            self.assertEqual(third.position, 10)
            with self.assertRaises(rivulet.NotFound):
                await client.session("1" * 32)
            await third.close()

        self.use(run, tenant="second-object")

    def test_a_snapshot_holds_the_session_up_to_a_position(self):
        async def run(client):
            session = await client.open_session(seed=5)
            await session.append([3, 1], mark="given")
            whole = (await session.generate(max_tokens=9).collect()).tokens.tolist()
            for position in (None, 11, 5, 1):
                restored = await client.restore_session(await session.snapshot(position=position))
                at = 11 if position is None else position
                self.assertEqual((restored.position, dict(restored.marks)), (at, {"given": 2} if at >= 2 else {}))
                if at == 5:
                    self.assertEqual((await restored.generate(max_tokens=6).collect()).tokens.tolist(), whole[3:])
                await restored.close()
            with self.assertRaises(rivulet.OutOfRange):
                await session.snapshot(position=12)
            await session.close()

        self.use(run, tenant="snapshots")

    def test_sessions_come_page_by_page(self):
        async def run(client):
            sizes, call = [], rivulet.core.session_messages.list_request

            def small_pages(model):
                request = call(model)
                request.page_size = 3
                sizes.append(request)
                return request

            opened = [await client.open_session() for _ in range(8)]
            with unittest.mock.patch.object(rivulet.core.session_messages, "list_request", small_pages):
                found = await client.sessions()
            self.assertEqual([info.id for info in found], [session.id for session in opened])
            self.assertEqual(len(sizes), 1)
            for session in opened:
                await session.close()

        self.use(run, tenant="pages")


END = {"reason": "FINISH_REASON_LENGTH"}
GONE = cut(grpc.StatusCode.UNAVAILABLE, "gone")


def message(*parts):
    return multiplex_pb2.MultiplexReply(parts=parts)


def begun(key, *tokens):
    return {"key": key, "seed": 9, "fingerprint": 70 + key, "tokens": tokens}


def rest(key, first, *tokens):
    return {"key": key, "seed": 9, "fingerprint": 70 + key, "first_position": first, "tokens": tokens, "finish": END, "usage": {}}


def error(key, code, reason, **options):
    return {"key": key, "error": error_status(code, reason, **options)}


class LostTests:
    """Stream i is answered as script[i] says: a number takes so many messages of the client, a message is sent, a function ends the
    stream. taken[i]: what was taken."""

    def setUp(self):
        self.enterContext(unittest.mock.patch.object(reply_repeat, "_FIRST_WAIT", 0.001))

    def answer(self, messages, context):
        if not self.script:
            fails(grpc.StatusCode.INTERNAL, "SCRIPT_IS_OVER")(context)
        taken = []
        self.taken.append(taken)
        for entry in self.script.pop(0):
            if isinstance(entry, int):
                taken += itertools.islice(messages, entry)
            elif callable(entry):
                entry(context)
            else:
                yield entry

    def run_script(self, *script, function=None, requests=2, begin=None, stream_options=None, **options):
        """Runs a coroutine function of a stream, and of its script; else gives what the parts of so many requests hold, by key."""
        self.script, self.taken = list(script), []

        async def read(stream):
            for key in range(requests):
                stream.generate([key], **options)
            return await self.read(stream)

        async def run():
            async with self.client(self.server.target, **(begin or {})) as client:
                async with client.multiplex(**(stream_options or {})) as stream:
                    return await asyncio.wait_for((function or read)(stream), 300)

        with ScriptedServer({"Multiplex": self.answer}) as self.server:
            result = asyncio.run(run())
        self.assertEqual(self.script, [])
        for taken in self.taken:  # waits differ
            taken.sort(key=lambda sent: sent.key)
        return result

    async def read(self, stream):
        """Tokens by key, and a string where a request ended with an error; no part may repeat what another held."""
        got, seeds, ends = {}, [], []
        async for part in stream:
            own = got.setdefault(part.key, [])
            self.assertTrue(not part.tokens or part.first_position == len(own), part)
            own += part.tokens if part.error is None else [str(part.error)]
            seeds += [part.key] * (part.seed is not None)
            ends += [part.key] * (part.finish is not None)
        self.assertEqual((len(set(seeds)), len(set(ends)), stream.open_requests), (len(seeds), len(ends), 0))
        return got

    def test_a_request_that_has_begun_ends_after_five_streams_that_bring_it_nothing(self):
        streams = [[2, message({"key": 1, "first_position": i + 1, "tokens": [6 + i]}), cut(grpc.StatusCode.UNAVAILABLE, "still")] for i in range(5)]
        got = self.run_script([2, message(begun(0, 1), begun(1, 5)), GONE], *streams, [1, message(rest(1, 6, 11))])
        self.assertEqual(got, {0: [1, "gone"], 1: [5, 6, 7, 8, 9, 10, 11]})

    def test_a_request_that_is_lost_alone_moves_to_another_stream_with_the_others(self):
        drained = message(begun(1, 5), error(0, grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_seconds=0.001))
        got = self.run_script([2, message(begun(0, 1)), drained, 1], [2, message(rest(0, 1, 2), rest(1, 1, 6))])
        self.assertEqual(got, {0: [1, 2], 1: [5, 6]})
        self.assertEqual(len(self.taken[0]), 2)
        self.assertEqual({sent.key: sent.generate.resume.samples[0].ids for sent in self.taken[1]}, {0: [1], 1: [5]})

    def test_what_must_not_be_sent_again_keeps_its_stream(self):
        async def run(stream):
            stream.generate([0])
            stream.generate([1], resume=False)
            return await self.read(stream)

        lost = message(begun(1, 5), error(0, grpc.StatusCode.UNAVAILABLE, "NOT_NOW", retry_seconds=0.001))
        got = self.run_script([2, lost, message({"key": 1, "first_position": 1, "tokens": [6]}), 1, message(rest(1, 2, 7), rest(0, 0, 1))], function=run)
        self.assertEqual(got, {0: [1], 1: [5, 6, 7]})
        self.assertEqual(self.taken[0][1].generate.resume, inference_pb2.Resume())

    def test_a_later_call_that_is_refused_for_now_is_sent_again_over_the_same_stream(self):
        full = error(0, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_seconds=0.001)
        got = self.run_script([1, message(begun(0, 1)), GONE], [1, message(full), 1, message(full), 1, message(rest(0, 1, 2))], requests=1)
        self.assertEqual(got, {0: [1, 2]})
        got = self.run_script([1, message(full)], requests=1)  # the first call
        self.assertEqual(got, {0: ["said by the server (QUEUE_FULL)"]})

    def test_an_error_that_is_no_loss_ends_its_request_or_the_stream(self):
        got = self.run_script([2, message(begun(0, 1), error(0, grpc.StatusCode.INTERNAL, "A_BUG"), rest(1, 0, 5))])
        self.assertEqual(got, {0: [1, "said by the server (A_BUG)"], 1: [5]})
        for end, options, error_type in (
            (fails(grpc.StatusCode.PERMISSION_DENIED, "NO"), {}, rivulet.PermissionDenied), (GONE, {"resume": False}, rivulet.Unavailable),
        ):  # fmt: skip
            with self.assertRaises(error_type):
                self.run_script([2, message(begun(0, 1), begun(1, 5)), end], **options)

    def test_with_and_without_resume_side_by_side(self):
        async def run(stream):
            stream.generate([0], resume=False)
            stream.generate([1])
            return await self.read(stream)

        got = self.run_script([2, message(begun(0, 1), begun(1, 5)), GONE], [1, message(rest(1, 1, 6))], function=run)
        self.assertEqual(got, {0: [1, "gone"], 1: [5, 6]})

    def test_a_request_that_waits_can_be_cancelled(self):
        """It waits for an hour, which streams that are lost meanwhile do not change."""
        full = error(0, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_seconds=3600)
        lost = [[1, message({"key": 1, "first_position": i, "tokens": [i]}), GONE] for i in range(1, 6)]
        cancelled = message(error(0, grpc.StatusCode.CANCELLED, "STOPPED"), rest(1, 7, 7))

        async def run(stream):
            stream.generate([0])
            stream.generate([1])
            got = []
            async for part in stream:
                got += [part.tokens if part.error is None else part.error.reason]
                if part.tokens == [6]:
                    stream.cancel(0)
            return got

        got = self.run_script([2, message(begun(0, 9), begun(1, 0)), GONE], [2, message(full), GONE], *lost,
                              [1, message({"key": 1, "first_position": 6, "tokens": [6]}), 2, cancelled], function=run)  # fmt: skip
        self.assertEqual(got, [[9], [0], [1], [2], [3], [4], [5], [6], "STOPPED", [7]])
        self.assertEqual([sent.WhichOneof("action") for sent in self.taken[-1]], ["generate", "cancel", "generate"])

    def test_a_request_that_was_cancelled_is_not_sent_again(self):
        async def run(stream):
            stream.generate([0])
            stream.generate([1])
            got = []
            async for part in stream:
                got += [part.tokens if part.error is None else part.error.message]
                if part.tokens == [1]:
                    stream.cancel(0)
            return got

        got = self.run_script([2, message(begun(0, 1)), 1, GONE], [1, message(rest(1, 0, 5))], function=run)
        self.assertEqual(got, [[1], "the request was cancelled", [5]])

    def test_the_timeout_of_the_stream_and_that_of_a_request_are_for_all_calls(self):
        later = fails(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_seconds=3600)
        for options in ({"timeout": 3600}, {"stream_options": {"timeout": 3600}}):
            got = self.run_script([1, message(begun(0, 1)), later], requests=1, **options)
            self.assertEqual(got, {0: [1, "the timeout of 3600 s leaves no time to try again after: said by the server"]})

    def test_many_prompts_over_streams_that_are_lost(self):
        async def run():
            async with self.client(self.server.target) as client:
                return [(part.key, token) async for part in client.generate_many([[0], [1], [2]], at_once=2, seed=9) for token in part.tokens]

        self.script, self.taken = [[2, message(begun(0, 1), rest(1, 0, 5)), 1, GONE], [2, message(rest(0, 1, 2), rest(2, 0, 8))]], []
        with ScriptedServer({"Multiplex": self.answer}) as self.server:
            self.assertEqual(asyncio.run(run()), [(0, 1), (1, 5), (0, 2), (2, 8)])
        self.assertEqual({sent.key for sent in self.taken[1]}, {0, 2})


class MemberTest(unittest.TestCase):
    """A request that is to be sent in an hour."""

    def setUp(self):
        self.member = multiplex_core.Member(3, requests.generate([1], {}), {"timeout": 10_000}, 4)
        self.member.due = time.monotonic() + 3600

    def test_its_timeout_is_what_is_left_then(self):
        self.assertEqual(round(self.member.message().timeout.seconds, -3), 6000)

    def test_it_is_sent_once_if_that_changes(self):
        outgoing = [(self.member.due, 0, "late", self.member)]
        self.assertEqual([*multiplex_core.due(outgoing.copy())], ["late"])
        self.member.due = 0.0
        self.assertEqual([*multiplex_core.due(outgoing)], [])


class SyncLostTest(LostTests, Sync, unittest.TestCase):
    def test_close_in_another_thread_ends_the_wait_for_another_stream(self):
        async def run(stream):
            stream.generate([0])
            with futures.ThreadPoolExecutor(1) as pool:
                parts = pool.submit(list, stream.of)
                while self.script:
                    time.sleep(0.01)
                stream.close()
                with self.assertRaises(rivulet.Cancelled):
                    parts.result(30)

        self.run_script([1, fails(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_seconds=3600)], function=run)


class AsyncLostTest(LostTests, Async, unittest.TestCase):
    def test_close_by_another_task_ends_the_wait_for_another_stream(self):
        async def run(stream):
            stream.generate([0])
            parts = asyncio.create_task(self.read(stream))
            while self.script:
                await asyncio.sleep(0.01)
            stream.close()
            with self.assertRaises(rivulet.Cancelled):
                await parts

        self.run_script([1, fails(grpc.StatusCode.UNAVAILABLE, "DRAINING", retry_seconds=3600)], function=run)


class SyncMultiplexTest(MultiplexTests, Sync, unittest.TestCase):
    pass


class AsyncMultiplexTest(MultiplexTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
