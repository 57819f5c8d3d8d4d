# SPDX-License-Identifier: Apache-2.0
"""The command rivulet-gateway."""

from __future__ import annotations

import argparse
import asyncio
import json
import mmap
import os
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rivulet import AsyncClient, RivuletError, TlsOptions
from rivulet.errors import Unauthenticated
from rivulet.gateway.process import checks, options
from rivulet.gateway.process.options import BAD_USAGE, UNAVAILABLE, fail
from rivulet.gateway.process.workers import Place, Workers, end_with_parent, listeners, tell_ready
from rivulet.gateway.web.addresses import bind, is_loopback, named_host

if TYPE_CHECKING:
    from rivulet.gateway.web.access_log import AccessLog
    from rivulet.gateway.web.meters import Meters

_LOOK_SECONDS = 1.0  # between looks at the files of the certificate


def _log(event: str, **fields: object) -> None:
    """Writes a log line in the form of rivulet-server."""
    from rivulet.gateway.web.access_log import now

    print(json.dumps({"ts": now(), "level": "info", "event": event, **fields}, separators=(",", ":")), file=sys.stderr, flush=True)


def _listen(flag: str, address: str, shared: bool = False) -> socket.socket:
    """A socket that accepts connections on the address of a flag. shared: other sockets will listen on it, too. On failure, ends the
    process with one line."""
    try:
        listener = bind(address, shared)
        listener.listen(1024)
    except OSError as error:
        fail(*checks.cannot_listen(flag, address, error))
    return listener


def _hosts(given: argparse.Namespace, listener: socket.socket) -> frozenset[str] | None:
    """The `hosts` of Edge."""
    if "*" in given.allowed_host or not (given.allowed_host or is_loopback(listener.getsockname()[0])):
        return None
    return frozenset(host for host in map(named_host, given.allowed_host) if host)


async def _has_keys(target: str, tls: TlsOptions | None) -> bool:
    """Whether the server requires a key, which callers of the gateway then bring. The server must answer. Errors: RivuletError."""
    async with AsyncClient(target, tls=tls) as client:
        try:
            await client.models(timeout=30)
        except Unauthenticated:
            return True
    return False


async def _watch_certificate(context: ssl.SSLContext, cert: str, key: str) -> None:
    """Uses changed files for later connections. Skips a certificate and key that do not match: one file may not be written yet."""

    def seen() -> list[tuple[int, int]]:
        return [(info.st_mtime_ns, info.st_ino) for info in map(os.stat, (cert, key))]

    last = seen()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            found = seen()
            if found == last:
                continue
            last = found
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
            context.load_cert_chain(cert, key, password="")
        except (ssl.SSLError, OSError) as error:
            _log("tls_reload_failed", reason=str(error))
        else:
            _log("tls_reloaded", cert=cert)


def _open_log(path: str) -> AccessLog | None:
    from rivulet.gateway.web.access_log import AccessLog

    if path == "none":
        return None
    try:
        return AccessLog(path)
    except OSError as error:  # checks.faults() found nothing: the fault is newer, or the disk is full
        fail(BAD_USAGE, f"--access-log: {path}: {error.strerror}")


