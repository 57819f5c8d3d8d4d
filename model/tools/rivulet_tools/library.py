# SPDX-License-Identifier: Apache-2.0
"""Answers of pytorch-fast-transformers itself in float64, from the tensors of a checkpoint, to check a conversion.

Its recurrent modules are pure Python; missing compiled extension modules are replaced by empty ones. For features that the library
does not have (the rfa map, the gate, clamp_min) rivulet_tools.network computes the answers, which the training recipe uses.
"""

import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import pathlib
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.ends_layout import sinusoidal
from rivulet_tools.errors import Absent, BadInput
from rivulet_tools.plan import Config

_COMPILED = tuple(
    f"{name}_{device}"
    for name in (
        "causal_product",
        "hash",
        "local_product",
        "aggregate",
        "clustered_aggregate",
        "cluster",
        "sparse_product",
        "clustered_sparse_product",
    )
    for device in ("cpu", "cuda")
)


class _EmptyModules(importlib.abc.Loader):
    """A meta path finder for the library's compiled modules, used if no other finder has them."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.startswith("fast_transformers.") and name.rpartition(".")[2] in _COMPILED:
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: None  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def import_torch() -> Any:
    """The module torch. Raises Absent."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise Absent("PyTorch is not installed (pip install torch)") from error


def import_library(path: pathlib.Path | None) -> None:
    """Makes `fast_transformers` importable, from `path` (the folder that holds it) if given. Raises Absent.

    Changes sys.path and sys.meta_path for the life of the process. Thread: the main one, once.
    """
    import_torch()
    if path is not None:
        if not (path / "fast_transformers").is_dir():
            raise Absent(f"--library {path}: there is no folder fast_transformers in it")
        sys.path.insert(0, str(path.resolve()))
    sys.meta_path.append(_EmptyModules())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("fast_transformers.builders")
    except ImportError as error:
        raise Absent(
            f"pytorch-fast-transformers is not importable ({error}); install it or name the folder of its sources with --library"
        ) from error


def in_library(config: Config) -> bool:
    """Whether pytorch-fast-transformers has all parts of such an encoder."""
    attention = config["attention"]
    return (
        attention["gate"] == "none"
        and attention["feature_map"]["type"] != "rfa"
        and attention["normalizer"]["type"] == "add_eps"
    )


def _library_encoder(config: Config) -> Any:
    """The library's RecurrentTransformerEncoder for a configuration, in inference mode. REQUIRES: torch and the library are installed."""
    import torch
    from fast_transformers import feature_maps
    from fast_transformers.recurrent.attention import RecurrentAttentionLayer, RecurrentLinearAttention
    from fast_transformers.recurrent.transformers import RecurrentTransformerEncoder, RecurrentTransformerEncoderLayer

    described = dict(config["attention"]["feature_map"])
    classes = {
        "random_fourier": feature_maps.RandomFourierFeatures,
        "smoothed_random_fourier": feature_maps.SmoothedRandomFourierFeatures,
        "favor": feature_maps.Favor,
        "generalized_random": feature_maps.GeneralizedRandomFeatures,
    }
    kind = described.pop("type")
    described.pop("kernel", None)
    factory = None
    if kind != "elu":
        factory = classes[kind].factory(deterministic_eval=True, **described)
    hidden = config["hidden_size"]
    layers = []
    for _ in range(config["num_layers"]):
        inner = RecurrentLinearAttention(config["key_dim"], feature_map=factory, eps=config["attention"]["normalizer"]["eps"])
        attention = RecurrentAttentionLayer(inner, hidden, config["num_heads"], config["key_dim"], config["value_dim"])
        layers.append(RecurrentTransformerEncoderLayer(attention, hidden, config["ffn_size"], activation=config["activation"]))
    encoder = RecurrentTransformerEncoder(layers, torch.nn.LayerNorm(hidden) if config["final_norm"] else None)
    for module in encoder.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = config["layer_norm_eps"]
    return encoder.eval()


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answers for one sequence: outputs [scored tokens, head outputs] and nll [scored tokens], float64."""

    outputs: np.ndarray
    nll: np.ndarray


class Reference:
    """A model in float64, one token after the other."""

    def __init__(self, config: Config, weights: Mapping[str, Tensor], position_table: np.ndarray | None = None):
        """weights: by the names of model.safetensors. position_table: the checkpoint's own, instead of learned or computed ones.

        REQUIRES: import_library was called where in_library(config).
        """
        import torch

        self.config, self.torch = config, torch
        double = {name: torch.from_numpy(np.array(t.values, np.float64)) for name, t in weights.items()}
        if in_library(config):
            encoder = _library_encoder(config).double()
            self.encoder = lambda x, state: encoder(x, state)
        else:
            from rivulet_tools.network import Encoder

            encoder = Encoder(config, chunk=1, dropout=0).double().eval()
            self.encoder = lambda x, state: encoder(x, state, "step")
        encoder.load_state_dict(
            {name.removeprefix("transformer."): value for name, value in double.items() if name.startswith("transformer.")}
        )
        self.embedding, self.head = double["embedding.weight"], (double["predictor.weight"], double["predictor.bias"])
        position = config["position"]
        self.position = None
        if position["type"] != "none":
            table = position_table
            if table is None:
                columns = config["hidden_size"] // (2 if position["combine"] == "concat" else 1)
                table = sinusoidal(position["max_length"], columns) if position["type"] == "sinusoidal" else weights["position.weight"].values
            self.position = torch.from_numpy(np.array(table, np.float64))

    def answer(self, tokens: Sequence[int]) -> Answer:
        """Scores one sequence (without the implied bos). Raises BadInput for tokens that the model cannot score."""
        from rivulet_tools.likelihood import nll

        torch, config = self.torch, self.config
        bos = config["bos_token_id"]
        fed = ([bos] if bos is not None else []) + list(tokens[:-1])
        scored = list(tokens if bos is not None else tokens[1:])
        limit = config["output"].get("num_levels", config["vocab_size"])
        if len(scored) < 1 or (self.position is not None and len(fed) > len(self.position)):
            raise BadInput(f"a sequence of {len(tokens)} tokens: at least one must be scored, and positions must not end before")
        if bad := [t for t in scored if not 0 <= t < limit] or [t for t in fed if not 0 <= t < config["vocab_size"]]:
            raise BadInput(f"token {bad[0]}: 0 to {limit - 1} is allowed")
        rows, state = [], None
        with torch.inference_mode():
            for t, token in enumerate(fed):
                x = self.embedding[token][None]
                if self.position is not None:
                    row = self.position[t][None]
                    x = torch.cat([x, row], 1) if config["position"]["combine"] == "concat" else x + row
                x, state = self.encoder(x, state)
                rows.append(torch.nn.functional.linear(x, *self.head)[0])
            outputs = torch.stack(rows)
            nats = nll(outputs, torch.tensor(scored), config["output"])
        return Answer(outputs.numpy(), nats.numpy())
