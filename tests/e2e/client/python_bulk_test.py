# SPDX-License-Identifier: Apache-2.0
"""generate_all() and score_many() of the Python client: results in order, errors as values, and a server that is started anew
between them. Client and AsyncClient by the same tests. The size of a request, which both compare before they send it."""

import itertools
import logging
import math
import subprocess
import threading
import unittest

import rivulet_wheel  # makes rivulet what is imported below

import rivulet
from command import BIN_DIR, CONFORMANCE, Server
from python_clients import Async, Sync

logging.getLogger("grpc").setLevel(logging.CRITICAL)

RFA = CONFORMANCE / "tiny-rfa"  # tokens, bos 0, no limit


async def collected(stream):
    return [result async for result in stream]


class BulkTests:
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(
            Server(RFA, args=("--threads", "1", "--slots", "2", "--max-queue", "2", "--max-message-mib", "1"))
        )
        cls.plain = cls.enterClassContext(rivulet.Client(cls.server.target))

    def test_replies_come_whole_and_in_the_order_of_the_prompts(self):
        prompts = [[i % 37] for i in range(60)]
        prompts[7], prompts[20] = [99], "no text model"  # the server refuses them
        prompts[30] = ["x"]  # the client does

        async def run(client):
            options = {"seed": 5, "max_tokens": 9, "num_samples": 2, "logprobs": True, "top_logprobs": 2}
            found = await collected(client.generate_all(iter(prompts), at_once=30, **options))  # far more than slots and queue hold
            self.assertEqual(len(found), 60)
            self.assertEqual((type(found[7]), found[7].reason), (rivulet.InvalidArgument, "TOKEN_OUT_OF_RANGE"))
            self.assertEqual((type(found[20]), found[20].reason), (rivulet.InvalidArgument, "TEXT_NOT_SUPPORTED"))
            self.assertEqual((type(found[30]), "prompt" in str(found[30])), (TypeError, True))
            for index in (0, 31, 59):
                alone = self.plain.generate(prompts[index], **{**options, "seed": 5 + index}).collect()
                self.assertEqual((found[index].seed, len(found[index].samples)), (5 + index, 2))
                for one, other in zip(found[index].samples, alone.samples):
                    self.assertEqual((one.tokens.tolist(), one.logprobs.tolist()), (other.tokens.tolist(), other.logprobs.tolist()))
                    self.assertEqual([top.token_ids.tolist() for top in one.top_logprobs], [top.token_ids.tolist() for top in other.top_logprobs])

        self.use(run)

    def test_scores_come_in_the_order_of_the_contents(self):
        contents = [[i % 37] * (1 + i % 9) for i in range(50)]
        contents[4], contents[9] = [99], "no text model"
        contents[11] = 3.5

        async def run(client):
            found = await collected(client.score_many(contents, at_once=20, logprobs=True))
            self.assertEqual([found[4].reason, found[9].reason, type(found[11])], ["TOKEN_OUT_OF_RANGE", "TEXT_NOT_SUPPORTED", TypeError])
            for index in (0, 8, 49):
                alone = self.plain.score(contents[index])
                self.assertEqual((found[index].nll_nats, found[index].num_scored), (alone.nll_nats, len(contents[index])))
                self.assertTrue(math.isclose(-found[index].logprobs.sum(), alone.nll_nats, rel_tol=1e-4))

        self.use(run)

    def test_prompts_are_read_as_replies_end(self):
        async def run(client):
            read = 0

            def prompts():
                nonlocal read
                for read in itertools.count(1):
                    yield [read % 37]

            replies = client.generate_all(prompts(), at_once=3, max_tokens=2)
            async for reply in replies:
                self.assertLessEqual(read, 30)
                if read >= 20:
                    break
            await replies.aclose()
            scores = client.score_many(prompts(), at_once=3)
            async for _ in scores:
                self.assertLessEqual(read, 30)
                if read >= 20:
                    break
            await scores.aclose()

        self.use(run)

    def test_wrong_arguments_are_errors_of_the_call(self):
        async def run(client):
            for wrong, error in (
                (lambda: client.generate_all("one prompt"), TypeError),
                (lambda: client.generate_all([[1]], temperature="hot"), TypeError),
                (lambda: client.generate_all([[1]], at_once=0), ValueError),
                (lambda: client.generate_all([[1]], patience=-1), ValueError),
                (lambda: client.score_many("one content"), TypeError),
                (lambda: client.score_many([[1]], window="w"), TypeError),
                (lambda: client.score_many([[1]], seed=1), TypeError),
            ):
                with self.assertRaises(error):
                    await collected(wrong())

        self.use(run)

    def test_a_server_that_comes_back_is_used_again(self):
        for what in ("generate", "score"):
            with self.subTest(what), Server(RFA, args=("--threads", "1")) as first:
                again = []

                def restart():
                    first.process.kill()
                    first.process.wait()
                    command = [BIN_DIR / "rivulet-server", "--model", RFA, "--listen", first.target, "--threads", "1"]
                    again.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))

                soon = threading.Timer(0.05, restart)  # in the middle of replies

                async def run(client):
                    if what == "generate":
                        results = client.generate_all(([i % 37] for i in range(40)), at_once=4, seed=0, max_tokens=1000, resume=False)
                    else:
                        results = client.score_many(([i % 37] * 3000 for i in range(40)), at_once=4)
                    found = []
                    async for result in results:
                        found.append(result)
                        if len(found) == 5:
                            soon.start()
                    self.assertEqual([result for result in found if isinstance(result, Exception)], [])
                    self.assertEqual(len(found), 40)
                    if what == "generate":
                        self.assertEqual([reply.seed for reply in found], list(range(40)))

                try:
                    self.use(run, first.target, max_attempts=1)
                finally:
                    soon.join()
                    for process in again:
                        process.kill()
                        process.wait()

    def test_a_server_that_does_not_come_back_is_an_error_of_each_prompt(self):
        async def run(client):
            for results in (client.generate_all([[1], [2]], patience=0.5), client.score_many([[1], [2]], patience=0.5)):
                self.assertEqual([type(result) for result in await collected(results)], [rivulet.Unavailable] * 2)

        self.use(run, "127.0.0.1:1", max_attempts=1, connect_timeout=0.5)

    def test_a_request_that_is_too_large_is_not_sent(self):
        async def run(client):
            limit = (await client.model()).limits.max_message_bytes
            self.assertEqual(limit, 1 << 20)
            large = [1] * (limit + 1)
            with self.assertRaises(rivulet.InvalidArgument) as raised:
                await client.score(large)
            self.assertEqual(raised.exception.reason, "MESSAGE_TOO_LARGE")
            self.assertIn(str(limit), raised.exception.message)
            with self.assertRaises(rivulet.InvalidArgument):
                await client.generate(large, max_tokens=1).collect()
            good, bad, last = await collected(client.generate_all([[1], large, [2]], max_tokens=500))
            self.assertEqual((len(good.tokens), bad.reason, len(last.tokens)), (500, "MESSAGE_TOO_LARGE", 500))

        self.use(run)

    def test_one_that_is_too_large_harms_no_other_on_a_fresh_client(self):
        contents = [[1], [1] * (2 << 20), [2]]

        async def replies(client):
            return await collected(client.generate_all(contents, max_tokens=5, at_once=2))

        async def parts(client):
            return [part.error for part in await collected(client.generate_many(contents, max_tokens=5)) if part.ended]

        async def scores(client):
            return await collected(client.score_many(contents))

        for results in (replies, parts, scores):

            async def run(client):
                found = await results(client)
                reasons = [result.reason for result in found if isinstance(result, rivulet.InvalidArgument)]
                self.assertEqual((len(found), reasons), (3, ["MESSAGE_TOO_LARGE"]))

            with self.subTest(results.__name__):
                self.use(run)

    def test_one_that_is_too_large_has_the_same_error_before_the_limit_is_known(self):
        async def run(client):
            async with await client.open_session() as session, client.multiplex() as stream:
                stream.generate([1] * (2 << 20))
                for call in (
                    lambda: client.score([1] * (2 << 20)), lambda: client.generate([1] * (2 << 20)).collect(),
                    lambda: client.tokenize("a" * (2 << 20)), lambda: session.append([1] * (2 << 20)), stream.__anext__,
                ):  # fmt: skip
                    with self.assertRaises(rivulet.InvalidArgument) as raised:
                        await call()
                    self.assertEqual(raised.exception.reason, "MESSAGE_TOO_LARGE")

        self.use(run)

        async def replies(client):
            with self.assertRaises(rivulet.ResourceExhausted):  # what is too large here is the reply
                await client.model()

        self.use(replies, max_receive_bytes=10)

    def test_logprobs_of_an_append_imply_its_score(self):
        async def run(client):
            async with await client.open_session() as session:
                score = await session.append([3, 4, 5], logprobs=True)
                self.assertEqual((score.num_scored, len(score.logprobs)), (3, 3))
                score = await session.append([3], output_positions=[0])
                self.assertEqual((score.num_scored, score.outputs.shape), (1, (1, 37)))
                self.assertEqual((await session.append([3])).num_scored, 0)

        self.use(run)


class BulkSyncTest(Sync, BulkTests, unittest.TestCase):
    pass


class BulkAsyncTest(Async, BulkTests, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
