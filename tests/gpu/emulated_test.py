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

import rehearsal_test

BUILD = pathlib.Path(os.environ["RIVULET_BUILD_DIR"])
ROOT = rehearsal_test.HERE.parents[1]
# The kit's programs, and what they are here.
REAL = {
    **{f"gpu_{name}": f"tests/{name}" for name in ("cuda_chain_test", "cuda_embed_test", "cuda_layer_norm_test", "cuda_product_rows_test",
                                                   "cuda_sample_steps_test", "cuda_slot_test")},
    "backend_golden_cuda_test": "tests/cuda_golden_emulated_test",
    "bench_step": "tests/bench_step_emulated",
    "rivulet-server": "tests/rivulet-server-emulated",
    "rivulet": "bin/rivulet",
}  # fmt: skip
# Few steps of the plans and kinds of the real list.
SOAK = (("mnist-linear", 1, 48, "latency"), ("mnist-linear", 3, 16, "latency"), ("mamba2", 2, 16, "throughput"))
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
    LIMITS = (
        "phases.SMOKE_LIMIT = phases.TEST_LIMIT = phases.SINGLE_LIMIT = 60; phases.LOAD_SECONDS = (0.2, 1); phases.RUNS = ('--runs=1',); "
        "phases.SMOKE = [one for one in phases.SMOKE if phases.Programs([pathlib.Path({programs!r})], None)[one[1]].is_file()]; "
        "phases.FACTS = (('mnist-linear', (1, 8), 4), ('mamba2', (1, 4), 16), ('granite', (1,), 80)); phases.INT8_FACTS = (('mamba2', (2,), 16),); phases.KERNEL_ROWS = (4,); "
        "phases.KERNEL_PROMPTS = (('mamba2', 16),); phases.HALVES = ('mnist-linear', (8,)); phases.SOAK = {soak}; phases.LIBRARY_ROWS = 8; "
        "phases.IDS = (('model/zoo/mnist-linear', ('own',)), ('tests/conformance/family/mamba2', ('auto',))); "
        "phases.SPEED = (('mnist-linear', (1, 8), 0),); phases.FAMILY_SPEED = (('mamba2', (1,), 0),); phases.LATENCY_ROWS = 4; "
        "phases.STREAMS = (1, 4); run.ROOT = pathlib.Path({root!r})"
    )

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
        self.LIMITS = self.LIMITS.format(programs=str(self.programs), root=str(root), soak=SOAK)

    def test_smoke_and_parity(self):
        fails = self.programs / "gpu_cuda_sample_steps_test"
        fails.unlink()
        fails.write_text(FAILS_AS_A_WHOLE.format(real=BUILD / "tests/cuda_sample_steps_test"))
        fails.chmod(0o755)
        self.run_phases("smoke", "parity", code=1)
        smoke, parity = self.outcomes("smoke"), self.outcomes("parity")
        for name in ("chain: gpu_cuda_chain_test *OneByOne", "chain: gpu_cuda_chain_test *AsAGraphOfDependentLaunches", "slot: gpu_cuda_slot_test *"):
            self.assertEqual(smoke[name], "passed")
        self.assertEqual({kind for name, kind in smoke.items() if "failed" not in kind}, {"passed"})
        single = {name: kind for name, kind in parity.items() if name.startswith("gpu_cuda_sample_steps_test ")}
        self.assertEqual(set(single.values()), {"passed"})
        self.assertIn("gpu_cuda_sample_steps_test CudaSampleStepsTest.RecordsReachMappedHostMemory", single)
        self.assertEqual({name for name, kind in parity.items() if kind != "passed"}, {"gpu_cuda_sample_steps_test"})

    def test_facts(self):
        self.run_phases("facts")
        self.assertEqual(set(self.outcomes("facts").values()), {"passed"})
        text = self.report()
        for row in (r"mnist-linear 8 \| [\d.,]+ \| [\d.,]+ \|  \|  \|  \| [\d.,]+ \|", r"mnist-linear prompt of 4 \| [\d.,]+ \|", r"mamba2 1 \| [\d.,]+ \|",
                    r"mamba2 4 \| [\d.,]+ \|", r"mamba2 prompt of 16 \| [\d.,]+ \|  \|  \|  \|  \| [\d.,]+ \|", r"mamba2 int8 2 \| [\d.,]+ \|", r"granite 1 \| [\d.,]+ \|", r"granite prompt of 80 \| [\d.,]+ \|", r"`JoinBlocks` \|", r"auto ran `.*own kernels",
                    r"mnist-linear 8 throughput in halves \| [\d.,]+ \|", r"Step of mamba2 4 rows", r"mamba2 prompt of 16: [\d.,]+ us of kernels",
                    r"`CausalConv.*` \| \(1, 1, 1\) \| 2 \| 2.0 \|", r"`Embed` \| \(1, 1, 1\) \| 1 \|"):  # fmt: skip
            self.assertRegex(text, row)

    def test_facts_of_a_model_that_does_not_load_are_a_failure(self):
        weights = self.folder / "tree/model/zoo/mamba2/model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        self.LIMITS += "; phases.FACTS = phases.FACTS[1:2]; phases.INT8_FACTS = (); phases.HALVES = ('mamba2', ())"
        self.run_phases("facts", code=1)
        self.assertEqual(self.outcomes("facts"), dict.fromkeys(["mamba2", "mamba2 auto", *(f"kernels mamba2 {what}" for what in
                         ("4", "4 without graphs", "prompt of 16", "prompt of 16 without graphs"))], "failed"))  # fmt: skip

    def test_speed(self):
        self.run_phases("smoke", "speed", code=77)  # cuBLASLt and the sources of peer_pytorch are absent
        speed = self.outcomes("speed")
        self.assertEqual({name: kind for name, kind in speed.items() if kind != "passed"},
                         {"peer_pytorch": "skipped", "mnist-linear throughput cublaslt": "skipped"})  # fmt: skip
        text = self.report()
        for row in (r"mnist-linear 1 throughput \| [\d.,]+ \| [\d.,]+ \|  \|", r"mnist-linear 1 latency \| [\d.,]+ \| [\d.,]+ \| 45 to 60 \|",
                    r"mnist-linear 8 throughput \| [\d.,]+ \| [\d.,]+ \|  \|  \|  \| [\d.,]+ \|", r"\| 4 \| [\d.,]+ \|",
                    r"auto ran `.*own kernels", r"mamba2 1 throughput \| [\d.,]+ \|"):  # fmt: skip
            self.assertRegex(text, row)

    def test_soak(self):
        self.run_phases("soak")
        self.assertEqual(set(self.outcomes("soak").values()), {"passed"})
        text = self.report()
        for words in ("- plan latency: 64 of 1,000,000 steps had the bits of a second run on graphs (mnist-linear 1 rows 48, mnist-linear 3 rows 16)",
                      "- plan throughput: 16 of", "- id of mnist-linear own: `cuda-default-graph-sm90-2`, own kernels (chosen by option)",
                      "- id of mamba2 auto: `cuda-default-graph-sm90-3`, own kernels (rivulet_no_cublaslt.so cannot be opened"):  # fmt: skip
            self.assertIn(words, text)
        told = [line["figures"] for line in self.lines("soak") if "numerics_id" in line.get("figures", {})]
        self.assertEqual([one["head_rows"] for one in told], [8192] * 2, "of the log: rows of which the head makes outputs at a time")

    def test_which_algorithm_passed_and_why_others_failed_is_kept(self):
        self.LIMITS += "; phases.FACTS = phases.FACTS[1:2]; phases.INT8_FACTS = phases.KERNEL_ROWS = phases.KERNEL_PROMPTS = (); phases.HALVES = ('', ())"
        library = self.folder / "library"
        library.mkdir()
        (library / "rivulet_no_cublaslt.so").symlink_to(BUILD / "lib/libcublaslt_stand_in.so")  # its name on the emulator
        for fault, text in (("split", r"own kernels \(qkv: no algorithm has the bits of our own kernel \(0/20/35: splits k; 1/20/35: splits k; 2/20/35: status"),
                            ("", "cuBLASLt 13.0.2: qkv from 512 rows by 0/20/35, out from 512 rows by 0/20/35, ")):  # fmt: skip
            self.run_phases("facts", LD_LIBRARY_PATH=library, RIVULET_STAND_IN_CUBLASLT=fault)
            self.assertRegex(self.report(), f"- auto ran `[^`]*{text}")


if __name__ == "__main__":
    unittest.main()
