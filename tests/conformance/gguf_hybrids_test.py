#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hybrids of tests/conformance/hybrid as GGUF files, laid out as llama.cpp's converter lays them out, give the same goldens.

    gguf_hybrids_test.py FAMILY_GOLDEN_TEST DIR...

Every number is F32, so that what the converter changes is all that differs: sums, exponentials, products and the order of rows.
Models of other model_types are left out. Exit codes: 0 all passed; 1 not; 77 the package gguf is not installed.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import gguf

    gguf.GGUFWriter  # the folder beside this file has the name of the package
except (ImportError, AttributeError):
    print("skipped: the package gguf is not installed; deploy/setup.sh --tests installs it")
    sys.exit(77)
import numpy as np

from make_family import read_weights

# --- Names in a layer: as transformers has them, and as GGUF has them. {n}: an expert.

ATTENTION = {f"self_attn.{ours}_proj.{part}": f"attn_{theirs}.{part}" for part in ("weight", "bias")
             for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))}
MAMBA = {"in_proj.weight": "ssm_in.weight", "out_proj.weight": "ssm_out.weight", "norm.weight": "ssm_norm.weight",
         "conv1d.weight": "ssm_conv1d.weight", "conv1d.bias": "ssm_conv1d.bias", "dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "D": "ssm_d"}
OUTSIDE = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}


def mlp(prefix, names, suffix=""):
    return {f"{prefix}{ours}.weight": f"ffn_{theirs}{suffix}.weight" for ours, theirs in zip(names, ("gate", "up", "down"))}


PROJ = ("gate_proj", "up_proj", "down_proj")
SHARED_MLP = {"shared_mlp.input_linear.weight": "gate_up", "shared_mlp.output_linear.weight": "ffn_down.weight"}
GRANITE = ATTENTION | {f"mamba.{ours}": theirs for ours, theirs in MAMBA.items()} | {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "ffn_norm.weight"} | SHARED_MLP | {
    "block_sparse_moe.router.layer.weight": "ffn_gate_inp.weight", "block_sparse_moe.input_linear.weight": "gate_up_exps",
    "block_sparse_moe.output_linear.weight": "ffn_down_exps.weight"}
QWEN = ATTENTION | mlp("mlp.", PROJ) | mlp("mlp.shared_expert.", PROJ, "_shexp") | {
    "input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight", "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight", "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight", "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight", "linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight", "linear_attn.out_proj.weight": "ssm_out.weight", "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight", "mlp.experts.gate_up_proj": "gate_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps.weight"}
LFM2 = {ours.replace("o_proj", "out_proj"): theirs for ours, theirs in ATTENTION.items()} | mlp("feed_forward.", ("w1", "w3", "w2")) | {
    "operator_norm.weight": "attn_norm.weight", "ffn_norm.weight": "ffn_norm.weight", "self_attn.q_layernorm.weight": "attn_q_norm.weight",
    "self_attn.k_layernorm.weight": "attn_k_norm.weight", "conv.conv.weight": "shortconv.conv.weight",
    "conv.in_proj.weight": "shortconv.in_proj.weight", "conv.out_proj.weight": "shortconv.out_proj.weight",
    "feed_forward.gate.weight": "ffn_gate_inp.weight", "feed_forward.expert_bias": "exp_probs_b.bias"}
FALCON = ATTENTION | {f"mamba.{ours}": theirs for ours, theirs in MAMBA.items()} | mlp("feed_forward.", PROJ) | {
    "input_layernorm.weight": "attn_norm.weight", "pre_ff_layernorm.weight": "ffn_norm"}
