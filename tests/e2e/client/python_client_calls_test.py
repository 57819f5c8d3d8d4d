# SPDX-License-Identifier: Apache-2.0
"""The Python client against the real server: every call and an error of each class; and at a server that notes requests: every option.
Client and AsyncClient by the same tests."""

import copy
import json
import pickle
import tempfile
import unittest
from pathlib import Path

from rivulet_wheel import await_idle  # makes rivulet what is imported below

import numpy as np

import rivulet
from command import CONFORMANCE, Server, rivulet as command, token_lines
from fake_server import FakeServer
from model_files import Model
from python_clients import Async, Sync
from rivulet.v1 import inference_pb2

STREAM, BOUNDED, NO_BOS, IMAGE = "tiny-elu-relu", "tiny-elu-sinusoidal", "tiny-elu-learned-concat", "tiny-image"
TEXT = "tiny-text"  # 37 characters, 48 positions, no bos
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 "
NAN = float("nan")
ENDLESS = 1 << 19  # tokens of a reply that no test waits for


def write_text_model(folder):
    model = Model(NO_BOS)
    model.config["name"] = TEXT
    model.config["content"] = {"type": "text", "tokenizer": {"type": "char", "alphabet": ALPHABET}}
    model.write(folder)
    return folder


class ServerTest(unittest.TestCase):
    """A server for all tests of a class, and a Client of it: `plain`."""

    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        models = [CONFORMANCE / name for name in (STREAM, BOUNDED, NO_BOS, IMAGE)] + [write_text_model(Path(folder))]
        cls.server = cls.enterClassContext(Server(*models, args=("--slots", "64", "--threads", "1", "--backend", "cpu")))
        cls.plain = cls.enterClassContext(rivulet.Client(cls.server.target))


class OneServer:
    def call(self, function):
        return super().call(self.server.target, function)


