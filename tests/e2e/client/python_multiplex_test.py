# SPDX-License-Identifier: Apache-2.0
"""Many requests over one stream of the Python client, and what the calls on sessions learned with it, against the real server.
Client and AsyncClient by the same tests."""

import itertools
import logging
import unittest
import unittest.mock

import rivulet_wheel  # makes rivulet what is imported below

import rivulet
from command import CONFORMANCE, Server
from python_client_calls_test import ENDLESS, STREAM
from python_clients import Async, Sync

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
            sizes, call = [], rivulet.session_messages.list_request

            def small_pages(model):
                request = call(model)
                request.page_size = 3
                sizes.append(request)
                return request

            opened = [await client.open_session() for _ in range(8)]
            with unittest.mock.patch.object(rivulet.session_messages, "list_request", small_pages):
                found = await client.sessions()
            self.assertEqual([info.id for info in found], [session.id for session in opened])
            self.assertEqual(len(sizes), 1)
            for session in opened:
                await session.close()

        self.use(run, tenant="pages")


class SyncMultiplexTest(MultiplexTests, Sync, unittest.TestCase):
    pass


class AsyncMultiplexTest(MultiplexTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
