# SPDX-License-Identifier: Apache-2.0
"""The command rivulet-gateway."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from rivulet import AsyncClient, RivuletError, TlsOptions
from rivulet.connection import check_target
from rivulet.errors import Unauthenticated

# Exit codes, as of the `rivulet` command.
_BAD_USAGE, _UNAVAILABLE = 2, 3


def _fail(code: int, message: str) -> NoReturn:
    print(f"rivulet-gateway: {message}", file=sys.stderr)
    sys.exit(code)


def _log(event: str, **fields: object) -> None:
    """A line like those of rivulet-server."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    print(json.dumps({"ts": now, "level": "info", "event": event, **fields}, separators=(",", ":")), file=sys.stderr, flush=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(_BAD_USAGE, f"{message}; see rivulet-gateway --help")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        "rivulet-gateway", description="Serves OpenAI's HTTP API in front of a rivulet-server.", allow_abbrev=False
    )
    parser.add_argument("--target", required=True, metavar="HOST:PORT", help="the rivulet-server")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="where to serve HTTP (default: %(default)s); port 0: a free one")
    parser.add_argument("--chat-template", metavar="FILE", help="the chat template (Jinja) of all models of text, in place of their own")
    parser.add_argument("--tls-ca", metavar="FILE", help="use TLS to the target; FILE (PEM) holds the authorities of its certificate")
    parser.add_argument("--tls-cert", metavar="FILE", help="with --tls-key: the certificate (PEM) that this gateway shows the target; implies TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="the key (PEM) of --tls-cert")
    parser.add_argument("--drain-seconds", type=int, default=30, metavar="N", help="how long running answers may take after SIGTERM (default: %(default)s)")
    return parser.parse_args(arguments)


def _listen(address: str) -> socket.socket:
    """A socket that accepts connections. Ends the process with one line where that is impossible."""
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 65536) or (":" in bare and bare == host):
        _fail(_BAD_USAGE, f"--listen: must be HOST:PORT, for example 127.0.0.1:8000 or [::1]:8000; got {address!r}")
    try:
        found = socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, name = found[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(name)
        listener.listen(1024)
    except OSError as error:
        _fail(_UNAVAILABLE, f"--listen: cannot listen on {address}: {error.strerror}")
    return listener


def _tls(arguments: argparse.Namespace) -> TlsOptions | None:
    """The files of the connection to the target, which can be read."""
    files = {"--tls-ca": arguments.tls_ca, "--tls-cert": arguments.tls_cert, "--tls-key": arguments.tls_key}
    if not any(files.values()):
        return None
    for given, missing in (("--tls-cert", "--tls-key"), ("--tls-key", "--tls-cert")):
        if files[given] and not files[missing]:
            _fail(_BAD_USAGE, f"{given}: needs {missing} too")
    for option, path in files.items():
        try:
            if path and not Path(path).read_bytes().strip():
                _fail(_BAD_USAGE, f"{option}: {path} is empty")
        except OSError as error:
            _fail(_BAD_USAGE, f"{option}: {path}: {error.strerror}")
    return TlsOptions(root_certs_file=arguments.tls_ca, client_cert_file=arguments.tls_cert, client_key_file=arguments.tls_key)


def _chat_template(path: str | None) -> str:
    """Of --chat-template. Ends the process with one line where it is none."""
    from rivulet.gateway import worker

    if path is None:
        return ""
    try:
        template = Path(path).read_text(encoding="utf-8")
        worker.check(template)
    except OSError as error:
        _fail(_BAD_USAGE, f"--chat-template: {path}: {error.strerror}")
    except ValueError as error:
        _fail(_BAD_USAGE, f"--chat-template: {path}: {error}")
    if not template.strip():
        _fail(_BAD_USAGE, f"--chat-template: {path} is empty")
    return template


def _connection(arguments: argparse.Namespace) -> TlsOptions | None:
    """Checks target and certificates before the event loop starts."""
    try:
        check_target(arguments.target)
    except ValueError as error:
        _fail(_BAD_USAGE, f"--{error}")
    tls = _tls(arguments)
    if arguments.drain_seconds < 0:
        _fail(_BAD_USAGE, f"--drain-seconds: must be at least 0; got {arguments.drain_seconds}")
    return tls


async def _check(target: str, tls: TlsOptions | None) -> None:
    """Errors: RivuletError. A server that wants a key is there: those who call the gateway bring theirs."""
    async with AsyncClient(target, tls=tls) as client:
        with suppress(Unauthenticated):
            await client.models(timeout=30)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM or SIGINT."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what gRPC would log is in the errors
    given = _arguments(arguments)
    tls = _connection(given)
    try:
        import uvicorn

        from rivulet.gateway import app
        from rivulet.gateway.protocol import Protocol
        from rivulet.gateway.remembered import GatewayClient
    except ImportError as error:
        _fail(_BAD_USAGE, f"{error.name} is not installed: pip install 'rivulet-client[gateway]'")
    chat_template = _chat_template(given.chat_template)
    try:
        asyncio.run(_check(given.target, tls))
    except RivuletError as error:
        _fail(_UNAVAILABLE, f"--target: {given.target}: {error}")
    listener = _listen(given.listen)
    host, port = listener.getsockname()[:2]

    async def connect() -> GatewayClient:
        return GatewayClient(given.target, tls=tls, chat_template=chat_template)

    def ready() -> None:
        _log("listening", address=given.listen, port=port, target=given.target)

    # uvicorn raises the signal that ended it once more, for the handlers that were there before: these.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    config = uvicorn.Config(
        app.create(connect, ready), http=Protocol, ws="none", loop="asyncio", lifespan="on", log_level="warning", access_log=False,
        server_header=False, timeout_graceful_shutdown=given.drain_seconds,
    )  # fmt: skip
    server = uvicorn.Server(config)
    try:
        server.run(sockets=[listener])
    finally:
        if server.started:
            _log("stopped")
    sys.exit(0 if server.started else 1)


if __name__ == "__main__":
    main()