class CallTests(OneServer):
    def test_collected_tokens_are_those_of_the_command(self):
        generation = self.call(lambda c: c.generate([1, 2, 3], model=STREAM, max_tokens=50, seed=7, num_samples=3).collect())
        result = command(
            "generate", "--target", self.server.target, "--model-name", STREAM, "--tokens", "1,2,3", "--max-tokens", "50", "--seed", "7"
        )
        self.assertEqual([int(token) for token in result.out.split()], generation.tokens.tolist())
        self.assertEqual(generation.tokens.dtype, np.int32)
        self.assertEqual([sample.tokens.shape for sample in generation.samples], [(50,)] * 3)
        self.assertNotEqual(generation.samples[1].tokens.tolist(), generation.tokens.tolist())
        self.assertEqual(generation.seed, 7)
        self.assertEqual((generation.usage.prompt_tokens, generation.usage.completion_tokens), (3, 150))
        times = generation.usage
        self.assertTrue(0 <= times.queue_seconds <= times.first_token_seconds <= times.total_seconds < 60, times)
        self.assertEqual(generation.samples[2].finish, rivulet.Finish(rivulet.FinishReason.LENGTH))
        self.assertIsNone(generation.samples[0].logprobs)
        self.assertIsNone(generation.samples[0].top_logprobs)

    def test_prompts_of_every_kind(self):
        def tokens(prompt, model=STREAM):
            return self.call(lambda c: c.generate(prompt, model=model, max_tokens=8, seed=1).collect()).tokens.tolist()

        expected = tokens([4, 5])
        for prompt in ((4, 5), range(4, 6), np.array([4, 5]), np.array([4, 5], np.uint16), [np.int64(4), np.int32(5)]):
            self.assertEqual(tokens(prompt), expected, prompt)
        self.assertNotEqual(tokens(()), expected)
        self.assertEqual(tokens("abc", TEXT), tokens([0, 1, 2], TEXT))
        image = tokens(bytes([9, 200]), IMAGE)
        self.assertEqual(tokens(np.array([9, 200], np.uint8), IMAGE), image)
        self.assertEqual(tokens([9, 200], IMAGE), image)
        generation = self.call(lambda c: c.generate("abc", model=TEXT, max_tokens=8, seed=1).collect())
        self.assertEqual(generation.text, "".join(ALPHABET[token] for token in generation.tokens))

    def test_logprobs_and_stops_arrive(self):
        sample = self.call(
            lambda c: c.generate([1], model=STREAM, max_tokens=20, seed=3, logprobs=True, top_logprobs=4).collect()
        ).samples[0]
        self.assertEqual((sample.logprobs.shape, sample.logprobs.dtype, len(sample.top_logprobs)), ((20,), np.float32, 20))
        for token, logprob, top in zip(sample.tokens, sample.logprobs, sample.top_logprobs):
            self.assertEqual((top.token_ids.shape, top.logprobs.shape), ((4,), (4,)))
            self.assertTrue(all(np.diff(top.logprobs) <= 0))
            if token in top.token_ids:
                self.assertEqual(top.logprobs[list(top.token_ids).index(token)], logprob)
        stop = int(sample.tokens[5])
        length = sample.tokens.tolist().index(stop)
        ended = self.call(lambda c: c.generate([1], model=STREAM, max_tokens=20, seed=3, stop_token_ids=[stop]).collect()).samples[0]
        self.assertEqual(ended.tokens.tolist(), sample.tokens[:length].tolist())
        self.assertEqual(ended.finish, rivulet.Finish(rivulet.FinishReason.STOP_TOKEN, stop_token_id=stop))
        whole = self.call(lambda c: c.generate("a", model=TEXT, seed=3).collect()).text
        string = whole[7:9]
        for include in (False, True):
            sample = self.call(
                lambda c: c.generate("a", model=TEXT, seed=3, stop=string, include_stop_string=include).collect()
            ).samples[0]
            self.assertEqual(sample.text, whole.partition(string)[0] + string * include)
            self.assertEqual(sample.finish, rivulet.Finish(rivulet.FinishReason.STOP_STRING, stop_string=string))

    def test_score_is_that_of_the_command(self):
        ids = list(range(30))
        score = self.call(lambda c: c.score(ids, model=BOUNDED, output_positions=[0, 29], logprobs=True))
        result = command(
            "score", "--target", self.server.target, "--model-name", BOUNDED, "--input", "-", "--outputs", "0,29", stdin=token_lines([ids])
        )
        (line,) = result.lines()
        self.assertEqual((score.nll_nats, score.num_scored), (line["nll_nats"], line["num_scored"]))
        self.assertEqual((score.outputs.shape, score.outputs.dtype), ((2, 37), np.float32))
        self.assertEqual(score.outputs.tolist(), np.array(line["outputs"], np.float32).tolist())
        self.assertEqual(score.logprobs.shape, (30,))
        self.assertAlmostEqual(-float(score.logprobs.sum()), score.nll_nats, delta=1e-4 * score.nll_nats)
        plain = self.call(lambda c: c.score(np.array(ids), model=BOUNDED, window=10))
        self.assertEqual((plain.logprobs, plain.outputs, plain.num_scored), (None, None, 30))
        self.assertNotEqual(plain.nll_nats, score.nll_nats)
        self.assertEqual(self.call(lambda c: c.score("abc", model=TEXT)).num_scored, 2)

    def test_models_load_and_health(self):
        names = [model.name for model in self.call(lambda c: c.models())]
        self.assertEqual(sorted(names), sorted([STREAM, BOUNDED, NO_BOS, IMAGE, TEXT]))
        model = self.call(lambda c: c.model(BOUNDED))
        self.assertEqual((model.summary.name, model.summary.backend, len(model.summary.weights_sha256)), (BOUNDED, "cpu", 64))
        size = model.architecture
        self.assertEqual((size.vocab_size, size.bos_token_id, size.eos_token_id, size.mixture), (37, 0, None, None))
        self.assertEqual((size.max_sequence_tokens, size.feature_map), (48, "elu"))
        self.assertEqual(model.config, json.loads((CONFORMANCE / BOUNDED / "config.json").read_text()))
        self.assertEqual((model.content, model.limits.slots), (rivulet.TokenContent(), 64))
        self.assertTrue(model.numerics_id)
        self.assertEqual((model.plan, model.products), ("one step a run", ""))
        image = self.call(lambda c: c.model(IMAGE))
        self.assertEqual(image.content, rivulet.ImageContent(4, 11, 1))
        self.assertEqual(image.architecture.mixture, rivulet.Mixture(10, 256))
        self.assertIsNone(image.architecture.bos_token_id)
        self.assertEqual(self.call(lambda c: c.model(TEXT)).content, rivulet.TextContent(ALPHABET, "char", len(ALPHABET)))
        (load,) = self.call(lambda c: c.load(BOUNDED))
        self.assertEqual((load.model, load.slots, load.draining), (BOUNDED, 64, False))
        self.assertEqual(len(self.call(lambda c: c.load())), 5)
        for service in ("", IMAGE):
            self.assertEqual(self.call(lambda c: c.health(service)), rivulet.HealthStatus.SERVING)

    def test_errors_of_the_server_are_typed(self):
        """One for each class and call; bad_request_test.cc has every reason."""

        def generate(prompt, model=STREAM, **options):
            return lambda c: c.generate(prompt, model=model, **options).collect()

        def score(content, model=STREAM, **options):
            return lambda c: c.score(content, model=model, **options)

        invalid, out_of_range, not_found = rivulet.InvalidArgument, rivulet.OutOfRange, rivulet.NotFound
        cases = [
            (generate([1], ""), invalid, "MODEL_NAME_MISSING", "model"),
            (generate([1], "gpt-2"), not_found, "MODEL_NOT_FOUND", "model"),
            (generate([1, 37]), invalid, "TOKEN_OUT_OF_RANGE", "prompt.tokens[1]"),
            (generate([], NO_BOS), invalid, "PROMPT_EMPTY", "prompt"),
            (generate(b"", IMAGE), invalid, "PROMPT_EMPTY", "prompt"),
            (generate("a" * 50, TEXT), out_of_range, "TOO_MANY_TOKENS", "prompt.text"),
            (generate([1], temperature=NAN), invalid, "INVALID_SAMPLING", "sampling.temperature"),
            (generate([1], logit_bias={3: 101}), invalid, "INVALID_SAMPLING", "sampling.logit_bias[3]"),
            (score([37, 37]), invalid, "TOKEN_OUT_OF_RANGE", "content.tokens[0]"),
            (score([1] * 200, BOUNDED, window=49), out_of_range, "TOO_MANY_TOKENS", "window"),
            (lambda c: c.model("gpt-2"), not_found, "MODEL_NOT_FOUND", "model"),
            (lambda c: c.load("gpt-2"), not_found, "MODEL_NOT_FOUND", "model"),
            (lambda c: c.health("gpt-2"), not_found, "", ""),
            (score([1] * (5 << 20)), rivulet.InvalidArgument, "MESSAGE_TOO_LARGE", ""),  # above the server's max-message-mib
        ]
        for function, error_type, reason, field in cases:
            with self.subTest(reason=reason, field=field), self.assertRaises(rivulet.RivuletError) as caught:
                self.call(function)
            error = caught.exception
            self.assertEqual((type(error), error.reason, error.field), (error_type, reason, field), error)
            self.assertEqual((error.code, error.retry_delay), (error_type.code, None))
            self.assertTrue(reason == "" or (error.message and reason in str(error) and field in str(error)), error)

    def test_mistakes_of_the_caller_are_found_before_anything_is_sent(self):
        nobody = rivulet.Client("127.0.0.1:1")  # would be Unavailable
        self.addCleanup(nobody.close)
        cases = [
            ({"prompt": 1.5}, TypeError, r"^prompt: must .*; got 1\.5"),
            ({"prompt": [1, 2.5]}, TypeError, r"^prompt\[1\]: must .*; got 2\.5"),
            ({"prompt": [True]}, TypeError, r"^prompt\[0\]: must .*; got True"),
            ({"prompt": ["a"]}, TypeError, r"^prompt\[0\]: must .*; got 'a'"),
            ({"prompt": None}, TypeError, "^prompt: must .*; got None"),
            ({"prompt": {1: 2}}, TypeError, "^prompt: must .*; got {1: 2}"),
            ({"prompt": {1, 2}}, TypeError, "^prompt: must .*; got {1, 2}"),
            ({"prompt": [2**31]}, ValueError, r"prompt\[0\]: must be -2147483648 to 2147483647; got 2147483648"),
            ({"prompt": np.array([0.5])}, TypeError, "float64"),
            ({"prompt": np.zeros((2, 2), np.uint8)}, TypeError, r"\[2, 2\]"),
            ({"prompt": np.zeros((2, 2), np.int32)}, TypeError, r"\[2, 2\]"),
            ({"prompt": "\ud800"}, ValueError, r"^prompt: must .*; got '\\ud800'"),
            ({"model": 3}, TypeError, "^model: must .*; got 3"),
            ({"max_tokens": 2**63}, ValueError, "max_tokens: must be -9223372036854775808 to 9223372036854775807; got 9223372036854775808"),
            ({"max_tokens": 1.0}, TypeError, r"^max_tokens: must .*; got 1\.0"),
            ({"num_samples": "1"}, TypeError, "^num_samples: must .*; got '1'"),
            ({"temperature": "hot"}, TypeError, "^temperature: must .*; got 'hot'"),
            ({"top_k": 2**40}, ValueError, "top_k: must be -2147483648 to 2147483647; got 1099511627776"),
            ({"seed": -1}, ValueError, "seed: must be 0 to 18446744073709551615; got -1"),
            ({"seed": 2**64}, ValueError, "seed: must be 0 to 18446744073709551615; got 18446744073709551616"),
            ({"logit_bias": [1]}, TypeError, r"^logit_bias: must .*; got \[1\]"),
            ({"logit_bias": {1: "a"}}, TypeError, r"^logit_bias\[1\]: must .*; got 'a'"),
            ({"stop": 3}, TypeError, "^stop: must .*; got 3"),
            ({"stop": ["a", 3]}, TypeError, r"^stop\[1\]: must .*; got 3"),
            ({"stop_token_ids": [0.5]}, TypeError, r"^stop_token_ids\[0\]: must .*; got 0\.5"),
            ({"ignore_eos": 1}, TypeError, "^ignore_eos: must .*; got 1"),
            ({"reasoning": "</think>"}, TypeError, "^reasoning: must be a rivulet.Reasoning; got '</think>'"),
            ({"reasoning": rivulet.Reasoning("", 3)}, TypeError, "^reasoning.end: must .*; got 3"),
            ({"speculation": "fast"}, ValueError, "^speculation: must be \"auto\", \"off\" or an integer; got 'fast'"),
            ({"speculation": 1.5}, TypeError, r"^speculation: must .*; got 1\.5"),
            ({"speculation": rivulet.Speculation(2**31)}, ValueError, "^speculation.drafts: must .*; got 2147483648"),
            ({"speculation": rivulet.Speculation(prediction=3)}, TypeError, "^speculation.prediction: must .*; got 3"),
            ({"logprobs": 5}, TypeError, "^logprobs: must .*; got 5"),
            ({"timeout": 0}, ValueError, "^timeout: must .*; got 0"),
            ({"timeout": float("inf")}, ValueError, "^timeout: must .*; got inf"),
            ({"timeout": "1"}, TypeError, "^timeout: must .*; got '1'"),
            ({"resume": 3}, TypeError, "^resume: must .*; got 3"),
            ({"metadata": {"Key": "a"}}, ValueError, "^metadata: a key must .*; got 'Key'"),
            ({"metadata": {"key": 3}}, TypeError, "^metadata: key: must .*; got 3"),
            ({"metadata": {"key-bin": "a"}}, TypeError, "^metadata: key-bin: must .*; got 'a'"),
            ({"metadata": [("key", "a", "b")]}, TypeError, "^metadata: must .*; got .'key', 'a', 'b'"),
            ({"metadata": [("key", "\n")]}, ValueError, r"^metadata: key: must .*; got '\\n'"),
            ({"temprature": 1}, TypeError, "'temprature'"),
        ]
        for options, error_type, mention in cases:
            with self.subTest(options=options), self.assertRaises(error_type) as caught:
                self.call(lambda c: (c if isinstance(c, rivulet.AsyncClient) else nobody).generate(**options).collect())
            self.assertRegex(str(caught.exception), mention)
        for options, error_type, mention in (
            ({"content": 3}, TypeError, "^content: must .*; got 3"),
            ({"content": b"\1\2"}, TypeError, r"^content: must .*; got b'\\x01"),
            ({"content": {1: 2}}, TypeError, "^content: must .*; got {1: 2}"),
            ({"content": [1], "window": "a"}, TypeError, "^window: must .*; got 'a'"),
            ({"content": [1], "output_positions": 3}, TypeError, "^output_positions: must .*; got 3"),
            ({"content": [1], "timout": 3}, TypeError, "timout"),
        ):
            with self.subTest(options=options), self.assertRaises(error_type) as caught:
                self.call(lambda c: c.score(**options))
            self.assertRegex(str(caught.exception), mention)

    def test_a_timeout_ends_the_call_and_frees_the_session(self):
        with self.assertRaises(rivulet.DeadlineExceeded) as caught:
            self.call(lambda c: c.generate([1], model=STREAM, max_tokens=ENDLESS, num_samples=8, timeout=0.3).collect())
        self.assertEqual(caught.exception.code, rivulet.Code.DEADLINE_EXCEEDED)
        self.assertTrue(await_idle(self.plain, STREAM))

    def test_errors_survive_pickling(self):
        with self.assertRaises(rivulet.InvalidArgument) as caught:
            self.call(lambda c: c.generate([99], model=STREAM).collect())
        for error in (pickle.loads(pickle.dumps(caught.exception)), copy.copy(caught.exception)):
            self.assertEqual((type(error), str(error)), (rivulet.InvalidArgument, str(caught.exception)))


