# SPDX-License-Identifier: Apache-2.0
"""The program: takes jobs from stdin, one after another, and may be killed at any time."""

from __future__ import annotations

import gc
import json
import pickle
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from . import body
from .errors import Refused

# Head of a job and of its answer: a letter, and the number of bytes that follow.
HEAD = struct.Struct("!cQ")
PARSE = b"p"  # a body; the answer is the pickle of body.parse()
CHAT, CHECK, DIVIDE = b"c", b"t", b"d"  # the argument of chats.chat(), check() or divide(), and its result, as JSON
VALUE, REFUSED = b"v", b"e"  # the result; code, param and message as JSON

_SECONDS = 1  # of processor time for one job
_MEMORY = 512 << 20  # of the process's address space
_JOBS_BETWEEN = 100  # full garbage collections, each of which takes as long as a chat; the others are of what the job has made


def _jobs() -> dict[bytes, Callable[[Any], Any]]:
    from . import chats  # not for the gateway, which imports this module

    return {CHAT: chats.chat, CHECK: chats.check, DIVIDE: chats.divide}


def _value(kind: bytes, job: bytes) -> bytes:
    """Errors: Refused; MemoryError."""
    if kind == PARSE:
        return pickle.dumps(body.parse(job))
    # "\ud800" is what JSON writes for half of a surrogate pair, too.
    return json.dumps(_jobs()[kind](json.loads(job)), ensure_ascii=False).encode(errors="backslashreplace")


def _done(kind: bytes, job: bytes) -> tuple[bytes, bytes]:
    """The letter and the bytes of a job's answer."""
    try:
        return VALUE, _value(kind, job)
    except Refused as refused:
        error = (refused.code, refused.param, refused.message)
    except RecursionError:
        error = ("INVALID_PARAMETER", None, "the parameters are nested too deeply")
    except MemoryError:
        error = too_hard(kind, f"more than {_MEMORY >> 20} MiB of memory")
    except Exception as failed:  # a bug: it must not end the process, which others use
        error = ("CHAT_FAILED", None, f"a bug of the worker: {type(failed).__name__}: {failed}")
    return REFUSED, json.dumps(error).encode()


def too_hard(kind: bytes, what: str) -> tuple[str, str | None, str]:
    """Code, param and message for a job that exceeded its limits."""
    if kind == PARSE:
        return "BODY_TOO_LARGE", None, f"parsing the body takes {what}"
    if kind == DIVIDE:
        return "RESPONSE_PARSE_TOO_HARD", None, f"dividing the reply by the model's response template takes {what}"
    return "CHAT_TEMPLATE_TOO_HARD", "messages", f"rendering the model's chat template takes {what}"


TOO_LONG = f"more than {_SECONDS} s"


def main(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Runs jobs until `jobs` ends. A job that computes for too long ends the process at once, with SIGPROF."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends `jobs`
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _jobs()
    gc.freeze()
    gc.disable()  # it would scan the millions of values of a body again and again
    done = 0
    while head := jobs.read(HEAD.size):
        kind, size = HEAD.unpack(head)
        job = jobs.read(size)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        letter, answer = _done(kind, job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(HEAD.pack(letter, len(answer)) + answer)
        answers.flush()
        done += 1
        gc.collect(0 if done % _JOBS_BETWEEN else 2)


def run() -> Any:
    main(sys.stdin.buffer, sys.stdout.buffer)
