#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of kernels/RESOURCES.md from the built kernels: kernels_table.py LIBRARY [--toolkit FOLDER]."""

import argparse
import pathlib
import sys
import tempfile

import cubins

FILE = cubins.ROOT / "kernels" / "RESOURCES.md"
HEAD = """# Registers and code size of the kernels

Written by `tests/machine_code/kernels_table.py`; `machine_code.kernels_test` compares it with the build. Registers of a thread and KiB of
instructions, by architecture. No kernel spills or has a stack. Shared memory is asked for at the launch. nvcc {version}.

"""


def table(library: cubins.Library, version: str) -> str:
    archs = library.architectures
    kernels = {}
    for kernel in library.kernels:
        kernels.setdefault(kernel.name, {})[kernel.arch] = kernel
    lines = ["| kernel | " + " | ".join(f"sm_{a}" for a in archs) + " |", "| --- |" + " --- |" * len(archs)]
    for name in sorted(kernels):
        cells = [f"{kernels[name][a].registers}, {kernels[name][a].text / 1024:.1f}" for a in archs]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return HEAD.format(version=version) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--toolkit", default="", help="folder of nvcc and its tools")
    parser.add_argument("--compiler", required=True, help="version of nvcc, for the table's head")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            FILE.write_text(table(cubins.Library(args.library, args.toolkit, pathlib.Path(folder)), args.compiler))
        except cubins.MissingTool as error:
            sys.exit(f"kernels_table.py: {error}")


if __name__ == "__main__":
    main()
