# SPDX-License-Identifier: Apache-2.0
"""The mixtures of experts and Nemotron-H among the directories of make_family.py: settings, and shapes of the tensors."""
import math

MOE = {"bos_token_id": 1, "eos_token_id": 2, "hidden_size": 32, "initializer_range": 0.02, "max_position_embeddings": 2048,
       "output_router_logits": False, "pad_token_id": 0, "transformers_version": "5.24.0", "use_cache": True, "vocab_size": 39}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
ATTENTION = HEADS | {"attention_bias": False, "attention_dropout": 0.0}
NEMOTRON = MOE | ATTENTION | {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "chunk_size": 8, "conv_kernel": 4, "expand": 2, "head_dim": 12,
    "hidden_dropout": 0.0, "intermediate_size": 24, "layer_norm_epsilon": 1e-3, "mamba_head_dim": 8, "mamba_hidden_act": "silu",
    "mamba_num_heads": 4, "mamba_proj_bias": False, "mamba_ssm_cache_dtype": "float32", "mlp_bias": False, "mlp_hidden_act": "relu2", "n_groups": 2,
    "num_logits_to_keep": 1, "rescale_prenorm_residual": True, "residual_in_fp32": False, "sliding_window": None, "ssm_state_size": 6,
    "tie_word_embeddings": False, "time_step_floor": 1e-4, "time_step_max": 0.1, "time_step_min": 0.001, "use_bias": False, "use_conv_bias": True,
    "use_mamba_kernels": True}
