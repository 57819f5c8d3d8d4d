# SPDX-License-Identifier: Apache-2.0
"""Parses untrusted request bodies and renders chat templates, under limits of time and memory. As a program it takes jobs from stdin,
one after another, and may be killed at any time: by process/worker_pool.py, and by the command `rivulet`, with which it is installed as
share/rivulet/chat_worker.py (client/cli/chat/template_process.h). It imports no other module of rivulet, so that it starts in 0.1 s
and needs 20 MiB."""

from __future__ import annotations

import datetime
import functools
import gc
import json
import pickle
import resource
import signal
import struct
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Head of a job and of its answer: a letter, and the number of bytes that follow.
HEAD = struct.Struct("!cQ")
PARSE, RENDER = b"p", b"r"  # argument: a body; the pickle of render()'s arguments
RENDER_JSON, TURN_END = b"j", b"t"  # the arguments of render() or turn_end(), as a JSON array
VALUE, REFUSED = b"v", b"e"  # the pickle of parse()'s result or the text of another job; code, param and message as JSON

MOST_PROMPTS = 64
MOST_IDS = 1 << 20  # of all prompts together
MOST_NAMES = 256  # parameters of a body
MOST_VALUES = 1 << 16  # members of arrays and objects within a parameter that is not a prompt
MOST_RENDERED = 64 << 20  # bytes of UTF-8
# Most entries of a parameter, with the error code: the server's code, if it has one.
_MOST_ENTRIES = {
    "messages": (4096, "INVALID_PARAMETER"), "logit_bias": (4096, "INVALID_PARAMETER"), "stop": (16, "TOO_MANY_STOP_STRINGS"),
    "stop_token_ids": (64, "TOO_MANY_STOP_TOKENS"),
}  # fmt: skip

_MOST_STOP_BYTES = 256  # of a stop string; the server's limit
# Contents that no template writes by itself.
_TURNS = [
    {"role": "user", "content": "first"}, {"role": "assistant", "content": "answer-4f1c"}, {"role": "user", "content": "question-9b27"},
]  # fmt: skip

_SECONDS = 1  # of processor time for one job
_MEMORY = 512 << 20  # of the process's address space


