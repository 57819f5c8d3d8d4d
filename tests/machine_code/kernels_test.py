#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What nvcc made of the kernels, on every architecture of the build: no spills, no stack, no static shared memory, code of limited size."""

import argparse
import pathlib
import re
import sys
import tempfile
import unittest

import cubins
import kernels_table
import launches

# Most KiB of instructions of a kernel, by its name without template arguments. A multiprocessor's cache of instructions has
# some 128 KiB and what lies closer to its schedulers 32 KiB, so code beyond that is fetched again in every step.
MOST_TEXT_KIB = {
    "ActivateProductRows": 7,
    "ActivateRows": 7,
    "Attention": 40,
    "AttentionFeatures": 44,
    "CausalConv": 30,
    "CopySlot": 1,
    "CountDifferentRows": 6,
    "CountTokens": 3,
    "DecayRows": 7,
    "Embed": 6,
    "FillProductRows": 5,
    "GatherProductRows": 4,
    "GemmF16": 52,
    "GemmFewF16": 54,
    "GemmF32": 56,
    "GroupGemmF16": 52,
    "GroupGemmF32": 28,
    "GroupGemmFewF16": 52,
    "GroupWideGemm": 60,
    "GenericAttention": 44,
    "JoinBlocks": 24,
    "KeepRows": 14,
    "Latency": 214,
    "LayerNorm": 13,
    "LongAttention": 56,
    "LowerBoundKeys": 7,
    "MarkProductRows": 2,
    "NormGroups": 25,
    "NormLongGroups": 42,
    "NormTokenShift": 24,
    "NormRecurrence": 60,
    "Recurrence": 54,
    "RecurrenceFew": 26,
    "RotateHeads": 7,
    "Rwkv7Heads": 14,
    "Rwkv7Outputs": 24,
    "Sample": 88,
    "SampleLong": 60,
    "SpreadBlocks": 42,
    "WalkRows": 68,
    "WalkSegments": 68,
    "WideGemm": 34,
    "ZeroSlots": 3,
}
# Instructions ahead of the wait for the predecessor that bring weights or states, by name: how they begin, and at least how
# many there are. Those of WideGemm are in loops.
EARLY_LOADS = {
    "Attention": ("LDG.E.128", 8),
    "GemmF16": (("LDG.E.128", "LDG.E.64"), 8),  # F16, integers
    "GemmF32": ("LDG.E.128", 8),
    "GemmFewF16": ("LDGSTS", 4),
    "GroupGemmF16": (("LDG.E.128", "LDG.E.64"), 8),
    "GroupGemmF32": ("LDG.E.128", 8),
    "GroupGemmFewF16": ("LDGSTS", 4),
    "GroupWideGemm": ("LDGSTS", 4),
    "WideGemm": ("LDGSTS", 4),
}
# Kernels in which each block takes one of several ways, by the type of its weights.
WAYS = {"GroupGemmF16": 2, "GroupGemmFewF16": 2, "GroupWideGemm": 2}
WAIT = "ACQBULK"  # griddepcontrol.wait, from sm_90 on
args = None  # of the command line
library = None


