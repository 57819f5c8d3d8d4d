# SPDX-License-Identifier: Apache-2.0
"""The phases of run.py: their steps, which programs each step runs, for how long, and what of their output is a figure."""

import contextlib
import csv
import dataclasses
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from results import NOT_DONE, Outcome, Results, json_lines, read_lines

SMOKE_LIMIT, TEST_LIMIT, SINGLE_LIMIT, BENCH_LIMIT, PROFILE_LIMIT = 20, 60, 10, 60, 30  # seconds of one program
# Tests of the whole backend, the most telling first, and the tests of kernels without which they say nothing.
BACKEND_TESTS = tuple(f"gpu_{name}_test" for name in ("backend_golden", "backend_bits", "cuda_family", "cuda_against_cpu", "backend_contract",
                                                      "engine_state", "engine_session_state"))  # fmt: skip
BACKEND_NEEDS = tuple(f"gpu_cuda_{name}_test" for name in ("embed", "layer_norm", "slot", "gemm", "linear_attention", "sample"))
SWITCHES = ("overlap", "graphs")  # of CudaBackendOptions, which RIVULET_TESTS_CUDA_OFF names
# Models: rows of a step, tokens of a prompt (0: none).
OWN = (("mnist-linear", (1, 64, 1024), 784), ("rwkv7-0.4b", (1, 64, 1024), 4096), ("mamba2-130m", (1, 64, 1024), 4096), ("granite-350m", (1, 64, 1024), 0))
# The step by hand in PyTorch, in CUDA graphs; fla: the state update alone by flash-linear-attention, in all layers together.
PEERS = ("mnist-linear:f16,tf32:1,64,1024", "rwkv7-0.4b:f16:1,64,1024", "mamba2-130m:f16:1,64,1024",
         "fla.rwkv7:f16:1,64,1024", "fla.gated-delta:f16:1,64,1024", "fla.rwkv7-prompt:f16:4096")  # fmt: skip
# Steps and prompts whose kernels ncu tells apart.
TABLES = (("rwkv7-0.4b", 64, 0), ("rwkv7-0.4b", 1024, 0), ("mamba2-130m", 64, 0), ("mamba2-130m", 1024, 0), ("mnist-linear", 64, 0), ("mnist-linear", 1024, 0),
          ("rwkv7-0.4b", 1, 4096), ("mamba2-130m", 1, 4096))  # fmt: skip
# Where cuBLASLt could win: with our own kernels where `own` has not measured that, then with `auto`.
LIBRARY = (("mnist-linear", (4096,), 0, ("own", "auto")), ("rwkv7-0.4b", (1024,), 4096, ("auto",)), ("rwkv7-1.5b", (), 4096, ("own", "auto")))
# Steps with a switch of bench_step: the words of the figure, the flags, models and rows.
SWITCHED = (("without overlap", ("--overlap=off",), (("mnist-linear", (64,)), ("rwkv7-0.4b", (64,)))),
            ("without graphs", ("--graphs=off",), (("mnist-linear", (64,)), ("rwkv7-0.4b", (64,)))),
            ("with int8 weights", ("--weights=int8",), (("rwkv7-0.4b", (1, 64)),)))  # fmt: skip
MEMCHECK = (("slot", "*"), ("embed", "*"), ("gemm", "*NormAndGather*"), ("recurrence", "*EveryShape*"), ("linear_attention", "*EveryShape*"),
            ("softmax_attention", "*"), ("layer_norm", "*"), ("sample_steps", "*"))  # fmt: skip
