# SPDX-License-Identifier: Apache-2.0
"""The dynamic shared memory that launches of kernels ask for. Test programs that run the kernels on the emulator write it beside themselves
when ctest runs them (tests/CMakeLists.txt)."""

import pathlib
import re

import cubins


def of_program(program: pathlib.Path, noted: pathlib.Path) -> dict[str, set[int]]:
    """Bytes that launches of each kernel ask for, by the kernel's name as in cubins.Kernel."""
    names = {}
    for line in cubins.run("nm", "-C", "--defined-only", str(program)).splitlines():
        if found := re.match(r"([0-9a-f]+) [tTwW] (.*\(.*)", line):
            names[int(found.group(1), 16)] = cubins.short_name(found.group(2))
    asked = {}
    for line in noted.read_text().splitlines():
        place, size = line.split()
        asked.setdefault(names[int(place, 16)], set()).add(int(size))
    return asked


def shared_memory(folder: pathlib.Path) -> dict[str, set[int]]:
    """REQUIRES: ctest has run the programs in `folder`."""
    asked = {}
    for noted in sorted(folder.glob("*.launches")):
        program = noted.with_suffix("")
        if noted.stat().st_mtime < program.stat().st_mtime:
            raise RuntimeError(f"{noted} is older than its program; run: ctest --preset release -L machine_code")
        for name, sizes in of_program(program, noted).items():
            asked.setdefault(name, set()).update(sizes)
    if not asked:
        raise RuntimeError(f"{folder} has no *.launches; run: ctest --preset release -L machine_code, which runs those programs first")
    return asked
