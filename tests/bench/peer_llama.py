#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""RWKV-7 0.4B, Mamba-2 130m and two hybrids on the CPU, compared with llama.cpp: one stream, 32 streams, the first token of a prompt.
And mixtures of experts of 7 and 8 billion weights (random_gguf.py), whose files are written as blocks: types q4_k_m and q8_0, ours
q4_k_m, int8 (the file q8_0) and int4 (of the file q8_0).

The peer is llama.cpp from the source distribution of the PyPI package llama-cpp-python, built for this processor:
    pip download --no-binary :all: --no-deps llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B BUILD -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \\
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_SERVER=OFF
    ninja -C BUILD llama-batched-bench llama-quantize
Without AVX-512, for --target AVX2: -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=OFF.
Then, with an interpreter that has torch, transformers, safetensors, gguf and numpy (llama.cpp's converter needs them):
    peer_llama.py --source llama_cpp_python-*/vendor/llama.cpp --peer BUILD/bin/llama-batched-bench \\
        --bench build/release/bin/bench_step --work DIR [--models rwkv7-0.4b,mamba2-130m] [--types f16,q8_0,q4_k_m,q4_0] \\
        [--own f16,int8,int4] [--target AVX2] [--contexts 2048,8192] [--prompt 512] [--rounds 5] [--json FILE]
    peer_llama.py --work DIR --models rwkv7-1.5b --make-only

DIR gets a directory and a GGUF file of each type a model (2.5 GB with F16 alone; the 1.5B alone 3 GB) and keeps them for the next
run. Weights are random, in F16; the converter writes the matrices in F16 too, and llama-quantize makes the other types of that
file. Each round runs, for every model in turn, every type of the peer and then our bench_step with every type of ours, with as
many threads as there are cores. The peer decodes without drawing a token; our step draws one for each row.

Printed: medians of the rounds, smallest to largest, and medians of the ratios of each round. MB: the peer's file, our weights in
memory. "limit" of one stream: the rate at which F16 products of one row read RWKV-7 0.4B, over what a token reads (matrices once,
of experts the chosen ones; its state read and written); of 32 streams: the model's matrix products alone, and these and then the
states. --contexts are measured with the first type of each side.
"""
import argparse
import json
import math
import os
import pathlib
import re
import statistics
import struct
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "conformance"))
import random_gguf  # noqa: E402
from make_family import MAMBA2, RANGES, RWKV7, all_shapes  # noqa: E402

STREAMS = 32


def rwkv7(hidden, layers, decay, value, gate):
    return RWKV7 | {
        "dtype": "float16", "hidden_size": hidden, "num_hidden_layers": layers, "num_heads": hidden // 64, "head_dim": 64,
        "hidden_ratio": 4, "intermediate_size": 4 * hidden, "vocab_size": 65536, "norm_eps": 1e-5, "value_dim": [hidden] * layers,
        "decay_low_rank_dim": decay, "a_low_rank_dim": decay, "v_low_rank_dim": value, "gate_low_rank_dim": gate}


MODELS = {
    "rwkv7-0.4b": rwkv7(1024, 24, 64, 32, 128),
    "rwkv7-1.5b": rwkv7(2048, 24, 96, 64, 256),
    "mamba2-130m": MAMBA2 | {
        "dtype": "float16", "hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24, "head_dim": 64, "state_size": 128,
        "n_groups": 1, "layer_norm_epsilon": 1e-5, "vocab_size": 50288, "tie_word_embeddings": True, "chunk_size": 256,
        "time_step_limit": [0.0, math.inf]},
    # The shapes of Qwen3.5 0.8B and Granite 4.0 H 350M.
    "qwen3.5-0.8b": {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "float16", "hidden_size": 1024,
        "num_hidden_layers": 24, "layer_types": (3 * ["linear_attention"] + ["full_attention"]) * 6, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "intermediate_size": 3584, "vocab_size": 248320, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "max_position_embeddings": 262144, "tie_word_embeddings": True, "full_attention_interval": 4,
        "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}},
    "granite-4.0-h-350m": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "dtype": "float16", "hidden_size": 768,
        "num_hidden_layers": 32, "layer_types": ["attention" if i in (10, 13, 17, 27) else "mamba" for i in range(32)],
        "num_attention_heads": 12, "num_key_value_heads": 4, "mamba_n_heads": 48, "mamba_d_head": 32, "mamba_d_state": 128,
        "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2, "shared_intermediate_size": 2048, "intermediate_size": 2048, "num_local_experts": 0,
        "position_embedding_type": "nope", "attention_multiplier": 0.015625, "embedding_multiplier": 12, "residual_multiplier": 0.246,
        "logits_scaling": 3, "vocab_size": 100352, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "tie_word_embeddings": True},
}


def under(prefix, shapes):
    return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


def hybrid_shapes(c):
    """Tensors of a hybrid: Qwen3.5 or Granite 4.0 H, with a tied head."""
    hidden, granite, shapes = c["hidden_size"], c["model_type"] == "granitemoehybrid", {}
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    dim, parts, norm = (hidden // heads, 1, {}) if granite else (c["head_dim"], 2, {"q_norm.weight": (c["head_dim"],), "k_norm.weight": (c["head_dim"],)})
    attention = norm | {"q_proj.weight": (parts * heads * dim, hidden), "k_proj.weight": (kv * dim, hidden),
                        "v_proj.weight": (kv * dim, hidden), "o_proj.weight": (hidden, heads * dim)}
    if granite:
        heads, values, state = c["mamba_n_heads"], c["mamba_expand"] * hidden, c["mamba_n_groups"] * c["mamba_d_state"]
        name, ffn, channels = "mamba", c["shared_intermediate_size"], values + 2 * state
        mixer = {"in_proj.weight": (values + channels + heads, hidden), "conv1d.bias": (channels,), "D": (heads,), "norm.weight": (values,)}
        mlp = under("shared_mlp", {"input_linear.weight": (2 * ffn, hidden), "output_linear.weight": (hidden, ffn)})
    else:
        heads, dim, ffn = c["linear_num_value_heads"], c["linear_value_head_dim"], c["intermediate_size"]
        name, values, channels = "linear_attn", heads * dim, 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + heads * dim
        mixer = {"in_proj_qkv.weight": (channels, hidden), "in_proj_z.weight": (values, hidden), "norm.weight": (dim,),
                 "in_proj_a.weight": (heads, hidden), "in_proj_b.weight": (heads, hidden)}
        mlp = under("mlp", {f"{part}_proj.weight": (ffn, hidden) for part in ("gate", "up")} | {"down_proj.weight": (hidden, ffn)})
    mixer |= {"conv1d.weight": (channels, 1, 4), "A_log": (heads,), "dt_bias": (heads,), "out_proj.weight": (hidden, values)}
    norms = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    for i, kind in enumerate(c["layer_types"]):
        own = under("self_attn", attention) if kind in ("attention", "full_attention") else under(name, mixer)
        shapes |= under(f"model.layers.{i}", norms | own | mlp)
    return {"model.embed_tokens.weight": (c["vocab_size"], hidden)} | shapes | {"model.norm.weight": (hidden,)}


def is_hybrid(config):
    return "layer_types" in config


def draw(rng, name, shape):
    """Uniform. Matrices keep the size of what they multiply."""
    if len(shape) == 2 and name.endswith(".weight") and "embed" not in name:
        low, high = -math.sqrt(3 / shape[1]), math.sqrt(3 / shape[1])
    else:
        low, high = next((low, high) for pattern, low, high in RANGES if re.search(pattern, name.replace("embed_tokens", "embeddings")))
    return rng.uniform(low, high, size=shape).astype("<f2")


def make_directory(directory, config):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    if config["model_type"] == "rwkv7":  # The converter asks for a vocabulary: single bytes, the rest it makes up.
        lines = [f"{i + 1} {bytes([i])!r} 1\n" for i in range(256)]
        (directory / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    shapes, header, at = hybrid_shapes(config) if is_hybrid(config) else all_shapes(config), {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(1)
    part = directory / "model.part"  # renamed once it is complete
    with open(part, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            file.write(draw(rng, name, shape).tobytes())
    part.rename(directory / "model.safetensors")


def gguf_of(args, name, kind):
    """A mixture of experts has no F16: its int8 is the blocks of Q8_0, and its int4 is made of them at load."""
    if name in random_gguf.SHAPES:
        kind = {"int8": "q8_0", "int4": "q8_0"}.get(kind, kind)
    return args.work / (f"{name}.gguf" if kind == "f16" else f"{name}.{kind}.gguf")


def convert(args, name, kind):
    gguf = gguf_of(args, name, kind)
    part = gguf.with_suffix(".part")
    if kind == "f16":
        command = [sys.executable, args.source.resolve() / "convert_hf_to_gguf.py", args.work / name, "--outtype", "f16", "--outfile", part]
        if is_hybrid(MODELS[name]):  # The converter takes no tokenizer that it does not know: the file gets none.
            command[1:2] = ["-c", f"import runpy, sys; sys.path.insert(0, {str(command[1].parent)!r}); sys.argv[0] = {str(command[1])!r}; "
                            "import conversion.base as b, conversion.granite as g; none = g.GraniteHybridModel.set_vocab = b.TextModel._set_vocab_none; "
                            "b.TextModel.set_vocab = lambda self: (none(self), self.gguf_writer.add_vocab_size(self.hparams['vocab_size'])); runpy.run_path(sys.argv[0], run_name='__main__')"]
            command += [] if MODELS[name]["model_type"] == "granitemoehybrid" else ["--no-mtp"]
    else:
        command = [args.peer.with_name("llama-quantize"), gguf_of(args, name, "f16"), part, kind]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    part.rename(gguf)


def output_of(command):
    """What the command prints to stdout and stderr. Ends this program where it fails."""
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{command[0]} ended with code {run.returncode}: {(run.stdout + run.stderr)[-2000:]}")
    return run.stdout, run.stderr


def peer_run(args, gguf, streams, prompts, tokens):
    """(Seconds of the prompt, tokens/s of decoding behind it) for each length of a prompt."""
    threads = str(args.threads)
    command = [args.peer, "-m", gguf, "-c", str(max(4096, streams * (max(prompts) + tokens))), "-t", threads, "-tb", threads,
               "-npl", str(streams), "-npp", ",".join(map(str, prompts)), "-ntg", str(tokens), "--output-format", "jsonl"]
    text = "".join(output_of(command))
    rows = [json.loads(line[line.index("{"):]) for line in text.splitlines() if '"speed_tg"' in line]
    if [row["pp"] for row in rows] != prompts:
        sys.exit(f"{args.peer} printed no line with speed_tg for each of {prompts}: {text[-2000:]}")
    return [(row["t_pp"], row["speed_tg"]) for row in rows]


def measure_peer(args, name, kind):
    gguf, contexts = gguf_of(args, name, kind), args.contexts if kind == args.types[0] else []
    (_, one), (first, _), *behind = peer_run(args, gguf, 1, [16, args.prompt, *contexts], 32)
    (_, many), = peer_run(args, gguf, STREAMS, [4], 16)
    at = {f"one_at_{n}": rate for n, (_, rate) in zip(contexts, behind)}
    return {"bytes": gguf.stat().st_size, "one": one, "many": many, "prompt": args.prompt / first} | at


def rate_of_f16(args):
    """Bytes/s that products of one row read. The model is made once."""
    command = [args.bench, "--model=rwkv7-0.4b", f"--keep={args.work / 'bench'}", "--weights=f16", "--rows=1", "--prompt=0", "--benchmark_filter=BM_MatrixProducts",
               "--benchmark_format=json", *([f"--target={args.target}"] if args.target else [])]
    row, = json.loads(output_of(command)[0])["benchmarks"]
    return row["bytes"] * row["tok/s"]


def measure_own(args, name, kind):
    experts = name in random_gguf.SHAPES
    command = [args.bench, f"--model={gguf_of(args, name, kind) if experts else args.work / name}", "--benchmark_format=json", "--benchmark_min_time=1"]
    command += [] if kind == "f16" or (experts and kind != "int4") else [f"--weights={kind}"]
    command += [f"--target={args.target}"] if args.target else []
    at, f16 = {}, rate_of_f16(args)
    for n in args.contexts if kind == args.own[0] else []:
        behind = [*command, f"--context={n}", "--rows=1", "--prompt=0", "--benchmark_filter=BM_Step"]
        at[f"one_at_{n}"] = json.loads(output_of(behind)[0])["benchmarks"][0]["tok/s"]
    results = json.loads(output_of([*command, f"--prompt={args.prompt}"])[0])["benchmarks"]
    rows = {re.sub("(/iterations:[0-9]+)?/real_time$", "", row["name"]): row for row in results}

    def of(name, rows_at_once):
        return rows[f"{name}/rows:{rows_at_once}/threads:{args.threads}"]

    step, products = of("BM_Step", 1), of("BM_MatrixProducts", STREAMS)
    memory, update = (rows[f"BM_{what}Memory/threads:{args.threads}"]["GB/s"] for what in ("Read", "Update"))
    read = products["bytes"] + 2 * step["state_bytes"]
    peak = rows[f"BM_MultiplyAddPeak/threads:{args.threads}"]["GFLOP/s"]
    return at | {"bytes": step["weight_bytes"], "one": step["tok/s"], "many": of("BM_Step", STREAMS)["tok/s"],
            "prompt": args.prompt / (rows[f"BM_FirstToken/{args.prompt}/threads:{args.threads}"]["real_time"] / 1e3), "memory": memory,
            "update": update, "peak": peak, "products_rate": products["GFLOP/s"], "f16": f16 / 1e9, "limit_one": f16 / read,
            "limit_many": products["tok/s"],
            "limit_both": 1 / (1 / products["tok/s"] + 2 * step["state_bytes"] / (update * 1e9)),
            "products_one": of("BM_MatrixProducts", 1)["tok/s"]}


def columns_of(args):
    at = {f"one_at_{n}": f"1 stream behind {n} tokens" for n in args.contexts}
    return {"one": "1 stream, tok/s"} | at | {"many": f"{STREAMS} streams, tok/s", "prompt": f"prompt of {args.prompt}, tok/s"}


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def cells(columns, digits, value, *sides):
    """A cell for each column: of value(column, one figure of each side) over the rounds. Empty where a side has no such figure."""
    return " | ".join(spread([value(key, *each) for each in zip(*sides)], digits) if all(key in side[0] for side in sides) else ""
                      for key in columns)


def report(name, rounds, columns):
    """One table: every type of both sides, then the ratios of ours to theirs."""
    own, peer = ({kind: [each[side][kind] for each in rounds] for kind in rounds[0][side]} for side in ("own", "peer"))
    print(f"\n{name}: medians of {len(rounds)} rounds (smallest to largest)\n\n| | MB | {' | '.join(columns.values())} |\n"
          f"|{' --- |' * (2 + len(columns))}")
    for side, kinds in (("Rivulet", own), ("llama.cpp", peer)):
        for kind, figures in kinds.items():
            text = cells(columns, 1, lambda key, each: each[key], figures)
            print(f"| {side} {kind} | {figures[0]['bytes'] / 1e6:.0f} | {text} |")
    for ours, figures in own.items():
        for theirs, others in peer.items():
            text = cells(columns, 2, lambda key, mine, other: mine[key] / other[key], figures, others)
            print(f"| {ours} / {theirs} | {figures[0]['bytes'] / others[0]['bytes']:.2f} | {text} |")
    print()
    for kind, figures in own.items():
        def middle(function):
            return statistics.median(function(each) for each in figures)

        print(f"limits of {kind}: memory {middle(lambda f: f['memory']):.1f} GB/s read, {middle(lambda f: f['update']):.1f} GB/s "
              f"updated, {middle(lambda f: f['f16']):.1f} by F16 products; multiply-adds {middle(lambda f: f['peak']):.0f} GFLOP/s, products of {STREAMS} rows "
              f"{100 * middle(lambda f: f['products_rate'] / f['peak']):.0f} % of them; 1 stream "
              f"{100 * middle(lambda f: f['one'] / f['limit_one']):.0f} % of the limit, products alone "
              f"{middle(lambda f: f['products_one']):.1f} tok/s; {STREAMS} streams {100 * middle(lambda f: f['many'] / f['limit_many']):.0f} % "
              f"of the products, {100 * middle(lambda f: f['many'] / f['limit_both']):.0f} % of products and then states", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="where the models are made")
    parser.add_argument("--models", default="rwkv7-0.4b,mamba2-130m", help=", ".join([*MODELS, *random_gguf.SHAPES]))
    parser.add_argument("--source", type=pathlib.Path, help="llama.cpp's sources, with convert_hf_to_gguf.py")
    parser.add_argument("--peer", type=pathlib.Path, help="its llama-batched-bench, beside its llama-quantize")
    parser.add_argument("--types", default="f16", help="the peer's: f16, and what llama-quantize knows, such as q8_0, q4_k_m, q4_0")
    parser.add_argument("--own", default="f16", help="our types: f16, and what bench_step --weights= knows")
    parser.add_argument("--target", help="our instruction set, such as AVX2; by default the best")
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "build/release/bin/bench_step")
    parser.add_argument("--contexts", default="", help="one stream behind so many tokens, too, of the first type: 2048,8192")
    parser.add_argument("--prompt", type=int, default=512, help="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="gets every figure of every round")
    parser.add_argument("--make-only", action="store_true", help="write the directories, measure nothing")
    args = parser.parse_args()
    names = args.models.split(",")
    known = [*MODELS, *random_gguf.SHAPES]
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"--models: {unknown[0]!r} is none of {', '.join(known)}")
    if not args.make_only and (args.source is None or args.peer is None):
        parser.error("--source and --peer are needed, unless --make-only")
    args.contexts = [int(n) for n in args.contexts.split(",") if n]
    args.threads = len(os.sched_getaffinity(0))
    args.types, args.own = args.types.split(","), args.own.split(",")
    for name in names:
        if name in random_gguf.SHAPES:
            for path in {gguf_of(args, name, kind) for kind in (*args.types, *args.own)}:
                if not path.exists():
                    random_gguf.write(path, name, path.suffixes[-2][1:])
            continue
        if not (args.work / name / "model.safetensors").exists():
            make_directory(args.work / name, MODELS[name])
        for kind in [] if args.make_only else dict.fromkeys(["f16", *args.types]):  # F16 first: the others are made of it
            if not gguf_of(args, name, kind).exists():
                convert(args, name, kind)
    rounds = {name: [] for name in names}
    for i in range(0 if args.make_only else args.rounds):
        for name in names:
            rounds[name].append({"peer": {kind: measure_peer(args, name, kind) for kind in args.types},
                                 "own": {kind: measure_own(args, name, kind) for kind in args.own}})
            print(f"round {i + 1}, {name}:", json.dumps(rounds[name][-1]), file=sys.stderr)
    for name in names:
        if rounds[name]:
            report(name, rounds[name], columns_of(args))
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
