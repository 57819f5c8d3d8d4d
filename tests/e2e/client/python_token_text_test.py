# SPDX-License-Identifier: Apache-2.0
"""The texts of the likeliest tokens, where tokens are not characters: what the Python clients and the gateway ask the server for."""

import asyncio
import http.client
import json
import unittest

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401
from fake_server import FakeServer, part
from gateway import PATIENCE, Gateway

import rivulet
from rivulet.v1 import inference_pb2

MODEL = inference_pb2.GetModelReply(
    summary={"name": "m", "weights_sha256": "1"}, config_json="{}", content={"text": {"tokenizer": "tokenizer.json"}}
)
TEXTS = {1: "t1", 2: "t2", 3: "t3", 7: "\ufffd", 8: ""}


def token(id, top, **fields):
    return part(tokens=[id], logprobs=[-1], top_logprobs=[{"token_ids": top, "logprobs": [-1] * len(top)}], **fields)


REPLY = [
    token(1, [1, 7, 8], seed=1), token(2, [2, 1, 8], first_position=1), token(1, [1, 2, 7], first_position=2),
    part(first_position=3, finish={"reason": "FINISH_REASON_LENGTH"}), part(usage={"completion_tokens": 3}),
]  # fmt: skip


class TokenTextTest(unittest.TestCase):
    def setUp(self):
        self.server = self.enterContext(FakeServer())
        self.server.model = lambda request, context: MODEL
        self.server.generate = lambda context: iter(REPLY)

    def check(self, generation):
        top = generation.samples[0].top_logprobs
        self.assertEqual([entry.texts for entry in top], [tuple(TEXTS[id] for id in entry.token_ids.tolist()) for entry in top])
        self.assertEqual(len(top), 3)

    def test_the_client_asks_once_for_all_new_tokens_of_a_message(self):
        with rivulet.Client(self.server.target) as client:
            for _ in range(2):
                self.check(client.generate("a", logprobs=True, top_logprobs=3).collect())
        self.assertEqual(self.server.detokenized, [[1, 7, 8], [2]])

    def test_asyncio_does_the_same(self):
        async def run():
            async with rivulet.AsyncClient(self.server.target) as client:
                for _ in range(2):
                    self.check(await client.generate("a", logprobs=True, top_logprobs=3).collect())

        asyncio.run(run())
        self.assertEqual(self.server.detokenized, [[1, 7, 8], [2]])

    def test_a_reply_without_the_likeliest_tokens_asks_nothing(self):
        with rivulet.Client(self.server.target) as client:
            client.generate("a", logprobs=True).collect()
        self.assertEqual((self.server.detokenized, [call.name for call in self.server.calls]), ([], ["Generate"]))

    def test_a_server_that_does_not_say_where_tokens_end_is_an_error(self):
        self.server.tells_ends = False
        with rivulet.Client(self.server.target) as client, self.assertRaisesRegex(rivulet.Unimplemented, "older than this client"):
            client.generate("a", logprobs=True, top_logprobs=3).collect()

    def test_the_gateway_shares_what_the_client_knows(self):
        with Gateway(self.server.target) as gateway:
            connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
            self.addCleanup(connection.close)
            body = json.dumps({"model": "m", "prompt": "a", "logprobs": 3})
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            logprobs = json.loads(connection.getresponse().read())["choices"][0]["logprobs"]
        self.assertEqual(logprobs["tokens"], ["t1", "t2", "t1"])
        self.assertEqual(list(logprobs["top_logprobs"][0]), ["t1", "bytes:\\xc3", "token_id:8"])
        self.assertEqual(self.server.detokenized, [[1, 7, 8], [2]])


if __name__ == "__main__":
    unittest.main()
