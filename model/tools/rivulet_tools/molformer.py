# SPDX-License-Identifier: Apache-2.0
"""GP-MoLFormer, as IBM publishes it for transformers (a directory with remote code, which is never run), becomes a directory that the server
reads: the same config.json and tensors, in model.safetensors, with a tokenizer beside them. The equations in float64 check it."""

import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rivulet_tools.errors import BadInput
from rivulet_tools.library import Answer
from rivulet_tools.model_directory import TOKENIZER_FILES, Place, encoded, new_directory, read_settings, stream_weights
from rivulet_tools.torch_file import DirectoryWeights

EMBEDDING, DECODER = "molformer.embeddings.word_embeddings.weight", "lm_head.decoder.weight"
TOKENIZER = "ibm-research/MoLFormer-XL-both-10pct"
# Settings that the equations read, with the published defaults.
DEFAULTS = {
    "vocab_size": 2362, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 768,
    "num_random_features": 32, "layer_norm_eps": 1e-12, "linear_attention_eps": 1e-6, "tie_word_embeddings": False,
    "deterministic_eval": False,
}  # fmt: skip
# The supported values of settings that change the mathematics.
ONLY = {"model_type": "molformer", "is_decoder": True, "add_cross_attention": False, "hidden_act": "gelu", "feature_map_kernel": "relu"}
CAUSAL = "MolformerForCausalLM"


