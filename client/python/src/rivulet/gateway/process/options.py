# SPDX-License-Identifier: Apache-2.0
"""The flags of rivulet-gateway. checks.py checks their values."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from rivulet import TlsOptions, __version__

# Exit codes, as in the `rivulet` command.
BAD_USAGE, UNAVAILABLE = 2, 3


class Fault(NamedTuple):
    """A fault that ends a start: its exit code and its line on stderr."""

    code: int
    message: str


def complain(message: str) -> None:
    """Writes one line to stderr."""
    print("rivulet-gateway:", message.replace("\n", " "), file=sys.stderr)


def fail(code: int, message: str) -> NoReturn:
    complain(message)
    sys.exit(code)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(BAD_USAGE, f"{message}; see rivulet-gateway --help")


# Without these a request would ask for something else.
NOT_IGNORED = frozenset(("model", "prompt", "messages", "stream", "tools", "tool_choice", "response_format", "structured_outputs"))

# Whole numbers: flag, default, least, most, meaning.
NUMBERS = (
    ("--drain-seconds", 30, 0, 86400, "how long running answers may take after SIGTERM"),
    ("--workers", 1, 1, 256, "processes that serve, one a core"),
    ("--max-connections", 1000, 1, 1 << 20, "maximum number of connections of a process; others get 503"),
    ("--max-body-mib", 8, 1, 64, "maximum size of a request's body in MiB"),
    ("--request-seconds", 60, 1, 86400, "seconds in which a whole request must arrive"),
    ("--reader-seconds", 60, 1, 86400, "disconnect a client that stops reading for N seconds"),
)


def _number(text: str) -> int | str:
    """The number, or the text itself if it is not a number: checks.py then reports it with the other faults."""
    try:
        return int(text)
    except ValueError:
        return text


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Values are not checked. unknown: arguments that are not flags of this command. A flag without its value ends the process with
    one line."""
    parser = _Parser(
        "rivulet-gateway", usage="%(prog)s --target HOST:PORT [FLAGS]", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Serves OpenAI's HTTP API in front of a rivulet-server.\n"
        "Example: rivulet-gateway --target 127.0.0.1:50051 --listen 127.0.0.1:8000")  # fmt: skip
    serving, operating, security = (parser.add_argument_group(title) for title in ("Serving", "Operating", "Security"))
    serving.add_argument("--target", metavar="HOST:PORT", help="the rivulet-server; must be given")
    serving.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="where to serve HTTP (default: %(default)s); port 0: a free one")
    serving.add_argument("--chat-template", metavar="FILE", help="the chat template (Jinja) of all models of text, in place of their own")
    serving.add_argument("--ignore-parameters", default="", metavar="LIST",
                         help="comma-separated names of request parameters to ignore; each is logged once (default: none)")  # fmt: skip
    security.add_argument("--tls-ca", metavar="FILE", help="use TLS to the target; FILE (PEM) holds the CA certificates that signed its certificate")
    security.add_argument("--tls-cert", metavar="FILE", help="with --tls-key: the certificate (PEM) that this gateway shows the target; implies TLS")
    security.add_argument("--tls-key", metavar="FILE", help="the key (PEM) of --tls-cert")
    security.add_argument("--https-cert", metavar="FILE", help="with --https-key: serve HTTPS with this certificate (PEM, its chain behind it)")
    security.add_argument("--https-key", metavar="FILE", help="the key (PEM) of --https-cert")
    operating.add_argument("--access-log", default="none", metavar="FILE|stderr|none", help="a line of JSON for each request (default: %(default)s)")
    operating.add_argument("--metrics-target", default="", metavar="HOST:PORT",
                           help="the server's --metrics-listen: GET /metrics then shows its metrics and the gateway's (default: there is none)")  # fmt: skip
    operating.add_argument("--metrics-listen", default="", metavar="HOST:PORT",
                           help="serve GET /metrics with the gateway's own metrics there, over HTTP (default: do not); port 0: a free one")  # fmt: skip
    security.add_argument("--cors-origin", action="append", default=[], metavar="ORIGIN",
                          help="pages of this origin (https://HOST) may call from a browser; * for all; may be repeated")  # fmt: skip
    security.add_argument("--allowed-host", action="append", default=[], metavar="HOST",
                          help="answer only requests whose header Host names loopback or this host; * for any; may be repeated (default: none "
                          "but loopback, if the gateway listens there and the server has no keys, else any)")  # fmt: skip
    for flag, default, least, most, meaning in NUMBERS:
        operating.add_argument(flag, type=_number, default=default, metavar="N", help=f"{meaning} ({least} to {most}; default: %(default)s)")
    parser.add_argument("--check-config", action="store_true",
                        help="check flags, files and the address to listen on as a start would, without the target; print all that is wrong and exit")  # fmt: skip
    parser.add_argument("--version", action="version", version=f"rivulet-gateway {__version__}", help="print the version and exit")
    parser.add_argument("--worker", help=argparse.SUPPRESS)  # set by the command when it starts itself: workers.Place
    given, given_beside = parser.parse_known_args(arguments)
    given.unknown = given_beside
    return given


def value(given: argparse.Namespace, flag: str) -> Any:
    return getattr(given, flag[2:].replace("-", "_"))


def ignored(given: argparse.Namespace) -> frozenset[str]:
    """The parameters of --ignore-parameters."""
    return frozenset(given.ignore_parameters.split(",")) if given.ignore_parameters else frozenset()


def tls(given: argparse.Namespace) -> TlsOptions | None:
    """The TLS options of the connection to the target."""
    if given.tls_ca is None and given.tls_cert is None:
        return None
    return TlsOptions(root_certs_file=given.tls_ca, client_cert_file=given.tls_cert, client_key_file=given.tls_key)
