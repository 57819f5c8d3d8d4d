# SPDX-License-Identifier: Apache-2.0
"""One table of faults, each against every client: a reply that is lost and found again is that of an undisturbed call, and one that
is not ends with the same error everywhere ("Lost replies" in client/README.md)."""

import asyncio
import contextlib
import copy
import logging
import math
import pathlib
import signal
import struct
import tempfile
import unittest
from typing import Any, NamedTuple

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import fault_proxy as faults
import grpc
from command import CONFORMANCE, Server
from drivers import Command, drivers
from fake_server import fnv1a
from fault_proxy import Proxy, Relay
from google.protobuf import json_format
from grpc import StatusCode as Code
from h2.errors import ErrorCodes

from rivulet.v1 import inference_pb2, session_service_pb2

logging.getLogger("grpc").setLevel(logging.CRITICAL)
SERVED, OTHER = CONFORMANCE / "tiny-elu-relu", CONFORMANCE / "tiny-rfa"
PATIENCE = 100  # seconds that a reply may take on a busy machine; a client that waits for an hour is found
TIMEOUT = 90  # seconds; of replies that end before it

# Every setting that a resumed call could lose.
SAMPLED = {
    "max_tokens": 8, "temperature": 1.2, "top_k": 30, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.4,
    "ignore_eos": True, "logprobs": True,
}  # fmt: skip
ONE = {"prompt": [3, 1], "seed": 2**63 + 5, **SAMPLED}
UNSEEDED = {"prompt": [3, 1], **SAMPLED}
THREE = {**ONE, "num_samples": 3}
NO_LIMIT = {"prompt": [3, 1], "seed": 6, "ignore_eos": True, "logprobs": True}
ENDING = {**THREE, "stop_token_ids": [15]}  # its samples have 8, 3 and no tokens
EIGHT = tuple({**ONE, "prompt": [i], "seed": seed, "num_samples": 1 + i % 3} for i, seed in enumerate((0, 2**64 - 1, *range(1, 7))))
LONG = {**ONE, "max_tokens": 3000, "top_logprobs": 20}  # more bytes than a connection holds that is not read


class Row(NamedTuple):
    """steps, forever, refused: of a Proxy. requests: made side by side by one client. error: code and reason of the end; None: the
    undisturbed reply. calls: how many requests come to the server; None where gRPC may repeat one by itself. waited: so many seconds have
    passed before the last call, at least, and are not left until its deadline. elsewhere: the calls after the first come to a server of
    another model. session: the requests are on one, with or without their position. without: clients that
    cannot make such a call. cookies: by them a balancer leads each call, to the replica of the session, or, where it has none, to another
    one that `knows` the session or does not. ended_by: in place of a Proxy, a server of its own that gets this signal in mid-reply, and
    another one."""

    steps: Any = ()
    requests: tuple = (ONE,)
    error: tuple | None = None
    calls: int | None = None
    waited: float = 0
    forever: bool = False
    refused: float = 0
    elsewhere: bool = False
    resume: bool = True
    timeout: float = TIMEOUT
    max_attempts: int = 4
    ended_by: signal.Signals | None = None
    session: str = ""
    cookies: tuple = ()
    knows: bool = False
    without: tuple = ()


DRAINING = faults.error(Code.UNAVAILABLE, "DRAINING", sent_tokens="3")
FULL = faults.error(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_seconds=0.05)
FULL_FOR_AN_HOUR = faults.error(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_seconds=3600)
DRAINING_FOR_AN_HOUR = faults.error(Code.UNAVAILABLE, "DRAINING", retry_seconds=3600)
NOT_NOW, NOT_YET = (faults.error(Code.UNAVAILABLE, "NOT_NOW", retry_seconds=seconds) for seconds in (0.02, 2.5))
SLOW = faults.error(Code.RESOURCE_EXHAUSTED, "READER_TOO_SLOW", sent_tokens="3")
BROKEN = faults.error(Code.INTERNAL, "BROKEN")
MOVED = faults.error(Code.ABORTED, "SESSION_MOVED")
IN_SESSION = {"session": "position", "without": ("python multiplex",)}
NO_POSITION = {"session": "no position", "without": ("python sync", "python async", "python multiplex", "typescript")}
WITH_COOKIE = {"session": "position", "without": ("python multiplex", "c++ multiplex")}
HERE, AWAY, THERE = Proxy.COOKIE, None, Proxy.OTHER_COOKIE
NOTHING = (0, faults.trailers(Code.UNAVAILABLE))
MULTIPLEXED = {"without": ("python sync", "python async", "c++ wait", "c++ async", "command", "typescript")}
BAD_GATEWAY, NO_SERVER = (0, faults.http(502)), (0, faults.http(503))

