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
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import phases
from results import MOST_FILES, SKIPPED, Outcome, Results

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Seconds for each phase. Each ends well inside ten minutes, the most that one command may take on a lent machine.
DEADLINES = {"smoke": 180, "facts": 240, "parity": 360, "speed": 480, "soak": 480, "profile": 240, "sanitizer": 480}
MOST_SECONDS = 570  # of all phases together, where none is named


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = f"all whose deadlines end within {MOST_SECONDS} s; it says which are left"
    parser.add_argument("--phase", action="append", choices=list(DEADLINES), help=f"repeatable, run in this order; default: {default}")
    parser.add_argument("--deadline", type=positive, metavar="SECONDS", help="for each phase, instead of its own")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="as nvidia-smi counts; default 0")
    parser.add_argument("--results", type=pathlib.Path, default=default_results(), help="folder; default $OUT/gpu-results, or build/gpu-results of the tree")
    parser.add_argument("--programs", type=pathlib.Path, help="folder of all programs; default: the build, or ../../bin")
    options = parser.parse_args(arguments)
    if not options.phase and (options.deadline or 0) > MOST_SECONDS:
        parser.error(f"--deadline {options.deadline:g} without --phase: all phases together have {MOST_SECONDS} s")
    problem = cannot_return(options.results, options.phase or list(DEADLINES))
    if problem:
        parser.error(f"--results {options.results} {problem}: name another folder")
    return options


def default_results() -> pathlib.Path:
    """Of $OUT alone files come back from a lent machine."""
    out = os.environ.get("OUT")
    return (pathlib.Path(out) if out else ROOT / "build") / "gpu-results"


def cannot_return(folder: pathlib.Path, names: list[str]) -> str | None:
    """Why a lent machine would not return what is in `folder` after these phases."""
    out = pathlib.Path(os.environ["OUT"]).resolve() if os.environ.get("OUT") else None
    under = out if out is not None and folder.resolve().is_relative_to(out) else folder.resolve()
    way = folder.resolve().relative_to(under).parts
    if len(way) > 2 or not all(re.fullmatch(r"[\w.-]+", part, re.ASCII) for part in way):
        return "is more than 2 folders below $OUT, or has an odd name, and a lent machine does not return such files"
    files = {path for path in under.rglob("*") if path.is_file()} | {folder.resolve() / f"{name}.jsonl" for name in names}
    if len(files) > MOST_FILES:
        return f"would make {len(files)} files in {under}, and a lent machine returns at most {MOST_FILES}"
    return None


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
    if shutil.which("git") is None:
        return "unknown"
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


def run_phase(name: str, options: argparse.Namespace, found: dict | None) -> dict[str, list[str]]:
    """What came of each program, as Results.kinds. `found`: the machine."""
    begin = time.monotonic()
    about = {"commit": commit(options.programs), **(found or {})}
    results = Results(name, options.results, options.deadline or DEADLINES[name], about, lambda line: print(line, flush=True))
    if found is None:
        results.record("everything", Outcome("skipped", f"nvidia-smi shows no NVIDIA GPU {options.device} on this machine"))
    else:
        getattr(phases, name)(results, programs(options.programs), options.results)
    print(f"{name}: {time.monotonic() - begin:.0f} s, {results.file.name}", flush=True)
    return results.kinds


def what_is_left(names: list[str], options: argparse.Namespace, arguments: list[str]) -> None:
    """Says which phases had no time, and the commands that run them, each of which ends in time."""
    print(f"Stopped, so that this command ends before {MOST_SECONDS} s. Left: {', '.join(names)}. Run:")
    commands: list[list[str]] = []
    room = 0.0
    for name in names:
        seconds = options.deadline or DEADLINES[name]
        if seconds > room:
            commands.append([])
            room = MOST_SECONDS
        commands[-1] += ["--phase", name]
        room -= seconds
    for flags in commands:
        print("  " + shlex.join(["tests/gpu/run.sh", *flags, *arguments]))


def run_phases(options: argparse.Namespace, arguments: list[str]) -> dict[str, list[str]]:
    """Of each kind of outcome, the names of what had it."""
    end = time.monotonic() + MOST_SECONDS
    found = machine(options.device)
    kinds: dict[str, list[str]] = {}
    names = options.phase or list(DEADLINES)
    for i, name in enumerate(names):
        if found is not None and not options.phase and time.monotonic() + (options.deadline or DEADLINES[name]) > end:
            what_is_left(names[i:], options, arguments)
            kinds.setdefault("not_run", []).extend(names[i:])
            break
        for kind, ones in run_phase(name, options, found).items():
            kinds.setdefault(kind, []).extend(f"{name} {one}" for one in ones)
    return kinds


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    # Every program sees this device as number 0.
    os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(options.device), "RIVULET_SOURCE_DIR": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= phases.library(pathlib.Path(folder))
        kinds = run_phases(options, arguments)
    print(", ".join(f"{kind} {len(names)}" for kind, names in sorted(kinds.items())))
    for kind in ("failed", "crashed", "timed_out", "skipped", "not_run"):
        for one in kinds.get(kind, []):
            print(f"  {kind} {one}")
    return exit_code(kinds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
