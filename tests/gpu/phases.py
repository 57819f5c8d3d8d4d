# SPDX-License-Identifier: Apache-2.0
"""The phases of run.py: which programs each runs, for how long, and what of their output is a figure."""

import contextlib
import csv
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from results import Outcome, Results

# Kernels by family: the program, and what of it shows that the family works. One process each, so that a hang costs one of them.
SMOKE = (
    ("embed", "gpu_cuda_embed_test", "*"),
    ("norm", "gpu_cuda_layer_norm_test", "*"),
    ("slot", "gpu_cuda_slot_test", "*"),
    ("gemm", "gpu_cuda_gemm_test", "*EveryShape*"),
    ("gemm", "gpu_cuda_gemm_test", "*ARowHasTheSameBits*"),
    ("gemm", "gpu_cuda_gemm_test", "*Float32Products*"),
    ("gemm", "gpu_cuda_gemm_test", "*NormAndGather*"),
    ("gemm_wide", "gpu_cuda_gemm_wide_test", "*EveryTile*"),
    ("gemm_wide", "gpu_cuda_gemm_wide_test", "*Gathered*"),
    ("gemm_group", "gpu_cuda_gemm_group_test", "*"),
    ("attention", "gpu_cuda_linear_attention_test", "*EveryShape*"),
    ("attention", "gpu_cuda_linear_attention_test", "*ATokenHasTheSameBits*"),
    ("prefill", "gpu_cuda_prefill_attention_test", "*EveryShape*"),
    ("prefill", "gpu_cuda_prefill_attention_test", "*EveryLength*"),
    ("rows", "gpu_cuda_product_rows_test", "*"),
    ("blocks", "gpu_cuda_recurrence_test", "*EveryShape*"),
    ("blocks", "gpu_cuda_causal_conv_test", "*"),
    ("blocks", "gpu_cuda_token_shift_test", "*"),
    ("blocks", "gpu_cuda_group_rows_test", "*"),
    ("blocks", "gpu_cuda_element_rows_test", "*"),
    ("blocks", "gpu_cuda_mixer_rows_test", "*"),
    ("softmax", "gpu_cuda_softmax_attention_test", "*"),
    ("chain", "gpu_cuda_chain_test", "*OneByOne"),
    ("chain", "gpu_cuda_chain_test", "*WithDependentLaunch"),
    ("chain", "gpu_cuda_chain_test", "*AsAGraph"),
    ("chain", "gpu_cuda_chain_test", "*AsAGraphOfDependentLaunches"),
    ("sample", "gpu_cuda_sample_test", "*"),
    ("sample", "gpu_cuda_sample_steps_test", "*"),
    ("latency", "backend_latency_cuda_test", "*AsManyRows*"),
)
# The families without which a test of the whole backend says nothing.
BACKEND_NEEDS = ("embed", "norm", "slot", "gemm", "attention", "sample")
NEEDS = {"gpu_cuda_chain_test": ("norm", "gemm", "attention"), "gpu_cuda_product_rows_test": ("rows",), "gpu_cuda_embed_test": ("embed",), "gpu_cuda_layer_norm_test": ("norm",), "gpu_cuda_slot_test": ("slot",),
         "gpu_cuda_gemm_test": ("gemm",), "gpu_cuda_gemm_wide_test": ("gemm_wide",), "gpu_cuda_gemm_group_test": ("gemm_group",), "gpu_cuda_linear_attention_test": ("attention",),
         "gpu_cuda_prefill_attention_test": ("prefill",), "gpu_cuda_sample_test": ("sample",), "gpu_cuda_sample_steps_test": ("sample",),
         **{f"gpu_cuda_{name}_test": ("blocks",) for name in ("recurrence", "causal_conv", "token_shift", "group_rows", "element_rows", "mixer_rows")},
         "gpu_cuda_softmax_attention_test": ("softmax",), "backend_family_cuda_test": (*BACKEND_NEEDS, "blocks", "gemm_group", "softmax"), "backend_latency_cuda_test": (*BACKEND_NEEDS, "latency"), "shared_math_cuda_test": ()}  # fmt: skip
