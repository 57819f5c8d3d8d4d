# SPDX-License-Identifier: Apache-2.0
"""Several processes that serve one address. Each process has its own listening socket; the kernel divides connections between the
sockets. The sockets stay open here, so that connections wait while a process is started again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

_AGAIN_SECONDS = 1.0  # before a process that ended is started again


@dataclass(frozen=True)
class Place:
    """The inheritance of a process: its number, and the descriptors of its listening socket, of the meters' memory and of the line to
    its parent."""

    index: int
    listener: int
    memory: int
    line: int

    def text(self) -> str:
        return f"{self.index},{self.listener},{self.memory},{self.line}"

    @staticmethod
    def of(text: str) -> Place:
        return Place(*map(int, text.split(",")))


class _Worker:
    """One process, and its successors."""

    def __init__(self, arguments: Sequence[str], index: int, listener: socket.socket, memory: int) -> None:
        self._arguments = arguments
        self._index = index
        self._listener = listener
        self._memory = memory
        self.process: asyncio.subprocess.Process | None = None
        self._line: socket.socket | None = None  # open as long as the process is wanted

    async def ended(self) -> int:
        """Waits for the end. Returns the exit code, negative if a signal ended the process."""
        assert self.process is not None
        return await self.process.wait()

    async def start(self) -> bool:
        """Starts the process. Returns True once it serves, False if it ended before."""
        mine, its = socket.socketpair()
        mine.setblocking(False)
        place = Place(self._index, self._listener.fileno(), self._memory, its.fileno())
        with its:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "rivulet.gateway.command", *self._arguments, "--worker", place.text(),
                pass_fds=(place.listener, place.memory, place.line),
            )  # fmt: skip
        if self._line is not None:
            self._line.close()
        self._line = mine
        return bool(await asyncio.get_running_loop().sock_recv(mine, 1))

    def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            # If the process has just ended, terminate() would take its exit code away from ended().
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGTERM)


class Workers:
    """Thread: its event loop's."""

    def __init__(
        self, arguments: Sequence[str], listeners: Sequence[socket.socket], memory: int, ready: Callable[[], None], ended: Callable[[int, int], None]
    ) -> None:
        """arguments: the command's arguments, for each process. ready: called once all processes serve. ended: called with pid and exit
        code of a process, which is then started again."""
        self._workers = [_Worker(arguments, index, listener, memory) for index, listener in enumerate(listeners)]
        self._ready = ready
        self._ended = ended
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Runs until SIGTERM or SIGINT, or until a process ends before all processes serve. Returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        work = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, stopping):
            task.cancel()
        await asyncio.gather(work, stopping, return_exceptions=True)
        for worker in self._workers:
            worker.stop()
        codes = [await worker.ended() for worker in self._workers if worker.process is not None]
        return max(map(abs, codes), default=0)

    async def _serve(self) -> None:
        """Ends if a process ends before all processes serve."""
        if all(await asyncio.gather(*(worker.start() for worker in self._workers))):
            self._ready()
            await asyncio.gather(*(self._kept(worker) for worker in self._workers))

    async def _kept(self, worker: _Worker) -> None:
        while True:
            code = await worker.ended()
            assert worker.process is not None
            self._ended(worker.process.pid, code)
            await asyncio.sleep(_AGAIN_SECONDS)
            await worker.start()


def listeners(first: socket.socket, count: int) -> list[socket.socket]:
    """`first`, which is bound with SO_REUSEPORT, and more on the same address. Errors: OSError."""
    found = [first]
    for _ in range(count - 1):
        listener = socket.socket(first.family, first.type, first.proto)
        found.append(listener)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(first.getsockname())
        listener.listen(1024)
    return found


def tell_ready(line: int) -> None:
    os.write(line, b"1")


def end_with_parent(line: int) -> None:
    """Ends this process as SIGTERM does once its parent is gone. Call within the event loop."""
    asyncio.get_running_loop().add_reader(line, _parent_gone, line)


def _parent_gone(line: int) -> None:
    asyncio.get_running_loop().remove_reader(line)
    os.kill(os.getpid(), signal.SIGTERM)
