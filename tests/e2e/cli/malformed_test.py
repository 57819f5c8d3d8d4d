# SPDX-License-Identifier: Apache-2.0
"""Malformed model directories: exit code 2, one line on stderr that says what is wrong, nothing on stdout, at once.

Each case mutates a sound model of tests/conformance/models: a name, the base model, a function that changes the loaded
files, and a text that the line must hold.
"""

import pathlib
import resource
import struct
import tempfile
import time
import unittest

from command import CommandTest, rivulet
from malformed_cases import CASES, case, header_entry, raw_header
from model_files import Model

SECONDS = 10
MEMORY_BYTES = 1 << 30  # a model of 100 KiB needs nothing like this, whatever its files claim
COMMANDS = [
    ("score", "--input", "-"),
    ("generate", "--max-tokens", "1"),
    ("models", "--backend", "cpu"),
    ("health",),
]


# model.safetensors: the header's size.
for size in (0, 10**8 + 1, 2**32, 2**63, 2**64 - 8, 2**64 - 1):
    case(f"header of {size} bytes", "tiny-elu-relu", "model.safetensors")(
        lambda model, size=size: setattr(model, "header_size", size)
    )


@case("file of no bytes", "tiny-elu-relu", "model.safetensors")
def _(model):
    model.absent.add("model.safetensors")
    model.extra = ("model.safetensors", b"")


@case("file of 7 bytes", "tiny-elu-relu", "model.safetensors")
def _(model):
    model.absent.add("model.safetensors")
    model.extra = ("model.safetensors", b"\x01" * 7)


# The header as a text.
raw_header("not UTF-8", lambda text: text.replace(b"embedding", b"\xff\xfe\xfdedding"))
raw_header("not JSON", lambda text: text[:-1])
raw_header("a list", lambda text: b"[]")
raw_header("empty object", lambda text: b"{}", "")
raw_header("with leading space", lambda text: b" " + text)
raw_header("with a repeated tensor", lambda text: b"{" + text[1:-1] + b"," + text[1:], "")
raw_header("nested deep", lambda text: b'{"__metadata__":' + b"[" * 100000 + b"]" * 100000 + b"," + text[1:])
raw_header("with metadata that is no object", lambda text: b'{"__metadata__":3,' + text[1:])
raw_header("with metadata that holds a number", lambda text: b'{"__metadata__":{"a":1},' + text[1:])
raw_header("with a repeated key in an entry", lambda text: text.replace(b'"dtype"', b'"dtype":"F32","dtype"', 1), "dtype")


# An entry of the header.
def shape(*dims):
    return lambda entry: entry.update(shape=list(dims))


header_entry("of an unknown type", lambda entry: entry.update(dtype="F33"))
header_entry("of integers", lambda entry: entry.update(dtype="I32"))
header_entry("of float64", lambda entry: entry.update(dtype="F64"))
header_entry("with a type that is no string", lambda entry: entry.update(dtype=32))
header_entry("without a type", lambda entry: entry.pop("dtype"))
header_entry("without a shape", lambda entry: entry.pop("shape"))
header_entry("without offsets", lambda entry: entry.pop("data_offsets"))
header_entry("with an unknown field", lambda entry: entry.update(extra=1))
header_entry("with a negative offset", lambda entry: entry.update(data_offsets=[-1, entry["data_offsets"][1]]))
header_entry("with an offset of 0.0", lambda entry: entry.update(data_offsets=[0.0, entry["data_offsets"][1]]))
header_entry("with three offsets", lambda entry: entry["data_offsets"].append(0))
header_entry("with its end before its begin", lambda entry: entry["data_offsets"].reverse())
header_entry("past the end of the file", lambda entry: entry.update(data_offsets=[0, 2**62]))
header_entry("with a shape that is no list", lambda entry: entry.update(shape=592))
header_entry("with a negative dimension", shape(-37, -16))
header_entry("with fewer values than bytes", shape(37, 15))
header_entry("of the same size but another shape", shape(16, 37))
header_entry("of three dimensions", shape(37, 16, 1))
header_entry("of one dimension", shape(592))
header_entry("of no dimension", shape())
header_entry("of nine dimensions", shape(37, 16, 1, 1, 1, 1, 1, 1, 1))
header_entry("with a shape that overflows", shape(2, 2**64 - 2))
header_entry("with a size that overflows", shape(2, 2**63 - 1))
header_entry("with a dimension past 64 bits", shape(2**64 + 37, 16))


@case("first offset not 0", "tiny-elu-relu", "")
def _(model):
    for name in model.tensors():
        entry = model.header[name]
        entry["data_offsets"] = [offset + 4 for offset in entry["data_offsets"]]
    model.data = b"\0" * 4 + model.data


@case("a gap between tensors", "tiny-elu-relu", "")
def _(model):
    entry = model.header[model.last()]
    begin, end = entry["data_offsets"]
    entry["data_offsets"] = [begin + 4, end + 4]
    model.data = model.data[:begin] + b"\0" * 4 + model.data[begin:]


@case("two tensors in the same bytes", "tiny-elu-relu", "")
def _(model):
    first = model.header[model.first()]
    size = first["data_offsets"][1] - first["data_offsets"][0]
    for name in model.tensors():
        entry = model.header[name]
        begin, end = entry["data_offsets"]
        if entry is not first and end - begin == size:
            entry["data_offsets"] = list(first["data_offsets"])
            return
    raise AssertionError("the model holds two tensors of one size")


