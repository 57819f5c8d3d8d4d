# SPDX-License-Identifier: Apache-2.0
"""Streams of rivulet-gateway that break, and what another gateway sends to a client with Last-Event-ID: against a gRPC server that
follows a script, which cuts each reply into other parts, and against the real one."""

import base64
import http.client
import itertools
import json
import pathlib
import random
import tempfile
import threading
import unittest
import zlib

from rivulet_wheel import await_idle
from fake_server import ScriptedServer, token_bytes
from gateway import PATIENCE, Gateway, events

import openai

import rivulet
import text_models
from command import ZOO, Server
from rivulet.core.sequence import hashes
from rivulet.gateway.web import event_ids
from rivulet.v1 import inference_pb2, session_pb2, session_service_pb2

TEXT, IMAGES, CHATTY = "shakespeare-rfa", "mnist-linear", "chatty"
END = {"reason": "FINISH_REASON_LENGTH"}
SESSION = "0" * 31 + "1"


def first_event(answer):
    """The id and the value of a stream that goes on."""
    lines = b""
    while not lines.endswith(b"\n\n"):
        lines += answer.readline()
    return events(lines.decode())[0]


def merged(found):
    """What a client has at the end of a stream, however its chunks were cut."""
    heads, choices, others = set(), {}, []
    for _, value in found:
        if "choices" not in value:
            others.append(value)
            continue
        heads.add((value["id"], value["created"], value["object"], value["model"]))
        if not value["choices"]:
            for changing in ("prompt_tokens_details", "completion_tokens_details"):  # cached tokens and drafts depend on other requests
                value["usage"][changing] = None
            others.append((value["usage"], value.get("session")))
        for one in value["choices"]:
            _join(choices.setdefault(one.pop("index"), {}), one)
    return heads, choices, others


def _join(whole, piece):
    for name, value in piece.items():
        if isinstance(value, dict):
            _join(whole.setdefault(name, {}), value)
        elif isinstance(value, (str, list)) and name != "finish_reason":
            whole[name] = whole.get(name, type(value)()) + value
        elif value is not None:
            whole[name] = whole.get(name, []) + [value]


