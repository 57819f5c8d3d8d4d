#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rehearses run.py and report.py without a GPU: every program is a stand-in that passes, hangs, crashes, fails one test, skips or
prints garbage, and takes as long as is expected of it by a clock that only these tests have. Whatever one of them does, the results of
all others must be there."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import phases  # noqa: E402
import report  # noqa: E402
import results  # noqa: E402
import run  # noqa: E402

# A stand-in: what it does is in the file beside it, by default "pass". A GoogleTest program lists two tests; "fail Suite.Bad" fails
# that test alone.
STAND_IN = """#!{python} -IS
import os, sys, time  # little: a run starts hundreds of these
folder, name = os.path.split(sys.argv[0])
does = sys.argv[0] + ".does"
words = open(does).read().split() if os.path.isfile(does) else ["pass"]
given = dict(a.split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a)
paths = os.environ.get("LD_LIBRARY_PATH", "").split(":")
found = next((path for path in paths if path and os.path.isfile(path + "/libcublasLt.so.13")), None)
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(" ".join([name, *sys.argv[1:], "off=" + os.environ.get("RIVULET_TESTS_CUDA_OFF", ""), "library=%s" % (found and os.listdir(found))]) + "\\n")
if "--gtest_list_tests" in sys.argv:
    print("Suite.\\n  Good\\n  Bad")
elif words[0] == "hang":
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.fork()
    time.sleep(100)
elif words[0] == "crash":
    os.kill(os.getpid(), 11)  # SIGSEGV
elif words[0] == "fail" and given.get("--gtest_filter", "*") != "Suite.Good":
    print("[  FAILED  ] Suite.Bad")
    sys.exit(1)
elif words[0] == "garbage":
    sys.stdout.buffer.write(b"\\xff\\x00{{{{not json\\n" * 1000)
elif words[0] == "skip":
    print("SKIPPED: no CUDA device")
    sys.exit(77)
elif name == "copy_rate_cuda":
    print("4100.5")
elif name == "bench_step" and words[0] == "differs" and "--soak" in given:
    print("soak: 1 rows, slot 1: states differ at float 7")
    sys.exit(1)
elif name == "bench_step":
    kind = "BM_Soak" if "--soak" in given else "BM_Step"
    names = [kind + "/rows:" + rows for rows in given["--rows"].split(",") if "--benchmark_filter" not in given]
    names += ["BM_Prefill/%s/sessions:1" % given["--prompt"]] if given["--prompt"] != "0" else []
    us = {{"own": 50.0, "auto": 45.0}}[given["--products"]]
    print('{{"benchmarks": [', end="")
    for i, one in enumerate(names):
        if words[0] == "half" and i == 1:
            os.kill(os.getpid(), 11)
        print('%s\\n{{"name": "%s", "label": "cuBLASLt 13.0.2: qkv", "real_time": 400.0, "time_unit": "us", "us/step": %s,'
              ' "tok/s": 20000.0, "GB/s": 287.0, "share": 0.07%s}}' % ("," if i else "", one, us,
              ', "steps": %s' % given["--soak"] if "--soak" in given else ""), end="", flush=True)
    print("\\n]}}")
elif name == "rivulet-server":
    other = ("-other" if words[0] == "other" else "-%d" % os.getpid()) if "auto" in sys.argv and words[0] in ("ids", "other") else ""
    print('{{"event":"model","numerics_id":"cuda-default%s","products":"own kernels (qkv: no algorithm passes)"}}' % other, file=sys.stderr)
    print('{{"event":"listening","address":"127.0.0.1:1"}}', file=sys.stderr, flush=True)
    time.sleep(100)
elif name == "rivulet":
    print('{{"window": {{"tokens_per_second": 1000.0}}, "latency_ms": {{"first_token": {{"p50": 1.0, "p99": 2.0}}}}}}')
elif name == "nvidia-smi":
    print("NVIDIA H200, 580.0, 1980 MHz, 3201 MHz, 143771 MiB")
elif name == "python3" and words[0] == "torch" and "-c" in sys.argv:
    print(os.path.join(folder, "nvidia"))
elif name == "python3" and len(sys.argv) > 2:
    for setting in sys.argv[4::2]:
        print('{{"model": "%s", "rows": 1, "matrices": "f16", "us": 60.0, "gb_per_s": 240.0}}' % setting.split(":")[0])
    print('{{"model": "%s", "rows": 1024, "left_out": "no time"}}' % sys.argv[-1].split(":")[0])
elif name == "ncu" and (words[0] != "nodes" or "--graphs=off" in sys.argv):
    print('==PROF== Connected\\n"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"')
    for kernel, ns in (("void rivulet::kernels::<unnamed>::Gemm<(int)2>(Args)", "1,500"), ("Embed(Args)", "500"), ("Embed(Args)", "500")):
        print('"0","%s","(8, 1, 1)","gpu__time_duration.sum","ns","%s"' % (kernel, ns))
elif name == "compute-sanitizer":
    print("no error")
"""
KERNEL_TESTS = (*(f"gpu_cuda_{name}_test" for name in ("chain", "product_rows", "embed", "layer_norm", "slot", "gemm", "gemm_wide", "gemm_group", "recurrence",
                "causal_conv", "token_shift", "group_rows", "element_rows", "mixer_rows", "softmax_attention", "linear_attention", "prefill_attention",
                "sample", "sample_steps")), "shared_math_cuda_test")  # fmt: skip
