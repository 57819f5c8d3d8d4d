# SPDX-License-Identifier: Apache-2.0
"""Replies are divided as transformers' parser of response templates divides them: 2,000 texts, each cut at random places. And the same parts
come however a text was cut, with the text that the gateway passes on by itself."""

import json
import random
import re
import sys
import unittest
from dataclasses import asdict

from command import SOURCE_DIR

sys.path.append(str(SOURCE_DIR / "client/python/src/rivulet/gateway"))
try:
    from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS as serving
    from transformers.utils.chat_parsing import ResponseParser

    from worker import contents, replies, reply_parser, response_template
except ImportError as absent:
    print(f"skipped: there is no {absent.name} (deploy/setup.sh --tests)", file=sys.stderr)
    sys.exit(77)

TEXTS = 2000


def built_in(name):
    """A template of the server, which the models of the zoo do not need."""
    source = (SOURCE_DIR / "model/text/response_templates.cc").read_text().partition(f"{name}[] =")[2].partition(";\n")[0]
    return "".join(re.findall(r'R"json\((.*?)\)json"', source, re.DOTALL))


CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "a": {"type": "integer"}, "b": {"type": ["number", "null"]}, "c": {"anyOf": [{"type": "boolean"}, {"type": "array"}]},
        "d": {"type": "object", "nullable": True}, "e": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "g"}},
]  # fmt: skip


def template(start="A:", **fields):
    return {"version": 1, "defaults": {"role": "assistant"}, "start_anchor": start, "fields": fields}


XML = {
    "open_pattern": r"\s*<call>\s*<f=(?P<name>[^>\n]+)>", "close_pattern": r"</f>\s*</call>", "repeats": True, "content": "xml-inline",
    "content_args": {"tag_pattern": r"<p=(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>"}, "transform": CALL,
}  # fmt: skip
TEMPLATES = [
    template(thinking={"open": "<think>", "close": "</think>"}, tool_calls=XML, content={"close_pattern": r"\s*(?:<\|end\|>|<\|eot\|>)"}),
    template(thinking={"open": "<think>", "close": "</think>"}, content={"repeats": True, "join": "+"},
             tool_calls={"open": "<call>", "close": "</call>", "repeats": True, "content": "json", "transform": {"function": "{content}"}}),
    template(reasoning={"open": ["<th", "<think>"], "close": ["</think>", "</"]}, content={"content_args": {"strip": False}},
             tool_calls={"open": "<call>", "close": "</call>", "content": "python-call-list", "transform_each": True,
                         "transform": {"function": {"name": "{name}", "arguments": "{arguments}"}}}),
    template(start=["A:", "A:\n"], content={"open": "<think>", "close_pattern": r"</think>|\n\n$", "optional": False},
             tool_calls={"open_pattern": "<call>", "close": "</call>", "content": "json", "repeats": True, "transform": {"function": "{content}"},
                         "content_args": {"unquoted_keys": True, "string_delims": [["<|", "|>"]], "allow_non_json": True}}),
    template(content={}, flag={"open": "<p=", "close": ">", "content": "bool"}, number={"open": "<f=", "close_pattern": "(?=>)", "content": "int"},
             lines={"open": "<call>", "close": "</call>", "content": "kv-lines", "content_args": {"kv_sep": "=", "value_parser": {"name": "json"}}}),
    template(thinking={"open": "<think>", "close": "</think>"}, content={"repeats": True, "join": ""},
             tool_calls={**XML, "open_pattern": r"<call>\s*<f=(?P<name>[^>\n]+)>"}),
    template(thinking={"open": "<think>", "close": "</think>"}, content={"repeats": True, "join": "|", "content_args": {"strip": False}},
             tool_calls={**XML, "open_pattern": r"\s+<call>\s*<f=(?P<name>[^>\n]+)>"}),
    template(thinking={"open": "<think>", "close": "</think>", "repeats": True}, content={"open_pattern": r"(?<=</think>)\s*", "close": "<|end|>"},
             tool_calls={**XML, "content_args": {**XML["content_args"], "merge_duplicates": True, "value_parser": {"name": "text"}}}),
]  # fmt: skip
PIECES = [
    "<think>", "</think>", "<call>", "</call>", "<f=f>", "<f=g>", "</f>", "<|end|>", "<|eot|>", "\n", "\n\n", " ", "</", "<th", "é", "text", "{", "}",
    "<p=a>3</p>", "<p=a>4.0</p><p=a>x</p>", "<p=b>null</p>", "<p=b> 2.50 </p>", "<p=c>True</p>", "<p=c>[1]</p>", "<p=d>{\"k\": 1}</p>", "<p=e>\n1\n</p>",
    '{"name": "f", "arguments": {"a": "7", "b": "inf", "c": "0"}}', '{name: <|f|>, arguments: {d: <|null|>, e: <|"q"|>}}', "[f(a='1', e=\"\\u00e9\")]",
    "[g()]", "[f(b=-1.5e3, c=[1, {'k': None}]), g(x=true)]", "[f('1')]", "key = 1\nother=[2]", "<f=12>", "<f=x>", "<p=true>", "A:",
]  # fmt: skip
CALLS = ["<call><f=f>\n<p=a>3</p>\n<p=c>1</p></f></call>", '<call>{"name": "g", "arguments": {}}</call>', "<call>[f(a='5'), g()]</call>"]


