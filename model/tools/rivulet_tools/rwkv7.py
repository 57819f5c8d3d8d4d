# SPDX-License-Identifier: Apache-2.0
"""RWKV-7 as its author publishes it (a .pth of torch.save) becomes a directory of kind rwkv7, as flash-linear-attention's save_pretrained
would write it. Every tensor has one place there."""

import ast
import functools
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.errors import BadInput
from rivulet_tools.model_directory import TYPE_NAMES, Place, new_directory, stream_weights
from rivulet_tools.torch_file import Implausible, TorchFile

VOCABULARY = "rwkv_vocab_v20230424.txt"  # its name in the directory
# The limits of the server's parser for it.
MAX_VOCABULARY_BYTES, MAX_VOCABULARY_IDS, MAX_TOKEN_BYTES = 64 << 20, 1 << 20, 256
_LINE = re.compile(rb"([0-9]{1,9}) (b?['\"].*) ([0-9]{1,9})", re.DOTALL)
_ESCAPE = rb"\\[nrt\\'\"]|\\x[0-9A-Fa-f]{2}"
_LITERAL = re.compile(
    b"|".join(
        rb"%s%s(?:[^%s\\%s]|%s)*%s" % (prefix, quote, quote, others, escapes, quote)
        for quote in (b"'", b'"')
        for prefix, others, escapes in ((b"", b"", _ESCAPE + rb"|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}"), (b"b", rb"\x80-\xff", _ESCAPE))
    ),
    re.DOTALL,
)
HEAD_DIM = 64
LORAS = "wavg"
# Tensors of a layer that are only renamed.
LAYER = {
    "ln1.weight": "attn_norm.weight", "ln1.bias": "attn_norm.bias", "ln2.weight": "ffn_norm.weight", "ln2.bias": "ffn_norm.bias",
    "att.receptance.weight": "attn.r_proj.weight", "att.key.weight": "attn.k_proj.weight", "att.value.weight": "attn.v_proj.weight",
    "att.output.weight": "attn.o_proj.weight", "att.k_k": "attn.k_k", "att.k_a": "attn.k_a", "att.r_k": "attn.r_k",
    "att.ln_x.weight": "attn.g_norm.weight", "att.ln_x.bias": "attn.g_norm.bias", "ffn.x_k": "ffn.x_k",
    "ffn.key.weight": "ffn.key.weight", "ffn.value.weight": "ffn.value.weight",
} | {f"att.x_{c}": f"attn.x_{c}" for c in "rwkvag"}  # fmt: skip
ENDS = {
    "emb.weight": "model.embeddings.weight", "blocks.0.ln0.weight": "model.layers.0.pre_norm.weight",
    "blocks.0.ln0.bias": "model.layers.0.pre_norm.bias", "ln_out.weight": "model.norm.weight", "ln_out.bias": "model.norm.bias",
    "head.weight": "lm_head.weight",
}  # fmt: skip


def is_rwkv7(path: pathlib.Path) -> bool:
    """Whether the file is an archive of torch.save with the names of RWKV-7."""
    try:
        with TorchFile(path) as file:
            return "blocks.0.att.r_k" in file.tensors
    except Implausible:
        raise
    except BadInput:
        return False


class Sizes:
    """Sizes from the shapes. Raises BadInput that names a missing or misshapen tensor."""

    def __init__(self, file: TorchFile):
        self.file = file
        self.vocab, self.hidden = self.shape("emb.weight", 2)
        self.layers = 1 + max((int(m[1]) for name in file if (m := re.match(r"blocks\.(\d+)\.", name))), default=-1)
        if self.layers > len(file.tensors):
            raise BadInput(f"{file.path}: a tensor is of layer {self.layers - 1}, and there are {len(file.tensors)} tensors; allowed: layers from 0 on")
        self.heads, head_dim = self.shape("blocks.0.att.r_k", 2)
        if head_dim != HEAD_DIM or self.heads * head_dim != self.hidden:
            raise self.bad("blocks.0.att.r_k", f"{HEAD_DIM} columns and {self.hidden} elements (the eps of the group norm fits no other heads)")
        self.ffn = self.shape("blocks.0.ffn.key.weight", 2)[0]
        self.ranks = {c: self.shape(f"blocks.{'1' if c == 'v' and self.layers > 1 else '0'}.att.{c}1", 2)[1] for c in LORAS if c != "v" or self.layers > 1}

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        if name not in self.file.tensors:
            raise BadInput(f"{self.file.path}: tensor {name!r} is missing")
        if len(self.file.tensors[name].shape) != dimensions:
            raise self.bad(name, f"{dimensions} dimensions")
        return self.file.tensors[name].shape

    def bad(self, name: str, needed: str) -> BadInput:
        return BadInput(f"{self.file.path}: tensor {name!r} has the shape {list(self.file.tensors[name].shape)}; needed: {needed}")

    def of(self, name: str) -> tuple[int, ...]:
        """The shape in the written directory of the tensor `name` there."""
        d, f = self.hidden, self.ffn
        if name in ("model.embeddings.weight", "lm_head.weight"):
            return (self.vocab, d)
        if lora := re.search(r"attn\.(.)_lora\.lora\.(\d)\.(weight|bias)", name):
            rank = self.ranks[lora[1]]
            return (d,) if lora[3] == "bias" else (rank, d) if lora[2] == "0" else (d, rank)
        if name.endswith("_proj.weight"):
            return (d, d)
        if "attn.x_" in name:
            return (1, 1, d)
        return {"attn.r_k": (self.heads, HEAD_DIM), "ffn.key.weight": (f, d), "ffn.value.weight": (d, f)}.get(name.split(".", 3)[-1], (d,))