@case("100,001 tensors", "tiny-elu-relu", "model.safetensors")
def _(model):
    for i in range(100001):
        model.header[f"t{i}"] = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@case("bytes after the last tensor", "tiny-elu-relu", "model.safetensors")
def _(model):
    model.data += b"PK"


@case("two bytes missing", "tiny-elu-relu", "model.safetensors")
def _(model):
    del model.data[-2:]


@case("all data missing", "tiny-elu-relu", "model.safetensors")
def _(model):
    model.data = bytearray()


@case("a surplus tensor", "tiny-elu-relu", "surplus.weight")
def _(model):
    model.append("surplus.weight", "F32", [1], b"\0" * 4)


@case("an empty surplus tensor", "tiny-elu-relu", "empty")
def _(model):
    model.append("empty", "F32", [0], b"")


@case("a tensor with a name of 513 bytes", "tiny-elu-relu", "model.safetensors")
def _(model):
    model.append("n" * 513, "F32", [1], b"\0" * 4)


@case("a tensor with a name of control characters", "tiny-elu-relu", "model.safetensors")
def _(model):
    model.append("a\n\x1b[31m\tb", "F32", [1], b"\0" * 4)


def absent_tensor(base, suffix):
    """A case: a tensor is left out, and the rest is sound."""

    def mutate(model):
        model.remove(next(name for name in model.tensors() if name.endswith(suffix)))

    CASES.append((f"{base} without {suffix}", base, mutate, suffix))


absent_tensor("tiny-elu-relu", "embedding.weight")
absent_tensor("tiny-elu-relu", "layers.1.attention.query_projection.bias")
absent_tensor("tiny-elu-relu", "layers.0.linear2.weight")
absent_tensor("tiny-elu-relu", "transformer.norm.weight")
absent_tensor("tiny-elu-relu", "predictor.bias")
absent_tensor("tiny-elu-learned-concat", "position.weight")
absent_tensor("tiny-favor", "layers.1.attention.inner_attention.feature_map.omega")
absent_tensor("tiny-rfa", "layers.0.attention.sigma")
absent_tensor("tiny-rfa", "layers.0.attention.gate_projection.weight")

# Weights that are no numbers.
for dtype, label, pattern in (
    ("F32", "NaN", b"\0\0\xc0\x7f"),
    ("F32", "infinity", b"\0\0\x80\x7f"),
    ("F32", "-infinity", b"\0\0\x80\xff"),
    ("F16", "NaN", b"\x01\x7e"),
    ("F16", "infinity", b"\0\x7c"),
    ("BF16", "NaN", b"\xc0\x7f"),
    ("BF16", "infinity", b"\x80\x7f"),
):
    case(f"a weight of {dtype} {label}", "tiny-elu-relu", "predictor.weight")(
        lambda model, dtype=dtype, pattern=pattern: model.convert("predictor.weight", dtype, pattern)
    )


@case("one NaN among the weights", "tiny-elu-relu", "linear1.weight")
def _(model):
    name = "transformer.layers.1.linear1.weight"
    begin, end = model.header[name]["data_offsets"]
    model.data[end - 4 : end] = struct.pack("<f", float("nan"))


class MalformedTest(CommandTest):
    def run_case(self, directory, command, mention):
        start = time.monotonic()
        result = rivulet(command[0], "--model", directory, *command[1:], timeout=SECONDS)
        self.assertLess(time.monotonic() - start, SECONDS)
        return self.fails(result, 2, mention)

    def test_every_malformed_directory_is_refused(self):
        self.assertEqual(len({name for name, *_ in CASES}), len(CASES), "names are unique")
        for index, (name, base, mutate, mention) in enumerate(CASES):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                directory = pathlib.Path(folder)
                model = Model(base)
                model.extra = None
                mutate(model)
                model.write(directory)
                if model.extra:
                    (directory / model.extra[0]).write_bytes(model.extra[1])
                self.run_case(directory, COMMANDS[index % len(COMMANDS)], mention)

    def test_what_is_no_directory_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            directory = pathlib.Path(folder)
            (directory / "file").write_text("x")
            (directory / "empty").mkdir()
            (directory / "folders" / "config.json").mkdir(parents=True)
            (directory / "line\nbreak").mkdir()
            for name in ("file", "empty", "absent", "folders", "line\nbreak"):
                for command in COMMANDS:
                    with self.subTest(name=name, command=command[0]):
                        self.run_case(directory / name, command, "")

    def test_the_unspoilt_models_are_accepted(self):
        # What the cases begin with is sound when it is written again: they fail for what they change.
        for base in sorted({base for _, base, *_ in CASES}):
            with self.subTest(base), tempfile.TemporaryDirectory() as folder:
                Model(base).write(pathlib.Path(folder))
                self.succeeds(rivulet("models", "--model", folder))

    def test_no_case_took_memory_for_what_it_claimed(self):
        # The largest of all children until now; unittest runs tests in the order of their names.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        self.assertLess(peak, MEMORY_BYTES)


if __name__ == "__main__":
    unittest.main()