SWITCHES = ("overlap", "graphs")  # of CudaBackendOptions
SMOKE_LIMIT, TEST_LIMIT, SINGLE_LIMIT = 20, 60, 15  # seconds
# Models: rows of a step, tokens of a prompt (0: none).
FACTS = (("mnist-linear", (1, 64, 1024, 4096), 784), ("rwkv7-0.4b", (1, 32, 256, 1024), 4096), ("mamba2-130m", (1, 32, 256, 1024), 4096),
         ("granite-350m", (1, 32, 256), 4096))  # fmt: skip
INT8_FACTS = (("rwkv7-0.4b", (1, 32, 256), 4096),)  # with weights of 8 bits
KERNEL_ROWS = (64, 1024)  # of the steps whose kernels the facts phase lists
KERNEL_PROMPTS = (("rwkv7-0.4b", 4096), ("mamba2-130m", 4096), ("granite-350m", 4096))  # and prompts
SPEED = (("mnist-linear", (1, 8, 16, 64, 1024, 4096), 784), ("shakespeare-rfa", (1, 64, 1024), 0), ("110m", (1, 16, 64), 784))
FAMILY_PEERS = ("rwkv7-0.4b", "mamba2-130m")  # of FACTS, which peer_family.py has
FAMILY_SPEED = (("rwkv7-1.5b", (1, 16, 64, 256), 0),)  # which plan latency and cuBLASLt for all products do not take
PRODUCTS = ("own", "cublaslt", "auto")  # own kernels, then the peer, then what users get
NO_LIBRARY = r'products is \\?"cublaslt'  # what a program says that does not start without cuBLASLt: the peer is skipped
LIBRARY_ROWS = 64  # from so many rows of a step on all three are measured
LATENCY_ROWS = 16  # most rows of a step that plan latency takes
SESSIONS = (1, 8, 64)  # at once, of the prompts of the speed phase
STREAMS = (1, 64, 1024)
LOAD_SECONDS = (1, 5)  # of warm-up, of measuring
BENCH_LIMIT = 90  # seconds of one model
RUNS: tuple = ()  # flag of bench_step: how often it measures, instead of its own choice
HALVES = ("mnist-linear", (1024, 4096))  # whose steps run as two halves at once, too
# Model, rows, steps, plan. Together a million steps of plan latency at every size of its launches, with weights in shared memory and, in
# "110m", read in every step; then graphs of the family beside a second run of the same.
SOAK = (*(("mnist-linear", rows, 100_000, "latency") for rows in (1, 2, 3, 4, 8, 13, 16)),
        *(("shakespeare-rfa", rows, 100_000, "latency") for rows in (1, 8)), *(("110m", rows, 50_000, "latency") for rows in (1, 16)),
        ("rwkv7-0.4b", 32, 2_000, "throughput"), ("mamba2-130m", 32, 4_000, "throughput"))  # fmt: skip
# Directories of models, and the products under which each has an id.
IDS = (("model/zoo/mnist-linear", ("own", "auto", "cublaslt")), ("tests/conformance/family/mamba2", ("own", "auto")))
# Kernels of `mnist-linear` at 64 rows, for the profiler.
HOT_KERNELS = ("Gemm", "Attention", "Sample", "Latency")
SECTIONS = ("SpeedOfLight", "WarpStateStats", "MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")


class Programs:
    """The programs of a build or a bundle, by name."""

    def __init__(self, folders: list[pathlib.Path], root: pathlib.Path):
        self.folders, self.root = folders, root

    def __getitem__(self, name: str) -> pathlib.Path:
        """Where it is, or would be in the first folder."""
        return next((folder / name for folder in self.folders if (folder / name).is_file()), self.folders[0] / name)

    def tests(self) -> list[pathlib.Path]:
        """Test programs that need a device, in order of their names."""
        found = {path.name: path for folder in self.folders for pattern in ("gpu_*_test", "*_cuda_test") for path in folder.glob(pattern)}
        return [found[name] for name in sorted(found)]


def on_device(results: Results, name: str, command: list, limit: float, environment: dict | None = None, **more) -> Outcome:
    """As Results.run; but nvidia-smi shows a device here, so a program that finds none has failed."""
    return keep_on_device(results, name, results.attempt(command, limit, environment), **more)


def keep_on_device(results: Results, name: str, outcome: Outcome, **more) -> Outcome:
    """Keeps an outcome; `skipped` becomes `failed`."""
    if outcome.kind == "skipped":
        outcome.kind, outcome.output = "failed", outcome.output + "\nnvidia-smi shows a device that this program does not see"
    return results.record(name, outcome, **more)


