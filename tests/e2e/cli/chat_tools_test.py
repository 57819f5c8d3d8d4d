# SPDX-License-Identifier: Apache-2.0
"""`rivulet chat` and `rivulet batch` with reasoning and tools. A server that follows a script says what a model would."""

import json
import pathlib
import tempfile

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

from command import ZOO, CommandTest, rivulet
from fake_server import ScriptedServer, part
from rivulet.v1 import inference_pb2, multiplex_pb2, session_service_pb2

TEMPLATE = (ZOO / "shakespeare-chat/chat_template.jinja").read_text()
RESPONSE = json.dumps(json.loads((ZOO / "shakespeare-chat/tokenizer_config.json").read_text())["response_template"])
MODEL = inference_pb2.GetModelReply(
    summary={"name": "m"}, config_json="{}", chat_template=TEMPLATE, response_template=RESPONSE, content={"text": {}}, limits={"slots": 1, "max_num_samples": 8},
)  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}}}]


def call(a, b):
    return f"<tool_call>\n<function=add>\n<parameter=a>\n{a}\n</parameter>\n<parameter=b>\n{b}\n</parameter>\n</function>\n</tool_call>"


class Model(ScriptedServer):
    """Says the texts, one after another, to sessions and to Multiplex. asks: the prompts."""

    def __init__(self, *texts):
        self.texts, self.asks, self.ids = list(texts), [], []
        session = {"session_id": "s", "seed": 5}
        super().__init__({
            "GetModel": lambda request, context: MODEL,
            "ListModels": lambda request, context: inference_pb2.ListModelsReply(models=[{"name": "m"}]),
            "OpenSession": lambda request, context: session_service_pb2.OpenSessionReply(session=session),
            "CloseSession": lambda request, context: session_service_pb2.CloseSessionReply(),
            "RewindSession": lambda request, context: session_service_pb2.RewindSessionReply(session=session),
            "Tokenize": self.tokenize, "Generate": self.generate, "Multiplex": self.multiplex,
        })  # fmt: skip

    def tokenize(self, request, context):
        self.asks.append(request.text)
        return inference_pb2.TokenizeReply(ids=request.text.encode())

    def parts(self):
        text, reason = self.texts.pop(0), "FINISH_REASON_STOP_TOKEN"
        if text.endswith("..."):
            text, reason = text[:-3], "FINISH_REASON_LENGTH"
        for at in range(0, len(text), 7):
            yield {"first_position": at, "tokens": [1] * len(text[at : at + 7]), "text": text[at : at + 7], **({} if at else {"seed": 5})}
        yield {"finish": {"reason": reason}, "usage": {"completion_tokens": len(text), "reasoning_tokens": 3, "drafted_tokens": 9, "accepted_tokens": 7}}

    def generate(self, request, context):
        for fields in self.parts():
            yield part(**fields)

    def multiplex(self, requests, context):
        for request in requests:
            if request.HasField("generate"):
                self.asks.append(request.generate)
                yield multiplex_pb2.MultiplexReply(parts=[{"key": request.key, **fields} for fields in self.parts()])


