# SPDX-License-Identifier: Apache-2.0
"""Replies that are lost: where a client does not go on by itself, the error's metadata say where to. Client and AsyncClient by the same
tests. contract/lost_replies_test.py has how a client goes on."""

import asyncio
import logging
import signal
import unittest
import unittest.mock

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import rivulet
from balancer import two_replicas
from command import CONFORMANCE, Server
from python_client_calls_test import ENDLESS, STREAM
from python_clients import Async, Sync, tokens_of
from rivulet.core import reply_repeat, requests

logging.getLogger("grpc").setLevel(logging.CRITICAL)
PROMPT = [3, 1]
BULKY = {"max_tokens": ENDLESS, "logprobs": True, "top_logprobs": 20}  # more than a connection holds for a client that does not read


class WaitTest(unittest.TestCase):
    def test_waits_double_up_to_two_seconds_and_the_server_may_set_one(self):
        low, high = [], []
        for waits, bound in ((low, min), (high, max)):
            with unittest.mock.patch("random.uniform", lambda a, b, bound=bound: bound(a, b)):
                reply = reply_repeat.RepeatedReply(requests.generate([1], {}), {}, 9)
                waits += [reply.wait(rivulet.Unavailable("gone")) for _ in range(7)]
                self.assertEqual(reply.wait(rivulet.Unavailable("gone", retry_delay=7.5)), 7.5)
        middle = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
        for waits, share in ((low, 0.8), (high, 1.2)):
            self.assertEqual([round(wait, 9) for wait in waits], [round(share * wait, 9) for wait in middle])


def server(*args):
    return Server(CONFORMANCE / STREAM, args=("--threads", "1", "--backend", "cpu", *args))


