#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`rivulet score --model DIR` against the libraries that the models come from: transformers (mamba2, hybrids), flash-linear-attention (all kinds)
and the RWKV author's package `rwkv`. Small random models with every parameter perturbed, written by the library's own save_pretrained
(or torch.save), read back by the library in float32 on the CPU. The largest difference in any log-probability must be at most 1e-4.

    forward_test.py              compares all and prints a row of a Markdown table for each model
    forward_test.py NAME...      only "LIBRARY KIND" that begin with one of these, as in "fla GLA"

flash-linear-attention runs in Triton's interpreter, which is slow: sequences are short, and it takes minutes.
"""

import contextlib
import importlib.metadata
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest.mock

os.environ["TRITON_INTERPRET"] = "1"
os.environ |= {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}

from command import rivulet, token_lines
from torch_python import module

try:
    import torch
    import transformers
    import triton.runtime.autotuner

    # The interpreter has no clock; any configuration gives the same numbers.
    triton.runtime.autotuner.Autotuner.do_bench = property(lambda self: lambda *_, **__: [1.0] * 3, lambda self, value: None)
    with contextlib.redirect_stderr(io.StringIO()):  # warns that there is no GPU
        import fla.models
        import rwkv.model
except ImportError as error:
    print(f"skipped: {error}; tests/README.md says what this needs")
    sys.exit(77)

LIMIT = 1e-4  # of a log-probability
torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

# --- (library, class, dtype, settings beside the common ones, tokens); two layers and a vocabulary of 97 where nothing else is said.
COMMON = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 97}
RANKS = {"decay_low_rank_dim": 8, "gate_low_rank_dim": 12, "a_low_rank_dim": 6, "v_low_rank_dim": 4}
MAMBA2 = {"num_heads": 8, "head_dim": 16, "state_size": 16, "chunk_size": 16, "n_groups": 1}
QWEN = {"head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_hidden_layers": 4}
QWEN_DENSE = QWEN | {"intermediate_size": 96}
GRANITE = {"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16,
           "mamba_chunk_size": 16, "shared_intermediate_size": 96, "num_local_experts": 0, "layer_types": ["linear_attention", "full_attention"],
           "embedding_multiplier": 6, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2}
LFM2 = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "full_attention"]}
QWEN_MOE = QWEN | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
GRANITE_MOE = GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32}
LFM2_MOE = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8,
            "num_experts_per_tok": 3, "num_dense_layers": 1, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
# transformers bounds dt by time_step_min, which NVIDIA's code does not.
NEMOTRON = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 96, "mamba_num_heads": 8, "mamba_head_dim": 16,
            "ssm_state_size": 16, "n_groups": 2, "chunk_size": 16, "time_step_min": 1e-6, "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]}
NEMOTRON_MOE = NEMOTRON | {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
                           "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"]}
FALCON = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 96, "mamba_d_ssm": 96, "mamba_n_heads": 6,
          "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16, "key_multiplier": 0.5, "attention_in_multiplier": 1.5,
          "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.7, 1.2, 0.9, 1.1, 0.8],
          "mlp_multipliers": [0.8, 0.7], "lm_head_multiplier": 0.5, "embedding_multiplier": 2.0}
ROUTERS = (".gate.weight", ".router.weight")  # made wide: a near tie would be decided by the rounding of float32
FLA = "fla"
CASES = (
    ("transformers", "Mamba2", "float32", MAMBA2, 150),
    ("transformers", "Mamba2", "float32", MAMBA2 | {"n_groups": 4, "tie_word_embeddings": True, "use_bias": True}, 60),
    ("transformers", "Mamba2", "bfloat16", MAMBA2 | {"expand": 1, "num_heads": 4, "conv_kernel": 3, "use_conv_bias": False, "sharded": True}, 60),
    ("transformers", "Mamba2", "float16", MAMBA2 | {"time_step_limit": (0.05, 0.5), "layer_norm_epsilon": 1e-3, "state_size": 24}, 60),
    ("transformers", "Qwen3_5", "float32", QWEN_DENSE, 150),
    ("transformers", "Qwen3_5", "bfloat16", QWEN_DENSE | {"attention_bias": True, "num_key_value_heads": 4, "tie_word_embeddings": True}, 60),
    ("transformers", "GraniteMoeHybrid", "float32", GRANITE | {"position_embedding_type": "rope"}, 150),
    ("transformers", "GraniteMoeHybrid", "bfloat16",
     GRANITE | {"mamba_proj_bias": True, "attention_bias": True, "mamba_n_groups": 2, "layer_types": ["full_attention", "linear_attention"]}, 60),
    ("transformers", "Lfm2", "float32", LFM2, 150),
    ("transformers", "Lfm2", "float16", LFM2 | {"conv_bias": True, "block_auto_adjust_ff_dim": True, "tie_word_embeddings": False}, 60),
    ("transformers", "FalconH1", "float32", FALCON, 150),
    ("transformers", "FalconH1", "bfloat16",
     FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mlp_bias": True, "attention_bias": True, "projectors_bias": True,
               "mamba_proj_bias": True, "mamba_n_groups": 2}, 60),
    ("transformers", "FalconH1", "float32", FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": True}, 60),
    (FLA, "Mamba2", "float32", {"head_dim": 16, "state_size": 16, "norm_eps": 1e-4}, 60),
    # As many groups as heads: with fewer, its path for the CPU gives a head the B and C of another group than its kernels for GPUs.
    (FLA, "Mamba2", "bfloat16", {"head_dim": 64, "state_size": 16, "n_groups": 2, "num_hidden_layers": 3}, 60),
    (FLA, "LinearAttention", "float32", {"num_heads": 2, "feature_map": "identity"}, 60),
    (FLA, "LinearAttention", "bfloat16", {"num_heads": 4, "feature_map": "identity", "expand_k": 0.5, "expand_v": 2, "norm_eps": 1e-3}, 60),
    (FLA, "RetNet", "float32", {"num_heads": 2}, 60),
    (FLA, "RetNet", "bfloat16", {"num_heads": 4, "expand_k": 0.5, "expand_v": 1, "fuse_norm": False, "hidden_ratio": 4, "sharded": True}, 60),
    (FLA, "GLA", "float32", {"num_heads": 2}, 60),
    (FLA, "GLA", "float16", {"num_heads": 4, "expand_k": 1, "expand_v": 2, "clamp_min": -0.2, "tie_word_embeddings": True, "norm_eps": 1e-3}, 60),
    (FLA, "HGRN2", "float32", {"expand_ratio": 16}, 60),
    (FLA, "HGRN2", "bfloat16", {"expand_ratio": 8, "intermediate_size": 48, "num_hidden_layers": 3, "norm_eps": 1e-3, "sharded": True}, 60),
    (FLA, "DeltaNet", "float32", {"num_heads": 2}, 60),
    (FLA, "DeltaNet", "float16", {"num_heads": 4, "use_gate": True, "conv_size": 3, "allow_neg_eigval": True, "expand_k": 0.5}, 60),
    (FLA, "GatedDeltaNet", "float32", {"num_heads": 2, "head_dim": 16}, 60),
    (FLA, "GatedDeltaNet", "bfloat16", {"num_heads": 3, "head_dim": 16, "expand_v": 1, "use_gate": False, "allow_neg_eigval": True}, 60),
    (FLA, "GatedDeltaNet", "float32", {"num_heads": 2, "head_dim": 24, "conv_size": 2, "tie_word_embeddings": True, "sharded": True}, 60),
    (FLA, "GatedDeltaNet", "float32", {"num_heads": 2, "num_v_heads": 4, "head_dim": 16}, 60),
    (FLA, "KDA", "float32", {"num_heads": 2, "head_dim": 16}, 60),
    (FLA, "KDA", "bfloat16", {"num_heads": 3, "head_dim": 16, "expand_v": 2, "allow_neg_eigval": True, "conv_size": 3}, 60),
    (FLA, "RWKV7", "float32", RANKS | {"head_dim": 32}, 20),
    (FLA, "RWKV7", "bfloat16", RANKS | {"head_dim": 16, "norm_bias": False, "fuse_norm": False, "intermediate_size": 96}, 20),
    (FLA, "RWKV7", "float16", RANKS | {"head_dim": 32, "norm_first": False, "num_hidden_layers": 3, "sharded": True}, 20),
    ("rwkv", "RWKV7", "float32", {"width": 128, "layers": 3, "inside": 160}, 150),
    ("rwkv", "RWKV7", "bfloat16", {"width": 192, "layers": 2, "inside": 768}, 60),
    ("rwkv", "RWKV7", "float16", {"width": 64, "layers": 4, "inside": 224}, 60),
    # Behind the others, whose random numbers are those of their places.
    ("transformers", "Lfm2Moe", "float32", LFM2_MOE | {"routed_scaling_factor": 1.7}, 150),
    ("transformers", "Lfm2Moe", "bfloat16", LFM2_MOE | {"norm_topk_prob": False, "conv_bias": True, "num_dense_layers": 0}, 60),
    ("transformers", "GraniteMoeHybrid", "float32", GRANITE_MOE, 150),
    ("transformers", "GraniteMoeHybrid", "float16", GRANITE_MOE | {"num_local_experts": 9, "num_experts_per_tok": 4, "tie_word_embeddings": True}, 60),
    ("transformers", "Qwen3_5Moe", "float32", QWEN_MOE, 150),
    ("transformers", "Qwen3_5Moe", "bfloat16", QWEN_MOE | {"num_experts_per_tok": 1, "tie_word_embeddings": True}, 60),
    ("transformers", "NemotronH", "float32", NEMOTRON, 150),
    ("transformers", "NemotronH", "float16", NEMOTRON | {"mlp_bias": True, "use_bias": True, "use_conv_bias": False}, 60),
    ("transformers", "NemotronH", "float32", NEMOTRON_MOE | {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}, 150),
    ("transformers", "NemotronH", "bfloat16", NEMOTRON_MOE | {"moe_latent_size": 40, "mlp_bias": True, "norm_topk_prob": False}, 60),
)


def classes(library, kind):
    if library == "transformers":
        # transformers would call fla's kernel for long sequences, which Triton's interpreter cannot run.
        with unittest.mock.patch.dict(sys.modules, {"fla": None}):
            return getattr(transformers, f"{kind}{'Text' if kind.startswith('Qwen3_5') else ''}Config"), getattr(transformers, f"{kind}ForCausalLM")
    return getattr(fla.models, f"{kind}Config"), getattr(fla.models, f"{kind}ForCausalLM")


def saved(library, kind, dtype, settings, folder):
    """Writes the model as save_pretrained does; returns it as from_pretrained reads it, in float32."""
    settings = dict(settings)
    sharded = settings.pop("sharded", False)
    configuration, model = classes(library, kind)
    made = model(configuration(**(COMMON | settings)))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.mul_(1 + 0.2 * torch.randn_like(parameter)).add_(0.05 * torch.randn_like(parameter))
            if name.endswith(ROUTERS):
                parameter.mul_(6)
        for name, buffer in made.named_buffers():
            if name.endswith("_bias"):  # of an expert's choice
                buffer.add_(0.1 * torch.randn_like(buffer))
    made.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size="60KB" if sharded else "5GB")
    if sharded != (folder / "model.safetensors.index.json").exists():
        raise AssertionError(f"{folder}: shards")
    return model.from_pretrained(folder, dtype=torch.float32).eval()


def around(center, spread, *shape):
    return center + spread * torch.randn(shape)


def authors_checkpoint(width, layers, inside, vocabulary=101):
    """The tensors of a .pth of the author of RWKV-7, whose heads are 64 wide."""
    def norm(name):
        return {f"{name}.weight": around(1, 0.2, width), f"{name}.bias": around(0, 0.2, width)}

    tensors = {"emb.weight": around(0, 1, vocabulary, width), "head.weight": around(0, 0.1, vocabulary, width)}
    tensors |= norm("ln_out") | norm("blocks.0.ln0")
    for i in range(layers):
        block = f"blocks.{i}."
        attention = block + "att."
        tensors |= norm(block + "ln1") | norm(block + "ln2") | norm(attention + "ln_x")
        tensors |= {f"{attention}x_{c}": around(0.5, 0.3, 1, 1, width) for c in "rwkvag"}
        tensors |= {f"{attention}{name}.weight": around(0, 0.1, width, width) for name in ("receptance", "key", "value", "output")}
        for c, rank in {"w": 12, "a": 8, "v": 6, "g": 16}.items():  # layer 0 has v too, and nobody reads it
            tensors |= {f"{attention}{c}1": around(0, 0.1, width, rank), f"{attention}{c}2": around(0, 0.3, rank, width)}
            tensors |= {} if c == "g" else {f"{attention}{c}0": around(0, 1, 1, 1, width)}
        tensors |= {attention + "k_k": around(0.8, 0.2, 1, 1, width), attention + "k_a": around(1, 0.2, 1, 1, width)}
        tensors |= {attention + "r_k": around(0, 0.3, width // 64, 64), block + "ffn.x_k": around(0.5, 0.3, 1, 1, width)}
        tensors |= {block + "ffn.key.weight": around(0, 0.1, inside, width), block + "ffn.value.weight": around(0, 0.1, width, inside)}
    return tensors


def converted(dtype, settings, folder, tokens):
    """Log-probabilities of the author's package for a .pth, of which rivulet-convert made `folder`."""
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in authors_checkpoint(**settings).items()}
    path = folder.with_name("model.pth")
    torch.save(tensors, path)
    result = module("convert", path, folder)
    if result.code != 0:
        raise AssertionError(f"rivulet-convert: {result}")
    with contextlib.redirect_stdout(io.StringIO()):
        model = rwkv.model.RWKV(model=str(path.with_suffix("")), strategy="cpu fp32")
    logits, _ = model.forward(tokens, None, full_output=True)
    return torch.log_softmax(logits.double(), -1)


