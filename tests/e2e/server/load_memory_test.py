# SPDX-License-Identifier: Apache-2.0
"""The most memory that a server takes while it loads a checkpoint: the weights that it keeps, and at most 64 MiB."""

import json
import math
import pathlib
import re
import struct
import subprocess
import tempfile
import unittest

from command import BIN_DIR, SOURCE_DIR

MOST_BESIDE = 64 << 20
HIDDEN, LAYERS, VOCAB, FFN, HEADS = 1024, 3, 65536, 2816, 16  # one tensor of 128 MiB in F16, others of a few


def tensors():
    """Names and shapes of a model of kind gla."""
    shapes = {"model.embeddings.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        layer = {f"attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvgo"}
        layer |= {"attn.gk_proj.0.weight": (16, HIDDEN), "attn.gk_proj.1.weight": (HIDDEN, 16), "attn.gk_proj.1.bias": (HIDDEN,)}
        layer |= {"attn.g_norm_swish_gate.weight": (HIDDEN // HEADS,), "attn_norm.weight": (HIDDEN,), "mlp_norm.weight": (HIDDEN,)}
        layer |= {"mlp.gate_proj.weight": (FFN, HIDDEN), "mlp.up_proj.weight": (FFN, HIDDEN), "mlp.down_proj.weight": (HIDDEN, FFN)}
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def write_checkpoint(directory, dtype):
    """Some 300 MiB in F16, in two files."""
    size, code = {"F16": (2, "e"), "F32": (4, "f")}[dtype]
    values = struct.pack(f"<1021{code}", *((i - 510) / 51100 for i in range(1021))) * 1024
    config = json.loads((SOURCE_DIR / "tests/conformance/family/gla/config.json").read_text())
    config |= {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "intermediate_size": FFN, "num_heads": HEADS}
    config |= {"num_kv_heads": None, "expand_k": 1, "expand_v": 1}
    (directory / "config.json").write_text(json.dumps(config))
    shapes, files = tensors(), {}
    for name in shapes:
        files[name] = "model-00001-of-00002.safetensors" if name == "model.embeddings.weight" else "model-00002-of-00002.safetensors"
    for file in sorted(set(files.values())):
        header, at = {}, 0
        for name in (name for name in shapes if files[name] == file):
            end = at + math.prod(shapes[name]) * size
            header[name], at = {"dtype": dtype, "shape": shapes[name], "data_offsets": [at, end]}, end
        text = json.dumps(header).encode()
        with (directory / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            while at > 0:
                at -= out.write(values[:at])
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


def peak_and_weights(directory, *args):
    """(most resident bytes until the server listened, bytes of its weights)"""
    command = [BIN_DIR / "rivulet-server", "--model", directory, "--listen", "127.0.0.1:0", "--backend", "cpu", *args]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        log = []
        for line in process.stderr:
            log.append(json.loads(line) if line.startswith(b"{") else {"event": line.decode()})
            if log[-1]["event"] == "listening":
                break
        events = {entry["event"]: entry for entry in log}
        if "listening" not in events:
            raise AssertionError(f"the server did not start: {log}")
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) << 10, events["model"]["weight_bytes"]
    finally:
        process.terminate()
        process.communicate(timeout=60)


class LoadMemoryTest(unittest.TestCase):
    def check(self, directory, least_weights, *args):
        peak, weights = peak_and_weights(directory, *args)
        print(f"{' '.join(args)}: peak {peak >> 20} MiB, weights {weights >> 20} MiB", flush=True)
        self.assertGreater(weights, least_weights)
        self.assertGreater(peak, weights, "the weights are in memory")
        self.assertLessEqual(peak - weights, MOST_BESIDE)

    def test_the_type_of_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(pathlib.Path(folder), "F16")
            self.check(folder, 300 << 20)

    def test_another_type_than_that_of_the_file(self):
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(pathlib.Path(folder), "F32")
            self.check(folder, 300 << 20, "--weights", "bf16")

    def test_weights_of_few_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(pathlib.Path(folder), "F16")
            self.check(folder, 140 << 20, "--weights", "int4")


if __name__ == "__main__":
    unittest.main()
