#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/conformance/gguf: small random GGUF files laid out as llama.cpp's converter lays them out, with float64 answers.

    make_gguf.py DIR             writes every directory below DIR
    make_gguf.py --check DIR     compares the directories below DIR with what it would write
    make_gguf.py --blocks        prints the hashes of tests/unit/model/weights/dtype_test.cc

The answers are those of the weights as the package gguf dequantizes them. Exit codes: 0 written, or all equal; 1 a difference;
77 the package gguf is not installed.
"""
import argparse
import hashlib
import json
import pathlib
import random
import sys
import tempfile

try:
    import gguf

    gguf.GGUFWriter  # the folder of the files, beside this one, has the name of the package
except (ImportError, AttributeError):
    print("skipped: the package gguf is not installed; deploy/setup.sh --tests installs it")
    sys.exit(77)
import numpy as np

import make_family
from make_family import LENGTHS, MAMBA2, RWKV7, all_shapes, draw, golden_json

LARGEST = 120_000  # bytes of a directory
F32, Type = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType

# --- The directories: config.json of the checkpoint, the type of the matrices, another type for some of them, parts. Heads of 16
# with this epsilon have the group norm that llama.cpp takes for every head. Blocks of 256 need rows of as many weights.

R = RWKV7 | {"hidden_size": 32, "head_dim": 16, "num_heads": 2, "norm_eps": 4e-5, "hidden_ratio": None, "value_dim": 32}
M = MAMBA2 | {"hidden_size": 32, "n_groups": 1, "tie_word_embeddings": False, "time_step_limit": [0.0, float("inf")]}
K = (Type.Q4_K, Type.Q5_K, Type.Q6_K)
I4 = (Type.IQ4_XS, Type.IQ4_NL, Type.Q3_K)
DIRECTORIES = {
    "rwkv7-f16": (R | {"intermediate_size": 48}, Type.F16, {}, 1),
    "rwkv7-q8_0": (R | {"intermediate_size": 64}, Type.Q8_0, {}, 1),
    "rwkv7-q4_0": (R | {"intermediate_size": 96}, Type.Q4_0, {"output.weight": Type.Q8_0}, 1),
    "rwkv7-parts": (R | {"intermediate_size": 256, "num_hidden_layers": 3}, Type.Q5_0,
                    {f"blk.{layer}.channel_mix_value.weight": kind for layer, kind in enumerate(K)}, 3),
    "mamba2-f32": (M | {"head_dim": 16, "num_heads": 4, "state_size": 12, "tie_word_embeddings": True}, Type.F32, {}, 1),
    "mamba2-bf16": (M | {"hidden_size": 24, "head_dim": 12, "num_heads": 4, "state_size": 8, "n_groups": 2}, Type.BF16, {}, 1),
    "mamba2-k": (M | {"head_dim": 64, "num_heads": 4, "state_size": 16, "n_groups": 2, "expand": 8, "num_hidden_layers": 3}, Type.Q5_0,
                 {f"blk.{layer}.ssm_out.weight": kind for layer, kind in enumerate(K)}, 1),
    "mamba2-iq4": (M | {"head_dim": 64, "num_heads": 4, "state_size": 16, "expand": 8, "num_hidden_layers": 3}, Type.Q5_1,
                   {f"blk.{layer}.ssm_out.weight": kind for layer, kind in enumerate(I4)} | {"output.weight": Type.Q4_1}, 1),
}


# --- Tensors: (name in GGUF, name or names in the checkpoint, shape in GGUF or None where it is the checkpoint's)

def rwkv7_rows(c):
    hidden = c["hidden_size"]
    rows = [("token_embd.weight", "model.embeddings.weight", None), ("output.weight", "lm_head.weight", None)]

    def norm(name, ours):
        rows.extend((f"{name}.{part}", f"{ours}.{part}", None) for part in ("weight", "bias"))

    norm("token_embd_norm", "model.layers.0.pre_norm")
    norm("output_norm", "model.norm")
    for layer in range(c["num_hidden_layers"]):
        blk, ours = f"blk.{layer}", f"model.layers.{layer}"
        attn = f"{ours}.attn"
        norm(f"{blk}.attn_norm", f"{ours}.attn_norm")
        norm(f"{blk}.attn_norm_2", f"{ours}.ffn_norm")
        norm(f"{blk}.time_mix_ln", f"{attn}.g_norm")
        rows += [(f"{blk}.time_mix_{name}.weight", f"{attn}.{proj}_proj.weight", None)
                 for name, proj in (("receptance", "r"), ("key", "k"), ("value", "v"), ("output", "o"))]
        for name in "wavg":
            # Layer 0 has copies of a in the place of v, which nothing reads.
            lora = f"{attn}.{'a' if layer == 0 and name == 'v' else name}_lora.lora"
            rows += [(f"{blk}.time_mix_{name}{i}.weight", f"{lora}.{part}", None)
                     for i, part in enumerate(("2.bias", "0.weight", "2.weight")) if name + str(i) != "g0"]
        rows += [(f"{blk}.time_mix_k_k.weight", f"{attn}.k_k", None), (f"{blk}.time_mix_k_a.weight", f"{attn}.k_a", None),
                 (f"{blk}.time_mix_r_k.weight", f"{attn}.r_k", (hidden,)),
                 (f"{blk}.time_mix_lerp_fused.weight", [f"{attn}.x_{name}" for name in "rwkvag"], (6, 1, 1, hidden)),
                 (f"{blk}.channel_mix_lerp_k.weight", f"{ours}.ffn.x_k", None),
                 (f"{blk}.channel_mix_key.weight", f"{ours}.ffn.key.weight", None),
                 (f"{blk}.channel_mix_value.weight", f"{ours}.ffn.value.weight", None)]
    return rows


def mamba2_rows(c):
    inner, groups, heads = c["num_heads"] * c["head_dim"], c["n_groups"], c["num_heads"]
    channels = inner + 2 * groups * c["state_size"]
    tied = c["tie_word_embeddings"]
    rows = [("token_embd.weight", f"backbone.{'embeddings' if tied else 'embedding'}.weight", None),
            ("output_norm.weight", "backbone.norm_f.weight", None)]
    rows += [] if tied else [("output.weight", "lm_head.weight", None)]
    for layer in range(c["num_hidden_layers"]):
        blk, ours = f"blk.{layer}", f"backbone.layers.{layer}"
        mixer = f"{ours}.mixer"
        rows += [(f"{blk}.attn_norm.weight", f"{ours}.norm.weight", None), (f"{blk}.ssm_in.weight", f"{mixer}.in_proj.weight", None),
                 (f"{blk}.ssm_conv1d.weight", f"{mixer}.conv1d.weight", (channels, c["conv_kernel"])),
                 (f"{blk}.ssm_conv1d.bias", f"{mixer}.conv1d.bias", None), (f"{blk}.ssm_dt.bias", f"{mixer}.dt_bias", None),
                 (f"{blk}.ssm_a", f"{mixer}.A_log", (heads, 1)), (f"{blk}.ssm_d", f"{mixer}.D", (heads, 1)),
                 (f"{blk}.ssm_norm.weight", f"{mixer}.norm.weight", (groups, inner // groups)),
                 (f"{blk}.ssm_out.weight", f"{mixer}.out_proj.weight", None)]
    return rows


def to_array(values, row):
    name, ours, shape = row
    array = np.stack([values[part] for part in ours]) if isinstance(ours, list) else values[ours]
    array = array.astype(np.float32)
    return (-np.exp(array) if name.endswith("ssm_a") else array).reshape(shape or array.shape)


def from_array(array, row, shapes):
    """{name in the checkpoint: float64 values}"""
    name, ours, _ = row
    if isinstance(ours, list):
        return {part: array[i].astype(np.float64).reshape(shapes[part]) for i, part in enumerate(ours)}
    array = array.astype(np.float64).reshape(shapes[ours])
    return {ours: np.log(-array) if name.endswith("ssm_a") else array}


def type_of(name, array, wanted, others):
    """As the converter and llama-quantize choose: vectors, norms, convolutions and what is small in RWKV-7 stay as they were."""
    kept = ("norm.weight", "lerp_fused.weight", "conv1d.weight", "ssm_a", "ssm_d", "time_mix_w1.weight", "time_mix_w2.weight")
    if sum(extent > 1 for extent in array.shape) < 2 or name.endswith(kept):
        return F32
    if any(f"time_mix_{part}{i}" in name for part in "avg" for i in "12"):
        return F32 if wanted == F32 else Type.F16
    return others.get(name, wanted)


# --- Blocks

# Where the scale is, how many of it a weight is about, and the minimum in them.
DRAWN = {Type.Q4_K: (0, 32 * 8, 7.5), Type.Q5_K: (0, 32 * 16, 15.5), Type.Q6_K: (208, 32 * 64, 0), Type.Q3_K: (108, 18 * 2, 0),
         Type.IQ4_NL: (0, 68, 0), Type.IQ4_XS: (0, 18 * 68, 0)}


def quantized(rng, array, kind):
    """Blocks of `kind` that stand for `array`; gguf has no code for some types, so that the numbers in those are drawn."""
    if kind not in DRAWN:
        return gguf.quantize(array, kind)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    count = array.size // weights
    blocks = np.array([int(rng.random() * 256) for _ in range(count * size)], np.uint8).reshape(count, size)
    # Scales so that weights are about as large as those of `array`.
    at, units, middle = DRAWN[kind]
    step = float(np.std(array)) / units
    half = lambda value: np.frombuffer(np.float16(value).tobytes(), np.uint8)  # noqa: E731
    blocks[:, at:at + 2] = half(step)
    if middle:
        blocks[:, 2:4] = half(step * middle)
    return blocks.reshape(*array.shape[:-1], -1)


def block_hashes():
    lines = []
    for kind, scales in ((Type.Q4_0, (0,)), (Type.Q4_1, (0, 2)), (Type.Q5_0, (0,)), (Type.Q5_1, (0, 2)), (Type.Q8_0, (0,)),
                         (Type.Q3_K, (108,)), (Type.Q4_K, (0, 2)), (Type.Q5_K, (0, 2)), (Type.Q6_K, (208,)), (Type.IQ4_NL, (0,)),
                         (Type.IQ4_XS, (0,))):
        size, state, data = gguf.GGML_QUANT_SIZES[kind][1], 1, bytearray()
        for _ in range(64 * size):
            state = (state * 1664525 + 1013904223) % 2**32
            data.append(state >> 24)
        for block in range(64):
            for at in scales:
                data[block * size + at + 1] &= 0xBF
        weights = gguf.dequantize(np.frombuffer(bytes(data), np.uint8).reshape(64, size), kind).astype("<f4")
        lines.append(f"{kind.name} {hashlib.sha256(weights.tobytes()).hexdigest()}")
    return lines


# --- Files

def add_settings(writer, c):
    writer.add_type("model")
    writer.add_name(f"Small {c['model_type']}")
    writer.add_context_length(1048576)
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_head_count(0)
    if c["model_type"] == "rwkv7":
        writer.add_layer_norm_eps(c["norm_eps"])
        writer.add_wkv_head_size(c["head_dim"])
        writer.add_decay_lora_rank(c["decay_low_rank_dim"])
        writer.add_iclr_lora_rank(c["a_low_rank_dim"])
        writer.add_value_residual_mix_lora_rank(c["v_low_rank_dim"])
        writer.add_gate_lora_rank(c["gate_low_rank_dim"])
        writer.add_feed_forward_length(c["intermediate_size"])
    else:
        writer.add_feed_forward_length(0)
        writer.add_ssm_conv_kernel(c["conv_kernel"])
        writer.add_ssm_inner_size(c["num_heads"] * c["head_dim"])
        writer.add_ssm_state_size(c["state_size"])
        writer.add_ssm_time_step_rank(c["num_heads"])
        writer.add_ssm_group_count(c["n_groups"])
        writer.add_layer_norm_rms_eps(c["layer_norm_epsilon"])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def gguf_file(c, tensors, part, parts):
    """The bytes of part `part` (0 is the first) of `parts`. `tensors`: (name, blocks, type)."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "part"
        write_part(path, c, tensors, part, parts)
        return path.read_bytes()


