# SPDX-License-Identifier: Apache-2.0
"""The options of rivulet-gateway, checked. A bad one ends the process with one line that names it."""

from __future__ import annotations

import argparse
import re
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rivulet import TlsOptions
from rivulet.connection import check_target

# Exit codes, as of the `rivulet` command.
BAD_USAGE, UNAVAILABLE = 2, 3


def fail(code: int, message: str) -> NoReturn:
    print(f"rivulet-gateway: {message}", file=sys.stderr)
    sys.exit(code)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(BAD_USAGE, f"{message}; see rivulet-gateway --help")


# Whole numbers: flag, default, least, most, meaning.
_NUMBERS = (
    ("--drain-seconds", 30, 0, 86400, "how long running answers may take after SIGTERM"),
    ("--workers", 1, 1, 256, "processes that serve, each on a core"),
    ("--max-connections", 1000, 1, 1 << 20, "of a process at once; others are told 503"),
    ("--max-body-mib", 8, 1, 64, "MiB of a request's body"),
    ("--request-seconds", 60, 1, 86400, "in which a whole request must arrive"),
    ("--reader-seconds", 60, 1, 86400, "after which a client is cut off that takes nothing of its answer"),
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Checked, apart from files of certificates."""
    parser = _Parser("rivulet-gateway", description="Serves OpenAI's HTTP API in front of a rivulet-server.", allow_abbrev=False)
    parser.add_argument("--target", required=True, metavar="HOST:PORT", help="the rivulet-server")
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="where to serve HTTP (default: %(default)s); port 0: a free one")
    parser.add_argument("--chat-template", metavar="FILE", help="the chat template (Jinja) of all models of text, in place of their own")
    parser.add_argument("--tls-ca", metavar="FILE", help="use TLS to the target; FILE (PEM) holds the authorities of its certificate")
    parser.add_argument("--tls-cert", metavar="FILE", help="with --tls-key: the certificate (PEM) that this gateway shows the target; implies TLS")
    parser.add_argument("--tls-key", metavar="FILE", help="the key (PEM) of --tls-cert")
    parser.add_argument("--https-cert", metavar="FILE", help="with --https-key: serve HTTPS with this certificate (PEM, its chain behind it)")
    parser.add_argument("--https-key", metavar="FILE", help="the key (PEM) of --https-cert")
    parser.add_argument("--access-log", default="none", metavar="FILE|stderr|none", help="a line of JSON for each request (default: %(default)s)")
    parser.add_argument("--metrics-target", default="", metavar="HOST:PORT",
                        help="the server's --metrics-listen: GET /metrics then shows its metrics and the gateway's (default: there is none)")  # fmt: skip
    parser.add_argument("--cors-origin", action="append", default=[], metavar="ORIGIN",
                        help="pages of this origin (https://HOST) may call from a browser; * for all; may be repeated")  # fmt: skip
    for flag, default, least, most, meaning in _NUMBERS:
        parser.add_argument(flag, type=int, default=default, metavar="N", help=f"{meaning} ({least} to {most}; default: %(default)s)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # the command starts itself with it: workers.Place
    given = parser.parse_args(arguments)
    _check(given)
    return given


def _check(given: argparse.Namespace) -> None:
    try:
        check_target(given.target)
    except ValueError as error:
        fail(BAD_USAGE, f"--{error}")
    for flag, _, least, most, _ in _NUMBERS:
        value = getattr(given, flag[2:].replace("-", "_"))
        if not least <= value <= most:
            fail(BAD_USAGE, f"{flag}: must be {least} to {most}; got {value}")
    if given.metrics_target and not _is_address(given.metrics_target):
        fail(BAD_USAGE, f"--metrics-target: must be HOST:PORT, for example 127.0.0.1:9464; got {given.metrics_target!r}")
    for origin in given.cors_origin:
        if origin != "*" and not re.fullmatch(r"https?://[^/?#\s]+", origin):
            fail(BAD_USAGE, f"--cors-origin: must be *, or a scheme and a host as browsers send it, https://example.org; got {origin!r}")


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536


def _pair(given: argparse.Namespace, cert: str, key: str, *more: str) -> dict[str, str | None]:
    """Files by flag, which can be read and are not empty."""
    files = {flag: getattr(given, flag[2:].replace("-", "_")) for flag in (*more, cert, key)}
    for one, other in ((cert, key), (key, cert)):
        if files[one] and not files[other]:
            fail(BAD_USAGE, f"{one}: needs {other} too")
    for option, path in files.items():
        try:
            if path and not Path(path).read_bytes().strip():
                fail(BAD_USAGE, f"{option}: {path} is empty")
        except OSError as error:
            fail(BAD_USAGE, f"{option}: {path}: {error.strerror}")
    return files


def tls(given: argparse.Namespace) -> TlsOptions | None:
    """Of the connection to the target."""
    files = _pair(given, "--tls-cert", "--tls-key", "--tls-ca")
    if not any(files.values()):
        return None
    return TlsOptions(root_certs_file=given.tls_ca, client_cert_file=given.tls_cert, client_key_file=given.tls_key)


def check_https(given: argparse.Namespace) -> None:
    """That HTTPS can be served with the files."""
    files = _pair(given, "--https-cert", "--https-key")
    if not given.https_cert:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(given.https_cert, given.https_key, password="")
    except (ssl.SSLError, OSError) as error:
        fail(BAD_USAGE, f"--https-cert: {' and '.join(str(path) for path in files.values())} are no certificate and its key: {error}")


def chat_template(path: str | None) -> str:
    """The text of --chat-template; empty: none is given."""
    from rivulet.gateway import worker

    if path is None:
        return ""
    try:
        template = Path(path).read_text(encoding="utf-8")
        worker.check(template)
    except OSError as error:
        fail(BAD_USAGE, f"--chat-template: {path}: {error.strerror}")
    except ValueError as error:
        fail(BAD_USAGE, f"--chat-template: {path}: {error}")
    if not template.strip():
        fail(BAD_USAGE, f"--chat-template: {path} is empty")
    return template
