# SPDX-License-Identifier: Apache-2.0
"""Long texts: they hold up no other call, wait in a bounded queue, end with their calls, and count for their key. The attack is
tests/stress/attack/big_texts.py."""

import pathlib
import sys
import tempfile
import threading
import time
import unittest

import text_models
from command import BIN_DIR, SOURCE_DIR, rivulet

sys.path.insert(0, str(SOURCE_DIR / "tests/stress/attack"))
try:
    import rivulet_wheel  # noqa: F401  makes rivulet what is imported below

    import big_texts
    import grpc
    import rivulet as package
    from tenants import Tenants, pb, reason
    from victim import Victim
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

SERVER = BIN_DIR / "rivulet-server"
PATIENCE = 240  # seconds that anything awaited may take
LONG = big_texts.big_text(10_000, 1).decode()  # beyond what is converted on gRPC's threads


class BigTextsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-texts-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = text_models.with_tokenizer("mamba2", cls.folder, "text")

    def server(self, *flags):
        return self.enterContext(Victim(SERVER, *flags, model=self.model))

    def begin(self, server, tenant, size, count):
        """Tokenize of `count` texts of `size` bytes, all at once."""
        channel = self.enterContext(grpc.insecure_channel(server.target, options=big_texts.OPTIONS))
        call = channel.unary_unary(big_texts.TOKENIZE)  # replies as bytes: large messages are slow in Python
        request = big_texts.text_request(big_texts.TOKENIZE, big_texts.big_text(size, 1))
        return [call.future(request, timeout=PATIENCE, metadata=(("rivulet-tenant", tenant),)) for _ in range(count)]

    def test_other_calls_are_answered_while_long_texts_are_converted(self):
        server = self.server()
        with Tenants(server.target) as other:
            texts, between, end = [], 0, time.monotonic() + PATIENCE
            # Texts are converted all the time; a call counts if it needed no end of one of them.
            while between <= 20 and time.monotonic() < end:
                before = sum(text.done() for text in texts)
                if len(texts) - before < 6:
                    texts += self.begin(server, "a", 500_000, 6)
                list(other.stub.Generate(pb.GenerateRequest(text="the end", max_tokens=1), timeout=PATIENCE))
                between += before == sum(text.done() for text in texts)
            self.assertGreater(between, 20)
            for text in texts:
                self.assertIsNone(text.exception(PATIENCE))

    def test_the_queue_is_bounded_and_each_tenant_has_a_share(self):
        server, refusal = self.server(), threading.Event()
        texts = self.begin(server, "a", 4_000_000, 20)
        for text in texts:
            text.add_done_callback(lambda text: refusal.set() if not text.cancelled() and text.exception() is not None else None)
        self.assertTrue(refusal.wait(PATIENCE))
        (other,) = self.begin(server, "b", 200_000, 1)
        self.assertIsNone(other.exception(PATIENCE))
        self.assertLess(sum(text.done() for text in texts), len(texts))  # it was not behind them all
        refused = [text.exception() for text in texts if text.done() and text.exception() is not None]
        self.assertTrue(refused)
        self.assertEqual({reason(error) for error in refused}, {"TEXT_QUEUE_FULL"})
        for text in texts:
            text.cancel()
        end = time.monotonic() + PATIENCE
        while (error := self.begin(server, "a", 4_000_000, 1)[0].exception(PATIENCE)) is not None:  # until their places are free
            self.assertEqual(reason(error), "TEXT_QUEUE_FULL")
            self.assertLess(time.monotonic(), end)

    def test_every_call_takes_long_texts(self):
        server = self.server()
        with package.Client(server.target) as client:
            count = len(client.tokenize(LONG).ids)
            self.assertGreater(count, 1000)
            ids = client.tokenize(LONG).ids
            self.assertEqual(client.detokenize(ids, skip_special_tokens=True).text, LONG)
            self.assertEqual(client.generate(LONG, max_tokens=1).collect().usage.prompt_tokens, count)
            self.assertEqual(client.score(LONG).num_scored, count - 1)
            session = client.open_session()
            session.append(LONG)
            self.assertEqual(session.position, count)
            with client.multiplex(timeout=PATIENCE) as stream:
                keys = [stream.generate(text, max_tokens=1) for text in (LONG, "the", LONG)]
                ends = {part.key: part for part in stream if part.ended}
            self.assertEqual([ends[key].usage.prompt_tokens for key in (keys[0], keys[2])], [count, count])

    def test_calls_that_end_while_their_texts_wait(self):
        server = self.server()
        with Tenants(server.target) as tenants:
            texts = self.begin(server, "a", 4_000_000, 8)
            generates = [tenants.stub.Generate(pb.GenerateRequest(text=big_texts.big_text(1_000_000, 1).decode()), timeout=PATIENCE) for _ in range(4)]
            late = tenants.stub.Tokenize.future(pb.TokenizeRequest(text=LONG * 100), timeout=0.05)
            self.assertEqual(late.exception(PATIENCE).code(), grpc.StatusCode.DEADLINE_EXCEEDED)
            with package.Client(server.target) as client:
                stream = client.multiplex(timeout=PATIENCE)
                stream.generate(LONG * 100, max_tokens=1)
                stream.close()
            for call in [*generates, *texts[4:]]:
                call.cancel()
            server.process.terminate()  # drains the others
            self.assertEqual(server.process.wait(PATIENCE), 0)

    def test_a_key_has_so_many_bytes_of_text_a_minute(self):
        file = self.folder / "keys.json"
        made = rivulet("keys", "new", "small", "--keys-file", file, "--text-bytes-per-minute", 30_000)
        self.assertEqual(made.code, 0, made)
        server = self.server("--keys-file", str(file))
        with package.Client(server.target, key=made.out.strip()) as client:
            for _ in range(4):  # it may take more than there is left, once
                client.tokenize(LONG)
            for call in (
                lambda: client.tokenize("a"), lambda: client.detokenize([1, 2]), lambda: client.score("the end"),
                lambda: client.generate("the", max_tokens=1).collect(), lambda: client.open_session().append("the"),
                lambda: client.generate([1], max_tokens=1, constraint=package.Constraint(regex="t")).collect(),
            ):  # fmt: skip
                with self.assertRaises(package.ResourceExhausted) as raised:
                    call()
                self.assertEqual((raised.exception.reason, raised.exception.field), ("API_KEY_TEXT_RATE", ""))
                self.assertTrue(0 < raised.exception.retry_delay <= 60, raised.exception.retry_delay)
            with client.multiplex(timeout=PATIENCE) as stream:
                stream.generate("the", max_tokens=1)
                errors = [part.error for part in stream if part.ended]
            self.assertEqual(errors[0].reason, "API_KEY_TEXT_RATE")
            self.assertEqual(len(client.generate([1, 2], max_tokens=3, ignore_eos=True).collect().samples[0].tokens), 3)  # no text


if __name__ == "__main__":
    unittest.main()
