# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of convert_test.py: what each holds, and the flags that say what its shapes do not tell. Needs no PyTorch."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """One checkpoint.

    map: feature map and its arguments in the library (`rfa`: rivulet_tools.network). encoder: prefix of the encoder; names: of embedding,
    positions and head. flags: of rivulet-convert. config: what config.json must then say, by dotted field.
    """

    name: str
    map: str = "elu"
    map_arguments: dict = dataclasses.field(default_factory=dict)
    encoder: str = "transformer."
    names: tuple[str, str, str] = ("embedding.weight", "position.weight", "predictor")
    position: str = "none"
    combine: str = "add"
    layers: int = 2
    heads: int = 2
    activation: str = "gelu"
    final_norm: bool = True
    vocab: int = 37
    length: int = 48
    mixtures: int = 0
    limit: float = 1e-4
    flags: tuple[str, ...] = ()
    config: dict = dataclasses.field(default_factory=dict)

    @property
    def bos(self) -> int | None:
        """The bos that the flags give."""
        return int(self.flags[self.flags.index("--bos") + 1]) if "--bos" in self.flags else None


HEADS = ("--num-heads", "2", "--activation", "gelu")
GELU = ("--activation", "gelu")
TEMPERATURE = 0.35355339059327373  # 1/sqrt(8)

CASES = (
    Case(
        "elu-learned", encoder="module.transformer.", names=("module.embedding.weight", "module.position", "module.predictor"), position="learned",
        flags=HEADS + ("--bos", "0"),
        config={"num_heads": 2, "key_dim": 8, "bos_token_id": 0, "position": {"type": "learned", "combine": "add", "max_length": 48},
                "final_norm": True, "output": {"type": "categorical"}, "attention.feature_map": {"type": "elu"}},
    ),
    Case(
        "elu-concat", encoder="model.encoder.", names=("model.token_embedding.weight", "model.positions.weight", "model.head"),
        position="learned", combine="concat", heads=4, activation="relu", final_norm=False, flags=("--num-heads", "4", "--activation", "relu"),
        config={"num_heads": 4, "key_dim": 4, "activation": "relu", "final_norm": False, "bos_token_id": None, "layer_norm_eps": 1e-5,
                "position": {"type": "learned", "combine": "concat", "max_length": 48}},
    ),
    Case(
        "elu-sinusoidal", encoder="", names=("wte.weight", "pe.pe", "out"), position="sinusoidal", flags=HEADS,
        config={"position": {"type": "sinusoidal", "combine": "add", "max_length": 48}},
    ),
    Case(
        "random-fourier", "random_fourier", {"n_dims": 16}, limit=5e-3, flags=GELU + ("--feature-map", "random_fourier", "--bos", "0"),
        config={"num_heads": 2, "attention.feature_map": {"type": "random_fourier", "n_dims": 16, "softmax_temp": TEMPERATURE}},
    ),
    Case(
        "smoothed", "smoothed_random_fourier", {"n_dims": 15, "smoothing": 0.75, "softmax_temp": 0.5},
        flags=GELU + ("--feature-map", "smoothed_random_fourier", "--n-dims", "15", "--smoothing", "0.75", "--softmax-temp", "0.5"),
        config={"attention.feature_map": {"type": "smoothed_random_fourier", "n_dims": 15, "softmax_temp": 0.5, "smoothing": 0.75}},
    ),
    Case(
        "smoothed-default", "smoothed_random_fourier", flags=GELU + ("--feature-map", "smoothed_random_fourier"),
        config={"attention.feature_map": {"type": "smoothed_random_fourier", "n_dims": 8, "softmax_temp": TEMPERATURE, "smoothing": 1.0}},
    ),
    Case(
        "favor", "favor", {"n_dims": 16}, flags=GELU + ("--feature-map", "favor"),
        config={"attention.feature_map": {"type": "favor", "n_dims": 16, "softmax_temp": TEMPERATURE}},
    ),
    Case(
        "generalized", "generalized_random", {"n_dims": 12}, flags=GELU + ("--feature-map", "generalized_random"),
        config={"attention.feature_map": {"type": "generalized_random", "n_dims": 12, "softmax_temp": 1.0, "kernel": "relu"}},
    ),
    Case(
        "image-generator", names=("value_embedding.weight", "pos_embedding.pe", "predictor"), position="sinusoidal", combine="concat",
        activation="relu", vocab=256, length=43, mixtures=10,
        flags=("--num-heads", "2", "--height", "4", "--width", "11", "--scale", "elu"),
        config={"bos_token_id": None, "position": {"type": "sinusoidal", "combine": "concat", "max_length": 43},
                "output": {"type": "mixture_of_logistics", "num_mixtures": 10, "num_levels": 256, "scale": "elu"},
                "content": {"type": "image", "height": 4, "width": 11, "channels": 1}},
    ),
    Case(
        "rfa", "rfa", {"num_features": 8}, flags=GELU,
        config={"num_heads": 2, "attention": {"feature_map": {"type": "rfa", "num_features": 8}, "gate": "rfa",
                                              "normalizer": {"type": "clamp_min", "min": 0.01}}},
    ),
)  # fmt: skip
