#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rivals on a GPU, in one process, because the import of PyTorch takes seconds:
    peers.py --step MODEL:MATRICES:ROWS [--step ...] [--seconds N] [--compile]
MODEL is a generation step by hand in PyTorch, in a CUDA graph: mnist-linear or another name in model/zoo, cifar-10, 110m
(peer_graph.py), rwkv7-0.4b, rwkv7-1.5b, mamba2-130m (peer_family.py); or only the recurrence of such a step, or of a prompt, by the
kernels of flash-linear-attention: fla.rwkv7, fla.gated-delta, fla.rwkv7-prompt (peer_fla.py), where ROWS of a prompt are its tokens.
MATRICES are of f16, bf16, tf32, f32; for example --step mnist-linear:f16,tf32:1,64,1024.

Prints one JSON line a setting as it comes: microseconds a step (median over graph launches), tokens/s, and GB/s of weights and states,
each read once and states written once; "error" instead where one failed; "left_out" where N seconds were over before it, or fla is
absent. Ends with 1 where one failed, with 77 where PyTorch or a CUDA device is absent.
    peers.py --check DIR [--check ...]
compares steps in float32 on the CPU with the golden.json of models of both kinds; ends with 1 where they differ.
"""
import argparse
import gc
import itertools
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MATRICES = ("f16", "bf16", "tf32", "f32")
CHECKED = 2e-3  # largest difference of raw outputs that --check allows
LAUNCH_SECONDS = 1.5  # of one setting, at most; but five launches


class Absent(Exception):
    """What a setting needs is not installed."""


def settings_of(text):
    """(model, matrices, rows) for each setting of one --step."""
    try:
        model, matrices, rows = text.split(":")
        found = [(model, one, int(count)) for one in matrices.split(",") for count in rows.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"MODEL:MATRICES:ROWS, not {text!r}") from None
    if not all(one in MATRICES and count > 0 for _, one, count in found):
        raise argparse.ArgumentTypeError(f"matrices are of {', '.join(MATRICES)}, rows above 0; got {text!r}")
    return found


def measure_all(settings, measure, left):
    """Prints a line for each setting: what measure(model, matrices, rows) tells. left(): seconds. Returns 1 where one failed."""
    failed = False
    for model, matrices, rows in settings:
        line = {"model": model, "matrices": matrices, "rows": rows}
        try:
            line |= measure(model, matrices, rows) if left() > 0 else {"left_out": "no time left"}
        except Absent as error:
            line["left_out"] = str(error)
        except Exception as error:  # what PyTorch, Triton and CUDA raise has no common type
            line["error"] = f"{type(error).__name__}: {error}"[:300]
            failed = True
        print(json.dumps(line), flush=True)
    return int(failed)


class Peers:
    """Makes and measures steps; holds the weights of one model at a time."""

    def __init__(self, compiled, steps):
        self.compiled, self.steps = compiled, steps
        self.model, self.make = None, None

    def measure(self, model, matrices, rows):
        import torch

        if model != self.model:
            self.model, self.make = model, None
        gc.collect()  # what is left of a setting that failed, too
        torch.cuda.empty_cache()
        torch.backends.cuda.matmul.allow_tf32 = matrices == "tf32"
        self.make = self.make or maker(model)
        step = self.make(rows, {"f16": torch.float16, "bf16": torch.bfloat16}.get(matrices, torch.float32))
        us = launch_time(step, self.compiled, self.steps)
        return {"compiled": self.compiled, "us": round(us, 1), "gb_per_s": round(step.bytes_per_step() / us / 1e3, 1), **step.figures(us)}


def maker(model):
    """make(rows, type of matrices): a step of the model on the device."""
    if model.startswith("fla."):
        try:
            import peer_fla
        except ImportError as error:
            raise Absent(str(error)) from error
        return peer_fla.maker(model)
    import peer_family
    import peer_graph

    return peer_family.maker(model) or peer_graph.maker(model, ROOT / "model/zoo" / model)


def launch_time(step, compiled, steps):
    """Microseconds of a step: median over the launches of a graph of `steps` steps."""
    import torch

    one = torch.compile(step.step, mode="max-autotune-no-cudagraphs") if compiled else step.step
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            one()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            one()
    times, end = [], time.monotonic() + LAUNCH_SECONDS
    while len(times) < 5 or (len(times) < 60 and time.monotonic() < end):
        step.make_room(steps)
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) * 1000 / steps)
    return statistics.median(times[len(times) // 5 :])


def check(directory):
    """Prints and returns the largest difference of a step's outputs from the golden ones."""
    import peer_family
    import peer_graph

    config, golden = (json.loads((directory / name).read_text()) for name in ("config.json", "golden.json"))
    weights = peer_graph.read_directory(directory)
    kind = peer_family.KINDS.get(config.get("model_type"), peer_graph.Step)
    steps = (kind(config, weights, 1, peer_graph.torch.float32) for _ in golden["sequences"])
    worst = max(map(peer_graph.difference, steps, itertools.repeat(golden), golden["sequences"]))
    print(json.dumps({"model": directory.name, "largest_difference": worst}), flush=True)
    return worst


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="append", type=settings_of, default=[], metavar="MODEL:MATRICES:ROWS")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further setting begins")
    parser.add_argument("--compile", action="store_true", help="torch.compile fuses what lies between the products")
    parser.add_argument("--steps", type=int, default=8, help="in one graph")
    parser.add_argument("--check", action="append", type=pathlib.Path, default=[], metavar="DIR")
    return parser.parse_args()


def main():
    begin, args = time.monotonic(), parse()
    try:
        import torch
    except ImportError as error:
        print(f"skipped: {error}", file=sys.stderr)
        return 77
    with torch.inference_mode():
        if args.check:
            torch.set_num_threads(1)
            return int(max(map(check, args.check)) > CHECKED)
        if not torch.cuda.is_available():
            print("skipped: torch sees no CUDA device", file=sys.stderr)
            return 77
        peers = Peers(args.compile, args.steps)
        settings = itertools.chain.from_iterable(args.step)
        return measure_all(settings, peers.measure, lambda: begin + args.seconds - time.monotonic())


if __name__ == "__main__":
    sys.exit(main())