def write_part(path, c, tensors, part, parts):
    writer = gguf.GGUFWriter(path, c["model_type"])
    if part == 0:
        add_settings(writer, c)
    if parts > 1:
        writer.add_uint16("split.no", part)
        writer.add_uint16("split.count", parts)
        writer.add_int32("split.tensors.count", len(tensors))
    for name, blocks, kind in tensors[part * len(tensors) // parts:(part + 1) * len(tensors) // parts]:
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def files_of(name):
    """{file name: bytes} of a directory."""
    c, wanted, others, parts = DIRECTORIES[name]
    rng = random.Random(name)
    shapes = all_shapes(c)
    drawn = {tensor: draw(rng, tensor, shape) for tensor, shape in sorted(shapes.items())}
    sequences = [[int(rng.random() * c["vocab_size"]) for _ in range(length)] for length in LENGTHS]
    tensors, values = [], {}
    for row in (rwkv7_rows if c["model_type"] == "rwkv7" else mamba2_rows)(c):
        array = to_array(drawn, row)
        kind = type_of(row[0], array, wanted, others)
        blocks = quantized(rng, array, kind)
        tensors.append((row[0], blocks, kind))
        if not any(f"blk.0.time_mix_v{i}." in row[0] for i in "012"):
            values |= from_array(gguf.dequantize(blocks, kind), row, shapes)
    files = {("model.gguf" if parts == 1 else f"model-{part + 1:05d}-of-{parts:05d}.gguf"): gguf_file(c, tensors, part, parts)
             for part in range(parts)}
    files["golden.json"] = (json.dumps(golden_json(c, values, sequences)) + "\n").encode()
    size = sum(map(len, files.values()))
    if size > LARGEST:
        raise ValueError(f"{name}: {size} bytes, at most {LARGEST}")
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare instead of writing")
    mode.add_argument("--blocks", action="store_true", help="print the hashes of blocks")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, metavar="DIR")
    options = parser.parse_args()
    if options.blocks:
        print("\n".join(block_hashes()))
        return 0
    if options.folder is None:
        parser.error("DIR is missing")
    if options.check:
        return make_family.check(options.folder, DIRECTORIES, files_of, "make_gguf.py")
    return make_family.write(options.folder, DIRECTORIES, files_of)


if __name__ == "__main__":
    sys.exit(main())