def places(layers: int) -> Iterator[tuple[str, str, bool]]:
    """(tensor of the checkpoint, tensor of the directory, whether it is transposed) of all."""
    yield from ((old, new, False) for old, new in ENDS.items())
    for i in range(layers):
        old, new = f"blocks.{i}.", f"model.layers.{i}."
        yield from ((old + a, new + b, False) for a, b in LAYER.items())
        for c in LORAS:
            if c == "v" and i == 0:
                continue  # the other layers mix with the first layer's values
            lora = f"{new}attn.{c}_lora.lora."
            yield f"{old}att.{c}1", lora + "0.weight", True
            yield f"{old}att.{c}2", lora + "2.weight", True
            if c != "g":
                yield f"{old}att.{c}0", lora + "2.bias", False


def configuration(sizes: Sizes, dtype: str) -> dict[str, Any]:
    ranks = {"decay": "w", "a": "a", "v": "v", "gate": "g"}
    return {
        "architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7", "hidden_size": sizes.hidden, "num_hidden_layers": sizes.layers,
        "head_dim": HEAD_DIM, "num_heads": sizes.heads, "intermediate_size": sizes.ffn, "hidden_act": "sqrelu", "norm_eps": 1e-5,
        "norm_first": True, "norm_bias": True, "value_dim": [sizes.hidden] * sizes.layers, "vocab_size": sizes.vocab,
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 0, "dtype": dtype,
    } | {f"{name}_low_rank_dim": sizes.ranks[c] for name, c in ranks.items() if c in sizes.ranks}  # fmt: skip


def token_of(literal: bytes) -> bytes:
    """The bytes of a Python literal that the server accepts: one piece, no prefix but b, simple escapes. Raises ValueError."""
    if not _LITERAL.fullmatch(literal):
        raise ValueError("no literal that the server reads")
    value = ast.literal_eval(literal.decode())
    return value.encode() if isinstance(value, str) else value