NEMOTRON = {f"mixer.{ours.removeprefix('self_attn.')}": theirs for ours, theirs in ATTENTION.items()} | {
    f"mixer.{ours}": theirs for ours, theirs in MAMBA.items()} | {
    "norm.weight": "attn_norm.weight", "mixer.up_proj.weight": "ffn_up.weight", "mixer.down_proj.weight": "ffn_down.weight",
    "mixer.gate.weight": "ffn_gate_inp.weight", "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mixer.shared_experts.up_proj.weight": "ffn_up_shexp.weight", "mixer.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    "mixer.fc1_latent_proj.weight": "ffn_latent_down.weight", "mixer.fc2_latent_proj.weight": "ffn_latent_up.weight"}
KINDS = {
    "granitemoehybrid": ("granitehybrid", OUTSIDE, GRANITE), "qwen3_5_text": ("qwen35", OUTSIDE, QWEN),
    "qwen3_5_moe_text": ("qwen35moe", OUTSIDE, QWEN), "falcon_h1": ("falcon-h1", OUTSIDE | {"final_layernorm.weight": "output_norm.weight"}, FALCON),
    "lfm2": ("lfm2", OUTSIDE | {"embedding_norm.weight": "token_embd_norm.weight"}, LFM2),
    "lfm2_moe": ("lfm2moe", OUTSIDE | {"embedding_norm.weight": "token_embd_norm.weight"}, LFM2),
    "nemotron_h": ("nemotron_h_moe", {"embeddings.weight": "token_embd.weight", "norm_f.weight": "output_norm.weight"}, NEMOTRON)}


# --- Settings: {key without the architecture: value}

def layer_kinds(c):
    if "full_attn_idxs" in c:
        return ["full_attention" if i in c["full_attn_idxs"] else "conv" for i in range(c["num_hidden_layers"])]
    if "hybrid_override_pattern" in c:
        return [{"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}[letter] for letter in c["hybrid_override_pattern"]]
    types = c.get("layers_block_type") or c.get("layer_types")
    interval = c.get("full_attention_interval", 4)
    return types or ["full_attention" if i % interval == interval - 1 else "linear_attention" for i in range(c["num_hidden_layers"])]


def settings(c, extra_blocks):
    kind, layers = c["model_type"], layer_kinds(c)
    attends = [name in ("attention", "full_attention") for name in layers]
    heads, keys = c["num_attention_heads"], c.get("num_key_value_heads", c["num_attention_heads"])
    head_dim = c.get("head_dim") or c["hidden_size"] // heads
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    s = {"context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"], "block_count": len(layers) + extra_blocks,
         "attention.head_count": heads, "attention.layer_norm_rms_epsilon": float(
             c.get("layer_norm_epsilon") or c.get("rms_norm_eps") or c["norm_eps"]), "vocab_size": c["vocab_size"],
         "rope.freq_base": float(rope.get("rope_theta") or c.get("rope_theta", 10000))}
    s["attention.head_count_kv"] = keys if kind.startswith("qwen") or kind == "falcon_h1" else [keys if at else 0 for at in attends]
    if kind.startswith(("qwen", "falcon", "nemotron")):
        s |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if rope.get("rope_type") == "yarn":
        s |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"]),
              "rope.scaling.original_context_length": rope["original_max_position_embeddings"]}
    if kind.startswith("qwen"):
        partial = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 0.25))
        s |= {"ssm.state_size": c["linear_key_head_dim"], "ssm.group_count": c["linear_num_key_heads"],
              "ssm.time_step_rank": c["linear_num_value_heads"], "ssm.conv_kernel": c["linear_conv_kernel_dim"],
              "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"], "rope.dimension_sections": [2, 1, 1, 0],
              "rope.dimension_count": int(head_dim * partial), "nextn_predict_layers": extra_blocks,
              "attention.recurrent_layers": [not at for at in attends] + [False] * extra_blocks}
    elif kind.startswith("lfm2"):
        s["shortconv.l_cache"] = c["conv_L_cache"]
    elif kind == "nemotron_h":
        s |= {"ssm.state_size": c["ssm_state_size"], "ssm.group_count": c["n_groups"], "ssm.time_step_rank": c["mamba_num_heads"],
              "ssm.conv_kernel": c["conv_kernel"], "ssm.inner_size": c["mamba_num_heads"] * c["mamba_head_dim"],
              "rope.scaling.finetuned": False}
    else:
        s |= {"ssm.state_size": c["mamba_d_state"], "ssm.group_count": c["mamba_n_groups"], "ssm.time_step_rank": c["mamba_n_heads"],
              "ssm.conv_kernel": c["mamba_d_conv"], "ssm.inner_size": c.get("mamba_d_ssm") or c["mamba_expand"] * c["hidden_size"]}
    if kind == "granitemoehybrid":
        s |= {"rope.dimension_count": head_dim, "attention.scale": float(c["attention_multiplier"]),
              "embedding_scale": float(c["embedding_multiplier"]), "residual_scale": float(c["residual_multiplier"]),
              "logit_scale": float(c["logits_scaling"]), "rope.scaling.finetuned": c.get("position_embedding_type") == "rope"}
    return s | feed_forward(c, layers)