def theirs(library, kind, dtype, settings, folder, tokens):
    """[tokens, vocabulary]"""
    if library == "rwkv":
        return converted(dtype, settings, folder, tokens)
    model = saved(library, kind, dtype, settings, folder)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)


def ours(folder, tokens):
    """[tokens - 1, vocabulary]"""
    places = ",".join(map(str, range(len(tokens) - 1)))
    result = rivulet("score", "--model", folder, "--input", "-", "--outputs", places, stdin=token_lines([tokens]))
    if result.code != 0:
        raise AssertionError(result.err)
    (line,) = result.lines()
    return torch.log_softmax(torch.tensor(line["outputs"], dtype=torch.float64), -1)


def compare(library, kind, dtype, settings, length):
    """The largest difference of a log-probability, and how much the log-probabilities vary."""
    tokens = torch.randint(0, COMMON["vocab_size"], (length,)).tolist()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "model"
        want = theirs(library, kind, dtype, settings, folder, tokens)[:-1]
        found = ours(folder, tokens)
    return (found - want).abs().max().item(), want.std(-1).min().item()


def main():
    packages = {"transformers": "transformers", FLA: "flash-linear-attention", "rwkv": "rwkv"}
    versions = {library: f"{package} {importlib.metadata.version(package)}" for library, package in packages.items()}
    failed = done = 0
    for seed, (library, kind, dtype, settings, length) in enumerate(CASES):
        torch.manual_seed(seed)
        name = f"{library} {kind}"
        if sys.argv[1:] and not any(name.startswith(chosen) for chosen in sys.argv[1:]):
            continue
        difference, spread = compare(library, kind, dtype, settings, length)
        good = difference <= LIMIT and spread > 0.1
        done, failed = done + 1, failed + (not good)
        options = ", ".join(f"{name} {json.dumps(value)}" for name, value in settings.items())
        print(f"| {kind} | {versions[library]} | {dtype} | {options} | {length} | {difference:.1e} |", flush=True)
        if not good:
            print(f"failed: the difference is {difference}, at most {LIMIT}; the log-probabilities vary by {spread:.2g}")
    print(f"{done} models compared, {failed} failed")
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main())