# Errors that lose no reply.
KEPT = {
    "unknown_with_details": (faults.error(Code.UNKNOWN, "BROKEN"), ("UNKNOWN", "BROKEN")),
    "internal_with_details": (BROKEN, ("INTERNAL", "BROKEN")),
    "aborted": (faults.error(Code.ABORTED, "BROKEN"), ("ABORTED", "BROKEN")),
    "reader_too_slow": (SLOW, ("RESOURCE_EXHAUSTED", "READER_TOO_SLOW")),
    "cancelled": (faults.trailers(Code.CANCELLED), ("CANCELLED", "")),
    "too_late": (faults.trailers(Code.DEADLINE_EXCEEDED), ("DEADLINE_EXCEEDED", "")),
}
WAITED = {"waited": 2.5, "timeout": 60}  # gRPC sends a deadline again that is 3 % too late
IN_TIME = {"timeout": 1000, "error": ("DEADLINE_EXCEEDED", "")}

TABLE = {
    # The connection.
    "refused_once": Row(refused=1),
    "refused_twice": Row(refused=2),
    "refused_always": Row(refused=math.inf, error=("UNAVAILABLE", ""), calls=0),
    **{f"reset_after_message_{count}": Row([(count, faults.reset())]) for count in range(9)},
    "reset_before_the_usage": Row([(-1, faults.reset())]),
    "reset_after_the_usage": Row([(None, faults.reset())]),
    "reset_then_refused": Row([(3, faults.reset(refused=2))]),
    "closed_before_the_first_message": Row([(0, faults.fin)]),
    "closed_after_message_3": Row([(3, faults.fin)]),
    "closed_before_the_usage": Row([(-1, faults.fin)]),
    "closed_within_a_message": Row([(3, faults.within_a_message(faults.fin))]),
    "half_open_before_the_first_message": Row([(0, faults.half_open)]),
    "half_open_after_message_3": Row([(3, faults.half_open)]),
    "half_open_within_a_message": Row([(3, faults.within_a_message(faults.half_open))]),
    "goaway_that_has_not_seen_the_call": Row([(0, faults.go_away_unseen)]),
    "goaway_in_mid_reply": Row([(3, faults.go_away_unseen)]),
    "goaway_with_an_error": Row([(3, faults.go_away_by_error)]),
    "goaway_that_lets_the_call_end": Row([(3, faults.go_away_gracefully)], calls=1),
    # The stream of a call.
    "no_trailers_before_the_first_message": Row([(0, faults.no_trailers)], calls=2),
    "no_trailers_after_message_3": Row([(3, faults.no_trailers)], calls=2),
    "no_trailers_before_the_usage": Row([(-1, faults.no_trailers)], calls=2),
    "no_trailers_within_a_message": Row([(3, faults.within_a_message(faults.no_trailers))], calls=2),
    "stream_reset_by_an_internal_error": Row([(3, faults.rst_stream(ErrorCodes.INTERNAL_ERROR))], calls=2),
    "stream_refused": Row([(0, faults.rst_stream(ErrorCodes.REFUSED_STREAM))]),
    "stream_refused_after_message_3": Row([(3, faults.rst_stream(ErrorCodes.REFUSED_STREAM))]),
    "stream_cancelled": Row([(3, faults.rst_stream(ErrorCodes.CANCEL))], error=("CANCELLED", ""), calls=1),
    # Answers of a balancer.
    "no_server_behind_the_balancer": Row([NO_SERVER], calls=2),
    "bad_gateway": Row([BAD_GATEWAY, BAD_GATEWAY], calls=3),
    "no_server_for_good": Row([NO_SERVER], forever=True, error=("UNAVAILABLE", ""), calls=4),
    "no_server_and_one_attempt": Row([NO_SERVER], max_attempts=1, error=("UNAVAILABLE", ""), calls=1, without=("command",)),
    **{
        f"three_attempts_with_resume_{resume}": Row(
            [(0, DRAINING), NOTHING], forever=True, max_attempts=3, resume=resume, error=("UNAVAILABLE", "DRAINING"), calls=3,
            without=("command",),
        )
        for resume in (True, False)
    },
    "no_server_for_what_is_left": Row([(3, faults.reset()), NO_SERVER, BAD_GATEWAY], calls=4),
    "unavailable_before_the_first_message": Row([NOTHING], calls=2),
    # The package for Node.js gives out an error before the messages that wait.
    "lost_after_the_usage": Row([(None, faults.trailers(Code.UNKNOWN))], calls=1, without=("typescript",)),
    "lost_after_the_usage_without_resume": Row(
        [(None, faults.trailers(Code.UNAVAILABLE))], resume=False, calls=1, without=("typescript",)
    ),
    "unavailable_after_the_usage": Row([(None, faults.trailers(Code.UNAVAILABLE))]),
    "unavailable_after_message_3": Row([(3, faults.trailers(Code.UNAVAILABLE))], calls=2),
    "unknown_before_the_first_message": Row([(0, faults.trailers(Code.UNKNOWN))], calls=2),
    "internal_before_the_first_message": Row([(0, faults.trailers(Code.INTERNAL))], calls=2),
    "unknown_after_message_3": Row([(3, faults.trailers(Code.UNKNOWN))], calls=2),
    "internal_without_details": Row([(3, faults.trailers(Code.INTERNAL))], calls=2),
    # Errors of a server.
    "draining_before_the_first_message": Row([(0, DRAINING)], calls=2),
    "draining_after_message_3": Row([(3, DRAINING)], calls=2),
    **{f"{name}_before_the_first_message": Row([(0, fault)], error=error, calls=1) for name, (fault, error) in KEPT.items()},
    **{f"{name}_after_message_3": Row([(3, fault)], error=error, calls=1) for name, (fault, error) in KEPT.items()},
    **{f"{name}_for_what_is_left": Row([(3, DRAINING), (0, fault)], error=error, calls=2) for name, (fault, error) in KEPT.items()},
    "queue_full": Row([(0, FULL)], error=("RESOURCE_EXHAUSTED", "QUEUE_FULL"), calls=1),
    "queue_full_after_message_3": Row([(3, FULL)], error=("RESOURCE_EXHAUSTED", "QUEUE_FULL"), calls=1),
    "queue_full_after_a_call_that_brought_nothing": Row([NO_SERVER, (0, FULL)], calls=3),
    "queue_full_for_what_is_left": Row([(3, DRAINING), (0, FULL)], calls=3),
    "another_model_after_the_fault": Row([(3, DRAINING)], elsewhere=True, error=("FAILED_PRECONDITION", "RESUME_MISMATCH"), calls=2),
    # Time.
    "queue_full_beyond_the_deadline": Row([(3, DRAINING), (0, FULL_FOR_AN_HOUR)], calls=2, **IN_TIME),
    "draining_beyond_the_deadline": Row([(3, DRAINING_FOR_AN_HOUR)], calls=1, **IN_TIME),
    "draining_beyond_the_deadline_at_once": Row([(0, DRAINING_FOR_AN_HOUR)], calls=1, **IN_TIME),
    "a_wait_within_the_deadline": Row([(3, NOT_YET)], calls=2, **WAITED),
    "stalled_before_the_first_message": Row([(0, faults.stall)], timeout=0.7, error=("DEADLINE_EXCEEDED", "")),
    "stalled_after_message_3": Row([(3, faults.stall)], timeout=0.7, error=("DEADLINE_EXCEEDED", "")),
    # The server.
    "server_killed": Row(requests=(LONG,), ended_by=signal.SIGKILL),
    "server_drained": Row(requests=(LONG,), ended_by=signal.SIGTERM),
    "server_killed_side_by_side": Row(requests=(LONG, {**LONG, "num_samples": 2}), ended_by=signal.SIGKILL),
    # Several faults.
    "faults_in_a_row": Row([(3, faults.reset()), (2, faults.fin), (1, faults.no_trailers)], calls=4),
    "a_fault_after_every_message": Row([(1, DRAINING)] * 7, calls=8),
    "four_calls_that_bring_nothing": Row([(3, DRAINING), *[NOTHING] * 4], calls=6),
    "five_calls_that_bring_nothing": Row([(3, DRAINING), NOTHING], forever=True, error=("UNAVAILABLE", "DRAINING"), calls=6),
    "five_calls_that_bring_nothing_after_others": Row(
        [(3, faults.trailers(Code.UNAVAILABLE)), *[(0, NOT_NOW)] * 4, (1, DRAINING), (0, NOT_NOW)],
        forever=True, error=("UNAVAILABLE", "DRAINING"), calls=11,
    ),
    "five_calls_that_bring_the_end_again": Row([(-1, DRAINING), (-1, NOT_NOW)], forever=True, error=("UNAVAILABLE", "DRAINING"), calls=6),
    "a_stream_that_ends_too_early": Row([(3, faults.trailers(Code.OK))], calls=2, **MULTIPLEXED),
    # Sessions.
    **{f"session_reset_after_message_{count}": Row([(count, faults.reset())], **IN_SESSION) for count in (0, 3, 8)},
    "session_half_open_before_the_first_message": Row([(0, faults.half_open)], **IN_SESSION),
    "session_draining_before_the_usage": Row([(-1, DRAINING)], calls=2, **IN_SESSION),
    "session_wait_within_the_deadline": Row([(0, NOT_YET)], calls=2, **WAITED, **IN_SESSION),
    "session_moved_before_the_first_message": Row([(0, MOVED)], calls=2, **IN_SESSION),
    "session_moved_after_message_3": Row([(3, MOVED)], calls=2, **IN_SESSION),
    "session_draining_and_not_shared": Row([(3, DRAINING)], cookies=(HERE, AWAY, HERE), **WITH_COOKIE),
    "session_draining_and_shared": Row([(3, DRAINING)], cookies=(HERE, AWAY), knows=True, **WITH_COOKIE),
    "session_moved_and_lost_there": Row(
        [(3, MOVED), (2, faults.trailers(Code.UNKNOWN))], cookies=(HERE, AWAY, THERE), knows=True, **WITH_COOKIE
    ),
    "session_lost_once": Row([(3, faults.no_trailers)], cookies=(HERE, HERE), **WITH_COOKIE),
    "session_lost_twice_and_not_shared": Row([(3, faults.no_trailers), NOTHING], cookies=(HERE, HERE, AWAY, HERE), **WITH_COOKIE),
    "session_lost_twice_and_shared": Row([(3, faults.no_trailers), NOTHING], cookies=(HERE, HERE, AWAY), knows=True, **WITH_COOKIE),
    "session_without_max_tokens": Row([(3, DRAINING), (9, faults.reset())], requests=(NO_LIMIT,), **IN_SESSION),
    "session_without_a_server": Row([NO_SERVER, BAD_GATEWAY], calls=3, **IN_SESSION),
    "session_with_faults_in_a_row": Row([(3, faults.reset()), (2, faults.fin), (1, faults.no_trailers)], **IN_SESSION),
    "session_without_a_position": Row([(3, DRAINING)], error=("UNAVAILABLE", "DRAINING"), calls=1, **NO_POSITION),
    "session_without_a_position_or_message": Row([NOTHING], error=("UNAVAILABLE", ""), calls=1, **NO_POSITION),
    # Requests.
    "three_samples": Row([(7, faults.reset()), (2, faults.half_open)], requests=(THREE,)),
    "three_samples_of_which_some_have_none": Row([(1, DRAINING)], requests=(THREE,), calls=2),
    "samples_that_ended": Row([(9, DRAINING), (3, faults.reset()), (-2, DRAINING), (-1, DRAINING)], requests=(ENDING,)),
    "no_seed": Row([(3, DRAINING)], requests=(UNSEEDED,), calls=2),
    "no_seed_and_no_first_message": Row([NO_SERVER], requests=(UNSEEDED,), calls=2),
    "side_by_side": Row([(4, faults.reset())], requests=EIGHT),
    "resume_is_off": Row([(3, DRAINING)], resume=False, error=("UNAVAILABLE", "DRAINING"), calls=1),
    "resume_is_off_before_the_first_message": Row([NO_SERVER, NOTHING], resume=False, calls=3),
    "resume_is_off_after_a_lost_call": Row([NO_SERVER, (3, DRAINING)], resume=False, error=("UNAVAILABLE", "DRAINING"), calls=2),
}