def text_of(source):
    return "".join(source.choice(PIECES if source.random() < 0.8 else CALLS) for _ in range(source.randint(1, 9)))


def cut(source, text):
    ends = sorted(source.randint(0, len(text)) for _ in range(source.randint(0, 8)))
    return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)])]


def joined(events):
    """The events with the texts of each part in one, and without it where only the value counts."""
    found = []
    for kind, field, value in events:
        if kind == "text" and found and found[-1][:2] == ("text", field):
            value = found.pop()[2] + value
        found.append((kind, field, value))
    return found


def of_transformers(spec, prompt, texts, tools=()):
    """Events, the message, and whether it failed."""
    parser = ResponseParser(spec, prefix=prompt, tools=list(tools))
    names = {"region_open": "open", "region_chunk": "text", "region_close": "close"}
    events, message, failed = list(parser.initial_events), None, False
    try:
        for text in texts:
            events += parser.feed(text)
        message, last = parser.finalize()
        events += last
    except (ValueError, KeyError):
        failed = True
    return joined((names[one["type"]], one["field"], one.get("text", one.get("value"))) for one in events), message, failed


def of_ours(spec, prompt, texts):
    loaded = response_template.load(json.dumps(spec))
    events, failed = [], False

    def tell(event):
        value = event.value
        if event.kind == "close" and event.field.streams:
            value = contents.parse(next(one for one in joined(events)[::-1] if one[0] == "text")[2], "text", event.field.content_args) if (
                events[-1][0] == "text") else contents.parse("", "text", event.field.content_args)  # fmt: skip
        events.append((event.kind, event.field.name, value))

    parser = reply_parser.ReplyParser(loaded, reply_parser.State(loaded.implicit), tell)
    try:
        parser.feed(loaded.begun(prompt))
        for text in texts:
            parser.feed(text)
        parser.feed("", "end")
    except ValueError:
        failed = True
    return joined(events), failed


def divided(reading, prompt, texts, passes):
    """All deltas in one, with the errors. passes: as the gateway does with text that it need not give away."""
    (progress, passing), held, delta, errors = replies.begin(reading, prompt), "", {}, []
    for number, text in enumerate(texts):
        end, text = "end" if number == len(texts) - 1 else "", held + text
        if passes and passing is not None and (passing.ends or not end) and set(passing.watch).isdisjoint(text):
            held = replies.pass_on(passing, progress, text, delta)
            continue
        answer = replies.divide(reading, progress, text, end)
        held, progress = "", replies.Progress(**answer["progress"])
        passing = answer["passing"] and replies.Passing(**answer["passing"])
        for name, value in answer["delta"].items():
            delta[name] = delta[name] + value if name in delta and isinstance(value, (str, list)) else value
        errors += [answer["error"]["message"]] if answer["error"] else []
    return delta, errors


