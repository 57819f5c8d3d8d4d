#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rehearses run.py and report.py with real programs, whose device is the emulator: what tests print, what bench_step and the server
measure, and how a program that fails is run again. Only the tools of NVIDIA, cuBLASLt, PyTorch and the copy rate are stand-ins. Times
and figures are those of the emulator and say nothing of a GPU."""

import os
import pathlib
import shutil
import sys
import unittest

import phases
import rehearsal_test

BUILD = pathlib.Path(os.environ["RIVULET_BUILD_DIR"])
ROOT = rehearsal_test.HERE.parents[1]
# The kit's programs, and what they are here.
REAL = {
    **{f"gpu_{name}": f"tests/{name}" for name in ("cuda_chain_test", "cuda_embed_test", "cuda_layer_norm_test", "cuda_product_rows_test",
                                                   "cuda_sample_steps_test", "cuda_slot_test")},
    "gpu_backend_golden_test": "tests/cuda_golden_emulated_test",
    "bench_step": "tests/bench_step_emulated",
    "rivulet-server": "tests/rivulet-server-emulated",
    "rivulet": "bin/rivulet",
}  # fmt: skip
# Small models and few steps instead of the real lists.
SMALL = {
    "BACKEND_TESTS": ("gpu_backend_golden_test",),
    "OWN": (("mnist-linear", (1, 8), 4), ("mamba2", (1, 4), 16), ("granite", (1,), 20)),
    "TABLES": (("mamba2", 4, 0), ("mamba2", 1, 16)),
    "LIBRARY": (("mnist-linear", (8,), 4, ("auto",)), ("mamba2", (4,), 16, ("auto",))),
    "SWITCHED": tuple((what, flags, (("mamba2", (8,)),)) for what, flags, _ in phases.SWITCHED),
    "SHORT_SOAK": (("mnist-linear", 1, 48), ("mnist-linear", 3, 16)),
    "SOAK": (("mamba2", 2, 16),),
    "RECORDS": (("mamba2", (1,), 8),),
    "STREAMS": (1, 4),
    "LOAD_SECONDS": (0.2, 1),
    "RUNS": ("--runs=1",),
    "SMOKE_LIMIT": 60, "TEST_LIMIT": 60, "SINGLE_LIMIT": 60,
}  # fmt: skip
# Each does all that the program does, but as a whole it fails: only single tests pass.
FAILS_AS_A_WHOLE = """#!/bin/sh
{real} "$@" || exit
case "$*" in *--gtest_filter=*|*--gtest_list_tests*) exit 0;; *) echo "not as a whole"; exit 1;; esac
"""


# ncu, which tells the kernels that the emulator ran while a profiler looked; their times are made up.
NCU = """#!{python} -IS
import os, re, subprocess, sys
file = {file!r}
command = sys.argv[next(i for i, word in enumerate(sys.argv) if word.endswith("bench_step")):]
done = subprocess.run(command, env={{**os.environ, "RIVULET_EMULATOR_PROFILE": file}})
print('"Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"')
for line in open(file):
    print('"%s(Args)","(1, 1, 1)","gpu__time_duration.sum","ns","1,000"' % re.search(r"(\\w+)(<>)?\\(\\)$", line)[1])
