#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""peers.py without a GPU: its arguments, its lines and its exit codes. With PyTorch (RIVULET_TORCH_PYTHON) also its steps: they have
the golden outputs of models."""
import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import peers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PYTHON = os.environ.get("RIVULET_TORCH_PYTHON") or sys.executable
WITHOUT_DEVICE = """
import contextlib
class cuda:
    is_available = lambda: False
inference_mode = contextlib.nullcontext
"""
CHECKED = ("model/zoo/shakespeare-rfa", "tests/conformance/family/rwkv7", "tests/conformance/family/mamba2")


def lines_of(settings, measure, left=lambda: 1):
    """What measure_all returns, and its lines."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = peers.measure_all(settings, measure, left)
    return code, [json.loads(line) for line in text.getvalue().splitlines()]


def has_torch():
    return subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode == 0


class PeersTest(unittest.TestCase):
    SETTINGS = peers.settings_of("a:f16,tf32:1,64")

    def test_settings_are_all_pairs_of_matrices_and_rows(self):
        self.assertEqual(self.SETTINGS, [("a", "f16", 1), ("a", "f16", 64), ("a", "tf32", 1), ("a", "tf32", 64)])
        for wrong in ("a", "a:f16", "a:f16:x", "a:f8:1", "a:f16:0", "a:f16:1:2"):
            with self.assertRaises(argparse.ArgumentTypeError):
                peers.settings_of(wrong)

    def test_a_setting_that_fails_does_not_end_the_others(self):
        def measure(model, matrices, rows):
            if (matrices, rows) == ("f16", 64):
                raise RuntimeError("out of memory " + "x" * 1000)
            return {"us": 2.5}

        code, lines = lines_of(self.SETTINGS, measure)
        self.assertEqual(code, 1)
        self.assertEqual([line.get("us") for line in lines], [2.5, None, 2.5, 2.5])
        self.assertTrue(lines[1]["error"].startswith("RuntimeError: out of memory"))
        self.assertLess(len(lines[1]["error"]), 400)
        self.assertEqual(lines[2], {"model": "a", "matrices": "tf32", "rows": 1, "us": 2.5})

    def test_what_no_time_is_left_for_is_named(self):
        left = iter((2, 0.5, -0.1, -3))
        code, lines = lines_of(self.SETTINGS, lambda *_: {"us": 1}, lambda: next(left))
        self.assertEqual(code, 0)
        self.assertEqual([line.get("left_out") for line in lines], [None, None, "no time left", "no time left"])
        self.assertEqual([line["rows"] for line in lines], [1, 64, 1, 64])

    def test_what_needs_an_absent_package_is_left_out(self):
        def measure(*_):
            raise peers.Absent("No module named 'fla'")

        code, lines = lines_of(self.SETTINGS[:1], measure)
        self.assertEqual((code, lines[0]["left_out"]), (0, "No module named 'fla'"))

    def test_each_line_comes_before_the_next_setting_begins(self):
        seen, text = [], io.StringIO()
        with contextlib.redirect_stdout(text):
            peers.measure_all(self.SETTINGS, lambda *_: seen.append(text.getvalue().count("\n")) or {}, lambda: 1)
        self.assertEqual(seen, [0, 1, 2, 3])

    def test_without_pytorch_or_a_device_it_is_skipped(self):
        with tempfile.TemporaryDirectory() as folder:
            module = pathlib.Path(folder) / "torch.py"
            for content, said in ((WITHOUT_DEVICE, "skipped: torch sees no CUDA device\n"), ("raise ImportError('no torch')", "skipped: no torch\n")):
                module.write_text(content)
                done = subprocess.run([sys.executable, HERE / "peers.py", "--step", "mnist-linear:f16:1"], capture_output=True, text=True,
                                      env={**os.environ, "PYTHONPATH": folder})
                self.assertEqual((done.returncode, done.stdout, done.stderr), (77, "", said))

    @unittest.skipUnless(has_torch(), "PyTorch is not installed")
    def test_steps_have_golden_outputs(self):
        flags = [flag for name in CHECKED for flag in ("--check", ROOT / name)]
        done = subprocess.run([PYTHON, HERE / "peers.py", *flags], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), len(CHECKED))


if __name__ == "__main__":
    unittest.main()
