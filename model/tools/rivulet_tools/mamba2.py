# SPDX-License-Identifier: Apache-2.0
"""Mamba-2 as its authors' package mamba_ssm saves it (config.json with ssm_cfg, and pytorch_model.bin) becomes a directory of kind mamba2, as
transformers' save_pretrained would write it. The tensors have the same numbers there."""

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rivulet_tools.errors import BadInput
from rivulet_tools.model_directory import TOKENIZER_FILES, TYPE_NAMES, Place, new_directory, read_settings, stream_weights
from rivulet_tools.torch_file import DirectoryWeights

AUTHORS_TOKENIZER = "EleutherAI/gpt-neox-20b"
END_OF_TEXT = "<|endoftext|>"

# Settings with the defaults of mamba_ssm's MambaConfig and Mamba2. They only say how a model is computed or was initialized.
MODEL = {
    "d_model": 2560, "d_intermediate": 0, "n_layer": 64, "vocab_size": 50277, "attn_layer_idx": [], "attn_cfg": {}, "rms_norm": True,
    "pad_vocab_size_multiple": 8, "tie_embeddings": True,
}  # fmt: skip
LAYER = {
    "layer": "Mamba1", "d_state": 128, "d_conv": 4, "expand": 2, "headdim": 64, "d_ssm": None, "ngroups": 1, "D_has_hdim": False, "rmsnorm": True,
    "norm_before_gate": False, "dt_limit": [0.0, float("inf")], "bias": False, "conv_bias": True,
}  # fmt: skip
HARMLESS = {
    "ssm_cfg", "residual_in_fp32", "fused_add_norm", "conv_init", "A_init_range", "dt_min", "dt_max", "dt_init_floor", "chunk_size",
    "use_mem_eff_path", "process_group", "sequence_parallel", "device", "dtype",
}  # fmt: skip
# The supported values of settings that change the mathematics.
ONLY = {
    "d_intermediate": (0, "layers with an MLP are not served"), "attn_layer_idx": ([], "attention layers are not served"),
    "rms_norm": (True, "layer norms are not served"), "layer": ("Mamba2", "Mamba-1, the default, is not served"),
    "D_has_hdim": (False, "one D a head is served"), "rmsnorm": (True, "mixers have a norm"),
    "norm_before_gate": (False, "the gate comes before the norm"),
}  # fmt: skip


def is_mamba2(path: pathlib.Path) -> bool:
    """Whether the directory has a configuration of mamba_ssm."""
    settings = read_settings(path) if path.is_dir() else None
    return settings is not None and "ssm_cfg" in settings


