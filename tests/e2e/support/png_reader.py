# SPDX-License-Identifier: Apache-2.0
"""Reads the PNG files that the clients write."""

import struct
import zlib


def decode_png(data):
    """Rows of pixels of an 8-bit gray PNG, checked chunk by chunk."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG"
    at, compressed, header = 8, b"", None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        (crc,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert crc == zlib.crc32(kind + body), kind
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            compressed += body
        at += 12 + size
    width, height, depth, colour, *rest = header
    assert (depth, colour, rest) == (8, 0, [0, 0, 0]), header
    raw = zlib.decompress(compressed)
    rows, before = [], bytes(width)
    for y in range(height):
        kind, line = raw[y * (width + 1)], bytearray(raw[y * (width + 1) + 1 : (y + 1) * (width + 1)])
        for x in range(width):
            left, up = line[x - 1] if x else 0, before[x]
            corner = before[x - 1] if x else 0
            # The five filters of the PNG specification; the last is Paeth's.
            estimate = left + up - corner
            nearest = min((left, up, corner), key=lambda value: abs(estimate - value))
            line[x] = (line[x] + (0, left, up, (left + up) // 2, nearest)[kind]) & 255
        rows.append(bytes(line))
        before = line
    return rows
