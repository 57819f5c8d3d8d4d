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
    "LayerNorm": 13,
    "LongAttention": 56,
    "LowerBoundKeys": 7,
    "MarkProductRows": 2,
    "NormGroups": 25,
    "NormLongGroups": 42,
    "NormTokenShift": 24,
    "Recurrence": 59,
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
# What kernels may load before they wait for their predecessor, by the beginning of their names: weights, bias, and in attention
# the segment and the state, which nobody writes in the launch before (launch_cuda.h). How many instructions, at least and at
# most: what is late costs time, and what is not named may read too early. All go past the first-level cache. Kernels that are
# not named load nothing.
EARLY_LOADS = {
    r"Attention<": {"LDG.E.128.STRONG.GPU": (9, 17), "LDG.E.STRONG.GPU": (1, 4)},
    r"GemmF16<., Half": {"LDG.E.128.STRONG.GPU": (8, 8), "LDG.E.STRONG.GPU": (2, 8)},
    r"GemmF16<., Int8": {"LDG.E.64.STRONG.GPU": (8, 8), "LDG.E.U16.STRONG.GPU": (8, 8), "LDG.E.STRONG.GPU": (2, 8)},
    r"(Group)?GemmF32": {"LDG.E.128.STRONG.GPU": (8, 8), "LDG.E.STRONG.GPU": (4, 16)},
    r"GemmFewF16": {"LDGSTS.E.BYPASS.128": (4, 5), "LDG.E.STRONG.GPU": (2, 2)},
    r"GroupGemmF16": {  # each block takes one of two ways
        "LDG.E.128.STRONG.GPU": (8, 8), "LDG.E.64.STRONG.GPU": (8, 8), "LDG.E.U16.STRONG.GPU": (8, 8), "LDG.E.STRONG.GPU": (4, 16)},
    r"GroupGemmFewF16": {"LDGSTS.E.BYPASS.128": (8, 10), "LDG.E.STRONG.GPU": (4, 4)},
    r"GroupWideGemm<(Small|Middle|Large)": {"LDGSTS.E.BYPASS.128": (8, 10), "LDG.E.STRONG.GPU": (16, 32)},
    r"GroupWideGemm<(Narrow|Low)": {"LDGSTS.E.BYPASS.128": (28, 55), "LDG.E.STRONG.GPU": (4, 8)},
    r"LongAttention<.*, false>, ": {"LDG.E.128.STRONG.GPU": (9, 17)},
    r"LongAttention<.*, true>, ": {"LDG.E.128.STRONG.GPU": (1, 1), "LDG.E.STRONG.GPU": (4, 8)},
    r"WideGemm<WideShape<., ., ., ., 3": {"LDGSTS.E.BYPASS.128": (4, 6), "LDG.E.STRONG.GPU": (8, 16)},
    r"WideGemm<WideShape<., ., ., ., (8|12)": {"LDGSTS.E.BYPASS.128": (14, 33), "LDG.E.STRONG.GPU": (2, 4)},
}
# Kernels that load by ld.global.nc, which the compiler may move before the wait: weights, omega, tables of sines. No other.
CONSTANT_LOADS = {"Attention", "AttentionFeatures", "Embed", "GenericAttention", "NormTokenShift", "RotateHeads"}
WAIT = "ACQBULK"  # griddepcontrol.wait, from sm_90 on
# How instructions begin that touch memory, and those among them that touch parameters, shared memory or nothing.
MEMORY = ("ATOM", "CCTL", "LD", "MEMBAR", "RED", "ST", "SULD", "SUST", "TEX", "TLD", "UBLK", "ULD", "URED", "UST", "UTMA")
NO_GLOBAL_MEMORY = ("ATOMS", "LDC", "LDGDEPBAR", "LDS", "REDUX", "STS", "ULDC")
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

    def waiting(self):
        """Kernels that may overlap their predecessor."""
        return [k for k in library.kernels if k.arch >= 90]

    def test_before_the_wait_kernels_load_what_is_listed_and_do_nothing_else_to_memory(self):
        for kernel in self.waiting():
            before = library.opcodes_before(kernel, WAIT)
            memory = [o for o in before if o.startswith(MEMORY) and not o.startswith(NO_GLOBAL_MEMORY)]
            listed = [loads for name, loads in EARLY_LOADS.items() if re.match(name, kernel.name)]
            with self.subTest(kernel=kernel.name, arch=kernel.arch):
                self.assertNotIn("EXIT", before, f"a way without {WAIT}")
                self.assertLessEqual(len(listed), 1, "places in the list")
                loads = listed[0] if listed else {}
                self.assertLessEqual(set(memory), set(loads), f"before {WAIT}")
                for opcode, (least, most) in loads.items():
                    self.assertIn(memory.count(opcode), range(least, most + 1), f"{opcode} before {WAIT}")

    def test_every_listed_load_has_its_kernel(self):
        names = [k.name for k in self.waiting()]
        for name in EARLY_LOADS if names else []:
            self.assertTrue(any(re.match(name, n) for n in names), name)

    def test_only_kernels_that_are_named_load_by_the_way_that_may_be_moved_before_the_wait(self):
        kernels = [k for k in library.kernels if k.arch >= 90]
        found = {k.family() for k in kernels if any(".CONSTANT" in o for o in library.opcodes(k))}
        self.assertEqual(found, CONSTANT_LOADS if kernels else set())

    def test_norms_load_four_rows_before_they_add(self):
        for kernel in self.waiting():
            if kernel.family() not in {"GemmF16", "GemmF32"} or kernel.name == "GemmF32<4, 1>":
                continue  # the last: a warp has one row
            opcodes = library.opcodes(kernel)
            behind = opcodes[opcodes.index(WAIT) :]
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
            if kernel.family() in {"Sample", "SampleLong"}:
                atomics = {o for o in library.opcodes(kernel) if o.startswith("ATOM")}
                with self.subTest(kernel=kernel.name, arch=kernel.arch):
                    self.assertEqual(atomics, {"ATOMS.ADD", "ATOMS.POPC.INC.32"})

    def test_records_wait_for_no_full_fence(self):
        # The one fence belongs to the release store of records with a log-probability.
        for kernel in library.kernels:
            if kernel.family() not in {"Sample", "SampleLong"}:
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
    parser.add_argument("--launches", type=pathlib.Path, required=True, help="folder of the emulator's test programs, which ctest has run")
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
