# SPDX-License-Identifier: Apache-2.0
"""Infers sizes, heads, feature map and gate from the shapes of a checkpoint's encoder."""

import math

from rivulet_tools.errors import BadInput
from rivulet_tools.names import GATE, OMEGA, RFA_OMEGA
from rivulet_tools.plan import Config, Plan, Settings

# The names of the library's maps on the command line; rfa is from the training recipe.
MAPS = ("elu", "random_fourier", "smoothed_random_fourier", "favor", "generalized_random", "rfa")


class EncoderLayout:
    """The encoder. Fills config of a Plan."""

    def __init__(self, plan: Plan, settings: Settings):
        self.plan, self.settings = plan, settings

    def has(self, rest: str) -> bool:
        """Whether layer 0 has the tensor `rest`."""
        return f"transformer.layers.0.{rest}" in self.plan.names

    def shape(self, rest: str, dimensions: int) -> tuple[int, ...]:
        """The shape of layer 0's tensor `rest`, which must exist with this number of dimensions."""
        return self.plan.shape(f"transformer.layers.0.{rest}", dimensions)

    def read(self) -> Config:
        """The encoder's part of config.json."""
        plan, settings = self.plan, self.settings
        key_rows, hidden = self.shape("attention.query_projection.weight", 2)
        value_rows = self.shape("attention.value_projection.weight", 2)[0]
        feature_map_kind = self.feature_map_kind()
        heads = self.heads(feature_map_kind, key_rows, value_rows)
        key_dim = key_rows // heads
        feature_map = self.feature_map(feature_map_kind, key_dim)
        gate = "rfa" if self.has(GATE) else "none"
        return {
            "hidden_size": hidden,
            "num_layers": sum(name.endswith(".query_projection.weight") for name in plan.names),
            "num_heads": heads,
            "key_dim": key_dim,
            "value_dim": value_rows // heads,
            "ffn_size": self.shape("linear1.weight", 2)[0],
            "activation": self.activation(),
            "layer_norm_eps": plan.choose(
                "layer_norm_eps", settings.layer_norm_eps, 1e-5, "--layer-norm-eps; PyTorch's default, which the library keeps"
            ),
            "final_norm": "transformer.norm.weight" in plan.names,
            "attention": {
                "feature_map": feature_map,
                "gate": gate,
                "normalizer": self.normalizer(feature_map_kind),
            },
        }

    def activation(self) -> str:
        if self.settings.activation is None and not self.plan.paper:
            raise BadInput("--activation is needed: no tensor tells it; relu is the library's default, gelu the other choice")
        return self.plan.choose("activation", self.settings.activation, "relu", "--activation; the paper's ImageGenerator has it")

    def feature_map_kind(self) -> str:
        """The feature map: from the names if they determine it, else from --feature-map."""
        given = self.settings.feature_map
        if self.has(RFA_OMEGA):
            fitting = ["rfa"]
        elif self.has(OMEGA):
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
                self.plan.assume("feature_map", "elu", "no omega; the library's default map is elu(x) + 1")
            return fitting[0]
        key_dim, columns = self.shape(OMEGA, 2)
        raise BadInput(
            f"--feature-map is needed: omega of shape [{key_dim}, {columns}] fits random_fourier (n_dims {2 * columns}), "
            f"smoothed_random_fourier (n_dims {2 * columns + 1} or {2 * columns + 2}), favor (n_dims {2 * columns}) and "
            f"generalized_random (n_dims {columns}), and they give different results"
        )

    def heads(self, kind: str, key_rows: int, value_rows: int) -> int:
        """Number of heads, from omega or --num-heads."""
        given, name = self.settings.num_heads, self.plan.names["transformer.layers.0.attention.query_projection.weight"]
        if kind == "rfa":
            found, source = self.shape(RFA_OMEGA, 3)[0], RFA_OMEGA
        elif kind != "elu":
            found, source = key_rows // self.shape(OMEGA, 2)[0], "the rows of omega"
        elif self.has(GATE):
            found, source = self.shape(GATE, 2)[0], "attention.gate_projection"
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
            return {"type": kind, "num_features": self.shape(RFA_OMEGA, 3)[2]}
        columns = self.shape(OMEGA, 2)[1]
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
            plan.assume("kernel", "relu", "the library's default kernel_fn; another one cannot be represented")
        if kind == "favor":
            if settings.stabilize:
                raise BadInput(
                    "--stabilize: Favor(stabilize=True) subtracts a maximum over the whole sequence, which has no recurrent form "
                    "and cannot be represented; train with stabilize=False"
                )
            plan.assume("stabilize", False, "the library's default; stabilize=True cannot be represented")
        plan.assume("omega", "as stored", "the library draws a new one for each sequence unless deterministic_eval=True; it is pinned here")
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
        for name in (name for target, name in self.plan.names.items() if target.endswith(OMEGA)):
            if not self.plan.source[name].values.any():
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
            return self.plan.assume("n_dims", key_dim, f"--n-dims; {fitting[0]} and {fitting[1]} fit, key_dim is the library's default")
        raise BadInput(f"--n-dims is needed: omega has {columns} columns; {fitting[0]} or {fitting[1]} fits {kind}")

    def normalizer(self, kind: str) -> Config:
        eps, minimum = self.settings.eps, self.settings.clamp_min
        if eps is not None and minimum is not None:
            raise BadInput("--eps and --clamp-min: a model has one of the two normalizers")
        if minimum is not None or (kind == "rfa" and eps is None):
            return {"type": "clamp_min", "min": self.plan.choose("normalizer.min", minimum, 0.01, "--clamp-min; what rivulet-train uses")}
        return {"type": "add_eps", "eps": self.plan.choose("normalizer.eps", eps, 1e-6, "--eps; the library's default")}