def feed_forward(c, layers):
    kind = c["model_type"]
    if kind == "granitemoehybrid":
        experts = c.get("num_local_experts", 8)
        return {"feed_forward_length": c["intermediate_size" if experts else "shared_intermediate_size"], "expert_count": experts,
                "expert_used_count": c["num_experts_per_tok"] if experts else 0,
                "expert_shared_feed_forward_length": c["shared_intermediate_size"]}
    if kind == "qwen3_5_moe_text":
        return {"expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"],
                "expert_feed_forward_length": c["moe_intermediate_size"],
                "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"]}
    if kind == "lfm2_moe":
        return {"feed_forward_length": c["intermediate_size"], "leading_dense_block_count": c["num_dense_layers"],
                "expert_count": c["num_experts"], "expert_used_count": c["num_experts_per_tok"],
                "expert_feed_forward_length": c["moe_intermediate_size"], "expert_gating_func": 2}
    if kind != "nemotron_h":
        return {"feed_forward_length": c.get("block_ff_dim") or c["intermediate_size"]}
    s = {"feed_forward_length": [c["moe_intermediate_size"] if layer == "moe" else 0 for layer in layers],
         "expert_count": c["n_routed_experts"], "expert_used_count": c["num_experts_per_tok"], "expert_group_count": c["n_group"],
         "expert_feed_forward_length": c["moe_intermediate_size"], "expert_shared_count": 1,
         "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"], "expert_weights_norm": c["norm_topk_prob"],
         "expert_weights_scale": float(c["routed_scaling_factor"]), "expert_group_used_count": c["topk_group"]}
    return s | ({"moe_latent_size": c["moe_latent_size"]} if c.get("moe_latent_size") else {})


# --- What the converter changes