class OptionTests(OneServer):
    """What a call sends, at a server that notes it."""

    def setUp(self):
        self.server = self.enterContext(FakeServer())
        self.server.answers["Score"] = lambda *_: inference_pb2.ScoreReply()

    def sent(self, function):
        begin = len(self.server.calls)
        self.call(function)
        return self.server.calls[begin].request

    def test_every_option_of_generate_reaches_its_field(self):
        options = {
            "model": "m", "max_tokens": 7, "num_samples": 1, "temperature": 0.5, "top_k": 3, "top_p": 0.25, "min_p": 0.125,
            "repetition_penalty": 1.5, "frequency_penalty": -0.5, "presence_penalty": 0.75, "logit_bias": {3: 1.5, -4: -2}, "seed": 2**64 - 1,
            "stop": ["a", "b"], "stop_token_ids": np.array([4, 5]), "include_stop_string": True, "ignore_eos": True, "logprobs": True,
            "min_tokens": 6, "skip_special_tokens": True, "reasoning": rivulet.Reasoning("<t>", "</t>"), "speculation": rivulet.Speculation(0, "p"), "top_logprobs": 2, "cache": rivulet.PromptCache("s", [9, 2]), "priority": "low", "add_special_tokens": False,
            "parse_special_tokens": True, "constraint": rivulet.Constraint({"type": "null"}, begin_position=3, after=["<b>", "c"]),
        }  # fmt: skip
        own = {"resume", *rivulet.CallOptions.__annotations__}  # of the client
        self.assertEqual(set(options), set(rivulet.GenerateOptions.__annotations__) - own)
        sampling = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "seed")
        alike = ("model", "max_tokens", "num_samples", "add_special_tokens", "parse_special_tokens", "skip_special_tokens")
        expected = inference_pb2.GenerateRequest(
            text="x", sampling={name: options[name] for name in sampling}, **{name: options[name] for name in alike},
            stop={"strings": ["a", "b"], "token_ids": [4, 5], "include_string": True, "ignore_eos": True, "min_tokens": 6},
            reasoning={"begin": "<t>", "end": "</t>"}, speculation={"drafts": 0, "text": "p"},
            logprobs={"enabled": True, "top_n": 2}, cache={"enabled": True, "salt": "s", "positions": [9, 2]}, priority="PRIORITY_LOW",
            constraint={"json_schema": '{"type": "null"}', "begin_position": 3, "after": ["<b>", "c"]},
        )  # fmt: skip
        self.assertEqual(self.sent(lambda c: c.generate("x", **options).collect()), expected)
        one = self.sent(lambda c: c.generate([1], stop="end", cache=True, priority=rivulet.Priority.HIGH).collect())
        self.assertEqual((list(one.stop.strings), one.cache.enabled, one.priority), (["end"], True, inference_pb2.PRIORITY_HIGH))
        given = {field.name for field, _ in self.sent(lambda c: c.generate(bytes([7])).collect()).ListFields()}
        self.assertLessEqual(given, {"image_values", "sampling", "stop", "logprobs"})

    def test_drafts_are_as_many_as_pay_or_at_most_a_number(self):
        message = inference_pb2.Speculation
        for given, expected in (
            ("off", message(drafts=0)), (16, message(drafts=16)), ("auto", message()), (rivulet.Speculation(), message()),
            (rivulet.Speculation("off"), message(drafts=0)), (rivulet.Speculation(None, np.array([4, 5])), message(tokens={"ids": [4, 5]})),
        ):  # fmt: skip
            self.assertEqual(self.sent(lambda c: c.generate([1], speculation=given).collect()).speculation, expected)

    def test_a_priority_is_one_of_three_or_its_name(self):
        for priority in ("low", "normal", "high", *rivulet.Priority):
            name = priority if isinstance(priority, str) else priority.name
            expected = getattr(inference_pb2, f"PRIORITY_{name.upper()}")
            for function in (lambda c: c.generate([1], priority=priority).collect(), lambda c: c.score([1], priority=priority)):
                self.assertEqual(self.sent(function).priority, expected)
        for priority, error_type in (("urgent", ValueError), (3, TypeError), (b"high", TypeError), (True, TypeError)):
            for function in (lambda c: c.generate([1], priority=priority).collect(), lambda c: c.score([1], priority=priority)):
                with self.assertRaises(error_type) as caught:
                    self.call(function)
                self.assertRegex(str(caught.exception), f"^priority: must .*; got {priority!r}$")

    def test_every_option_of_score_reaches_its_field(self):
        options = {"model": "m", "window": 3, "logprobs": True, "add_special_tokens": True, "parse_special_tokens": False}
        expected = inference_pb2.ScoreRequest(text="x", output_positions=[4, 0], priority="PRIORITY_NORMAL", **options)
        sent = self.sent(lambda c: c.score("x", output_positions=[4, 0], priority=rivulet.Priority.NORMAL, **options))
        self.assertEqual(sent, expected)
        self.assertEqual(self.sent(lambda c: c.score([5, 6])), inference_pb2.ScoreRequest(tokens={"ids": [5, 6]}))


class SyncOptionTest(OptionTests, Sync, unittest.TestCase):
    pass


class AsyncOptionTest(OptionTests, Async, unittest.TestCase):
    pass


class SyncCallTest(CallTests, Sync, ServerTest):
    pass


class AsyncCallTest(CallTests, Async, ServerTest):
    pass


if __name__ == "__main__":
    unittest.main()
