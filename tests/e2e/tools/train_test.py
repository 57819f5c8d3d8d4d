# SPDX-License-Identifier: Apache-2.0
"""rivulet-train: a real run of a few steps of both kinds; the model directory scores as the recipe itself says.

Needs PyTorch (see torch_python.py); where it is absent this ends with exit code 77, which ctest counts as skipped.
"""

import gzip
import json
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from command import CommandTest, Result, rivulet
from torch_python import TOOLS, TORCH_PYTHON, missing_torch, module

TINY = ("--layers", 2, "--heads", 2, "--key-dim", 8, "--ffn", 32, "--threads", 1, "--warmup", 5, "--log-every", 5)
TEXT = (*TINY, "--length", 24, "--features", 8, "--batch", 8, "--lr", "5e-3", "--steps", 40)
IMAGES = (*TINY, "--batch", 4, "--lr", "1e-2", "--steps", 40, "--mixtures", 3)


def write_text(path: pathlib.Path) -> pathlib.Path:
    """A text with something to learn, not all of it in one byte a character."""
    words = random.Random(3)
    path.write_text(" ".join(words.choice(("über", "den", "fluß", "ein", "boot")) for _ in range(900)) + "\n")
    return path


def write_images(path: pathlib.Path, count: int = 40, side: int = 6) -> pathlib.Path:
    """Images of one bright column on black, as an IDX file."""
    draw = random.Random(5)
    pixels = bytearray()
    for _ in range(count):
        bright = draw.randrange(side)
        pixels += bytes(draw.randrange(200, 256) if x == bright else 0 for _ in range(side) for x in range(side))
    data = struct.pack(">4BIII", 0, 0, 8, 3, count, side, side) + pixels
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