# Model, rows, steps: beside a second run of the same.
SHORT_SOAK = (("mnist-linear", 1, 20_000), ("mnist-linear", 16, 10_000))
SOAK = (*(("mnist-linear", rows, 10_000) for rows in (2, 8, 13)), ("rwkv7-0.4b", 32, 500), ("mamba2-130m", 32, 1_000))
IDS = ("model/zoo/mnist-linear", "tests/conformance/family/mamba2")
STREAMS = (1, 64, 1024)
LOAD_SECONDS = (1, 4)  # of warm-up, of measuring
# Shapes of which others have published figures: rows, and tokens that each row has seen.
RECORDS = (("qwen3.5-0.8b", (1, 16, 256, 1024), 128), ("qwen3.5-0.8b", (1, 16), 8192), ("rwkv7-7.2b", (1, 8, 64, 256), 0), ("qwen3.5-0.8b", (256,), 8192))
SECTIONS = ("SpeedOfLight", "WarpStateStats", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")
LONGEST = 3  # kernels whose sections are asked for
PATIENT = {"RIVULET_TESTS_SANITIZER": "1"}  # environment of programs that a tool slows down
RUNS: tuple = ()  # flag of bench_step: how often it measures, instead of its own choice


class Programs:
    """The programs of a build or a bundle, by name."""

    def __init__(self, folders: list[pathlib.Path], root: pathlib.Path):
        self.folders, self.root = folders, root

    def __getitem__(self, name: str) -> pathlib.Path:
        """Where it is, or would be in the first folder."""
        return next((folder / name for folder in self.folders if (folder / name).is_file()), self.folders[0] / name)

    def tests(self) -> list[str]:
        """Test programs that need a device, in order of their names."""
        return sorted({path.name for folder in self.folders for pattern in ("gpu_*_test", "*_cuda_test") for path in folder.glob(pattern)})


@dataclasses.dataclass
class Kit:
    """What a step works with. `before`: the lines of the phase `first`, for the phase after it."""

    results: Results
    programs: Programs
    before: list[dict] = dataclasses.field(default_factory=list)
    copy_rate: float = 0  # GB/s, once measured
    graphs: bool = True  # ncu tells of kernels in graphs

    def run(self, name: str, command: list, limit: float, environment: dict | None = None, **more) -> Outcome:
        """As Results.run; but nvidia-smi shows a device here, so a program that finds none has failed."""
        return self.keep(name, self.results.attempt(command, limit, environment), **more)

    def keep(self, name: str, outcome: Outcome, **more) -> Outcome:
        if outcome.kind == "skipped":
            outcome.kind, outcome.output = "failed", outcome.output + "\nnvidia-smi shows a device that this program does not see"
        return self.results.record(name, outcome, **more)

    def skip(self, name: str, why: str) -> None:
        self.results.record(name, Outcome("skipped", why))

    def device(self) -> list:
        """Flags of bench_step."""
        return ["--backend=cuda", f"--models={self.programs.root / 'model/zoo'}", f"--keep={self.programs.root / 'build/gpu-models'}"]


@dataclasses.dataclass(frozen=True)
class Step:
    """`seconds`: the most that it may take."""

    name: str
    seconds: float
    run: Callable[[Kit], None]


def copy_rate(kit: Kit) -> None:
    """Clocks as they are, and the rate at which the device copies its own memory."""
    if shutil.which("nvidia-smi"):
        clocks = kit.results.run("nvidia-smi", ["nvidia-smi", "-q", "-d", "CLOCK,PERFORMANCE"], SINGLE_LIMIT)
        kit.results.figure("nvidia-smi", output=clocks.output[-2000:])
    copy = kit.run("copy rate", [kit.programs["copy_rate_cuda"]], SMOKE_LIMIT)
    rate = re.search(r"^\s*([0-9.]+)\s*$", copy.output, re.MULTILINE)
    if copy.good and rate:
        kit.copy_rate = float(rate.group(1))
        kit.results.figure("copy rate", gb_per_s=kit.copy_rate)


def smoke(kit: Kit) -> None:
    """Every kernel: each program once, test by test only where it fails."""
    for program in [name for name in kernel_tests(kit) if kit.run(name, [kit.programs[name]], SMOKE_LIMIT, program=name).bad]:
        one_by_one(kit, program)


def kernel_tests(kit: Kit) -> list[str]:
    found = [name for name in kit.programs.tests() if name not in BACKEND_TESTS]
    if not found:
        kit.skip("tests", f"no gpu_*_test in {', '.join(map(str, kit.programs.folders))}")
    return found


def one_by_one(kit: Kit, program: str) -> None:
    for test in list_tests(kit.programs[program]):
        kit.run(f"{program} {test}", [kit.programs[program], f"--gtest_filter={test}"], SINGLE_LIMIT)


def list_tests(program: pathlib.Path) -> list[str]:
    """The full names of a GoogleTest program's tests; none where it does not say."""
    try:
        done = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, timeout=SINGLE_LIMIT)
    except (OSError, subprocess.TimeoutExpired):
        return []
    suite, names = "", []
    for line in done.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if re.fullmatch(r"[\w/]+\.", name):
            suite = name
        elif suite and re.fullmatch(r"  [\w/]+", name):
            names.append(suite + name.strip())
    return names