class LostTest(unittest.TestCase):
    def ask(self, gateway, body, path="/v1/completions", *ids, key="Bearer k"):
        """The connection and the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
        self.addCleanup(connection.close)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.putrequest("POST", path)
        for name, value in [("content-type", "application/json"), ("authorization", key), ("content-length", len(raw))]:
            connection.putheader(name, value)
        for id in ids:
            connection.putheader("Last-Event-ID", id)
        connection.endheaders(raw)
        return connection, connection.getresponse()

    def stream(self, gateway, body, path="/v1/completions", *ids):
        _, answer = self.ask(gateway, {**body, "stream": True}, path, *ids)
        text = answer.read().decode()
        self.assertEqual((answer.status, answer.headers["content-type"]), (200, "text/event-stream; charset=utf-8"), text)
        return events(text)

    def refused(self, status, code, mention, gateway, body, path, *ids):
        _, answer = self.ask(gateway, body, path, *ids)
        error = json.loads(answer.read())["error"]
        self.assertEqual((answer.status, error["code"]), (status, code), error)
        self.assertIn(mention, error["message"])

    def continues_anywhere(self, body, path="/v1/completions"):
        """Cuts the stream after each of its events; its whole."""
        here, there = self.gateways
        found = self.stream(here, body, path)
        expected = merged(json.loads(json.dumps(found)))
        self.assertEqual(found[-1], (None, "[DONE]"))
        for count in range(1, len(found)):
            seen = json.loads(json.dumps(found[:count]))
            with self.subTest(count=count, of=len(found)):
                rest = self.stream(there, body, path, seen[-1][0])
                self.assertEqual(merged(seen + rest), expected)
        return found


def cut(pieces, generator):
    """(tokens, text) of a sample as parts, each time in other places; the end may have a part of its own."""
    parts, left = [], list(pieces)
    while left:
        count = generator.randint(1, len(left))
        parts.append(([token for token, _ in left[:count]], "".join(text for _, text in left[:count])))
        left = left[count:]
    return parts + ([([], "")] if generator.randint(0, 1) else [])


class Script:
    """A server whose reply depends on prompt, seed and sample, and whose parts depend on nothing. Tests change its fields."""

    def __init__(self):
        self.reset()
        names = inference_pb2.GetModelReply(
            summary={"name": "m"}, config_json="{}", content={"text": {}}, chat_template="{{ messages[0].content }}"
        )
        self.server = ScriptedServer({
            "Generate": self.generate, "GetModel": lambda request, context: names, "Detokenize": self.detokenize,
            "Score": lambda request, context: inference_pb2.ScoreReply(num_scored=1, logprobs=[-1]),
            "ListModels": lambda request, context: inference_pb2.ListModelsReply(models=[{"name": "m"}]),
            "GetSession": lambda request, context: session_service_pb2.GetSessionReply(session=self.session),
            "Append": lambda request, context: session_service_pb2.AppendReply(
                progress={"position": 21, "sequence_hash": 5}, durability=self.durability
            ),
        })  # fmt: skip

    def reset(self):
        self.fingerprint, self.end, self.gate, self.change = 0xFEDC, END, None, lambda pieces: pieces
        self.generator, self.durability = random.Random(7), None
        self.session = session_pb2.Session(session_id=SESSION, model="m", progress={"position": 20, "sequence_hash": 77}, seed=5)

    def detokenize(self, request, context):
        texts = [token_bytes(id) for id in request.ids]
        ends = itertools.accumulate(map(len, texts))
        return inference_pb2.DetokenizeReply(text="echo", raw_bytes=b"".join(texts), ends=ends)

    def pieces(self, request, sample):
        """Tokens and texts: 7 begins a character that 9 ends, 8 has no text."""
        draw = random.Random(f"{request.text} {request.sampling.seed} {sample}")
        drawn = [draw.randint(10, 99) for _ in range(6)]
        return self.change([(7, ""), (9, "\U0001f600"), *((token, f"t{token}") for token in drawn), (8, "?")])

    def generate(self, request, context):
        queues = {}
        for sample in range(request.num_samples or 1):
            queues[sample] = cut(self.pieces(request, sample), self.generator)
        position, first, sequence_hash = dict.fromkeys(queues, 0), True, 78
        while queues:
            sample = self.generator.choice(list(queues))
            tokens, text = queues[sample].pop(0)
            reply = inference_pb2.GenerateReply(sample_index=sample, first_position=position[sample], tokens=tokens, text=text)
            position[sample] += len(tokens)
            reply.logprobs.extend(-token / 8 for token in tokens) if request.logprobs.enabled else None
            for token in tokens if request.logprobs.top_n else ():
                reply.top_logprobs.add(token_ids=[token, 9], logprobs=[-1, -2])
            if first:
                reply.seed = request.sampling.seed
            if first and self.fingerprint is not None:
                reply.fingerprint = self.fingerprint
            if request.HasField("session"):
                reply.session.position = request.session.position + 1 + position[sample]
                sequence_hash = reply.session.sequence_hash = [sequence_hash, *hashes(tokens, sequence_hash)][-1]
            if not queues[sample]:
                del queues[sample]
                reply.finish.CopyFrom(inference_pb2.Finish(**self.end))
            yield reply
            if first and self.gate is not None:
                self.gate.wait(PATIENCE)
            first = False
        yield inference_pb2.GenerateReply(usage={"prompt_tokens": 3, "completion_tokens": sum(position.values())}, durability=self.durability)


class ScriptedTest(LostTest):
    body = {"model": "m", "prompt": "a"}

    @classmethod
    def setUpClass(cls):
        cls.script = Script()
        cls.server = cls.enterClassContext(cls.script.server)
        cls.gateways = [cls.enterClassContext(Gateway(cls.server.target)) for _ in range(2)]

    def setUp(self):
        self.script.reset()

    def test_completions_continue_wherever_their_parts_were_cut(self):
        usage = {"stream_options": {"include_usage": True}}
        for more in (
            {}, usage, {"logprobs": 1}, {"n": 3, "return_token_ids": True, **usage},
            {"n": 2, "logprobs": 0, "echo": True, "prompt": [1, 2]}, {"n": 2, "max_tokens": 0, "echo": True, "prompt": [1, 2], **usage},
            {"prompt": ["a", "b", "a"], "n": 2, "return_token_ids": True, **usage}, {"seed": 2**64 - 1, "return_token_ids": True},
        ):  # fmt: skip
            for _ in range(3):
                with self.subTest(more):
                    self.continues_anywhere({**self.body, **more})

    def test_a_stream_may_break_after_every_event(self):
        body = {**self.body, "prompt": ["a", "b"], "n": 2, "logprobs": 0, "stream_options": {"include_usage": True}}
        found = self.stream(self.gateways[0], body)
        expected, seen, gateways = merged(json.loads(json.dumps(found))), found[:1], itertools.cycle(self.gateways)
        while seen[-1][1] != "[DONE]":
            seen += self.stream(next(gateways), body, "/v1/completions", seen[-1][0])[:1]
        self.assertEqual(merged(seen), expected)

    def test_chats_continue_and_open_each_choice_once(self):
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "n": 2, "logprobs": True}
        for self.script.end in (END, {"reason": "FINISH_REASON_STOP_STRING", "stop_string": "t1"}):
            found = self.continues_anywhere(body, "/v1/chat/completions")
            _, choices, _ = merged(found)
            self.assertEqual([choice["delta"]["role"] for choice in choices.values()], ["assistant"] * 2)

    def test_seeds_are_drawn_once_and_differ_between_prompts(self):
        body = {**self.body, "prompt": ["a", "a"]}
        seeds = [call.request.sampling.seed for call in self.calls_of(lambda: self.stream(self.gateways[0], body))]
        self.assertEqual(len(set(seeds)), 2)
        found = self.stream(self.gateways[0], body)
        drawn = {call.request.sampling.seed for call in self.server.asked()[-2:]}
        again = self.calls_of(lambda: self.stream(self.gateways[1], body, "/v1/completions", found[0][0]))
        self.assertEqual({call.request.sampling.seed for call in again}, drawn)
        self.assertTrue(drawn.isdisjoint(seeds))

    def calls_of(self, function, name="Generate"):
        before = len(self.server.asked(name))
        function()
        return self.server.asked(name)[before:]

    def test_an_id_that_came_back_otherwise_is_refused(self):
        id, _ = self.stream(self.gateways[0], self.body)[0]
        body = {**self.body, "stream": True}
        more_choices, no_prompt = event_ids.read([id]), event_ids.read([id])
        more_choices.choices.append(event_ids.Sent())
        no_prompt.fingerprints.clear()
        forged = (one.line().decode()[4:-1] for one in (more_choices, no_prompt))
        short = base64.urlsafe_b64encode(b"short" + zlib.crc32(b"short").to_bytes(4, "big")).decode()
        for ids in (
            [""], ["x"], ["v1."], [id[:-4]], [id[:40] + id[44:]], [id[:20] + ("B" if id[20] == "A" else "A") + id[21:]], [id + "!"],
            [id.replace("v1.", "v2.")], [id + "\u00e9"], [id, id], [f"v1.{short}"], *([one] for one in forged),
        ):  # fmt: skip
            with self.subTest(ids):
                self.refused(400, "EVENT_ID_MALFORMED", "Last-Event-ID", self.gateways[1], body, "/v1/completions", *ids)

    def test_another_request_is_refused(self):
        found = self.stream(self.gateways[0], self.body)
        id, body = found[0][0], {**self.body, "stream": True}
        for other, path in (
            ({**body, "prompt": "b"}, "/v1/completions"), ({**body, "max_tokens": 99}, "/v1/completions"),
            ({**self.body}, "/v1/completions"), (body, "/v1/chat/completions"), (body, "/v1/completions?a=b"),
            (body, "/v1/images/generations"),
        ):  # fmt: skip
            with self.subTest(other, path=path):
                self.refused(400, "EVENT_ID_OF_OTHER_REQUEST", "Last-Event-ID", self.gateways[1], other, path, id)

    def test_a_server_that_would_go_on_otherwise_is_refused(self):
        id, _ = self.stream(self.gateways[0], self.body)[0]
        body = {**self.body, "stream": True}
        for self.script.fingerprint in (0xFEDD, None):
            self.refused(409, "RESUME_MISMATCH", "numerics_id", self.gateways[1], body, "/v1/completions", id)

    def test_tokens_that_are_not_those_of_the_lost_stream_end_it(self):
        id, _ = self.stream(self.gateways[0], self.body)[-2]
        for name, self.script.change in {
            "another token": lambda pieces: [(6, ""), *pieces[1:]], "less text": lambda pieces: [*pieces[:-1], (8, "")],
            "more text": lambda pieces: [*pieces[:-1], (8, "??")],
            "an end too early": lambda pieces: pieces[:4], "an end too late": lambda pieces: [*pieces, (9, "")],
        }.items():  # fmt: skip
            with self.subTest(name):
                _, answer = self.ask(self.gateways[1], {**self.body, "stream": True}, "/v1/completions", id)
                text = answer.read().decode()
                # Where one part holds all tokens, nothing was sent before the error, not even a comment.
                found = [value for _, value in events(text)] if answer.status == 200 else [json.loads(text)]
                self.assertEqual([value.get("error", {}).get("code") for value in found], ["RESUME_MISMATCH"])

    def test_a_stream_that_cannot_be_continued_has_no_ids(self):
        *found, _ = self.stream(self.gateways[0], {**self.body, "n": 128})
        self.assertLess(max(len(id) for id, _ in found), 4096)
        for fingerprint, body in ((0xFEDC, {**self.body, "n": 129}), (None, self.body)):
            self.script.fingerprint = fingerprint
            self.assertEqual({id for id, _ in self.stream(self.gateways[0], body)}, {None})

    def test_comments_come_while_what_the_client_has_is_generated_again(self):
        found = self.stream(self.gateways[0], self.body)
        self.script.gate = threading.Event()
        body = {**self.body, "stream": True}
        _, answer = self.ask(self.gateways[1], body, "/v1/completions", found[-2][0])
        self.assertEqual((answer.status, answer.readline(), answer.readline()), (200, b":\n", b"\n"))
        self.script.gate.set()
        self.assertEqual(events(answer.read().decode().lstrip("\n")), [(None, "[DONE]")])

    def test_a_session_is_asked_as_one_whose_reply_was_lost(self):
        path = f"/rivulet/v1/sessions/{SESSION}/generate"
        for more, position, known in (({}, 20, 77), ({"position": 20}, 20, 77), ({"position": 12}, 12, None)):
            body = {"model": "m", "prompt": "a", "logprobs": 0, **more}
            with self.subTest(more):
                self.script.session.progress.position = 20
                self.script.session.progress.sequence_hash = 77
                (first,) = self.calls_of(lambda: self.stream(self.gateways[0], body, path))
                self.assertFalse(first.request.HasField("resume"))
                self.continues_anywhere(body, path)
                found = self.stream(self.gateways[0], body, path)
                self.script.session.progress.position = 25  # what the lost reply has left there
                self.script.session.progress.sequence_hash = 99
                (call,) = self.calls_of(lambda: self.stream(self.gateways[1], body, path, found[0][0]))
                self.assertTrue(call.request.HasField("resume"))
                self.assertEqual(call.request.session.position, position)
                given = call.request.session.sequence_hash if call.request.session.HasField("sequence_hash") else None
                self.assertEqual((given, call.request.sampling.seed), (known, 5))

    def test_the_durability_of_a_session_is_told(self):
        path, body = f"/rivulet/v1/sessions/{SESSION}", {"model": "m", "prompt": "a"}
        expected = self.script.durability = {"durable": False, "position": 20}
        usage = {"stream_options": {"include_usage": True}}
        *parts, (_, last), _ = self.stream(self.gateways[0], {**body, **usage}, f"{path}/generate")
        whole, appended = (json.loads(self.ask(self.gateways[0], body, f"{path}/{call}")[1].read()) for call in ("generate", "append"))
        self.assertEqual([last["session"]["durability"], whole["session"]["durability"], appended["durability"]], [expected] * 3)
        self.assertTrue(all("durability" not in part["session"] for _, part in parts))


class RealTest(LostTest):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        models = ZOO / TEXT, ZOO / IMAGES, text_models.with_tokenizer("mamba2", folder / "one", CHATTY)
        args = ("--threads", "1", "--backend", "cpu")
        server = cls.enterClassContext(Server(*models, args=args))
        other = cls.enterClassContext(Server(text_models.with_tokenizer("rwkv7", folder / "two", CHATTY), args=args))
        cls.gateways = [cls.enterClassContext(Gateway(server.target)) for _ in range(2)]
        cls.elsewhere = cls.enterClassContext(Gateway(other.target))
        cls.grpc = cls.enterClassContext(rivulet.Client(server.target))

    def test_texts(self):
        usage = {"stream_options": {"include_usage": True}}
        for more in ({"n": 2, "temperature": 0.8}, {"logprobs": 2, "presence_penalty": 0.5}, {"max_tokens": 40, "stop": [" "]}):
            with self.subTest(more):
                self.continues_anywhere({"model": TEXT, "prompt": "ROMEO:", "max_tokens": 9, **usage, **more})

    def test_chats_with_stop_strings(self):
        message = {"role": "user", "content": "the band"}
        body = {"model": CHATTY, "messages": [message], "n": 2, "max_tokens": 20, "stop": [" the", "and", "\u00e9"], "ignore_eos": True}
        for more in ({}, {"logprobs": True, "top_logprobs": 2}):
            with self.subTest(more):
                self.continues_anywhere({**body, **more}, "/v1/chat/completions")

    def test_images(self):
        body = {"model": IMAGES, "prompt": [], "max_tokens": 12, "n": 2, "return_token_ids": True}
        _, choices, _ = merged(self.continues_anywhere(body))
        self.assertEqual({len(choice["token_ids"]) for choice in choices.values()}, {12})

    def test_sessions(self):
        with self.grpc.open_session(model=TEXT, seed=3) as session:
            session.append("ROMEO:")
            body = {"model": TEXT, "prompt": "x", "max_tokens": 8}
            self.continues_on(session, body)
            self.continues_on(session, body)
            position = self.grpc.session(session.id, model=TEXT).position
            self.assertEqual(position, len("ROMEO:") + 2 * (1 + 8))
            self.continues_on(session, {"model": TEXT, "max_tokens": 9, "position": position - 5})
            session.keep()

    def continues_on(self, session, body):
        self.continues_anywhere(body, f"/rivulet/v1/sessions/{session.id}/generate")

    def test_a_session_that_another_request_has_continued_is_refused(self):
        with self.grpc.open_session(model=TEXT, seed=3) as session:
            path = f"/rivulet/v1/sessions/{session.id}"
            body = {"model": TEXT, "prompt": "x", "max_tokens": 5, "stream": True}
            found = self.stream(self.gateways[0], body, f"{path}/generate")
            _, answer = self.ask(self.gateways[0], {"model": TEXT, "prompt": "y"}, f"{path}/append")
            self.assertEqual(json.loads(answer.read())["position"], 7)
            self.refused(409, "GIVEN_TOKENS_BEYOND_POSITION", "", self.gateways[1], body, f"{path}/generate", found[0][0])

    def test_a_connection_that_breaks(self):
        body = {"model": TEXT, "prompt": "ROMEO:", "max_tokens": 500, "stream": True}
        with self.grpc.open_session(model=TEXT, seed=3) as session:
            for path in ("/v1/completions", f"/rivulet/v1/sessions/{session.id}/generate"):
                with self.subTest(path):
                    connection, answer = self.ask(self.gateways[0], body, path)
                    seen = [first_event(answer)]
                    answer.close()
                    connection.close()
                    whole = seen + self.stream(self.gateways[1], body, path, seen[-1][0])
                    _, choices, _ = merged(whole)
                    self.assertEqual(choices[0]["finish_reason"], ["length"])
                    if path == "/v1/completions":
                        self.assertEqual(len(choices[0]["text"]), 500)
                    else:
                        expected = self.grpc.generate("ROMEO:", model=TEXT, max_tokens=500, seed=3).collect().text
                        self.assertEqual(choices[0]["text"], expected)
        self.assertTrue(await_idle(self.grpc, TEXT, PATIENCE))

    def test_another_model_of_the_same_name_is_refused(self):
        body = {"model": CHATTY, "prompt": "the band", "max_tokens": 5, "stream": True}
        id, _ = self.stream(self.gateways[0], body)[0]
        self.refused(409, "RESUME_MISMATCH", "numerics_id", self.elsewhere, body, "/v1/completions", id)

    def test_openai_s_client_reads_such_streams(self):
        options = {"model": TEXT, "prompt": "ROMEO:", "max_tokens": 30, "stream": True}
        here, there = (
            self.enterContext(openai.OpenAI(base_url=f"{one.url}/v1", api_key="k", max_retries=0, timeout=PATIENCE))
            for one in self.gateways
        )
        sent = here.completions.with_raw_response.create(**options)
        found = events(sent.http_response.read().decode())
        whole = "".join(value["choices"][0]["text"] for _, value in found[:-1])
        self.assertEqual(len(whole), 30)
        first = found[0][1]["choices"][0]["text"]
        rest = there.completions.create(**options, extra_headers={"Last-Event-ID": found[0][0]})
        self.assertEqual(first + "".join(chunk.choices[0].text for chunk in rest), whole)


if __name__ == "__main__":
    unittest.main()
