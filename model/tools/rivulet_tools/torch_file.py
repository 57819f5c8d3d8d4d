# SPDX-License-Identifier: Apache-2.0
"""Reads the tensors of a file of torch.save without PyTorch. No code of its pickle is run: only the few names that a dictionary of
tensors needs are known, and each stands for a function of this file."""

import collections
import contextlib
import dataclasses
import functools
import io
import math
import pathlib
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from rivulet_tools.checkpoint import Tensor, read_checkpoint
from rivulet_tools.errors import BadInput

# Element type of a storage, and the type of its bytes; BF16 is read as 16-bit numbers and widened.
STORAGES = {"DoubleStorage": ("F64", "<f8"), "FloatStorage": ("F32", "<f4"), "HalfStorage": ("F16", "<f2"), "BFloat16Storage": ("BF16", "<u2")}

WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")  # of a directory
MAX_DIMENSIONS = 8
MAX_PICKLE_BYTES = 4 << 20  # usually about 200 per tensor
MAX_BYTEORDER_BYTES = 16


class Implausible(BadInput):
    """A file that torch.save cannot have written. PyTorch must not read it either: that could take any time and memory."""


@dataclasses.dataclass(frozen=True)
class Storage:
    kind: str  # of STORAGES
    key: str  # of its file in the archive
    elements: int


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """The place of a tensor; all numbers in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return STORAGES[self.storage.kind][0]


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48


def _rebuild_tensor(storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> StoredTensor:
    good = isinstance(storage, Storage) and isinstance(shape, tuple) and isinstance(strides, tuple) and len(shape) == len(strides)
    if not good or not all(map(_whole, (offset, *shape, *strides))):
        raise BadInput("a tensor is not described by a storage, an offset, a shape and strides")
    return StoredTensor(storage, offset, shape, strides)


def _rebuild_parameter(tensor: StoredTensor, *_: Any) -> StoredTensor:
    return tensor


def _ordered_dict(*content: Any) -> collections.OrderedDict[Any, Any]:
    if content:
        raise Implausible("data.pkl has an OrderedDict of a list; torch.save adds its items one by one")
    return collections.OrderedDict()


class _Names(pickle._Unpickler):
    """The unpickler in Python, because the one in C hashes keys before any check: 40 nested tuples, each twice in the next, take days."""

    KNOWN = {
        ("collections", "OrderedDict"): _ordered_dict,
        ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
        ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    } | {("torch", name): name for name in STORAGES}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise BadInput(f"it needs {module}.{name}; allowed: a dictionary of tensors of {', '.join(STORAGES)}")
        return self.KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Storage:
        match pid:
            case ("storage", str(kind), str(key), _, elements) if isinstance(pid, tuple) and kind in STORAGES and _whole(elements):
                return Storage(kind, key, elements)
        raise Implausible("a storage is not described as torch.save does")

    def _check_hashed(self, keys: list[Any]) -> None:
        if any(isinstance(key, tuple) and any(isinstance(part, tuple) for part in key) for key in keys):
            raise Implausible("data.pkl has a name of tuples in tuples")

    def load_setitem(self) -> None:
        self._check_hashed(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_hashed(self.stack[::2])
        super().load_setitems()

    def load_dict(self) -> None:
        self._check_hashed(self.stack[::2])
        super().load_dict()

    def load_additems(self) -> None:
        self._check_hashed(self.stack)
        super().load_additems()

    def load_frozenset(self) -> None:
        self._check_hashed(self.stack)
        super().load_frozenset()

    dispatch = pickle._Unpickler.dispatch | {
        pickle.SETITEM[0]: load_setitem, pickle.SETITEMS[0]: load_setitems, pickle.DICT[0]: load_dict,
        pickle.ADDITEMS[0]: load_additems, pickle.FROZENSET[0]: load_frozenset,
    }  # fmt: skip


def _load(data: bytes) -> Any:
    """The contents of the pickle. `pickle` allocates a table for the largest memo number, so that number is checked first."""
    entries = 0
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            if argument > entries:
                raise Implausible(f"data.pkl has the memo {argument} behind {entries} others; torch.save counts them")
            entries += 1
    return _Names(io.BytesIO(data)).load()


class TorchFile:
    """The tensors of a dictionary that torch.save wrote. Opening reads no weight. Use it as a context."""

    def __init__(self, path: pathlib.Path):
        """Raises BadInput for a file that is missing, damaged, in the form before PyTorch 1.6, or holds more than tensors."""
        self.path = path
        try:
            self._size = path.stat().st_size
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise BadInput(f"{path}: not an archive of torch.save ({error})") from error
        try:
            self.tensors = self._read_names()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> "TorchFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def _read_names(self) -> dict[str, StoredTensor]:
        pickles = [name for name in self._zip.namelist() if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise BadInput(f"{self.path}: holds {len(pickles)} files data.pkl; allowed: one, as torch.save writes it")
        self._folder = pickles[0][: -len("data.pkl")]
        has_order = self._folder + "byteorder" in self._zip.namelist()
        if has_order and self._member("byteorder", most=MAX_BYTEORDER_BYTES) != b"little":
            raise BadInput(f"{self.path}: its numbers are big-endian; allowed: little")
        try:
            content = _load(self._member("data.pkl", most=MAX_PICKLE_BYTES))
        except BadInput as error:
            raise type(error)(f"{self.path}: {error}") from error
        except Exception as error:  # a damaged pickle surfaces as almost anything
            raise BadInput(f"{self.path}: data.pkl is damaged: {' '.join(str(error).split())[:200]}") from error
        if not isinstance(content, dict) or not content:
            raise BadInput(f"{self.path}: holds {type(content).__name__}; allowed: a dictionary of tensors")
        for name, value in content.items():
            if not isinstance(name, str):
                raise BadInput(f"{self.path}: holds a {type(name).__name__} as a name; allowed: a dictionary of tensors")
            if not isinstance(value, StoredTensor):
                raise BadInput(f"{self.path}: {name[:200]!r} is no tensor; allowed: a dictionary of tensors")
            self._check(name, value)
        return dict(content)

    def _check(self, name: str, tensor: StoredTensor) -> None:
        """Raises Implausible if the tensor is not within its storage: reading it would read beyond the file's data."""
        at, shape, strides = f"{self.path}: tensor {name[:200]!r}", list(tensor.shape), list(tensor.strides)
        elements = tensor.storage.elements
        if len(shape) > MAX_DIMENSIONS:
            raise Implausible(f"{at} has {len(shape)} dimensions; allowed: at most {MAX_DIMENSIONS}")
        count = math.prod(shape)
        if count > elements:
            raise Implausible(
                f"{at} has the shape {shape} with strides {strides}, {count} elements; allowed: at most the {elements} of its storage"
            )
        last = tensor.offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if count > 0 and last >= elements:
            raise Implausible(f"{at} has the shape {shape} with strides {strides} and offset {tensor.offset}; its storage has {elements} elements")
        needed, held = elements * np.dtype(STORAGES[tensor.storage.kind][1]).itemsize, self._info(f"data/{tensor.storage.key}").file_size
        if held != needed:
            raise Implausible(f"{at}: its storage has {held} bytes, not {needed}")

    def _info(self, name: str) -> zipfile.ZipInfo:
        try:
            info = self._zip.getinfo(self._folder + name)
        except KeyError as error:
            raise Implausible(f"{self.path}: {self._folder + name} is missing") from error
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise Implausible(f"{self.path}: {info.filename} is compressed; torch.save stores plainly")
        if info.header_offset + info.file_size > self._size:
            raise Implausible(f"{self.path}: {info.filename} has {info.file_size} bytes, the archive {self._size}")
        return info

    def _member(self, name: str, most: int | None = None) -> bytes:
        """The bytes of a file of the archive, at most `most`."""
        info = self._info(name)
        if most is not None and info.file_size > most:
            raise Implausible(f"{self.path}: {info.filename} has {info.file_size} bytes; allowed: at most {most}")
        try:
            return self._zip.read(info)
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise BadInput(f"{self.path}: {info.filename}: {error}") from error

    def read(self, name: str) -> Tensor:
        """The tensor `name`. Raises BadInput if its storage is damaged."""
        stored = self.tensors[name]
        dtype, element = STORAGES[stored.storage.kind]
        data = self._member(f"data/{stored.storage.key}")
        size = np.dtype(element).itemsize
        if len(data) != stored.storage.elements * size:
            raise BadInput(f"{self.path}: tensor {name!r}: its storage has {len(data)} bytes, not {stored.storage.elements * size}")
        flat = np.frombuffer(data, element)[stored.offset :] if data else np.empty(0, element)
        values = np.lib.stride_tricks.as_strided(flat, stored.shape, [stride * size for stride in stored.strides], writeable=False)
        if dtype == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        return Tensor(dtype, np.ascontiguousarray(values))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)


