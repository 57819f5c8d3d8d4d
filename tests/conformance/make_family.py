#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/conformance/family: small random checkpoints of each kind of block, with answers computed in float64.

    make_family.py DIR                 writes every directory below DIR
    make_family.py --check DIR         compares the directories below DIR with what it would write
    make_family.py --compare DIR...    computes the answers of other checkpoints again and compares them with their golden.json

Exit codes: 0 written, or all equal; 1 a difference; 2 an input that can't be read.
"""
import argparse
import json
import math
import pathlib
import random
import re
import struct
import sys

import numpy as np

from family_float64 import answers, difference
from hybrid_family import HYBRIDS, hybrid_shapes, mamba_shapes, under, weights
from hybrid_float64 import Hybrid, network

ABOUT = ("float64. outputs[j] = raw logits that predict scored token positions[j] (0 = the first scored, i.e. tokens[1]); "
         "positions past the end are left out")
POSITIONS = (0, 1, 2, 7, 17, 38, 68)
LENGTHS = (40, 2, 9, 70)
DECIMALS = 12      # of outputs in golden.json
LARGEST = 80_000   # bytes of a directory
NEAR = 2e-3        # least difference between the scores of experts that are chosen and those that are not
LIMIT = 1e-10      # of golden numbers: the order of numpy's sums depends on the processor

# --- The directories: config.json, the type of the weights, whether they are in two files. Settings that the server honours
# have a value other than their default in at least one directory. Epsilons are large, so that a wrong one shows.

COMMON = {"bos_token_id": 1, "dtype": "float32", "eos_token_id": 2, "hidden_size": 32, "initializer_range": 0.02,
          "num_hidden_layers": 2, "pad_token_id": None, "tie_word_embeddings": False, "transformers_version": "5.23.0",
          "use_cache": True, "vocab_size": 39}
FLA = COMMON | {"attn": None, "attn_mode": "chunk", "fuse_cross_entropy": False, "fuse_norm": False, "max_position_embeddings": 2048,
                "norm_eps": 1e-3, "use_l2warp": False}
SWIGLU = FLA | {"attnres_block_size": None, "fuse_swiglu": False, "hidden_act": "swish", "hidden_ratio": 4, "num_heads": 2}
GATED = SWIGLU | {"conv_size": 4, "elementwise_affine": True, "use_short_conv": False}
DELTA = SWIGLU | {"allow_neg_eigval": False, "conv_size": 4, "use_short_conv": True}
MAMBA2 = COMMON | {
    "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "chunk_size": 8, "conv_kernel": 4, "expand": 2, "hidden_act": "silu",
    "layer_norm_epsilon": 1e-3, "rescale_prenorm_residual": False, "residual_in_fp32": True, "time_step_floor": 1e-4,
    "time_step_max": 0.1, "time_step_min": 0.001, "time_step_rank": 2, "use_bias": False, "use_conv_bias": True}
RWKV7 = FLA | {"architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7", "norm_eps": 1e-4, "hidden_act": "sqrelu", "norm_bias": True,
               "norm_first": True, "decay_low_rank_dim": 3, "a_low_rank_dim": 4, "v_low_rank_dim": 2,
               "gate_low_rank_dim": 5, "value_dim": [32, 32]}
DIRECTORIES = {
    "linear-attn": (SWIGLU | {
        "architectures": ["LinearAttentionForCausalLM"], "model_type": "linear_attn", "elementwise_affine": True, "expand_k": 0.5,
        "expand_v": 1.25, "feature_map": "identity", "intermediate_size": 12, "norm_feature_map": False, "norm_k": False,
        "norm_q": False, "num_kv_heads": None, "tie_feature_map_qk": False}, "F32", False),
    "retnet": (GATED | {
        "architectures": ["RetNetForCausalLM"], "model_type": "retnet", "expand_k": 0.5, "expand_v": 1.25, "feature_map": None,
        "hidden_ratio": 2, "intermediate_size": 8, "num_kv_heads": None, "use_output_gate": True}, "F32", False),
    "gla": (GATED | {
        "architectures": ["GLAForCausalLM"], "model_type": "gla", "clamp_min": -0.25, "expand_k": 0.5, "expand_v": 1.0, "feature_map": None,
        "fuse_norm": True, "gate_logit_normalizer": 4, "gate_low_rank_dim": 6, "intermediate_size": 12, "num_kv_heads": 2,
        "use_gk": True, "use_gv": False, "use_output_gate": True}, "F32", False),
    "hgrn2": (GATED | {
        "architectures": ["HGRN2ForCausalLM"], "model_type": "hgrn2", "expand_ratio": 8, "intermediate_size": 12, "num_heads": None,
        "use_lower_bound": True}, "F32", False),
    # As transformers wrote them before version 5: a bare Infinity, and another name of the embedding.
    "mamba2": (MAMBA2 | {
        "dtype": "float16", "head_dim": 16, "n_groups": 1, "num_heads": 4, "state_size": 8,
        "time_step_limit": [0.0, math.inf]}, "F16", False),
    "mamba2-groups": (MAMBA2 | {
        "conv_kernel": 3, "expand": 1, "head_dim": 8, "n_groups": 2, "num_heads": 4, "state_size": 6, "tie_word_embeddings": True,
        "time_step_limit": [0.15, 0.6], "use_bias": True, "use_conv_bias": False}, "F32", False),
    "delta-net": (DELTA | {
        "architectures": ["DeltaNetForCausalLM"], "model_type": "delta_net", "allow_neg_eigval": True, "expand_k": 0.75, "expand_v": 1.0,
        "intermediate_size": 8, "qk_activation": "silu", "qk_norm": "l2", "use_beta": True, "use_gate": True,
        "use_output_norm": True}, "F32", False),
    "gated-deltanet": (DELTA | {
        "architectures": ["GatedDeltaNetForCausalLM"], "model_type": "gated_deltanet", "expand_v": 2.0, "head_dim": 8,
        "intermediate_size": 12, "num_v_heads": None, "output_gate_activation": "swish", "use_gate": True}, "F32", False),
    "gated-deltanet-plain": (DELTA | {
        "architectures": ["GatedDeltaNetForCausalLM"], "model_type": "gated_deltanet", "allow_neg_eigval": True, "conv_size": 3,
        "expand_v": 1.5, "head_dim": 8, "intermediate_size": 12, "num_heads": 3, "num_v_heads": 3, "use_gate": False}, "F32", False),
    # Each head of q and k serves two of v.
    "gated-deltanet-shared-keys": (DELTA | {
        "architectures": ["GatedDeltaNetForCausalLM"], "model_type": "gated_deltanet", "expand_v": 1.5, "head_dim": 4,
        "intermediate_size": 12, "num_v_heads": 6, "num_heads": 3, "use_gate": True}, "F32", False),
    "kda": (DELTA | {
        "architectures": ["KDAForCausalLM"], "model_type": "kda", "allow_neg_eigval": True, "dtype": "bfloat16", "expand_v": 1.5,
        "head_dim": 8, "intermediate_size": 28, "lower_bound": None, "num_heads": 3, "num_v_heads": None,
        "safe_gate": False}, "BF16", False),
    "rwkv7": (RWKV7 | {
        "dtype": "bfloat16", "head_dim": 16, "hidden_ratio": 1.5, "intermediate_size": None, "norm_bias": False, "num_heads": 2},
        "BF16", True),
    # Before the six lerp vectors had tensors of their own.
    "rwkv7-old": (RWKV7 | {
        "head_dim": 8, "hidden_ratio": 4, "intermediate_size": 8, "norm_first": False, "num_heads": 4}, "F32", False),
    # A tuned state, as rivulet-convert --initial-state writes it.
    "rwkv7-initial-state": (RWKV7 | {
        "dtype": "float16", "head_dim": 16, "hidden_ratio": 1, "intermediate_size": 16, "num_heads": 2}, "F16", False),
} | HYBRIDS
WITH_INITIAL_STATE = {"rwkv7-initial-state"}
SEEDS = {"lfm2-moe": "1"}  # where the name's numbers leave an expert nearly without tokens


# --- Shapes of the tensors

def gated_shapes(c):
    """Mixers of linear_attn, retnet and gla."""
    hidden, keys, values = c["hidden_size"], int(c["hidden_size"] * c["expand_k"]), int(c["hidden_size"] * c["expand_v"])
    shapes = under("q_proj", weights(keys, hidden)) | under("k_proj", weights(keys, hidden))
    shapes |= under("v_proj", weights(values, hidden)) | under("o_proj", weights(hidden, values))
    if c["model_type"] == "linear_attn":
        return shapes | {"norm.weight": (values // c["num_heads"],)}
    shapes |= under("g_proj", weights(values, hidden))
    if c["model_type"] == "gla":
        rank = c["gate_low_rank_dim"]
        shapes |= under("gk_proj.0", weights(rank, hidden)) | under("gk_proj.1", weights(keys, rank, True))
    norm = "g_norm_swish_gate" if c["fuse_norm"] else "g_norm"
    return shapes | {f"{norm}.weight": (values // c["num_heads"],)}


def hgrn2_shapes(c):
    hidden = c["hidden_size"]
    return {f"{name}_proj.weight": (hidden, hidden) for name in "qfio"} | {"g_norm.weight": (hidden,)}


def delta_shapes(c):
    """Mixers of delta_net, gated_deltanet and kda."""
    hidden, heads, kind = c["hidden_size"], c["num_heads"], c["model_type"]
    keys = int(hidden * c["expand_k"]) if kind == "delta_net" else heads * c["head_dim"]
    values = int((hidden if kind == "delta_net" else keys) * c["expand_v"])
    if c.get("num_v_heads"):  # of gated_deltanet there may be more
        values, heads = values * c["num_v_heads"] // heads, c["num_v_heads"]
    rank = values // heads
    shapes = {"o_norm.weight": (rank,)} | under("o_proj", weights(hidden, values)) | under("b_proj", weights(heads, hidden))
    for name, rows in zip("qkv", (keys, keys, values)):
        shapes |= under(f"{name}_proj", weights(rows, hidden)) | {f"{name}_conv1d.weight": (rows, 1, c["conv_size"])}
    if kind == "kda":
        shapes |= {"A_log": (heads,), "dt_bias": (keys,)}
        shapes |= under("f_proj.0", weights(rank, hidden)) | under("f_proj.1", weights(keys, rank))
        return shapes | under("g_proj.0", weights(rank, hidden)) | under("g_proj.1", weights(values, rank, True))
    if kind == "gated_deltanet":
        shapes |= {"A_log": (heads,), "dt_bias": (heads,)} | under("a_proj", weights(heads, hidden))
    return shapes | (under("g_proj", weights(values, hidden)) if c["use_gate"] else {})


def mamba2_shapes(c):
    """A layer: mamba2 has no feed-forward."""
    mixer = mamba_shapes(c["hidden_size"], c["num_heads"], c["head_dim"], c["state_size"], c["n_groups"], c["conv_kernel"], c["use_bias"],
                         c["use_conv_bias"])
    return under("mixer", mixer) | {"norm.weight": (c["hidden_size"],)}


def rwkv7_shapes(c, layer):
    hidden, heads = c["hidden_size"], c["num_heads"]
    inside = c["intermediate_size"] or 32 * math.ceil(int(hidden * c["hidden_ratio"]) / 32)
    norm = {"weight": (hidden,)} | ({"bias": (hidden,)} if c["norm_bias"] else {})
    attn = {"k_k": (hidden,), "k_a": (hidden,), "r_k": (heads, c["head_dim"]), "g_norm.weight": (hidden,), "g_norm.bias": (hidden,)}
    attn |= {f"{name}_proj.weight": (hidden, hidden) for name in "rkvo"}
    old = not c["norm_first"]
    attn |= {"x_x": (6, 1, 1, hidden)} if old else {f"x_{name}": (1, 1, hidden) for name in "rwkvag"}
    for name, rank in (("w", "decay"), ("a", "a"), ("g", "gate")) + ((("v", "v"),) if layer else ()):
        rank = c[f"{rank}_low_rank_dim"]
        attn |= under(f"{name}_lora.lora.0", weights(rank, hidden)) | under(f"{name}_lora.lora.2", weights(hidden, rank, name != "g"))
    shapes = under("attn", attn) | under("attn_norm", norm) | under("ffn_norm", norm)
    if layer == 0 and c["norm_first"]:
        shapes |= under("pre_norm", norm)
    return shapes | {"ffn.x_k": (hidden,), "ffn.key.weight": (inside, hidden), "ffn.value.weight": (hidden, inside)}


def initial_states(c):
    """[heads, keys, values] of each layer."""
    size = c["head_dim"]
    return {f"model.layers.{layer}.attn.initial_state": (c["num_heads"], size, size) for layer in range(c["num_hidden_layers"])}


def layer_shapes(c, layer):
    kind, hidden = c["model_type"], c["hidden_size"]
    if kind == "mamba2":
        return mamba2_shapes(c)
    if kind == "rwkv7":
        return rwkv7_shapes(c, layer)
    mixer = {"linear_attn": gated_shapes, "retnet": gated_shapes, "gla": gated_shapes, "hgrn2": hgrn2_shapes}.get(kind, delta_shapes)(c)
    inside = c["intermediate_size"]
    mlp = {"gate_proj.weight": (inside, hidden), "up_proj.weight": (inside, hidden), "down_proj.weight": (hidden, inside)}
    return under("attn", mixer) | under("mlp", mlp) | {"attn_norm.weight": (hidden,), "mlp_norm.weight": (hidden,)}


def all_shapes(c):
    kind, hidden, vocab = c["model_type"], c["hidden_size"], c["vocab_size"]
    top = "backbone" if kind == "mamba2" else "model"
    old = kind == "mamba2" and not c["tie_word_embeddings"]
    shapes = {f"{top}.{'embedding' if old else 'embeddings'}.weight": (vocab, hidden)}
    for layer in range(c["num_hidden_layers"]):
        shapes |= under(f"{top}.layers.{layer}", layer_shapes(c, layer))
    shapes[f"{top}.norm_f.weight" if kind == "mamba2" else f"{top}.norm.weight"] = (hidden,)
    if kind == "rwkv7" and c["norm_bias"]:
        shapes["model.norm.bias"] = (hidden,)
    if kind == "hgrn2":
        shapes["model.lower_bounds"] = (c["num_hidden_layers"], hidden)
    return shapes if c["tie_word_embeddings"] else shapes | {"lm_head.weight": (vocab, hidden)}


# --- Values: uniform, so that no parameter is at the value that makes it neutral. The first pattern that fits the name decides.
# Biases of a choice have a large offset, so that the weights of experts must lack them; bfloat16 would lose their differences.
RANGES = (
    (r"language_model\.(?!.*linear_attn).*norm\.weight$", -0.4, 0.4), (r"norm\w*\.weight$", 0.6, 1.4), (r"(expert|correction)_bias$", 5.9, 6.1),
    (r"\.(gate|layer|shared_expert_gate)\.weight$", -0.6, 0.6), (r"\.D$", 0.5, 1.5), (r"A_log$", -1, 1), (r"dt_bias$", -2, 0.5), (r"lower_bounds$", -1, 1),
    (r"\.(x_.|k_a)$", 0.1, 0.9), (r"k_k$", 0.4, 1.2), (r"r_k$", -0.5, 0.5), (r"w_lora\.lora\.2\.bias$", -4, 1), (r"bias$", -0.5, 0.5),
    (r"\w*conv(1d)?\.weight$", -0.7, 0.7), (r"embed\w*\.weight$", -1.5, 1.5))
FLOAT32 = re.compile(r"(expert_bias|mixer\.gate\.\w+)$")  # whatever the type of the other tensors


def draw(rng, name, shape):
    # random.random() is the same in every version of Python; nothing else of `random` is promised to be.
    spread = math.sqrt(3 / shape[-1])
    low, high = next(((low, high) for pattern, low, high in RANGES if re.search(pattern, name)), (-spread, spread))
    return np.array([low + (high - low) * rng.random() for _ in range(math.prod(shape))]).reshape(shape)


# --- safetensors

def to_bytes(values, dtype):
    """Little-endian bytes of a float64 array, rounded to nearest even."""
    if dtype == "BF16":
        bits = values.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").tobytes()
    return values.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()


def from_bytes(data, dtype):
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    if dtype not in ("F32", "F16"):
        raise ValueError(f"dtype {dtype} is not known here")
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float64)


def type_of(name, dtype):
    """The type in a file whose tensors are of type `dtype`."""
    return "F32" if FLOAT32.search(name) else dtype


def safetensors(values, weights_type):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(values):
        dtype = type_of(name, weights_type)
        part = to_bytes(values[name], dtype)
        header[name] = {"dtype": dtype, "shape": list(values[name].shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(data):
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    values = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values[name] = from_bytes(data[begin:end], entry["dtype"]).reshape(entry["shape"])
    return values


def read_weights(directory):
    """The tensors of a directory, of one file or of the shards that its index names."""
    index = directory / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    values = {}
    for name in names:
        values.update(read_safetensors((directory / name).read_bytes()))
    return values


# --- Directories

def draw_tokens(rng, vocab, length, model):
    """Random tokens at which no router is near another choice, so that float32 makes the same."""
    tokens = [int(rng.random() * vocab) for _ in range(length)]
    while isinstance(model, Hybrid):
        model.logits(tokens)
        near = np.flatnonzero(model.margins < NEAR)
        if not len(near):
            break
        tokens[near[0]] = int(rng.random() * vocab)
    return tokens


def golden_json(config, values, sequences):
    model = network(config, values)
    found = [answers(model, tokens, POSITIONS) for tokens in sequences]
    for sequence in found:
        sequence["outputs"] = [[round(y, DECIMALS) for y in row] for row in sequence["outputs"]]
    return {"about": ABOUT, "model_type": config["model_type"], "positions": list(POSITIONS), "sequences": found}


def files_of(name):
    """{file name: bytes} of a directory."""
    config, dtype, sharded = DIRECTORIES[name]
    rng = random.Random(SEEDS.get(name, name))
    shapes = hybrid_shapes(config) if name in HYBRIDS else all_shapes(config) | (initial_states(config) if name in WITH_INITIAL_STATE else {})
    drawn = {tensor: draw(rng, tensor, shape) for tensor, shape in sorted(shapes.items())}
    values = {tensor: from_bytes(to_bytes(value, type_of(tensor, dtype)), type_of(tensor, dtype)).reshape(value.shape)
              for tensor, value in drawn.items()}
    vocab, model = config.get("text_config", config)["vocab_size"], network(config, values)
    sequences = [draw_tokens(rng, vocab, length, model) for length in LENGTHS]
    files = {"config.json": (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()}
    names = sorted(values)
    parts = {"model.safetensors": names}
    if sharded:
        parts = {f"model-0000{i + 1}-of-00002.safetensors": names[i * len(names) // 2:(i + 1) * len(names) // 2] for i in range(2)}
        index = {"metadata": {"total_size": sum(len(to_bytes(value, type_of(tensor, dtype))) for tensor, value in values.items())},
                 "weight_map": {tensor: part for part in sorted(parts) for tensor in parts[part]}}
        files["model.safetensors.index.json"] = (json.dumps(index, indent=2) + "\n").encode()
    for part, tensors in parts.items():
        files[part] = safetensors({tensor: values[tensor] for tensor in tensors}, dtype)
    files["golden.json"] = (json.dumps(golden_json(config, values, sequences)) + "\n").encode()
    size = sum(map(len, files.values()))
    if size > LARGEST:
        raise ValueError(f"{name}: {size} bytes, at most {LARGEST}")
    return files


def write(folder, names=DIRECTORIES, files=files_of):
    """Writes files(name), bytes by file name, into a directory for each name. Returns the exit code 0."""
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, data in files(name).items():
            (folder / name / file).write_bytes(data)
    return 0


def same_golden(data, expected):
    one, other = json.loads(data), json.loads(expected)
    rest = [{key: value for key, value in golden.items() if key != "sequences"} for golden in (one, other)]
    return rest[0] == rest[1] and difference(one["sequences"], other["sequences"]) <= LIMIT


def check(folder, names=DIRECTORIES, files=files_of, program="make_family.py"):
    """Prints a line for each file that is not as `program` would write it; bytes, except for the numbers of golden.json."""
    wrong = []
    for name in names:
        expected = files(name)
        found = {path.name for path in (folder / name).glob("*")}
        wrong += [f"{name}/{file}: unexpected" for file in sorted(found - set(expected))]
        for file, data in expected.items():
            if file not in found:
                wrong.append(f"{name}/{file}: missing")
                continue
            existing = (folder / name / file).read_bytes()
            if existing != data and not (file == "golden.json" and same_golden(existing, data)):
                wrong.append(f"{name}/{file}: differs")
    wrong += [f"{path.name}: unexpected" for path in sorted(folder.glob("*")) if path.name not in names]
    print("\n".join(wrong or [f"{len(names)} directories as written by {program}"]))
    return 1 if wrong else 0


def compare(folders):
    failed = False
    for folder in folders:
        config, golden = (json.loads((folder / file).read_text()) for file in ("config.json", "golden.json"))
        model = network(config, read_weights(folder))
        computed = [answers(model, s["tokens"], golden["positions"]) for s in golden["sequences"]]
        worst = difference(golden["sequences"], computed)
        failed |= not worst <= LIMIT
        print(f"{folder}: {worst:.2g}, at most {LIMIT:.2g}")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare instead of writing")
    mode.add_argument("--compare", action="store_true", help="compare the goldens of other checkpoints")
    parser.add_argument("folders", nargs="+", type=pathlib.Path, metavar="DIR")
    options = parser.parse_args()
    if len(options.folders) > 1 and not options.compare:
        parser.error("more than one DIR: only with --compare")
    try:
        if options.compare:
            return compare(options.folders)
        return (check if options.check else write)(options.folders[0])
    except (OSError, KeyError, ValueError) as error:
        print(f"make_family.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
