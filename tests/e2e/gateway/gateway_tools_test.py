# SPDX-License-Identifier: Apache-2.0
"""Chats whose replies have parts: reasoning, content, tool calls. A server that follows a script says what a model would; openai, LangChain,
pydantic-ai and litellm call the gateway, unmodified. What the small model of the zoo says under constraints is in forms_test.py."""

import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest
import zlib

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401
from gateway import PATIENCE, Gateway, events

import grpc
import httpx
import jsonschema
import openai

from command import SOURCE_DIR, ZOO, Server
from fake_server import FakeServer, failing, part
from rivulet.v1 import inference_pb2

APPS = SOURCE_DIR / "build/apps/bin/python"
TEMPLATE = (ZOO / "shakespeare-chat/chat_template.jinja").read_text()
RESPONSE = json.loads((ZOO / "shakespeare-chat/tokenizer_config.json").read_text())["response_template"]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather in a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}]  # fmt: skip
ASKED = [{"role": "user", "content": "How is the weather?"}]


def call(city, days=None):
    given = f"<parameter=city>\n{city}\n</parameter>\n" + (f"<parameter=days>\n{days}\n</parameter>\n" if days else "")
    return f"<tool_call>\n<function=get_weather>\n{given}</function>\n</tool_call>"


THOUGHT = "Two cities: \"a < b\".\n"
SAID = "Let me look.\n\n"
TWO_CALLS = f"{THOUGHT}</think>\n\n{SAID}{call('Paris', 2)}\n{call('Žilina')}"


class Model:
    """What the scripted server says: the texts one after another, each in parts of random size. name: of the model, whose description the
    gateway keeps."""

    def __init__(self, server, *texts, finish="FINISH_REASON_STOP_TOKEN", response=RESPONSE, template=TEMPLATE, at_once=False, **usage):
        self.texts, self.finish, self.usage, self.source = list(texts), finish, {"prompt_tokens": 5, **usage}, random.Random(1)
        self.name = "m" if (response, template) == (RESPONSE, TEMPLATE) else f"m{zlib.crc32(repr((response, template)).encode())}"
        server.generate = self.generate_at_once if at_once else self.generate
        model = inference_pb2.GetModelReply(
            summary={"name": self.name}, config_json="{}", chat_template=template, response_template=json.dumps(response) if response else "",
            content={"text": {}}, limits={"max_num_samples": 8, "max_tokens": 100},
        )  # fmt: skip
        server.model = lambda request, context: model

    def generate_at_once(self, context):
        text = self.texts.pop(0)
        yield part(seed=1, fingerprint=7, tokens=range(len(text)), text=text, finish={"reason": self.finish})
        yield part(usage={**self.usage, "completion_tokens": len(text)})

    def generate(self, context):
        text, at = self.texts.pop(0), 0
        first = {"seed": 1, "fingerprint": 7}
        while at < len(text):
            size = self.source.randint(1, 9)
            yield part(first_position=at, tokens=range(at, min(at + size, len(text))), text=text[at : at + size], **first)
            at, first = at + size, {}
        yield part(first_position=len(text), finish={"reason": self.finish}, **first)
        yield part(usage={**self.usage, "completion_tokens": len(text)})


def collected(events):
    """A message of the deltas of a stream, its finish reason and its error."""
    message, finish, error = {}, None, None
    for choice in (choice for _, chunk in events if chunk != "[DONE]" for choice in chunk["choices"]):
        for name, value in choice["delta"].items():
            message[name] = message[name] + value if name in message else value
        finish, error = choice["finish_reason"] or finish, choice.get("parsing_error", error)
    return message, finish, error


class ToolsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(FakeServer())
        cls.gateway = cls.enterClassContext(Gateway(cls.server.target, "--ignore-parameters", "reasoning_effort,vendor"))
        cls.openai = cls.enterClassContext(openai.OpenAI(base_url=f"{cls.gateway.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE))

    def chat(self, **options):
        return self.openai.chat.completions.create(**{"model": "m", "messages": ASKED, "seed": 1, **options})

    def streamed(self, last_id=None, **body):
        headers = {"last-event-id": last_id} if last_id else {}
        answer = httpx.post(f"{self.gateway.url}/v1/chat/completions", headers=headers, timeout=PATIENCE,
                            json={"model": "m", "messages": ASKED, "seed": 1, "stream": True, **body})  # fmt: skip
        self.assertEqual(answer.status_code, 200, answer.text)
        return events(answer.text)

    def asked(self):
        """The last request to the server."""
        return self.server.asked()[-1].request

    def test_a_message_has_the_parts(self):
        Model(self.server, TWO_CALLS, reasoning_tokens=4, drafted_tokens=9, accepted_tokens=7)
        reply = self.chat(tools=TOOLS, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
        [choice] = reply.choices
        self.assertEqual((choice.message.content, choice.finish_reason), ("Let me look.", "tool_calls"))
        self.assertEqual((choice.message.reasoning_content, choice.message.reasoning), (THOUGHT.strip(), THOUGHT.strip()))
        calls = [(one.type, one.function.name, json.loads(one.function.arguments)) for one in choice.message.tool_calls]
        self.assertEqual(calls, [("function", "get_weather", {"city": "Paris", "days": 2}), ("function", "get_weather", {"city": "Žilina"})])
        self.assertEqual(len({one.id for one in choice.message.tool_calls}), 2)
        details = reply.usage.completion_tokens_details
        self.assertEqual((details.reasoning_tokens, details.accepted_prediction_tokens, details.rejected_prediction_tokens), (4, 7, 2))
        self.assertEqual(self.asked().reasoning, inference_pb2.Reasoning(end="</think>"))
        self.assertFalse(self.asked().HasField("constraint"))
        self.assertTrue(self.asked().text.endswith("<|im_start|>assistant\n<think>\n"))

    def test_a_stream_adds_up_to_the_message_wherever_it_is_cut(self):
        options = {"tools": TOOLS, "chat_template_kwargs": {"enable_thinking": True}}
        Model(self.server, TWO_CALLS)
        whole = self.chat(tools=TOOLS, extra_body={"chat_template_kwargs": {"enable_thinking": True}}).choices[0].message.model_dump()
        Model(self.server, TWO_CALLS)
        sent = self.streamed(**options)
        message, finish, error = added = collected(sent)
        self.assertEqual((finish, error), ("tool_calls", None))
        for name in ("content", "reasoning_content", "reasoning"):
            self.assertEqual(message[name], whole[name])
        calls = [{**one, "id": ""} for one in message["tool_calls"]]
        self.assertEqual(calls, [{"index": index, **one, "id": ""} for index, one in enumerate(whole["tool_calls"])])
        self.assertGreater(len(sent), 5)
        for at, (id, _) in enumerate(sent[:-2]):
            Model(self.server, TWO_CALLS, at_once=at % 2 == 0)
            self.assertEqual(collected([*sent[: at + 1], *self.streamed(id, **options)]), added)

    def test_a_conversation_with_calls_and_results_is_rendered(self):
        Model(self.server, "It is 20 degrees.")
        calls = [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris", "days": 2}'}}]
        messages = [*ASKED, {"role": "assistant", "content": None, "tool_calls": calls, "reasoning_content": "Paris."},
                    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "20 degrees"}]}]  # fmt: skip
        self.assertEqual(self.chat(messages=messages, tools=TOOLS).choices[0].message.content, "It is 20 degrees.")
        told = f"<think>\nParis.\n</think>\n\n{call('Paris', 2)}<|im_end|>\n<|im_start|>user\n<tool_response>\n20 degrees\n</tool_response><|im_end|>\n"
        self.assertIn(told, self.asked().text)
        self.assertIn('"get_weather"', self.asked().text)

    def test_without_tools_a_call_is_text(self):
        for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            Model(self.server, call("Paris"))
            [choice] = self.chat(**options).choices
            self.assertEqual((choice.message.content, choice.message.tool_calls, choice.finish_reason), (call("Paris"), None, "stop"))
            self.assertNotIn("get_weather", self.asked().text)

    def test_a_text_that_cannot_be_divided_is_content_and_says_why(self):
        cut = f"{SAID}{call('Paris')}\n<tool_call>\n<function=get_weather>\n<parameter=city>\nR"
        for stream in (False, True):
            Model(self.server, cut, finish="FINISH_REASON_LENGTH")
            if stream:
                message, finish, error = collected(self.streamed(tools=TOOLS))
            else:
                [choice] = self.chat(tools=TOOLS).choices
                message, finish, error = choice.message.model_dump(), choice.finish_reason, choice.parsing_error
            self.assertEqual(message["content"], SAID.strip() + cut[cut.rindex("<tool_call>") :])
            self.assertEqual((len(message["tool_calls"]), finish), (1, "length"))
            self.assertEqual(error["code"], "RESPONSE_PARSE_FAILED")
            self.assertIn("tool_calls: the reply was cut off within it", error["message"])

    def test_a_pattern_that_does_not_end_costs_its_own_reply_only(self):
        hostile = {"start_anchor": "A:", "fields": {"thinking": {"open_pattern": "x(a|aa)+b"}, "content": {}}}
        said = "x" + "a" * 40 + "c, and so on"
        model = Model(self.server, said, response=hostile)
        message, finish, error = collected(self.streamed(model=model.name))
        self.assertEqual((message["content"], finish, error["code"]), (said, "stop", "RESPONSE_PARSE_TOO_HARD"))
        Model(self.server, "x", response=RESPONSE)
        self.assertEqual(self.chat().choices[0].message.content, "x")

    def test_constraints_begin_behind_the_reasoning(self):
        def constraint(thinks, **options):
            Model(self.server, "")
            self.chat(extra_body={"chat_template_kwargs": {"enable_thinking": True}} if thinks else {}, **options)
            return self.asked().constraint

        json_object = {"response_format": {"type": "json_object"}}
        self.assertEqual(constraint(False, **json_object), inference_pb2.Constraint(json_object=True))
        self.assertEqual(constraint(True, **json_object), inference_pb2.Constraint(json_object=True, after=["</think>"]))
        required = constraint(True, tools=TOOLS, tool_choice="required")
        self.assertEqual(required.after, ["</think>"])
        self.assertIn("get_weather", required.structural_tag)
        self.assertEqual(list(self.asked().stop.strings), [])
        # A reply that may begin its reasoning itself.
        with_open = TEMPLATE.replace("'<|im_start|>assistant\\n<think>\\n' + ('' if enable_thinking is defined and enable_thinking else '\\n</think>\\n\\n')", "'<|im_start|>assistant\\n'")
        self.assertNotEqual(with_open, TEMPLATE)
        self.chat(model=Model(self.server, "", template=with_open).name, **json_object)
        tag = json.loads(self.asked().constraint.structural_tag)["format"]
        self.assertEqual([one["type"] for one in tag["elements"]], ["optional", "json_schema"])
        self.assertEqual(self.asked().reasoning, inference_pb2.Reasoning(begin="<think>", end="</think>"))

    def test_parameters_of_vllm(self):
        model = Model(self.server, "", response=None)
        self.chat(model=model.name, extra_body={"min_tokens": 3, "include_stop_str_in_output": True, "skip_special_tokens": True, "reasoning_effort": "low", "vendor": {}}, stop="x")
        self.assertEqual(self.asked().stop, inference_pb2.StopConditions(strings=["x"], include_string=True, min_tokens=3))
        self.assertTrue(self.asked().skip_special_tokens)
        Model(self.server, "")
        self.chat(extra_body={"add_generation_prompt": False, "skip_special_tokens": True})
        self.assertFalse(self.asked().skip_special_tokens, "they may tell the parts of a reply apart")
        self.assertTrue(self.asked().text.endswith("<|im_end|>\n"))
        Model(self.server, " night?")
        unfinished = [*ASKED, {"role": "assistant", "content": "What of the  "}]
        reply = self.chat(messages=unfinished, extra_body={"continue_final_message": True})
        self.assertTrue(self.asked().text.endswith("\n</think>\n\nWhat of the  "), self.asked().text)
        self.assertEqual(reply.choices[0].message.content, " night?")

    def test_drafts_and_what_they_are_taken_from(self):
        message = inference_pb2.Speculation
        parts = {"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
        for options, expected in (
            ({"rivulet_speculation": "off"}, message(drafts=0)), ({"rivulet_speculation": 3}, message(drafts=3)), ({}, message()),
            ({"prediction": parts}, message(text="ab")), ({"prediction": {"type": "content", "content": "c"}, "rivulet_speculation": "off"}, message(drafts=0, text="c")),
        ):  # fmt: skip
            Model(self.server, "")
            self.chat(extra_body=options)
            self.assertEqual(self.asked().speculation, expected)
        Model(self.server, "")
        self.openai.completions.create(model="m", prompt="a", extra_body={"rivulet_speculation": 2})
        self.assertEqual(self.asked().speculation, message(drafts=2))
        for field, param in (("speculation.drafts", "rivulet_speculation"), ("speculation.prediction", "prediction"), ("speculation.text", "prediction")):
            self.server.generate = lambda context: failing(context, grpc.StatusCode.INVALID_ARGUMENT, "R", field, message=f"{field} is wrong")
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat()
            self.assertEqual((caught.exception.param, caught.exception.body["message"]), (param, f"{param} is wrong"))

    def test_refusals(self):
        def named(**function):
            return [{"type": "function", "function": {"name": "f", **function}}]

        python_calls = {**RESPONSE, "fields": {**RESPONSE["fields"], "tool_calls": {"open": "[", "close": "]", "content": "python-call-list"}}}
        strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
        for response, options, param, code, words in (
            (None, {"tools": TOOLS}, "tools", "UNSUPPORTED_PARAMETER", "no response template"),
            ({"version": 2}, {}, "model", "RESPONSE_TEMPLATE_INVALID", "version 1"),
            (python_calls, {"tools": TOOLS, "tool_choice": "required"}, "tool_choice", "UNSUPPORTED_PARAMETER", "in a form that constraints do not have"),
            (python_calls, {"tools": strict}, "tools[0].function.strict", "UNSUPPORTED_PARAMETER", "constraints"),
            (python_calls, {"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls", "UNSUPPORTED_PARAMETER", "constraints"),
            (RESPONSE, {"tools": named(name="a b")}, "tools[0].function.name", "INVALID_PARAMETER", "a b"),
            (RESPONSE, {"tools": named() * 2}, "tools[1].function.name", "INVALID_PARAMETER", "no other tool's"),
            (RESPONSE, {"tools": named(parameters=[])}, "tools[0].function.parameters", "INVALID_PARAMETER", "[]"),
            (RESPONSE, {"tools": [{"type": "web_search"}]}, "tools[0].type", "UNSUPPORTED_PARAMETER", "web_search"),
            (RESPONSE, {"tools": TOOLS, "tool_choice": "all"}, "tool_choice", "INVALID_PARAMETER", "all"),
            (RESPONSE, {"tool_choice": "required"}, "tool_choice", "INVALID_PARAMETER", "no tools"),
            (RESPONSE, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name", "INVALID_PARAMETER", "g"),
            (RESPONSE, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]},
             "messages[0].tool_calls[0].function.arguments", "INVALID_PARAMETER", "[1]"),
            (RESPONSE, {"messages": [{"role": "user", "content": None}]}, "messages[0].content", "INVALID_PARAMETER", "null"),
            (RESPONSE, {"extra_body": {"chat_template_kwargs": {"enable_thnking": True}}}, "chat_template_kwargs.enable_thnking", "UNSUPPORTED_PARAMETER", "does not read it"),
            (RESPONSE, {"prediction": {"type": "content", "content": 3}}, "prediction.content", "INVALID_PARAMETER", "got 3"),
            (RESPONSE, {"prediction": {"type": "tokens", "content": "a"}}, "prediction.type", "UNSUPPORTED_PARAMETER", '"tokens"'),
            (RESPONSE, {"prediction": {"type": "content", "content": "a", "text": "a"}}, "prediction.text", "UNSUPPORTED_PARAMETER", "not supported"),
            (RESPONSE, {"extra_body": {"rivulet_speculation": "fast"}}, "rivulet_speculation", "INVALID_PARAMETER", "'fast'"),
            (RESPONSE, {"extra_body": {"rivulet_speculation": True, "prediction": {"type": "content", "content": "a"}}}, "rivulet_speculation", "INVALID_PARAMETER", "True"),
            (RESPONSE, {"extra_body": {"continue_final_message": True, "add_generation_prompt": True}}, "continue_final_message", "INVALID_PARAMETER", "beside"),
        ):  # fmt: skip
            model = Model(self.server, "", response=response)
            with self.subTest(options):
                with self.assertRaises(openai.BadRequestError) as caught:
                    self.chat(model=model.name, **options)
                self.assertEqual((caught.exception.param, caught.exception.code), (param, code))
                self.assertIn(words, caught.exception.body["message"])

    def test_ignored_parameters_are_logged_once(self):
        with Gateway(self.server.target, "--ignore-parameters", "reasoning_effort") as gateway:
            body = {"model": "m", "messages": ASKED, "reasoning_effort": "low"}
            for _ in range(2):
                Model(self.server, "")
                self.assertEqual(httpx.post(f"{gateway.url}/v1/chat/completions", json=body, timeout=PATIENCE).status_code, 200)
            _, log = gateway.stop()
        self.assertEqual(log.count("the parameter reasoning_effort of a request is ignored"), 1)

    def test_the_applications_that_people_use(self):
        if not APPS.exists():
            self.skipTest("build/apps is missing; deploy/setup.sh --tests makes it")
        script = pathlib.Path(__file__).parent / "tools_apps.py"
        environment = {"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir(), "LANG": "C.UTF-8", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        for app in ("langchain", "pydantic-ai", "litellm"):
            Model(self.server, call("Paris"), call("Žilina", 2), "Fair in both.")
            with self.subTest(app):
                command = [APPS, script, app, f"{self.gateway.url}/v1"]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
                self.assertEqual((done.returncode, done.stdout), (0, "Fair in both. [('Paris', None), ('Žilina', 2)]\n"), done.stderr)


def tool(name, strict=False, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "strict": strict, "parameters": schema}}


class ZooTest(unittest.TestCase):
    """A small model that has never called a tool calls what it must."""

    CITY = {"type": "string", "enum": ["Paris", "Verona"]}
    TOOLS = [tool("send", to=CITY, urgent={"type": "boolean"}), tool("wait", days={"type": "integer", "minimum": 1, "maximum": 99})]

    @classmethod
    def setUpClass(cls):
        server = cls.enterClassContext(Server(ZOO / "shakespeare-chat", args=("--threads", "1", "--backend", "cpu")))
        gateway = cls.enterClassContext(Gateway(server.target))
        cls.openai = cls.enterClassContext(openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE))

    def chat(self, seed=1, **options):
        given = {"model": "shakespeare-chat", "messages": ASKED, "seed": seed, "max_tokens": 400, "tools": self.TOOLS, **options}
        return self.openai.chat.completions.create(**given)

    def check(self, choice, most):
        """Every call is of its schema."""
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertLessEqual(len(choice.message.tool_calls), most)
        for one in choice.message.tool_calls:
            [schema] = [given["function"]["parameters"] for given in self.TOOLS if given["function"]["name"] == one.function.name]
            jsonschema.validate(json.loads(one.function.arguments), schema)

    def test_required_calls_are_of_the_schemas(self):
        for seed in range(4):
            for thinks in (False, True):
                self.check(self.chat(seed, tool_choice="required", parallel_tool_calls=seed % 2 == 0, extra_body={
                    "chat_template_kwargs": {"enable_thinking": thinks}}, max_tokens=900).choices[0], 1 if seed % 2 else 99)  # fmt: skip

    def test_a_named_function_is_called_once(self):
        with self.openai.chat.completions.stream(model="shakespeare-chat", messages=ASKED, seed=2, max_tokens=400, tools=self.TOOLS,
                                                 tool_choice={"type": "function", "function": {"name": "wait"}}) as stream:  # fmt: skip
            choice = stream.get_final_completion().choices[0]
        self.check(choice, 1)
        self.assertEqual(choice.message.tool_calls[0].function.name, "wait")

    def test_strict_tools_are_called_as_their_schemas_say_or_not_at_all(self):
        """The model knows other tools, and calls them where it may."""
        strict = [tool("send", strict=True, to=self.CITY, urgent={"type": "boolean"}), tool("wait", strict=True, days={"type": "integer", "minimum": 1, "maximum": 99})]
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}
        for options in ({}, {"response_format": form}):
            called = 0
            for seed in range(5):
                choice = self.chat(seed, tools=strict, **options).choices[0]
                if choice.message.tool_calls:
                    called += 1
                    self.check(choice, 99)
                elif options:
                    self.assertIn(json.loads(choice.message.content), ("yes", "no"))
            self.assertGreater(called, 0)
        free = {one.function.name for seed in range(5) for one in self.chat(seed).choices[0].message.tool_calls or ()}
        self.assertIn("get_weather", free)

    def test_a_schema_that_is_not_enforced_is_refused_by_name(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tools=[tool("f", x={"type": "object", "propertyNames": {"format": "email"}})], tool_choice="required")
        self.assertEqual((caught.exception.code, caught.exception.param), ("CONSTRAINT_UNSUPPORTED", "tools"))
        self.assertIn("/tags/0/content/json_schema/properties/x/propertyNames", caught.exception.body["message"])


if __name__ == "__main__":
    unittest.main()
