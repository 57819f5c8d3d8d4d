#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""RWKV-7 0.4B and Mamba-2 130m on the CPU, compared with llama.cpp: one stream, 32 streams, the first token of a prompt.

The peer is llama.cpp from the source distribution of the PyPI package llama-cpp-python, built for this processor:
    pip download --no-binary :all: --no-deps llama-cpp-python && tar xzf llama_cpp_python-*.tar.gz
    cmake -S llama_cpp_python-*/vendor/llama.cpp -B BUILD -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \\
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_SERVER=OFF
    ninja -C BUILD llama-batched-bench
Then, with an interpreter that has torch, transformers, safetensors and numpy (llama.cpp's converter needs them):
    peer_llama.py --source llama_cpp_python-*/vendor/llama.cpp --peer BUILD/bin/llama-batched-bench \\
        --bench build/release/bin/bench_step --work DIR [--models rwkv7-0.4b,mamba2-130m] [--rounds 5] [--json FILE]
    peer_llama.py --work DIR --models rwkv7-1.5b --make-only

DIR gets a directory and a GGUF file a model (2.5 GB in all; the 1.5B alone 3 GB) and keeps them for the next run. Weights are
random, in F16; the converter writes the matrices in F16 too. Each round runs, for every model in turn, the peer and then our
bench_step, with as many threads as there are cores. The peer decodes without drawing a token; our step draws one for each row.

Printed: medians of the rounds, and of the ratios of each round. "limit" of one stream: the rate at which the cores read memory
over what a token reads (matrices once, its state read and written); of 32 streams: the model's matrix products alone.
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
from make_family import MAMBA2, RANGES, RWKV7, all_shapes  # noqa: E402

PROMPT, STREAMS = 512, 32


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
}


def draw(rng, name, shape):
    """Uniform. Matrices keep the size of what they multiply."""
    if len(shape) == 2 and name.endswith(".weight") and "embed" not in name:
        low, high = -math.sqrt(3 / shape[1]), math.sqrt(3 / shape[1])
    else:
        low, high = next((low, high) for pattern, low, high in RANGES if re.search(pattern, name))
    return rng.uniform(low, high, size=shape).astype("<f2")


def make_directory(directory, config):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    if config["model_type"] == "rwkv7":  # The converter asks for a vocabulary: single bytes, the rest it makes up.
        lines = [f"{i + 1} {bytes([i])!r} 1\n" for i in range(256)]
        (directory / "rwkv_vocab_v20230424.txt").write_text("".join(lines))
    shapes, header, at = all_shapes(config), {}, 0
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


def convert(args, directory, gguf):
    part = gguf.with_suffix(".part")
    command = [sys.executable, args.source.resolve() / "convert_hf_to_gguf.py", directory, "--outtype", "f16", "--outfile", part]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    part.rename(gguf)


def output_of(command):
    """What the command prints to stdout and stderr. Ends this program where it fails."""
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{command[0]} ended with code {run.returncode}: {(run.stdout + run.stderr)[-2000:]}")
    return run.stdout, run.stderr


def peer_run(args, gguf, streams, prompt, tokens):
    """Seconds of the prompts, tokens/s of decoding."""
    threads = str(args.threads)
    command = [args.peer, "-m", gguf, "-c", "4096", "-t", threads, "-tb", threads, "-npl", str(streams), "-npp", str(prompt),
               "-ntg", str(tokens), "--output-format", "jsonl"]
    text = "".join(output_of(command))
    line = next((line for line in text.splitlines() if '"speed_tg"' in line), None)
    if line is None:
        sys.exit(f"{args.peer} printed no line with speed_tg: {text[-2000:]}")
    row = json.loads(line[line.index("{"):])
    return row["t_pp"], row["speed_tg"]


def measure_peer(args, gguf):
    first, one = peer_run(args, gguf, 1, PROMPT, 64)
    _, many = peer_run(args, gguf, STREAMS, 4, 16)
    return {"one": one, "many": many, "first": first}


