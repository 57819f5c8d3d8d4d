# SPDX-License-Identifier: Apache-2.0
"""Replies that the real server ends early: the error's metadata say where to go on, and whoever does gets the tokens that would have
come. Client and AsyncClient by the same tests."""

import asyncio
import logging
import signal
import unittest

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import rivulet
from balancer import two_replicas
from command import CONFORMANCE, ZOO, Server
from python_client_calls_test import ENDLESS, STREAM
from python_client_test import BLOCKS
from python_clients import Async, Sync, tokens_of

logging.getLogger("grpc").setLevel(logging.CRITICAL)
PROMPT = [3, 1]
OTHER = "tiny-rfa"
BULKY = {"max_tokens": ENDLESS, "logprobs": True, "top_logprobs": 20}  # more than a connection holds for a client that does not read


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

        self.use(run, "--reader-timeout-seconds", "1")

    def resumes(self, function, models=(STREAM, STREAM)):
        """Runs a coroutine function of a client that has both servers as its target, the first server, and a client of the second."""
        args = ("--threads", "1", "--backend", "cpu")
        with Server(CONFORMANCE / models[0], args=args) as here, Server(CONFORMANCE / models[1], args=args) as there:
            both = "ipv4:" + ",".join(server.target.replace("localhost", "127.0.0.1") for server in (here, there))

            async def run():
                async with self.client(both) as client, self.client(there.target) as other:
                    await asyncio.wait_for(function(client, here, other), 120)

            asyncio.run(run())

    async def kill(self, server, client, **options):
        """The parts of a reply whose server is killed after the first."""
        stream, parts = client.generate(PROMPT, seed=5, **options), []
        async for part in stream:
            if not parts:
                server.process.kill()
            parts.append(part)
        return stream, parts

    def test_a_reply_whose_server_is_killed_goes_on_at_another(self):
        async def run(client, here, other):
            options = {"max_tokens": 20_000, "num_samples": 3, "frequency_penalty": 0.2, "logprobs": True}
            whole = await other.generate(PROMPT, seed=5, **options).collect()
            stream, parts = await self.kill(here, client, **options)
            self.assertLess(sum(len(part.tokens) for part in parts[:1]), 20_000, "it was cut")
            for index, sample in enumerate(whole.samples):
                own = [part for part in parts if part.sample_index == index]
                self.assertEqual([token for part in own for token in part.tokens.tolist()], sample.tokens.tolist())
                self.assertEqual([value for part in own for value in part.logprobs.tolist()], sample.logprobs.tolist())
                self.assertEqual([part.finish for part in own if part.finish], [sample.finish])
            self.assertEqual(stream.usage.completion_tokens, whole.usage.completion_tokens)
            self.assertEqual(stream.usage.prompt_tokens, len(PROMPT))

        self.resumes(run)

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

    def test_a_server_that_would_go_on_otherwise_refuses(self):
        async def run(client, here, other):
            with self.assertRaises(rivulet.FailedPrecondition) as caught:
                await self.kill(here, client, max_tokens=ENDLESS)
            self.assertEqual((caught.exception.reason, caught.exception.field), ("RESUME_MISMATCH", "resume.fingerprint"))

        self.resumes(run, (STREAM, OTHER))

    def test_without_resume_the_error_comes_at_once(self):
        async def run(client, here, other):
            with self.assertRaises(rivulet.Unavailable):
                await self.kill(here, client, max_tokens=ENDLESS, resume=False)

        self.resumes(run)

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
