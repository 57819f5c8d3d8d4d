# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions on the real server with OpenAI's client: on a small model with a tokenizer and a chat template, and on the
bundled text model. That one has no chat template, so the gateway's application runs in this process with a client that gives it one."""

import json
import pathlib
import socket
import tempfile
import threading
import types
import unittest
from typing import Any

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401
from gateway import PATIENCE, Gateway

import openai
import uvicorn

import rivulet
import text_models
from command import ZOO, Server
from rivulet.gateway import app
from rivulet.gateway.upstream.key_cache import GatewayClient

TEXT = "shakespeare-rfa"
TEMPLATE = (
    "{%- for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ message.role | upper }}:\n{{ message.content }}\n\n{% endfor %}{% if add_generation_prompt %}ASSISTANT:\n{% endif %}"
)
QUESTION = {"role": "user", "content": "Where art thou?"}
PROMPT = "USER:\nWhere art thou?\n\nASSISTANT:\n"


class TemplatedClient(GatewayClient):
    async def model(self, model="", **options):
        described = await super().model(model, **options)
        return types.SimpleNamespace(
            summary=described.summary, content=described.content, limits=described.limits, chat_template=TEMPLATE, special_tokens=(),
            response_template="",
        )


class Application:
    """The gateway's application on a free port, in a thread, for a `with` statement."""

    def __init__(self, target):
        async def connect():
            return TemplatedClient(target)

        self.started = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        config = uvicorn.Config(app.create(connect, self.started.set), http="h11", ws="none", log_level="warning", access_log=False)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})

    def __enter__(self):
        self.thread.start()
        if not self.started.wait(PATIENCE):
            raise RuntimeError("the application did not start")
        return self

    def __exit__(self, *exception):
        self.server.should_exit = True
        self.thread.join()
        self.listener.close()


class ChatTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = cls.enterClassContext(Server(ZOO / TEXT, args=("--threads", "1", "--backend", "cpu")))
        application = cls.enterClassContext(Application(server.target))
        cls.grpc = cls.enterClassContext(rivulet.Client(server.target))
        cls.openai = cls.enterClassContext(
            openai.OpenAI(base_url=f"{application.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE)
        )

    def chat(self, messages=(QUESTION,), **options):
        return self.openai.chat.completions.create(model=TEXT, messages=list(messages), **options)

    def expected(self, prompt=PROMPT, **options):
        return self.grpc.generate(prompt, model=TEXT, **options).collect()

    def test_a_conversation_is_continued_after_its_template(self):
        reply = self.chat(n=2, seed=3, max_completion_tokens=30)
        expected = self.expected(num_samples=2, seed=3, max_tokens=30)
        self.assertEqual([choice.message.content for choice in reply.choices], [sample.text for sample in expected.samples])
        self.assertEqual({choice.message.role for choice in reply.choices}, {"assistant"})
        self.assertEqual([choice.finish_reason for choice in reply.choices], ["length"] * 2)
        self.assertEqual((reply.object, reply.usage.prompt_tokens, reply.usage.completion_tokens), ("chat.completion", len(PROMPT), 60))
        developer = {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief."}]}
        text = self.chat([developer, QUESTION], seed=3, max_tokens=5).choices[0].message.content
        self.assertEqual(text, self.expected("SYSTEM:\nBe brief.\n\n" + PROMPT, seed=3, max_tokens=5).text)

    def test_a_stream_begins_with_the_role_and_ends_with_the_usage(self):
        expected = self.expected(seed=4, max_tokens=200, stop=["\n"]).samples[0]
        chunks = list(self.chat(seed=4, max_tokens=200, stop="\n", stream=True, stream_options={"include_usage": True}))
        deltas = [choice for chunk in chunks for choice in chunk.choices]
        self.assertEqual((deltas[0].delta.role, deltas[0].delta.content), ("assistant", ""))
        self.assertEqual("".join(choice.delta.content or "" for choice in deltas), expected.text)
        self.assertEqual([choice.finish_reason for choice in deltas if choice.finish_reason], ["stop"])
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.prompt_tokens), ([], len(PROMPT)))
        self.assertEqual({chunk.object for chunk in chunks}, {"chat.completion.chunk"})

    def test_logprobs(self):
        expected = self.expected(seed=5, max_tokens=6, logprobs=True, top_logprobs=2).samples[0]
        for stream in (False, True):
            reply = self.chat(seed=5, max_tokens=6, logprobs=True, top_logprobs=2, stream=stream)
            choices = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
            content = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
            self.assertEqual("".join(entry.token for entry in content), expected.text)
            self.assertEqual([entry.logprob for entry in content], expected.logprobs.tolist())
            self.assertEqual([entry.bytes for entry in content], [list(entry.token.encode()) for entry in content])
            top = [[(one.token, one.logprob) for one in entry.top_logprobs] for entry in content]
            self.assertEqual(top, [list(zip(entry.texts, entry.logprobs.tolist())) for entry in expected.top_logprobs])

    def test_tokens_of_a_conversation_are_those_that_a_chat_feeds(self):
        body = {"model": TEXT, "messages": [QUESTION]}
        found = self.openai.post(str(self.openai.base_url.join("/tokenize")), body=body, cast_to=dict[str, Any])
        self.assertEqual(found["tokens"], self.grpc.tokenize(PROMPT, model=TEXT, add_special_tokens=False).ids.tolist())
        self.assertEqual(found["count"], self.chat(max_tokens=1).usage.prompt_tokens)
        with self.assertRaises(openai.BadRequestError) as caught:
            body["messages"] = [{"role": "user", "content": "\u00e9"}]
            self.openai.post(str(self.openai.base_url.join("/tokenize")), body=body, cast_to=dict[str, Any])
        self.assertEqual((caught.exception.code, caught.exception.param), ("TEXT_NOT_IN_ALPHABET", "messages"))
        self.assertIn("messages, as the chat template writes them: the text holds U+00E9 at byte 6,", caught.exception.message)

    def test_the_next_turn_feeds_only_what_is_new(self):
        first = {"role": "user", "content": "A question that no other test asks. " * 4}
        answer = self.chat([first], seed=6, max_tokens=10).choices[0].message
        turns = [first, {"role": "assistant", "content": answer.content}, QUESTION]
        usage = self.chat(turns, seed=6, max_tokens=1).usage
        fed = usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
        new = len(answer.content) + len("\n\n" + PROMPT)
        self.assertEqual(fed, new + 1)  # of the first prompt, the state before its last token is kept

    def test_bad_requests_name_the_parameter(self):
        tool = {"type": "function", "function": {"name": "f"}}
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
        for options, code, param in (
            ({"messages": []}, "INVALID_PARAMETER", "messages"),
            ({"messages": ["a"]}, "INVALID_PARAMETER", "messages[0]"),
            ({"messages": [{"content": "a"}]}, "PARAMETER_MISSING", "messages[0].role"),
            ({"messages": [QUESTION, image]}, "INVALID_PARAMETER", "messages[1].content[0]"),
            ({"messages": [{**QUESTION, "tool_calls": [tool]}]}, "UNSUPPORTED_PARAMETER", "messages[0].tool_calls"),
            ({"messages": [{"role": "tool", "content": "a"}]}, "CHAT_TEMPLATE_REFUSED", "messages"),
            ({"tools": [tool]}, "UNSUPPORTED_PARAMETER", "tools"),
            ({"response_format": {"type": "xml"}}, "UNSUPPORTED_PARAMETER", "response_format.type"),
            ({"max_tokens": 3, "max_completion_tokens": 3}, "INVALID_PARAMETER", "max_tokens"),
            ({"messages": [{"role": "user", "content": "\u00e9"}]}, "TEXT_NOT_IN_ALPHABET", "messages"),
            ({"max_completion_tokens": 10**30}, "MAX_TOKENS_OUT_OF_RANGE", "max_completion_tokens"),
            ({"max_completion_tokens": 0}, "MAX_TOKENS_OUT_OF_RANGE", "max_completion_tokens"),
            ({"top_logprobs": 2}, "INVALID_PARAMETER", "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "INVALID_PARAMETER", "top_logprobs"),
            ({"reasoning_effort": "low"}, "UNSUPPORTED_PARAMETER", "reasoning_effort"),
            ({"n": 65}, "NUM_SAMPLES_OUT_OF_RANGE", "n"),
        ):
            with self.subTest(options), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**options)
            self.assertEqual((caught.exception.code, caught.exception.param), (code, param))


