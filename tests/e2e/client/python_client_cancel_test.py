# SPDX-License-Identifier: Apache-2.0
"""However a reply of the Python client is left, the server gets its session back; and threads share a client."""

import asyncio
import gc
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

from rivulet_wheel import await_idle  # makes rivulet what is imported below

import rivulet
from python_client_calls_test import ENDLESS, STREAM, ServerTest


class CancelTest(ServerTest):
    def endless(self, client=None):
        """A reply of which the first part has been taken: it holds a slot."""
        stream = (client or self.client).generate([1], model=STREAM, max_tokens=ENDLESS, seed=1)
        self.assertEqual(next(stream).first_position, 0)
        return stream

    def slots_used(self):
        (load,) = self.client.load(STREAM)
        return load.slots_used

    def assert_freed(self):
        self.assertTrue(await_idle(self.client, STREAM))

    def tearDown(self):
        self.assert_freed()

    def test_leaving_the_loop_ends_the_call(self):
        for part in self.client.generate([1], model=STREAM, max_tokens=ENDLESS):
            self.assertEqual(self.slots_used(), 1)
            break
        self.assert_freed()

    def test_close_ends_the_call_and_is_harmless_twice(self):
        stream = self.endless()
        self.assertEqual(self.slots_used(), 1)
        stream.close()
        stream.close()
        self.assert_freed()
        with self.assertRaises(rivulet.Cancelled):
            for _ in stream:
                pass

    def test_with_ends_the_call_also_by_an_exception(self):
        with self.assertRaises(KeyError), self.endless() as stream:
            self.assertEqual(self.slots_used(), 1)
            raise KeyError
        self.assert_freed()
        self.assertIsNone(stream.usage)

    def test_a_stream_in_a_cycle_is_ended_by_the_garbage_collector(self):
        stream = self.endless()
        cycle = [stream]
        cycle.append(cycle)
        del stream, cycle
        gc.collect()
        self.assert_freed()

    def test_close_in_another_thread_ends_the_iteration_with_cancelled(self):
        stream = self.endless()
        threading.Timer(0.2, stream.close).start()
        with self.assertRaises(rivulet.Cancelled) as caught:
            for _ in stream:
                pass
        self.assertEqual(caught.exception.code, rivulet.Code.CANCELLED)

    def test_closing_the_client_ends_its_calls_and_refuses_new_ones(self):
        client = rivulet.Client(self.server.target)
        stream = self.endless(client)
        client.close()
        client.close()
        with self.assertRaises(rivulet.Cancelled):
            for _ in stream:
                pass
        for call in (client.models, lambda: client.generate([1], model=STREAM)):
            with self.assertRaisesRegex(ValueError, "the client is closed"):
                call()

    def test_a_finished_stream_stays_finished(self):
        with self.client.generate([1], model=STREAM, max_tokens=3, seed=5) as stream:
            self.assertIsNone(stream.seed)
            tokens = [token for part in stream for token in part.tokens]
            self.assertEqual(len(tokens), 3)
            self.assertEqual((stream.seed, stream.usage.completion_tokens), (5, 3))
            self.assertEqual(list(stream), [])

    def test_threads_share_a_client_and_get_what_each_would_get_alone(self):
        def tokens(seed):
            return self.client.generate([seed], model=STREAM, max_tokens=60, seed=seed).collect().tokens.tolist()

        alone = [tokens(seed) for seed in range(32)]
        with ThreadPoolExecutor(16) as pool:
            self.assertEqual(list(pool.map(tokens, range(32))), alone)


class AsyncCancelTest(ServerTest):
    """The same for AsyncClient."""

    def use(self, function):
        """Runs a coroutine function of a client; then every slot must be free while the client is still open."""

        async def run():
            async with rivulet.AsyncClient(self.server.target) as client:
                await function(client)
                for _ in range(3000):
                    (load,) = await client.load(STREAM)
                    if load.slots_used == 0:
                        return
                    await asyncio.sleep(0.01)
                self.fail("the session still holds its slot")

        asyncio.run(run())

    async def endless(self, client):
        stream = client.generate([1], model=STREAM, max_tokens=ENDLESS, seed=1)
        await stream.__anext__()
        (load,) = await client.load(STREAM)
        self.assertEqual(load.slots_used, 1)
        return stream

    def test_leaving_the_loop_ends_the_call(self):
        async def run(client):
            async for part in client.generate([1], model=STREAM, max_tokens=ENDLESS):
                self.assertEqual(part.first_position, 0)
                break

        self.use(run)

    def test_with_ends_the_call(self):
        async def run(client):
            async with await self.endless(client):
                pass

        self.use(run)

    def test_close_by_another_task_ends_the_iteration_with_cancelled(self):
        async def run(client):
            stream = await self.endless(client)
            asyncio.get_running_loop().call_later(0.2, stream.close)
            with self.assertRaises(rivulet.Cancelled):
                async for _ in stream:
                    pass

        self.use(run)

    def test_cancelling_the_task_ends_the_call(self):
        async def read(stream):
            async for _ in stream:
                pass

        async def run(client):
            task = asyncio.create_task(read(await self.endless(client)))
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

    def test_closing_the_client_ends_its_calls_and_refuses_new_ones(self):
        async def run(client):
            other = rivulet.AsyncClient(self.server.target)
            stream = await self.endless(other)
            await other.close()
            with self.assertRaises(rivulet.Cancelled):
                async for _ in stream:
                    pass
            with self.assertRaisesRegex(ValueError, "the client is closed"):
                await other.models()

        self.use(run)

    def test_a_client_is_made_in_a_coroutine(self):
        with self.assertRaises(RuntimeError):
            rivulet.AsyncClient(self.server.target)


if __name__ == "__main__":
    unittest.main()