def backend(kit: Kit) -> None:
    """Every test of the whole backend whose kernels work."""
    broken = failed_programs(read_back(kit.results)) & set(BACKEND_NEEDS)
    for program in BACKEND_TESTS:
        if broken:
            kit.skip(program, f"smoke failed: {', '.join(sorted(broken))}")
        else:
            kit.run(program, [kit.programs[program]], TEST_LIMIT, program=program)


def read_back(results: Results) -> list[dict]:
    """The lines of this run of the phase."""
    return last_run(read_lines(pathlib.Path(results.file.name)))


def last_run(lines: list[dict]) -> list[dict]:
    begin = max((i for i, line in enumerate(lines) if "machine" in line), default=0)
    return lines[begin:]


def failed_programs(lines: list[dict]) -> set[str]:
    """Test programs of which something went wrong."""
    return {line["program"] for line in lines if "program" in line and line.get("outcome") in ("failed", "crashed", "timed_out")}


def own(kit: Kit) -> None:
    """Steps and prompts with our own kernels."""
    for model, rows, prompt in OWN:
        bench(kit, model, rows, prompt)


def library(kit: Kit) -> None:
    """The same where cuBLASLt could win, as --products auto runs it: it says which products took which algorithm, and why others did not."""
    for model, rows, prompt, choices in LIBRARY:
        for products in choices:
            bench(kit, model, rows, prompt, products)


def switches(kit: Kit) -> None:
    """What a part of our own kernels is worth: steps with it and without it."""
    for what, flags, models in SWITCHED:
        for model, rows in models:
            bench(kit, model, rows, what=what, flags=flags)


def short_soak(kit: Kit) -> None:
    soak_of(kit, SHORT_SOAK)


def soak(kit: Kit) -> None:
    """The same bits in many steps, at other rows. A process for each number of rows, so that what has ended is kept."""
    soak_of(kit, SOAK)


def soak_of(kit: Kit, parts: tuple) -> None:
    for model, rows, steps in parts:
        bench(kit, model, (rows,), what="soaked", flags=(f"--soak={steps}",))


def bench(kit: Kit, model: str, rows, prompt: int = 0, products: str = "own", what: str = "", flags=()) -> None:
    """Steps and prompts of one model, in one process, which makes and loads it once. What was measured before a hang or a crash is kept.
    `what`: the words for `flags` of bench_step, with which it measures something else."""
    counts = ",".join(map(str, rows))
    name = " ".join(filter(None, (model, counts, f"prompt of {prompt}" if prompt else "", products if products != "own" else "", what)))
    command = [kit.programs["bench_step"], *kit.device(), f"--copy-gb-per-s={kit.copy_rate}", "--benchmark_format=json", *RUNS, f"--model={model}",
               f"--products={products}", f"--rows={counts or 1}", f"--prompt={prompt}", *flags]  # fmt: skip
    command += [] if rows else ["--benchmark_filter=BM_Prefill"]
    outcome = kit.keep(name, kit.results.attempt(command, BENCH_LIMIT), **({"program": "bench_step"} if what == "soaked" else {}))
    measured = benchmarks(outcome.output)
    if outcome.good and len(measured) < len(rows) + (1 if prompt else 0):
        kit.results.record(name, Outcome("failed", f"not all figures in: {outcome.output[-500:]}"))
    for one in measured:
        keep = ("us/step", "tok/s", "GB/s", "TFLOP/s", "share", "steps", "real_time", "time_unit", "label")
        of = " ".join(filter(None, (model, subject(one["name"]), what)))
        kit.results.figure(one["name"], of=of, products=products, **{key: one[key] for key in keep if key in one})


def subject(benchmark: str) -> str:
    """What a benchmark of bench_step measured, in words."""
    step, prompt = re.search(r"/rows:(\d+)", benchmark), re.search(r"BM_Prefill/(\d+)", benchmark)
    return step.group(1) if step else f"prompt of {prompt.group(1)}" if prompt else benchmark


