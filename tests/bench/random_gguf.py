# SPDX-License-Identifier: Apache-2.0
"""GGUF files of mixtures of experts in their published shapes, with random weights that are written directly as blocks.

A file of 8 billion weights takes half a minute; no tensor of numbers is made. Types are those of llama-quantize: "q8_0", and
"q4_k_m", in which some matrices are Q6_K or Q5_K, and rows that are no multiple of 256 are Q5_0 or Q8_0.
"""
import math
import pathlib

import gguf
import numpy as np

Type = gguf.GGMLQuantizationType

# Of each architecture: sizes, then the settings that have no other use here.
SHAPES = {
    "lfm2-8b-a1b": ("lfm2moe", {
        "hidden": 2048, "layers": 24, "attends": {2, 6, 10, 14, 18, 21}, "heads": 32, "kv": 8, "dim": 64, "vocab": 65536, "experts": 32,
        "chosen": 4, "expert": 1792, "shared": 0, "dense": 2, "ffn": 7168}),
    "granite-4.0-h-tiny": ("granitehybrid", {
        "hidden": 1536, "layers": 40, "attends": {5, 15, 25, 35}, "heads": 12, "kv": 4, "dim": 128, "vocab": 100352, "experts": 64,
        "chosen": 6, "expert": 512, "shared": 1024, "dense": 0, "ffn": 512, "state": 128, "groups": 1, "inner": 3072, "steps": 48}),
    "qwen3.6-35b-a3b": ("qwen35moe", {
        "hidden": 2048, "layers": 40, "attends": set(range(3, 40, 4)), "heads": 16, "kv": 2, "dim": 256, "vocab": 248320, "experts": 256,
        "chosen": 8, "expert": 512, "shared": 512, "dense": 0, "ffn": 0, "state": 128, "groups": 16, "inner": 4096, "steps": 32}),
}