class ResumeTests:
    def use(self, function, *args):
        """Runs a coroutine function of a server with `args`, a client of it, and a client of another server."""
        with server(*args) as here, server() as there:

            async def run():
                async with self.client(here.target) as client, self.client(there.target) as other:
                    await asyncio.wait_for(function(here, client, other), 120)

            asyncio.run(run())

    async def alone(self, client, count, seed=5):
        return (await client.generate(PROMPT, max_tokens=count, seed=seed).collect()).tokens.tolist()

    async def until_error(self, stream, seen, error_type):
        """Reads a reply to its bad end. `seen`: its tokens, by sample."""
        with self.assertRaises(error_type) as caught:
            async for part in stream:
                seen.setdefault(part.sample_index, []).extend(part.tokens.tolist())
        return caught.exception

    async def has_begun(self, stream, seen, samples=1):
        while len(seen) < samples:
            part = await stream.__anext__()
            seen.setdefault(part.sample_index, []).extend(part.tokens.tolist())

    def test_a_drain_tells_how_many_tokens_were_sent_and_another_server_goes_on_after_them(self):
        async def run(here, client, other):
            stream, seen = client.generate(PROMPT, max_tokens=ENDLESS, num_samples=2, seed=5), {}
            await self.has_begun(stream, seen, 2)
            here.process.send_signal(signal.SIGTERM)
            error = await self.until_error(stream, seen, rivulet.Unavailable)
            self.assertEqual(error.reason, "DRAINING")
            self.assertEqual(error.metadata, {"sent_tokens": f"{len(seen[0])},{len(seen[1])}"})
            rest = await other.generate([*PROMPT, *seen[0]], seed=stream.seed, max_tokens=9).collect()
            self.assertEqual([*seen[0], *rest.tokens.tolist()], await self.alone(other, len(seen[0]) + 9))

        self.use(run, "--drain-seconds", "0")

    def test_a_drain_tells_where_a_session_is_and_its_earlier_snapshot_gets_there_elsewhere(self):
        async def run(here, client, other):
            session = await client.open_session(seed=5)
            await session.append(PROMPT)
            snapshot = await session.snapshot()
            stream, seen = session.generate(max_tokens=ENDLESS), {}
            await self.has_begun(stream, seen)
            here.process.send_signal(signal.SIGTERM)
            error = await self.until_error(stream, seen, rivulet.Unavailable)
            self.assertEqual(error.reason, "DRAINING")
            self.assertEqual(error.metadata, {"session_id": session.id, "session_position": str(session.position)})
            self.assertEqual(session.position, len(PROMPT) + len(seen[0]))
            restored = await other.restore_session(snapshot)
            left = int(error.metadata["session_position"]) - restored.position + 9
            tokens = await tokens_of(restored.generate(max_tokens=left))
            self.assertEqual(tokens[:-9], seen[0])
            self.assertEqual(tokens, await self.alone(other, left))

        self.use(run, "--drain-seconds", "0")

    def test_during_a_drain_a_session_moves_as_a_snapshot_whatever_was_refused_before(self):
        async def run(here, client, other):
            session = await client.open_session(seed=5)
            await session.append(PROMPT)
            tokens = await tokens_of(session.generate(max_tokens=20))
            running, seen = session.generate(max_tokens=ENDLESS), {}
            await self.has_begun(running, seen)
            running.close()  # what was not seen of it stays here
            unread = client.generate(PROMPT, **BULKY)  # the drain waits for it
            await self.has_begun(unread, {})
            here.process.send_signal(signal.SIGTERM)
            refused = None
            while refused is None:
                try:
                    await client.generate(PROMPT, max_tokens=1).collect()
                except rivulet.Unavailable as error:
                    refused = error
            self.assertEqual((refused.reason, refused.metadata), ("DRAINING", {}))
            for call in (lambda: session.append([1]), lambda: tokens_of(session.generate(max_tokens=1))):
                with self.assertRaises(rivulet.Unavailable) as caught:
                    await call()
                self.assertEqual(caught.exception.reason, "DRAINING")
            restored = await other.restore_session(await session.snapshot())
            self.assertEqual((restored.position, restored.sequence_hash), (session.position, session.sequence_hash))
            tokens += seen[0] + await tokens_of(restored.generate(max_tokens=9))
            self.assertEqual(tokens, await self.alone(other, len(tokens)))
            with self.assertRaises(rivulet.Unavailable):
                await session.snapshot(position=session.position + 1)  # tokens that nobody saw
            unread.close()

        self.use(run, "--drain-seconds", "60")

    def test_a_reader_that_was_too_slow_goes_on_where_it_was_cut(self):
        async def run(here, client, other):
            session = await client.open_session(seed=5)
            for begin, go_on in (
                (lambda: client.generate(PROMPT, seed=5, **BULKY), lambda seen: client.generate([*PROMPT, *seen], seed=5, max_tokens=9)),
                (lambda: session.generate(PROMPT, **BULKY), lambda seen: session.generate(max_tokens=9)),
            ):
                stream, seen, cut = begin(), {}, (await client.load())[0].cut_total
                await self.has_begun(stream, seen)
                while (await client.load())[0].cut_total == cut:
                    await asyncio.sleep(0.02)
                error = await self.until_error(stream, seen, rivulet.ResourceExhausted)
                self.assertEqual(error.reason, "READER_TOO_SLOW")
                place = str(len(seen[0])), str(len(PROMPT) + len(seen[0]))
                self.assertIn(error.metadata, ({"sent_tokens": place[0]}, {"session_id": session.id, "session_position": place[1]}))
                tokens = seen[0] + (await go_on(seen[0]).collect()).tokens.tolist()
                self.assertEqual(tokens, await self.alone(other, len(tokens)))
            self.assertEqual(error.metadata, {"session_id": session.id, "session_position": place[1]})

        self.use(run, "--reader-timeout-seconds", "3")

    def test_a_reply_goes_on_behind_haproxy(self):
        async def run(client, first, second):
            options = {**BULKY, "max_tokens": 15_000, "seed": 5}  # so it cannot end before it is read
            expected = await tokens_of(client.generate(PROMPT, **options))
            stream, seen = client.generate(PROMPT, **options), []
            async for part in stream:
                if not seen:
                    (used,) = [replica for replica in (first, second) if replica.load().slots_used]
                    used.kill()
                seen += part.tokens.tolist()
            self.assertEqual(seen, expected)

        with two_replicas() as (first, second, balancer):

            async def with_client():
                async with self.client(balancer.target) as client:
                    await asyncio.wait_for(run(client, first, second), 120)

            asyncio.run(with_client())

    def test_other_errors_have_no_metadata(self):
        async def run(here, client, other):
            with self.assertRaises(rivulet.InvalidArgument) as caught:
                await client.generate(PROMPT, top_p=2.0).collect()
            self.assertEqual((caught.exception.field, caught.exception.metadata), ("sampling.top_p", {}))

        self.use(run)


class SyncResumeTest(ResumeTests, Sync, unittest.TestCase):
    pass


class AsyncResumeTest(ResumeTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