def benchmarks(output: str) -> list[dict]:
    """The complete entries of Google Benchmark's JSON, which may have been cut short."""
    found: list[dict] = []
    at = output.find('"benchmarks": [')
    rest = output[at:].partition("[")[2] if at >= 0 else ""
    while True:
        rest = rest.lstrip(", \n\t")
        try:
            one, end = json.JSONDecoder().raw_decode(rest)
        except ValueError:
            return found
        if not isinstance(one, dict) or "name" not in one:
            return found
        found.append(one)
        rest = rest[end:]


def peers(kit: Kit) -> None:
    """The peers in one process, whose import of PyTorch takes seconds: a line of JSON for each figure, exit code 77 without PyTorch."""
    seconds = max(1.0, kit.results.left() - 5)
    command = [shutil.which("python3") or sys.executable, kit.programs.root / "tests/bench/peers.py", f"--seconds={seconds:.0f}"]
    command += [part for setting in PEERS for part in ("--step", setting)]
    packages = (kit.programs.folders[0].parent / "python", kit.programs.root / "build/gpu-peer")  # of a bundle, of a tree
    outcome = kit.results.run("peers", command, seconds + 60, {"PYTHONPATH": ":".join([*map(str, packages), os.environ.get("PYTHONPATH", "")])})
    for line in json_lines(outcome.output):
        kit.results.figure("peers", **line)


def kernels(kit: Kit) -> None:
    """Every kernel of one step, or of a prompt, with its time."""
    metric = "gpu__time_duration.sum"
    for model, rows, prompt in TABLES:
        what = f"{model} prompt of {prompt}" if prompt else f"{model} {rows}"
        times: dict[tuple[str, str], list[float]] = {}
        for line in ncu(kit, f"kernels {what}", ["--metrics", metric, "--cache-control", "none"], model, rows, prompt):
            if line["Metric Name"] == metric and re.fullmatch(r"[\d.,]+", line["Metric Value"] or ""):
                ns = float(line["Metric Value"].replace(",", ""))
                times.setdefault((line["Kernel Name"], line.get("Grid Size", "")), []).append(ns / 1000)
        if times:
            table = [{"kernel": name, "grid": grid, "launches": len(us), "us": round(sum(us), 3)} for (name, grid), us in times.items()]
            table.sort(key=lambda row: -row["us"])
            kit.results.figure(f"kernels {what}", kernels=table, us=round(sum(row["us"] for row in table), 3))


def sections(kit: Kit) -> None:
    """Why the longest kernels of a step wait."""
    tables = [line for line in kit.before if "kernels" in line.get("figures", {}) and "prompt" not in line["name"]]
    longest: dict[str, tuple] = {}
    for line in tables:
        model, rows = line["name"].removeprefix("kernels ").rsplit(" ", 1)
        for one in line["figures"]["kernels"]:
            name = short(one["kernel"])
            longest[name] = max(longest.get(name, (0.0, "", 0)), (one["us"], model, int(rows)))
    if not longest:
        kit.skip("sections", "the first command has no table of kernels")
    flags = ["--launch-count", 1, "--page", "details", *(part for section in SECTIONS for part in ("--section", section))]
    for kernel, (_, model, rows) in sorted(longest.items(), key=lambda item: -item[1][0])[:LONGEST]:
        found = ncu(kit, f"sections {kernel}", ["--kernel-name", f"regex:{re.match(r'[A-Za-z0-9_]*', kernel).group()}", *flags], model, rows)
        keep = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
        if found:
            kit.results.figure(f"sections {kernel}", rows=[[line.get(key) for key in keep] for line in found])


def short(kernel: str) -> str:
    """A kernel's name without its arguments and namespaces."""
    kernel = re.sub(r"\([\w: ]+\)(?=[-\d])", "", kernel)  # ncu writes Gemm<(int)2>
    return re.sub(r"\(anonymous namespace\)::|<?unnamed>::|\b[a-z_]+::|^void ", "", kernel).split("(")[0].strip()


