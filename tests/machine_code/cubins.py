# SPDX-License-Identifier: Apache-2.0
"""The kernels in a built library: registers, stack, code size and instructions, for every architecture it holds."""

import functools
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass

RESERVED = 1024  # bytes that CUDA keeps of the shared memory of a block that has any, from sm_90 on; cuobjdump counts them
ROOT = pathlib.Path(__file__).resolve().parents[2]


class MissingTool(Exception):
    """A program that reads machine code is not installed."""


@dataclass(frozen=True)
class Kernel:
    name: str  # without namespaces and arguments: GemmF16<4>
    arch: int  # 90: sm_90
    registers: int  # of a thread
    stack: int  # bytes of a thread; spilled registers lie there, too
    local: int  # likewise
    static: int  # bytes of static shared memory of a block
    text: int  # bytes of its instructions
    symbol: str
    cubin: pathlib.Path

    def family(self) -> str:
        return self.name.split("<")[0]


def tool(name: str, folder: str) -> str:
    """The program in `folder`, on PATH, or in build/venv, where deploy/setup.sh --tests puts it."""
    venv = [str(p) for p in ROOT.glob("build/venv/lib/python3*/site-packages/nvidia/cu*/bin")]
    found = shutil.which(name, path=os.pathsep.join([folder, os.environ.get("PATH", ""), *venv]))
    if found is None:
        raise MissingTool(f"no {name}; deploy/setup.sh --tests installs it into build/venv")
    return found


def run(*command: str, cwd=None, text=None) -> str:
    done = subprocess.run(command, cwd=cwd, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def text_bytes(cubin: pathlib.Path) -> dict:
    """Bytes of each kernel's section .text, which ends with padding to 128."""
    data = cubin.read_bytes()
    headers, = struct.unpack_from("<Q", data, 0x28)
    count, names = struct.unpack_from("<HH", data, 0x3C)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, headers + 64 * i) for i in range(count)]
    strings = sections[names][4]
    sizes = {}
    for section in sections:
        begin = strings + section[0]
        name = data[begin : data.index(b"\0", begin)].decode()
        if name.startswith(".text."):
            sizes[name.removeprefix(".text.")] = section[5]
    return sizes


def short_name(demangled: str) -> str:
    name = re.sub(r"rivulet::kernels::|\(anonymous namespace\)::|^void ", "", demangled)
    name = re.sub(r"\(\w+\)(?=\d)", "", name)  # the type of an enumerator among the template arguments
    return name[: name.index("(")] if "(" in name else name


class Library:
    """REQUIRES: `folder` is empty; cubins are put there."""

    def __init__(self, library: pathlib.Path, toolkit: str, folder: pathlib.Path):
        self.nvdisasm = tool("nvdisasm", toolkit)
        cuobjdump = tool("cuobjdump", toolkit)
        run(cuobjdump, "-xelf", "all", str(library.resolve()), cwd=folder)
        found = []
        for cubin in sorted(folder.glob("*.cubin")):
            arch = int(re.search(r"\.sm_(\d+)a?\.cubin$", cubin.name).group(1))
            usage = run(cuobjdump, "-res-usage", str(cubin))
            sizes = text_bytes(cubin)
            used = r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)"
            for symbol, *numbers in re.findall(used, usage):
                registers, stack, shared, local = map(int, numbers)
                static = max(shared - (RESERVED if arch >= 90 else 0), 0)
                found.append([symbol, arch, registers, stack, local, static, sizes.pop(symbol), symbol, cubin])
            if sizes:
                sys.exit(f"{cubin.name}: no resource usage of {', '.join(sizes)}")
        if not found:
            sys.exit(f"{library} holds no kernels")
        names = run("c++filt", text="\n".join(f[0] for f in found)).splitlines()
        self.kernels = [Kernel(short_name(n), *f[1:]) for n, f in zip(names, found)]
        self.architectures = sorted({k.arch for k in self.kernels})

    @functools.cache
    def _listings(self, cubin: pathlib.Path) -> dict:
        """By symbol: the instructions as (predicate, opcode, operands), and the places of labels among them."""
        listings, code, labels = {}, [], {}
        for line in run(self.nvdisasm, "-c", str(cubin)).splitlines():
            if begin := re.match(r"\.text\.(\S+):", line):
                code, labels = listings.setdefault(begin.group(1), ([], {}))
            elif label := re.match(r"(\S+):$", line):
                labels[label.group(1)] = len(code)
            elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)(.*);", line):
                code.append(found.groups())
        return listings

    def opcodes(self, kernel: Kernel) -> list:
        """With their modifiers, in the order of addresses: LDG.E.128."""
        return [opcode for _, opcode, _ in self._listings(kernel.cubin)[kernel.symbol][0]]

    def opcodes_before(self, kernel: Kernel, stop: str) -> list:
        """Those that can run before the first `stop`, on whatever way through the kernel."""
        code, labels = self._listings(kernel.cubin)[kernel.symbol]
        reached, places = set(), [0]
        while places:
            place = places.pop()
            predicate, opcode, operands = code[place]
            if opcode == stop or place in reached:
                continue
            reached.add(place)
            places += [labels[label] for label in re.findall(r"`\((\S+)\)", operands) if label in labels]
            ends = opcode == "EXIT" or opcode.startswith("RET.") or (opcode == "BRA" and operands.strip().startswith("`"))
            if predicate or not ends:  # a call comes back
                places.append(place + 1)
        return [code[place][1] for place in sorted(reached)]
