# SPDX-License-Identifier: Apache-2.0
"""Finds the encoder of a checkpoint and reads from its shapes what they can tell: sizes, heads, feature map, gate."""

import math
import re
from collections.abc import Mapping

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.errors import BadInput
from rivulet_tools.plan import Config, Plan, Settings

_QUERY = re.compile(r"^(.*?)layers\.(\d+)\.attention\.query_projection\.weight$")
_OMEGA = "attention.inner_attention.feature_map.omega"

# What the library's maps are called on the command line; rfa is the training recipe's own.
MAPS = ("elu", "random_fourier", "smoothed_random_fourier", "favor", "generalized_random", "rfa")


def find_prefix(tensors: Mapping[str, Tensor], wanted: str | None) -> str:
    """What stands before `layers.N...` in the names. Raises BadInput where there is no encoder, or more than one to choose from."""
    prefixes = sorted({found.group(1) for name in tensors if (found := _QUERY.match(name))})
    if wanted is not None:
        if wanted not in prefixes:
            raise BadInput(f"--prefix {wanted!r}: no encoder has it; there are: {', '.join(map(repr, prefixes)) or 'none'}")
        return wanted
    if not prefixes:
        if any(".self_attention.query_projection." in name for name in tensors):
            raise BadInput("this is a decoder with cross-attention (layers.N.self_attention...); a model directory holds encoders only")
        sample = ", ".join(repr(name) for name in list(tensors)[:3])
        raise BadInput(f"no tensor is called ...layers.0.attention.query_projection.weight; the first ones are {sample}")
    if len(prefixes) > 1:
        raise BadInput(f"more than one encoder: {', '.join(map(repr, prefixes))}; choose one with --prefix")
    return prefixes[0]


