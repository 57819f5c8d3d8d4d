# SPDX-License-Identifier: Apache-2.0
"""A model directory in parts, to be changed and written again."""

import json
import math
import struct

from command import CONFORMANCE


class Model:
    """Files of a model directory, loaded to be spoilt. `config` and `header` may be replaced by raw bytes."""

    def __init__(self, name):
        directory = CONFORMANCE / name
        self.config = json.loads((directory / "config.json").read_text())
        raw = (directory / "model.safetensors").read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        self.header = json.loads(raw[8 : 8 + size])
        self.data = bytearray(raw[8 + size :])
        self.header_size = None  # claimed; None: the true one
        self.absent = set()

    def tensors(self):
        return [name for name in self.header if name != "__metadata__"]

    def first(self):
        """The tensor whose bytes come first."""
        return min(self.tensors(), key=lambda name: self.header[name]["data_offsets"][0])

    def last(self):
        return max(self.tensors(), key=lambda name: self.header[name]["data_offsets"][1])

    def append(self, name, dtype, shape, data):
        self.header[name] = {
            "dtype": dtype, "shape": shape, "data_offsets": [len(self.data), len(self.data) + len(data)],
        }
        self.data += data

    def rebuild(self, change):
        """Lays the tensors out again; `change(name, entry, chunk)` gives a tensor's new bytes, or None to leave it out."""
        data, header = bytearray(), {}
        for name in sorted(self.tensors(), key=lambda tensor: self.header[tensor]["data_offsets"]):
            entry = dict(self.header[name])
            chunk = change(name, entry, self.data[slice(*entry["data_offsets"])])
            if chunk is not None:
                entry["data_offsets"] = [len(data), len(data) + len(chunk)]
                data += chunk
                header[name] = entry
        self.header, self.data = header, data

    def remove(self, removed):
        self.rebuild(lambda name, entry, chunk: None if name == removed else chunk)

    def convert(self, converted, dtype, pattern):
        """One tensor becomes `dtype`, every value the bytes `pattern`."""

        def change(name, entry, chunk):
            if name != converted:
                return chunk
            entry["dtype"] = dtype
            return pattern * math.prod(entry["shape"])

        self.rebuild(change)

    def write(self, directory):
        def encoded(value):
            return value if isinstance(value, bytes) else json.dumps(value).encode()

        if "config.json" not in self.absent:
            (directory / "config.json").write_bytes(encoded(self.config))
        if "model.safetensors" not in self.absent:
            header = encoded(self.header)
            size = len(header) if self.header_size is None else self.header_size
            (directory / "model.safetensors").write_bytes(struct.pack("<Q", size) + header + self.data)