# As make_family.DIRECTORIES.
HYBRIDS = {
    "lfm2-moe": (MOE | HEADS | {
        "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "conv_L_cache": 3, "conv_bias": True, "dtype": "bfloat16",
        "intermediate_size": 20, "layer_types": ["conv", "full_attention", "conv"], "moe_intermediate_size": 8, "norm_eps": 1e-3,
        "norm_topk_prob": True, "num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 3, "num_hidden_layers": 3,
        "rope_theta": 10000.0, "routed_scaling_factor": 1.7, "tie_word_embeddings": True, "use_expert_bias": True}, "BF16", False),
    "granite-moe": (MOE | ATTENTION | {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "attention_multiplier": 0.3, "dtype": "float16",
        "embedding_multiplier": 1.5, "hidden_act": "silu", "init_method": "mup", "intermediate_size": 8, "layer_types": ["mamba", "attention"],
        "logits_scaling": 2, "mamba_chunk_size": 8, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_state": 6,
        "mamba_expand": 1, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_proj_bias": False, "normalization_function": "rmsnorm",
        "num_experts_per_tok": 3, "num_hidden_layers": 2, "num_local_experts": 6, "position_embedding_type": "nope", "residual_multiplier": 0.6,
        "rms_norm_eps": 1e-3, "rope_scaling": None, "rope_theta": 10000.0, "router_aux_loss_coef": 1e-4, "shared_intermediate_size": 20,
        "tie_word_embeddings": False}, "F16", False),
    # A model with a vision tower and multi-token prediction, as it is published.
    "qwen35-moe": ({
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "dtype": "bfloat16", "image_token_id": 36, "model_type": "qwen3_5_moe",
        "text_config": MOE | ATTENTION | {
            "attn_output_gate": True, "full_attention_interval": 2, "head_dim": 12, "hidden_act": "silu", "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 6,
            "mamba_ssm_dtype": "float32", "mlp_only_layers": [], "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 8,
            "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "num_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 2,
            "rms_norm_eps": 1e-3, "rope_parameters": {
                "mrope_interleaved": True, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
            "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 20, "tie_word_embeddings": False},
        "tie_word_embeddings": False, "transformers_version": "5.24.0", "video_token_id": 37, "vision_config": {"hidden_size": 16},
        "vision_end_token_id": 35, "vision_start_token_id": 34}, "BF16", False),
    "nemotron-moe": (NEMOTRON | {
        "dtype": "bfloat16", "hybrid_override_pattern": "ME*-E", "mlp_bias": True, "moe_intermediate_size": 8, "moe_latent_size": 12,
        "moe_shared_expert_intermediate_size": 20, "n_group": 2, "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_experts_per_tok": 3, "num_hidden_layers": 5, "routed_scaling_factor": 2.5, "time_step_limit": [0.0, math.inf], "topk_group": 1},
        "BF16", False),
    "nemotron-dense": (NEMOTRON | {
        "dtype": "float32", "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"], "time_step_limit": [0.15, 0.6],
        "use_bias": True, "use_conv_bias": False}, "F32", True),
}


def weights(out, inputs, bias=False):
    return {"weight": (out, inputs)} | ({"bias": (out,)} if bias else {})


def under(prefix, shapes):
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def mamba_shapes(hidden, heads, size, state, groups, width, bias, conv_bias):
    """A mixer: heads of `size` values."""
    inner = heads * size
    channels = inner + 2 * groups * state
    shapes = {"A_log": (heads,), "D": (heads,), "dt_bias": (heads,), "norm.weight": (inner,)}
    shapes |= {"conv1d.weight": (channels, 1, width)} | ({"conv1d.bias": (channels,)} if conv_bias else {})
    return shapes | under("in_proj", weights(inner + channels + heads, hidden, bias)) | under("out_proj", weights(hidden, inner, bias))


def attention_shapes(c, size, out="o_proj", gate=1):
    hidden, values, keys = c["hidden_size"], c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    return {"q_proj.weight": (gate * values, hidden), "k_proj.weight": (keys, hidden), "v_proj.weight": (keys, hidden), f"{out}.weight": (hidden, values)}


def mlp_shapes(inputs, size, names=("gate_proj", "up_proj", "down_proj"), bias=False):
    """The last matrix leads back."""
    *rows, down = names
    shapes = {name: weights(size, inputs, bias) for name in rows} | {down: weights(inputs, size, bias)}
    return {f"{name}.{part}": shape for name, parts in shapes.items() for part, shape in parts.items()}


def lfm2_layer(c, layer):
    hidden, experts, names = c["hidden_size"], c["num_experts"], ("w1", "w3", "w2")
    shapes = {"operator_norm.weight": (hidden,), "ffn_norm.weight": (hidden,)}
    if c["layer_types"][layer] == "conv":
        shapes |= under("conv", {"conv.weight": (hidden, 1, c["conv_L_cache"]), "conv.bias": (hidden,)})
        shapes |= under("conv.in_proj", weights(3 * hidden, hidden, True)) | under("conv.out_proj", weights(hidden, hidden, True))
    else:
        size = hidden // c["num_attention_heads"]
        shapes |= under("self_attn", attention_shapes(c, size, "out_proj") | {"q_layernorm.weight": (size,), "k_layernorm.weight": (size,)})
    if layer < c["num_dense_layers"]:
        return shapes | under("feed_forward", mlp_shapes(hidden, c["intermediate_size"], names))
    shapes |= {"feed_forward.gate.weight": (experts, hidden), "feed_forward.expert_bias": (experts,)}
    for e in range(experts):
        shapes |= under(f"feed_forward.experts.{e}", mlp_shapes(hidden, c["moe_intermediate_size"], names))
    return shapes


def granite_layer(c, layer):
    hidden, experts, size, shared = c["hidden_size"], c["num_local_experts"], c["intermediate_size"], c["shared_intermediate_size"]
    shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    shapes |= {"shared_mlp.input_linear.weight": (2 * shared, hidden), "shared_mlp.output_linear.weight": (hidden, shared)}
    shapes |= under("block_sparse_moe", {"input_linear.weight": (experts, 2 * size, hidden), "output_linear.weight": (experts, hidden, size),
                                         "router.layer.weight": (experts, hidden)})
    if c["layer_types"][layer] == "attention":
        return shapes | under("self_attn", attention_shapes(c, hidden // c["num_attention_heads"]))
    return shapes | under("mamba", mamba_shapes(hidden, c["mamba_n_heads"], c["mamba_d_head"], c["mamba_d_state"], c["mamba_n_groups"],
                                                c["mamba_d_conv"], c["mamba_proj_bias"], c["mamba_conv_bias"]))


def qwen_layer(c, layer):
    hidden, experts, size = c["hidden_size"], c["num_experts"], c["moe_intermediate_size"]
    shapes = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    shapes |= under("mlp", {"experts.gate_up_proj": (experts, 2 * size, hidden), "experts.down_proj": (experts, hidden, size),
                            "gate.weight": (experts, hidden), "shared_expert_gate.weight": (1, hidden)})
    shapes |= under("mlp.shared_expert", mlp_shapes(hidden, c["shared_expert_intermediate_size"]))
    if (layer + 1) % c["full_attention_interval"] == 0:
        size = c["head_dim"]
        return shapes | under("self_attn", attention_shapes(c, size, gate=2) | {"q_norm.weight": (size,), "k_norm.weight": (size,)})
    heads = c["linear_num_value_heads"]
    values = heads * c["linear_value_head_dim"]
    channels = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + values
    return shapes | under("linear_attn", {
        "A_log": (heads,), "dt_bias": (heads,), "conv1d.weight": (channels, 1, c["linear_conv_kernel_dim"]), "in_proj_qkv.weight": (channels, hidden),
        "in_proj_z.weight": (values, hidden), "in_proj_a.weight": (heads, hidden), "in_proj_b.weight": (heads, hidden),
        "norm.weight": (c["linear_value_head_dim"],), "out_proj.weight": (hidden, values)})


def nemotron_layer(c, layer):
    pattern, hidden = c.get("hybrid_override_pattern", "M-*-"), c["hidden_size"]
    names, bias = ("up_proj", "down_proj"), c["mlp_bias"]
    mixer = {}
    if pattern[layer] == "M":
        mixer = mamba_shapes(hidden, c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"], c["n_groups"], c["conv_kernel"], c["use_bias"],
                             c["use_conv_bias"])
    elif pattern[layer] == "*":
        mixer = attention_shapes(c, c["head_dim"])
    elif pattern[layer] == "-":
        mixer = mlp_shapes(hidden, c["intermediate_size"], names, bias)
    else:
        experts, latent = c["n_routed_experts"], c["moe_latent_size"]
        mixer = {"gate.weight": (experts, hidden), "gate.e_score_correction_bias": (experts,)}
        mixer |= under("shared_experts", mlp_shapes(hidden, c["moe_shared_expert_intermediate_size"], names, bias))
        mixer |= under("fc1_latent_proj", weights(latent, hidden, bias)) | under("fc2_latent_proj", weights(hidden, latent, bias))
        for e in range(experts):
            mixer |= under(f"experts.{e}", mlp_shapes(latent, c["moe_intermediate_size"], names))
    return {"norm.weight": (hidden,)} | under("mixer", mixer)


def hybrid_shapes(config):
    """Of all tensors of a directory of HYBRIDS."""
    c = config.get("text_config", config)
    hidden, vocab, nemotron = c["hidden_size"], c["vocab_size"], c["model_type"] == "nemotron_h"
    layer_of = {"lfm2_moe": lfm2_layer, "granitemoehybrid": granite_layer, "qwen3_5_moe_text": qwen_layer, "nemotron_h": nemotron_layer}[c["model_type"]]
    top = "model.language_model" if c is not config else "backbone" if nemotron else "model"
    shapes = {f"{top}.{'embeddings' if nemotron else 'embed_tokens'}.weight": (vocab, hidden)}
    shapes[f"{top}.{'norm_f' if nemotron else 'embedding_norm' if c['model_type'] == 'lfm2_moe' else 'norm'}.weight"] = (hidden,)
    for layer in range(c.get("num_hidden_layers", 4)):
        shapes |= under(f"{top}.layers.{layer}", layer_of(c, layer))
    if c is not config:
        shapes |= {"model.visual.pos_embed.weight": (4, 16), "mtp.fc.weight": (4, 64), "mtp.layers.0.mlp.gate.weight": (6, 32)}
    return shapes if config["tie_word_embeddings"] else shapes | {"lm_head.weight": (vocab, hidden)}
