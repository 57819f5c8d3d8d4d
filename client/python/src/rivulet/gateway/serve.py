# SPDX-License-Identifier: Apache-2.0
"""rivulet serve: one rivulet-server and one rivulet-gateway on this machine, as two processes with one log (stderr). The program `rivulet`
starts main() in a Python that has this package."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from rivulet import __version__
from rivulet.gateway.process import checks, hub, options
from rivulet.gateway.process.options import BAD_USAGE, UNAVAILABLE
from rivulet.gateway.web.addresses import bind, host_port

_HELP = """\
Serves models on this machine: gRPC on --listen; OpenAI's API, the page and the
documentation on --http.
Usage: rivulet serve MODEL [MODEL...] [FLAGS]

Example: rivulet serve model/zoo/shakespeare-chat --weights int8

MODEL                    Model directory or GGUF file; or OWNER/NAME[@REVISION][:FILE],
                         a repository in the cache of Hugging Face, where FILE names
                         one of several GGUF files. NAME=DIR names the model
--http HOST:PORT         Address of the HTTP server (default: 127.0.0.1:8000); port 0: a free one
--download               Download a MODEL that the cache of Hugging Face does not have;
                         needs the Python package huggingface_hub
--http-FLAG ...          A flag of rivulet-gateway, such as --http-workers 2 or
                         --http-https-cert FILE; rivulet-gateway --help lists them
--FLAG ...               A flag of rivulet-server, such as --listen 127.0.0.1:50051 or
                         --slots 64; rivulet-server --help lists them
--check-config           Print all errors of flags, files and models, and exit
--print-config           Print the settings of the server that are in force, and exit
--version                Print the version and exit
--help                   Print this help and exit

SIGTERM and Ctrl-C end the gateway, then the server; running answers may end first.
"""
_ALONE = {"--check-config", "--download", "--help", "-h", "--print-config", "--version"}  # flags without a value
_SET_HERE = {
    "--http-check-config": "--check-config checks both programs",
    "--http-listen": "--http is the address of the HTTP server",
    "--http-target": "the gateway's server is the one that rivulet serve starts; rivulet-gateway takes another",
    "--http-worker": "--http-workers sets the number of processes",
    "--host": "--http HOST:PORT is the address of the HTTP server, --listen HOST:PORT that of gRPC",
    "--port": "--http HOST:PORT is the address of the HTTP server, --listen HOST:PORT that of gRPC",
}
_UNKNOWN = "localhost:1"  # the target, until the server's port is known
_LOOK_SECONDS = 0.05  # between attempts to connect to a process that starts
_PR_SET_PDEATHSIG = 1


def _fail(code: int, message: str) -> NoReturn:
    print("rivulet serve:", message.replace("\n", " "), file=sys.stderr)
    sys.exit(code)


class Arguments(NamedTuple):
    """The arguments, divided by the program that they are for."""

    models: list[str]
    alone: set[str]
    server: list[str]
    gateway: list[str]  # with the names that rivulet-gateway gives them


def divide(arguments: Sequence[str]) -> Arguments:
    """A word that follows a flag without "=" is the flag's value, unless it is a flag, too."""
    found = Arguments([], set(), [], [])
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, _ = word.partition("=")
        if not word.startswith("-"):
            found.models.append(word)
        elif word in _ALONE:
            found.alone.add(word)
        elif name in ("-m", "-hf", "--hf-repo"):
            _fail(BAD_USAGE, f"unknown option {word}: a model stands alone, as in rivulet serve MODEL; see rivulet serve --help")
        elif name in _SET_HERE:
            _fail(BAD_USAGE, f"{name}: {_SET_HERE[name]}")
        else:
            is_http = name == "--http" or name.startswith("--http-")
            own = "--" + word.removeprefix("--http-") if is_http else word
            to = found.gateway if is_http else found.server
            to.append(word.replace("--http", "--listen", 1) if name == "--http" else own)
            if not equals and words and not words[0].startswith("-"):
                to.append(words.pop(0))
    return found