def permuted(w, heads):
    """Rows 2i and 2i + 1 of a head from i and i + half."""
    return w.reshape(heads, 2, len(w) // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def tiled(w, c, size, axis=0):
    """Value heads of `size` rows: those of a key head side by side become one of each key head side by side."""
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
    moved = np.moveaxis(w, axis, 0)
    moved = moved.reshape(keys, values // keys, size, *moved.shape[1:]).swapaxes(0, 1).reshape(moved.shape)
    return np.moveaxis(moved, 0, axis)


def falcon(name, w, c):
    gate, down = c["mlp_multipliers"]
    inner, groups = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    sizes = (inner, inner, groups, groups, c["mamba_n_heads"])
    by = {"ffn_down.weight": down, "ffn_gate.weight": gate, "attn_k.weight": c["key_multiplier"] * c["attention_in_multiplier"],
          "attn_q.weight": c["attention_in_multiplier"], "attn_v.weight": c["attention_in_multiplier"],
          "attn_output.weight": c["attention_out_multiplier"], "ssm_out.weight": c["ssm_out_multiplier"],
          "output.weight": c["lm_head_multiplier"], "token_embd.weight": c["embedding_multiplier"],
          "ssm_in.weight": c["ssm_in_multiplier"] * np.repeat(c["ssm_multipliers"], sizes)[:, None]}
    return w * by.get(name, 1)


def qwen(name, w, c):
    size, queries = c["linear_value_head_dim"], 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
    if name.endswith("norm.weight") and name != "ssm_norm.weight":
        return w + 1
    if name in ("attn_qkv.weight", "ssm_conv1d.weight"):
        return np.concatenate([w[:queries], tiled(w[queries:], c, size)])
    if name in ("ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"):
        return tiled(w, c, 1)
    if name in ("attn_gate.weight", "ssm_out.weight"):
        return tiled(w, c, size, axis=int(name == "ssm_out.weight"))
    return w.reshape(-1) if name == "ffn_gate_inp_shexp.weight" else w


def changed(name, w, c):
    kind = c["model_type"]
    if name == "ssm_a":
        w = -np.exp(w)
    if name.endswith("conv1d.weight") or name == "shortconv.conv.weight":
        w = w.reshape(len(w), -1)
    if kind.startswith("qwen"):
        return qwen(name, w, c)
    if name in ("ssm_a", "ssm_d"):
        w = w.reshape(-1, 1)
    if name == "ssm_norm.weight":
        w = w.reshape(c.get("mamba_n_groups") or c["n_groups"], -1)
    if kind in ("granitemoehybrid", "nemotron_h") and name.startswith(("attn_q.", "attn_k.")):
        w = permuted(w, c["num_attention_heads" if name.startswith("attn_q") else "num_key_value_heads"])
    return falcon(name, w, c) if kind == "falcon_h1" else w


def tensors(c, values, blocks):
    """{name in GGUF: float32 array}. `blocks`: layers without those of multi-token prediction."""
    _, outside, inside = KINDS[c["model_type"]]
    found, experts = {}, {}
    moe = any("experts" in name or "block_sparse_moe" in name for name in values)
    for name, w in values.items():
        if name.startswith("model.visual.") or (name == "lm_head.weight" and c.get("tie_word_embeddings")):
            continue
        if name.startswith("mtp."):  # its names and numbers do not matter
            found[f"blk.{blocks}.nextn.{len(found)}.weight"] = w
            continue
        name = name.removeprefix("model.language_model.").removeprefix("model.").removeprefix("backbone.")
        if not name.startswith("layers."):
            theirs = "output.weight" if name == "lm_head.weight" else outside[name]
            found[theirs] = changed(theirs, w, c)
            continue
        _, layer, name = name.split(".", 2)
        parts = name.split(".")
        if "experts" in parts and parts[parts.index("experts") + 1].isdigit():
            part = {"w1": "gate", "w3": "up", "w2": "down"}.get(parts[-2], parts[-2].removesuffix("_proj"))
            experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(parts[-3])] = w
            continue
        if len(parts) > 2 and parts[-2] == "experts":  # of all experts
            name = name if name in inside else f"{name}.weight"
        theirs = inside[name] if name in inside else f"ffn_{parts[-1].removesuffix('_proj')}_exps.weight"
        if theirs.startswith("gate_up"):
            suffix = "_exps" if theirs.endswith("exps") else "_shexp" if moe else ""
            for part, half in zip(("gate", "up"), np.split(w, 2, axis=-2)):
                found[f"blk.{layer}.ffn_{part}{suffix}.weight"] = half
            continue
        if moe and name == "shared_mlp.output_linear.weight":
            theirs = "ffn_down_shexp.weight"
        found[f"blk.{layer}.{theirs}"] = changed(theirs, w, c)
    found |= {name: np.stack([of[i] for i in range(len(of))]) for name, of in experts.items()}
    return {name: np.ascontiguousarray(w, np.float32) for name, w in found.items()}


def write(directory, to):
    """False if the converter cannot write the model."""
    config = json.loads((directory / "config.json").read_text())
    c = dict(config.get("text_config") or config)
    c["tie_word_embeddings"] = config.get("tie_word_embeddings", c.get("tie_embedding", c["model_type"].startswith("lfm2")))
    # The converter drops the scale of the router, and whether its weights are divided by their sum.
    lost = c["model_type"] == "lfm2_moe" and (c.get("routed_scaling_factor", 1), c.get("norm_topk_prob", True)) != (1, True)
    if c["model_type"] not in KINDS or lost:
        return False
    values = read_weights(directory)
    extra = int(any(name.startswith("mtp.") for name in values))
    to.mkdir()
    arch = KINDS[c["model_type"]][0]
    writer = gguf.GGUFWriter(to / "model.gguf", arch)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in settings(c, extra).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](f"{arch}.{key}", value)
    for name, w in tensors(c, values, len(layer_kinds(c))).items():
        writer.add_tensor(name, w)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shutil.copy(directory / "golden.json", to / "golden.json")
    return True


def main():
    program, *folders = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        written = [directory.name for folder in folders for directory in sorted(pathlib.Path(folder).iterdir())
                   if (directory / "config.json").exists() and write(directory, pathlib.Path(temporary) / f"as-gguf-{directory.name}")]
        print(f"{len(written)} models: {', '.join(written)}", flush=True)
        tests = "*OutputsAndLikelihoodMatchFloat64/other_as_gguf_*:*TheCutIntoRuns*/other_as_gguf_*"
        return 0 if len(written) > 5 and subprocess.run(
            [program, f"--gtest_filter={tests}"], env=os.environ | {"RIVULET_FAMILY_DIR": temporary}, check=False).returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