def message(request):
    """As a GenerateRequest."""
    made = inference_pb2.GenerateRequest(tokens={"ids": request["prompt"]})
    for name, value in request.items():
        if name in made.sampling.DESCRIPTOR.fields_by_name:
            setattr(made.sampling, name, value)
        elif name in ("max_tokens", "num_samples"):
            setattr(made, name, value)
    made.stop.ignore_eos = request["ignore_eos"]
    made.stop.token_ids.extend(request.get("stop_token_ids", ()))
    made.logprobs.enabled = request["logprobs"]
    made.logprobs.top_n = request.get("top_logprobs", 0)
    return made


def job(row, target, session):
    """What a driver is to do. A request comes as options and as a GenerateRequest, in which the seed is a text. session: its id, or
    None."""
    messages = [message(request) for request in row.requests]
    for asked in messages if session else ():
        asked.session.session_id = session
        if row.session == "position":
            asked.session.position = 0
    settings = {name: getattr(row, name) for name in ("requests", "resume", "timeout", "max_attempts")}
    cookie = HERE if row.cookies else ""
    return {"target": target, "session": session, "cookie": cookie, "messages": list(map(json_format.MessageToDict, messages)), **settings}


def whole(parts):
    """The samples of a reply, of GenerateReply or of lines of a driver: index to tokens, logprobs and how it ended."""
    samples = {}
    for part in parts:
        if "tokens" in part:
            sample = samples.setdefault(part["sample_index"], {"tokens": [], "logprobs": [], "finish": None})
            sample["tokens"] += part["tokens"]
            sample["logprobs"] += [struct.pack("f", value) for value in part.get("logprobs", ())]
            sample["finish"] = part.get("finish", sample["finish"])
    return samples


