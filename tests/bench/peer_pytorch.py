#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer: one generation step of model/zoo/mnist-linear in pytorch-fast-transformers, with its real weights.

Needs torch, numpy and the sources of pytorch-fast-transformers (its recurrent modules are pure Python; the compiled ones
are replaced by empty modules, nothing is built):
    peer_pytorch.py --sources DIR_WITH_fast_transformers [--rows 1,8,64,256] [--threads 1,2] [--seconds 2] [--device cuda]
Prints one JSON line a setting: rows, threads, microseconds a step (median), tokens/s. A step is embedding, recurrent encoder,
head and the draw from the mixture, as in the paper's generation loop. On CUDA: eager and as a CUDA graph, float32 and TF32.
"""
import argparse
import importlib.machinery
import json
import pathlib
import statistics
import struct
import sys
import time
import types

import torch

MODEL = pathlib.Path(__file__).resolve().parents[2] / "model" / "zoo" / "mnist-linear"


class CompiledStub:
    """Stands in for the compiled extension modules, which the recurrent path never calls."""

    NAMES = ("causal_product_cpu", "causal_product_cuda", "hash_cpu", "hash_cuda", "local_product_cpu",
             "local_product_cuda", "aggregate_cpu", "aggregate_cuda", "cluster_cpu", "cluster_cuda",
             "sparse_product_cpu", "sparse_product_cuda", "clustered_sparse_product_cpu",
             "clustered_sparse_product_cuda")

    def find_spec(self, name, path=None, target=None):
        if name.rsplit(".", 1)[-1] in self.NAMES:
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: None
        return module

    def exec_module(self, module):
        pass


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    dtypes = {"F16": torch.float16, "F32": torch.float32, "BF16": torch.bfloat16}
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + o for o in entry["data_offsets"])
        raw = torch.frombuffer(bytearray(data[begin:end]), dtype=dtypes[entry["dtype"]])
        tensors[name] = raw.reshape(entry["shape"]).float()
    return tensors


class Generator:
    def __init__(self, device):
        from fast_transformers.builders import RecurrentEncoderBuilder

        config = json.loads((MODEL / "config.json").read_text())
        weights = {name: value.to(device) for name, value in read_safetensors(MODEL / "model.safetensors").items()}
        self.encoder = RecurrentEncoderBuilder.from_kwargs(
            attention_type="linear", n_layers=config["num_layers"], n_heads=config["num_heads"],
            feed_forward_dimensions=config["ffn_size"], query_dimensions=config["key_dim"],
            value_dimensions=config["value_dim"], activation=config["activation"], final_normalization=True,
        ).get().eval().to(device)
        prefix = "transformer."
        own = {k[len(prefix):]: v for k, v in weights.items() if k.startswith(prefix)}
        missing, unexpected = self.encoder.load_state_dict(own, strict=False)
        assert not unexpected and not missing, (missing, unexpected)
        self.embedding = weights["embedding.weight"]
        self.position = weights["position.weight"]
        self.head = weights["predictor.weight"], weights["predictor.bias"]
        self.bos = config["bos_token_id"]
        self.mixtures = config["output"]["num_mixtures"]

    def step(self, tokens, position, state):
        x = self.embedding[tokens] + self.position[position]
        y, state = self.encoder(x, state)
        out = torch.nn.functional.linear(y, *self.head)
        logits, means, scales = out.split(self.mixtures, dim=1)
        race = logits.softmax(1) / torch.empty_like(logits).exponential_()  # a categorical draw that a graph can hold
        pick = race.argmax(1, keepdim=True)
        mean, scale = means.gather(1, pick)[:, 0], scales.gather(1, pick)[:, 0].clamp(min=-7).exp()
        u = torch.empty_like(mean).uniform_(1e-5, 1 - 1e-5)
        value = (mean + scale * (torch.log(u) - torch.log1p(-u))).clamp(-1, 1)
        return torch.round((value + 1) / 2 * 255).long(), state


def measure_cpu(generator, rows, seconds):
    """Seconds of a step."""
    tokens, state, times = torch.full((rows,), generator.bos), None, []
    end = time.perf_counter() + seconds
    for position in range(784):
        begin = time.perf_counter()
        tokens, state = generator.step(tokens, position, state)
        times.append(time.perf_counter() - begin)
        if begin > end:
            break
    return statistics.median(times[3:] or times)


def measure_cuda(generator, rows, seconds, graph):
    """Seconds of a step, as one launch of a CUDA graph where `graph`. States, token and position stay where they are."""
    tokens = torch.full((rows,), generator.bos, device="cuda")
    position = torch.zeros(1, dtype=torch.long, device="cuda")
    _, state = generator.step(tokens, position, None)

    def step():
        drawn, _ = generator.step(tokens, position, state)  # updates `state` in place
        tokens.copy_(drawn)
        position.add_(1).remainder_(784)

    launch = step
    if graph:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        launch = captured.replay
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(8):
            launch()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / 8)
    return statistics.median(times)


def settings(args):
    """What is measured: words for the report, and a function of rows to seconds a step."""
    generator = Generator(args.device)
    if args.device == "cpu":
        for threads in map(int, args.threads.split(",")):
            torch.set_num_threads(threads)
            yield {"threads": threads}, lambda rows: measure_cpu(generator, rows, args.seconds)
        return
    for tf32 in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for graph in (False, True):
            words = {"matrices": "tf32" if tf32 else "f32", "graph": graph}
            yield words, lambda rows, graph=graph: measure_cuda(generator, rows, args.seconds, graph)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", required=True)
    parser.add_argument("--rows", default="1,8,64,256")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device", file=sys.stderr)
        sys.exit(77)
    sys.meta_path.insert(0, CompiledStub())
    sys.path.insert(0, args.sources)
    with torch.inference_mode():
        for words, measure in settings(args):
            for rows in map(int, args.rows.split(",")):
                seconds = measure(rows)
                print(json.dumps({"rows": rows, **words, "us": round(seconds * 1e6, 1),
                                  "tokens_per_second": round(rows / seconds)}), flush=True)


if __name__ == "__main__":
    main()