def smoke(results: Results, programs: Programs, folder: pathlib.Path) -> None:
    """Does every kernel run at all?"""
    for command in (["nvidia-smi", "-q", "-d", "CLOCK,PERFORMANCE"], ["nvcc", "--version"]):
        if shutil.which(command[0]):
            outcome = results.run(" ".join(command), command, 20)
            results.figure(command[0], output=outcome.output[-2000:])
    copy = on_device(results, "copy rate", [programs["copy_rate_cuda"]], SMOKE_LIMIT, family="copy")
    rate = re.fullmatch(r"\s*([0-9.]+)\s*", copy.output)
    if copy.good and rate:
        results.figure("copy rate", gb_per_s=float(rate.group(1)))
    for family, program, pattern in SMOKE:
        command = [programs[program], f"--gtest_filter={pattern}"]
        on_device(results, f"{family}: {program} {pattern}", command, SMOKE_LIMIT, {"RIVULET_TESTS_SMALL": "1"}, family=family)


def failed_families(folder: pathlib.Path) -> set[str]:
    """The families of the last smoke phase of which something went wrong; none without such a phase."""
    failed: set[str] = set()
    for line in read_lines(folder / "smoke.jsonl"):
        if "machine" in line:
            failed = set()  # a later run of the phase
        elif line.get("outcome") in ("failed", "crashed", "timed_out"):
            failed.add(line.get("family", ""))
    return failed


def read_lines(path: pathlib.Path) -> list[dict]:
    """The lines of a file of results."""
    return json_lines(path.read_text(encoding="utf-8")) if path.is_file() else []


def json_lines(text: str) -> list[dict]:
    """The objects among the lines of `text`; one that a kill cut short is left out."""
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [line for line in lines if isinstance(line, dict)]


def parity(results: Results, programs: Programs, folder: pathlib.Path) -> None:
    """Every test on the device. A program that fails is run again test by test."""
    broken = failed_families(folder)
    tests = programs.tests()
    if not tests:
        results.record("tests", Outcome("skipped", f"no gpu_*_test or *_cuda_test in {', '.join(map(str, programs.folders))}"))
    for program in tests:
        missing = sorted(broken & set(NEEDS.get(program.name, BACKEND_NEEDS)))
        if missing:
            results.record(program.name, Outcome("skipped", f"smoke failed: {', '.join(missing)}"))
            continue
        if not on_device(results, program.name, [program], TEST_LIMIT).bad:
            continue
        for test in list_tests(program):
            on_device(results, f"{program.name} {test}", [program, f"--gtest_filter={test}"], SINGLE_LIMIT)
        for off in SWITCHES if program.name.startswith("backend_") else ():
            on_device(results, f"{program.name} without {off}", [program], TEST_LIMIT, {"RIVULET_TESTS_CUDA_OFF": off})


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


def library(folder: pathlib.Path) -> dict[str, str]:
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


def common_flags(programs: Programs, folder: pathlib.Path) -> list:
    """Flags of every call of bench_step that makes figures."""
    rate = next((line["figures"]["gb_per_s"] for line in reversed(read_lines(folder / "smoke.jsonl"))
                 if line.get("name") == "copy rate" and "figures" in line), 0)  # fmt: skip
    return [f"--copy-gb-per-s={rate}", "--benchmark_format=json", *RUNS, *device_flags(programs)]


def device_flags(programs: Programs) -> list:
    return ["--backend=cuda", f"--models={programs.root / 'model/zoo'}"]


def counts(values) -> str:
    return ",".join(map(str, values))


def facts(results: Results, programs: Programs, folder: pathlib.Path) -> None:
    """What one call on a lent machine must bring: steps, prompts and every kernel of a step. Our own kernels first."""
    common = common_flags(programs, folder)
    for model, rows, prompt in FACTS:
        bench(results, programs, model, rows, prompt, common, "own")
    for model, rows, prompt in INT8_FACTS:
        bench(results, programs, model, rows, prompt, common, "own", weights="int8")
    bench(results, programs, *HALVES, 0, common, "own", "throughput", flags=("--halves",))
    for model, _, _ in (*FACTS[1:], FACTS[0]):  # the family first
        for rows in KERNEL_ROWS:
            kernels(results, programs, f"{model} {rows}", model, rows)
    for model, rows, prompt in FACTS:
        bench(results, programs, model, [count for count in rows if count >= LIBRARY_ROWS], prompt, common, "auto")
    for model, prompt in KERNEL_PROMPTS:
        kernels(results, programs, f"{model} prompt of {prompt}", model, 1, prompt)