def ncu(kit: Kit, name: str, flags: list, model: str, rows: int, prompt: int = 0) -> list[dict]:
    """What ncu tells of the kernels of one step or one prompt, a dict a line of its table. The clocks stay as they are: the machine is not
    ours. Where it tells nothing of kernels in a graph, this and all later steps run with kernels that the host launches."""
    tool = find_tool("ncu")
    if tool is None:
        kit.skip(name, "ncu is not installed")
        return []
    command = [tool, "--clock-control", "none", "--graph-profiling", "node", "--profile-from-start", "off", "--apply-rules", "no", "--print-units", "base", "--csv", *flags]
    command += [kit.programs["bench_step"], *kit.device(), f"--model={model}", f"--rows={rows}", f"--prompt={prompt}", "--products=own"]
    command += ["--profile", *(["--benchmark_filter=BM_ProfiledPrompt"] if prompt else [])]
    while True:
        outcome = kit.results.attempt([*command, f"--graphs={'on' if kit.graphs else 'off'}"], PROFILE_LIMIT, PATIENT)
        found = list(csv.DictReader(line for line in outcome.output.splitlines() if line.startswith('"')))
        if outcome.good and not (found and {"Kernel Name", "Metric Name", "Metric Value"} <= set(found[0])):
            outcome.kind, found = "failed", []
        kit.results.record(name if kit.graphs else f"{name} without graphs", outcome)
        if found or not kit.graphs or outcome.kind in NOT_DONE:
            return found
        kit.graphs = False