os.remove(file)
sys.exit(done.returncode)
"""


class EmulatedTest(rehearsal_test.Rehearsal):
    LIMITS = "; ".join(f"phases.{name} = {value!r}" for name, value in SMALL.items())

    def setUp(self):
        super().setUp()
        for path in self.programs.iterdir():
            if path.name != "copy_rate_cuda":
                path.unlink()
        for name, real in REAL.items():
            (self.programs / name).symlink_to(BUILD / real)
        root = self.folder / "tree"
        (root / "model/zoo").mkdir(parents=True)
        (root / "tests").symlink_to(ROOT / "tests")
        shutil.copytree(ROOT / "tests/conformance/models/tiny-elu-relu", root / "model/zoo/mnist-linear")
        shutil.copytree(ROOT / "tests/conformance/family/mamba2", root / "model/zoo/mamba2")
        shutil.copytree(ROOT / "tests/conformance/hybrid/granite-rope-bf16", root / "model/zoo/granite")
        (self.tools / "ncu").write_text(NCU.format(python=sys.executable, file=str(self.folder / "profile")))
        self.LIMITS += f"; run.ROOT = pathlib.Path({str(root)!r})"

    def test_both_commands_when_a_kernel_fails(self):
        fails = self.programs / "gpu_cuda_sample_steps_test"
        fails.unlink()
        fails.write_text(FAILS_AS_A_WHOLE.format(real=BUILD / "tests/cuda_sample_steps_test"))
        fails.chmod(0o755)
        self.run_phase("first", code=1, only=("smoke", "backend"))
        outcomes = self.outcomes()
        single = {name: kind for name, kind in outcomes.items() if name.startswith("gpu_cuda_sample_steps_test ")}
        self.assertEqual(set(single.values()), {"passed"})
        self.assertIn("gpu_cuda_sample_steps_test CudaSampleStepsTest.RecordsReachMappedHostMemory", single)
        self.assertEqual({name for name, kind in outcomes.items() if kind != "passed"}, {"gpu_cuda_sample_steps_test"})
        self.run_phase("second", only=("again", "again sanitized"))
        self.assertLessEqual(set(single), set(self.outcomes("second")))

    def test_figures_of_both_commands(self):
        steps = ("copy rate", "own", "kernels", "library", "switches", "short soak")
        self.run_phase("first", "--deadline", "2000", only=steps)
        self.run_phase("second", "--deadline", "1000", only=("server", "soak", "records", "ids"), code=77)
        self.assertEqual({*self.outcomes().values(), *self.outcomes("second").values()}, {"passed", "skipped"})
        text = self.report()
        figure = r" \| [\d.,]+ \| [\d.,]+ \| \d+ % \| \d+ % \|"
        for row in (rf"mnist-linear 8{figure}  \| [\d.,]+ \|", r"mnist-linear prompt of 4 \| [\d.,]+ \|",
                    rf"mamba2 1{figure}", rf"mamba2 4{figure}", r"mamba2 prompt of 16 \| [\d.,]+ \|  \|  \|  \|  \| [\d.,]+ \|", rf"granite 1{figure}",
                    r"granite prompt of 20 \| [\d.,]+ \|", r"auto ran `.*own kernels", *(rf"{model} 8 {what} \| [\d.,]+ \|" for what, _, ((model, _),) in SMALL["SWITCHED"]),
                    r"mamba2 1 after 8 tokens \|", r"Step of mamba2 4 rows", r"mamba2 prompt of 16: [\d.,]+ us of kernels", r"`CausalConv.*` \| \(1, 1, 1\) \| 2 \| 2.0 \|",
                    r"`Embed` \| \(1, 1, 1\) \| 1 \|", r"\n\| 4 \| [\d.,]+ \|"):  # fmt: skip
            self.assertRegex(text, row)
        for words in ("80 of 61,500 steps had the bits of a second run (mnist-linear 1 rows 48, mnist-linear 3 rows 16, mamba2 2 rows 16)",
                      "- id of mnist-linear: `cuda-default-graph-sm90-2`, own kernels (", "- id of mamba2: `cuda-default-graph-sm90-3`, own kernels (rivulet_no_cublaslt.so cannot be opened"):  # fmt: skip
            self.assertIn(words, text)
        told = [line["figures"] for line in self.lines("second") if "numerics_id" in line.get("figures", {})]
        self.assertEqual([one["head_rows"] for one in told], [8192] * 2, "of the log: rows of which the head makes outputs at a time")

    def test_a_model_that_does_not_load_is_a_failure(self):
        weights = self.folder / "tree/model/zoo/mamba2/model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        self.LIMITS += "; phases.OWN = phases.OWN[1::-1]"  # mamba2, then a model that loads
        self.run_phase("first", code=1, only=("own", "kernels"))
        failed = ["mamba2 1,4 prompt of 16", "kernels mamba2 4", "kernels mamba2 4 without graphs", "kernels mamba2 prompt of 16 without graphs"]
        self.assertEqual([name for name, kind in self.outcomes().items() if kind != "passed"], failed)

    def test_which_algorithm_passed_and_why_others_failed_is_kept(self):
        library = self.folder / "library"
        library.mkdir()
        (library / "rivulet_no_cublaslt.so").symlink_to(BUILD / "lib/libcublaslt_stand_in.so")  # its name on the emulator
        self.LIMITS += "; phases.LIBRARY = phases.LIBRARY[:1]"  # mnist-linear
        for fault, text in (("split", r"own kernels \(qkv: no algorithm has the bits of our own kernel \(0/20/35: splits k; 1/20/35: splits k; 2/20/35: status"),
                            ("", "cuBLASLt 13.0.2: qkv from 512 rows by 0/20/35, out from 512 rows by 0/20/35, ")):  # fmt: skip
            self.run_phase("first", only=("library",), LD_LIBRARY_PATH=library, RIVULET_STAND_IN_CUBLASLT=fault)
            self.assertRegex(self.report(), f"- auto ran `[^`]*{text}")


if __name__ == "__main__":
    unittest.main()