def speed(results: Results, programs: Programs, folder: pathlib.Path) -> None:
    """Figures, even where tests have failed: report.py marks them then. The most wanted first."""
    sessions = f"--sessions={counts(SESSIONS)}"
    common = [*common_flags(programs, folder), f"--latency-rows={LATENCY_ROWS}", sessions]
    for model, rows, prompt in SPEED:
        few = [count for count in rows if count <= LATENCY_ROWS]
        bench(results, programs, model, few, 0, common, "own", "latency")
        for products in PRODUCTS:
            taken = [count for count in rows if products == "own" or count >= LIBRARY_ROWS]
            bench(results, programs, model, taken, prompt, common, products, "throughput")
    torch = shutil.which("python3") or sys.executable
    for model, rows, _ in SPEED:
        at = model if model == "110m" else programs.root / "model/zoo" / model
        script = programs.root / "tests/bench/peer_graph.py"
        peer(results, f"peer_graph {model}", [torch, script, "--model", at, "--rows", counts(rows), "--compile", "no"])
    for model, rows, _ in FACTS:
        if model in FAMILY_PEERS:
            script = programs.root / "tests/bench/peer_family.py"
            command = [torch, script, "--model", model, "--rows", counts(rows), "--matrices", "f16", "--compile", "no"]
            peer(results, f"peer_family {model}", command)
    sources = os.environ.get("RIVULET_FAST_TRANSFORMERS")
    if sources:
        script = programs.root / "tests/bench/peer_pytorch.py"
        peer(results, "peer_pytorch", [torch, script, "--sources", sources, "--device", "cuda", "--rows", "1,64,1024", "--seconds", "1"])
    else:
        results.record("peer_pytorch", Outcome("skipped", "RIVULET_FAST_TRANSFORMERS names no sources of the library"))
    server(results, programs)
    for model, rows, prompt in FAMILY_SPEED:
        bench(results, programs, model, rows, prompt, common, "own", "throughput")


def soak(results: Results, programs: Programs, folder: pathlib.Path) -> None:
    """The same bits in two processes, and over a million steps. A process for each number of rows, so that what has ended is kept."""
    for model, choices in IDS:
        ids(results, programs, model, choices)
    common = [*common_flags(programs, folder), f"--latency-rows={LATENCY_ROWS}"]
    for model, rows, steps, plan in SOAK:
        bench(results, programs, model, (rows,), 0, common, "own", plan, flags=(f"--soak={steps}",))


def ids(results: Results, programs: Programs, model: str, choices) -> None:
    """A model's numerics id is the same in two processes, and with `auto` that of our own kernels: states of one replica continue on another,
    and outlive a restart."""
    own = None
    for products in choices:
        name, told = f"id of {pathlib.Path(model).name} {products}", []
        for _ in range(2):
            with served(results, programs, name, ["--model", programs.root / model, "--slots", 8, "--products", products]) as server:
                if server is None:
                    break
                told.append(server[1])
        if len(told) < 2:
            continue
        found = [one.get("numerics_id") for one in told]
        own = own or found[0]
        same = found[0] and found[0] == found[1] and (products == "cublaslt" or found[0] == own)
        results.record(name, Outcome("passed") if same else Outcome("failed", f"ids {' and '.join(map(str, found))}, with our own kernels {own}"))
        results.figure(name, **{key: told[1].get(key) for key in ("numerics_id", "plan", "products", "head_rows")})