def settings(arch, s):
    """(method of GGUFWriter's add_..., key, value) of each key."""
    kv = [s["kv"] if i in s["attends"] else 0 for i in range(s["layers"])]
    keys = [("uint32", "block_count", s["layers"]), ("uint32", "context_length", 131072), ("uint32", "embedding_length", s["hidden"]),
            ("uint32", "attention.head_count", s["heads"]), ("uint32", "vocab_size", s["vocab"]), ("uint32", "expert_count", s["experts"]),
            ("uint32", "expert_used_count", s["chosen"]), ("float32", "rope.freq_base", 1e6), ("float32", "attention.layer_norm_rms_epsilon", 1e-5)]
    if arch == "qwen35moe":
        keys += [("uint32", "attention.head_count_kv", s["kv"]), ("uint32", "attention.key_length", s["dim"]), ("uint32", "attention.value_length", s["dim"]),
                 ("array", "attention.recurrent_layers", [not k for k in kv]), ("uint32", "full_attention_interval", 4),
                 ("array", "rope.dimension_sections", [11, 11, 10, 0]), ("uint32", "rope.dimension_count", s["dim"] // 4)]
    else:
        keys += [("array", "attention.head_count_kv", kv), ("uint32", "feed_forward_length", s["ffn"])]
    if arch == "lfm2moe":
        keys += [("uint32", "shortconv.l_cache", 3), ("uint32", "leading_dense_block_count", s["dense"]), ("uint32", "expert_gating_func", 2)]
    if arch == "granitehybrid":
        keys += [("float32", "attention.scale", 0.0078125), ("float32", "embedding_scale", 12.0), ("float32", "residual_scale", 0.22),
                 ("float32", "logit_scale", 6.0), ("bool", "rope.scaling.finetuned", False), ("uint32", "rope.dimension_count", s["dim"])]
    else:
        keys.append(("uint32", "expert_feed_forward_length", s["expert"]))
    if s["shared"]:
        keys.append(("uint32", "expert_shared_feed_forward_length", s["shared"]))
    if "state" in s:
        keys += [("uint32", f"ssm.{key}", value) for key, value in (("conv_kernel", 4), ("state_size", s["state"]), ("group_count", s["groups"]),
                                                                   ("inner_size", s["inner"]), ("time_step_rank", s["steps"]))]
    return keys


def mixer(arch, s):
    """{name: shape} of a recurrent layer's mixer."""
    hidden = s["hidden"]
    if arch == "lfm2moe":
        return {"shortconv.conv.weight": (hidden, 3), "shortconv.in_proj.weight": (3 * hidden, hidden), "shortconv.out_proj.weight": (hidden, hidden)}
    inner, steps = s["inner"], s["steps"]
    channels = inner + 2 * s["groups"] * s["state"]
    own = {"ssm_conv1d.weight": (channels, 4), "ssm_dt.bias": (steps,), "ssm_out.weight": (hidden, inner)}
    if arch == "qwen35moe":
        return own | {"ssm_a": (steps,), "ssm_norm.weight": (s["state"],), "attn_qkv.weight": (channels, hidden), "attn_gate.weight": (inner, hidden),
                      "ssm_alpha.weight": (steps, hidden), "ssm_beta.weight": (steps, hidden)}
    return own | {"ssm_a": (steps, 1), "ssm_d": (steps, 1), "ssm_conv1d.bias": (channels,), "ssm_norm.weight": (s["groups"], inner // s["groups"]),
                  "ssm_in.weight": (inner + channels + steps, hidden)}


def attention(arch, s):
    hidden, queries, keys = s["hidden"], s["heads"] * s["dim"], s["kv"] * s["dim"]
    norms = {} if arch == "granitehybrid" else {"attn_q_norm.weight": (s["dim"],), "attn_k_norm.weight": (s["dim"],)}
    return norms | {"attn_q.weight": (queries * (2 if arch == "qwen35moe" else 1), hidden), "attn_k.weight": (keys, hidden),
                    "attn_v.weight": (keys, hidden), "attn_output.weight": (hidden, queries)}


def feed_forward(arch, s, layer):
    hidden = s["hidden"]

    def gated(suffix, width, experts=()):
        return {f"ffn_{part}{suffix}.weight": (*experts, width, hidden) for part in ("gate", "up")} | {
            f"ffn_down{suffix}.weight": (*experts, hidden, width)}

    if layer < s["dense"]:
        return gated("", s["ffn"])
    own = gated("_exps", s["expert"], (s["experts"],)) | {"ffn_gate_inp.weight": (s["experts"], hidden)}
    own |= gated("_shexp", s["shared"]) if s["shared"] else {}
    own |= {"ffn_gate_inp_shexp.weight": (hidden,)} if arch == "qwen35moe" else {}
    return own | ({"exp_probs_b.bias": (s["experts"],)} if arch == "lfm2moe" else {})


def tensors(arch, s):
    hidden = s["hidden"]
    shapes = {"token_embd.weight": (s["vocab"], hidden), ("token_embd_norm.weight" if arch == "lfm2moe" else "output_norm.weight"): (hidden,)}
    shapes |= {"output.weight": (s["vocab"], hidden)} if arch == "qwen35moe" else {}
    for i in range(s["layers"]):
        norm2 = "post_attention_norm.weight" if arch == "qwen35moe" else "ffn_norm.weight"
        own = {"attn_norm.weight": (hidden,), norm2: (hidden,)} | (attention(arch, s) if i in s["attends"] else mixer(arch, s))
        shapes |= {f"blk.{i}.{name}": shape for name, shape in (own | feed_forward(arch, s, i)).items()}
    return shapes


def type_of(name, shape, kind, layers):
    """As llama-quantize chooses."""
    if len(shape) < 2 or any(part in name for part in ("norm", "conv.weight", "conv1d", "ssm_a", "ssm_d", "ffn_gate_inp")) and "ssm_alpha" not in name:
        return Type.F32
    if kind == "q8_0":
        return Type.Q8_0
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    if name in ("token_embd.weight", "output.weight") or (more and ("attn_v." in name or "ffn_down" in name)):
        return Type.Q6_K if shape[-1] % 256 == 0 else Type.Q8_0
    if shape[-1] % 256 != 0:
        return Type.Q5_0
    return Type.Q5_K if "attn_qkv" in name else Type.Q4_K


def blocks(rng, kind, count, width):
    """`count` random blocks of weights around 0, so large that a product with rows of `width` inputs keeps their size."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = np.frombuffer(rng.bytes(count * size), np.uint8).reshape(count, size).copy()
    # Where the scales of a block are, with the factors that make the mean 0; and the spread of its weights at scale 1.
    scales, spread = {Type.Q8_0: ({0: 1}, 74), Type.Q5_0: ({0: 1}, 9.2), Type.Q4_K: ({0: 1, 2: 7.5}, 258), Type.Q5_K: ({0: 1, 2: 15.5}, 520),
                      Type.Q6_K: ({208: 1}, 1370)}[kind]
    for place, factor in scales.items():
        data[:, place:place + 2] = np.frombuffer(np.float16(factor / spread / math.sqrt(width)).tobytes(), np.uint8)
    return data


def numbers(rng, name, shape):
    if "ssm_a" in name:
        return -rng.uniform(0.4, 2.7, shape)
    low, high = (0.9, 1.1) if "norm" in name or name.endswith("ssm_d") else (-0.5, 0.5)
    return rng.uniform(low, high, shape) / (math.sqrt(shape[-1] / 64) if len(shape) > 1 and "inp" in name else 1)


def write(path, name, kind):
    """The model `name` of SHAPES with weights of `kind`, into the file `path`."""
    arch, s = SHAPES[name]
    part = pathlib.Path(path).with_suffix(".part")
    writer = gguf.GGUFWriter(part, arch)
    for method, key, value in settings(arch, s):
        getattr(writer, f"add_{method}")(f"{arch}.{key}", value)
    writer.add_tokenizer_model("none")
    writer.add_quantization_version(2)
    shapes = tensors(arch, s)
    types = {tensor: type_of(tensor, shape, kind, s["layers"]) for tensor, shape in shapes.items()}
    for tensor, shape in shapes.items():
        weights, size = gguf.GGML_QUANT_SIZES[types[tensor]]
        bytes_ = math.prod(shape) // weights * size
        writer.add_tensor_info(tensor, shape, np.dtype(np.float32), bytes_, types[tensor])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng, file = np.random.default_rng(1), writer.fout[0]
    for tensor, shape in shapes.items():
        writer.write_padding(file, file.tell())
        if types[tensor] == Type.F32:
            file.write(numbers(rng, tensor, shape).astype("<f4").tobytes())
            continue
        count, most = math.prod(shape) // gguf.GGML_QUANT_SIZES[types[tensor]][0], 1 << 18
        for first in range(0, count, most):
            file.write(blocks(rng, types[tensor], min(most, count - first), shape[-1]).tobytes())
    writer.write_padding(file, file.tell())
    writer.close()
    part.rename(path)
