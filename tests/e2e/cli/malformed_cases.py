# SPDX-License-Identifier: Apache-2.0
"""How the cases of malformed_test.py are written down, and those that concern config.json."""

import json

CASES = []


def case(name, base, mention):
    """Registers the decorated function as a case."""

    def register(mutate):
        CASES.append((name, base, mutate, mention))
        return mutate

    return register


def field(path, value, mention=None, base="tiny-elu-relu"):
    """A case: one field of config.json holds `value` (or is removed: Ellipsis)."""

    def mutate(model):
        *parents, leaf = path.split(".")
        node = model.config
        for parent in parents:
            node = node[parent]
        if value is ...:
            del node[leaf]
        else:
            node[leaf] = value

    shown = "missing" if value is ... else json.dumps(value)[:80]
    CASES.append((f"{base}: {path} = {shown}", base, mutate, path if mention is None else mention))


def raw_config(name, change, mention="config.json"):
    """A case: the text of config.json is changed."""

    def mutate(model):
        model.config = change(json.dumps(model.config).encode())

    CASES.append((f"config.json {name}", "tiny-elu-relu", mutate, mention))


def header_entry(name, change, mention="embedding.weight", base="tiny-elu-relu"):
    """A case: the header's entry of embedding.weight is changed."""

    def mutate(model):
        change(model.header["embedding.weight"])

    CASES.append((f"embedding.weight {name}", base, mutate, mention))


def raw_header(name, change, mention="model.safetensors"):
    """A case: the text of the safetensors header is changed."""

    def mutate(model):
        model.header = change(json.dumps(model.header).encode())

    CASES.append((f"header {name}", "tiny-elu-relu", mutate, mention))


# config.json as a text.
for file in ("config.json", "model.safetensors"):
    case(f"{file} absent", "tiny-elu-relu", file)(lambda model, file=file: model.absent.add(file))
raw_config("empty", lambda text: b"")
raw_config("cut short", lambda text: text[:-10])
raw_config("with trailing garbage", lambda text: text + b"x")
raw_config("twice", lambda text: text + text)
raw_config("not UTF-8", lambda text: text.replace(b"tiny-elu-relu", b"\xff\xfe"))
raw_config("with NaN", lambda text: text.replace(b"1e-05", b"NaN"))
raw_config("with 1e999", lambda text: text.replace(b"1e-05", b"1e999"))
raw_config("a list", lambda text: b"[" + text + b"]")
raw_config("null", lambda text: b"null")
raw_config("nested deep", lambda text: b'{"a":' * 100000 + b"1" + b"}" * 100000)
raw_config("with a repeated key", lambda text: b'{"vocab_size":37,' + text[1:], "vocab_size")
raw_config("with a comment", lambda text: b"/* */" + text)

# Every field is required.
for required in (
    "format", "format_version", "name", "vocab_size", "bos_token_id", "eos_token_id", "hidden_size", "num_layers",
    "num_heads", "key_dim", "value_dim", "ffn_size", "activation", "layer_norm_eps", "final_norm", "position",
    "attention", "output", "content", "position.type", "attention.feature_map", "attention.gate",
    "attention.normalizer", "attention.feature_map.type", "attention.normalizer.eps", "output.type", "content.type",
):
    field(required, ..., required.split(".")[-1])

# Types and values.
for dimension in ("vocab_size", "hidden_size", "num_layers", "num_heads", "key_dim", "value_dim", "ffn_size"):
    field(dimension, 0)
    field(dimension, "16")
for dimension in ("vocab_size", "hidden_size", "num_layers", "num_heads"):
    field(dimension, -1)
    field(dimension, 2**31)
field("vocab_size", 37.5)
field("vocab_size", True)
field("hidden_size", 2**64)
field("num_layers", 10**6, "")  # far more tensors than the file holds
field("ffn_size", 10**9, "")  # terabytes, if it were believed
field("num_heads", 3, "")  # not what the tensors say
field("format", "gguf")
field("format_version", 2)
field("format_version", "1")
field("name", "Upper")
field("name", "")
field("name", "a" * 65)
field("name", "../x")
field("name", 7)
field("bos_token_id", 37)
field("bos_token_id", -1)
field("bos_token_id", "0")
field("eos_token_id", 37)
field("activation", "tanh")
field("activation", None)
field("layer_norm_eps", -1)
field("layer_norm_eps", "1e-5")
field("final_norm", 1)
field("extra", 1)
field("position", "none")
field("position.type", "rope")
field("position.extra", 1)
field("position.combine", "multiply", base="tiny-elu-sinusoidal")
field("position.combine", ..., "combine", base="tiny-elu-sinusoidal")
field("position.max_length", 0, base="tiny-elu-sinusoidal")
field("position.max_length", -5, base="tiny-elu-sinusoidal")
field("position.max_length", 10**12, "", base="tiny-elu-learned-concat")
field("position.max_length", 49, "position.weight", base="tiny-elu-learned-concat")
field("hidden_size", 15, "hidden_size", base="tiny-elu-learned-concat")
field("attention", [])
field("attention.extra", 1)
field("attention.feature_map.type", "softmax")
field("attention.feature_map.n_dims", 16)
field("attention.feature_map.n_dims", 15, base="tiny-random-fourier")
field("attention.feature_map.n_dims", 0, base="tiny-random-fourier")
field("attention.feature_map.n_dims", -2, base="tiny-favor")
field("attention.feature_map.n_dims", 15, base="tiny-favor")
field("attention.feature_map.n_dims", 2**40, "", base="tiny-favor")
field("attention.feature_map.softmax_temp", -1, base="tiny-favor")
field("attention.feature_map.softmax_temp", ..., "softmax_temp", base="tiny-favor")
field("attention.feature_map.smoothing", "1", base="tiny-smoothed-random-fourier")
field("attention.feature_map.kernel", "gelu", base="tiny-generalized-random-relu")
field("attention.feature_map.num_features", 0, base="tiny-rfa")
field("attention.gate", "lstm")
field("attention.gate", "rfa", "gate_projection")
field("attention.gate", "none", "gate_projection", base="tiny-rfa")
field("attention.normalizer.type", "softmax")
field("attention.normalizer.eps", -1)
field("attention.normalizer.min", 0.1)
field("output.type", "regression")
field("output.num_mixtures", 3)
field("output.num_mixtures", 0, base="tiny-image")
field("output.num_mixtures", 11, "predictor", base="tiny-image")
field("output.num_levels", 1, base="tiny-image")
field("output.num_levels", 257, base="tiny-image")
field("output.scale", "log", base="tiny-image")
field("content.type", "audio")
field("content.height", 0, base="tiny-image")
field("content.width", 2**31, base="tiny-image")
field("content.height", 2**30, "content", base="tiny-image")
field("content", {"type": "text", "tokenizer": {"type": "bpe"}}, "tokenizer")
field("content", {"type": "text", "tokenizer": {"type": "char", "alphabet": "aa" + "b" * 35}}, "alphabet")
field("content", {"type": "text", "tokenizer": {"type": "char", "alphabet": ""}}, "alphabet")
field("content", {"type": "text", "tokenizer": {"type": "char", "alphabet": [1]}}, "alphabet")
field("content", {"type": "text"}, "tokenizer")
