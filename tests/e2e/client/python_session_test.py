# SPDX-License-Identifier: Apache-2.0
"""Sessions of the Python client against the real server, which a proxy cuts off from time to time. Client and AsyncClient by the
same tests; python_session_fake_test.py has what a real server does not do."""

import logging
import tempfile
import unittest
from pathlib import Path

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import numpy as np

import rivulet
from command import CONFORMANCE, Server
from fake_server import fnv1a
from python_client_calls_test import ALPHABET, ENDLESS, IMAGE, NO_BOS, STREAM, TEXT, write_text_model
from python_clients import Async, Sync, tokens_of

logging.getLogger("grpc").setLevel(logging.CRITICAL)  # which also writes of what an iterator of ours raises
LONG = 24000  # tokens of a reply that is left


class SessionTests:
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        models = [CONFORMANCE / name for name in (STREAM, NO_BOS, IMAGE)] + [write_text_model(Path(folder))]
        cls.server = cls.enterClassContext(Server(*models, args=("--threads", "1", "--backend", "cpu")))
        cls.plain = cls.enterClassContext(rivulet.Client(cls.server.target))

    def alone(self, prompt, count, seed=5, model=STREAM, **options):
        return self.plain.generate(prompt, model=model, max_tokens=count, seed=seed, **options).collect().tokens.tolist()

    def test_what_is_appended_and_generated_in_pieces_equals_one_reply(self):
        async def run(client):
            for model in (STREAM, NO_BOS):
                async with await client.open_session(model=model, seed=5) as session:
                    self.assertEqual((session.position, session.seed, session.model), (0, 5, model))
                    self.assertRegex(session.id, "^[0-9a-f]{32}$")
                    self.assertEqual(session.sequence_hash, fnv1a([]))
                    await session.append([3, 1])
                    seen = [3, 1, 4]
                    seen += await tokens_of(session.generate(np.array([4]), max_tokens=11))
                    seen += await tokens_of(session.generate(max_tokens=9))
                    self.assertEqual(seen, [3, 1, 4, *self.alone([3, 1, 4], 20, model=model)])
                    self.assertEqual((session.position, session.sequence_hash), (23, fnv1a(seen)))

        self.use(run)

    def test_text_and_image_values_are_given_too(self):
        async def run(client):
            async with await client.open_session(model=TEXT, seed=5) as session:
                await session.append("ab")
                generation = await session.generate("cd", max_tokens=6).collect()
                expected = self.alone("abcd", 6, model=TEXT)
                self.assertEqual(generation.text, "".join(ALPHABET[token] for token in expected))
                self.assertEqual((session.position, session.sequence_hash), (10, fnv1a([0, 1, 2, 3, *expected])))
            async with await client.open_session(model=IMAGE, seed=5) as session:
                await session.append(bytes([128, 255]))
                generation = await session.generate(np.array([7], np.uint8)).collect()  # what is left of the image
                self.assertEqual(generation.tokens.tolist(), self.alone(bytes([128, 255, 7]), 41, model=IMAGE))

        self.use(run)

    def test_append_scores_as_score_does(self):
        async def run(client):
            async with await client.open_session(model=STREAM) as session:
                self.assertEqual((await session.append([1, 2])).num_scored, 0)
                score = await session.append([3, 4, 5], score=True, logprobs=True, output_positions=[2])
                whole = self.plain.score([1, 2, 3, 4, 5], model=STREAM, logprobs=True, output_positions=[4])
                self.assertEqual((score.num_scored, score.logprobs.tolist()), (3, whole.logprobs[2:].tolist()))
                self.assertEqual(score.outputs.tolist(), whole.outputs.tolist())

        self.use(run)

    def test_rewinds_to_marks_and_positions_and_goes_on_from_earlier_ones(self):
        async def run(client):
            async with await client.open_session(model=STREAM, seed=5) as session:
                await session.append([9, 8], mark="given")
                first = await tokens_of(session.generate(max_tokens=10, mark="ten"))
                more = await tokens_of(session.generate(max_tokens=10))
                self.assertEqual(session.marks, {"given": 2, "ten": 12})
                await session.rewind(mark="ten")
                self.assertEqual((session.position, session.sequence_hash), (12, fnv1a([9, 8, *first])))
                self.assertEqual(await tokens_of(session.generate(max_tokens=10)), more)
                self.assertEqual(await tokens_of(session.generate(max_tokens=10, position=12)), more)
                await session.rewind(mark="ten")
                other = await tokens_of(session.generate(max_tokens=10, seed=6))
                self.assertNotEqual(other, more)
                self.assertEqual(await tokens_of(session.generate(max_tokens=10, position=2)), first)
                self.assertEqual(session.marks, {"given": 2})
                await session.rewind(position=1)
                self.assertEqual((session.position, session.marks), (1, {}))
                self.assertEqual(await tokens_of(session.generate(max_tokens=10)), self.alone([9], 10))
                with self.assertRaises(rivulet.NotFound) as caught:
                    await session.rewind(mark="ten")
                self.assertEqual((caught.exception.reason, session.position), ("MARK_NOT_FOUND", 11))
                with self.assertRaises(rivulet.FailedPrecondition) as caught:
                    await tokens_of(session.generate(max_tokens=1, position=0))
                self.assertEqual(caught.exception.reason, "GIVEN_TOKENS_BEYOND_POSITION")
                self.assertEqual(session.position, 11)

        self.use(run)

    def test_forks_go_on_each_in_its_own_way(self):
        async def run(client):
            async with await client.open_session(model=STREAM, seed=5) as session:
                await session.append([1, 2])
                forks = await session.fork(3, seed=50)
                self.assertEqual([fork.seed for fork in forks], [50, 51, 52])
                for fork in forks:
                    async with fork:
                        self.assertEqual((fork.position, fork.sequence_hash), (2, fnv1a([1, 2])))
                        self.assertEqual(await tokens_of(fork.generate(max_tokens=9)), self.alone([1, 2], 9, fork.seed))
                self.assertEqual(await tokens_of(session.generate(max_tokens=9)), self.alone([1, 2], 9))
                (fork,) = await session.fork(position=1)
                self.assertEqual((fork.position, fork.sequence_hash), (1, fnv1a([1])))
                self.assertNotEqual(fork.seed, session.seed)

        self.use(run)

    def test_a_snapshot_is_restored_whole_or_in_pieces(self):
        async def run(client):
            async with await client.open_session(model=STREAM, seed=5) as session:
                await session.append([4, 4], mark="begin")
                snapshot = await session.snapshot()
                rest = await tokens_of(session.generate(max_tokens=9))
                for pieces in (snapshot, (snapshot[:7], b"", snapshot[7:])):
                    restored = await client.restore_session(pieces, model=STREAM, idle_timeout=30)
                    self.assertIs(restored.same_numerics, True)
                    self.assertEqual((restored.position, restored.marks, restored.seed), (2, {"begin": 2}, 5))
                    self.assertEqual(restored.idle_timeout, 30)
                    self.assertNotEqual(restored.id, session.id)
                    self.assertEqual(await tokens_of(restored.generate(max_tokens=9)), rest)
                open_sessions = len(await client.sessions(model=STREAM))
                damaged = bytearray(snapshot)
                damaged[len(damaged) // 2] ^= 1
                for bad in (damaged, snapshot[:-1], b""):
                    with self.assertRaises(rivulet.DataLoss):
                        await client.restore_session(bad, model=STREAM)

                def stops():
                    yield snapshot[:9]
                    raise OSError("the disk is gone")

                with self.assertRaisesRegex(OSError, "the disk is gone"):
                    await client.restore_session(stops(), model=STREAM)
                self.assertEqual(len(await client.sessions(model=STREAM)), open_sessions)

        self.use(run)

    def test_a_snapshot_of_several_messages_comes_back(self):
        async def run(client):
            async with await client.open_session(model=STREAM) as session:
                await session.append([7] * 600_000)
                snapshot = await session.snapshot()
                self.assertGreater(len(snapshot), 2 << 20)
                async with await client.restore_session(snapshot, model=STREAM) as restored:
                    self.assertEqual((restored.position, restored.sequence_hash), (600_000, session.sequence_hash))

        self.use(run)

    def test_a_reply_that_is_left_early_continues_after_what_was_seen(self):
        async def run(client):
            async with await client.open_session(model=STREAM, seed=5) as session:
                seen = []
                async for part in session.generate([1, 2], max_tokens=ENDLESS):
                    seen += part.tokens.tolist()
                    break
                self.assertEqual(session.position, 2 + len(seen))
                (fork,) = await session.fork(seed=5)
                seen += await tokens_of(session.generate(max_tokens=50))
                expected = self.alone([1, 2], len(seen))
                self.assertEqual(seen, expected)
                session.generate([3], max_tokens=LONG).close()  # whose prompt the server may have or not
                self.assertEqual(session.position, 2 + len(seen))
                await session.append([8])
                self.assertEqual(session.sequence_hash, fnv1a([1, 2, *expected, 8]))

        self.use(run)

    def test_a_call_ends_the_reply_that_runs(self):
        async def run(client):
            async with await client.open_session(model=STREAM, seed=5) as session:
                running = session.generate([1], max_tokens=ENDLESS)
                seen = [1, *(await running.__anext__()).tokens.tolist()]
                await session.append([2], timeout=60)
                self.assertEqual(session.sequence_hash, fnv1a([*seen, 2]))
                with self.assertRaises(rivulet.Cancelled):
                    await tokens_of(running)
                self.assertEqual(session.sequence_hash, fnv1a([*seen, 2]))

        self.use(run)

    def test_with_closes_keep_keeps_and_another_client_goes_on(self):
        async def run(client):
            async with await client.open_session(model=STREAM, seed=5, idle_timeout=77.5) as session:
                await session.append([1], mark="one")
                (info,) = [info for info in await client.sessions(model=STREAM) if info.id == session.id]
                self.assertEqual((info.position, info.sequence_hash, info.seed), (1, fnv1a([1]), 5))
                self.assertEqual((info.marks, info.idle_timeout, info.busy), ({"one": 1}, 77.5, False))
                self.assertTrue(0 <= info.idle_seconds < 60 and info.model == STREAM)
                session.keep()
            again = await client.session(session.id, model=STREAM)
            self.assertEqual((again.position, again.marks, again.idle_timeout), (1, {"one": 1}, 77.5))
            async with again:
                self.assertEqual(await tokens_of(again.generate(max_tokens=5)), self.alone([1], 5))
            await again.close()
            for call in (again.append([1]), again.snapshot(), client.session(again.id, model=STREAM)):
                with self.assertRaises(rivulet.NotFound) as caught:
                    await call
                self.assertEqual(caught.exception.reason, "SESSION_NOT_FOUND")

        self.use(run)

    def test_given_tokens_of_another_object_are_not_dropped_unasked(self):
        async def run(client):
            async with await client.open_session(model=STREAM) as session:
                other = await client.session(session.id, model=STREAM)
                await other.append([1, 2])
                for _ in range(2):
                    with self.assertRaises(rivulet.FailedPrecondition):
                        await session.append([3])
                    with self.assertRaises(rivulet.FailedPrecondition):
                        await tokens_of(session.generate([3], max_tokens=1))
                await other.append([4])
                self.assertEqual(other.sequence_hash, fnv1a([1, 2, 4]))

        self.use(run)

    def test_an_exception_in_the_with_block_is_not_hidden_by_closing(self):
        async def run(client):
            with self.assertRaises(KeyError):
                async with await client.open_session(model=STREAM) as session:
                    await client.close()
                    raise KeyError(session.id)

        self.use(run)

    def test_a_session_is_its_tenants_alone(self):
        async def run(client):
            async with await client.open_session(model=STREAM) as session:
                self.assertEqual([info.id for info in await client.sessions(model=STREAM)], [session.id])
                with rivulet.Client(self.server.target, tenant="b") as other:
                    self.assertEqual(other.sessions(model=STREAM), ())
                    with self.assertRaises(rivulet.NotFound):
                        other.session(session.id, model=STREAM)
                await session.append([1])
                await tokens_of(session.generate(max_tokens=2))

        self.use(run, tenant="a")

    def test_what_the_server_refuses_leaves_the_session_as_it_was(self):
        async def run(client):
            async with await client.open_session(model=STREAM, seed=5) as session:
                await session.append([1])
                for content, field in (([-1], "content.tokens[0]"), ("text", "content.text")):
                    with self.assertRaises(rivulet.InvalidArgument) as caught:
                        await session.append(content)
                    self.assertEqual(caught.exception.field, field)
                with self.assertRaises(rivulet.InvalidArgument):
                    await tokens_of(session.generate([2], temperature=-1.0))
                self.assertEqual((session.position, await tokens_of(session.generate(max_tokens=5))), (1, self.alone([1], 5)))

        self.use(run)

    def test_bad_arguments_are_named_before_anything_is_sent(self):
        async def run(client):
            async with await client.open_session(model=STREAM) as session:
                for call, error, mention in (
                    (lambda: client.open_session(seed=-1), ValueError, "seed: must be 0 to 18446744073709551615; got -1"),
                    (lambda: client.open_session(idle_timeout="1"), TypeError, "^idle_timeout: must .*; got '1'"),
                    (lambda: client.open_session(idle_timeout=float("nan")), ValueError, "^idle_timeout: must .*; got nan"),
                    (lambda: client.session("1" * 32, cookie="a\nb"), ValueError, "cookie"),
                    (lambda: client.restore_session("abc"), TypeError, "^snapshot: must .*; got 'abc'"),
                    (lambda: session.append(1.5), TypeError, r"^content: must .*; got 1\.5"),
                    (lambda: session.append([1], mark=3), TypeError, "^mark: must .*; got 3"),
                    (lambda: session.append([1], priority=3), TypeError, "^priority: must .*; got 3"),
                    (lambda: session.fork(1.5), TypeError, r"^count: must .*; got 1\.5"),
                    (lambda: session.rewind(), ValueError, "position, mark"),
                    (lambda: session.rewind(position=1, mark="a"), ValueError, "position, mark"),
                    (lambda: tokens_of(session.generate([1], resume=1)), TypeError, "^resume: must .*; got 1"),
                    (lambda: tokens_of(session.generate([1], num_samples=2)), TypeError, "'num_samples'"),
                    (lambda: tokens_of(session.generate([1], position="a")), TypeError, "^position: must .*; got 'a'"),
                ):
                    with self.assertRaises(error) as caught:
                        await call()
                    self.assertRegex(str(caught.exception), mention)
                self.assertEqual(session.position, 0)
            with self.assertRaisesRegex(ValueError, "^tenant: must be printable ASCII without spaces; got 'a b'"):
                self.client(self.server.target, tenant="a b")

        self.use(run)


class SyncSessionTest(SessionTests, Sync, unittest.TestCase):
    pass


class AsyncSessionTest(SessionTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