class DirectoryWeights:
    """The file beside config.json, by name of the tensor: shape, element type, and a function that reads it. Use it as a context."""

    def __init__(self, directory: pathlib.Path):
        """Raises BadInput if there is no file, or if it holds more than tensors."""
        self._closing = contextlib.ExitStack()
        self.path = next((directory / name for name in WEIGHTS_FILES if (directory / name).is_file()), None)
        self.tensors: dict[str, tuple[tuple[int, ...], str, Callable[[], Tensor]]] = {}
        if self.path is None:
            raise BadInput(f"{directory}: holds no {' and no '.join(WEIGHTS_FILES)}")
        if self.path.suffix == ".bin":
            file = self._closing.enter_context(TorchFile(self.path))
            self.tensors = {name: (t.shape, t.dtype, functools.partial(file.read, name)) for name, t in file.tensors.items()}
        else:
            held = read_checkpoint(self.path)
            self.tensors = {name: (t.shape, t.dtype, functools.partial(held.__getitem__, name)) for name, t in held.items()}

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises BadInput that names the first tensor of `shapes` that is missing or has another shape. Reads no weight."""
        for name, shape in shapes.items():
            if name not in self.tensors:
                raise BadInput(f"{self.path}: tensor {name!r} of shape {list(shape)} is missing")
            if self.tensors[name][0] != shape:
                raise BadInput(f"{self.path}: tensor {name!r} has the shape {list(self.tensors[name][0])}; {list(shape)} is needed")

    def __enter__(self) -> "DirectoryWeights":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
