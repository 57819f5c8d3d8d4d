# SPDX-License-Identifier: Apache-2.0
"""HOST:PORT, sockets on it, and the hosts that requests name."""

from __future__ import annotations

import ipaddress
import re
import socket


def host_port(text: str, least: int = 1) -> tuple[str, int] | None:
    """Host and port; None if the text is not HOST:PORT, with brackets around an IPv6 address and a port of at least `least`."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not bare or (":" in bare and host != f"[{bare}]"):
        return None
    if not re.fullmatch("[0-9]{1,5}", port) or not least <= int(port) <= 65535:
        return None
    return bare, int(port)


def named_host(text: str) -> str | None:
    """The host in a Host header (HOST or HOST:PORT): in lower case, without a final dot. None if the header has another form."""
    found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^][:/?#@\s]+?)\.?(?::[0-9]*)?", text.lower())
    return found[1] if found else None


def is_loopback(host: str) -> bool:
    """Whether the host is localhost or a loopback address, with or without brackets."""
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def bind(address: str, shared: bool) -> socket.socket:
    """A socket that does not listen yet. The port may be 0. shared: other sockets will have the same address. Errors: ValueError
    (not HOST:PORT), OSError."""
    place = host_port(address, least=0)
    if place is None:
        raise ValueError("not HOST:PORT")
    family, kind, protocol, _, name = socket.getaddrinfo(*place, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(name)
    except OSError:
        bound.close()
        raise
    return bound
