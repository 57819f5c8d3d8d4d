# SPDX-License-Identifier: Apache-2.0
"""/v1/chat/completions on the real server with OpenAI's client. No bundled model has a chat template, so the gateway's application
runs in this process with a client that gives one to the bundled text model."""

import socket
import threading
import types
import unittest

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401
from gateway import PATIENCE

import openai
import uvicorn

import rivulet
from command import ZOO, Server
from rivulet.gateway import app

TEXT = "shakespeare-rfa"
TEMPLATE = (
    "{%- for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ message.role | upper }}:\n{{ message.content }}\n\n{% endfor %}{% if add_generation_prompt %}ASSISTANT:\n{% endif %}"
)
QUESTION = {"role": "user", "content": "Where art thou?"}
PROMPT = "USER:\nWhere art thou?\n\nASSISTANT:\n"


class TemplatedClient(rivulet.AsyncClient):
    async def model(self, model="", **options):
        described = await super().model(model, **options)
        return types.SimpleNamespace(
            summary=described.summary, content=described.content, chat_template=TEMPLATE, special_tokens=()
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
            ({"response_format": {"type": "json_object"}}, "UNSUPPORTED_PARAMETER", "response_format"),
            ({"max_tokens": 3, "max_completion_tokens": 3}, "INVALID_PARAMETER", "max_tokens"),
            ({"max_completion_tokens": 0}, "MAX_TOKENS_OUT_OF_RANGE", "max_completion_tokens"),
            ({"top_logprobs": 2}, "INVALID_PARAMETER", "top_logprobs"),
            ({"logprobs": True, "top_logprobs": 21}, "INVALID_PARAMETER", "top_logprobs"),
            ({"reasoning_effort": "low"}, "UNSUPPORTED_PARAMETER", "reasoning_effort"),
            ({"n": 65}, "NUM_SAMPLES_OUT_OF_RANGE", "n"),
        ):
            with self.subTest(options), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**options)
            self.assertEqual((caught.exception.code, caught.exception.param), (code, param))


if __name__ == "__main__":
    unittest.main()
