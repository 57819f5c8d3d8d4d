# SPDX-License-Identifier: Apache-2.0
"""Writes model directories (model/FORMAT.md): the tensors that a configuration needs, and the files, all or nothing."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.errors import BadInput

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
OWN_FILES = ("config.json", "generation_config.json", "model.safetensors", "golden.json", "rwkv_vocab_v20230424.txt", *TOKENIZER_FILES)
DTYPES = ("f32", "f16", "bf16", "keep")
TYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def read_settings(path: pathlib.Path) -> dict[str, Any] | None:
    """The contents of a directory's config.json; None if it is missing or cannot be read."""
    try:
        value = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def omega_columns(feature_map: Mapping[str, Any]) -> int | None:
    """Columns of the tensor `omega` of a feature map; None if the map has no omega."""
    kind = feature_map["type"]
    if kind == "elu":
        return None
    if kind == "rfa":
        return feature_map["num_features"]
    n_dims = feature_map["n_dims"]
    return {"generalized_random": n_dims, "smoothed_random_fourier": (n_dims - 1) // 2}.get(kind, n_dims // 2)


def expected_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that `config` (as in config.json) needs."""
    hidden, ffn, heads = config["hidden_size"], config["ffn_size"], config["num_heads"]
    keys, values = heads * config["key_dim"], heads * config["value_dim"]
    position, output = config["position"], config["output"]
    columns = hidden // 2 if position.get("combine") == "concat" else hidden
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (config["vocab_size"], columns)}
    if position["type"] == "learned":
        shapes["position.weight"] = (position["max_length"], columns)

    def linear(name: str, rows: int, inputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (rows, inputs), (rows,)

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (hidden,)

    feature_map = config["attention"]["feature_map"]
    omega = omega_columns(feature_map)
    for i in range(config["num_layers"]):
        layer = f"transformer.layers.{i}"
        for name, rows in (("query", keys), ("key", keys), ("value", values)):
            linear(f"{layer}.attention.{name}_projection", rows, hidden)
        linear(f"{layer}.attention.out_projection", hidden, values)
        if omega is not None and feature_map["type"] == "rfa":
            shapes[f"{layer}.attention.omega"] = (heads, config["key_dim"], omega)
            shapes[f"{layer}.attention.sigma"] = (heads, config["key_dim"])
        elif omega is not None:
            shapes[f"{layer}.attention.inner_attention.feature_map.omega"] = (config["key_dim"], omega)
        if config["attention"]["gate"] == "rfa":
            linear(f"{layer}.attention.gate_projection", heads, hidden)
        linear(f"{layer}.linear1", ffn, hidden)
        linear(f"{layer}.linear2", hidden, ffn)
        norm(f"{layer}.norm1")
        norm(f"{layer}.norm2")
    if config["final_norm"]:
        norm("transformer.norm")
    linear("predictor", config["vocab_size"] if output["type"] == "categorical" else 3 * output["num_mixtures"], hidden)
    return shapes


def encoded(name: str, tensor: Tensor, dtype: str) -> tuple[str, np.ndarray, np.ndarray]:
    """(element type in the file, the array whose bytes go there, the numbers that those bytes stand for).

    dtype: one of DTYPES; `keep` leaves F32, F16 and BF16 and makes F64 F32. Raises BadInput for a weight that is not finite
    or that the element type cannot hold.
    """
    if not np.isfinite(tensor.values).all():
        flat = int(np.flatnonzero(~np.isfinite(tensor.values))[0])
        raise BadInput(f"tensor {name!r}: weight {flat} is {tensor.values.flat[flat]}; every weight must be finite")
    target = {"f32": "F32", "f16": "F16", "bf16": "BF16"}.get(dtype) or {"F64": "F32"}.get(tensor.dtype, tensor.dtype)
    with np.errstate(over="ignore"):
        single = np.ascontiguousarray(tensor.values, "<f4")
        if target == "BF16":
            bits = single.view("<u4")
            stored = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
            meant = (stored.astype("<u4") << 16).view("<f4")
        else:
            stored = meant = single if target == "F32" else np.ascontiguousarray(tensor.values, "<f2")
    if not np.isfinite(meant).all():
        flat = int(np.flatnonzero(~np.isfinite(meant))[0])
        raise BadInput(
            f"tensor {name!r}: weight {flat} is {tensor.values.flat[flat]}, beyond what {target} holds; choose another --dtype"
        )
    return target, stored, meant


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor to be written: its name and shape in the directory, its name (for errors) and element type in the checkpoint, and what
    reads it. dtype: one of DTYPES where it is not the user's to choose."""

    name: str
    shape: tuple[int, ...]
    source: str
    source_dtype: str
    read: Callable[[], Tensor]
    dtype: str = ""


def stream_weights(path: pathlib.Path, places: Sequence[Place], dtype: str) -> Mapping[str, str]:
    """Writes a safetensors file with one tensor in memory at a time. Returns the element type of each. Raises BadInput as `encoded`."""
    types, header, at = {}, {}, 0
    for place in places:
        target = {"f32": "F32", "f16": "F16", "bf16": "BF16"}.get(place.dtype or dtype)
        types[place.name] = target or {"F64": "F32"}.get(place.source_dtype, place.source_dtype)
        size = math.prod(place.shape) * (4 if types[place.name] == "F32" else 2)
        header[place.name] = {"dtype": types[place.name], "shape": list(place.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for place in places:
            out.write(encoded(place.source, place.read(), place.dtype or dtype)[1].tobytes())
    return types


class ModelFiles:
    """A fully checked model, ready to be written.

    weights: what model.safetensors will hold, numbers as a reader gets them.
    """

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: str = "keep"):
        """Raises BadInput if tensors are missing, surplus, misshapen, not finite or beyond `dtype` (see `encoded`)."""
        self.config, self.weights = config, {}
        self._stored: dict[str, np.ndarray] = {}
        shapes = expected_tensors(config)
        for name, shape in shapes.items():
            if name not in tensors:
                raise BadInput(f"tensor {name!r} of shape {list(shape)} is missing")
            if tensors[name].shape != shape:
                raise BadInput(f"tensor {name!r} has the shape {list(tensors[name].shape)}; {list(shape)} is needed")
            target, self._stored[name], meant = encoded(name, tensors[name], dtype)
            self.weights[name] = Tensor(target, meant)
        if surplus := sorted(set(tensors) - set(shapes)):
            raise BadInput(f"tensor {surplus[0]!r} has no place in this model")

    def write(self, directory: pathlib.Path, *, force: bool = False, golden: Mapping[str, Any] | None = None) -> None:
        """Writes config.json, model.safetensors and, where given, golden.json beside `directory`, then renames the whole.

        Raises BadInput where `directory` exists without `force`, OSError where the disk refuses; then nothing is left behind.
        """
        with new_directory(directory, force) as temporary:
            text = json.dumps(self.config, indent=2, ensure_ascii=False) + "\n"
            (temporary / "config.json").write_text(text, encoding="utf-8")
            if golden is not None:
                (temporary / "golden.json").write_text(json.dumps(golden) + "\n", encoding="utf-8")
            safetensors.serialize_file(self._entries(), temporary / "model.safetensors", None)

    def _entries(self) -> dict[str, safetensors.TensorSpec]:
        """What safetensors writes; the specifications point into arrays that this object keeps."""
        return {
            name: safetensors.TensorSpec(
                dtype=TYPE_NAMES[self.weights[name].dtype], shape=list(stored.shape), data_ptr=stored.ctypes.data,
                data_len=stored.nbytes,
            )
            for name, stored in self._stored.items()
        }  # fmt: skip


@contextlib.contextmanager
def new_directory(directory: pathlib.Path, force: bool) -> Iterator[pathlib.Path]:
    """A folder to fill, which becomes `directory` at the end, and leaves nothing behind after an exception.

    Raises BadInput where `directory` exists without `force`, OSError where the disk refuses.
    """
    refuse_existing(directory, force)
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        yield temporary
        _put_in_place(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_existing(directory: pathlib.Path, force: bool) -> None:
    """Raises BadInput if `directory` must not be written: it exists and `force` is not given, or it is no model directory."""
    if not directory.exists() and not directory.is_symlink():
        return
    if not force:
        raise BadInput(f"{directory}: exists already; --force replaces it")
    strangers = [] if not directory.is_dir() else sorted(
        p.name for p in directory.iterdir() if p.name not in OWN_FILES
    )  # fmt: skip
    if directory.is_symlink() or not directory.is_dir():
        raise BadInput(f"{directory}: is not a directory; --force replaces model directories only")
    if strangers:
        raise BadInput(f"{directory}: holds {strangers[0]!r}, so it is no model directory; --force will not remove it")


def _put_in_place(temporary: pathlib.Path, directory: pathlib.Path) -> None:
    """Renames `temporary` to `directory`; an old directory is moved aside first and removed last."""
    mask = _umask()  # only the owner can read temporary directories and safetensors' files
    os.chmod(temporary, 0o777 & ~mask)
    for file in temporary.iterdir():
        os.chmod(file, 0o666 & ~mask)
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    if not directory.exists():
        os.rename(temporary, directory)
        return
    aside = pathlib.Path(tempfile.mkdtemp(prefix=f".{directory.name}.old.", dir=directory.parent))
    os.rename(directory, aside / "old")
    try:
        os.rename(temporary, directory)
    except OSError:
        os.rename(aside / "old", directory)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    """The process's file mode mask. Thread: the mask is process-wide for a moment, so call it from one thread."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