class Refused(Exception):
    """The request is not accepted. code, param, message: as in Problem."""

    def __init__(self, code: str, param: str | None, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.message = message


def shown(value: Any) -> str:
    """A value for an error message, shortened."""
    text = json.dumps(value[:80]) if isinstance(value, str) else ""
    for piece in () if text else json.JSONEncoder(default=list).iterencode(value):
        text += piece
        if len(text) > 80:
            break
    return text if len(text) <= 80 else text[:77] + "..."


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _holds_more(value: Any, most: int) -> bool:
    """Whether there are more than `most` members in the arrays and objects of a value."""
    left, held = [value], 0
    while left:
        one = left.pop()
        if isinstance(one, (list, dict)):
            held += len(one)
            if held > most:
                return True
            left.extend(one.values() if isinstance(one, dict) else one)
    return False


def ids(name: str, value: list[Any]) -> array[int]:
    """Errors: Refused."""
    if set(map(type, value)) <= {int} and min(value, default=0) >= 0 and max(value, default=0) < 2**31:
        return array("i", value)
    for index, token in enumerate(value):
        if type(token) is not int or not 0 <= token < 2**31:
            raise Refused("INVALID_PARAMETER", f"{name}[{index}]", f"must be a token id; got {shown(token)}")
    raise AssertionError("a list without a bad entry was not accepted")


def _prompt(value: Any) -> Any:
    """The parameter `prompt` with its token ids as arrays: one prompt or several. Errors: Refused."""
    if not isinstance(value, list):
        return value
    several = bool(value) and isinstance(value[0], (str, list))
    if several and len(value) > MOST_PROMPTS:
        raise Refused("INVALID_PARAMETER", "prompt", f"must be at most {MOST_PROMPTS} prompts; got {len(value)}")
    lists = [one for one in value if isinstance(one, list)] if several else [value]
    if (given := sum(map(len, lists))) > MOST_IDS:
        raise Refused("INVALID_PARAMETER", "prompt", f"must be at most {MOST_IDS} token ids; got {given}")
    if not several:
        return ids("prompt", value)
    return [ids(f"prompt[{index}]", one) if isinstance(one, list) else one for index, one in enumerate(value)]


def _limited(name: str, value: Any) -> Any:
    """Returns a parameter that is within the limits. Errors: Refused."""
    if name == "prompt":
        value = _prompt(value)
    most, code = _MOST_ENTRIES.get(name, (MOST_VALUES, "INVALID_PARAMETER"))
    if isinstance(value, (list, dict)) and len(value) > most:
        raise Refused(code, name, f"must have at most {most} entries; got {len(value)}")
    if _holds_more(value, MOST_VALUES):
        raise Refused("INVALID_PARAMETER", name, f"must hold at most {MOST_VALUES} values in all")
    return value


def parse(raw: bytes | bytearray) -> dict[str, Any]:
    """The parameters of a body; `prompt` has token ids as arrays of int32. Errors: Refused."""
    try:
        value = json.loads(raw or b"{}", parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Refused("INVALID_JSON", None, f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refused("INVALID_JSON", None, f"the body must be a JSON object; got {shown(value)}")
    if len(value) > MOST_NAMES:
        raise Refused("INVALID_JSON", None, f"the body must have at most {MOST_NAMES} parameters; got {len(value)}")
    return {name: _limited(name, one) for name, one in value.items()}


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Replaces Jinja's filter, which escapes for HTML: a prompt is not HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """{% generation %}, with which some templates mark answers for training. It writes its content. Variables that are set inside
    are local to it."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Any) -> Any:
        return caller()


@functools.lru_cache(maxsize=32)
def _compiled(template: str) -> jinja2.Template:
    """Compiles a template with the settings and functions of transformers' apply_chat_template, which templates of
    published models expect."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    return (str(error) or type(error).__name__)[:1000]


def render(template: str, messages: Sequence[Mapping[str, Any]], special_tokens: Mapping[str, str]) -> bytes:
    """The prompt that makes the model continue a conversation, as UTF-8. special_tokens: texts by role ("bos_token").
    Errors: Refused; MemoryError."""
    found = bytearray()
    values = {**special_tokens, "messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        for piece in _compiled(template).generate(values):
            found += piece.encode()
            if len(found) > MOST_RENDERED:
                raise Refused("CHAT_TEMPLATE_TOO_HARD", "messages", f"the model's chat template writes more than {MOST_RENDERED} bytes")
    except (Refused, MemoryError):
        raise
    except Exception as error:  # a template can cause nearly all of them
        raise Refused("CHAT_TEMPLATE_REFUSED", "messages", f"the model's chat template: {_reason(error)}") from error
    return bytes(found)


def turn_end(template: str, special_tokens: Mapping[str, str]) -> str:
    """The text that the template writes between an answer and the next question, without white space at its end. A model that does
    not end its answer writes this text before it speaks for the user. "": the template has no such text. Errors: Refused (it cannot
    be compiled); MemoryError."""
    try:
        _compiled(template)
    except MemoryError:
        raise
    except Exception as error:  # also errors of Python's compiler, which compiles Jinja's output
        raise Refused("CHAT_TEMPLATE_REFUSED", "messages", f"the model's chat template: {_reason(error)}") from None
    try:
        prompt = render(template, _TURNS, special_tokens).decode()
    except Refused:
        return ""
    between = prompt.partition(_TURNS[1]["content"])[2].partition(_TURNS[2]["content"])
    end = between[0].rstrip() if between[1] else ""
    return end if len(end.encode()) <= _MOST_STOP_BYTES else ""


def _value(kind: bytes, job: bytes) -> bytes:
    """Errors: Refused; MemoryError."""
    if kind == PARSE:
        return pickle.dumps(parse(job))
    if kind == TURN_END:
        return turn_end(*json.loads(job)).encode()
    return render(*(pickle if kind == RENDER else json).loads(job))


def _done(kind: bytes, job: bytes) -> tuple[bytes, bytes]:
    """The letter and the bytes of a job's answer."""
    try:
        return VALUE, _value(kind, job)
    except Refused as refused:
        error = (refused.code, refused.param, refused.message)
    except MemoryError:
        error = too_hard(kind, f"more than {_MEMORY >> 20} MiB of memory")
    return REFUSED, json.dumps(error).encode()


def too_hard(kind: bytes, what: str) -> tuple[str, str | None, str]:
    """Code, param and message for a job that exceeded its limits."""
    if kind == PARSE:
        return "BODY_TOO_LARGE", None, f"parsing the body takes {what}"
    return "CHAT_TEMPLATE_TOO_HARD", "messages", f"rendering the model's chat template takes {what}"


TOO_LONG = f"more than {_SECONDS} s"


def main(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Runs jobs until `jobs` ends. A job that computes for too long ends the process at once, with SIGPROF."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends `jobs`
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.freeze()
    gc.disable()  # it would scan the millions of values of a body again and again
    while head := jobs.read(HEAD.size):
        kind, size = HEAD.unpack(head)
        job = jobs.read(size)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        letter, answer = _done(kind, job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(HEAD.pack(letter, len(answer)) + answer)
        answers.flush()
        gc.collect()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