def measure_own(args, directory):
    command = [args.bench, f"--model={directory}", "--benchmark_format=json", "--benchmark_min_time=1"]
    results = json.loads(output_of(command)[0])["benchmarks"]
    rows = {re.sub("(/iterations:[0-9]+)?/real_time$", "", row["name"]): row for row in results}

    def of(name, rows_at_once):
        return rows[f"{name}/rows:{rows_at_once}/threads:{args.threads}"]

    step = of("BM_Step", 1)
    memory, update = (rows[f"BM_{what}Memory/threads:{args.threads}"]["GB/s"] for what in ("Read", "Update"))
    read = of("BM_MatrixProducts", 1)["bytes"] + 2 * step["state_bytes"]
    products = of("BM_MatrixProducts", STREAMS)["tok/s"]
    return {"one": step["tok/s"], "many": of("BM_Step", STREAMS)["tok/s"],
            "first": rows[f"BM_FirstToken/{PROMPT}/threads:{args.threads}"]["real_time"] / 1e3, "memory": memory,
            "update": update, "limit_one": memory * 1e9 / read, "limit_many": products,
            "limit_both": 1 / (1 / products + 2 * step["state_bytes"] / (update * 1e9)),
            "products_one": of("BM_MatrixProducts", 1)["tok/s"]}


def report(name, rounds):
    def middle(function):
        return statistics.median(function(own, peer) for own, peer in rounds)

    print(f"{name}: medians of {len(rounds)} rounds; memory: {middle(lambda own, _: own['memory']):.1f} GB/s read, "
          f"{middle(lambda own, _: own['update']):.1f} GB/s read and written in place")
    for key, title, limit in (("one", "1 stream, tokens/s", "limit_one"), ("many", f"{STREAMS} streams, tokens/s", "limit_many")):
        ratios = [own[key] / peer[key] for own, peer in rounds]
        print(f"  {title}: {middle(lambda own, _: own[key]):.1f}, llama.cpp {middle(lambda _, peer: peer[key]):.1f}, "
              f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
              f"limit {middle(lambda own, _: own[limit]):.1f}, share {100 * middle(lambda own, _: own[key] / own[limit]):.0f} %")
    print(f"  {STREAMS} streams, products and then states: limit {middle(lambda own, _: own['limit_both']):.1f}, "
          f"share {100 * middle(lambda own, _: own['many'] / own['limit_both']):.0f} %")
    print(f"  1 stream, matrix products alone: {middle(lambda own, _: own['products_one']):.1f}")
    ratios = [peer["first"] / own["first"] for own, peer in rounds]
    print(f"  first token of {PROMPT}, s: {middle(lambda own, _: own['first']):.2f}, llama.cpp "
          f"{middle(lambda _, peer: peer['first']):.2f}, ratio {statistics.median(ratios):.2f} "
          f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, required=True, help="where the models are made")
    parser.add_argument("--models", default="rwkv7-0.4b,mamba2-130m", help=", ".join(MODELS))
    parser.add_argument("--source", type=pathlib.Path, help="llama.cpp's sources, with convert_hf_to_gguf.py")
    parser.add_argument("--peer", type=pathlib.Path, help="its llama-batched-bench")
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "build/release/bin/bench_step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="gets every figure of every round")
    parser.add_argument("--make-only", action="store_true", help="write the directories, measure nothing")
    args = parser.parse_args()
    names = args.models.split(",")
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"--models: {unknown[0]!r} is none of {', '.join(MODELS)}")
    if not args.make_only and (args.source is None or args.peer is None):
        parser.error("--source and --peer are needed, unless --make-only")
    args.threads = len(os.sched_getaffinity(0))
    for name in names:
        if not (args.work / name / "model.safetensors").exists():
            make_directory(args.work / name, MODELS[name])
        if not args.make_only and not (args.work / f"{name}.gguf").exists():
            convert(args, args.work / name, args.work / f"{name}.gguf")
    rounds = {name: [] for name in names}
    for i in range(0 if args.make_only else args.rounds):
        for name in names:
            peer = measure_peer(args, args.work / f"{name}.gguf")
            rounds[name].append((measure_own(args, args.work / name), peer))
            print(f"round {i + 1}, {name}: own, llama.cpp:", json.dumps(rounds[name][-1]), file=sys.stderr)
    for name in names:
        if rounds[name]:
            report(name, rounds[name])
    if args.json:
        args.json.write_text(json.dumps(rounds, indent=1))


if __name__ == "__main__":
    main()
