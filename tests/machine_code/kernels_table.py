#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of kernels/RESOURCES.md from the built kernels and what their launches on the emulator ask for:
kernels_table.py LIBRARY --compiler VERSION --launches FOLDER [--toolkit FOLDER]."""

import argparse
import pathlib
import sys
import tempfile

import cubins
import launches

FILE = cubins.ROOT / "kernels" / "RESOURCES.md"
HEAD = """# Registers, code and shared memory of the kernels

Written by `tests/machine_code/kernels_table.py`; `machine_code.kernels_test` compares it with the
build. For each architecture: registers of a thread, KiB of instructions. No kernel spills, has a
stack, or has static shared memory. The last column is the dynamic shared memory of a block in
bytes, as requested by launches on the emulator: one number if all launches of the tests request the
same, else "by shape". nvcc {version}.

"""


def table(library: cubins.Library, dynamic: dict[str, set[int]], version: str) -> str:
    archs = library.architectures
    kernels = {}
    for kernel in library.kernels:
        kernels.setdefault(kernel.name, {})[kernel.arch] = kernel
    lines = ["| kernel | " + " | ".join(f"sm_{a}" for a in archs) + " | shared |", "| --- |" + " --- |" * (len(archs) + 1)]
    for name in sorted(kernels):
        cells = [f"{kernels[name][a].registers}, {kernels[name][a].text / 1024:.1f}" for a in archs]
        asked = dynamic.get(name, set())
        shared = "not launched" if not asked else f"{min(asked):,}" if len(asked) == 1 else "by shape"
        lines.append(f"| `{name}` | " + " | ".join([*cells, shared]) + " |")
    return HEAD.format(version=version) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--toolkit", default="", help="folder of nvcc and its tools")
    parser.add_argument("--compiler", required=True, help="version of nvcc, for the table's head")
    parser.add_argument("--launches", type=pathlib.Path, required=True, help="folder of the emulator's test programs, which ctest has run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            library = cubins.Library(args.library, args.toolkit, pathlib.Path(folder))
            FILE.write_text(table(library, launches.shared_memory(args.launches), args.compiler))
        except cubins.MissingTool as error:
            sys.exit(f"kernels_table.py: {error}")


if __name__ == "__main__":
    main()
