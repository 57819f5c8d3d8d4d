# SPDX-License-Identifier: Apache-2.0
"""Replies in a given form, at every door: OpenAI's client, LangChain, instructor and pydantic-ai unmodified in front of the gateway, the
Python client, `rivulet generate` and `rivulet batch`, on the bundled chat model."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
from typing import Literal, Optional

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401
from gateway import PATIENCE, Gateway

import openai
from pydantic import BaseModel, Field

import rivulet
from command import BIN_DIR, SOURCE_DIR, ZOO, Server

MODEL = "shakespeare-chat"
MESSAGES = [{"role": "user", "content": "What news, my lord?"}]
APPS = SOURCE_DIR / "build/apps/bin/python"


class Person(BaseModel):
    name: str = Field(max_length=12)  # so that the small model comes to an end
    kind: Literal["lord", "lady"]
    age: Optional[int] = Field(ge=0, lt=100)


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "k": {"enum": [1, 2.5, None, "é"]}}, "required": ["name", "k"]}
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": {"type": "json_schema", "json_schema": {"const": 1}}, "end": ">"}}
TAG["format"]["content"] = {"type": "optional", "content": TAG["format"]["content"]}
BAD = {"type": "object", "properties": {"a/b": {"type": "array", "uniqueItems": True}}}
POINTER = 'at "/properties/a~1b/uniqueItems"'


def of_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


@unittest.skipUnless((BIN_DIR / "rivulet-grammar").exists(), "rivulet-grammar was not built: deploy/setup.sh --constraints")
class FormsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(ZOO / MODEL, args=("--threads", "1", "--backend", "cpu")))
        cls.gateway = cls.enterClassContext(Gateway(cls.server.target))
        cls.openai = cls.enterClassContext(openai.OpenAI(base_url=f"{cls.gateway.url}/v1", api_key="key", max_retries=0, timeout=PATIENCE))
        cls.grpc = cls.enterClassContext(rivulet.Client(cls.server.target))

    def chat(self, **options):
        return self.openai.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=400, **options)

    def test_openai_parses_into_a_class(self):
        for seed in range(5):
            done = self.openai.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Person, seed=seed, max_tokens=600)
            self.assertEqual(done.choices[0].finish_reason, "stop")
            self.assertIsInstance(done.choices[0].message.parsed, Person)
            with self.openai.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=Person, seed=seed, max_tokens=600) as stream:
                for _ in stream:
                    pass
                self.assertEqual(stream.get_final_completion().choices[0].message.parsed, done.choices[0].message.parsed)

    def test_every_form(self):
        text = self.chat(response_format={"type": "text"}, seed=1).choices[0].message.content
        self.assertEqual(self.chat(seed=1).choices[0].message.content, text)
        ends = {token: 8.0 for text in ('"', "}") for token in self.grpc.tokenize(text).ids.tolist()}  # the small model is talkative
        self.assertIsInstance(json.loads(self.chat(response_format={"type": "json_object"}, logit_bias=ends).choices[0].message.content), dict)
        self.assertIn(json.loads(self.chat(response_format=of_schema(SCHEMA), seed=1).choices[0].message.content)["k"], [1, 2.5, None, "é"])
        for given, check in (
            ({"json": SCHEMA}, lambda text: json.loads(text).keys() == {"name", "k"}), ({"regex": "[A-C]{3}"}, lambda text: set(text) <= set("ABC")),
            ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")), ({"json_object": True}, lambda text: text.startswith("{")),
            ({"structural_tag": TAG}, lambda text: text in ("<1>", "<>")), ({"structural_tag": json.dumps(TAG)}, lambda text: text in ("<1>", "<>")),
        ):  # fmt: skip
            answer = self.chat(extra_body={"structured_outputs": given}, seed=2).choices[0].message.content
            self.assertTrue(check(answer), (given, answer))
            done = self.openai.completions.create(model=MODEL, prompt="So:", max_tokens=400, seed=2, extra_body={"structured_outputs": given})
            self.assertTrue(check(done.choices[0].text), (given, done.choices[0].text))

    def test_what_is_not_enforced_is_refused_by_name(self):
        for options, param, code, words in (
            ({"response_format": of_schema(BAD)}, "response_format.json_schema.schema", "CONSTRAINT_UNSUPPORTED", POINTER),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "INVALID_PARAMETER", "null"),
            ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema", "UNSUPPORTED_PARAMETER", "not supported"),
            ({"response_format": {"type": "grammar"}}, "response_format.type", "UNSUPPORTED_PARAMETER", "grammar"),
            ({"extra_body": {"structured_outputs": {"grammar": "x"}}}, "structured_outputs.grammar", "UNSUPPORTED_PARAMETER", "not supported"),
            ({"extra_body": {"structured_outputs": {"regex": "a", "json": True}}}, "structured_outputs", "INVALID_PARAMETER", "got json, regex"),
            ({"extra_body": {"structured_outputs": {"regex": 1}}}, "structured_outputs.regex", "INVALID_PARAMETER", "1"),
            ({"extra_body": {"structured_outputs": {"regex": "a(?=b)"}}}, "structured_outputs.regex", "CONSTRAINT_UNSUPPORTED", "structured_outputs.regex, byte 1"),
            ({"extra_body": {"structured_outputs": {"structural_tag": 1}}}, "structured_outputs.structural_tag", "INVALID_PARAMETER", "a structural tag; got 1"),
            ({"extra_body": {"structured_outputs": {"structural_tag": {}}}}, "structured_outputs.structural_tag", "CONSTRAINT_UNSUPPORTED", "structured_outputs.structural_tag, at"),
            ({"extra_body": {"structured_outputs": {"choice": []}}}, "structured_outputs.choice", "CONSTRAINT_INVALID", "has 0 texts"),
            ({"response_format": {"type": "text"}, "extra_body": {"structured_outputs": {"choice": ["a"]}}}, "structured_outputs", "INVALID_PARAMETER", ""),
            ({"response_format": {"type": "json_object"}, "extra_body": {"ignore_eos": True}}, "ignore_eos", "CONSTRAINT_INVALID", "constraint"),
        ):  # fmt: skip
            with self.subTest(options), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**options)
            self.assertEqual((caught.exception.param, caught.exception.code), (param, code))
            self.assertIn(words, caught.exception.body["message"])

    def test_the_applications_that_people_use(self):
        if not APPS.exists():
            self.skipTest("build/apps is missing; deploy/setup.sh --tests makes it")
        script = pathlib.Path(__file__).parent / "forms_apps.py"
        environment = {"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir(), "LANG": "C.UTF-8"}
        done = subprocess.run([APPS, script, f"{self.gateway.url}/v1", MODEL], env=environment, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split(), ["langchain", "instructor", "pydantic-ai"])

    def test_the_python_client(self):
        def generate(constraint, **options):
            return self.grpc.generate("So:", constraint=constraint, seed=1, max_tokens=600, **options).collect()

        reply = generate(Person)
        self.assertIsInstance(reply.parsed, Person)
        self.assertIs(reply.samples[0].finish.reason, rivulet.FinishReason.CONSTRAINT)
        self.assertEqual(generate(SCHEMA).parsed.keys(), {"name", "k"})
        self.assertIn(generate(rivulet.Constraint(choices=["yes", "no"])).text, ("yes", "no"))
        for tag in (TAG, json.dumps(TAG)):
            self.assertIn(generate(rivulet.Constraint(structural_tag=tag)).text, ("<1>", "<>"))
        after = generate(rivulet.Constraint(regex="[0-9]{4}", after=["."])).text
        self.assertRegex(after, r"^[^.]*\.[0-9]{4}$")
        with self.assertRaisesRegex(ValueError, "Expecting|Unterminated"):
            _ = self.grpc.generate("So:", constraint=SCHEMA, max_tokens=2).collect().parsed
        with self.assertRaisesRegex(ValueError, "^constraint: must have one of"):
            generate(rivulet.Constraint(regex="a", choices=["b"]))
        for wrong, message in (
            ("{}", "constraint: must be"), (rivulet.Constraint(choices="yes"), "constraint.choices: must be a sequence"),
            (rivulet.Constraint(regex="a", after="b"), "constraint.after: must be a sequence"),
            (rivulet.Constraint({"const": {1}}), "constraint.json_schema: must be JSON"),
        ):  # fmt: skip
            with self.assertRaisesRegex(TypeError, f"^{message}"):
                generate(wrong)

    def test_a_session_goes_on_in_the_middle_of_a_text(self):
        schema = {"type": "array", "items": {"enum": ["to be", "not to be"]}, "minItems": 3, "maxItems": 3}
        with self.grpc.open_session() as session:
            session.append("Say:")
            begin = session.position
            at = rivulet.Constraint(schema, begin_position=begin)
            whole = session.generate(constraint=at, seed=5, max_tokens=400).collect()
            cut = len(whole.tokens) // 2
            rest = session.generate(constraint=at, seed=5, max_tokens=400, position=begin + cut).collect()
            self.assertEqual(rest.tokens.tolist(), whole.tokens.tolist()[cut:])
            self.assertEqual(len(whole.parsed), 3)

    def test_the_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            schema, lines, results = (pathlib.Path(folder) / name for name in ("schema.json", "in.jsonl", "out.jsonl"))
            schema.write_text(json.dumps(SCHEMA))

            def rivulet_command(*args):
                command = [BIN_DIR / "rivulet", *args, "--target", self.server.target]
                return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

            prompt = ("generate", "--prompt", "So:", "--seed", "1", "--max-tokens", "400")
            self.assertEqual(json.loads(rivulet_command(*prompt, "--json-schema", schema).stdout).keys(), {"name", "k"})
            self.assertRegex(rivulet_command(*prompt, "--regex", "[a-c]{3}").stdout, r"^[a-c]{3}\s*$")
            self.assertIn(rivulet_command(*prompt, "--choices", "yes,no").stdout.strip(), ("yes", "no"))
            self.assertEqual(rivulet_command(*prompt, "--regex", "").stdout.strip(), "")
            self.assertIn("constraint.regex, byte 0", rivulet_command(*prompt, "--regex", "(").stderr)
            bodies = ({"response_format": of_schema(SCHEMA)}, {"structured_outputs": {"choice": ["yes", "no"]}}, {"response_format": of_schema(BAD)})
            lines.write_text("".join(json.dumps({"prompt": "So:", "seed": 1, "max_tokens": 400, **body}) + "\n" for body in bodies))
            rivulet_command("batch", lines, results)
            form, choice, refused = (json.loads(line) for line in results.read_text().splitlines())
            self.assertEqual(json.loads(form["text"]).keys(), {"name", "k"})
            self.assertIn(choice["text"], ("yes", "no"))
            self.assertEqual(refused["error"]["reason"], "CONSTRAINT_UNSUPPORTED")
            # A form may hold what the template writes between two turns.
            turns, folder = "Yes\n\nROMEO:\nNo", pathlib.Path(folder)
            chat = {"messages": [{"role": "user", "content": "So?"}], "structured_outputs": {"regex": turns}, "max_tokens": 40}
            lines.write_text(json.dumps(chat) + "\n")
            rivulet_command("batch", "--chat-template", ZOO / "dialogue.jinja", lines, folder / "chat.jsonl")
            self.assertEqual(json.loads((folder / "chat.jsonl").read_text())["text"], turns)


if __name__ == "__main__":
    unittest.main()
