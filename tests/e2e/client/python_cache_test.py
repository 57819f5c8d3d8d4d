# SPDX-License-Identifier: Apache-2.0
"""Cached prompts of the Python client against the real server: what is shared, with whom, and that no token changes. Client and
AsyncClient by the same tests."""

import unittest

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import numpy as np

import rivulet
from command import CONFORMANCE, Server
from python_client_calls_test import STREAM
from python_clients import Async, Sync

PROMPT = [1 + i % 36 for i in range(40)]
ALL_BUT_ONE = len(PROMPT) - 1  # the last token of a prompt is fed in any case


class CacheTests:
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(CONFORMANCE / STREAM, args=("--threads", "1", "--backend", "cpu")))

    def use(self, function):
        """Shares with no other test."""
        super().use(function, tenant=self._testMethodName[:64])

    async def cached(self, client, prompt, cache, seed=5):
        """Cached tokens of a prompt; the reply must be the one without a cache."""
        generation = await client.generate(prompt, max_tokens=12, seed=seed, cache=cache).collect()
        alone = await client.generate(prompt, max_tokens=12, seed=seed).collect()
        self.assertEqual(generation.tokens.tolist(), alone.tokens.tolist())
        self.assertEqual((generation.usage.prompt_tokens, alone.usage.cached_prompt_tokens), (len(prompt), 0))
        return generation.usage.cached_prompt_tokens

    def test_the_second_request_that_begins_alike_goes_on_from_the_first(self):
        async def run(client):
            before = (await client.load(STREAM))[0]
            self.assertEqual(await self.cached(client, PROMPT, True), 0)
            self.assertEqual(await self.cached(client, PROMPT, True, seed=6), ALL_BUT_ONE)
            self.assertEqual(await self.cached(client, [*PROMPT, 7, 8], rivulet.PromptCache()), ALL_BUT_ONE)
            for off in (None, False, rivulet.PromptCache(enabled=False)):
                self.assertEqual(await self.cached(client, PROMPT, off), 0)
            (load,) = await client.load(STREAM)
            self.assertEqual(load.prompt_cache_hits - before.prompt_cache_hits, 2)
            self.assertEqual(load.prompt_cache_misses - before.prompt_cache_misses, 1)
            self.assertGreater(load.prompt_cache_bytes, 0)

        self.use(run)

    def test_only_requests_with_the_same_salt_share(self):
        async def run(client):
            salted = rivulet.PromptCache(salt="Jos\u00e9")
            self.assertEqual(await self.cached(client, PROMPT, True), 0)
            self.assertEqual(await self.cached(client, PROMPT, salted), 0)
            self.assertEqual(await self.cached(client, PROMPT, salted), ALL_BUT_ONE)

        self.use(run)

    def test_a_position_that_is_named_is_gone_on_from(self):
        async def run(client):
            other = [*PROMPT[:25], 3, 3, 3]
            self.assertEqual(await self.cached(client, PROMPT, rivulet.PromptCache(positions=np.array([25, 9]))), 0)
            self.assertEqual(await self.cached(client, other, True), 25)
            self.assertEqual(await self.cached(client, [*PROMPT[:9], 4, 4], True), 9)

        self.use(run)

    def test_sessions_share_with_requests(self):
        async def run(client):
            self.assertEqual(await self.cached(client, PROMPT, True), 0)
            alone = await client.generate(PROMPT, max_tokens=12, seed=5).collect()
            async with await client.open_session(seed=5) as session:
                appended = await session.append(PROMPT, cache=True)
                self.assertEqual((appended.cached_tokens, session.position), (ALL_BUT_ONE, len(PROMPT)))
                generation = await session.generate(max_tokens=12, cache=True).collect()
                self.assertEqual(generation.tokens.tolist(), alone.tokens.tolist())
            async with await client.open_session(seed=5) as session:
                self.assertEqual((await session.append(PROMPT[:5])).cached_tokens, 0)
                generation = await session.generate(PROMPT[5:], max_tokens=12, cache=rivulet.PromptCache(positions=[30])).collect()
                self.assertEqual(generation.tokens.tolist(), alone.tokens.tolist())

        self.use(run)

    def test_requests_of_a_stream_share_too(self):
        async def run(client):
            async with client.multiplex() as stream:
                for cached in (0, ALL_BUT_ONE):
                    stream.generate(PROMPT, max_tokens=3, cache=True)
                    (usage,) = [part.usage async for part in stream if part.ended]
                    self.assertEqual(usage.cached_prompt_tokens, cached)
            parts = client.generate_many([PROMPT] * 3, at_once=1, max_tokens=2, cache=rivulet.PromptCache(salt="many"))
            self.assertEqual([part.usage.cached_prompt_tokens async for part in parts if part.ended], [0, ALL_BUT_ONE, ALL_BUT_ONE])

        self.use(run)

    def test_what_the_server_refuses_comes_through(self):
        async def run(client):
            async with await client.open_session() as session:
                for cache, reason, field in (
                    (rivulet.PromptCache(salt="x" * 65), "CACHE_SALT_LENGTH", "cache.salt"),
                    (rivulet.PromptCache(positions=[41]), "CACHE_POSITION_OUT_OF_RANGE", "cache.positions[0]"),
                    (rivulet.PromptCache(positions=[1, 0]), "CACHE_POSITION_OUT_OF_RANGE", "cache.positions[1]"),
                    (rivulet.PromptCache(positions=range(1, 18)), "TOO_MANY_CACHE_POSITIONS", "cache.positions"),
                ):
                    with self.assertRaises(rivulet.InvalidArgument) as caught:
                        await client.generate(PROMPT, cache=cache).collect()
                    self.assertEqual((caught.exception.reason, caught.exception.field), (reason, field))
                    if cache.positions != [41]:  # which means the end there
                        with self.assertRaises(rivulet.InvalidArgument) as caught:
                            await session.append(PROMPT, cache=cache)
                        self.assertEqual((caught.exception.reason, caught.exception.field), (reason, field))
                self.assertEqual(session.position, 0)

        self.use(run)

    def test_bad_arguments_are_named_before_anything_is_sent(self):
        async def run(client):
            async with await client.open_session() as session:
                for cache, error, mention in (
                    (1, TypeError, "^cache: must .*; got 1"),
                    ("salt", TypeError, "^cache: must .*; got 'salt'"),
                    (rivulet.PromptCache(salt=b"a"), TypeError, r"^cache\.salt: must .*; got b'a'"),
                    (rivulet.PromptCache(positions=[1, 2.5]), TypeError, r"^cache\.positions\[1\]: must .*; got 2\.5"),
                    (rivulet.PromptCache(positions=[2**63]), ValueError, r"cache.positions\[0\]: must be .*; got 9223372036854775808"),
                    (rivulet.PromptCache(enabled=None), TypeError, r"^cache\.enabled: must .*; got None"),
                ):
                    with self.assertRaisesRegex(error, mention):
                        await session.append(PROMPT, cache=cache)
                    with self.assertRaisesRegex(error, mention):
                        await client.generate(PROMPT, cache=cache).collect()

        self.use(run)


class SyncCacheTest(CacheTests, Sync, unittest.TestCase):
    pass


class AsyncCacheTest(CacheTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