class TrainTest(CommandTest):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, kind: str, data: pathlib.Path, out: str, *args: object, code: int = 0) -> Result:
        result = module("train", kind, "--data", data, "--out", self.folder / out, *args, python=TORCH_PYTHON)
        self.assertEqual(result.code, code, result)
        return result

    def refused(self, kind: str, data: pathlib.Path, *args: object, says: tuple[str, ...], out: str = "no") -> None:
        result = self.train(kind, data, out, *args, code=2)
        self.assertEqual(result.err.count("\n"), 1, result)
        for mention in says:
            self.assertIn(mention, result.err)

    def losses_fall(self, result: Result, unit: str, share: float) -> None:
        losses = [float(x) for x in re.findall(rf"step \d+/40  (\S+) {unit}", result.err)]
        self.assertEqual(len(losses), 8, result)
        self.assertLess(losses[-1], share * losses[0], losses)

    def scores_as_said(self, result: Result, *source: object) -> float:
        """The held-out number, which `rivulet score` must give too."""
        nats, tokens = re.search(r"held out: .* \((\S+) nats, (\d+) tokens\)", result.out).groups()
        lines = self.succeeds(rivulet("score", *source)).lines()
        self.assertEqual(sum(line["num_scored"] for line in lines), int(tokens))
        own = sum(line["nll_nats"] for line in lines)
        self.assertLessEqual(abs(own - float(nats)), 1e-4 * abs(own), (own, nats))
        # The command that the recipe prints gives these numbers.
        printed = re.search(r"\n  rivulet (.*)\n", result.out).group(1).split()
        self.assertEqual(self.succeeds(rivulet(*printed)).lines(), lines)
        return own / int(tokens)

    def test_text_is_learned_and_served(self) -> None:
        text = write_text(self.folder / "text.txt")
        for dtype in ("f32", "f16"):
            with self.subTest(dtype):
                result = self.train("text", text, "verse", *TEXT, "--dtype", dtype, "--force")
                self.losses_fall(result, "nats/char", 0.8)
                model = self.folder / "verse"
                self.scores_as_said(result, "--model", model, "--text", text, "--tail", "0.1", "--window", "24")
                config = json.loads((model / "config.json").read_text())
                self.assertEqual(config["content"]["tokenizer"]["alphabet"], "".join(sorted(set(text.read_text()))))
                self.assertEqual((config["name"], config["attention"]["gate"]), ("verse", "rfa"))
                drawn = self.succeeds(rivulet("generate", "--model", model, "--prompt", "den ", "--max-tokens", "20", "--seed", "1"))
                self.assertGreaterEqual(len(drawn.out.strip()), 10)

    def test_images_are_learned_and_served(self) -> None:
        images = write_images(self.folder / "images.gz")
        result = self.train("mnist", images, "columns", *IMAGES)
        self.losses_fall(result, "bits/dim", 0.8)
        model = self.folder / "columns"
        self.scores_as_said(result, "--model", model, "--idx", images, "--limit", "4")
        config = json.loads((model / "config.json").read_text())
        self.assertEqual(config["content"], {"type": "image", "height": 6, "width": 6, "channels": 1})
        self.assertEqual((config["bos_token_id"], config["output"]["num_mixtures"]), (256, 3))
        self.succeeds(rivulet("generate", "--model", model, "--count", "2", "--out", self.folder / "two.png", "--seed", "1"))
        self.assertEqual((self.folder / "two.png").read_bytes()[:4], b"\x89PNG")

    def test_a_folder_of_mnist_holds_out_the_test_images(self) -> None:
        data = self.folder / "mnist"
        data.mkdir()
        write_images(data / "train-images-idx3-ubyte.gz")
        self.refused("mnist", data, *IMAGES, says=("t10k-images-idx3-ubyte",))
        test = write_images(data / "t10k-images-idx3-ubyte", count=7)
        result = self.train("mnist", data, "columns", *IMAGES, "--steps", "2", "--eval-images", "5")
        self.scores_as_said(result, "--model", self.folder / "columns", "--idx", test, "--limit", "5")

    def test_a_run_that_was_cut_off_goes_on_with_the_same_numbers(self) -> None:
        text = write_text(self.folder / "text.txt")
        flags = (*TEXT, "--save-every", "1", "--dropout", "0.1")
        self.train("text", text, "whole", *flags)
        # 0: SIGKILL, which nothing can answer; 1: SIGTERM, after which it says how to go on.
        for index, number in enumerate((signal.SIGKILL, signal.SIGTERM)):
            with self.subTest(number.name):
                out = self.folder / f"cut{index}"
                saved = self.folder / f"cut{index}.training.pt"
                command = [TORCH_PYTHON, "-m", "rivulet_tools.train", "text", "--data", text, "--out", out, *flags]
                process = subprocess.Popen(
                    list(map(str, command)), env={"PYTHONPATH": str(TOOLS), "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
                deadline = time.monotonic() + 120
                while not saved.exists() and process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.005)
                process.send_signal(number)
                _, err = process.communicate(timeout=120)
                self.assertEqual(process.returncode, -9 if number == signal.SIGKILL else 130, err)
                self.assertFalse(out.exists())
                self.refused("text", text, *flags, "--lr", "1e-3", out=f"cut{index}", says=("--lr", "0.001", "0.005", "--restart"))
                result = self.train("text", text, f"cut{index}", *flags)
                self.assertIn("continuing from step", result.out)
                self.assertFalse(saved.exists())
                whole = (self.folder / "whole/model.safetensors").read_bytes()
                self.assertTrue((out / "model.safetensors").read_bytes() == whole, "the weights differ from those of an uncut run")

    def test_bad_input_is_refused_by_name(self) -> None:
        text, images = write_text(self.folder / "text.txt"), write_images(self.folder / "images")
        (self.folder / "short.txt").write_text("short")
        (self.folder / "latin1.txt").write_bytes(b"\xfc" * 99)
        cut = self.folder / "cut"
        cut.write_bytes(images.read_bytes()[:-1])
        (self.folder / "taken").mkdir()
        (self.folder / "broken.training.pt").write_bytes(b"x")
        self.refused("text", self.folder / "absent.txt", says=("absent.txt",))
        self.refused("text", self.folder / "short.txt", says=("short.txt", "5 characters", "--length"))
        self.refused("text", self.folder / "latin1.txt", says=("latin1.txt", "utf-8"))
        self.refused("mnist", text, says=("text.txt", "IDX"))
        self.refused("mnist", cut, says=("40 images of 6 x 6", "1439"))
        self.refused("text", text, *TEXT, out="taken", says=("taken", "--force"))
        self.refused("text", text, *TEXT, "--name", "Ä", says=("--name",))
        self.refused("text", text, *TEXT, "--dropout", "1", says=("--dropout",))
        self.refused("text", text, *TEXT, out="broken", says=("broken.training.pt", "--restart"))
        self.refused("text", text, *TEXT, "--lr", "1e30", says=("loss is", "--lr"))
        self.assertFalse((self.folder / "no").exists())


FORMS = """
import torch
from rivulet_tools.likelihood import nll
from rivulet_tools.network import Network
torch.manual_seed(4)
for kind in ("elu", "rfa"):
    for gate in ("none", "rfa"):
        for normalizer in ({"type": "add_eps", "eps": 1e-6}, {"type": "clamp_min", "min": 0.01}):
            config = {"vocab_size": 11, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "key_dim": 5, "value_dim": 4, "ffn_size": 20,
                "activation": "gelu", "layer_norm_eps": 1e-5, "final_norm": True, "output": {"type": "categorical"},
                "position": {"type": "learned", "combine": "add", "max_length": 50},
                "attention": {"feature_map": {"type": kind, "num_features": 6}, "gate": gate, "normalizer": normalizer}}
            tokens = torch.randint(11, (3, 50))
            whole = None
            for chunk in (1, 7, 50, 64):
                torch.manual_seed(9)
                network = Network(config, chunk=chunk).double()
                for p in network.parameters():
                    p.data = p.data + 0.3 * torch.randn_like(p)
                if network.transformer.layers[0].attention.gate_projection is not None:
                    network.transformer.layers[1].attention.gate_projection.bias.data.fill_(-30.)  # forgets at once
                parallel, recurrent = network(tokens), network.recurrent(tokens)
                scale = recurrent.abs().max()
                assert (parallel - recurrent).abs().max() < 1e-9 * scale, (kind, gate, normalizer, chunk, (parallel - recurrent).abs().max())
                gradient = torch.autograd.grad(nll(parallel, tokens, config["output"]).sum(), list(network.parameters()), retain_graph=True)
                other = torch.autograd.grad(nll(recurrent, tokens, config["output"]).sum(), list(network.parameters()))
                for a, b in zip(gradient, other):
                    assert torch.isfinite(a).all() and (a - b).abs().max() <= 1e-8 * (1 + b.abs().max()), (kind, gate, chunk)
                whole = parallel if whole is None else whole
                assert (parallel - whole).abs().max() < 1e-9 * scale
print("equal")
"""

LIKELIHOOD = """
import torch
from rivulet_tools.likelihood import mixture_nll
torch.manual_seed(2)
levels = torch.arange(16).repeat(40)
outputs = torch.randn(640, 9, dtype=torch.float64) * torch.tensor([1.0] * 3 + [0.7] * 3 + [3.0] * 3) - torch.tensor([0.0] * 6 + [3.0] * 3)
logits, means, s = outputs.chunk(3, -1)
scale = s.clamp(min=-7).exp()
value, half = (levels.double() * 2 / 15 - 1)[:, None], 1 / 15
upper, lower = torch.sigmoid((value + half - means) / scale), torch.sigmoid((value - half - means) / scale)
middle = torch.sigmoid((value - means) / scale)
bin = torch.where(upper - lower <= 1e-5, middle * (1 - middle) / scale * 2 / 15, upper - lower)
bin = torch.where(levels[:, None] == 0, upper, torch.where(levels[:, None] == 15, 1 - lower, bin))
want = -torch.log((torch.softmax(logits, -1) * bin).sum(-1))
shown = torch.isfinite(want) & (want < 16)  # beyond, the form as written here cancels
assert shown.sum() > 400 and (upper - lower <= 1e-5).any() and (s < -7).any()
got = mixture_nll(outputs, levels, 16)
assert (got - want)[shown].abs().max() < 1e-6, (got - want)[shown].abs().max()
single = mixture_nll(outputs.float(), levels, 16).double()
assert ((single - got).abs() / (1 + got)).max() < 1e-4
hard = torch.tensor([[0.0] * 3 + [50.0] * 3 + [-40.0] * 3, [0.0] * 3 + [-50.0] * 3 + [40.0] * 3, [90.0] * 9], requires_grad=True)
loss = mixture_nll(hard, torch.tensor([8, 0, 15]), 16)
loss.sum().backward()
assert torch.isfinite(loss).all() and torch.isfinite(hard.grad).all(), (loss, hard.grad)
print("equal")
"""


class NetworkTest(unittest.TestCase):
    def run_statements(self, statements: str) -> None:
        done = subprocess.run(
            [TORCH_PYTHON, "-c", statements], env={"PYTHONPATH": str(TOOLS), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
        )
        self.assertEqual((done.returncode, done.stdout), (0, "equal\n"), done.stderr)

    def test_the_parallel_form_equals_the_recurrent_one(self) -> None:
        self.run_statements(FORMS)

    def test_the_likelihood_is_that_of_the_format(self) -> None:
        self.run_statements(LIKELIHOOD)


if __name__ == "__main__":
    reason = missing_torch()
    if reason is not None:
        print(f"skipped: training needs PyTorch, numpy, safetensors and tqdm: {reason}; RIVULET_TORCH_PYTHON names an interpreter that has them")
        sys.exit(77)
    unittest.main()