class KernelsTest(unittest.TestCase):
    def test_no_kernel_spills_or_has_a_stack(self):
        for kernel in library.kernels:
            with self.subTest(kernel=kernel.name, arch=kernel.arch):
                self.assertEqual((kernel.stack, kernel.local), (0, 0), "bytes of stack, of local memory")

    def test_no_kernel_has_static_shared_memory(self):
        for kernel in library.kernels:
            with self.subTest(kernel=kernel.name, arch=kernel.arch):
                self.assertEqual(kernel.static, 0, "bytes: all shared memory is asked for at the launch")

    def test_code_is_no_longer_than_its_limit(self):
        for kernel in library.kernels:
            with self.subTest(kernel=kernel.name, arch=kernel.arch):
                self.assertIn(kernel.family(), MOST_TEXT_KIB, "a kernel without a limit: give it one")
                self.assertLessEqual(kernel.text, MOST_TEXT_KIB[kernel.family()] * 1024, "bytes of instructions")

    def test_every_limit_has_its_kernel(self):
        self.assertEqual(set(MOST_TEXT_KIB), {kernel.family() for kernel in library.kernels})

    def waiting(self, families):
        """(kernel, opcodes before the wait, opcodes behind it) of kernels that may overlap their predecessor, by ways through them."""
        for kernel in library.kernels:
            if kernel.family() in families and kernel.arch >= 90:
                opcodes = library.opcodes(kernel)
                waits = [i for i, o in enumerate(opcodes) if o == WAIT]
                self.assertEqual(len(waits), WAYS.get(kernel.family(), 1), f"{WAIT} in {kernel.name}, sm_{kernel.arch}")
                for wait in waits:
                    ends = [i + 1 for i in range(wait) if opcodes[i] == "EXIT"]  # of the way before
                    yield kernel, opcodes[max(ends, default=0) : wait], opcodes[wait:]

    def test_weights_and_states_are_on_their_way_before_the_wait(self):
        for kernel, before, _ in self.waiting(EARLY_LOADS):
            begin, least = EARLY_LOADS[kernel.family()]
            with self.subTest(kernel=kernel.name, arch=kernel.arch):
                self.assertGreaterEqual(sum(o.startswith(begin) for o in before), least, f"{begin} before {WAIT}")

    def test_norms_load_four_rows_before_they_add(self):
        for kernel, _, behind in self.waiting({"GemmF16", "GemmF32"}):
            if kernel.name == "GemmF32<4, 1>":
                continue  # a warp has one row
            butterfly = next(i for i, o in enumerate(behind) if o.startswith("SHFL"))
            longest = run = 0
            for opcode in behind[:butterfly]:
                run = 0 if opcode.startswith("FADD") else run + opcode.startswith("LDG.E.128")
                longest = max(longest, run)
            with self.subTest(kernel=kernel.name, arch=kernel.arch):
                self.assertGreaterEqual(longest, 8, "loads of rows without an addition between them")

    def test_kernels_of_elements_divide_no_64_bit_numbers(self):
        # Such a division is a call of some 40 to 80 instructions: more than what an element of a row costs.
        for kernel in library.kernels:
            if kernel.family() in {"ActivateRows", "DecayRows"}:
                with self.subTest(kernel=kernel.name, arch=kernel.arch):
                    self.assertEqual([o for o in library.opcodes(kernel) if o.startswith("I2F.U64")], [])

    def test_norms_of_long_rows_move_four_values_at_a_time(self):
        for kernel in library.kernels:
            if kernel.family() != "NormLongGroups":
                continue
            opcodes = library.opcodes(kernel)
            stores = {o for o in opcodes if o.startswith("STG")}
            loads = [o for o in opcodes if o.startswith("LDG")]
            narrow = [o for o in loads if ".128" not in o]
            with self.subTest(kernel=kernel.name, arch=kernel.arch):
                self.assertEqual(stores, {"STG.E.128", "STG.E.64"}, "four floats, four F16")
                self.assertLessEqual(len(narrow), 1, f"loads beside that of the row's place: {loads}")

    def test_the_recurrence_of_few_segments_copies_three_tokens_ahead(self):
        for kernel in library.kernels:
            if kernel.family() == "RecurrenceFew":
                opcodes = library.opcodes(kernel)
                loop = max(i for i, o in enumerate(opcodes) if o.startswith("LDGDEPBAR"))
                with self.subTest(kernel=kernel.name, arch=kernel.arch):
                    groups = sum(o.startswith("LDGDEPBAR") for o in opcodes)
                    self.assertEqual(groups, 4, "groups of copies: of three tokens, and one in the loop")
                    loads = [o for o in opcodes[loop:] if o.startswith("LDG.")]
                    self.assertEqual(loads, [], "loads into registers while tokens pass")

    def test_the_warp_that_norms_counts_between_fences(self):
        # The emulator has no order of memory: without a fence a norm might read what another warp has not written yet.
        for kernel in library.kernels:
            if kernel.family() == "NormRecurrence":
                opcodes = library.opcodes(kernel)
                order = [o.split(".")[0] for o in opcodes if o.startswith(("MEMBAR", "ATOM", "RED"))]
                behind = opcodes[max(i for i, o in enumerate(opcodes) if o.startswith("MEMBAR")) :]
                with self.subTest(kernel=kernel.name, arch=kernel.arch):
                    self.assertEqual(order, ["MEMBAR", "ATOMG", "MEMBAR"])
                    self.assertGreaterEqual(sum(o == "LDG.E.STRONG.GPU" for o in behind), 32, "loads past the first-level cache, in two passes")

    def test_passes_over_long_rows_of_outputs_have_four_copies_on_their_way(self):
        # A pass: three copies, and in its loop another one and the wait for the oldest.
        for kernel in library.kernels:
            if kernel.family() == "SampleLong":
                opcodes = library.opcodes(kernel)
                copies = [o for o in opcodes if o.startswith("LDGSTS")]
                with self.subTest(kernel=kernel.name, arch=kernel.arch):
                    self.assertEqual(opcodes.count("DEPBAR.LE"), 5, "passes: look, adjust, look for the top, sum, count")
                    self.assertEqual(copies, ["LDGSTS.E.BYPASS.128"] * 4 * 5)
                    # The quad with the largest, and the chunk with the draw: this and the next quad of it.
                    self.assertEqual(opcodes.count("LDG.E.128"), 3, "loads of quads into registers")

    def test_filters_add_to_their_bins_with_one_instruction(self):
        # Of a float or of 64 bits it would be a loop that compares and swaps.
        for kernel in library.kernels:
            if kernel.family() in {"Sample", "SampleLong", "Latency"}:
                atomics = {o for o in library.opcodes(kernel) if o.startswith("ATOM")}
                with self.subTest(kernel=kernel.name, arch=kernel.arch):
                    self.assertEqual(atomics, {"ATOMS.ADD", "ATOMS.POPC.INC.32"})

    def test_records_wait_for_no_full_fence(self):
        # The one fence belongs to the release store of records with a log-probability.
        for kernel in library.kernels:
            if kernel.family() not in {"Sample", "SampleLong", "Latency"}:
                continue
            fences = [o for o in library.opcodes(kernel) if o.startswith(("MEMBAR", "CCTL"))]
            with self.subTest(kernel=kernel.name, arch=kernel.arch):
                self.assertEqual(fences, ["MEMBAR.ALL.SYS"], "fences and invalidations")

    def test_the_table_says_what_the_build_does(self):
        text = kernels_table.FILE.read_text()
        compiler = re.search(r" nvcc (\S+)\.$", text, re.MULTILINE).group(1)
        if compiler != args.compiler:
            self.skipTest(f"{kernels_table.FILE.name} is that of nvcc {compiler}, the build that of {args.compiler}")
        columns = "| kernel | " + " | ".join(f"sm_{a}" for a in library.architectures) + " |"
        if columns not in text:
            self.skipTest(f"{kernels_table.FILE.name} is that of other architectures than {library.architectures}")
        self.assertEqual(text, kernels_table.table(library, launches.shared_memory(args.launches), args.compiler),
                         "run tests/machine_code/kernels_table.py on the built library")


def main() -> None:
    global args, library
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--toolkit", default="", help="folder of nvcc and its tools")
    parser.add_argument("--compiler", required=True, help="version of nvcc")
    parser.add_argument("--launches", type=pathlib.Path, required=True, help="folder of the emulator's test programs")
    args, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = cubins.Library(args.library, args.toolkit, pathlib.Path(folder))
        except cubins.MissingTool as error:
            print(f"skipped: {error}")
            sys.exit(77)
        unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
