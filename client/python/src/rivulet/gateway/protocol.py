# SPDX-License-Identifier: Apache-2.0
"""How uvicorn reads connections."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

_READ_BYTES = 8 << 10


class Protocol(H11Protocol):
    """h11 parses all that one read has brought, in Python, before the loop does anything else. Of chunks that hold a byte each, the 256
    KiB that asyncio reads at once take half a second."""

    def connection_made(self, transport: Any) -> None:
        transport.max_size = _READ_BYTES
        super().connection_made(transport)