def bench(results: Results, programs: Programs, model: str, rows, prompt: int, common: list, products: str, plan: str = "auto",
          weights: str = "auto", flags=()) -> None:  # fmt: skip
    """Steps and prompts of one model, in one process, which makes and loads it once. What was measured before a hang or a crash is kept.
    `flags`: of bench_step, which measures something else then."""
    if not rows and not prompt:
        return
    said = model if weights == "auto" else f"{model} {weights}"
    name = " ".join([said, *([plan] if plan != "auto" else []), *([products] if products != "own" else []),
                     *([*flags, f"--rows={counts(rows)}"] if flags else [])])  # fmt: skip
    command = [programs["bench_step"], *common, f"--model={model}", f"--plan={plan}", f"--products={products}", f"--weights={weights}"]
    command += [f"--rows={counts(rows) or 1}", f"--prompt={prompt}", *flags, *([] if rows else ["--benchmark_filter=BM_Prefill"])]
    outcome = results.attempt(command, BENCH_LIMIT)
    if outcome.bad and re.search(NO_LIBRARY, outcome.output):
        outcome.kind = "skipped"
        results.record(name, outcome)
        return
    keep_on_device(results, name, outcome)
    measured = benchmarks(outcome.output)
    if outcome.good and len(measured) < len(rows) + (1 if prompt else 0):
        results.record(name, Outcome("failed", f"not all figures in: {outcome.output[-500:]}"))
    for one in measured:
        keep = ("us/step", "tok/s", "GB/s", "TFLOP/s", "share", "steps", "real_time", "time_unit", "label")
        results.figure(one["name"], of=subject(said, one["name"], plan), products=products, **{key: one[key] for key in keep if key in one})


def subject(model: str, benchmark: str, plan: str) -> str:
    """What a benchmark of bench_step measured, in words."""
    step = re.search(r"/rows:(\d+)", benchmark)
    if step:
        halves = " in halves" if benchmark.startswith("BM_Halves") else ""
        return f"{model} {step.group(1)}" + (f" {plan}" if plan != "auto" else "") + halves
    prompt = re.search(r"BM_Prefill/(\d+)/sessions:(\d+)", benchmark)
    if prompt is None:
        return f"{model} {benchmark}"
    return f"{model} prompt of {prompt.group(1)}" + (f", {prompt.group(2)} at once" if prompt.group(2) != "1" else "")


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


def peer(results: Results, name: str, command: list) -> None:
    """A script that prints a line of JSON for each figure. Exit code 77 where PyTorch is absent."""
    outcome = results.run(name, command, 90)
    for text in outcome.output.splitlines():
        if text.startswith("{"):
            try:
                results.figure(name, **json.loads(text))
            except (json.JSONDecodeError, TypeError):
                continue


def server(results: Results, programs: Programs) -> None:
    """`rivulet bench` against a server on loopback: gRPC, engine and device together."""
    with served(results, programs, "server", ["--model", programs.root / "model/zoo/mnist-linear", "--slots", max(STREAMS)]) as found:
        for streams in STREAMS if found else ():
            load(results, programs, found[0], streams)


@contextlib.contextmanager
def served(results: Results, programs: Programs, name: str, flags: list):
    """A server on loopback: its HOST:PORT, and what its log says of the model. None where it does not start; that is kept under `name`."""
    command = [programs["rivulet-server"], *flags, "--backend", "cuda", "--listen", "127.0.0.1:0"]
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except OSError as error:
            results.record(name, Outcome("not_run", f"{command[0]}: {error.strerror}"))
            yield None
            return
        try:
            lines = await_listening(process, log, min(60, results.left()))
            if not lines:
                log.seek(0)
                text = log.read().decode("utf-8", "replace")
                kind = "skipped" if re.search(NO_LIBRARY, text) else "failed"
                results.record(name, Outcome(kind, "it does not listen: " + text))
            yield (lines["listening"]["address"], lines.get("model", {})) if lines else None
        finally:
            process.kill()
            process.wait()