def _of_serve(message: str) -> str:
    """An error of rivulet-gateway, with the names that its flags have here."""

    def named(flag: re.Match[str]) -> str:
        return {"help": "--help", "listen": "--http"}.get(flag[1], f"--http-{flag[1]}")

    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", named, message.replace("rivulet-gateway --help", "rivulet serve --help"))


def _local(address: str) -> tuple[str, int]:
    """How this machine reaches a server that listens on the address."""
    host, port = host_port(address) or ("", 0)
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _free(address: str, flag: str) -> str:
    """The address, with a free port in place of port 0. Ends this process if the address is taken: loading a model first would take time."""
    try:
        with bind(address, shared=False) as found:
            found.listen()
            return _join((host_port(address, least=0) or ("", 0))[0], found.getsockname()[1])
    except (OSError, ValueError) as error:
        _fail(UNAVAILABLE, f"{flag}: cannot listen on {address}: {getattr(error, 'strerror', None) or error}")


class Program(NamedTuple):
    """words: its command line. address: how this machine reaches it. asks: what it answers, where listening is not serving. tls: of that."""

    words: Sequence[str]
    address: tuple[str, int]
    asks: bytes = b""
    tls: ssl.SSLContext | None = None

    async def answers(self) -> bool:
        """Errors: OSError."""
        reader, writer = await asyncio.open_connection(*self.address, ssl=self.tls)
        writer.write(self.asks)
        answered = not self.asks or bool(await reader.read(1))
        writer.close()
        return answered


def _any_certificate() -> ssl.SSLContext:
    """This process started the server that it connects to."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class _Children:
    """The two processes. They end with this one (SIGKILL), and their group is not the terminal's: Ctrl-C reaches this process alone."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self._code = 0  # of a second signal
        self._started: list[asyncio.subprocess.Process] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, number)

    def _stop(self, number: int) -> None:
        if not self.stopping.is_set():
            print("Waiting for the running answers to end. Press Ctrl-C again to stop at once.", flush=True)
            self.stopping.set()
            return
        for child in self._started:
            _send(child, signal.SIGKILL)
        self._code = 128 + number  # as a shell's

    async def _start(self, words: Sequence[str]) -> asyncio.subprocess.Process:
        parent = os.getpid()
        prctl = ctypes.CDLL(None).prctl

        def end_with_parent() -> None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        child = await asyncio.create_subprocess_exec(
            *words, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=end_with_parent
        )
        self._started.append(child)
        return child

    async def serves(self, program: Program) -> bool:
        """Starts the program and waits until it answers. False: it ended, or this process is to stop."""
        child = await self._start(program.words)
        while child.returncode is None and not self.stopping.is_set():
            with suppress(OSError):
                if await program.answers():
                    return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def run(self, server: Program, gateway: Program, ready: Callable[[], None]) -> int:
        """Starts the two in this order, and serves until a signal comes or one of them ends. Returns the exit code, which is not 0 if one
        ended by itself."""
        if await self.serves(server) and await self.serves(gateway):
            ready()
            waits = [asyncio.create_task(one) for one in (self.stopping.wait(), *(child.wait() for child in self._started))]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        failed = not self.stopping.is_set()
        codes = [await self._end(child) for child in reversed(self._started)]
        return self._code or max(codes) or int(failed)

    async def _end(self, child: asyncio.subprocess.Process) -> int:
        """Lets the child end its answers. Its exit code; a signal's number behind 128, as in a shell."""
        _send(child, signal.SIGTERM)
        code = await child.wait()
        return code if code >= 0 else 128 - code


def _send(child: asyncio.subprocess.Process, number: int) -> None:
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)


def _settings(program: str, arguments: Sequence[str]) -> dict[str, object]:
    """The settings of rivulet-server in force. Ends this process where it has printed what is wrong."""
    shown = subprocess.run([program, *arguments, "--print-config"], stdout=subprocess.PIPE, check=False)
    if shown.returncode:
        sys.exit(shown.returncode)
    return dict(json.loads(shown.stdout))