class TemplateFileTest(unittest.TestCase):
    """A gateway that was given a template for models that came without."""

    PROMPT = "ROMEO:\nWhere art thou?\n\nJULIET:\n"

    @classmethod
    def setUpClass(cls):
        server = cls.enterClassContext(Server(ZOO / TEXT, ZOO / "mnist-linear", args=("--threads", "1", "--backend", "cpu")))
        gateway = cls.enterClassContext(Gateway(server.target, "--chat-template", ZOO / "dialogue.jinja"))
        cls.grpc = cls.enterClassContext(rivulet.Client(server.target))
        cls.openai = cls.enterClassContext(openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE))

    def test_models_of_text_have_it(self):
        kinds = {model: self.openai.models.retrieve(model).model_extra["rivulet"].get("chat_template") for model in (TEXT, "mnist-linear")}
        self.assertEqual(kinds, {TEXT: "file", "mnist-linear": None})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.chat.completions.create(model="mnist-linear", messages=[QUESTION])
        self.assertEqual(caught.exception.code, "NO_CHAT_TEMPLATE")

    def test_an_answer_ends_where_the_model_speaks_for_the_user(self):
        def spoken(seed, **options):
            choice = self.openai.chat.completions.create(model=TEXT, messages=[QUESTION], seed=seed, max_tokens=400, **options).choices[0]
            return choice.finish_reason, choice.message.content

        # The first of some seeds with which the model gives Romeo another speech.
        whole = ((seed, self.grpc.generate(self.PROMPT, model=TEXT, seed=seed, max_tokens=400).collect().text) for seed in range(200))
        seed, text = next((seed, text) for seed, text in whole if "\n\nROMEO:" in text)
        self.assertEqual(spoken(seed), ("stop", text.partition("\n\nROMEO:")[0]))
        self.assertEqual(spoken(seed, stop=[]), ("length", text), "the caller's own stop strings count instead")
        self.assertEqual(spoken(seed, stop=["\n"]), ("stop", text.partition("\n")[0]))


class TokenizerTest(unittest.TestCase):
    """A model whose tokens are pieces of words."""

    MODEL = "chatty"
    TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}<end>{% endfor %}"
    PROMPT = "<s>the band<end>"

    @classmethod
    def setUpClass(cls):
        folder = text_models.with_tokenizer("mamba2", pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())), cls.MODEL)
        config = {"bos_token": "<s>", "eos_token": "<end>", "chat_template": cls.TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        server = cls.enterClassContext(Server(folder, args=("--threads", "1")))
        gateway = cls.enterClassContext(Gateway(server.target))
        cls.grpc = cls.enterClassContext(rivulet.Client(server.target))
        cls.openai = cls.enterClassContext(openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE))

    def raw(self, id):
        return self.grpc.detokenize([id]).raw_bytes

    def test_the_template_and_its_special_tokens_are_the_models(self):
        self.assertEqual(self.openai.models.retrieve(self.MODEL).model_extra["rivulet"]["chat_template"], "model")
        given = self.grpc.tokenize(self.PROMPT, add_special_tokens=False).ids.tolist()
        self.assertEqual((given[0], given[-1]), (text_models.START, text_models.END))
        options = {"seed": 3, "max_tokens": 30}
        expected = self.grpc.generate(given, logprobs=True, top_logprobs=3, **options).collect().samples[0]
        for stream in (False, True):
            messages = [{"role": "user", "content": "the band"}]
            reply = self.openai.chat.completions.create(
                model=self.MODEL, messages=messages, logprobs=True, top_logprobs=3, stream=stream, **options
            )
            choices = [choice for chunk in reply for choice in chunk.choices] if stream else reply.choices
            texts = [choice.delta.content or "" for choice in choices] if stream else [choices[0].message.content]
            self.assertEqual("".join(texts), expected.text)
            content = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
            self.assertEqual([bytes(entry.bytes) for entry in content], [self.raw(id) for id in expected.tokens.tolist()])
            top = [[bytes(one.bytes) for one in entry.top_logprobs] for entry in content]
            self.assertEqual(top, [[self.raw(id) for id in entry.token_ids.tolist()] for entry in expected.top_logprobs])
            if not stream:
                self.assertEqual(reply.usage.prompt_tokens, len(given))

    def test_tokens_of_a_completion_have_texts_or_names(self):
        ids = [text_models.PIECES.index("Ġthe"), text_models.PIECES.index("Ã")]
        bias = {str(id): -100 for id in range(39) if id not in (*ids, 35)}  # 35 is not in the tokenizer
        reply = self.openai.completions.create(
            model=self.MODEL, prompt=[text_models.PIECES.index("the")], max_tokens=60, seed=1, logprobs=0, logit_bias=bias, echo=False,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )  # fmt: skip
        (choice,) = reply.choices
        names = {ids[0]: " the", ids[1]: "bytes:\\xc3", 35: "token_id:35"}
        self.assertEqual(choice.logprobs.tokens, [names[id] for id in choice.token_ids])
        self.assertEqual(set(choice.token_ids), set(names))
        lengths = {ids[0]: 4, ids[1]: 1, 35: 0}
        offsets = [sum(lengths[id] for id in choice.token_ids[:index]) for index in range(60)]
        self.assertEqual(choice.logprobs.text_offset, offsets)
        echoed = self.openai.completions.create(model=self.MODEL, prompt=[text_models.PIECES.index("the"), ids[0]], max_tokens=3, seed=1, echo=True)
        self.assertTrue(echoed.choices[0].text.startswith("the the"), echoed.choices[0].text)


if __name__ == "__main__":
    unittest.main()
