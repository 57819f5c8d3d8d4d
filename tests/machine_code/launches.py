# SPDX-License-Identifier: Apache-2.0
"""The dynamic shared memory that launches of kernels ask for, from test programs that run them on the emulator."""

import concurrent.futures
import os
import pathlib
import re
import subprocess
import tempfile

import cubins

# Programs, and those of their tests that launch the kernels.
PROGRAMS = {
    "cuda_causal_conv_test": "*",
    "cuda_element_rows_test": "*",
    "cuda_embed_test": "*",
    "cuda_gemm_test": "*EveryShape*",
    "cuda_gemm_group_test": "*EveryShape*",
    "cuda_gemm_wide_test": "*",
    "cuda_group_rows_test": "*",
    "cuda_layer_norm_test": "*",
    "cuda_linear_attention_test": "*EveryShape*",
    "cuda_mixer_rows_test": "*",
    "cuda_prefill_attention_test": "*EveryShape*:*MatchesTheReference*",
    "cuda_product_rows_test": "*",
    "cuda_recurrence_test": "*EveryShape*",
    "cuda_sample_test": "*",
    "cuda_sample_steps_test": "*",
    "cuda_slot_test": "*",
    "cuda_softmax_attention_test": "*EveryWay*",
    "cuda_token_shift_test": "*",
    "cuda_latency_emulated_test": "*ARunOfFewRows*:*RandomOperations*",
}


def of_program(program: pathlib.Path, tests: str) -> dict[str, set[int]]:
    """Bytes that launches of each kernel ask for, by the kernel's name as in cubins.Kernel."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "launches"
        environment = {**os.environ, "RIVULET_EMULATOR_LAUNCHES": str(file)}
        done = subprocess.run([program, f"--gtest_filter={tests}"], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{program} {tests}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        seen = [line.split() for line in file.read_text().splitlines()]
    names = {}
    for line in cubins.run("nm", "-C", "--defined-only", str(program)).splitlines():
        if found := re.match(r"([0-9a-f]+) [tTwW] (.*\(.*)", line):
            names[int(found.group(1), 16)] = cubins.short_name(found.group(2))
    asked = {}
    for place, size in seen:
        asked.setdefault(names[int(place, 16)], set()).add(int(size))
    return asked


def shared_memory(folder: pathlib.Path) -> dict[str, set[int]]:
    """REQUIRES: `folder` holds PROGRAMS."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        parts = pool.map(lambda item: of_program(folder / item[0], item[1]), PROGRAMS.items())
        asked = {}
        for part in parts:
            for name, sizes in part.items():
                asked.setdefault(name, set()).update(sizes)
    return asked