class Settings:
    """The checked settings of config.json. Raises BadInput that names the setting, its value and what is allowed."""

    def __init__(self, path: pathlib.Path):
        self.path, found = path / "config.json", read_settings(path) or {}
        layer = found.get("ssm_cfg")
        if not isinstance(layer, dict):
            raise self.bad("ssm_cfg", layer, "an object")
        self.values = self._taken(found, MODEL, "") | self._taken(layer, LAYER, "ssm_cfg.")
        self.hidden, self.layers, self.heads_of = self._size("d_model"), self._size("n_layer"), self._size("headdim")
        self.state, self.taps, self.groups = self._size("d_state"), self._size("d_conv"), self._size("ngroups")
        padding = self._size("pad_vocab_size_multiple")
        self.vocab = -(-self._size("vocab_size") // padding) * padding  # mamba_ssm pads its embedding
        self.inner = self._inner()
        self.heads = self.inner // self.heads_of
        self.bias, self.conv_bias, self.tied = self._flag("bias"), self._flag("conv_bias"), self._flag("tie_embeddings")
        self.conv_channels = self.inner + 2 * self.groups * self.state
        self.dt_limit = self._dt_limit()

    def bad(self, name: str, value: object, allowed: str) -> BadInput:
        return BadInput(f"{self.path}: {name} is {json.dumps(value)[:80]}; allowed: {allowed}")

    def _taken(self, found: Mapping[str, Any], defaults: Mapping[str, Any], path: str) -> dict[str, Any]:
        for name, value in found.items():
            if name not in defaults and name not in HARMLESS and value not in (None, False):
                raise BadInput(f"{self.path}: {path}{name} is {json.dumps(value)[:80]}; mamba_ssm has no such setting of Mamba-2")
        taken = {name: found.get(name, default) for name, default in defaults.items()}
        for name in taken.keys() & ONLY.keys():
            value, why = ONLY[name]
            if taken[name] != value or (type(taken[name]) is not type(value)):
                raise self.bad(path + name, taken[name], f"{json.dumps(value)}, as {why}")
        return taken

    def _size(self, name: str) -> int:
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 24:
            raise self.bad(name, value, f"1 to {(1 << 24) - 1}")
        return value

    def _flag(self, name: str) -> bool:
        if not isinstance(self.values[name], bool):
            raise self.bad(name, self.values[name], "true or false")
        return bool(self.values[name])

    def _inner(self) -> int:
        expand = self.values["expand"]
        inner = expand * self.hidden if isinstance(expand, (int, float)) and not isinstance(expand, bool) and 0 < expand < 1 << 10 else 0
        if inner != int(inner) or inner < 1 or int(inner) % self.heads_of:
            raise self.bad("ssm_cfg.expand", expand, f"a number whose product with d_model, {self.hidden}, is a multiple of headdim, {self.heads_of}")
        inner = int(inner)
        if self.values["d_ssm"] not in (None, inner):
            raise self.bad("ssm_cfg.d_ssm", self.values["d_ssm"], f"null or {inner}, as mixers with an MLP inside are not served")
        if (inner // self.heads_of) % self.groups:
            raise self.bad("ssm_cfg.ngroups", self.groups, f"a divisor of the number of heads, {inner // self.heads_of}")
        return inner

    def _dt_limit(self) -> list[Any]:
        """In transformers 5's form, because JSON has no infinity."""
        limit = self.values["dt_limit"]
        good = isinstance(limit, list) and len(limit) == 2 and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in limit)
        if not good or not 0 <= limit[0] <= limit[1]:
            raise self.bad("ssm_cfg.dt_limit", limit, "two numbers from 0, the smaller first")
        return [float(x) if x != float("inf") else {"__float__": "Infinity"} for x in limit]

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name in mamba_ssm, shape) of every tensor that is needed."""
        d, inner, heads, channels = self.hidden, self.inner, self.heads, self.conv_channels
        rows = inner + channels + heads
        yield "backbone.embedding.weight", (self.vocab, d)
        for i in range(self.layers):
            mixer = f"backbone.layers.{i}.mixer."
            yield f"backbone.layers.{i}.norm.weight", (d,)
            yield mixer + "in_proj.weight", (rows, d)
            yield mixer + "conv1d.weight", (channels, 1, self.taps)
            yield from ((mixer + name, (heads,)) for name in ("dt_bias", "A_log", "D"))
            yield mixer + "norm.weight", (inner,)
            yield mixer + "out_proj.weight", (d, inner)
            if self.conv_bias:
                yield mixer + "conv1d.bias", (channels,)
            if self.bias:
                yield mixer + "in_proj.bias", (rows,)
                yield mixer + "out_proj.bias", (d,)
        yield "backbone.norm_f.weight", (d,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, d)

    def config(self, dtype: str, eos: int | None) -> dict[str, Any]:
        return {
            "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_heads": self.heads, "head_dim": self.heads_of, "state_size": self.state, "n_groups": self.groups, "conv_kernel": self.taps,
            "expand": self.values["expand"], "use_bias": self.bias, "use_conv_bias": self.conv_bias, "hidden_act": "silu",
            "layer_norm_epsilon": 1e-5, "rms_norm": True, "time_step_limit": self.dt_limit, "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied, "bos_token_id": None, "eos_token_id": eos, "dtype": dtype,
        }  # fmt: skip


class Conversion:
    """One checked directory. Raises BadInput if a setting is not supported, or a tensor is missing, misshapen or has no place."""

    def __init__(self, settings: Settings, weights: DirectoryWeights, tokenizer: pathlib.Path, eos: str | None):
        """tokenizer: the folder that holds its files. eos: an id, "none", or None for the tokenizer's <|endoftext|>."""
        self.settings, self.weights = settings, weights
        self.tokenizer = [tokenizer / name for name in TOKENIZER_FILES if (tokenizer / name).is_file()]
        self.eos = self._end_of_text() if eos is None else None if eos == "none" else self._token(eos)
        self.needed = dict(settings.shapes())
        weights.check(self.needed)
        surplus = sorted(weights.tensors.keys() - self.needed.keys() - ({"lm_head.weight"} if settings.tied else set()))
        if surplus:
            raise BadInput(f"{weights.path}: tensor {surplus[0]!r} has no place in this Mamba-2")
        self._check_tied()

    def _check_tied(self) -> None:
        """torch.save writes a tied head as a second name for the embedding."""
        if not self.settings.tied or "lm_head.weight" not in self.weights.tensors:
            return
        head, embedding = (self.weights.tensors[name][2]() for name in ("lm_head.weight", "backbone.embedding.weight"))
        if not np.array_equal(head.values, embedding.values):
            raise BadInput(f"{self.weights.path}: tensor 'lm_head.weight' is not the embedding, and tie_embeddings is true")

    def _token(self, given: str) -> int:
        if not given.isdecimal() or int(given) >= self.settings.vocab:
            raise BadInput(f"--eos {given}: none, or an id from 0 to {self.settings.vocab - 1}, is allowed")
        return int(given)

    def _end_of_text(self) -> int | None:
        """The id of <|endoftext|>, which ends a text of the authors' models."""
        path = next((file for file in self.tokenizer if file.name == "tokenizer.json"), None)
        try:
            added = [] if path is None else json.loads(path.read_text(encoding="utf-8")).get("added_tokens", [])
            ids = [token["id"] for token in added if token["content"] == END_OF_TEXT]
        except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
            raise BadInput(f"{path}: not a tokenizer.json: {error}") from error
        return self._token(str(ids[0])) if ids else None

    def report(self) -> str:
        s = self.settings
        lines = [f"{self.weights.path}: Mamba-2, {s.layers} layers of width {s.hidden}, {s.heads} heads, state of {s.state}, vocabulary of {s.vocab}"]
        lines += [f"mapped ({len(self.needed)} tensors)", *(f"  {old}  ->  {_renamed(old)}  {list(shape)}" for old, shape in self.needed.items())]
        lines += [f"copied  {file}" for file in self.tokenizer]
        return "\n".join([*lines, f"a text ends with token {self.eos}" if self.eos is not None else "no token ends a text (--eos ID names one)"])

    def warning(self) -> str | None:
        if any(file.name == "tokenizer.json" for file in self.tokenizer):
            return None
        return (
            "there is no tokenizer.json, so the model will be served as token ids, not as text. The authors' models use that of "
            f"{AUTHORS_TOKENIZER} (Hugging Face): --tokenizer FOLDER copies it"
        )

    def write(self, directory: pathlib.Path, dtype: str, force: bool) -> None:
        """Writes all or nothing. Raises BadInput as `encoded` does, and OSError for errors of the disk."""
        places = []
        for old, shape in self.needed.items():
            _, source_dtype, read = self.weights.tensors[old]
            places.append(Place(_renamed(old), shape, old, source_dtype, read))
        with new_directory(directory, force) as temporary:
            types = stream_weights(temporary / "model.safetensors", places, dtype)
            config = self.settings.config(TYPE_NAMES[types["backbone.embeddings.weight"]], self.eos)
            (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            for file in self.tokenizer:
                (temporary / file.name).write_bytes(file.read_bytes())


def _renamed(name: str) -> str:
    return name.replace("backbone.embedding.", "backbone.embeddings.")