class PartsTest(unittest.TestCase):
    def test_events_are_those_of_transformers(self):
        source, failures = random.Random(44), 0
        for number in range(TEXTS):
            spec, prompt, text = source.choice(TEMPLATES), source.choice(["", "A:", "b A:\n<think>", "A:<think>", "A:x A:so </think>"]), text_of(source)
            pieces = cut(source, text)
            # It takes "<th" for an anchor before it has seen that "<think>" follows: so its result for the whole text counts.
            theirs, _, failed = of_transformers(spec, prompt, [text] if "reasoning" in spec["fields"] else pieces)
            ours, we_failed = of_ours(spec, prompt, pieces)
            with self.subTest(number=number, spec=json.dumps(spec), prompt=prompt, pieces=pieces):
                self.assertEqual(we_failed, failed)
                if not failed:  # it loses the events of the text that it fails in
                    self.assertEqual(ours, theirs)
            failures += failed
        self.assertLess(failures, TEXTS / 2)

    def test_parts_do_not_depend_on_how_a_text_was_cut(self):
        source, calls = random.Random(45), 0
        for number in range(TEXTS):
            spec, text = source.choice(TEMPLATES), text_of(source)
            reading = replies.Reading(json.dumps(spec), contents.casts_of(TOOLS), True)
            prompt = source.choice(["A:", "A:<think>\n"])
            whole = divided(reading, prompt, [text], False)
            calls += len(whole[0].get("tool_calls", ()))
            for passes in (False, True):
                pieces = cut(source, text)
                with self.subTest(number=number, spec=json.dumps(spec), prompt=prompt, pieces=pieces, passes=passes):
                    self.assertEqual(divided(reading, prompt, [*pieces, ""][: len(pieces) + number % 2], passes), whole)
        self.assertGreater(calls, TEXTS / 10)

    def test_white_space_does_not_depend_on_the_cut(self):
        for opens, pieces, content in (
            ("<call>", ["<think>so</think>", "\n\nHi", " you"], "Hi you"),
            (r"\s*<call>", ["Hi", "\n\n", "<call>no JSON</call>"], "Hi\n\n<call>no JSON</call>"),
        ):
            calls = {"open_pattern": opens, "close": "</call>", "content": "json"}
            spec = template(thinking={"open": "<think>", "close": "</think>"}, content={"repeats": True, "join": ""}, tool_calls=calls)
            for texts in (pieces, ["".join(pieces)]):
                found, _ = divided(replies.Reading(json.dumps(spec), {}, True), "A:", [*texts, ""], True)
                self.assertEqual(found["content"], content)

    def test_arguments_are_cast_as_by_transformers(self):
        values = ["1", "1.0", "1e400", "nan", " true ", "False", "0", "null", "None", "[1]", '{"k": 1}', "x", "-5", "1_0", "\n2"]
        spec = TEMPLATES[0]
        for key in "abcdez":
            for value in values:
                text = f"<call><f=f><p={key}>{value}</p></f></call>"
                _, message, _ = of_transformers(spec, "A:", [text], TOOLS)
                found = replies.divide(reading := replies.Reading(json.dumps(spec), contents.casts_of(TOOLS), True), replies.begin(reading, "A:")[0], text, "end")
                with self.subTest(key=key, value=value):
                    theirs = json.dumps(message["tool_calls"][0]["function"]["arguments"], ensure_ascii=False)
                    self.assertEqual(found["delta"]["tool_calls"][0]["function"]["arguments"], theirs)

    def test_the_built_in_templates_divide_what_their_models_write(self):
        """Qwen3.5 as transformers' own template for it; LFM2 as its model card, and vLLM's and llama.cpp's parsers, describe it."""
        qwen, lfm2 = built_in("kQwen35"), built_in("kLfm2")
        theirs = next(one for types, one in serving.items() if "qwen3_5" in types)
        calls = "<tool_call>\n<function=f>\n<parameter=a>\n3\n</parameter>\n<parameter=e>\n1\n</parameter>\n</function>\n</tool_call>"
        for prompt in ("<think>\n", "<think>\n\n</think>\n\n"):
            for text in ("Hm.\n</think>\n\nYes.", "Hm. </think>\n\nWait.\n\n" + calls + "\n" + calls, calls, "a < b", "<tool_call>\n<function=g>\n</function>\n</tool_call>"):
                prefix = f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{prompt}"
                _, message, failed = of_transformers(theirs, prefix, [text], TOOLS)
                self.assertFalse(failed)
                delta, errors = divided(replies.Reading(qwen, contents.casts_of(TOOLS), True), prefix, [text], True)
                with self.subTest(prompt=prompt, text=text):
                    self.assertEqual(errors, [])
                    self.assertEqual(delta.get("reasoning_content", ""), message.get("reasoning_content", ""))
                    self.assertEqual(delta.get("content", ""), message.get("content", ""))
                    functions = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in delta.get("tool_calls", ())]
                    self.assertEqual(functions, [(one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls", ())])
        text = '<think>Hm.</think><|tool_call_start|>[f(a=1, e="é"), g()]<|tool_call_end|>Checking the status.'
        delta, errors = divided(replies.Reading(lfm2, contents.casts_of(TOOLS), True), "<|im_start|>assistant\n", [text], True)
        functions = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in delta["tool_calls"]]
        self.assertEqual((delta["reasoning_content"], delta["content"], functions), ("Hm.", "Checking the status.", [("f", {"a": 1, "e": "é"}), ("g", {})]))


if __name__ == "__main__":
    unittest.main()