def _serve(given: argparse.Namespace, tls: TlsOptions | None, listener: socket.socket, meters: Meters, place: Place | None) -> None:
    """Serves in this process until SIGTERM or SIGINT."""
    import uvicorn

    from rivulet.gateway import app
    from rivulet.gateway.web.protocol import Limits, limited
    from rivulet.gateway.upstream.key_cache import GatewayClient

    tasks: list[Any] = []

    async def connect() -> GatewayClient:
        if place is not None:
            end_with_parent(place.line)
        if config.ssl is not None:
            tasks.append(asyncio.create_task(_watch_certificate(config.ssl, given.https_cert, given.https_key)))
        client = GatewayClient(given.target, tls=tls, chat_template=given.chat_template)
        if given.metrics_listen or given.metrics_target:
            tasks.append(asyncio.create_task(meters.watch(client.serves)))
        return client

    def ready() -> None:
        if place is not None:
            tell_ready(place.line)
            return
        _log("listening", address=given.listen, port=listener.getsockname()[1], target=given.target)

    with ExitStack() as stack:
        log = _open_log(given.access_log)
        if log is not None:
            stack.enter_context(log)
        settings = app.Settings(
            meters, log, given.max_body_mib << 20, given.metrics_target, tuple(given.cors_origin), _hosts(given, listener),
            options.ignored(given),
        )
        limits = Limits(given.max_connections, given.request_seconds, given.reader_seconds)
        # uvicorn raises its ending signal once more, for the handlers that were set before: these.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(0))
        config = uvicorn.Config(
            app.create(connect, ready, settings), http=limited(limits, meters), ws="none", loop="asyncio", lifespan="on", log_level="warning",
            access_log=False, server_header=False, timeout_graceful_shutdown=given.drain_seconds, ssl_certfile=given.https_cert,
            ssl_keyfile=given.https_key,
        )  # fmt: skip
        server = uvicorn.Server(config)
        try:
            server.run(sockets=[listener])
        finally:
            if server.started and place is None:
                _log("stopped")
    sys.exit(0 if server.started else 1)


def _show_metrics(given: argparse.Namespace, meters: Meters) -> None:
    if not given.metrics_listen:
        return
    from rivulet.gateway.web.meters import serve

    listener = _listen("--metrics-listen", given.metrics_listen)
    _log("metrics_listening", address=given.metrics_listen, port=listener.getsockname()[1])
    serve(listener, meters)


def _supervise(given: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Serves in several processes."""
    from rivulet.gateway.app import PATHS
    from rivulet.gateway.web.meters import Meters

    size = Meters.size(PATHS)
    first = _listen("--listen", given.listen, shared=True)
    try:
        sockets = listeners(first, given.workers)
    except OSError as error:
        fail(*checks.cannot_listen("--listen", given.listen, error))
    memory = os.memfd_create("rivulet-gateway")
    os.ftruncate(memory, size * given.workers)
    _show_metrics(given, Meters(PATHS, mmap.mmap(memory, size * given.workers), 0, given.workers))

    def ready() -> None:
        _log("listening", address=given.listen, port=first.getsockname()[1], target=given.target, workers=given.workers)

    workers = Workers(arguments, sockets, memory, ready, lambda pid, code: _log("worker_ended", pid=pid, code=code))
    code = asyncio.run(workers.run())
    if code == 0:
        _log("stopped")
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM or SIGINT; with --check-config, prints the faults that would end a start."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the errors hold what gRPC would log
    arguments = sys.argv[1:] if arguments is None else arguments
    given = options.parse(arguments)
    found = list(checks.faults(given))
    if given.check_config:
        checks.report(found)
    if found:
        fail(*found[0])
    from rivulet.gateway.app import PATHS
    from rivulet.gateway.web.meters import Meters

    tls = options.tls(given)
    if given.worker is not None:
        place = Place.of(given.worker)
        memory = mmap.mmap(place.memory, Meters.size(PATHS) * given.workers)
        meters = Meters(PATHS, memory, place.index, given.workers)
        _serve(given, tls, socket.socket(fileno=place.listener), meters, place)
    try:
        keys = asyncio.run(_has_keys(given.target, tls))
    except RivuletError as error:
        fail(UNAVAILABLE, f"--target: {given.target}: {error}")
    if keys and not given.allowed_host:  # a page of a rebound name has no key
        given.allowed_host, arguments = ["*"], [*arguments, "--allowed-host=*"]
    if given.workers > 1:
        _supervise(given, arguments)
    meters = Meters(PATHS)
    listener = _listen("--listen", given.listen)
    _show_metrics(given, meters)
    _serve(given, tls, listener, meters, None)


if __name__ == "__main__":
    main()