TESTS = (*KERNEL_TESTS, *phases.BACKEND_TESTS)
PROGRAMS = (*TESTS, "copy_rate_cuda", "bench_step", "rivulet", "rivulet-server")
TOOLS = ("nvidia-smi", "python3", "ncu", "compute-sanitizer")
# Seconds that a command took on an H200, about, by words in it; the first that fits. Those of rwkv7-7.2b are an estimate.
EXPECTED = (("compute-sanitizer", 2), ("^ncu ", 6), ("peers.py", 64), ("nvidia-smi", 1), ("copy_rate", 1), ("rivulet bench", 6),
            ("--soak=20000", 11), ("--soak", 9), ("rwkv7-7.2b", 35), ("qwen3.5", 12), ("rwkv7-1.5b", 12), ("granite", 34), ("--rows=1,64,1024 --prompt=4096", 19),
            ("rwkv7|mamba2", 7), ("mnist-linear", 2.5), (f"^({'|'.join(phases.BACKEND_TESTS)})", 5), ("gpu_|shared_math", 0.8))  # fmt: skip


def pretend(factor: float, stop: float = 1e9) -> None:
    """Programs take `factor` times what is expected of them, by a clock of their own; the machine ends this process at `stop` seconds."""
    real, at = results.execute, [0.0]

    def execute(command, limit, environment):
        words = " ".join([os.path.basename(command[0]), *command[1:]])
        takes = factor * next(seconds for pattern, seconds in EXPECTED if re.search(pattern, words))
        if at[0] + min(takes, limit) > stop:
            os._exit(9)
        at[0] += min(takes, limit)
        outcome = real(command, 100, environment) if takes <= limit else results.Outcome("timed_out", "", 0, -15)
        outcome.seconds = min(takes, limit)
        return outcome

    results.execute, results.now = execute, lambda: at[0]


