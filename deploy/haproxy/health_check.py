#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the bytes of the health check in haproxy.cfg: one call of grpc.health.v1.Health/Check over HTTP/2.

    python3 deploy/haproxy/health_check.py

Each line is one argument of `tcp-check send-binary`. Frames as in RFC 9113: length (3 bytes), type, flags, stream (4
bytes), payload. Header names are indices into the static table of RFC 7541, or spelled out; nothing enters the dynamic
table and nothing is Huffman-coded, so the bytes are the same for every replica.
"""

DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def text(value: bytes) -> bytes:
    """A string of fewer than 127 bytes, not Huffman-coded."""
    assert len(value) < 127, value
    return bytes([len(value)]) + value


def call(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The headers of a gRPC call on stream 1, with further ones of `more`."""
    block = (
        b"\x83\x86"  # :method POST, :scheme http: indices 3 and 6
        + (b"\x04" + text(path))  # :path is index 4, this value not to be stored
        + (b"\x01" + text(b"haproxy"))  # :authority is index 1
        + (b"\x0f\x10" + text(b"application/grpc"))  # content-type is index 31 = 15 + 16
        + (b"\x00" + text(b"te") + text(b"trailers"))
    )
    for name, value in more:
        block += b"\x00" + text(name) + text(value)
    return frame(HEADERS, END_HEADERS, 1, block)


def message(payload: bytes) -> bytes:
    """The one message of a gRPC call: a byte for compression, four for the length, then protobuf."""
    return frame(DATA, END_STREAM, 1, b"\x00" + len(payload).to_bytes(4, "big") + payload)


def health_check() -> list[bytes]:
    """What HAProxy sends. An empty HealthCheckRequest asks for "", the server as a whole.

    The answer holds the message 00 00000002 08 01: not compressed, two bytes, field 1 (status) = 1 (SERVING). A replica that
    drains, or has a model that failed, says 2 (NOT_SERVING) there, under the same HTTP status 200.
    """
    return [PREFACE, frame(SETTINGS, 0, 0, b""), call(b"/grpc.health.v1.Health/Check"), message(b"")]


if __name__ == "__main__":
    for part in health_check():
        print(part.hex())