def line(reply):
    """A GenerateReply as the drivers print it."""
    said = {"sample_index": reply.sample_index, "first_position": reply.first_position, "tokens": list(reply.tokens)}
    said["logprobs"] = list(reply.logprobs)
    if reply.HasField("finish"):
        said["finish"] = inference_pb2.FinishReason.Name(reply.finish.reason).removeprefix("FINISH_REASON_").lower()
    for name in ("seed", "fingerprint"):
        if reply.HasField(name):
            said[name] = getattr(reply, name)
    if reply.HasField("usage"):
        said["usage"] = {name: getattr(reply.usage, name) for name in ("prompt_tokens", "completion_tokens")}
    return said


class LostRepliesTest(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        flags = ("--threads", "1", "--backend", "cpu")
        cls.server = cls.enterClassContext(Server(SERVED, args=flags))
        cls.other = cls.enterClassContext(Server(OTHER, args=flags))
        cls.same = cls.enterClassContext(Server(SERVED, args=flags))
        cls.channel = cls.enterClassContext(grpc.insecure_channel(cls.server.target))
        cls.loop = asyncio.new_event_loop()
        cls.addClassCleanup(cls.loop.close)
        cls.drivers = drivers(pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())))
        cls.truths, cls.drawn = {}, set()
        for driver in filter(None, cls.drivers.values()):
            cls.loop.run_until_complete(driver.start())
            cls.addClassCleanup(lambda driver=driver: cls.loop.run_until_complete(driver.stop()))

    def truth(self, request):
        """The lines of an undisturbed reply."""
        text = request.SerializeToString(deterministic=True)
        if text not in self.truths:
            call = self.channel.unary_stream(faults.GENERATE, response_deserializer=inference_pb2.GenerateReply.FromString)
            self.truths[text] = [line(reply) for reply in call(text)]
        return self.truths[text]

    def open_session(self):
        """Its id."""
        call = self.channel.unary_unary(faults.OPEN_SESSION, response_deserializer=session_service_pb2.OpenSessionReply.FromString)
        return call(b"").session.session_id

    def check_order(self, parts):
        """That nothing is delivered twice, and nothing left out."""
        places = {name: [index for index, part in enumerate(parts) if name in part] for name in ("seed", "fingerprint", "usage")}
        self.assertEqual(places["seed"], [0] * bool(parts))
        self.assertIn(places["fingerprint"], ([], [0]))  # some clients keep it to themselves
        self.assertIn(places["usage"], ([], [len(parts) - 1]))
        counts, ended = {}, set()
        for part in parts:
            if "tokens" in part and not (part["tokens"] == [] and "usage" in part):
                index = part["sample_index"]
                self.assertNotIn(index, ended)
                if part["tokens"]:
                    self.assertEqual(part["first_position"], counts.get(index, 0))
                counts[index] = counts.get(index, 0) + len(part["tokens"])
                if "finish" in part:
                    ended.add(index)

    def check_reply(self, row, request, reply):
        """One reply of a client against that of an undisturbed call."""
        self.check_order(reply["parts"])
        asked = message(request)
        if "seed" not in request and reply["parts"]:
            asked.sampling.seed = int(reply["parts"][0]["seed"])
            self.assertNotIn(asked.sampling.seed, self.drawn)
            self.drawn.add(asked.sampling.seed)
        truth = self.truth(asked)
        expected, got = whole(truth), whole(reply["parts"])
        if row.error is None:
            self.assertIsNone(reply["error"])
            self.assertEqual(got, expected)
            self.assertLessEqual(truth[-1]["usage"].items(), reply["parts"][-1]["usage"].items())
            if "session" in reply:
                held = [*request["prompt"], *got[0]["tokens"]]
                self.assertEqual(reply["session"], {"position": len(held), "sequence_hash": str(fnv1a(held))})
            return
        for index, sample in got.items():
            self.assertEqual(sample["tokens"], expected[index]["tokens"][: len(sample["tokens"])])
        error = reply["error"] or {}
        if "exit" in error:
            self.assertIn(row.error[0], Command.CODES[error["exit"]], error)
        else:
            self.assertEqual((error.get("code"), error.get("reason")), row.error)
            if row.elsewhere:
                self.assertEqual(error.get("field", "resume.fingerprint"), "resume.fingerprint")

    def check_calls(self, row, proxy):
        """What the client has sent: the same request each time, with what it had received."""
        self.assertEqual(proxy.faults, len(row.steps) if not row.forever else len(proxy.requests))
        if row.calls is not None:
            self.assertEqual(len(proxy.requests), row.calls)
        if row.cookies:
            self.assertEqual(tuple(proxy.cookies), row.cookies)
        if row.waited:
            self.assertLess(proxy.timeouts[-1], proxy.timeouts[0] - row.waited + 1.05)  # a call may round them up, to seconds
        for request in row.requests:
            same = [sent for sent in proxy.requests if sent.sampling.seed == request.get("seed", sent.sampling.seed)]
            self.check_requests(row, request, same)

    def check_requests(self, row, request, calls):
        seed, had, session, asked = None, None, None, message(request)
        for number, sent in enumerate(calls):
            if seed is None and sent.sampling.HasField("seed"):
                seed = sent.sampling.seed
            self.assertEqual(sent.sampling.seed, seed)
            asked.sampling.seed = seed
            truth = self.truth(asked)
            if row.calls is not None:
                self.assertEqual(sent.HasField("resume"), number > 0)
            if sent.resume.HasField("fingerprint"):
                if not row.session:  # there it is another one
                    self.assertEqual(sent.resume.fingerprint, truth[0]["fingerprint"])
                samples = [list(sample.ids) for sample in sent.resume.samples]
                self.assertEqual(len(samples), sent.num_samples or 1)
                for index, tokens in enumerate(samples):
                    self.assertEqual(tokens, whole(truth)[index]["tokens"][: len(tokens)])
                    self.assertGreaterEqual(len(tokens), had[index] if had else 0)
                had = [len(tokens) for tokens in samples]
            else:
                self.assertIsNone(had)
                self.assertEqual(len(sent.resume.samples), 0)
            self.assertEqual(sent.session.HasField("position"), row.session == "position")
            self.assertEqual(sent.session.position, 0)
            session = session or copy.deepcopy(sent.session)
            self.assertEqual(sent.session, session)
            for name in ("resume", "model", "session"):
                sent.ClearField(name)
            self.assertEqual(sent, asked, f"call {number}")

    async def play(self, row, driver):
        """The replies that a client gets, and what it was connected to."""
        if driver is None:
            return None
        if row.ended_by is not None:
            return await self.play_end_of_server(row, driver)
        second = self.other if row.elsewhere else self.same if row.cookies and not row.knows else self.server
        targets = [self.server.target, second.target]
        async with Proxy(targets, row.steps, row.forever, row.refused, bool(row.cookies)) as proxy:
            session = self.open_session() if row.session else None
            replies = await asyncio.wait_for(driver.run(job(row, proxy.target, session)), PATIENCE)
        return replies, proxy

    async def play_end_of_server(self, row, driver):
        """As play(). A run in which the whole reply came before the server saw the signal says nothing, and is repeated."""
        args = ("--threads", "1", "--backend", "cpu", "--drain-seconds", "0")
        async with asyncio.timeout(PATIENCE):
            while True:
                with contextlib.ExitStack() as stack:
                    first = await asyncio.to_thread(stack.enter_context, Server(SERVED, args=args))
                    async with Relay(first, self.server.target, passed=20_000, sent=row.ended_by) as relay:
                        replies = await driver.run(job(row, relay.target, None))
                if relay.came_back or any(reply["error"] for reply in replies):
                    return replies, relay

    def test_samples_end_before_others_where_the_table_says_so(self):
        samples = whole(self.truth(message(ENDING)))
        self.assertEqual([len(samples[index]["tokens"]) for index in range(3)], [8, 3, 0])

    def run_row(self, row):
        asked = {name: driver for name, driver in self.drivers.items() if name not in row.without}

        async def play_all():
            return await asyncio.gather(*(self.play(row, driver) for driver in asked.values()), return_exceptions=True)

        outcomes = self.loop.run_until_complete(play_all())
        for name, outcome in zip(asked, outcomes, strict=True):
            with self.subTest(client=name):
                if outcome is None:
                    self.skipTest("not built: deploy/setup.sh --tests makes build/typescript, the build contract_driver")
                if isinstance(outcome, BaseException):
                    raise outcome
                replies, proxy = outcome
                for request, reply in zip(row.requests, replies, strict=True):
                    self.check_reply(row, request, reply)
                if row.ended_by is None:
                    self.check_calls(row, proxy)


for _name, _row in TABLE.items():
    setattr(LostRepliesTest, f"test_{_name}", lambda self, row=_row: self.run_row(row))


if __name__ == "__main__":
    unittest.main()
