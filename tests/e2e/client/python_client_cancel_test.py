# SPDX-License-Identifier: Apache-2.0
"""However a reply of the Python client is left, the server gets its session back; and threads share a client. Client and
AsyncClient by the same tests where they end a reply in the same way."""

import asyncio
import gc
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

from rivulet_wheel import await_idle  # makes rivulet what is imported below

import rivulet
from python_client_calls_test import ENDLESS, STREAM, ServerTest
from python_clients import Async, Sync


class CancelTests:
    def use(self, function):
        """Runs a coroutine function of a client; then every slot must be free while the client is still open."""

        async def run():
            async with self.client(self.server.target) as client:
                await function(client)
                self.assertTrue(await asyncio.to_thread(await_idle, self.plain, STREAM))

        asyncio.run(run())

    async def endless(self, client):
        """A reply of which the first part has been taken: it holds a slot."""
        stream = client.generate([1], model=STREAM, max_tokens=ENDLESS, seed=1)
        self.assertEqual((await stream.__anext__()).first_position, 0)
        (load,) = await client.load(STREAM)
        self.assertEqual(load.slots_used, 1)
        return stream

    async def read(self, stream):
        async for _ in stream:
            pass

    def test_leaving_the_loop_ends_the_call(self):
        async def run(client):
            async for part in client.generate([1], model=STREAM, max_tokens=ENDLESS):
                self.assertEqual(part.first_position, 0)
                break

        self.use(run)

    def test_close_ends_the_call_and_is_harmless_twice(self):
        async def run(client):
            stream = await self.endless(client)
            stream.close()
            stream.close()
            with self.assertRaises(rivulet.Cancelled):
                await self.read(stream)

        self.use(run)

    def test_with_ends_the_call_also_by_an_exception(self):
        async def run(client):
            with self.assertRaises(KeyError):
                async with await self.endless(client) as stream:
                    raise KeyError
            with self.assertRaises(rivulet.Cancelled):
                await stream.__anext__()
            self.assertIsNone(stream.usage)

        self.use(run)

    def test_a_stream_in_a_cycle_is_ended_by_the_garbage_collector(self):
        async def run(client):
            cycle = [await self.endless(client)]
            cycle.append(cycle)
            del cycle
            gc.collect()

        self.use(run)

    def test_closing_the_client_ends_its_calls_and_refuses_new_ones(self):
        async def run(_):
            other = self.client(self.server.target)
            stream = await self.endless(other)
            await other.close()
            await other.close()
            with self.assertRaises(rivulet.Cancelled):
                await self.read(stream)
            with self.assertRaisesRegex(ValueError, "the client is closed"):
                await other.models()
            with self.assertRaisesRegex(ValueError, "the client is closed"):
                await self.read(other.generate([1], model=STREAM))

        self.use(run)

    def test_a_finished_stream_stays_finished(self):
        async def run(client):
            async with client.generate([1], model=STREAM, max_tokens=3, seed=5) as stream:
                self.assertIsNone(stream.seed)
                self.assertEqual(len([token async for part in stream for token in part.tokens]), 3)
                self.assertEqual((stream.seed, stream.usage.completion_tokens), (5, 3))
                self.assertEqual([part async for part in stream], [])

        self.use(run)


class SyncCancelTest(CancelTests, Sync, ServerTest):
    def test_close_in_another_thread_ends_the_iteration_with_cancelled(self):
        async def run(client):
            stream = await self.endless(client)
            threading.Timer(0.2, stream.close).start()
            with self.assertRaises(rivulet.Cancelled) as caught:
                await self.read(stream)
            self.assertEqual(caught.exception.code, rivulet.Code.CANCELLED)

        self.use(run)

    def test_threads_share_a_client_and_get_what_each_would_get_alone(self):
        def tokens(seed):
            return self.plain.generate([seed], model=STREAM, max_tokens=60, seed=seed).collect().tokens.tolist()

        alone = [tokens(seed) for seed in range(32)]
        with ThreadPoolExecutor(16) as pool:
            self.assertEqual(list(pool.map(tokens, range(32))), alone)


class AsyncCancelTest(CancelTests, Async, ServerTest):
    def test_close_by_another_task_ends_the_iteration_with_cancelled(self):
        async def run(client):
            stream = await self.endless(client)
            asyncio.get_running_loop().call_later(0.2, stream.close)
            with self.assertRaises(rivulet.Cancelled):
                await self.read(stream)

        self.use(run)

    def test_cancelling_the_task_ends_the_call(self):
        async def run(client):
            task = asyncio.create_task(self.read(await self.endless(client)))
            await asyncio.sleep(0.2)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        self.use(run)

    def test_wait_for_ends_a_call_with_its_own_timeout(self):
        async def run(client):
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.generate([1], model=STREAM, max_tokens=ENDLESS).collect(), 0.3)

        self.use(run)

    def test_a_client_is_made_in_a_coroutine(self):
        with self.assertRaises(RuntimeError):
            rivulet.AsyncClient(self.server.target)


if __name__ == "__main__":
    unittest.main()
