# SPDX-License-Identifier: Apache-2.0
"""Text on models with a tokenizer, in the Python client, sync and asyncio, against the real server."""

import pathlib
import tempfile
import unittest

import numpy as np
import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import rivulet
import text_models
from command import Server
from python_clients import Async, Sync
from text_models import END, NAME, PIECES, START

ID = {piece: i for i, piece in enumerate(PIECES)}


class TextTests:
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        root = pathlib.Path(scratch.name)
        models = [text_models.with_tokenizer("mamba2", root, "text"), text_models.copy("mamba2", root, "plain")]
        cls.server = cls.enterClassContext(Server(*models))

    def test_texts_and_tokens(self):
        async def run(client):
            tokens = await client.tokenize("the é<end>", model="text")
            self.assertEqual(tokens.ids.tolist(), [START, ID["the"], ID["Ġ"], ID["Ã©"], END])
            self.assertEqual(tokens.spans.tolist(), [[0, 0], [0, 3], [3, 4], [4, 6], [6, 11]])
            self.assertEqual((tokens.ids.dtype, tokens.spans.dtype), (np.int32, np.int64))
            self.assertEqual((await client.tokenize("", model="text", add_special_tokens=False)).spans.shape, (0, 2))
            text = await client.detokenize([START, ID["a"], ID["Ã"], NAME], model="text", skip_special_tokens=True)
            self.assertEqual((text.text, text.raw_bytes, text.ends), ("a\ufffd<name>", b"a\xc3<name>", (0, 1, 2, 8)))
            with self.assertRaises(rivulet.InvalidArgument) as raised:
                await client.tokenize("a", model="plain")
            self.assertEqual((raised.exception.reason, raised.exception.field), ("TEXT_NOT_SUPPORTED", "text"))
            with self.assertRaises(rivulet.InvalidArgument) as raised:
                await client.detokenize([1, 39], model="text")
            self.assertEqual((raised.exception.reason, raised.exception.field), ("TOKEN_OUT_OF_RANGE", "ids[1]"))
            with self.assertRaisesRegex(TypeError, "^parse_special_tokens: must be True or False; got 1"):
                await client.tokenize("a", model="text", parse_special_tokens=1)

        self.use(run)

    def test_generate_and_score_take_text(self):
        async def run(client):
            given = {"model": "text", "seed": 4, "max_tokens": 40, "ignore_eos": True}
            reply = await client.generate("the and", **given).collect()
            same = await client.generate([START, ID["the"], ID["Ġand"]], **given).collect()
            self.assertEqual(reply.samples[0].tokens.tolist(), same.samples[0].tokens.tolist())
            self.assertEqual(reply.samples[0].text, text_models.decode(reply.samples[0].tokens.tolist()))
            plain = await client.generate("the", add_special_tokens=False, logprobs=True, top_logprobs=2, **given).collect()
            bare = await client.generate([ID["the"]], **given).collect()
            self.assertEqual(plain.samples[0].tokens.tolist(), bare.samples[0].tokens.tolist())
            for top in plain.samples[0].top_logprobs:
                raw = [(await client.detokenize([id], model="text")).raw_bytes for id in top.token_ids.tolist()]
                self.assertEqual(top.texts, tuple(one.decode("utf-8", "replace") for one in raw))
            self.assertEqual(len(plain.samples[0].top_logprobs), 40)
            score = await client.score("the and", model="text")
            self.assertEqual(score.num_scored, 2)
            self.assertEqual((await client.score("the and", model="text", add_special_tokens=False)).num_scored, 1)
            with self.assertRaises(rivulet.InvalidArgument) as raised:
                await client.score([1, 2], model="text", add_special_tokens=True)
            self.assertEqual((raised.exception.reason, raised.exception.field), ("NEEDS_TEXT", "add_special_tokens"))

        self.use(run)

    def test_the_first_tokens_end_no_reply_and_reasoning_is_counted(self):
        async def run(client):
            given = {"model": "text", "seed": 4, "max_tokens": 40, "stop_token_ids": list(range(0, text_models.SIZE, 2))}
            short = (await client.generate("the", **given).collect()).samples[0]
            self.assertLess(len(short.tokens), 9)
            whole = (await client.generate("the", min_tokens=9, **given).collect()).samples[0]
            self.assertGreaterEqual(len(whole.tokens), 9)
            self.assertTrue(set(given["stop_token_ids"]).isdisjoint(whole.tokens.tolist()))
            names = [START, END]  # of control tokens
            given = {"model": "text", "seed": 4, "max_tokens": 12, "ignore_eos": True, "logit_bias": dict.fromkeys(names, 100)}
            reply = await client.generate("the", skip_special_tokens=True, reasoning=rivulet.Reasoning("", "nowhere"), **given).collect()
            self.assertLessEqual(set(reply.samples[0].tokens.tolist()), set(names))
            self.assertEqual((reply.text, reply.usage.reasoning_tokens), ("", 12))
            with self.assertRaises(rivulet.InvalidArgument) as raised:
                await client.generate("the", min_tokens=13, **given).collect()
            self.assertEqual((raised.exception.reason, raised.exception.field), ("MIN_TOKENS_OUT_OF_RANGE", "stop.min_tokens"))

        self.use(run)

    def test_a_session_begins_once(self):
        async def run(client):
            session = await client.open_session(model="text", seed=2)
            await session.append("the")
            await session.append(" and", score=True)
            await session.append("a", add_special_tokens=True)
            tokens = (await session.generate("b", max_tokens=9, ignore_eos=True).collect()).samples[0].tokens.tolist()
            whole = [START, ID["the"], ID["Ġand"], START, ID["a"], ID["b"]]
            alone = await client.generate(whole, model="text", seed=2, max_tokens=9, ignore_eos=True).collect()
            self.assertEqual(tokens, alone.samples[0].tokens.tolist())
            await session.close()

        self.use(run)

    def test_multiplex_takes_text(self):
        async def run(client):
            given = {"model": "text", "max_tokens": 12, "ignore_eos": True}
            texts = {0: "", 1: ""}
            async for part in client.generate_many(["the", "and"], seed=6, **given):
                texts[part.key] += part.text
            for key, prompt in enumerate(("the", "and")):
                self.assertEqual(texts[key], (await client.generate(prompt, seed=6 + key, **given).collect()).text)

        self.use(run)

    def test_the_description(self):
        async def run(client):
            model = await client.model("text")
            self.assertEqual(model.content, rivulet.TextContent("", "tokenizer.json", text_models.SIZE))
            self.assertEqual(model.chat_template, text_models.TEMPLATE)
            self.assertEqual((model.response_template, model.response_template_name), ("", ""))
            self.assertEqual(
                model.special_tokens,
                (
                    rivulet.SpecialToken(START, "<s>", ("bos_token",)),
                    rivulet.SpecialToken(END, "<end>", ("eos_token",)),
                    rivulet.SpecialToken(None, "<unk>", ("unk_token",)),
                ),
            )
            plain = await client.model("plain")
            self.assertEqual((plain.content, plain.chat_template, plain.special_tokens), (rivulet.TokenContent(), "", ()))

        self.use(run)


class SyncTextTest(TextTests, Sync, unittest.TestCase):
    pass


class AsyncTextTest(TextTests, Async, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
