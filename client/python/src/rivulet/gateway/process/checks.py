# SPDX-License-Identifier: Apache-2.0
"""Finds the faults of rivulet-gateway's options. A start ends with the first fault; --check-config prints all faults."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import re
import ssl
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from rivulet.core.connection import check_target
from rivulet.gateway.process.options import BAD_USAGE, NOT_IGNORED, NUMBERS, UNAVAILABLE, Fault, complain, ignored, value
from rivulet.gateway.web.addresses import bind, host_port, named_host

_EMPTY = "the path must not be empty"  # mostly from a shell variable that is not set


def faults(given: argparse.Namespace) -> Iterator[Fault]:
    """All faults that would end a start, except an unreachable target (nothing connects to it) and an address that
    another process has. Sets given.chat_template to the text of the file ("": no file), which is read only once because
    it may be a pipe."""
    yield from _values(given)
    yield from _tls_files(given)
    yield from _https_files(given)
    yield from _access_log(given.access_log)
    if given.worker is None:  # else it has its socket
        yield from _listen("--listen", given.listen)
        if given.metrics_listen:
            yield from _listen("--metrics-listen", given.metrics_listen)
    absent = list(_packages())
    yield from absent
    if not absent:
        yield from _chat_template(given)


def report(found: Sequence[Fault]) -> NoReturn:
    """Prints the faults and ends the process, as `rivulet-server --check-config` does."""
    for fault in found:
        complain(fault.message)
    if found:
        sys.exit(min(fault.code for fault in found))
    print("the configuration is good")
    sys.exit(0)


def cannot_listen(flag: str, address: str, error: OSError) -> Fault:
    return Fault(UNAVAILABLE, f"{flag}: cannot listen on {address}: {error.strerror}")


def _values(given: argparse.Namespace) -> Iterator[Fault]:
    if given.unknown:
        yield Fault(BAD_USAGE, f"unrecognized arguments: {' '.join(given.unknown)}; see rivulet-gateway --help")
    yield from _target(given.target)
    for flag, _, least, most, _ in NUMBERS:
        number = value(given, flag)
        if not isinstance(number, int) or not least <= number <= most:
            yield Fault(BAD_USAGE, f"{flag}: must be a whole number from {least} to {most}; got {number!r}")
    if given.metrics_target and host_port(given.metrics_target) is None:
        yield Fault(BAD_USAGE, f"--metrics-target: must be HOST:PORT, for example 127.0.0.1:9464; got {given.metrics_target!r}")
    for name in sorted(ignored(given)):
        if not re.fullmatch(r"\w+", name) or name in NOT_IGNORED:
            yield Fault(BAD_USAGE, f"--ignore-parameters: must be comma-separated names, none of {', '.join(sorted(NOT_IGNORED))}; got {name!r}")
    for origin in given.cors_origin:
        if origin != "*" and not re.fullmatch(r"https?://[^/?#\s]+", origin):
            yield Fault(BAD_USAGE, f"--cors-origin: must be *, or a scheme and a host as browsers send it, https://example.org; got {origin!r}")
    for host in given.allowed_host:
        if host != "*" and named_host(host) != host.lower():
            yield Fault(BAD_USAGE, f"--allowed-host: must be *, or a name or address without port, example.org or [2001:db8::1]; got {host!r}")


def _target(target: str | None) -> Iterator[Fault]:
    if target is None:
        yield Fault(BAD_USAGE, "--target HOST:PORT is required; see rivulet-gateway --help")
        return
    try:
        check_target(target)
    except ValueError as error:
        yield Fault(BAD_USAGE, f"--{error}")


def _read(flag: str, path: str) -> bytes | Fault:
    """The content of a file, or the fault that prevents reading it."""
    if not path:
        return Fault(BAD_USAGE, f"{flag}: {_EMPTY}")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        return Fault(BAD_USAGE, f"{flag}: {path}: {error.strerror}")
    return content if content.strip() else Fault(BAD_USAGE, f"{flag}: {path} is empty")


def _pair(given: argparse.Namespace, cert: str, key: str, context: ssl.SSLContext) -> Iterator[Fault]:
    """Checks a certificate and its key, and loads them into `context`."""
    paths = {flag: path for flag in (cert, key) if (path := value(given, flag)) is not None}
    for one, other in ((cert, key), (key, cert)):
        if one in paths and other not in paths:
            yield Fault(BAD_USAGE, f"{one}: needs {other} too")
    unread = [wrong for flag, path in paths.items() if isinstance(wrong := _read(flag, path), Fault)]
    yield from unread
    if len(paths) < 2 or unread:
        return
    try:
        context.load_cert_chain(paths[cert], paths[key], password="")
    except OSError as error:
        yield Fault(BAD_USAGE, f"{cert}: {' and '.join(paths.values())} are no certificate and its key: {error}")


def _tls_files(given: argparse.Namespace) -> Iterator[Fault]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")  # gRPC will use the files, and has no rule on the length of keys
    if given.tls_ca is not None:
        yield from _authorities(given.tls_ca, context)
    yield from _pair(given, "--tls-cert", "--tls-key", context)


def _authorities(path: str, context: ssl.SSLContext) -> Iterator[Fault]:
    content = _read("--tls-ca", path)
    if isinstance(content, Fault):
        yield content
        return
    try:
        context.load_verify_locations(path)
    except OSError as error:
        yield Fault(BAD_USAGE, f"--tls-ca: {path} cannot be read as certificates: {error}")


def _https_files(given: argparse.Namespace) -> Iterator[Fault]:
    yield from _pair(given, "--https-cert", "--https-key", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


def _access_log(path: str) -> Iterator[Fault]:
    """Checks the path of the access log. Creates no file."""
    if path in ("none", "stderr"):
        return
    if not path:
        yield Fault(BAD_USAGE, f"--access-log: {_EMPTY}")
        return
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        folder = os.path.dirname(os.path.realpath(path))
        if error.errno == errno.ENOENT and os.path.isdir(folder):
            if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
                yield Fault(BAD_USAGE, f"--access-log: {path} cannot be made in {folder}")
        elif error.errno != errno.ENXIO:  # a pipe without a reader yet: a start waits for the reader
            yield Fault(BAD_USAGE, f"--access-log: {path}: {error.strerror}")


def _listen(flag: str, address: str) -> Iterator[Fault]:
    """An address in use is no fault: the running gateway may have it, whose next configuration this is."""
    try:
        bind(address, shared=False).close()
    except ValueError:
        yield Fault(BAD_USAGE, f"{flag}: must be HOST:PORT, for example 127.0.0.1:8000 or [::1]:8000; got {address!r}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            yield cannot_listen(flag, address, error)


def _packages() -> Iterator[Fault]:
    missing = [name for name in ("jinja2", "regex") if find_spec(name) is None]  # only the worker imports them
    try:
        from rivulet.gateway import app  # noqa: F401
        from rivulet.gateway.web import protocol  # noqa: F401
    except ImportError as error:
        missing.append(str(error.name))
    for name in missing[:1]:
        yield Fault(BAD_USAGE, f"{name} is not installed: install the wheel of rivulet-client with the extra gateway")


def _chat_template(given: argparse.Namespace) -> Iterator[Fault]:
    from rivulet.gateway.process import worker_pool

    path, given.chat_template = given.chat_template, ""
    if path is None:
        return
    content = _read("--chat-template", path)
    if isinstance(content, Fault):
        yield content
        return
    try:
        given.chat_template = content.decode()
        if given.worker is None:  # else its parent has checked it
            asyncio.run(worker_pool.check(given.chat_template))
    except (ValueError, OSError) as error:
        yield Fault(BAD_USAGE, f"--chat-template: {path}: {error}")