def read_vocabulary(path: pathlib.Path, vocab_size: int) -> bytes:
    """The bytes of a World vocabulary that the server reads, too (model/text/world_vocabulary.h). Raises BadInput with the line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"--vocab {path}: {error}") from error
    if len(data) > MAX_VOCABULARY_BYTES:
        raise BadInput(f"--vocab {path}: {len(data)} bytes; allowed: at most {MAX_VOCABULARY_BYTES}")
    ids: set[int] = set()
    tokens: set[bytes] = set()
    largest = min(vocab_size, MAX_VOCABULARY_IDS) - 1
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n") if data else [], 1):
        where = f"--vocab {path}:{number}"
        parts = _LINE.fullmatch(line.removesuffix(b"\r"))
        try:
            if parts is None:
                raise ValueError
            index, token, length = int(parts[1]), token_of(parts[2]), int(parts[3])
        except (ValueError, SyntaxError) as error:
            raise BadInput(f"{where}: {line[:80]!r}; allowed: ID LITERAL BYTES, the literal as Python's repr writes it") from error
        if not 1 <= index <= largest or index in ids:
            raise BadInput(f"{where}: the id {index}; allowed: 1 to {largest}, each once")
        if not 1 <= len(token) <= MAX_TOKEN_BYTES or len(token) != length:
            raise BadInput(f"{where}: a token of {len(token)} bytes and the length {length}; allowed: the same, from 1 to {MAX_TOKEN_BYTES}")
        if token in tokens:
            raise BadInput(f"{where}: the token {token!r} a second time")
        ids.add(index)
        tokens.add(token)
    for byte in range(256):
        if bytes([byte]) not in tokens:
            raise BadInput(f"--vocab {path}: there is no token for the byte 0x{byte:02X}, so not every text could be written in tokens")
    return data


def open_state(path: pathlib.Path) -> TorchFile:
    """Raises BadInput that names the flag."""
    try:
        return TorchFile(path)
    except BadInput as error:
        raise type(error)(f"--initial-state {error}") from error


class InitialState:
    """A tuned state: S of each layer before the first token. Raises BadInput if a tensor is missing, misshapen or has no place."""

    def __init__(self, file: TorchFile, sizes: Sizes):
        self.file, self.sizes = file, sizes
        names = [f"blocks.{i}.att.time_state" for i in range(sizes.layers)]
        shape = (sizes.heads, HEAD_DIM, HEAD_DIM)
        for name in names:
            if name not in file.tensors:
                raise BadInput(f"--initial-state {file.path}: tensor {name!r} is missing")
            if file.tensors[name].shape != shape:
                found = list(file.tensors[name].shape)
                raise BadInput(f"--initial-state {file.path}: tensor {name!r} has the shape {found}; needed: {list(shape)}, as the model")
        if surplus := sorted(set(file.tensors) - set(names)):
            raise BadInput(f"--initial-state {file.path}: tensor {surplus[0]!r} has no place; allowed: {names[0]!r} to {names[-1]!r}")

    def tensor(self, name: str) -> Tensor:
        """Training keeps a head as values x keys, and the server as keys x values."""
        tensor = self.file.read(name)
        return Tensor(tensor.dtype, np.ascontiguousarray(tensor.values.swapaxes(1, 2)))

    def places(self) -> list[Place]:
        """Always in float32, like states."""
        shape = (self.sizes.heads, HEAD_DIM, HEAD_DIM)
        return [
            Place(f"model.layers.{i}.attn.initial_state", shape, name, self.file.tensors[name].dtype, functools.partial(self.tensor, name), "f32")
            for i, name in enumerate(f"blocks.{i}.att.time_state" for i in range(self.sizes.layers))
        ]


class Conversion:
    """One checked checkpoint. Raises BadInput if a tensor is missing, misshapen or has no place."""

    def __init__(self, file: TorchFile, initial_state: TorchFile | None = None):
        """initial_state: the file of --initial-state."""
        self.file, self.sizes = file, Sizes(file)
        self.initial_state = None if initial_state is None else InitialState(initial_state, self.sizes)
        self.places = list(places(self.sizes.layers))
        # Checkpoints may hold a value mix of the first layer, which no code reads.
        self.unused = sorted(name for name in file if re.fullmatch(r"blocks\.0\.att\.v[012]", name))
        for old, new, turned in self.places:
            if old not in file.tensors:
                raise BadInput(f"{file.path}: tensor {old!r} is missing")
            shape, needed = file.tensors[old].shape, self.sizes.of(new)
            needed = needed[::-1] if turned else needed
            if tuple(n for n in shape if n != 1) != tuple(n for n in needed if n != 1):
                raise self.sizes.bad(old, str(list(needed)))
        surplus = sorted(set(file.tensors) - {old for old, _, _ in self.places} - set(self.unused))
        if surplus:
            raise BadInput(f"{file.path}: tensor {surplus[0]!r} has no place in RWKV-7; checkpoints of its successors are not converted")

    def tensor(self, old: str, new: str, turned: bool) -> Tensor:
        tensor, shape = self.file.read(old), self.sizes.of(new)
        values = tensor.values.reshape(shape[::-1]).T if turned else tensor.values.reshape(shape)
        return Tensor(tensor.dtype, np.ascontiguousarray(values))

    def _tensors(self) -> list[Place]:
        found = [
            Place(new, self.sizes.of(new), old, self.file.tensors[old].dtype, functools.partial(self.tensor, old, new, turned))
            for old, new, turned in self.places
        ]
        return found + ([] if self.initial_state is None else self.initial_state.places())

    def report(self) -> str:
        s = self.sizes
        lines = [f"{self.file.path}: RWKV-7, {s.layers} layers of width {s.hidden}, {s.heads} heads, vocabulary of {s.vocab}"]
        lines += [f"mapped ({len(self.places)} tensors)"]
        lines += [f"  {old}  ->  {new}  {list(s.of(new))}{' transposed' if turned else ''}" for old, new, turned in self.places]
        if self.initial_state is not None:
            lines += [f"every sequence begins with the state of {self.initial_state.file.path}"]
        return "\n".join(lines + ([f"not used ({len(self.unused)} tensors)", *(f"  {name}" for name in self.unused)] if self.unused else []))

    def write(self, directory: pathlib.Path, dtype: str, vocabulary: bytes | None, force: bool) -> None:
        """Writes all or nothing, one tensor in memory at a time. Raises BadInput as `encoded` does, OSError for errors of the disk."""
        with new_directory(directory, force) as temporary:
            types = stream_weights(temporary / "model.safetensors", self._tensors(), dtype)
            config = configuration(self.sizes, TYPE_NAMES[types["model.embeddings.weight"]])
            (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            if vocabulary is not None:
                (temporary / VOCABULARY).write_bytes(vocabulary)