def find_tool(name: str) -> str | None:
    places = ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/nvidia/nsight-compute/*")
    return shutil.which(name) or shutil.which(name, path=":".join(path for place in places for path in sorted(glob.glob(place))))


def memcheck(kit: Kit) -> None:
    sanitize(kit, "memcheck", [(f"gpu_cuda_{name}_test", pattern) for name, pattern in MEMCHECK])


def sanitize(kit: Kit, kind: str, programs: list[tuple[str, str]]) -> None:
    """compute-sanitizer on small shapes, once it has shown that it runs on this machine."""
    tool = find_tool("compute-sanitizer")
    if tool is None:
        kit.skip(kind, "compute-sanitizer is not installed")
        return
    command = [tool, "--tool", kind, "--error-exitcode", 1]
    probe = kit.results.attempt([*command, kit.programs["copy_rate_cuda"]], SMOKE_LIMIT)
    if not probe.good:
        no_use = Outcome("skipped", f"it does not run here ({probe.kind}): {probe.output}")
        kit.results.record(kind, probe if probe.kind in NOT_DONE else no_use)
        return
    for program, pattern in programs:
        outcome = kit.results.attempt([*command, kit.programs[program], f"--gtest_filter={pattern}"], SMOKE_LIMIT, {"RIVULET_TESTS_SMALL": "1", **PATIENT})
        if outcome.kind == "timed_out":  # it is slow, which is no fault of the program
            outcome.kind = "cut"
        kit.results.record(f"{kind} {program} {pattern}", outcome, program=program)


def again(kit: Kit) -> None:
    """What failed, test by test."""
    for program in sorted(failed_programs(kit.before)):
        one_by_one(kit, program)


def again_without(kit: Kit) -> None:
    """What failed of the whole backend, without dependent launch and without graphs."""
    for program in sorted(failed_programs(kit.before) & set(BACKEND_TESTS)):
        for off in SWITCHES:
            kit.run(f"{program} without {off}", [kit.programs[program]], TEST_LIMIT, {"RIVULET_TESTS_CUDA_OFF": off})


def again_sanitized(kit: Kit) -> None:
    """What failed, under memcheck and racecheck, which looks at shared memory."""
    for kind in ("memcheck", "racecheck"):
        sanitize(kit, kind, [(program, "*") for program in sorted(failed_programs(kit.before))])


def records(kit: Kit) -> None:
    """Steps of shapes of which others have published figures."""
    for model, rows, context in RECORDS:
        bench(kit, model, rows, what=f"after {context} tokens" if context else "", flags=(f"--context={context}",) if context else ())
    kit.skip("qwen3.5-0.8b 1024 after 8192 tokens", "keys and values of 1,024 rows take some 230 GB in float32, more than one GPU has")


def ids(kit: Kit) -> None:
    """A model's numerics id is the same in two processes, and with `auto` that of our own kernels: states of one replica continue on another,
    and outlive a restart."""
    for model in IDS:
        told = []
        name = f"id of {pathlib.Path(model).name}"
        for products in ("own", "auto", "auto"):
            with served(kit, name, ["--model", kit.programs.root / model, "--slots", 8, "--products", products]) as server:
                if server is None:
                    break
                told.append(server[1])
        if len(told) < 3:
            continue
        found = [one.get("numerics_id") for one in told]
        same = found[0] and len(set(found)) == 1
        kit.results.record(name, Outcome("passed") if same else Outcome("failed", f"ids {found[1]} and {found[2]}, with our own kernels {found[0]}"))
        kit.results.figure(name, **{key: told[1].get(key) for key in ("numerics_id", "plan", "products", "head_rows")})


def server(kit: Kit) -> None:
    """`rivulet bench` against a server on loopback: gRPC, engine and device together."""
    with served(kit, "server", ["--model", kit.programs.root / "model/zoo/mnist-linear", "--slots", max(STREAMS)]) as found:
        for streams in STREAMS if found else ():
            load(kit, found[0], streams)


@contextlib.contextmanager
def served(kit: Kit, name: str, flags: list):
    """A server on loopback: its HOST:PORT, and what its log says of the model. None where it does not start; that is kept under `name`."""
    command = [kit.programs["rivulet-server"], *flags, "--backend", "cuda", "--listen", "127.0.0.1:0"]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except OSError as error:
            kit.results.record(name, Outcome("not_run", f"{command[0]}: {error.strerror}"))
            yield None
            return
        try:
            limit = min(SMOKE_LIMIT, kit.results.left())
            lines = await_listening(process, log, limit)
            if not lines:
                kit.results.cut |= limit < SMOKE_LIMIT
                kit.results.record(name, Outcome("cut" if limit < SMOKE_LIMIT else "failed", "it does not listen: " + log_of(log)))
            yield (lines["listening"]["address"], lines.get("model", {})) if lines else None
        finally:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SINGLE_LIMIT)


def log_of(file) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode("utf-8", "replace")


def await_listening(process: subprocess.Popen, log, seconds: float) -> dict[str, dict]:
    """The lines of the log by event, once it says where the server listens; none where it ends before, or says nothing for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        lines = {line["event"]: line for line in json_lines(log_of(log)) if "event" in line}
        if "address" in lines.get("listening", {}):
            return lines
        time.sleep(0.1)
    return {}


def load(kit: Kit, target: str, streams: int) -> None:
    """So many streams at once."""
    name = f"server {streams}"
    command = [kit.programs["rivulet"], "bench", "--target", target, "--concurrency", streams, "--warmup", LOAD_SECONDS[0], "--duration", LOAD_SECONDS[1]]
    outcome = kit.run(name, [*command, "--fail-on-error", "--json", "-"], SMOKE_LIMIT)
    if not outcome.good:
        return
    try:
        measured = json.loads(outcome.output[outcome.output.index("{") : outcome.output.rindex("}") + 1])
        latency = {what: {name: ms for name, ms in values.items() if name != "buckets"} for what, values in measured["latency_ms"].items()}
        kit.results.figure(name, window=measured["window"], latency_ms=latency)
    except (ValueError, KeyError):
        kit.results.record(name, Outcome("failed", f"no figures in: {outcome.output[-500:]}"))


def library_folder(folder: pathlib.Path) -> dict[str, str]:
    """Environment in which cuBLASLt is found: where the dynamic linker does not know it, PyTorch may have brought it. `folder` gets a link
    to that file alone: beside it PyTorch keeps other versions of what ncu needs."""
    ask = "import importlib.util as u; s = u.find_spec('nvidia'); print(*(s.submodule_search_locations if s else ()), sep='\\n')"
    try:
        done = subprocess.run([shutil.which("python3") or sys.executable, "-c", ask], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    for place in done.stdout.splitlines():
        file = pathlib.Path(place) / "cu13/lib/libcublasLt.so.13"
        if file.is_file():
            (folder / file.name).symlink_to(file)
            return {"LD_LIBRARY_PATH": ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), str(folder))))}
    return {}


SMOKE = (Step("copy rate", 15, copy_rate), Step("smoke", 70, smoke))
FIRST = (*SMOKE, Step("own", 95, own), Step("peers", 85, peers), Step("backend", 80, backend), Step("kernels", 60, kernels),
         Step("library", 45, library), Step("switches", 30, switches), Step("memcheck", 30, memcheck), Step("short soak", 30, short_soak))  # fmt: skip
GREEN = (Step("server", 35, server), Step("soak", 50, soak), Step("records", 80, records), Step("sections", 30, sections), Step("ids", 30, ids))
RED = (Step("again", 60, again), Step("again without", 60, again_without), Step("again sanitized", 60, again_sanitized))