class Conversion:
    """One checked directory, and its model in float64. Raises BadInput that names the setting or the tensor."""

    def __init__(self, directory: pathlib.Path, weights: DirectoryWeights, tokenizer: pathlib.Path | None, dtype: str):
        """tokenizer: the folder that holds its files; None: `directory`. dtype: one of DTYPES."""
        if EMBEDDING not in weights.tensors:
            raise BadInput(f"{directory}: is a directory of neither mamba_ssm (ssm_cfg in its config.json) nor GP-MoLFormer (tensor {EMBEDDING!r})")
        if tokenizer is not None and not (tokenizer / "tokenizer.json").is_file():
            raise BadInput(f"--tokenizer {tokenizer}: holds no tokenizer.json")
        self.directory, self.weights, self.dtype = directory, weights, dtype
        self.files = [(tokenizer or directory) / name for name in TOKENIZER_FILES if ((tokenizer or directory) / name).is_file()]
        self.settings = read_settings(directory)
        if self.settings is None:
            raise BadInput(f"{directory}/config.json: is missing or no JSON object")
        self.values = {name: self._taken(name, default) for name, default in DEFAULTS.items()}
        for name, only in ONLY.items():
            if self.settings.get(name) not in (None, only):
                raise self._bad(name, json.dumps(only))
        if CAUSAL not in (self.settings.get("architectures") or [CAUSAL]):
            raise self._bad("architectures", f"{CAUSAL}, as MoLFormer's encoder has no causal form")
        if self.values["hidden_size"] % (2 * self.values["num_attention_heads"]):
            raise self._bad("num_attention_heads", f"a number for which hidden_size, {self.values['hidden_size']}, makes heads of an even size")
        self.shapes = dict(self._shapes())
        weights.check(self.shapes)
        self._check_others()

    def _bad(self, name: str, allowed: str) -> BadInput:
        return BadInput(f"{self.directory}/config.json: {name} is {json.dumps(self.settings.get(name))[:80]}; allowed: {allowed}")

    def _taken(self, name: str, default: Any) -> Any:
        value = self.settings.get(name)
        value = default if value is None else value
        kinds = (int, float) if isinstance(default, float) else type(default)
        most = 4096 if name == "num_hidden_layers" else 1 << 20
        if not isinstance(value, kinds) or isinstance(value, bool) != isinstance(default, bool) or not isinstance(value, bool) and not 0 < value <= most:
            raise self._bad(name, f"a value such as {json.dumps(default)}")
        return value

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden, inner, vocab = self.values["hidden_size"], self.values["intermediate_size"], self.values["vocab_size"]

        def part(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
            yield from ((f"{name}.weight", shape), (f"{name}.bias", shape[:1]))

        yield EMBEDDING, (vocab, hidden)
        for i in range(self.values["num_hidden_layers"]):
            layer = f"molformer.encoder.layer.{i}."
            for name in ("self.query", "self.key", "self.value", "output.dense"):
                yield from part(f"{layer}attention.{name}", hidden, hidden)
            yield f"{layer}attention.self.feature_map.weight", (hidden // self.values["num_attention_heads"], self.values["num_random_features"])
            yield from part(layer + "attention.output.LayerNorm", hidden)
            yield from part(layer + "intermediate.dense", inner, hidden)
            yield from part(layer + "output.dense", hidden, inner)
            yield from part(layer + "output.LayerNorm", hidden)
        yield from part("molformer.LayerNorm", hidden)
        yield from part("lm_head.transform.dense", hidden, hidden)
        yield from part("lm_head.transform.LayerNorm", hidden)
        if not self.values["tie_word_embeddings"]:
            yield DECODER, (vocab, hidden)

    def _check_others(self) -> None:
        """torch.save writes a tied head as a second name for the embedding."""
        surplus = self.weights.tensors.keys() - self.shapes.keys()
        if DECODER in surplus and np.array_equal(self.weights.tensors[DECODER][2]().values, self.weights.tensors[EMBEDDING][2]().values):
            surplus.remove(DECODER)
        if surplus:
            raise BadInput(f"{self.weights.path}: tensor {min(surplus)!r} has no place in this GP-MoLFormer")

    def report(self) -> str:
        v = self.values
        lines = [
            f"{self.weights.path}: GP-MoLFormer, {v['num_hidden_layers']} layers of width {v['hidden_size']}, {v['num_attention_heads']} heads, "
            f"{v['num_random_features']} random features, vocabulary of {v['vocab_size']}"
        ]
        if not v["deterministic_eval"]:
            lines.append("random features: those of the file. The published code draws new ones in every pass, as deterministic_eval is false")
        return "\n".join([*lines, *(f"copied  {file}" for file in self.files)])

    def warning(self) -> str | None:
        if any(file.name == "tokenizer.json" for file in self.files):
            return None
        return (
            "there is no tokenizer.json, so the model will be served as token ids, not as SMILES. IBM's is in "
            f"{TOKENIZER} (Hugging Face): --tokenizer FOLDER copies it"
        )

    def write(self, directory: pathlib.Path, force: bool) -> None:
        """Writes all or nothing. Raises BadInput as `encoded` does, and OSError for errors of the disk."""
        places = [Place(name, shape, name, *self.weights.tensors[name][1:]) for name, shape in self.shapes.items()]
        with new_directory(directory, force) as temporary:
            stream_weights(temporary / "model.safetensors", places, self.dtype)
            (temporary / "config.json").write_text(json.dumps({**self.settings, "model_type": ONLY["model_type"]}, indent=2) + "\n", encoding="utf-8")
            for file in (self.directory / "generation_config.json", *self.files):
                if file.is_file():
                    (temporary / file.name).write_bytes(file.read_bytes())

    def _tensor(self, name: str) -> np.ndarray:
        """As the directory will hold it."""
        return encoded(name, self.weights.tensors[name][2](), self.dtype)[2].astype(np.float64)

    def _linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self._tensor(name + ".weight").T + self._tensor(name + ".bias")

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.values["layer_norm_eps"]) * self._tensor(name + ".weight") + self._tensor(name + ".bias")

    def _attention(self, name: str, x: np.ndarray) -> np.ndarray:
        """y_t = sum of phi(q_t) . phi(k_i) v_i over i <= t, divided by max(sum of phi(q_t) . phi(k_i), eps); phi(x) = relu(RoPE(x) F)."""
        tokens, heads = len(x), self.values["num_attention_heads"]
        q, k, v = (self._linear(f"{name}.{part}", x).reshape(tokens, heads, -1).swapaxes(0, 1) for part in ("query", "key", "value"))
        half = q.shape[-1] // 2
        angles = np.arange(tokens)[:, None] * 10000.0 ** (-np.arange(half) / half)
        features = self._tensor(name + ".feature_map.weight")

        def phi(part: np.ndarray) -> np.ndarray:
            a, b = part[..., :half], part[..., half:]
            turned = np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)
            return np.maximum(turned @ features, 0)

        scores = np.tril(phi(q) @ phi(k).swapaxes(1, 2))
        y = scores @ v / np.maximum(scores.sum(-1, keepdims=True), self.values["linear_attention_eps"])
        return y.swapaxes(0, 1).reshape(tokens, -1)

    def answer(self, tokens: Sequence[int]) -> Answer:
        """The outputs and the log-likelihood of all tokens but the first, in float64. Raises BadInput for tokens that the model cannot score."""
        if len(tokens) < 2 or not all(0 <= token < self.values["vocab_size"] for token in tokens):
            raise BadInput(f"a sequence to check with: {list(tokens)[:8]}; allowed: 2 or more tokens from 0 to {self.values['vocab_size'] - 1}")
        x = self._tensor(EMBEDDING)[list(tokens[:-1])]
        for i in range(self.values["num_hidden_layers"]):
            layer = f"molformer.encoder.layer.{i}."
            y = self._linear(layer + "attention.output.dense", self._attention(layer + "attention.self", x))
            x = self._norm(layer + "attention.output.LayerNorm", x + y)
            y = self._linear(layer + "output.dense", _gelu(self._linear(layer + "intermediate.dense", x)))
            x = self._norm(layer + "output.LayerNorm", x + y)
        x = _gelu(self._linear("lm_head.transform.dense", self._norm("molformer.LayerNorm", x)))
        outputs = self._norm("lm_head.transform.LayerNorm", x) @ self._tensor(EMBEDDING if self.values["tie_word_embeddings"] else DECODER).T
        most = outputs.max(-1)
        return Answer(outputs, most + np.log(np.exp(outputs - most[:, None]).sum(-1)) - outputs[np.arange(len(outputs)), list(tokens[1:])])


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
