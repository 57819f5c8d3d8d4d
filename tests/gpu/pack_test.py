#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kit for a machine with a GPU: deploy/bundle.sh --gpu-tests packs it from the release build, and its programs start from it alone.
Exit code 77 where the build has no CUDA."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["RIVULET_BUILD_DIR"])
ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS, RUNTIME = "librivulet_kernels_cuda_kit.so", "libcudart.so"


def run(*command, **more):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT, **more)


class PackTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_the_first_command_starts_from_the_kit(self):
        packed = run("tests/gpu/first.sh", "--build", BUILD, "--second", 150)  # bundle.sh holds the sizes
        self.assertEqual(packed.returncode, 0, packed.stderr)
        commands = re.findall(r"^\d\. Limit (\d+) s:\n(.+)$", packed.stdout, re.MULTILINE)
        self.assertEqual([int(limit) for limit, _ in commands], [580, 180])
        self.assertEqual([len(command) < 2000 for _, command in commands], [True, True])
        self.assertIn("--phase second --deadline 150", commands[1][1])
        done = run("bash", "-c", commands[0][1].replace("--phase first --deadline 540", "--phase smoke"), env={**os.environ, "OUT": str(self.folder)})
        self.assertTrue((self.folder / "gpu-results/smoke.jsonl").is_file(), done.stderr)
        has_device = shutil.which("nvidia-smi") and run("nvidia-smi").returncode == 0
        self.assertEqual(done.returncode, 0 if has_device else 77, done.stdout + done.stderr)
        programs = ROOT / "build/kit/rivulet-bundle/bin"
        for program in (BUILD / "gpu-kit.txt").read_text().split():
            self.assertTrue((programs / pathlib.Path(program).name).is_file(), program)
        self.assertEqual(list(programs.parent.glob("*.whl")), [])  # no HTTP there
        if not has_device:
            self.assertIn("skipped", done.stdout)
            self.assertEqual(run(programs / "gpu_cuda_gemm_test").returncode, 77)  # it starts, and finds no device

    def test_no_program_has_two_runtimes(self):
        everyday = BUILD / "bin/rivulet-server"
        programs = [pathlib.Path(line) for line in (BUILD / "gpu-kit.txt").read_text().split()]
        for program in (*programs, everyday):
            with self.subTest(program.name):
                shared = set(re.findall(rf"{KERNELS}|{RUNTIME}", run("ldd", program).stdout))
                own = set(re.findall(r" [Tt] (cudaLaunchKernelExC|cudaMalloc)$", run("nm", program).stdout, re.MULTILINE))
                if program == everyday:
                    self.assertEqual(shared, set())
                    self.assertEqual(own, {"cudaLaunchKernelExC", "cudaMalloc"})
                else:
                    self.assertIn(RUNTIME, shared)
                    self.assertEqual(own, set())

    def test_a_build_that_lacks_something_is_refused_by_name(self):
        build = self.folder / "build"
        build.mkdir()
        lines = ["RIVULET_TESTS:BOOL=ON", "RIVULET_CUDA:BOOL=ON", "GTest_DIR:PATH=/somewhere"]
        for wrong, words in (("", "is not configured"), ("RIVULET_TESTS:BOOL=OFF", "has no tests"), ("RIVULET_CUDA:BOOL=OFF", "has no CUDA"),
                             ("GTest_DIR:PATH=GTest_DIR-NOTFOUND", "without GoogleTest"), ("NONE:BOOL=ON", "not configured to its end")):  # fmt: skip
            if wrong:
                kept = [line for line in lines if line.split(":")[0] != wrong.split(":")[0]]
                (build / "CMakeCache.txt").write_text("\n".join([*kept, wrong, ""]))
            done = run("deploy/bundle.sh", "--gpu-tests", "--build", build, self.folder / "none.tar.xz")
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, f"^bundle.sh: {build} .*{words}.*; run: deploy/setup.sh --tests && cmake ")


if __name__ == "__main__":
    if not (BUILD / "gpu-kit.txt").is_file():
        print("skipped: this build has no CUDA, so there is no kit")
        sys.exit(77)
    unittest.main()
