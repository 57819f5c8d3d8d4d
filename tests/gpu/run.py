#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what needs a GPU, in phases that each fit into a short loan of a machine.

Results are lines of JSON in RESULTS/PHASE.jsonl, written as they come: a kill loses nothing. report.py beside this file makes tables
of them. Runs from the source tree after a build with CUDA, or beside the folder that deploy/bundle.sh --gpu-tests made (--programs).

Exit code: 0 everything ran and passed, 1 something failed, 2 bad usage, 77 nothing failed but something was skipped or had no time left.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

import phases
from results import MOST_FILES, SKIPPED, Outcome, Results

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Seconds for each phase. Each ends well inside ten minutes, the most that one command may take on a lent machine.
DEADLINES = {"smoke": 180, "parity": 360, "speed": 480, "profile": 240, "sanitizer": 480}


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", action="append", choices=list(DEADLINES), help="repeatable, run in this order; default: all")
    parser.add_argument("--deadline", type=positive, metavar="SECONDS", help="for each phase, instead of its own")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="as nvidia-smi counts; default 0")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("gpu-results"), help="folder; default gpu-results")
    parser.add_argument("--programs", type=pathlib.Path, help="folder of all programs; default: the build, or ../../bin")
    options = parser.parse_args(arguments)
    files = {path.name for path in options.results.iterdir()} if options.results.is_dir() else set()
    files |= {f"{name}.jsonl" for name in options.phase or DEADLINES}
    if len(files) > MOST_FILES:
        parser.error(f"--results {options.results} would hold {len(files)} files, and a lent machine returns at most {MOST_FILES}: name another folder")
    return options


def machine(device: int) -> dict | None:
    """What nvidia-smi says about the device; None where it shows no such device."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    fields = ("name", "driver_version", "clocks.max.sm", "clocks.max.mem", "memory.total")
    query = [smi, "-i", str(device), f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return None
    values = done.stdout.strip().split(", ")
    return dict(zip(fields, values)) if done.returncode == 0 and len(values) == len(fields) else None


def commit(given: pathlib.Path | None) -> str:
    """Of which the programs are: what the kit says, else that of the tree."""
    stamp = given.parent / "COMMIT" if given is not None else ROOT / "COMMIT"
    if stamp.is_file():
        return stamp.read_text().strip()
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def programs(given: pathlib.Path | None) -> phases.Programs:
    """Where the programs are. One folder in a bundle, two in a build."""
    build = ROOT / "build/release"
    folders = [given] if given is not None else [ROOT / "bin"] if (ROOT / "bin").is_dir() else [build / "bin", build / "tests"]
    return phases.Programs(folders, ROOT)


def exit_code(kinds: dict[str, list[str]]) -> int:
    if any(kinds.get(kind) for kind in ("failed", "crashed", "timed_out")):
        return 1
    return SKIPPED if kinds.get("skipped") or kinds.get("not_run") or not kinds else 0


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    # Every program sees this device as number 0.
    os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(options.device), "RIVULET_SOURCE_DIR": str(ROOT)}
    found = machine(options.device)
    kinds: dict[str, list[str]] = {}
    for name in options.phase or DEADLINES:
        begin = time.monotonic()
        about = {"commit": commit(options.programs), **(found or {})}
        results = Results(name, options.results, options.deadline or DEADLINES[name], about, lambda line: print(line, flush=True))
        if found is None:
            results.record("everything", Outcome("skipped", f"nvidia-smi shows no NVIDIA GPU {options.device} on this machine"))
        else:
            getattr(phases, name)(results, programs(options.programs), options.results)
        for kind, names in results.kinds.items():
            kinds.setdefault(kind, []).extend(f"{name} {one}" for one in names)
        print(f"{name}: {time.monotonic() - begin:.0f} s, {results.file.name}", flush=True)
    print(", ".join(f"{kind} {len(names)}" for kind, names in sorted(kinds.items())))
    for kind in ("failed", "crashed", "timed_out", "skipped", "not_run"):
        for one in kinds.get(kind, []):
            print(f"  {kind} {one}")
    return exit_code(kinds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
