# SPDX-License-Identifier: Apache-2.0
"""What the Python client says to somebody who uses it for the first time and makes a mistake, sync and asyncio."""

import inspect
import socket
import tempfile
import unittest
from pathlib import Path

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import numpy as np

import rivulet
from command import CONFORMANCE, Server
from python_client_calls_test import ALPHABET, ENDLESS, STREAM, TEXT, write_text_model
from python_clients import Async, Sync


class Hints:
    @classmethod
    def setUpClass(cls):
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        models = (CONFORMANCE / STREAM, write_text_model(folder))
        cls.server = cls.enterClassContext(Server(*models, args=("--threads", "1", "--backend", "cpu")))

    def test_a_reply_is_collected_once_and_not_after_parts_were_taken(self):
        async def use(client):
            stream = client.generate([1], model=STREAM, max_tokens=3)
            await stream.collect()
            with self.assertRaisesRegex(RuntimeError, r"^collect\(\) was called after parts of the reply had been taken"):
                await stream.collect()
            stream = client.generate([1], model=STREAM, max_tokens=3)
            await stream.__anext__()
            with self.assertRaisesRegex(RuntimeError, "call it once, instead of iterating"):
                await stream.collect()
            session = await client.open_session(model=STREAM)
            stream = session.generate([1], max_tokens=3)
            await stream.__anext__()
            with self.assertRaises(RuntimeError):
                await stream.collect()

        self.use(use)

    def test_a_stream_used_as_if_it_were_the_reply_says_how_to_read_it(self):
        async def use(client):
            stream = client.generate([1], model=STREAM, max_tokens=3)
            for name in ("text", "tokens", "samples"):
                with self.assertRaisesRegex(AttributeError, f"'{name}': the reply is still to come. .*collect\\(\\)"):
                    getattr(stream, name)
            with self.assertRaisesRegex(AttributeError, "'frob'$"):
                stream.frob
            with self.assertRaisesRegex(TypeError, r"cannot be awaited\. .*collect\(\)"):
                await getattr(stream, "of", stream)
            await stream.collect()

        self.use(use)

    def test_a_timeout_is_named_and_what_came_is_kept(self):
        async def use(client):
            session = await client.open_session(model=STREAM)
            for generate in (
                lambda **options: client.generate([1], model=STREAM, max_tokens=ENDLESS, **options),
                lambda **options: session.generate([1], position=0, max_tokens=ENDLESS, **options),
            ):
                for seconds in (0.5, 2.5, 12.5, 62.5):  # a busy machine needs longer for a first token
                    with self.assertRaisesRegex(rivulet.DeadlineExceeded, f"within its timeout of {seconds} s") as raised:
                        await generate(timeout=seconds).collect()
                    partial = raised.exception.partial
                    if len(partial.tokens) > 0:
                        break
                self.assertGreater(len(partial.tokens), 0)
                self.assertEqual(len(partial.tokens), sum(len(part.tokens) for part in partial.parts))
                whole = client.generate([1], model=STREAM, max_tokens=len(partial.tokens), seed=partial.seed)
                self.assertEqual((await whole.collect()).tokens.tolist(), partial.tokens.tolist())
            with socket.create_server(("127.0.0.1", 0)) as silent:
                other = self.client(f"127.0.0.1:{silent.getsockname()[1]}")
                with self.assertRaisesRegex(rivulet.DeadlineExceeded, "within its timeout of 0.25 s") as raised:
                    await other.models(timeout=0.25)
                await other.close()
            self.assertIsNone(raised.exception.partial)
            with self.assertRaises(rivulet.NotFound) as raised:
                await client.generate([1], model="absent").collect()
            self.assertEqual((raised.exception.partial.parts, raised.exception.partial.seed), ((), None))
            self.assertEqual((raised.exception.partial.text, len(raised.exception.partial.tokens)), ("", 0))

        self.use(use)

    def test_a_target_is_host_and_port_or_has_a_scheme_of_grpc(self):
        async def use(_):
            for target, mention in (
                ("", "must be HOST:PORT.*; got ''"),
                ("localhost", "must be HOST:PORT.*; got 'localhost'"),
                ("[::1]", "must be HOST:PORT"),
                (":50051", "must be HOST:PORT"),
                ("http://localhost:50051", "got the URL"),
                ("https://localhost:50051", "TlsOptions.*got the URL"),
                ("grpc://localhost:50051", "got the URL"),
                ("::1:50051", "with brackets around an IPv6 address"),
                ("localhost:0", "port from 1 to 65535; got 'localhost:0'"),
                ("localhost:65536", "port from 1 to 65535; got 'localhost:65536'"),
                ("localhost:http", "port from 1 to 65535; got 'localhost:http'"),
            ):
                with self.assertRaisesRegex(ValueError, f"^target: .*{mention}"):
                    self.client(target)
            for target in ("localhost:1", "[::1]:65535", "dns:///localhost:1", "unix:relative", "ipv4:127.0.0.1:1"):
                await self.client(target).close()

        self.use(use)

    def test_the_likeliest_tokens_have_their_text(self):
        async def use(client):
            options = {"max_tokens": 6, "seed": 1, "logprobs": True, "top_logprobs": 3}
            session = await client.open_session(model=TEXT)
            for stream in (client.generate("abc", model=TEXT, **options), session.generate("abc", **options)):
                sample = (await stream.collect()).samples[0]
                self.assertEqual(len(sample.top_logprobs), 6)
                for top in sample.top_logprobs:
                    self.assertEqual(top.texts, tuple(ALPHABET[token] for token in top.token_ids))
                    self.assertEqual(len(set(top.texts)), 3)
            tokens = await client.generate([1], model=STREAM, max_tokens=2, logprobs=True, top_logprobs=2).collect()
            self.assertIsNone(tokens.samples[0].top_logprobs[0].texts)

        self.use(use)


class SyncHintsTest(Hints, Sync, unittest.TestCase):
    pass


class AsyncHintsTest(Hints, Async, unittest.TestCase):
    pass


class HelpTest(unittest.TestCase):
    def test_help_shows_every_option(self):
        for options in (rivulet.CallOptions, rivulet.ImageOptions, rivulet.SamplingOptions, rivulet.GenerateOptions, rivulet.SessionGenerateOptions):
            shown = inspect.getdoc(options)
            for name in options.__annotations__:
                self.assertEqual(shown.count(f"\n{name}: "), 1, f"{options.__name__}: {name}")

    def test_pictures_are_made_of_uint8_alone(self):
        for images, mention in (
            (np.ones((1, 4, 4)), "float64"),
            (np.ones((1, 4, 4), np.float32), "float32"),
            (np.ones((1, 4, 4), np.int64), "int64"),
            (np.ones((1, 4, 4), bool), "bool"),
            ([[[1, 2]]], "list"),
        ):
            with self.assertRaisesRegex(TypeError, f"^images: must be an array of uint8 with values from 0 to 255; got .*{mention}"):
                rivulet.draw.png(images)
        self.assertEqual(rivulet.draw.png(np.ones((1, 4, 4), np.uint8))[:4], b"\x89PNG")


if __name__ == "__main__":
    unittest.main()
