#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The peer: one generation step in pytorch-fast-transformers: of model/zoo/mnist-linear with its real weights, or with --shape gp-molformer
of that shape with random weights, without rotary positions, which the library's encoder does not have.

Needs torch, numpy and the sources of pytorch-fast-transformers (its recurrent modules are pure Python; the compiled ones
are replaced by empty modules, nothing is built):
    peer_pytorch.py --sources DIR_WITH_fast_transformers [--shape gp-molformer] [--rows 1,8,64,256] [--threads 1,2] [--seconds 2]
Prints one JSON line a setting: rows, threads, microseconds a step (median), tokens/s. A step is embedding, recurrent encoder,
head and the draw from the mixture or the softmax, as in the paper's generation loop.
"""
import argparse
import importlib.machinery
import json
import pathlib
import statistics
import sys
import time
import types

import torch

from peer_graph import read_directory

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


class Generator:
    def __init__(self):
        from fast_transformers.builders import RecurrentEncoderBuilder

        config = json.loads((MODEL / "config.json").read_text())
        weights = read_directory(MODEL)
        self.encoder = RecurrentEncoderBuilder.from_kwargs(
            attention_type="linear", n_layers=config["num_layers"], n_heads=config["num_heads"],
            feed_forward_dimensions=config["ffn_size"], query_dimensions=config["key_dim"],
            value_dimensions=config["value_dim"], activation=config["activation"], final_normalization=True,
        ).get().eval()
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
        race = logits.softmax(1) / torch.empty_like(logits).exponential_()
        pick = race.argmax(1, keepdim=True)
        mean, scale = means.gather(1, pick)[:, 0], scales.gather(1, pick)[:, 0].clamp(min=-7).exp()
        u = torch.empty_like(mean).uniform_(1e-5, 1 - 1e-5)
        value = (mean + scale * (torch.log(u) - torch.log1p(-u))).clamp(-1, 1)
        return torch.round((value + 1) / 2 * 255).long(), state


class Molecules:
    def __init__(self):
        from fast_transformers.builders import RecurrentEncoderBuilder
        from fast_transformers.feature_maps import GeneralizedRandomFeatures

        hidden, self.vocab, self.bos = 768, 2362, 0
        self.encoder = RecurrentEncoderBuilder.from_kwargs(
            attention_type="linear", n_layers=12, n_heads=12, feed_forward_dimensions=hidden, query_dimensions=64, value_dimensions=64,
            activation="gelu", final_normalization=True, feature_map=GeneralizedRandomFeatures.factory(n_dims=32, deterministic_eval=True),
        ).get().eval()
        self.embedding = torch.randn(self.vocab, hidden)
        self.transform = torch.nn.Sequential(torch.nn.Linear(hidden, hidden), torch.nn.GELU(), torch.nn.LayerNorm(hidden)).eval()
        self.decoder = torch.nn.Linear(hidden, self.vocab, bias=False).eval()

    def step(self, tokens, position, state):
        y, state = self.encoder(self.embedding[tokens], state)
        return torch.multinomial(self.decoder(self.transform(y)).softmax(1), 1)[:, 0], state


def measure(generator, rows, seconds):
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sources", required=True)
    parser.add_argument("--shape", choices=["mnist-linear", "gp-molformer"], default="mnist-linear")
    parser.add_argument("--rows", default="1,8,64,256")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=2)
    args = parser.parse_args()
    sys.meta_path.insert(0, CompiledStub())
    sys.path.insert(0, args.sources)
    with torch.inference_mode():
        generator = Molecules() if args.shape == "gp-molformer" else Generator()
        for threads in map(int, args.threads.split(",")):
            torch.set_num_threads(threads)
            for rows in map(int, args.rows.split(",")):
                seconds = measure(generator, rows, args.seconds)
                print(json.dumps({"rows": rows, "threads": threads, "us": round(seconds * 1e6, 1),
                                  "tokens_per_second": round(rows / seconds)}), flush=True)


if __name__ == "__main__":
    main()
