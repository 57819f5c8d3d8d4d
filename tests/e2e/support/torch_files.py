# SPDX-License-Identifier: Apache-2.0
"""Files as torch.save writes them, without PyTorch."""

import io
import pathlib
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from unittest import mock

import numpy as np

STORAGES = {"F32": ("FloatStorage", "<f4"), "F16": ("HalfStorage", "<f2"), "BF16": ("BFloat16Storage", "<u2")}


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """The elements of a storage."""
    if dtype == "BF16":
        return (values.view("<u4") >> 16).astype("<u2")
    return values.astype(STORAGES[dtype][1])


def meant(values: np.ndarray, dtype: str) -> np.ndarray:
    """The numbers that a reader gets."""
    elements = stored(values, dtype)
    return (elements.astype("<u4") << 16).view("<f4") if dtype == "BF16" else elements


class Tensor:
    """A tensor to be pickled as torch does it; `turned`: with the strides of a transposed one."""

    def __init__(self, key: str, values: np.ndarray, dtype: str, turned: bool = False, offset: int = 0):
        self.key, self.dtype, self.shape, self.offset = key, dtype, values.shape, offset
        elements = stored(values, dtype)
        elements = np.ascontiguousarray(elements.T) if turned else elements
        self.strides = [n // elements.itemsize for n in (elements.T if turned else elements).strides]
        self.elements = np.concatenate([np.zeros(offset, elements.dtype), elements.ravel()])


def write_torch_file(path: pathlib.Path, content: object, *, change=lambda name, data: data, compress: bool = False) -> None:
    """What torch.save writes; `change` may replace the bytes of a file in the archive, or drop it (None)."""
    storages: dict[str, np.ndarray] = {}
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    kinds = {name: type(name, (), {"__module__": "torch"}) for name, _ in STORAGES.values()}
    for name, kind in kinds.items():
        setattr(torch, name, kind)

    def _rebuild_tensor_v2() -> None: ...

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> object:
            if not isinstance(value, Tensor):
                return None
            raise AssertionError("tensors are reduced")

        def reducer_override(self, value: object) -> object:
            if not isinstance(value, Tensor):
                return NotImplemented
            storages[value.key] = value.elements
            kind = kinds[STORAGES[value.dtype][0]]
            return _rebuild_tensor_v2, (Stored(kind, value.key, value.elements.size), value.offset, value.shape, tuple(value.strides), False, OrderedDict())

    class Stored(tuple):
        def __new__(cls, *parts: object) -> "Stored":
            return super().__new__(cls, parts)

    class Outer(Pickler):
        def persistent_id(self, value: object) -> object:
            return ("storage", value[0], value[1], "cpu", value[2]) if isinstance(value, Stored) else None

    with mock.patch.dict(sys.modules, {"torch": torch, "torch._utils": utils}), zipfile.ZipFile(path, "w") as archive:
        folder, buffer = "model", io.BytesIO()
        Outer(buffer, protocol=2).dump(content)
        files = {"data.pkl": buffer.getvalue(), "byteorder": b"little", "version": b"3\n"}
        files |= {f"data/{key}": elements.tobytes() for key, elements in storages.items()}
        for name, data in files.items():
            data = change(name, data)
            if data is not None:
                archive.writestr(f"{folder}/{name}", data, zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED)