def _check(program: str, arguments: Sequence[str], given: argparse.Namespace) -> NoReturn:
    """Prints all errors. The exit code is the least one, as of rivulet-server --check-config."""
    shown = subprocess.run([program, *arguments, "--check-config"], stdout=subprocess.DEVNULL, check=False)
    faults = list(_faults(given))
    if not shown.returncode:
        faults += _faults_of_both(_settings(program, arguments), given)
    for fault in faults:
        print("rivulet serve:", fault.message, file=sys.stderr)
    codes = [code for code in (shown.returncode, *(fault.code for fault in faults)) if code]
    if codes:
        sys.exit(min(codes))
    print("the configuration is good")
    sys.exit(0)


def _without(flag: str, words: Sequence[str]) -> list[str]:
    """The words without the flag and its value: rivulet-server takes a flag once."""
    left = [word for word in words if not word.startswith(f"{flag}=")]
    if flag in left:
        del left[left.index(flag) : left.index(flag) + 2]
    return left


def _faults(given: argparse.Namespace) -> Iterator[options.Fault]:
    for fault in checks.faults(given):
        yield options.Fault(fault.code, _of_serve(fault.message))


def _faults_of_both(settings: dict[str, object], given: argparse.Namespace) -> Iterator[options.Fault]:
    if settings["tls-cert"] and options.tls(given) is None:
        yield options.Fault(BAD_USAGE, "--tls-cert: the gateway has to check this certificate: --http-tls-ca FILE names its CA certificates")
    if host_port(given.listen) is not None and host_port(given.listen) == host_port(str(settings["listen"])):
        yield options.Fault(BAD_USAGE, f"--http: {given.listen} is the address of --listen, too")


def _models(names: Sequence[str], download: bool) -> Iterator[str]:
    for name in names:
        try:
            yield from ("--model", hub.find(name, download))
        except hub.NotFound as error:
            _fail(BAD_USAGE, str(error))


def main(version: str, program: str, arguments: Sequence[str]) -> NoReturn:
    """version, program: of the rivulet-server beside `rivulet`. Ends the process: with 0 after SIGTERM or SIGINT, with the exit code of the
    program that failed otherwise."""
    if version != __version__:
        _fail(BAD_USAGE, f"rivulet-server has version {version}, and rivulet-client {__version__}: install one version of both")
    words = divide(arguments)
    if words.alone & {"--help", "-h"}:
        print(_HELP, end="")
        sys.exit(0)
    if "--version" in words.alone:
        print(f"rivulet serve {__version__}")
        sys.exit(0)
    if not words.models and not any(word.startswith(("--model", "--config")) for word in words.server):
        _fail(BAD_USAGE, "no model is given: rivulet serve MODEL; see rivulet serve --help")
    server = [*words.server, *_models(words.models, "--download" in words.alone)]
    given = options.parse(["--target", _UNKNOWN, *words.gateway])
    if "--check-config" in words.alone:
        _check(program, server, given)
    settings = _settings(program, server)
    if "--print-config" in words.alone:
        print(json.dumps(settings, indent=2))
        sys.exit(0)
    for fault in (*_faults(given), *_faults_of_both(settings, given)):
        _fail(*fault)
    grpc, http = _free(str(settings["listen"]), "--listen"), _free(given.listen, "--http")
    server = [program, *_without("--listen", server), "--listen", grpc]
    gateway = [sys.executable, "-m", "rivulet.gateway.command", *words.gateway, "--target", _join(*_local(grpc)), "--listen", http]

    def ready() -> None:
        page = f"{'https' if given.https_cert else 'http'}://{_join(*_local(http))}/"
        print(f"The page is {page}, OpenAI's API is {page}v1, gRPC is {grpc}. Ctrl-C ends all.", flush=True)

    async def run() -> int:
        health = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        tls = _any_certificate() if given.https_cert else None
        return await _Children().run(Program(server, _local(grpc)), Program(gateway, _local(http), health, tls), ready)

    sys.exit(asyncio.run(run()))