class ChatToolsTest(CommandTest):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "tools.json").write_text(json.dumps(TOOLS))

    def chat(self, server, *lines):
        command = ("chat", "--target", server.target, "--seed", "5", "--stats", "--speculate", "off")
        return self.succeeds(rivulet(*command, stdin="".join(f"{line}\n" for line in lines)))

    def test_a_call_is_printed_and_its_result_is_given_back(self):
        with Model(f"I see.\n\n{call(1, 2)}\n{call(3, 4)}", "3 and 7.", "Bye.") as server:
            saved = self.folder / "chat.json"
            result = self.chat(server, f"/tools {self.folder}/tools.json", "Add.", "/result 3", "/result 7", f"/save {saved}", "Bye.")
            self.assertEqual(result.out, 'I see.\ncall add {"a": 1, "b": 2}\ncall add {"a": 3, "b": 4}\n3 and 7.\nBye.\n')
            self.assertIn("/result TEXT", result.err)
            told = f"I see.\n{call(1, 2)}\n{call(3, 4)}<|im_end|>\n"
            results = "".join(f"<|im_start|>user\n<tool_response>\n{one}\n</tool_response><|im_end|>\n" for one in (3, 7))
            self.assertIn(told + results, server.asks[1])
            self.assertIn('"add"', server.asks[2])
        messages = json.loads(saved.read_text())
        self.assertEqual([one["role"] for one in messages["messages"]], ["user", "assistant", "tool", "tool", "assistant"])
        self.assertEqual(messages["tools"], TOOLS)
        with Model("Well.", "So.") as server:
            self.chat(server, f"/load {saved}", "/undo", "/result 3", "/result 8", "/undo", "And?")
            self.assertIn("\n8\n</tool_response>", server.asks[0])
            self.assertTrue(server.asks[1].endswith("</tool_call><|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"))

    def test_reasoning_goes_to_stderr(self):
        with Model("<think>Hm.</think>Yes.", "<tool_call>\n<function=add>...") as server:
            result = self.chat(server, "So?", f"/tools {self.folder}/tools.json", "And?")
        self.assertEqual(result.out, "Yes.\n<tool_call>\n<function=add>\n")
        self.assertIn("Hm.\n", result.err)
        self.assertRegex(result.err, r"tokens in [\d.]+ s, 7 of 9 drafts accepted\n")
        self.assertIn("tool_calls: the reply was cut off within it", result.err)

    def test_what_is_wrong_names_the_file(self):
        (self.folder / "bad.json").write_text('[{"type": "function"}]')
        with Model() as server:
            for line, *mentions in (
                (f"/tools {self.folder}/absent.json", "/tools", "absent.json"), (f"/tools {self.folder}/bad.json", "bad.json: tools[0].function: must be an object"),
                ("/tools", "/tools needs a file"), ("/result 3", "/result: no call waits"),
            ):  # fmt: skip
                self.fails(rivulet("chat", "--target", server.target, stdin=f"{line}\n"), 2, *mentions)

    def test_batch_divides_replies(self):
        ask = {"messages": [{"role": "user", "content": "Add."}], "tools": TOOLS, "rivulet_speculation": 3, "prediction": {"type": "content", "content": "p"}}
        lines = [
            {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {**ask, "chat_template_kwargs": {"enable_thinking": True}}}, ask,
            {**ask, "tools": []}, {**ask, "tool_choice": "all"}, ask,
        ]  # fmt: skip
        (self.folder / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        with Model(f"Hm.\n</think>\n\n{call(1, 2)}", call(3, 4), call(5, 6), "<tool_call>\n<function=add>...") as server:
            self.succeeds(rivulet("batch", self.folder / "in.jsonl", self.folder / "out.jsonl", "--target", server.target, "--at-once", "1"))
            reasoning, short = server.asks[0].reasoning, server.asks[1]
            self.assertEqual(short.speculation, inference_pb2.Speculation(drafts=3, text="p"))
        self.assertEqual(reasoning, inference_pb2.Reasoning(end="</think>"))
        self.assertIn('"add"', short.text)
        openai, called, plain, refused, cut = (json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines())
        body = openai["response"]["body"]
        message = body["choices"][0]["message"]
        self.assertEqual((message["content"], message["reasoning_content"], body["choices"][0]["finish_reason"]), (None, "Hm.", "tool_calls"))
        self.assertEqual(message["tool_calls"], [{"id": "call_1_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}])
        self.assertEqual(body["usage"]["completion_tokens_details"], {"reasoning_tokens": 3})
        self.assertEqual((called["text"], called["tool_calls"][0]["id"]), ("", "call_2_0"))
        self.assertEqual((plain["text"], "tool_calls" in plain), (call(5, 6), False))
        self.assertEqual((refused["error"]["reason"], refused["error"]["field"]), ("INVALID_PARAMETER", "tool_choice"))
        self.assertEqual((cut["text"], cut["parsing_error"]["code"]), ("<tool_call>\n<function=add>", "RESPONSE_PARSE_FAILED"))


if __name__ == "__main__":
    import unittest

    unittest.main()