class EncoderLayout:
    """The encoder under one prefix. Fills config and tensors of a Plan."""

    def __init__(self, plan: Plan, settings: Settings, prefix: str):
        self.plan, self.settings, self.prefix = plan, settings, prefix
        layer_name = re.compile(re.escape(prefix) + r"layers\.(\d+)\.")
        indices = {int(found.group(1)) for name in plan.source if (found := layer_name.match(name))}
        self.num_layers = max(indices) + 1
        if missing := sorted(set(range(self.num_layers)) - indices):
            raise BadInput(f"layer {missing[0]} is missing: there are {prefix}layers.N for N = {', '.join(map(str, sorted(indices)))}")

    def has(self, rest: str) -> bool:
        """Whether layer 0 has the tensor `rest`."""
        return f"{self.prefix}layers.0.{rest}" in self.plan.source

    def shape(self, rest: str, dimensions: int) -> tuple[int, ...]:
        """Shape of layer 0's tensor `rest`, which must be there with that many dimensions."""
        name = f"{self.prefix}layers.0.{rest}"
        if name not in self.plan.source:
            raise BadInput(f"tensor {name!r} is missing")
        shape = self.plan.source[name].shape
        if len(shape) != dimensions:
            raise BadInput(f"tensor {name!r} has the shape {list(shape)}; {dimensions} dimensions are needed")
        return shape

    def read(self) -> Config:
        """The part of config.json that concerns the encoder."""
        plan, settings = self.plan, self.settings
        key_rows, hidden = self.shape("attention.query_projection.weight", 2)
        value_rows = self.shape("attention.value_projection.weight", 2)[0]
        feature_map_kind = self.feature_map_kind()
        heads = self.heads(feature_map_kind, key_rows, value_rows)
        key_dim = key_rows // heads
        gate = "rfa" if self.has("attention.gate_projection.weight") else "none"
        return {
            "hidden_size": hidden,
            "num_layers": self.num_layers,
            "num_heads": heads,
            "key_dim": key_dim,
            "value_dim": value_rows // heads,
            "ffn_size": self.shape("linear1.weight", 2)[0],
            "activation": plan.choose("activation", settings.activation, "relu", "--activation; the library's default"),
            "layer_norm_eps": plan.choose(
                "layer_norm_eps", settings.layer_norm_eps, 1e-5, "--layer-norm-eps; PyTorch's default, which the library keeps"
            ),
            "final_norm": f"{self.prefix}norm.weight" in plan.source,
            "attention": {
                "feature_map": self.feature_map(feature_map_kind, key_dim),
                "gate": gate,
                "normalizer": self.normalizer(feature_map_kind),
            },
        }

    def feature_map_kind(self) -> str:
        """Which map: from the names where they tell, else from --feature-map."""
        given = self.settings.feature_map
        if self.has("attention.omega"):
            fitting = ["rfa"]
        elif self.has(_OMEGA):
            fitting = ["random_fourier", "smoothed_random_fourier", "favor", "generalized_random"]
        else:
            fitting = ["elu"]
        if given is not None:
            if given not in fitting:
                held = "an attention.omega" if fitting == ["rfa"] else "an omega" if len(fitting) > 1 else "no omega"
                raise BadInput(f"--feature-map {given}: the layers have {held}, which fits {', '.join(fitting)}")
            return given
        if len(fitting) == 1:
            if fitting == ["elu"]:
                self.plan.guess("feature_map", "elu", "no omega; the library's default map is elu(x) + 1")
            return fitting[0]
        key_dim, columns = self.shape(_OMEGA, 2)
        raise BadInput(
            f"--feature-map is needed: omega of shape [{key_dim}, {columns}] fits random_fourier (n_dims {2 * columns}), "
            f"smoothed_random_fourier (n_dims {2 * columns + 1} or {2 * columns + 2}), favor (n_dims {2 * columns}) and "
            f"generalized_random (n_dims {columns}), and they give different results"
        )

    def heads(self, kind: str, key_rows: int, value_rows: int) -> int:
        """Number of heads, from omega or --num-heads."""
        given, name = self.settings.num_heads, f"{self.prefix}layers.0.attention.query_projection.weight"
        if kind == "rfa":
            found, source = self.shape("attention.omega", 3)[0], "attention.omega"
        elif kind != "elu":
            found, source = key_rows // self.shape(_OMEGA, 2)[0], "the rows of omega"
        elif self.has("attention.gate_projection.weight"):
            found, source = self.shape("attention.gate_projection.weight", 2)[0], "attention.gate_projection"
        else:
            common = math.gcd(key_rows, value_rows)
            fitting = [n for n in range(1, common + 1) if common % n == 0]
            if given is None:
                raise BadInput(
                    f"--num-heads is needed: shapes do not tell it ({name} has {key_rows} rows); {', '.join(map(str, fitting))} fit"
                )
            if given not in fitting:
                raise BadInput(f"--num-heads {given}: must divide {key_rows} and {value_rows}; {', '.join(map(str, fitting))} fit")
            return given
        if found < 1 or key_rows % found or value_rows % found:
            raise BadInput(f"{name} has {key_rows} rows, the values have {value_rows}: {source} says {found} heads, which does not fit")
        if given not in (None, found):
            raise BadInput(f"--num-heads {given}: {source} says {found}")
        return found

    def feature_map(self, kind: str, key_dim: int) -> Config:
        """The object attention.feature_map."""
        plan, settings = self.plan, self.settings
        self.refuse_settings_of_other_maps(kind)
        if kind == "elu":
            return {"type": kind}
        if kind == "rfa":
            return {"type": kind, "num_features": self.shape("attention.omega", 3)[2]}
        columns = self.shape(_OMEGA, 2)[1]
        temperature, why = 1 / math.sqrt(key_dim), "the library's default, 1/sqrt(key_dim)"
        if kind == "generalized_random":
            temperature, why = 1.0, "the library's default for this map"
        feature_map: Config = {
            "type": kind,
            "n_dims": self.n_dims(kind, key_dim, columns),
            "softmax_temp": plan.choose("softmax_temp", settings.softmax_temp, temperature, f"--softmax-temp; {why}"),
        }
        if kind == "smoothed_random_fourier":
            feature_map["smoothing"] = plan.choose("smoothing", settings.smoothing, 1.0, "--smoothing; the library's default")
        if kind == "generalized_random":
            feature_map["kernel"] = "relu"
            plan.guess("kernel", "relu", "the library's default kernel_fn; another one cannot be represented")
        if kind == "favor":
            if settings.stabilize:
                raise BadInput(
                    "--stabilize: Favor(stabilize=True) subtracts a maximum over the whole sequence, which has no recurrent form "
                    "and cannot be represented; train with stabilize=False"
                )
            plan.guess("stabilize", False, "the library's default; stabilize=True cannot be represented")
        plan.guess("omega", "as stored", "the library draws a new one for each sequence unless deterministic_eval=True; it is pinned here")
        self.refuse_zero_omega()
        return feature_map

    def refuse_settings_of_other_maps(self, kind: str) -> None:
        random = ("random_fourier", "smoothed_random_fourier", "favor", "generalized_random")
        for flag, value, maps in (
            ("--n-dims", self.settings.n_dims, random),
            ("--softmax-temp", self.settings.softmax_temp, random),
            ("--smoothing", self.settings.smoothing, ("smoothed_random_fourier",)),
            ("--stabilize", self.settings.stabilize or None, ("favor",)),
        ):
            if value is not None and kind not in maps:
                raise BadInput(f"{flag}: the feature map is {kind}, which has no such setting")

    def refuse_zero_omega(self) -> None:
        for index in range(self.num_layers):
            name = f"{self.prefix}layers.{index}.{_OMEGA}"
            if name in self.plan.source and not self.plan.source[name].values.any():
                raise BadInput(f"tensor {name!r} is all zeros: the checkpoint was saved before the library drew it (in the first forward pass)")

    def n_dims(self, kind: str, key_dim: int, columns: int) -> int:
        fitting = {
            "random_fourier": [2 * columns],
            "favor": [2 * columns],
            "generalized_random": [columns],
            "smoothed_random_fourier": [2 * columns + 1, 2 * columns + 2],
        }[kind]
        given = self.settings.n_dims
        if given is not None:
            if given not in fitting:
                raise BadInput(f"--n-dims {given}: omega has {columns} columns; {' or '.join(map(str, fitting))} fits {kind}")
            return given
        if len(fitting) == 1:
            return fitting[0]
        if key_dim in fitting:
            return self.plan.guess("n_dims", key_dim, f"--n-dims; {fitting[0]} and {fitting[1]} fit, key_dim is the library's default")
        return self.plan.guess("n_dims", fitting[1], f"--n-dims; {fitting[0]} and {fitting[1]} fit, the library asks for an even number")

    def normalizer(self, kind: str) -> Config:
        eps, minimum = self.settings.eps, self.settings.clamp_min
        if eps is not None and minimum is not None:
            raise BadInput("--eps and --clamp-min: a model has one of the two normalizers")
        if minimum is not None or (kind == "rfa" and eps is None):
            return {"type": "clamp_min", "min": self.plan.choose("normalizer.min", minimum, 0.01, "--clamp-min; what rivulet-train uses")}
        return {"type": "add_eps", "eps": self.plan.choose("normalizer.eps", eps, 1e-6, "--eps; the library's default")}

    def map_tensors(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Maps the encoder's tensors: the name in the file is that in the directory with another prefix."""
        for target, shape in expected.items():
            if target.startswith("transformer."):
                name = self.prefix + target.removeprefix("transformer.")
                self.plan.map(name, target, shape)
