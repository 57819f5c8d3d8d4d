# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint, PyTorch or safetensors, into named arrays. Never runs code of a pickle."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import safetensors

from rivulet_tools.errors import Absent, BadInput

PYTORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")

# Element types of safetensors that numpy has too; BF16 is widened to float32, which is exact.
NUMPY_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?",
}  # fmt: skip
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint.

    dtype: the element type in the file, in safetensors' spelling. values: the same numbers as an array of the tensor's
    shape; a BF16 tensor is held as float32.
    """

    dtype: str
    values: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


def read_checkpoint(path: pathlib.Path) -> dict[str, Tensor]:
    """All tensors of a file by name. Dictionaries inside dictionaries are flattened: keys are joined with a dot.

    Raises BadInput for a file that is missing, damaged, empty or needs code to be run; Absent where a PyTorch file is given
    and torch is not installed.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        tensors = _read_safetensors(path)
    elif suffix in PYTORCH_SUFFIXES:
        tensors = _read_pytorch(path)
    else:
        raise BadInput(f"{path}: the file's name must end with .safetensors or {', '.join(PYTORCH_SUFFIXES)}")
    if not tensors:
        raise BadInput(f"{path}: holds no tensor")
    return tensors


def _read_safetensors(path: pathlib.Path) -> dict[str, Tensor]:
    try:
        entries = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise BadInput(f"{path}: not a safetensors file: {error}") from error
    tensors = {}
    for name, entry in entries:
        dtype, shape, data = entry["dtype"], entry["shape"], entry["data"]
        if dtype == "BF16":
            values = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
        elif dtype in NUMPY_TYPES:
            values = np.frombuffer(data, NUMPY_TYPES[dtype])
        else:
            raise BadInput(f"{path}: tensor {name!r} has elements of type {dtype}, which nothing here reads")
        tensors[name] = Tensor(dtype, values.reshape(shape))
    return tensors


def _read_pytorch(path: pathlib.Path) -> dict[str, Tensor]:
    try:
        import torch
    except ImportError as error:
        raise Absent(
            f"{path}: reading a PyTorch file needs PyTorch, which is not importable ({error}): pip install torch; a .safetensors file "
            "does not need it"
        ) from error
    import pickle

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = " ".join(str(error).split())
        raise BadInput(
            f"{path}: holds more than tensors and plain values, and reading it could run code; save the weights alone with "
            f"torch.save(model.state_dict(), FILE). PyTorch says: {reason[:300]}"
        ) from error
    except Exception as error:  # a damaged archive surfaces as RuntimeError, EOFError, KeyError and others
        raise BadInput(f"{path}: not a PyTorch checkpoint: {' '.join(str(error).split())[:300]}") from error
    return {name: _from_torch(name, value, path) for name, value in _flatten(content, "")}


def _flatten(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(dotted name, torch tensor) for every tensor in nested dictionaries, lists and tuples."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, member in value.items():
            yield from _flatten(member, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            yield from _flatten(member, f"{name}.{index}" if name else str(index))


def _from_torch(name: str, value: Any, path: pathlib.Path) -> Tensor:
    import torch

    names = {
        torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
        torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    }  # fmt: skip
    if value.dtype not in names or value.layout != torch.strided:
        raise BadInput(f"{path}: tensor {name!r} has elements of type {value.dtype}, which nothing here reads")
    dtype = names[value.dtype]
    value = value.detach().contiguous()
    return Tensor(dtype, (value.float() if dtype == "BF16" else value).numpy())
