# SPDX-License-Identifier: Apache-2.0
"""What the Python client says to somebody who uses it for the first time and makes a mistake, sync and asyncio."""

import asyncio
import inspect
import socket
import tempfile
import unittest
from pathlib import Path

import rivulet_wheel  # makes rivulet what is imported below

import numpy as np

import rivulet
from command import CONFORMANCE, Server
from model_files import Model

STREAM, TEXT, ALPHABET = "tiny-elu-relu", "tiny-text", "abcdefghijklmnopqrstuvwxyz0123456789 "
ENDLESS = 1 << 19  # tokens of a reply that no test waits for
EXAMPLES = rivulet_wheel.CLIENT / "examples"


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        model = Model("tiny-elu-learned-concat")
        model.config["name"] = TEXT
        model.config["content"] = {"type": "text", "tokenizer": {"type": "char", "alphabet": ALPHABET}}
        model.write(folder)
        cls.server = cls.enterClassContext(Server(CONFORMANCE / STREAM, folder, args=("--threads", "1", "--backend", "cpu")))


class Hints:
    """`use(function)` runs the coroutine function of a client whose streams can be iterated with `async for`."""

    def test_a_reply_is_collected_once_and_not_after_parts_were_taken(self):
        async def use(client):
            stream = client.generate([1], model=STREAM, max_tokens=3)
            await self.collect(stream)
            with self.assertRaisesRegex(RuntimeError, r"^collect\(\) was called after parts of the reply had been taken"):
                await self.collect(stream)
            stream = client.generate([1], model=STREAM, max_tokens=3)
            await self.first(stream)
            with self.assertRaisesRegex(RuntimeError, "call it once, instead of iterating"):
                await self.collect(stream)
            session = await self.session(client)
            stream = session.generate([1], max_tokens=3)
            await self.first(stream)
            with self.assertRaises(RuntimeError):
                await self.collect(stream)

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
                await stream
            await self.collect(stream)

        self.use(use)

    def test_a_timeout_is_named_and_what_came_is_kept(self):
        async def use(client):
            session = await self.session(client)
            for generate in (
                lambda **options: client.generate([1], model=STREAM, max_tokens=ENDLESS, **options),
                lambda **options: session.generate([1], position=0, max_tokens=ENDLESS, retries=2, **options),
            ):
                for seconds in (0.5, 2.5, 12.5):  # a busy machine needs longer for a first token
                    with self.assertRaisesRegex(rivulet.DeadlineExceeded, f"within its timeout of {seconds} s") as raised:
                        await self.collect(generate(timeout=seconds))
                    partial = raised.exception.partial
                    if len(partial.tokens) > 0:
                        break
                self.assertGreater(len(partial.tokens), 0)
                self.assertEqual(len(partial.tokens), sum(len(part.tokens) for part in partial.parts))
                whole = client.generate([1], model=STREAM, max_tokens=len(partial.tokens), seed=partial.seed)
                self.assertEqual((await self.collect(whole)).tokens.tolist(), partial.tokens.tolist())
            with socket.create_server(("127.0.0.1", 0)) as silent:
                other = self.client(f"127.0.0.1:{silent.getsockname()[1]}")
                with self.assertRaisesRegex(rivulet.DeadlineExceeded, "within its timeout of 0.25 s") as raised:
                    await self.wait(other.models(timeout=0.25))
                await self.wait(other.close())
            self.assertIsNone(raised.exception.partial)
            with self.assertRaises(rivulet.NotFound) as raised:
                await self.collect(client.generate([1], model="absent"))
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
                await self.wait(self.client(target).close())

        self.use(use)

    def test_the_likeliest_tokens_have_their_text(self):
        async def use(client):
            options = {"max_tokens": 6, "seed": 1, "logprobs": True, "top_logprobs": 3}
            session = await self.wait(client.open_session(model=TEXT))
            for stream in (client.generate("abc", model=TEXT, **options), session.generate("abc", **options)):
                sample = (await self.collect(stream)).samples[0]
                self.assertEqual(len(sample.top_logprobs), 6)
                for top in sample.top_logprobs:
                    self.assertEqual(top.texts, tuple(ALPHABET[token] for token in top.token_ids))
                    self.assertEqual(len(set(top.texts)), 3)
            tokens = await self.collect(client.generate([1], model=STREAM, max_tokens=2, logprobs=True, top_logprobs=2))
            self.assertIsNone(tokens.samples[0].top_logprobs[0].texts)

        self.use(use)

    def test_a_priority_may_be_its_name(self):
        async def use(client):
            for priority in ("low", "normal", "high", rivulet.Priority.HIGH):
                await self.collect(client.generate([1], model=STREAM, max_tokens=1, priority=priority))
                await self.wait(client.score([1], model=STREAM, priority=priority))
            with self.assertRaisesRegex(ValueError, "^priority: must be low, normal or high; got 'urgent'"):
                client.generate([1], model=STREAM, priority="urgent")
            with self.assertRaisesRegex(TypeError, "^priority: must be .*; got 3"):
                client.generate([1], model=STREAM, priority=3)

        self.use(use)


class SyncHintsTest(ServerTest, Hints):
    client = rivulet.Client

    def use(self, function):
        with rivulet.Client(self.server.target) as client:
            asyncio.run(function(client))

    async def wait(self, value):
        return value

    async def collect(self, stream):
        return stream.collect()

    async def first(self, stream):
        return next(stream)

    async def session(self, client):
        return client.open_session(model=STREAM)


class AsyncHintsTest(ServerTest, Hints):
    client = rivulet.AsyncClient

    def use(self, function):
        async def run():
            async with rivulet.AsyncClient(self.server.target) as client:
                await function(client)

        asyncio.run(run())

    async def wait(self, value):
        return await value

    async def collect(self, stream):
        return await stream.collect()

    async def first(self, stream):
        return await stream.__anext__()

    async def session(self, client):
        return await client.open_session(model=STREAM)


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


class ExamplesTest(unittest.TestCase):
    def test_every_example_says_how_it_is_used_where_it_cannot_run(self):
        for example in sorted(EXAMPLES.glob("*.py")):
            for arguments, mention in (
                (["--target", "127.0.0.1:1"], "connect"),
                (["--target", "http://127.0.0.1:50051"], "got the URL"),
                (["--frob"], "--frob"),
            ):
                code, out, err = rivulet_wheel.run(example, *arguments)
                self.assertEqual((code, out), (2, ""), err)
                self.assertNotIn("Traceback", err)
                self.assertTrue(err.startswith(f"usage: {example.name} "), err)
                self.assertIn(mention, err)

    def test_every_example_runs_without_options_on_the_server_of_the_readme(self):
        zoo = rivulet_wheel.CLIENT.parents[1] / "model/zoo"
        with Server(zoo / "mnist-linear", zoo / "shakespeare-rfa", args=("--threads", "1")) as server, tempfile.TemporaryDirectory() as folder:
            for example in sorted(EXAMPLES.glob("*.py")):
                text = example.read_text()
                self.assertIn('default="127.0.0.1:50051"', text)
                script = Path(folder) / example.name
                script.write_text(text.replace("127.0.0.1:50051", server.target))
                options = ["--max-tokens", "20"] if example.name == "chat.py" else []  # else it talks for minutes
                code, out, err = rivulet_wheel.run(script, *options)
                self.assertEqual((code, err), (0, ""), example.name)
                self.assertNotEqual(out, "")


if __name__ == "__main__":
    unittest.main()