def await_listening(process: subprocess.Popen, log, seconds: float) -> dict[str, dict]:
    """The lines of the log by event, once it says where the server listens; none where it ends before, or says nothing for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        log.seek(0)
        lines = {line["event"]: line for line in json_lines(log.read().decode("utf-8", "replace")) if "event" in line}
        if "address" in lines.get("listening", {}):
            return lines
        time.sleep(0.1)
    return {}


def load(results: Results, programs: Programs, target: str, streams: int) -> None:
    """So many streams at once."""
    name = f"server {streams}"
    command = [programs["rivulet"], "bench", "--target", target, "--concurrency", streams, "--warmup", LOAD_SECONDS[0], "--duration", LOAD_SECONDS[1]]
    outcome = on_device(results, name, [*command, "--fail-on-error", "--json", "-"], 60)
    if not outcome.good:
        return
    try:
        measured = json.loads(outcome.output[outcome.output.index("{") : outcome.output.rindex("}") + 1])
        latency = {what: {name: ms for name, ms in values.items() if name != "buckets"} for what, values in measured["latency_ms"].items()}
        results.figure(name, window=measured["window"], latency_ms=latency)
    except (ValueError, KeyError):
        results.record(name, Outcome("failed", f"no figures in: {outcome.output[-500:]}"))


def kernels(results: Results, programs: Programs, what: str, model: str, rows: int, prompt: int = 0) -> None:
    """Every kernel of one step, or of a prompt, with its time."""
    metric = "gpu__time_duration.sum"
    found = ncu(results, programs, f"kernels {what}", ["--metrics", metric, "--cache-control", "none"], model, rows, prompt=prompt)
    times: dict[tuple[str, str], list[float]] = {}
    for line in found:
        if line["Metric Name"] == metric:
            ns = float(line["Metric Value"].replace(",", ""))
            times.setdefault((line["Kernel Name"], line.get("Grid Size", "")), []).append(ns / 1000)
    if times:
        table = [{"kernel": name, "grid": grid, "launches": len(us), "us": round(sum(us), 3)} for (name, grid), us in times.items()]
        table.sort(key=lambda row: -row["us"])
        results.figure(f"kernels {what}", kernels=table, us=round(sum(row["us"] for row in table), 3))


def profile(results: Results, programs: Programs, folder: pathlib.Path) -> None:
    """Why the hottest kernels wait."""
    sections = [part for section in SECTIONS for part in ("--section", section)]
    for kernel in HOT_KERNELS:
        rows, plan = (1, "latency") if kernel == "Latency" else (64, "throughput")
        flags = ["--kernel-name", f"regex:{kernel}", "--launch-count", 4, "--page", "details", *sections]
        found = ncu(results, programs, f"ncu {kernel}", flags, "mnist-linear", rows, plan)
        if found:
            keep = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")
            results.figure(f"ncu {kernel}", rows=[[line.get(key) for key in keep] for line in found])


def ncu(results: Results, programs: Programs, name: str, flags: list, model: str, rows: int, plan: str = "throughput", prompt: int = 0) -> list[dict]:
    """What ncu tells of the kernels of one step or one prompt, a dict a line of its table. The clocks stay as they are: the machine is not
    ours. Where it tells nothing of kernels in a graph, the step runs again with kernels that the host launches."""
    tool = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not pathlib.Path(tool).is_file():
        results.record(name, Outcome("skipped", "ncu is not installed"))
        return []
    step = [programs["bench_step"], *device_flags(programs), f"--model={model}", f"--rows={rows}", f"--prompt={prompt}", "--products=own"]
    step += ["--profile", *(["--benchmark_filter=BM_ProfiledPrompt"] if prompt else [])]
    for graphs in ("on", "off"):
        command = [tool, "--clock-control", "none", "--graph-profiling", "node", "--profile-from-start", "off", "--print-units", "base", "--csv"]
        outcome = results.attempt([*command, *flags, *step, f"--plan={plan}", f"--graphs={graphs}"], BENCH_LIMIT)
        found = list(csv.DictReader(line for line in outcome.output.splitlines() if line.startswith('"')))
        if outcome.good and not (found and {"Kernel Name", "Metric Name", "Metric Value"} <= set(found[0])):
            outcome.kind, found = "failed", []
        results.record(name if graphs == "on" else f"{name} without graphs", outcome)
        if found or outcome.kind == "not_run":
            break
    return found


def sanitizer(results: Results, programs: Programs, folder: pathlib.Path) -> None:
    """compute-sanitizer on small shapes, once it has shown that it runs on this machine."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    options = ["--error-exitcode", 1, "--kill", "yes"]
    if not pathlib.Path(tool).is_file():
        results.record("compute-sanitizer", Outcome("skipped", "compute-sanitizer is not installed"))
        return
    small = {"RIVULET_TESTS_SMALL": "1", "RIVULET_TESTS_SANITIZER": "1"}
    probe = results.run("probe", [tool, "--tool", "memcheck", *options, programs["gpu_cuda_slot_test"]], 60, small)
    if not probe.good:
        results.record("everything else", Outcome("skipped", f"the probe {probe.kind}"))
        return
    for kind in ("memcheck", "racecheck"):  # racecheck looks at shared memory, which slots and embedding do not use
        for family, program, pattern in SMOKE:
            if kind == "racecheck" and family in ("embed", "slot"):
                continue
            command = [tool, "--tool", kind, *options, programs[program], f"--gtest_filter={pattern}"]
            results.run(f"{kind} {family}: {pattern}", command, 60, small)


