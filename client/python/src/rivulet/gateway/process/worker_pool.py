# SPDX-License-Identifier: Apache-2.0
"""Processes for jobs that would block the event loop, or that might never end."""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from rivulet.gateway.worker import body, main as worker
from rivulet.gateway.worker.errors import Refused

_PARSED_HERE = 64 << 10  # a body up to this size is parsed faster here than in another process
# Seconds for a job that computes for at most one second: the machine may be busy. Shorter for prompts, which take milliseconds,
# because other jobs wait.
_PARSER_PATIENCE, _RENDERER_PATIENCE = 30.0, 5.0

_FOLDER = Path(worker.__file__).parent
_PROGRAM = f"import sys; sys.path.insert(0, sys.argv[1]); from {_FOLDER.name}.main import run; run()"


class _Worker:
    """One process, one job at a time, in the order in which they came. Thread: the event loop's."""

    def __init__(self, patience: float) -> None:
        """patience: seconds after which a job is ended, whatever its processor time."""
        self._patience = patience
        self._jobs: asyncio.Queue[tuple[bytes, bytes | bytearray, asyncio.Future[bytes]]] = asyncio.Queue()
        self._process: asyncio.subprocess.Process | None = None
        self._server: asyncio.Task[None] | None = None

    async def start(self, at_once: bool = True) -> None:
        """at_once: without, the process starts with the first job. Errors: OSError."""
        if at_once:
            await self._begin()
        self._server = asyncio.create_task(self._serve())

    async def close(self) -> None:
        if self._server is not None:
            self._server.cancel()
            await asyncio.gather(self._server, return_exceptions=True)
        await self._end()

    async def run(self, kind: bytes, job: bytes | bytearray) -> bytes:
        """Errors: Refused; OSError (no process can be started)."""
        answer = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((kind, job, answer))
        return bytes(await answer)

    async def _serve(self) -> None:
        while True:
            kind, job, answer = await self._jobs.get()
            if answer.done():  # the caller has left
                continue
            try:
                found = await self._exchange(kind, job)
            except (Refused, OSError) as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(found)

    async def _exchange(self, kind: bytes, job: bytes | bytearray) -> bytes:
        """Errors: Refused; OSError."""
        process = self._process or await self._begin()
        try:
            letter, answer = await asyncio.wait_for(_asked(process, kind, job), self._patience)
        except asyncio.TimeoutError:
            await self._end()
            raise Refused(*worker.too_hard(kind, worker.TOO_LONG)) from None
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            # The process has ended. It is not killed as well: kill() could take its exit status away from wait().
            self._process = None
            code = await process.wait()
            if code == -signal.SIGPROF:
                raise Refused(*worker.too_hard(kind, worker.TOO_LONG)) from None
            raise OSError(f"the process that does this ended with {code}") from error
        if letter == worker.REFUSED:
            raise Refused(*json.loads(answer))
        return answer

    async def _begin(self) -> asyncio.subprocess.Process:
        """Errors: OSError."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-Ic", _PROGRAM, str(_FOLDER.parent), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _asked(process: asyncio.subprocess.Process, kind: bytes, job: bytes | bytearray) -> tuple[bytes, bytes]:
    """The letter and the bytes of the answer. Errors: IncompleteReadError, ConnectionError (the process has ended)."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(worker.HEAD.pack(kind, len(job)))
    process.stdin.write(job)
    await process.stdin.drain()
    letter, size = worker.HEAD.unpack(await process.stdout.readexactly(worker.HEAD.size))
    return letter, await process.stdout.readexactly(size)


async def check(template: str) -> None:
    """Compiles a chat template under the usual limits, and tries it. Errors: ValueError with the fault and its place; OSError."""
    process = _Worker(_PARSER_PATIENCE)  # no other job waits
    await process.start()
    try:
        await process.run(worker.CHECK, json.dumps((template, {})).encode())
    except Refused as refused:
        raise ValueError(refused.message.removeprefix("the model's chat template: ")) from None
    finally:
        await process.close()


class WorkerPool:
    """Parses bodies, makes chats into prompts and divides replies, each in its own process, so that a slow template does not delay the
    others. For `async with`."""

    def __init__(self) -> None:
        self._parser = _Worker(_PARSER_PATIENCE)
        self._renderer = _Worker(_RENDERER_PATIENCE)
        self._divider = _Worker(_RENDERER_PATIENCE)

    async def __aenter__(self) -> WorkerPool:
        await self._parser.start()
        await self._renderer.start()
        await self._divider.start(at_once=False)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._parser.close()
        await self._renderer.close()
        await self._divider.close()

    async def parse(self, raw: bytes | bytearray) -> dict[str, Any]:
        """As worker's body.parse()."""
        if len(raw) <= _PARSED_HERE:
            return body.parse(raw)
        found: dict[str, Any] = pickle.loads(await self._parser.run(worker.PARSE, raw))
        return found

    async def chat(self, asked: dict[str, Any]) -> dict[str, Any]:
        """As worker's chats.chat()."""
        try:
            job = json.dumps(asked).encode()
        except RecursionError:
            raise Refused("INVALID_PARAMETER", None, "the body is nested too deeply") from None
        found: dict[str, Any] = json.loads(await self._renderer.run(worker.CHAT, job))
        return found

    async def divide(self, asked: list[Any]) -> dict[str, Any]:
        """As worker's chats.divide()."""
        found: dict[str, Any] = json.loads(await self._divider.run(worker.DIVIDE, json.dumps(asked).encode()))
        return found
