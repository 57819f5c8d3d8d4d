# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 frames by hand (RFC 9113, RFC 7541 without Huffman and without a dynamic table): what a gRPC library would never send."""

import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS = 1, 4
CANCEL = 8
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def integer(value: int, prefix_bits: int) -> bytes:
    """RFC 7541 section 5.1."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([value])
    encoded, value = [most], value - most
    while value >= 128:
        encoded.append(value % 128 + 128)
        value //= 128
    return bytes([*encoded, value])


def literal(name: str, value: str) -> bytes:
    """A header field without indexing (RFC 7541 section 6.2.2)."""
    encoded = [name.encode(), value.encode()]
    return b"\0" + b"".join(integer(len(part), 7) + part for part in encoded)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def call_headers(path: str, **metadata: str) -> bytes:
    """The header block of a gRPC call; `metadata` with _ for -."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    fields |= {name.replace("_", "-"): value for name, value in metadata.items()}
    return b"".join(literal(name, value) for name, value in fields.items())


def message(payload: bytes, compressed: bool = False) -> bytes:
    """A gRPC message with its five bytes in front."""
    return struct.pack(">BI", compressed, len(payload)) + payload


def rst_stream(stream: int, code: int = CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def connect(address: tuple[str, int], timeout: float = 5) -> socket.socket:
    """A connection that has sent preface and SETTINGS. Errors: OSError."""
    connection = socket.create_connection(address, timeout)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    return connection


def receive(connection: socket.socket, timeout: float) -> tuple[bytes, bool]:
    """What comes within `timeout` seconds, and whether the peer closed the connection meanwhile."""
    connection.settimeout(timeout)
    got = b""
    try:
        while True:
            piece = connection.recv(1 << 16)
            if not piece:
                return got, True
            got += piece
    except TimeoutError:
        return got, False
    except OSError:
        return got, True
