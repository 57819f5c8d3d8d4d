#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what needs a GPU, in two commands that fit a borrowed machine with a time limit.

  first   every kernel and backend test, our figures beside those of PyTorch and flash-linear-attention, the time of every kernel, what
          decides the open questions, memcheck, a short soak
  second  after `first`: what failed, test by test and under compute-sanitizer; or, where nothing failed, the server under load, a soak,
          shapes with published figures, why the longest kernels wait
  smoke   the beginning of `first`: every kernel test

A step of a phase has the smaller of its own limit and what is left of the phase. Results are lines of JSON in RESULTS/PHASE.jsonl,
written as they come: a kill loses nothing. report.py beside this file makes tables of them. Runs from the source tree after a build
with CUDA, or beside the folder that deploy/bundle.sh --gpu-tests made (--programs).

Exit code: 0 everything ran and passed, 1 something failed, 2 bad usage, 77 nothing failed but something was skipped or had no time left.
"""

import argparse
import contextlib
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback

import phases
from results import MOST_FILES, NOT_DONE, SKIPPED, Outcome, Results, read_lines

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEADLINES = {"smoke": 85, "first": 540, "second": 170}  # seconds
KEPT = ROOT / "build/gpu-first.jsonl"  # what `first` found, for `second`, whose $OUT is empty
CLOCKS = "timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", choices=list(DEADLINES), default="first", help="default: first")
    parser.add_argument("--deadline", type=positive, metavar="SECONDS", help="of the phase; with more than its own, steps have more in proportion")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="as nvidia-smi counts; default 0")
    parser.add_argument("--results", type=pathlib.Path, default=default_results(), help="folder; default $OUT/gpu-results, or build/gpu-results of the tree")
    parser.add_argument("--programs", type=pathlib.Path, help="folder of all programs; default: the build")
    options = parser.parse_args(arguments)
    problem = cannot_return(options.results, options.phase)
    if problem:
        parser.error(f"--results {options.results} {problem}: name another folder")
    return options


def default_results() -> pathlib.Path:
    """Of $OUT alone files come back from a borrowed machine."""
    out = os.environ.get("OUT")
    return (pathlib.Path(out) if out else ROOT / "build") / "gpu-results"


def cannot_return(folder: pathlib.Path, phase: str) -> str | None:
    """Why a borrowed machine would not return what is in `folder` after this phase."""
    out = pathlib.Path(os.environ["OUT"]).resolve() if os.environ.get("OUT") else None
    under = out if out is not None and folder.resolve().is_relative_to(out) else folder.resolve()
    way = folder.resolve().relative_to(under).parts
    if len(way) > 2 or not all(re.fullmatch(r"[\w.-]+", part, re.ASCII) for part in way):
        return "is more than 2 folders below $OUT, or has an odd name, and a borrowed machine does not return such files"
    files = {path for path in under.rglob("*") if path.is_file()} | {folder.resolve() / name for name in (f"{phase}.jsonl", "clocks.csv")}
    if len(files) > MOST_FILES:
        return f"would make {len(files)} files in {under}, and a borrowed machine returns at most {MOST_FILES}"
    return None


def machine(device: int) -> dict | None:
    """What nvidia-smi says about the device; None where it shows no such device."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    fields = ("name", "driver_version", "clocks.max.sm", "clocks.max.mem", "memory.total")
    query = [smi, "-i", str(device), f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=90)  # of which a driver that is not loaded takes some
    except subprocess.TimeoutExpired:
        return {"name": "unknown"} if pathlib.Path("/dev/nvidiactl").exists() else None
    values = done.stdout.strip().split(", ")
    return dict(zip(fields, values)) if done.returncode == 0 and len(values) == len(fields) else None


@contextlib.contextmanager
def clocks_logged(device: int, folder: pathlib.Path):
    """Logs the clocks every 5 s beside the results. Where nothing else does, this keeps the driver loaded, too: without it each program
    waits 1 to 3 s for the driver. It changes no setting."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "clocks.csv").open("a") as file:
        command = ["nvidia-smi", "-i", str(device), "-l", "5", f"--query-gpu={CLOCKS}", "--format=csv"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            yield
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)


def commit(given: pathlib.Path | None) -> str:
    """Of which the programs are: what the kit says, else that of the tree."""
    if given is not None and (given.parent / "COMMIT").is_file():
        return (given.parent / "COMMIT").read_text().strip()
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True) if shutil.which("git") else None
    return done.stdout.strip() if done is not None and done.returncode == 0 else "unknown"


def programs(given: pathlib.Path | None) -> phases.Programs:
    """Where the programs are. One folder in a bundle, three in a build."""
    build = ROOT / "build/release"
    return phases.Programs([given] if given is not None else [build / "kit", build / "bin", build / "tests"], ROOT)


def steps_of(phase: str, before: list[dict]) -> tuple[phases.Step, ...]:
    if phase == "second":
        return phases.RED if phases.failed_programs(before) else phases.GREEN
    return phases.FIRST if phase == "first" else phases.SMOKE


def run_phase(options: argparse.Namespace, found: dict | None) -> Results:
    phase = options.phase
    seconds = options.deadline or DEADLINES[phase]
    before = phases.last_run(read_lines(KEPT)) if phase == "second" else []
    about = {"commit": commit(options.programs), **(found or {})}
    kept = KEPT if phase == "first" and found is not None else None
    results = Results(phase, options.results, seconds, about, lambda line: print(line, flush=True), kept)
    if found is None:
        results.record("everything", Outcome("skipped", f"nvidia-smi shows no NVIDIA GPU {options.device} on this machine"))
        return results
    kit = phases.Kit(results, programs(options.programs), before)
    kit.copy_rate = next((line["figures"]["gb_per_s"] for line in before if line.get("name") == "copy rate" and "figures" in line), 0)
    with clocks_logged(options.device, options.results):
        for step in steps_of(phase, before):
            results.begin(step.name, step.seconds * max(1, seconds / DEADLINES[phase]))
            try:
                step.run(kit)
            except Exception:  # a fault of this script must not cost the steps behind it
                results.record(f"{step.name}: the script", Outcome("failed", traceback.format_exc()))
            results.finish()
    return results


def verdict(results: Results, options: argparse.Namespace) -> str:
    """Of the phase `first`: green or red, and the command that goes on from there."""
    failed = phases.failed_programs(phases.read_back(results))
    flags = ["--programs", str(options.programs)] if options.programs else []
    command = shlex.join(["tests/gpu/run.sh", "--phase", "second", *flags])
    what = f"red: {', '.join(sorted(failed))} failed. Next: test by test" if failed else "green: no test program failed. Next: load, soak and records"
    return f"{what} ({DEADLINES['second']} s): {command}"


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    # Every program sees this device as number 0.
    os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(options.device), "RIVULET_SOURCE_DIR": str(ROOT)}
    found = machine(options.device)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= phases.library_folder(pathlib.Path(folder))
        results = run_phase(options, found)
    kinds = results.kinds
    for kind in ("failed", "crashed", "timed_out", *NOT_DONE):
        for one in kinds.get(kind, []):
            print(f"  {kind} {one}")
    print(", ".join(f"{kind} {len(names)}" for kind, names in sorted(kinds.items())))
    if options.phase == "first" and found is not None:
        print(verdict(results, options))
    if any(kinds.get(kind) for kind in ("failed", "crashed", "timed_out")):
        return 1
    return SKIPPED if any(kinds.get(kind) for kind in NOT_DONE) or not kinds else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