class Rehearsal(unittest.TestCase):
    """Stand-ins of all programs and tools in folders of their own."""

    LIMITS = "phases.SMOKE_LIMIT = phases.TEST_LIMIT = phases.SINGLE_LIMIT = 4; results.KILL_AFTER = 0.5"

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.programs, self.tools, self.results = (self.folder / name for name in ("bin", "tools", "results"))
        for folder, names in ((self.programs, PROGRAMS), (self.tools, TOOLS)):
            folder.mkdir()
            for name in names:
                self.stand_in(folder / name)

    def stand_in(self, path):
        path.write_text(STAND_IN.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def does(self, name, what):
        folder = self.programs if name in PROGRAMS else self.tools
        (folder / f"{name}.does").write_text(what)

    def run_phase(self, phase, *flags, code=0, folder=True, only=None, pretend="", **environment):
        """`only`: the names of its steps that are run. `pretend`: arguments of the function."""
        script = f"import pathlib, sys, phases, results, run; {'pass' if pretend else self.LIMITS}; run.KEPT = pathlib.Path({str(self.folder / 'first.jsonl')!r}); "
        script += f"import rehearsal_test; rehearsal_test.pretend({pretend}); " if pretend else ""
        if only is not None:
            script += f"all = run.steps_of; run.steps_of = lambda *a: [step for step in all(*a) if step.name in {only!r}]; "
        flags = ["--phase", phase, "--programs", self.programs, *flags, *(["--results", self.results] if folder else [])]
        environment = {**os.environ, "PATH": f"{self.tools}:/usr/bin:/bin", "OUT": "", "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1",
                       **{name: str(value) for name, value in environment.items()}}  # fmt: skip
        command = [sys.executable, "-c", script + "sys.exit(run.main(sys.argv[1:]))", *map(str, flags)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def lines(self, phase="first"):
        return results.read_lines(self.results / f"{phase}.jsonl")

    def outcomes(self, phase="first"):
        return {line["name"]: line["outcome"] for line in self.lines(phase) if "outcome" in line}

    def ended(self, phase="first"):
        return {line["step"]: line["ended"] for line in self.lines(phase) if "ended" in line}

    def calls(self, folder=None):
        path = (folder or self.programs) / "calls"
        return path.read_text().splitlines() if path.is_file() else []

    def report(self, *flags):
        done = subprocess.run([sys.executable, HERE / "report.py", self.results, *flags], capture_output=True, text=True,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


class RehearsalTest(Rehearsal):
    def test_both_commands_when_all_is_well(self):
        out = self.run_phase("first", pretend="1")
        self.assertEqual(out.splitlines()[-1], "green: no test program failed. Next: load, soak and records (170 s): "
                         f"tests/gpu/run.sh --phase second --programs {self.programs}")  # fmt: skip
        self.assertEqual(self.ended(), {step.name: "whole" for step in phases.FIRST})
        self.assertLessEqual(sum(line["seconds"] for line in self.lines() if "ended" in line), run.DEADLINES["first"])
        self.assertLessEqual(set(TESTS), set(self.outcomes()))
        self.run_phase("second", pretend="1", code=77)  # one shape fits no GPU
        self.assertEqual(self.ended("second"), {step.name: "whole" for step in phases.GREEN})
        self.assertLessEqual(sum(line["seconds"] for line in self.lines("second") if "ended" in line), run.DEADLINES["second"])
        text = self.report()
        for row in ("NVIDIA H200", "Copy rate, read and written: 4,100 GB/s", "- smoke, whole, 20 passed, 16.0 s\n", "- records, whole, 4 passed, 1 skipped, 71.0 s\n  - skipped `qwen3.5-0.8b 1024 after 8192 tokens`: keys and values of 1,024 rows",
                    "| mnist-linear 1 | 50.0 | 3.0 | 6 % | 7 % | 60.0 |",
                    "| rwkv7-0.4b 1024 | 50.0 | 3.0 | 6 % | 7 % |  | 45.0 |", "| mamba2-130m prompt of 4096 |",
                    "- auto ran `cuBLASLt 13.0.2: qkv` for mnist-linear 4096, ", "Step of mamba2-130m 1024 rows: 2.5 us", "| `Gemm<2>` | (8, 1, 1) | 1 | 1.5 | 60 % |",
                    "| `Embed` | (8, 1, 1) | 2 | 1.0 | 40 % |", "mamba2-130m prompt of 4096: 2.5 us of kernels", "`Gemm<2>`, why it waits\n\n| metric | unit | value |\n| --- | --- | --- |\n| gpu__time_duration.sum | ns | 1,500 |", "| mnist-linear | 1 | f16 | 60.0 | 240 |",
                    "- not measured: fla.rwkv7-prompt 1024 no time", "| fla.rwkv7 | 1 | f16 | 60.0 |", "| 1024 | 1,000 | 1.00 | 2.00 |", "| rwkv7-7.2b 1 | 50.0 | 3.0 | 6 % | 7 % |  |  | 20.0 | 0.1 |",
                    "61,500 of 61,500 steps had the bits", "- id of mamba2: `cuda-default`, own kernels (qkv: no algorithm passes)"):  # fmt: skip
            self.assertIn(row, text)
        self.assertIn("--copy-gb-per-s=4100.5", [call for call in self.calls() if call.startswith("bench_step")][0])
        self.assertNotIn("failed", text)
        self.assertTrue((self.results / "clocks.csv").read_text().startswith("NVIDIA"))

    def test_what_a_slow_machine_cuts_is_named(self):
        self.run_phase("first", pretend="1.7", code=77)
        self.assertLessEqual(sum(line["seconds"] for line in self.lines() if "ended" in line), run.DEADLINES["first"])
        text = self.report()
        for step, ended in self.ended().items():
            self.assertIn(f"- {step}, {ended}, ", text)
        self.assertLessEqual({"kernels", "library", "switches"}, {step for step, ended in self.ended().items() if ended == "cut"})
        self.assertRegex(text, r"  - not_run `rwkv7-0.4b 1,64 with int8 weights`: no time was left")

    def test_what_the_machine_ends_is_named(self):
        self.run_phase("first", pretend="1, 180", code=9)
        self.assertRegex(self.report(), r"- backend, cut by the machine, \d passed\n- kernels, missing\n- library, missing\n")
        self.run_phase("second", pretend="1", code=77)  # goes on with what there is

    def test_more_time_is_more_for_each_step(self):
        self.run_phase("first", "--deadline", "1080", pretend="1.7")
        self.assertEqual(set(self.ended().values()), {"whole"})

    def test_whatever_one_program_does_all_others_have_results(self):
        for does, kind in (("hang", "timed_out"), ("crash", "crashed"), ("fail Suite.Bad", "failed"), ("skip", "failed")):
            with self.subTest(does):
                self.results = self.folder / f"results-{kind}-{does[:4]}"
                self.does("gpu_cuda_gemm_test", does)
                out = self.run_phase("first", code=1, only=("smoke", "backend"))
                self.assertRegex(out.splitlines()[-1], "^red: gpu_cuda_gemm_test failed. Next: test by test ")
                outcomes = self.outcomes()
                self.assertEqual({outcomes[name] for name in KERNEL_TESTS if "gemm_test" not in name}, {"passed"})
                self.assertEqual(outcomes["gpu_cuda_gemm_test"], kind)
                self.assertEqual(outcomes["gpu_cuda_gemm_test Suite.Good"], "passed" if does.startswith("fail") else kind)
                # What needs the kernel is left out by name.
                self.assertEqual({outcomes[name] for name in phases.BACKEND_TESTS}, {"skipped"})
                text = self.report()
                self.assertIn("smoke failed: gpu_cuda_gemm_test", text)
                self.assertIn("not known to be right", text)

    def test_the_second_command_looks_at_what_failed(self):
        self.does("gpu_backend_bits_test", "fail Suite.Bad")
        self.run_phase("first", code=1, only=("backend",))
        self.run_phase("second", code=1)
        second = self.outcomes("second")
        self.assertEqual(second, {
            "gpu_backend_bits_test Suite.Good": "passed", "gpu_backend_bits_test Suite.Bad": "failed", "gpu_backend_bits_test without overlap": "failed",
            "gpu_backend_bits_test without graphs": "failed", "memcheck gpu_backend_bits_test *": "passed",
            "racecheck gpu_backend_bits_test *": "passed"})  # fmt: skip
        self.assertEqual([call.split("off=")[1].split()[0] for call in self.calls() if "backend_bits" in call][-2:], list(phases.SWITCHES))
        self.assertIn("- again without, whole, 2 failed", self.report())

    def test_without_the_first_the_second_command_does_what_it_can(self):
        self.run_phase("second", code=77, only=("server", "sections"))
        self.assertEqual(self.outcomes("second")["server 64"], "passed")

    def test_a_fault_of_the_script_costs_its_step_alone(self):
        self.LIMITS += "; phases.benchmarks = None"
        self.run_phase("first", code=1, only=("own", "backend"))
        self.assertEqual(self.outcomes()["own: the script"], "failed")
        self.assertEqual(self.outcomes()["gpu_backend_golden_test"], "passed")
        self.assertIn("TypeError", self.report())

    def test_no_call_of_ncu_changes_clocks(self):
        self.run_phase("first", only=("kernels",))
        self.run_phase("second", only=("sections",))
        calls = [call for call in self.calls(self.tools) if call.startswith("ncu ")]
        self.assertEqual([call for call in calls if "--clock-control none" not in call], [])
        self.assertEqual([call for call in calls if "--graph-profiling node" not in call], [])
        self.assertEqual(len(calls), len(phases.TABLES) + 2)

    def test_where_ncu_sees_no_kernels_of_graphs_the_host_launches_them(self):
        self.does("ncu", "nodes")
        self.run_phase("first", code=1, only=("kernels",))
        self.assertEqual(self.outcomes(), {"kernels rwkv7-0.4b 64": "failed", **{f"kernels {model} {f'prompt of {prompt}' if prompt else rows} without graphs": "passed"
                                                                                for model, rows, prompt in phases.TABLES}})  # fmt: skip
        self.assertIn("Step of rwkv7-0.4b 64 rows", self.report())

    def test_what_was_measured_before_a_crash_is_kept(self):
        self.does("bench_step", "half")
        self.run_phase("first", code=1, only=("own",))
        self.assertEqual(self.outcomes()["rwkv7-0.4b 1,64,1024 prompt of 4096"], "crashed")
        self.assertIn("| rwkv7-0.4b 1 | 50.0 |", self.report())
        self.assertNotIn("| rwkv7-0.4b 64 |", self.report())

    def test_every_step_finds_the_library_that_pytorch_brought(self):
        library = self.tools / "nvidia/cu13/lib"
        library.mkdir(parents=True)
        for name in ("libcublasLt.so.13", "libnvperf_host.so"):  # of the second ncu has its own
            (library / name).touch()
        self.does("python3", "torch")
        self.run_phase("first", only=("backend", "library"))
        self.run_phase("second", only=("server",))
        calls = self.calls()
        self.assertEqual([call for call in calls if not call.endswith("library=['libcublasLt.so.13']")], [])
        self.assertEqual({call.split()[0] for call in calls} >= {"bench_step", "rivulet", "rivulet-server", "gpu_backend_golden_test"}, True)

    def test_results_go_where_a_borrowed_machine_looks_for_them(self):
        out = self.folder / "out"
        self.run_phase("smoke", OUT=out, folder=False)
        self.assertTrue((out / "gpu-results/smoke.jsonl").is_file())
        for i in range(6):
            (out / f"log-{i}").touch()
        self.run_phase("smoke", OUT=out, folder=False, only=(), code=77)
        self.run_phase("first", OUT=out, folder=False, code=2)  # a ninth file
        self.run_phase("smoke", "--results", out / "a/b/c", OUT=out, folder=False, code=2)
        self.run_phase("smoke", "--results", out / "my results", OUT=out, folder=False, code=2)

    def test_without_such_a_folder_results_go_where_git_does_not_look(self):
        self.LIMITS += f"; run.ROOT = pathlib.Path({str(self.folder)!r})"
        self.run_phase("smoke", folder=False, PATH=self.tools)
        self.assertTrue((self.folder / "build/gpu-results/smoke.jsonl").is_file())
        self.assertIn("/build/", (HERE.parents[1] / ".gitignore").read_text().splitlines())
        self.results = self.folder / "build/gpu-results"
        self.assertEqual(self.lines("smoke")[0]["machine"]["commit"], "unknown", "without git")

    def test_figures_that_are_garbage_are_a_failure_and_cost_no_other(self):
        self.does("bench_step", "garbage")
        self.run_phase("first", code=1, only=("own", "peers"))
        self.assertEqual(self.outcomes()["mnist-linear 1,64,1024 prompt of 784"], "failed")
        self.assertIn("| mnist-linear | 1 | f16 | 60.0 |", self.report())

    def test_a_step_with_other_bits_is_a_failure(self):
        self.does("bench_step", "differs")
        self.run_phase("first", code=1, only=("own", "short soak"))
        text = self.report()
        for words in ("Tests failed (short soak)", "states differ at float 7", "- 0 of 61,500 steps"):
            self.assertIn(words, text)

    def test_numerics_ids_of_two_processes_are_compared(self):
        for does, kind in (("pass", "passed"), ("ids", "failed"), ("other", "failed"), ("crash", "failed")):
            (self.folder / "first.jsonl").touch()
            self.does("rivulet-server", does)
            self.run_phase("second", code=int(kind == "failed"), only=("ids",))
            self.assertEqual(self.outcomes("second"), {"id of mnist-linear": kind, "id of mamba2": kind})

    def test_limits_are_those_of_the_device(self):
        figures = {"us/step": 100.0, "GB/s": 2400.0}
        self.assertEqual([report.limit(figures, f"NVIDIA {name}") for name in ("H200", "H100 80GB HBM3", "B200")], [50.0, 240000 / 3350, None])

    def test_a_server_that_does_not_start_is_a_failure(self):
        (self.folder / "first.jsonl").touch()
        self.does("rivulet-server", "crash")
        self.run_phase("second", code=1, only=("server", "soak"))
        self.assertEqual(self.outcomes("second")["server"], "failed")
        self.assertEqual(self.outcomes("second")["mnist-linear 2 soaked"], "passed")

    def test_a_kill_loses_nothing_that_was_done(self):
        self.does("gpu_cuda_slot_test", "hang")
        environment = {**os.environ, "PATH": f"{self.tools}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, HERE / "run.py", "--phase", "smoke", "--programs", self.programs, "--results", self.results]
        process = subprocess.Popen([str(part) for part in command], env=environment, stdout=subprocess.PIPE, start_new_session=True)
        for line in process.stdout:
            if b"sample_steps" in line:
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        for call in pathlib.Path("/proc").glob("[0-9]*/cmdline"):  # the one that hangs has a process group of its own
            try:
                if bytes(self.programs / "gpu_cuda_slot_test") in call.read_bytes():
                    os.kill(int(call.parent.name), signal.SIGKILL)
            except OSError:
                continue
        with (self.results / "smoke.jsonl").open("a") as file:
            file.write('{"name": "cut sho')
        kept = self.lines("smoke")  # and not what was cut short
        self.assertEqual([line["name"] for line in kept if "outcome" in line][-1], "gpu_cuda_sample_steps_test")
        self.assertIn("- smoke, cut by the machine, ", self.report())

    def test_without_a_device_everything_is_skipped_and_nothing_passed(self):
        self.does("nvidia-smi", "crash")
        out = self.run_phase("first", code=77)
        self.assertNotIn("passed", out)
        self.assertIn("nvidia-smi shows no NVIDIA GPU 0", out)
        self.assertIn("- smoke, missing\n", self.report())

    def test_tools_that_are_absent_or_do_not_work_are_named(self):
        (self.tools / "ncu").unlink()
        self.does("compute-sanitizer", "fail")
        self.does("python3", "skip")
        self.run_phase("first", code=77, only=("kernels", "memcheck", "peers"))
        self.assertEqual({name: kind for name, kind in self.outcomes().items() if not name.startswith("kernels")},
                         {"peers": "skipped", "memcheck": "skipped"})
        self.assertEqual({kind for name, kind in self.outcomes().items() if name.startswith("kernels")}, {"skipped"})

    def test_a_file_that_would_be_too_long_keeps_every_outcome(self):
        self.LIMITS += "; results.MOST_BYTES = 20000; results.ROOM_LEFT = 10000"
        self.does("bench_step", "garbage")
        self.run_phase("first", code=1, only=("own", "switches", "library", "memcheck"))
        self.assertLessEqual((self.results / "first.jsonl").stat().st_size, 20000)
        self.assertEqual(self.outcomes()["memcheck gpu_cuda_sample_steps_test *"], "passed")
        self.assertTrue(any("left_out" in line for line in self.lines()))

    def test_figures_stand_beside_earlier_ones(self):
        self.run_phase("first", only=("own",))
        self.assertIn("| mnist-linear 64 | 50.0 | 3.0 | 6 % |  |  |  | 20.0 |  | 1.00 |", self.report("--before", str(self.results)).replace("7 %", ""))


if __name__ == "__main__":
    unittest.main()
