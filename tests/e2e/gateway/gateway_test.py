# SPDX-License-Identifier: Apache-2.0
"""rivulet-gateway in front of the real server: OpenAI's client, curl, and the answers that gRPC gives."""

import asyncio
import base64
import contextlib
import dataclasses
import http.client
import io
import json
import re
import shutil
import socket
import subprocess
import unittest

from rivulet_wheel import await_idle
from gateway import PATIENCE, Gateway, environment, events

import numpy as np
import openai
from PIL import Image

import rivulet
from command import SOURCE_DIR, ZOO, Server

TEXT, IMAGES = "shakespeare-rfa", "mnist-linear"
PROMPT = "ROMEO:"
ENDLESS = 1_000_000  # tokens: minutes


def setUpModule():
    """One server and one gateway for all tests."""
    server = unittest.enterModuleContext(Server(ZOO / TEXT, ZOO / IMAGES, args=("--threads", "1", "--backend", "cpu")))
    GatewayTest.gateway = unittest.enterModuleContext(Gateway(server.target))
    GatewayTest.grpc = unittest.enterModuleContext(rivulet.Client(server.target))
    GatewayTest.openai = unittest.enterModuleContext(GatewayTest.client())


class GatewayTest(unittest.TestCase):

    @classmethod
    def client(cls, kind=openai.OpenAI, key="key-1"):
        return kind(base_url=f"{cls.gateway.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE)

    def fetch(self, method, path, body=None, **headers):
        """Status, headers and JSON of the answer to a request."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if raw is not None:
            headers = {"content-type": "application/json", **headers}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, raw, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, json.loads(answer.read())

    def refused(self, path, body, status, code, param, *mentions, **headers):
        got, _, answer = self.fetch("POST", path, body, **headers)
        self.assertEqual((got, answer["error"]["code"], answer["error"]["param"]), (status, code, param), answer)
        for mention in mentions:
            self.assertIn(mention, answer["error"]["message"])

    def text(self, **options):
        return self.grpc.generate(PROMPT, model=TEXT, **options).collect()

    def await_busy(self):
        """Waits until a reply holds a slot."""
        while self.grpc.load(TEXT)[0].slots_used == 0:
            pass

    def assert_freed(self):
        self.assertTrue(await_idle(self.grpc, TEXT, PATIENCE))


class ModelsTest(GatewayTest):
    def test_models_and_health(self):
        self.assertEqual({model.id for model in self.openai.models.list()}, {TEXT, IMAGES})
        model = self.openai.models.retrieve(TEXT)
        self.assertEqual((model.id, model.object, model.owned_by), (TEXT, "model", "rivulet"))
        described = self.grpc.model(TEXT)
        self.assertEqual(model.rivulet["weights_sha256"], described.summary.weights_sha256)
        self.assertEqual((model.rivulet["content"], model.rivulet["max_tokens"]), ("text", described.limits.max_tokens))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.openai.models.retrieve("absent")
        self.assertEqual((caught.exception.code, caught.exception.param), ("MODEL_NOT_FOUND", "model"))
        self.assertEqual(model.rivulet["max_num_samples"], described.limits.max_num_samples)
        self.assertNotIn("image", model.rivulet)
        shape = {"height": 28, "width": 28, "channels": 1, "num_levels": 256}
        self.assertEqual(self.openai.models.retrieve(IMAGES).rivulet["image"], shape)
        self.assertEqual(self.fetch("GET", "/health")[::2], (200, {"status": "SERVING"}))

    def test_the_description_has_the_routes_and_their_parameters(self):
        self.assertEqual(self.fetch("GET", "/version")[::2], (200, {"version": rivulet.__version__}))
        status, _, found = self.fetch("GET", "/openapi.json")
        self.assertEqual((status, found["openapi"], found["info"]["version"]), (200, "3.1.0", rivulet.__version__))
        documented = set(re.findall(r"`(\w+)[`.]", (SOURCE_DIR / "docs/gateway.md").read_text()))
        operations = [(method.upper(), path, operation) for path, methods in found["paths"].items() for method, operation in methods.items()]
        self.assertEqual(len({operation["operationId"] for _, _, operation in operations}), len(operations))
        for method, path, operation in operations:
            with self.subTest(path, method=method):
                self.assertTrue(operation["summary"])
                inside = {parameter["name"]: TEXT for parameter in operation["parameters"] if parameter["in"] == "path"}
                url = path.format(**inside)
                if method != "POST":
                    self.assertNotIn(self.fetch(method, url)[2].get("error", {}).get("code"), ("ROUTE_NOT_FOUND", "METHOD_NOT_ALLOWED"))
                    continue
                schema = operation["requestBody"]["content"]["application/json"]["schema"]
                self.assertEqual(set(schema["properties"]) - documented, set(), "to be named in docs/gateway.md")
                for name in schema["properties"]:  # an object is a wrong value of most
                    said = self.fetch("POST", url, {name: {"a": 1}})[2].get("error", {}).get("message", "")
                    self.assertNotIn(f"{name}: the parameter is not supported", said)
        schemas = {path: operation["requestBody"]["content"]["application/json"]["schema"] for method, path, operation in operations if method == "POST"}
        chat, session = schemas["/v1/chat/completions"], "/rivulet/v1/sessions/{session_id}/generate"
        self.assertEqual(chat["required"], ["messages", "model"])
        self.assertLess({"tools", "stop", "max_completion_tokens", "top_logprobs", "stream_options", "user"}, set(chat["properties"]))
        self.assertEqual(chat["properties"]["n"], {"type": "integer", "minimum": 1, "maximum": 128})
        self.assertEqual(schemas["/tokenize"]["required"], [])
        self.assertLess({"messages", "prompt", "add_generation_prompt"}, set(schemas["/tokenize"]["properties"]))
        self.assertEqual([one["name"] for one in found["paths"][session]["post"]["parameters"]], ["session_id", "model"])

    def test_the_load_is_that_of_grpc(self):
        self.openai.completions.create(model=TEXT, prompt=PROMPT, max_tokens=5)
        self.assert_freed()
        (expected,) = self.grpc.load(TEXT)
        self.assertGreater(expected.tokens_total, 0)
        status, _, answer = self.fetch("GET", f"/rivulet/v1/load?model={TEXT}")
        (found,) = answer["data"]
        self.assertEqual((status, set(found)), (200, {field.name for field in dataclasses.fields(expected)}))
        for name in ("model", "slots", "slots_used", "max_queue", "queued", "tokens_total", "draining", "sessions"):
            self.assertEqual(found[name], getattr(expected, name), name)
        self.assertEqual({entry["model"] for entry in self.fetch("GET", "/rivulet/v1/load")[2]["data"]}, {TEXT, IMAGES})
        self.assertEqual(self.fetch("GET", "/rivulet/v1/load?model=absent")[2]["error"]["code"], "MODEL_NOT_FOUND")

    def test_what_has_no_route_is_told_so(self):
        for method, path, status, code in (
            ("GET", "/v1/absent", 404, "ROUTE_NOT_FOUND"), ("GET", "/v1/completions", 405, "METHOD_NOT_ALLOWED"),
            ("POST", "/chat/completions", 404, "ROUTE_NOT_FOUND"),
        ):  # fmt: skip
            got, _, answer = self.fetch(method, path)
            self.assertEqual((got, answer["error"]["code"]), (status, code))
            self.assertIn(f"{method} {path}", answer["error"]["message"])
        self.assertIn("there is /v1/chat/completions: a client's base URL ends with /v1", answer["error"]["message"])


class CompletionTest(GatewayTest):
    def test_a_completion_is_the_text_that_grpc_gives(self):
        options = {"max_tokens": 40, "seed": 7, "temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.3, "logit_bias": {"1": -2}}
        expected = self.text(num_samples=2, **{**options, "logit_bias": {1: -2.0}})
        given = self.openai.completions.create(model=TEXT, prompt=PROMPT, n=2, **options)
        self.assertEqual([choice.text for choice in given.choices], [sample.text for sample in expected.samples])
        self.assertEqual([choice.finish_reason for choice in given.choices], ["length"] * 2)
        self.assertEqual((given.object, given.model), ("text_completion", TEXT))
        usage = given.usage
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (len(PROMPT), 80, len(PROMPT) + 80))

    def test_a_stream_is_the_text_in_pieces(self):
        expected = self.text(max_tokens=60, seed=3, num_samples=2)
        texts, finished, usages = ["", ""], {}, []
        with self.openai.completions.create(
            model=TEXT, prompt=PROMPT, n=2, max_tokens=60, seed=3, stream=True, stream_options={"include_usage": True}
        ) as stream:
            for chunk in stream:
                usages.append(chunk.usage)
                for choice in chunk.choices:
                    texts[choice.index] += choice.text
                    finished[choice.index] = choice.finish_reason
        self.assertEqual(texts, [sample.text for sample in expected.samples])
        self.assertEqual(finished, {0: "length", 1: "length"})
        self.assertEqual(set(usages[:-1]), {None})
        self.assertEqual((usages[-1].prompt_tokens, usages[-1].completion_tokens), (len(PROMPT), 120))
        self.assertGreaterEqual(len(usages), 3)

    def test_several_prompts_each_have_their_choices(self):
        prompts = [PROMPT, "JULIET:", "NURSE:"]
        expected = [self.grpc.generate(prompt, model=TEXT, max_tokens=9, seed=5).collect().text for prompt in prompts]
        given = self.openai.completions.create(model=TEXT, prompt=prompts, max_tokens=9, seed=5)
        self.assertEqual([choice.text for choice in given.choices], expected)
        self.assertEqual(given.usage.prompt_tokens, sum(map(len, prompts)))
        texts = {}
        for chunk in self.openai.completions.create(model=TEXT, prompt=prompts, max_tokens=9, seed=5, stream=True):
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
        self.assertEqual([texts[index] for index in range(3)], expected)

    def test_echo_stop_and_token_ids(self):
        expected = self.text(max_tokens=200, seed=2, stop=["\n\n"])
        for stream in (False, True):
            with self.subTest(stream=stream):
                got = self.completed(stream, prompt=PROMPT, max_tokens=200, seed=2, stop="\n\n", echo=True)
                self.assertEqual(got, (PROMPT + expected.text, "stop"))
        alphabet = self.grpc.model(TEXT).content.alphabet
        ids = [alphabet.index(character) for character in PROMPT]
        reply = self.fetch("POST", "/v1/completions", {"model": TEXT, "prompt": ids, "seed": 2, "echo": True, "return_token_ids": True})
        (choice,) = reply[2]["choices"]
        expected = self.text(max_tokens=16, seed=2)  # OpenAI's default
        self.assertEqual((choice["text"], choice["token_ids"]), (PROMPT + expected.text, expected.tokens.tolist()))

    def completed(self, stream, **options):
        """Text and finish reason of the only choice."""
        reply = self.openai.completions.create(model=TEXT, stream=stream, **options)
        choices = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
        return "".join(choice.text for choice in choices), choices[-1].finish_reason

    def test_logprobs(self):
        expected = self.text(max_tokens=12, seed=4, logprobs=True, top_logprobs=2).samples[0]
        given = self.openai.completions.create(model=TEXT, prompt=PROMPT, max_tokens=12, seed=4, logprobs=2).choices[0]
        self.assertEqual("".join(given.logprobs.tokens), expected.text)
        self.assertEqual(given.logprobs.token_logprobs, expected.logprobs.tolist())
        self.assertEqual(given.logprobs.text_offset, list(range(12)))
        top = [dict(zip(entry.texts, entry.logprobs.tolist())) for entry in expected.top_logprobs]
        self.assertEqual(given.logprobs.top_logprobs, top)
        offsets, values = [], []
        for chunk in self.openai.completions.create(model=TEXT, prompt=PROMPT, max_tokens=12, seed=4, logprobs=0, stream=True):
            for choice in chunk.choices:
                offsets += choice.logprobs.text_offset
                values += choice.logprobs.token_logprobs
        self.assertEqual((offsets, values), (list(range(12)), expected.logprobs.tolist()))

    def test_logprobs_of_an_echoed_prompt_are_those_of_score(self):
        score = self.grpc.score(PROMPT, model=TEXT, logprobs=True, output_positions=range(len(PROMPT) - 1))
        options = {"prompt": PROMPT, "max_tokens": 3, "seed": 4, "logprobs": 2}
        own = self.openai.completions.create(model=TEXT, **options).choices[0].logprobs
        for stream in (False, True):
            reply = self.openai.completions.create(model=TEXT, echo=True, stream=stream, **options)
            choices = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
            parts = [choice.logprobs for choice in choices]
            self.assertEqual("".join(token for part in parts for token in part.tokens), PROMPT + "".join(own.tokens))
            values = [value for part in parts for value in part.token_logprobs]
            self.assertEqual(values, [None, *score.logprobs.tolist(), *own.token_logprobs])
            self.assertEqual([offset for part in parts for offset in part.text_offset], list(range(len(PROMPT) + 3)))
            first, *top = [entry for part in parts for entry in part.top_logprobs]
            self.assertIsNone(first)
            self.assertEqual(top[len(PROMPT) - 1 :], own.top_logprobs)
            for entry, token, value, row in zip(top, PROMPT[1:], score.logprobs.tolist(), score.outputs.astype(np.float64)):
                expected = np.sort(row - np.log(np.exp(row).sum()))[: -3 : -1]
                self.assertTrue(np.allclose(list(entry.values()), expected, rtol=0, atol=1e-5), entry)
                self.assertEqual(entry.get(token, value), value, "clients compare the two")

    def test_a_prompt_has_no_tokens_that_the_tokenizer_adds_behind_a_text(self):
        with Server(SOURCE_DIR / "tests/conformance/molformer/gp-molformer") as server, Gateway(server.target) as gateway:
            client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE)
            for options in ({"max_tokens": 0}, {"max_tokens": 0, "logprobs": 1}, {"max_tokens": 1, "logprobs": 1, "seed": 1}):
                reply = client.completions.create(model="gp-molformer", prompt="CCO", echo=True, **options)
                self.assertEqual(reply.usage.prompt_tokens, 4)
                if "logprobs" in options:
                    self.assertEqual(reply.choices[0].logprobs.tokens[:4], ["<bos>", "C", "C", "O"])
                    self.assertNotIn("<eos>", reply.choices[0].logprobs.tokens)

    def test_no_tokens_after_an_echoed_prompt(self):
        options = {"model": TEXT, "prompt": [PROMPT, "To be"], "n": 2, "logprobs": 1, "echo": True, "seed": 1}
        want = self.openai.completions.create(max_tokens=1, **options).choices
        reply = self.openai.completions.create(max_tokens=0, **options)
        self.assertEqual([choice.text for choice in reply.choices], [PROMPT, PROMPT, "To be", "To be"])
        for choice, longer in zip(reply.choices, want, strict=True):
            self.assertEqual(choice.finish_reason, "length")
            self.assertEqual(choice.logprobs.token_logprobs, longer.logprobs.token_logprobs[:-1])
            self.assertEqual(choice.logprobs.top_logprobs, longer.logprobs.top_logprobs[:-1])
        self.assertEqual((reply.usage.prompt_tokens, reply.usage.completion_tokens), (len(PROMPT) + 5, 0))
        chunks = list(self.openai.completions.create(max_tokens=0, stream=True, stream_options={"include_usage": True}, **options))
        self.assertEqual([choice.text for chunk in chunks for choice in chunk.choices], [PROMPT, PROMPT, "To be", "To be"])
        self.assertEqual(chunks[-1].usage, reply.usage)
        ids = self.grpc.tokenize(PROMPT, model=TEXT).ids.tolist()
        self.assertEqual(self.openai.completions.create(model=TEXT, prompt=ids, max_tokens=0, echo=True).choices[0].text, PROMPT)
        body = {"model": TEXT, "prompt": PROMPT, "max_tokens": 0}
        self.refused("/v1/completions", body, 400, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens", "echo")
        (choice,) = self.fetch("POST", "/v1/completions", {**body, "echo": True, "return_token_ids": True})[2]["choices"]
        self.assertEqual((choice["text"], choice["token_ids"]), (PROMPT, []))

    def test_other_parameters_are_checked_beside_max_tokens_0(self):
        for wrong, code, param in (
            ({"temperature": -1}, "INVALID_SAMPLING", "temperature"),
            ({"top_k": "a"}, "INVALID_PARAMETER", "top_k"),
            ({"stop": ""}, "STOP_STRING_LENGTH", "stop[0]"),
            ({"logit_bias": {"999": 1}}, "INVALID_SAMPLING", "logit_bias"),
            ({"stop_token_ids": [999]}, "TOKEN_OUT_OF_RANGE", "stop_token_ids[0]"),
            ({"n": 65}, "NUM_SAMPLES_OUT_OF_RANGE", "n"),
            ({"prompt": "\u00e9"}, "TEXT_NOT_IN_ALPHABET", "prompt"),
            ({"prompt": "\u00e9", "logprobs": 1}, "TEXT_NOT_IN_ALPHABET", "prompt"),
            ({"prompt": [1, 2, 999]}, "TOKEN_OUT_OF_RANGE", "prompt[2]"),
        ):
            with self.subTest(wrong):
                self.refused("/v1/completions", {"model": TEXT, "prompt": PROMPT, "max_tokens": 0, "echo": True, **wrong}, 400, code, param)

    def test_tokens_of_texts_as_vllm_has_them(self):
        want = self.grpc.tokenize(PROMPT, model=TEXT).ids.tolist()
        status, _, answer = self.fetch("POST", "/tokenize", {"model": TEXT, "prompt": PROMPT, "return_token_strs": True})
        self.assertEqual((status, answer["tokens"], answer["count"]), (200, want, len(want)))
        self.assertEqual(answer["token_strs"], list(PROMPT))
        self.assertEqual(answer["max_model_len"], self.grpc.model(TEXT).limits.max_tokens)
        self.assertIsNone(self.fetch("POST", "/tokenize", {"model": TEXT, "prompt": PROMPT})[2]["token_strs"])
        self.assertEqual(self.fetch("POST", "/detokenize", {"model": TEXT, "tokens": want})[2], {"prompt": PROMPT})
        info = self.fetch("GET", f"/tokenizer_info?model={TEXT}")[2]
        self.assertEqual({name: info[name] for name in ("eos_token", "bos_token", "chat_template")}, dict.fromkeys(("eos_token", "bos_token", "chat_template")))
        self.refused("/tokenize", {"model": TEXT}, 400, "INVALID_PARAMETER", "prompt", "messages")
        self.refused("/tokenize", {"model": TEXT, "prompt": [1]}, 400, "INVALID_PARAMETER", "prompt")
        self.refused("/tokenize", {"model": TEXT, "prompt": "a", "truncate": 3}, 400, "UNSUPPORTED_PARAMETER", "truncate")
        self.refused("/tokenize", {"model": TEXT, "messages": [{"role": "user", "content": "a"}]}, 400, "NO_CHAT_TEMPLATE", "model")
        self.refused("/tokenize", {"model": IMAGES, "prompt": "a"}, 400, "TEXT_NOT_SUPPORTED", "prompt", "prompt is given, but")
        self.refused("/detokenize", {"model": TEXT, "tokens": "a"}, 400, "INVALID_PARAMETER", "tokens", 'got "a"')
        for wrong, said in (("a", '"a"'), (1.5, "1.5"), (True, "true"), (-1, "-1"), (2**40, "1099511627776")):
            self.refused("/detokenize", {"model": TEXT, "tokens": [1, wrong]}, 400, "INVALID_PARAMETER", "tokens[1]", f"must be a token id; got {said}")
        self.refused("/detokenize", {"model": TEXT, "tokens": [10**6]}, 400, "TOKEN_OUT_OF_RANGE", "tokens[0]")

    def test_a_model_without_a_chat_template_has_no_chats(self):
        body = {"model": TEXT, "messages": [{"role": "user", "content": "a"}]}
        self.refused("/v1/chat/completions", body, 400, "NO_CHAT_TEMPLATE", "model", TEXT, "--chat-template FILE", "/v1/completions")
        self.refused("/v1/chat/completions", {**body, "model": IMAGES}, 400, "NO_CHAT_TEMPLATE", "model", f"{IMAGES} has no tokenizer")

    def test_a_prompt_is_fed_once_for_each_key(self):
        prompt = "A prompt that no other test has. " * 4
        clients = [self.client(key=key) for key in ("key-2", "key-2", "key-3")]
        cached = []
        for client in clients:
            with client:
                usage = client.completions.create(model=TEXT, prompt=prompt, max_tokens=1, seed=1).usage
                cached.append(usage.prompt_tokens_details.cached_tokens)
        self.assertEqual(cached, [0, len(prompt) - 1, 0])

    def test_parameters_that_change_nothing_are_accepted(self):
        plain = self.completed(False, prompt=PROMPT, seed=6)
        harmless = {"user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "p", "safety_identifier": "s"}
        self.assertEqual(self.completed(False, prompt=PROMPT, seed=6, best_of=1, suffix="", logit_bias={}, extra_body=harmless), plain)

    def test_bad_requests_name_the_parameter(self):
        good = {"model": TEXT, "prompt": PROMPT}
        for body, status, code, param in (
            ({"prompt": "a"}, 400, "PARAMETER_MISSING", "model"),
            ({"model": 3}, 400, "INVALID_PARAMETER", "model"),
            ({**good, "model": "absent"}, 404, "MODEL_NOT_FOUND", "model"),
            ({**good, "prompt": {"a": 1}}, 400, "INVALID_PARAMETER", "prompt"),
            ({**good, "prompt": [1, "a"]}, 400, "INVALID_PARAMETER", "prompt[1]"),
            ({**good, "prompt": ["a", [1.5]]}, 400, "INVALID_PARAMETER", "prompt[1][0]"),
            ({**good, "prompt": [1, 9999]}, 400, "TOKEN_OUT_OF_RANGE", "prompt[1]"),
            ({**good, "prompt": ["a"] * 65}, 400, "INVALID_PARAMETER", "prompt"),
            ({**good, "prompt": "\u0416"}, 400, "TEXT_NOT_IN_ALPHABET", "prompt"),
            ({**good, "prompt": "\ud800"}, 400, "INVALID_PARAMETER", "prompt"),
            ({**good, "temperature": "hot"}, 400, "INVALID_PARAMETER", "temperature"),
            ({**good, "temperature": -1}, 400, "INVALID_SAMPLING", "temperature"),
            ({**good, "temperature": 10**400}, 400, "INVALID_PARAMETER", None),
            ({**good, "seed": -1}, 400, "INVALID_PARAMETER", "seed"),
            ({**good, "stop": ["a", 3]}, 400, "INVALID_PARAMETER", "stop[1]"),
            ({**good, "stop": ["a", ""]}, 400, "STOP_STRING_LENGTH", "stop[1]"),
            ({**good, "logit_bias": {"a": 1}}, 400, "INVALID_PARAMETER", "logit_bias"),
            ({**good, "n": 0}, 400, "INVALID_PARAMETER", "n"),
            ({**good, "n": 65}, 400, "NUM_SAMPLES_OUT_OF_RANGE", "n"),
            ({**good, "max_tokens": 0}, 400, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens"),
            ({**good, "max_tokens": 10**30}, 400, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens"),
            ({**good, "max_tokens": 2**40}, 400, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens"),
            ({**good, "max_tokens": True}, 400, "INVALID_PARAMETER", "max_tokens"),
            ({**good, "logprobs": 21}, 400, "INVALID_PARAMETER", "logprobs"),
            ({**good, "logprobs": True}, 400, "INVALID_PARAMETER", "logprobs"),
            ({**good, "rivulet_speculation": 17}, 400, "DRAFTS_OUT_OF_RANGE", "rivulet_speculation"),
            ({**good, "suffix": "b"}, 400, "UNSUPPORTED_PARAMETER", "suffix"),
            ({**good, "best_of": 2}, 400, "UNSUPPORTED_PARAMETER", "best_of"),
            ({**good, "beams": 2}, 400, "UNSUPPORTED_PARAMETER", "beams"),
            ({**good, "stream": 1}, 400, "INVALID_PARAMETER", "stream"),
            ({**good, "stream_options": {}}, 400, "INVALID_PARAMETER", "stream_options"),
            ({**good, "stream": True, "stream_options": {"a": 1}}, 400, "UNSUPPORTED_PARAMETER", "stream_options.a"),
            ({**good, "stream": True, "temperature": -1}, 400, "INVALID_SAMPLING", "temperature"),
        ):  # fmt: skip
            with self.subTest(body=str(body)[:200]):
                self.refused("/v1/completions", body, status, code, param)

    def test_a_message_names_the_parameter_and_not_the_field_of_the_server(self):
        good = {"model": TEXT, "prompt": "a"}
        for wrong, begin in (
            ({"temperature": -1}, "temperature is -1"), ({"n": 65}, "n is 65"), ({"model": IMAGES}, "prompt is given, but"),
            ({"max_tokens": -1}, "max_tokens: must be 1 (0 with echo = true) to what the model allows"),
        ):  # fmt: skip
            with self.subTest(wrong):
                status, _, answer = self.fetch("POST", "/v1/completions", {**good, **wrong})
                self.assertEqual((status, answer["error"]["message"][: len(begin)]), (400, begin))

    def test_bodies_that_are_not_json_objects_are_refused(self):
        for raw in (b"[", b"[]", b'{"a": NaN}', b"\xff", b"[" * 100_000):
            with self.subTest(raw[:20]):
                self.refused("/v1/completions", raw, 400, "INVALID_JSON", None)
        self.refused("/v1/completions", b"{}", 415, "CONTENT_TYPE_UNSUPPORTED", None, "text/plain", content_type="text/plain")
        self.refused("/v1/completions", b" " * (8 << 20) + b"{}", 413, "BODY_TOO_LARGE", None)


class LeavingTest(GatewayTest):
    """However a client leaves, its slot becomes free."""

    def test_a_stream_that_is_closed(self):
        with self.openai.completions.create(model=TEXT, prompt=PROMPT, max_tokens=ENDLESS, stream=True) as stream:
            next(iter(stream))
            self.await_busy()
        self.assert_freed()

    def test_async_streams_run_together_and_end_with_their_task(self):
        async def run():
            async with self.client(openai.AsyncOpenAI) as client:
                options = {"model": TEXT, "prompt": PROMPT, "max_tokens": 30}
                replies = await asyncio.gather(*(client.completions.create(seed=seed, **options) for seed in range(4)))
                expected = [self.text(max_tokens=30, seed=seed).text for seed in range(4)]
                self.assertEqual([reply.choices[0].text for reply in replies], expected)
                begun = asyncio.Event()

                async def read():
                    async for _ in await client.completions.create(**{**options, "max_tokens": ENDLESS}, stream=True):
                        begun.set()

                task = asyncio.create_task(read())
                await begun.wait()
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        asyncio.run(run())
        self.assert_freed()

    def test_a_complete_reply_that_nobody_waits_for(self):
        body = json.dumps({"model": TEXT, "prompt": [PROMPT, PROMPT], "max_tokens": ENDLESS}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.gateway.port)) as connection:
            connection.sendall(head.encode() + body)
            self.await_busy()
        self.assert_freed()

    def test_images_that_nobody_waits_for(self):
        body = json.dumps({"model": IMAGES, "prompt": "", "n": 64}).encode()
        head = f"POST /v1/images/generations HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        before = self.grpc.load(IMAGES)[0].tokens_total
        with socket.create_connection(("127.0.0.1", self.gateway.port)) as connection:
            connection.sendall(head.encode() + body)
            while self.grpc.load(IMAGES)[0].tokens_total == before:
                pass
        self.assertTrue(await_idle(self.grpc, IMAGES, PATIENCE))

    @unittest.skipUnless(shutil.which("curl"), "curl is absent")
    def test_curl_shows_a_stream_while_it_runs(self):
        url, kind = f"{self.gateway.url}/v1/completions", ("-H", "content-type: application/json")
        body = {"model": TEXT, "prompt": PROMPT, "max_tokens": 8, "seed": 1, "stream": True}
        command = ["curl", "-sN", *kind, url, "-d"]
        done = subprocess.run([*command, json.dumps(body)], capture_output=True, text=True, timeout=PATIENCE, env=environment())
        *chunks, last = events(done.stdout)
        self.assertEqual(last, (None, "[DONE]"))
        text = "".join(chunk["choices"][0]["text"] for _, chunk in chunks)
        self.assertEqual(text, self.text(max_tokens=8, seed=1).text)
        endless = [*command, json.dumps({**body, "max_tokens": ENDLESS})]
        with subprocess.Popen(endless, stdout=subprocess.PIPE, env=environment()) as curl:
            self.assertTrue(curl.stdout.readline().startswith(b"id: v1."))
            self.assertTrue(curl.stdout.readline().startswith(b"data: {"))
            self.assertEqual(self.grpc.load(TEXT)[0].slots_used, 1)
            curl.kill()
        self.assert_freed()


class ImagesTest(GatewayTest):
    def test_images_are_those_of_grpc(self):
        expected = self.grpc.generate_images(2, model=IMAGES, seed=9, temperature=0.5)
        reply = self.openai.images.generate(
            model=IMAGES, prompt="", n=2, size="28x28", response_format="b64_json", extra_body={"seed": 9, "temperature": 0.5}
        )
        pictures = [np.array(Image.open(io.BytesIO(base64.b64decode(image.b64_json)))) for image in reply.data]
        self.assertTrue(np.array_equal(np.array(pictures), expected))

    def test_what_would_be_another_image_is_refused(self):
        good = {"model": IMAGES, "prompt": ""}
        for body, code, param in (
            ({**good, "prompt": "a seven"}, "UNSUPPORTED_PARAMETER", "prompt"),
            ({**good, "size": "1024x1024"}, "UNSUPPORTED_PARAMETER", "size"),
            ({**good, "response_format": "url"}, "UNSUPPORTED_PARAMETER", "response_format"),
            ({**good, "quality": "hd"}, "UNSUPPORTED_PARAMETER", "quality"),
            ({**good, "stream": True}, "UNSUPPORTED_PARAMETER", "stream"),
            ({**good, "n": 65}, "INVALID_PARAMETER", "n"),
            ({**good, "seed": "a"}, "INVALID_PARAMETER", "seed"),
            ({**good, "temperature": -1}, "INVALID_SAMPLING", "temperature"),
            ({**good, "model": TEXT}, "INVALID_PARAMETER", "model"),
        ):
            with self.subTest(body):
                self.refused("/v1/images/generations", body, 400, code, param)


class SessionsTest(GatewayTest):
    def post(self, path, **body):
        status, _, answer = self.fetch("POST", f"/rivulet/v1/sessions{path}", {"model": TEXT, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def listed(self):
        return {one["id"] for one in self.fetch("GET", f"/rivulet/v1/sessions?model={TEXT}")[2]["data"]}

    def test_a_session_goes_on_forks_and_rewinds_as_over_grpc(self):
        with self.grpc.open_session(model=TEXT, seed=11) as expected:
            opened = self.post("", seed=11, idle_timeout=60)
            self.assertEqual((opened["position"], opened["seed"], opened["idle_timeout"]), (0, 11, 60.0))
            at = f"/{opened['id']}"
            expected.append(PROMPT, mark="begin")
            appended = self.post(f"{at}/append", prompt=PROMPT, mark="begin")
            self.assertEqual((appended["position"], appended["marks"]), (len(PROMPT), {"begin": len(PROMPT)}))
            first = self.post(f"{at}/generate", max_tokens=20)
            self.assertEqual(first["choices"][0]["text"], expected.generate(max_tokens=20).collect().text)
            self.assertEqual(first["session"], {"id": opened["id"], "position": len(PROMPT) + 20})
            self.assertEqual(self.streamed(opened["id"], "x"), (expected.generate("x", max_tokens=10).collect().text, len(PROMPT) + 31))
            forks = self.post(f"{at}/fork", count=2, seed=5, position=len(PROMPT) + 20)["data"]
            self.assertEqual([(fork["position"], fork["seed"]) for fork in forks], [(len(PROMPT) + 20, 5), (len(PROMPT) + 20, 6)])
            self.assertLessEqual({opened["id"], forks[0]["id"], forks[1]["id"]}, self.listed())
            self.assertEqual(self.post(f"{at}/rewind", mark="begin")["position"], len(PROMPT))
            again = self.post(f"{at}/generate", max_tokens=20)
            self.assertEqual(again["choices"][0]["text"], first["choices"][0]["text"])
            self.assertEqual(self.post(f"{at}/generate", max_tokens=5, position=len(PROMPT))["choices"][0]["text"], first["choices"][0]["text"][:5])
            for id in (opened["id"], forks[0]["id"], forks[1]["id"]):
                self.assertEqual(self.fetch("DELETE", f"/rivulet/v1/sessions/{id}?model={TEXT}")[0], 200)
            self.assertTrue(self.listed().isdisjoint({opened["id"], forks[0]["id"], forks[1]["id"]}))

    def streamed(self, id, prompt):
        """Text of a stream on the session, and the position that its last chunk names."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=PATIENCE)) as connection:
            body = json.dumps({"model": TEXT, "prompt": prompt, "max_tokens": 10, "stream": True})
            connection.request("POST", f"/rivulet/v1/sessions/{id}/generate", body, {"content-type": "application/json"})
            *values, last = [value for _, value in events(connection.getresponse().read().decode())]
        self.assertEqual(last, "[DONE]")
        return "".join(value["choices"][0]["text"] for value in values), values[-1]["session"]["position"]

    def test_errors_of_sessions(self):
        id = self.post("")["id"]
        for path, body, status, code, param in (
            ("", {"seed": -1}, 400, "INVALID_PARAMETER", "seed"),
            ("", {"idle_timeout": 0}, 400, "IDLE_TIMEOUT_OUT_OF_RANGE", "idle_timeout"),
            ("", {"colour": 1}, 400, "UNSUPPORTED_PARAMETER", "colour"),
            ("/nonsense/append", {}, 400, "SESSION_ID_MALFORMED", "session_id"),
            (f"/{'1' * 32}/append", {}, 404, "SESSION_NOT_FOUND", "session_id"),
            (f"/{id}/append", {"prompt": 5}, 400, "INVALID_PARAMETER", "prompt"),
            (f"/{id}/generate", {"n": 2}, 400, "UNSUPPORTED_PARAMETER", "n"),
            (f"/{id}/generate", {"max_tokens": 0}, 400, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens"),
            (f"/{id}/generate", {"max_tokens": 10**30}, 400, "MAX_TOKENS_OUT_OF_RANGE", "max_tokens"),
            (f"/{id}/generate", {"position": 99}, 400, "POSITION_OUT_OF_RANGE", "position"),
            (f"/{id}/rewind", {}, 400, "INVALID_PARAMETER", "position"),
            (f"/{id}/rewind", {"mark": "a"}, 404, "MARK_NOT_FOUND", "mark"),
            (f"/{id}/fork", {"count": 0}, 400, "INVALID_PARAMETER", "count"),
        ):
            with self.subTest(path=path, body=body):
                self.refused(f"/rivulet/v1/sessions{path}", {"model": TEXT, **body}, status, code, param)


if __name__ == "__main__":
    unittest.main()
