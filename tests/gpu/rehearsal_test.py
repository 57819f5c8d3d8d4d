#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rehearses run.py and report.py without a GPU: every program is a stand-in that passes, hangs, crashes, fails one test, skips or
prints garbage. Whatever one of them does, the results of all others must be there."""

import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import decisions  # noqa: E402
import estimates  # noqa: E402
import phases  # noqa: E402
import report  # noqa: E402
import run  # noqa: E402

# A stand-in: what it does is in the file beside it, by default "pass". A GoogleTest program lists two tests; "fail Suite.Bad" fails
# that test alone.
STAND_IN = """#!{python} -IS
import os, sys, time  # little: a run starts hundreds of these
folder, name = os.path.split(sys.argv[0])
does = sys.argv[0] + ".does"
words = open(does).read().split() if os.path.isfile(does) else ["pass"]
flags = [a.split("=", 1) for a in sys.argv[1:] if a.startswith("--") and "=" in a]
given = dict(flags)
paths = os.environ.get("LD_LIBRARY_PATH", "").split(":")
found = next((path for path in paths if path and os.path.isfile(path + "/libcublasLt.so.13")), None)
with open(os.path.join(folder, "calls"), "a") as calls:
    calls.write(" ".join([name, *sys.argv[1:], "library=%s" % (found and os.listdir(found))]) + "\\n")
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
elif name == "bench_step" and words[0] == "library" and given["--products"] == "cublaslt":
    print('products is "cublaslt", but libcublasLt.so.13 cannot be opened')
    sys.exit(1)
elif name == "bench_step" and words[0] == "differs" and "--soak" in given:
    print("soak: 1 rows, slot 1: states differ at float 7")
    sys.exit(1)
elif name == "bench_step":
    kind = "BM_Halves" if "--halves" in sys.argv else "BM_Soak" if "--soak" in given else "BM_Step"
    names = [kind + "/rows:" + rows for rows in given["--rows"].split(",") if "--benchmark_filter" not in given]
    if given["--prompt"] != "0":
        names += ["BM_Prefill/%s/sessions:%s" % (given["--prompt"], count) for count in given.get("--sessions", "1").split(",")]
    us = {{"own": 50.0, "cublaslt": 40.0, "auto": 45.0}}[given["--products"]]
    print('{{"benchmarks": [', end="")
    for i, one in enumerate(names):
        if words[0] == "half" and i == 1:
            os.kill(os.getpid(), 11)
        print('%s\\n{{"name": "%s", "label": "cuBLASLt 13.0.2: qkv", "real_time": 400.0, "time_unit": "us", "us/step": %s,'
              ' "tok/s": 20000.0, "GB/s": 287.0, "share": 0.07%s}}' % ("," if i else "", one, 1.25 * us if kind == "BM_Halves" else us,
              ', "steps": %s' % given["--soak"] if "--soak" in given else ""), end="", flush=True)
    print("\\n]}}")
elif name == "rivulet-server" and words[0] == "library" and "cublaslt" in sys.argv:
    print('{{"event":"start_failed","error":"products is \\\\"cublaslt\\\\", but libcublasLt.so.13 cannot be opened"}}', file=sys.stderr)
    sys.exit(1)
elif name == "rivulet-server":
    other = "-cublaslt" if "cublaslt" in sys.argv else ""
    if "auto" in sys.argv and words[0] in ("ids", "other"):
        other = "-other" if words[0] == "other" else "-%d" % os.getpid()
    print('{{"event":"model","numerics_id":"cuda-default%s","products":"own kernels (qkv: no algorithm passes)"}}' % other, file=sys.stderr)
    print('{{"event":"listening","address":"127.0.0.1:1"}}', file=sys.stderr, flush=True)
    time.sleep(100)
elif name == "rivulet":
    print('{{"window": {{"tokens_per_second": 1000.0}}, "latency_ms": {{"first_token": {{"p50": 1.0, "p99": 2.0}}}}}}')
elif name == "nvidia-smi":
    print("NVIDIA H200, 580.0, 1980 MHz, 3201 MHz, 143771 MiB")
elif name == "python3" and words[0] == "torch" and "-c" in sys.argv:
    print(os.path.join(folder, "nvidia"))
elif name == "python3":
    model = os.path.basename(sys.argv[sys.argv.index("--model") + 1]) if "--model" in sys.argv else "mnist-linear"
    print('{{"model": "%s", "rows": 1, "matrices": "f16", "us": 60.0, "gb_per_s": 240.0}}' % model)
elif name == "ncu" and (words[0] != "nodes" or "--graphs=off" in sys.argv):
    print('==PROF== Connected\\n"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"')
    for kernel, ns in (("void rivulet::kernels::(anonymous namespace)::Gemm<2>(Args)", "1,500"), ("Embed(Args)", "500"), ("Embed(Args)", "500")):
        print('"0","%s","(8, 1, 1)","gpu__time_duration.sum","ns","%s"' % (kernel, ns))
elif name == "compute-sanitizer":
    print("no error")
"""
TESTS = ("gpu_cuda_chain_test", "gpu_cuda_product_rows_test", "gpu_cuda_embed_test", "gpu_cuda_layer_norm_test", "gpu_cuda_slot_test", "gpu_cuda_gemm_test", "gpu_cuda_gemm_wide_test",
         "gpu_cuda_gemm_group_test", "gpu_cuda_recurrence_test", "gpu_cuda_causal_conv_test", "gpu_cuda_token_shift_test", "gpu_cuda_group_rows_test", "gpu_cuda_element_rows_test", "gpu_cuda_mixer_rows_test", "gpu_cuda_softmax_attention_test",
         "gpu_cuda_linear_attention_test", "gpu_cuda_prefill_attention_test", "gpu_cuda_sample_test", "gpu_cuda_sample_steps_test",
         "backend_latency_cuda_test", "backend_golden_cuda_test", "shared_math_cuda_test")  # fmt: skip
PROGRAMS = (*TESTS, "copy_rate_cuda", "bench_step", "rivulet", "rivulet-server")
TOOLS = ("nvidia-smi", "python3", "ncu", "compute-sanitizer", "nvcc")


class Rehearsal(unittest.TestCase):
    """Stand-ins of all programs and tools in folders of their own."""

    # Limits of seconds: a stand-in that hangs costs the test little.
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

    def run_phases(self, *names, flags=(), code=0, results=True, **environment):
        script = f"import pathlib, sys, phases, results, run; {self.LIMITS}; sys.exit(run.main(sys.argv[1:]))"
        flags = [*(flag for name in names for flag in ("--phase", name)), "--programs", self.programs, *flags]
        flags += ["--results", self.results] if results else []
        environment = {**os.environ, "PATH": f"{self.tools}:/usr/bin:/bin", "OUT": "", "PYTHONPATH": str(HERE), "PYTHONDONTWRITEBYTECODE": "1",
                       **{name: str(value) for name, value in environment.items()}}  # fmt: skip
        done = subprocess.run([sys.executable, "-c", script, *map(str, flags)], capture_output=True, text=True, env=environment, timeout=240)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout

    def lines(self, phase):
        return [json.loads(line) for line in (self.results / f"{phase}.jsonl").read_text().splitlines()]

    def outcomes(self, phase):
        return {line["name"]: line["outcome"] for line in self.lines(phase) if "outcome" in line}

    def calls(self, folder=None):
        return ((folder or self.programs) / "calls").read_text().splitlines()

    def report(self, *flags):
        done = subprocess.run([sys.executable, HERE / "report.py", self.results, *flags], capture_output=True, text=True,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


class RehearsalTest(Rehearsal):
    def test_all_is_well(self):
        os.environ["RIVULET_FAST_TRANSFORMERS"] = str(self.folder)
        self.addCleanup(os.environ.pop, "RIVULET_FAST_TRANSFORMERS")
        out = self.run_phases(*run.DEADLINES)
        self.assertRegex(out, r"(?m)^passed \d+$")
        self.assertEqual(len(self.outcomes("smoke")), len(phases.SMOKE) + 3)
        self.assertEqual(set(TESTS), set(self.outcomes("parity")))
        text = self.report()
        self.assertIn("NVIDIA H200", text)
        self.assertIn("Copy rate, read and written: 4,100 GB/s", text)
        for row in ("| mnist-linear 1 throughput | 50.0 | 3.0 |  | 60.0 |  |  |", "| mnist-linear 1 latency | 50.0 | 3.0 | 45 to 60 | 60.0 |",
                    "| mnist-linear 4096 throughput | 50.0 | 3.0 | 730 to 880 |  | 40.0 | 45.0 |",
                    "- auto ran `cuBLASLt 13.0.2: qkv` for mnist-linear 64 throughput, ", "| 110m prompt of 784 |",
                    "| 110m prompt of 784, 64 at once |", "| 1024 | 1,000 | 1.00 | 2.00 |", "| mnist-linear | 1 | f16 | 60.0 | 240 |"):  # fmt: skip
            self.assertIn(row, text)
        self.assertIn("--copy-gb-per-s=4100.5", "\n".join(self.calls()))
        self.assertNotIn("failed", text)

    def test_whatever_one_program_does_all_others_have_results(self):
        for does, kind in (("hang", "timed_out"), ("crash", "crashed"), ("fail Suite.Bad", "failed"), ("skip", "failed")):
            with self.subTest(does):
                self.results = self.folder / f"results-{kind}-{does[:4]}"
                self.does("gpu_cuda_gemm_test", does)
                self.run_phases("smoke", "parity", code=1)
                smoke, parity = self.outcomes("smoke"), self.outcomes("parity")
                self.assertEqual({o for name, o in smoke.items() if name.startswith("gemm: ")}, {kind})
                others = {o for name, o in smoke.items() if not name.startswith("gemm: ")}
                self.assertEqual(others, {"passed"})
                # What needs the family is left out by name, the rest runs.
                self.assertEqual(parity["gpu_cuda_gemm_test"], "skipped")
                self.assertEqual(parity["backend_golden_cuda_test"], "skipped")
                self.assertEqual(parity["gpu_cuda_sample_test"], "passed")
                self.assertIn("smoke failed: gemm", self.report())
                self.assertIn("not known to be right", self.report())

    def test_a_failed_program_is_run_again_test_by_test(self):
        self.does("backend_golden_cuda_test", "fail Suite.Bad")
        self.run_phases("parity", code=1)
        parity = self.outcomes("parity")
        self.assertEqual(parity["backend_golden_cuda_test"], "failed")
        self.assertEqual(parity["backend_golden_cuda_test Suite.Good"], "passed")
        self.assertEqual(parity["backend_golden_cuda_test Suite.Bad"], "failed")
        self.assertEqual(parity["backend_golden_cuda_test without graphs"], "failed")
        self.assertEqual(parity["shared_math_cuda_test"], "passed")

    def test_facts_are_steps_prompts_and_every_kernel_of_a_step(self):
        self.run_phases("facts")
        self.assertLessEqual(run.DEADLINES["facts"], 240)
        text = self.report()
        for row in ("| mnist-linear 4096 | 50.0 | 3.0 | 730 to 880 |  |  | 45.0 |", "| rwkv7-0.4b 1 | 50.0 | 3.0 | 833 to 1,333 |  |  |  |",
                    "| mamba2-130m 1024 | 50.0 | 3.0 | 10,557 to 13,128 |  |  | 45.0 |", "| mnist-linear 1024 throughput in halves | 62.5 |",
                    "| rwkv7-0.4b prompt of 4096 | 50.0 | 3.0 | 24,824 to 32,768 |  |  | 45.0 |", "Step of mamba2-130m 1024 rows: 2.5 us", "| `Gemm<2>` | (8, 1, 1) | 1 | 1.5 | 60 % |",
                    "| `Embed` | (8, 1, 1) | 2 | 1.0 | 40 % |", "cuBLASLt 13.0.2: qkv"):  # fmt: skip
            self.assertIn(row, text)
        tables = [line["name"] for line in self.lines("facts") if "kernels" in line.get("figures", {})]
        self.assertEqual(set(tables), {f"kernels {model} {rows}" for model, _, _ in phases.FACTS for rows in (64, 1024)} |
                         {"kernels rwkv7-0.4b prompt of 4096", "kernels mamba2-130m prompt of 4096", "kernels granite-350m prompt of 4096"})  # fmt: skip
        self.assertIn("mamba2-130m prompt of 4096: 2.5 us of kernels", text)
        prompts = [call for call in self.calls(self.tools) if "BM_ProfiledPrompt" in call]
        self.assertEqual(["--prompt=4096" in call and "--profile" in call for call in prompts], [True] * 3)
        # A process makes its model once: own kernels, what users get.
        own = [call for call in self.calls() if "--model=rwkv7-0.4b" in call and "--weights=auto" in call]
        self.assertEqual(len(own), 2)
        int8 = [call for call in self.calls() if "--weights=int8" in call]
        self.assertEqual(len(int8), len(phases.INT8_FACTS))
        self.assertIn("--rows=1,32,256,1024 --prompt=4096", own[0])

    def test_the_facts_come_right_after_smoke(self):
        self.assertEqual(list(run.DEADLINES)[:3], ["smoke", "facts", "parity"])

    def test_no_call_of_ncu_changes_clocks(self):
        self.run_phases("facts", "profile")
        calls = [call for call in self.calls(self.tools) if call.startswith("ncu ")]
        self.assertEqual([call for call in calls if "--clock-control none" not in call], [])
        self.assertEqual([call for call in calls if "--graph-profiling node" not in call], [])
        self.assertGreater(len(calls), len(phases.HOT_KERNELS))

    def test_where_ncu_sees_no_kernels_of_graphs_the_host_launches_them(self):
        self.does("ncu", "nodes")
        self.run_phases("facts", code=1)
        facts = self.outcomes("facts")
        self.assertEqual(facts["kernels rwkv7-0.4b 64"], "failed")
        self.assertEqual(facts["kernels rwkv7-0.4b 64 without graphs"], "passed")
        self.assertIn("Step of rwkv7-0.4b 64 rows", self.report())

    def test_what_was_measured_before_a_crash_is_kept(self):
        self.does("bench_step", "half")
        self.run_phases("facts", code=1)
        self.assertEqual(self.outcomes("facts")["rwkv7-0.4b"], "crashed")
        self.assertIn("| rwkv7-0.4b 1 | 50.0 |", self.report())
        self.assertNotIn("| rwkv7-0.4b 32 |", self.report())

    def test_every_phase_finds_the_library_that_pytorch_brought(self):
        library = self.tools / "nvidia/cu13/lib"
        library.mkdir(parents=True)
        for name in ("libcublasLt.so.13", "libnvperf_host.so"):  # of the second ncu has its own
            (library / name).touch()
        self.does("python3", "torch")
        self.run_phases("facts", "parity", "speed", "profile", code=77)
        calls = [call for call in self.calls() if "--gtest_list_tests" not in call]
        self.assertEqual([call for call in calls if not call.endswith("library=['libcublasLt.so.13']")], [])
        self.assertEqual({call.split()[0] for call in calls} >= {"bench_step", "rivulet", "rivulet-server", "backend_golden_cuda_test"}, True)

    def test_results_go_where_a_lent_machine_looks_for_them(self):
        out = self.folder / "out"
        self.run_phases("profile", OUT=out, results=False)
        self.assertTrue((out / "gpu-results/profile.jsonl").is_file())
        for i in range(7):
            (out / f"log-{i}").touch()
        self.run_phases("profile", OUT=out, results=False)
        self.run_phases("profile", "facts", OUT=out, results=False, code=2)  # a ninth file
        self.run_phases("profile", OUT=out, results=False, flags=("--results", out / "a/b/c"), code=2)
        self.run_phases("profile", OUT=out, results=False, flags=("--results", out / "my results"), code=2)

    def test_without_such_a_folder_results_go_where_git_does_not_look(self):
        self.LIMITS += f"; run.ROOT = pathlib.Path({str(self.folder)!r})"
        self.run_phases("profile", results=False)
        self.assertTrue((self.folder / "build/gpu-results/profile.jsonl").is_file())
        ignored = (HERE.parents[1] / ".gitignore").read_text().splitlines()
        self.assertIn("/build/", ignored)

    def test_without_git_the_commit_is_unknown(self):
        self.run_phases("profile", PATH=self.tools)
        self.assertEqual(self.lines("profile")[0]["machine"]["commit"], "unknown")

    def test_without_a_phase_it_ends_in_time_and_says_what_is_left(self):
        self.LIMITS += f"; run.DEADLINES |= {{'parity': {run.MOST_SECONDS}}}; phases.SMOKE = ()"
        out = self.run_phases(code=77)
        self.assertEqual({path.name for path in self.results.iterdir()}, {"smoke.jsonl", "facts.jsonl"})
        self.assertIn("Left: parity, speed, soak, profile, sanitizer.", out)
        for names in (("parity",), ("speed",), ("soak",), ("profile",), ("sanitizer",)):
            flags = " ".join(f"--phase {name}" for name in names)
            self.assertIn(f"  tests/gpu/run.sh {flags} --programs {self.programs} --results {self.results}\n", out)
        self.assertIn("  not_run sanitizer", out)
        self.run_phases(flags=("--deadline", "600"), code=2)

    def test_figures_that_are_garbage_are_a_failure_and_cost_no_other(self):
        self.does("bench_step", "garbage")
        self.run_phases("speed", code=1)
        speed = self.outcomes("speed")
        self.assertEqual(speed["mnist-linear throughput"], "failed")
        self.assertEqual(speed["server 1024"], "passed")
        self.assertIn("| 1024 | 1,000 |", self.report())

    def test_without_cublaslt_the_peer_is_skipped_and_the_rest_is_measured(self):
        self.does("bench_step", "library")
        self.run_phases("speed", code=77)
        speed = self.outcomes("speed")
        self.assertEqual(speed["mnist-linear throughput cublaslt"], "skipped")
        self.assertEqual(speed["mnist-linear throughput auto"], "passed")
        self.assertEqual(speed["peer_pytorch"], "skipped")
        self.assertIn("| mnist-linear 64 throughput | 50.0 | 3.0 | 95 to 135 |  |  | 45.0 |", self.report())

    def test_a_million_steps_are_compared_and_each_part_is_kept_at_once(self):
        self.assertGreaterEqual(sum(steps for _, _, steps, plan in phases.SOAK if plan == "latency"), 10**6)
        self.run_phases("soak")
        text = self.report()
        self.assertIn("- plan latency: 1,000,000 of 1,000,000 steps had the bits of a second run on graphs (mnist-linear 1 rows 100,000, ", text)
        self.assertIn("rwkv7-0.4b 32 rows 2,000", text)
        calls = [call for call in self.calls() if "--soak=" in call]
        self.assertEqual(len(calls), len(phases.SOAK))
        self.assertEqual({call for call in calls if "--plan=latency" in call and "--latency-rows=16" not in call}, set())

    def test_a_step_with_other_bits_is_a_failure_and_nothing_is_decided(self):
        self.does("bench_step", "differs")
        self.run_phases("speed", "soak", code=1)
        self.assertEqual({kind for name, kind in self.outcomes("soak").items() if "--soak" in name}, {"failed"})
        text = self.report()
        for words in ("Tests failed (soak)", "states differ at float 7", "plan latency: 0 of 1,000,000 steps", "Nothing is decided"):
            self.assertIn(words, text)

    def test_numerics_ids_of_two_processes_are_compared(self):
        self.run_phases("soak")
        self.assertEqual([kind for name, kind in self.outcomes("soak").items() if name.startswith("id of")], ["passed"] * 5)
        self.assertIn("- id of mnist-linear cublaslt: `cuda-default-cublaslt`, own kernels (qkv: no algorithm passes)", self.report())
        for does in ("ids", "other"):  # which another process has, which our own kernels do not have
            self.does("rivulet-server", does)
            self.run_phases("soak", code=1)
            self.assertEqual([name for name, kind in self.outcomes("soak").items() if kind == "failed"], ["id of mnist-linear auto", "id of mamba2 auto"])
            (self.results / "soak.jsonl").unlink()
        self.does("rivulet-server", "library")
        self.run_phases("soak", code=77)
        self.assertEqual(self.outcomes("soak")["id of mnist-linear cublaslt"], "skipped")
        self.does("rivulet-server", "crash")
        self.run_phases("soak", code=1)
        self.assertEqual(self.outcomes("soak")["id of mnist-linear own"], "failed")

    def test_what_the_figures_decide(self):
        self.run_phases("facts", "speed", code=77)  # without the sources of peer_pytorch
        text = self.report()
        self.assertRegex(text, r"\n\| rwkv7-0.4b 1 \| 50.0 \| 3.0 \| [\d,]+ to [\d,]+ \| 60.0 \|", "beside the peer of the family")
        for line in ("graph**, at least 15 % faster: **do not build them**. mnist-linear 1024: 50.0 and 62.5 us, -20 %; mnist-linear 4096: 50.0 and",
                     "(estimate with it: 65 to 80): **do not build it**. 50.0 us.", "on**, at least 15 % faster: **delete it**. mnist-linear 1024 throughput: 50.0 and 45.0 us, +11 %",
                     "row**, at least 20 % faster: **delete it**. mnist-linear: 50.0 and 50.0 us, +0 %; ",
                     "10 % of a step or more: **do not build them**. rwkv7-0.4b 64 0 %, ",
                     "40 % of a prompt or more: **do not try it**. rwkv7-0.4b prompt of 4096 0 %, "):  # fmt: skip
            self.assertIn(line, text)
        figures = {("mnist-linear 1024", "own"): 300.0, ("mnist-linear 1024 throughput in halves", "own"): 250.0, ("mnist-linear 64", "own"): 110.0,
                   ("mnist-linear 1024", "auto"): 260.0, ("rwkv7-0.4b 256", "own"): 2.0, ("rwkv7-0.4b 256", "auto"): 1.0,
                   ("110m 1 throughput", "own"): 121.0, ("110m 1 latency", "own"): 100.0}  # fmt: skip
        kernels = {"rwkv7-0.4b prompt of 4096": [{"kernel": "RecurrenceFew<1>", "us": 5.0}, {"kernel": "Gemm", "us": 5.0}],
                   "mamba2-130m 64": [{"kernel": "CausalConv", "us": 1.0}, {"kernel": "Gemm", "us": 8.0}], "mnist-linear 64": [{"kernel": "Gemm", "us": 5.0}]}  # fmt: skip
        text = decisions.decisions(figures, kernels)
        for line in ("**build them (mnist-linear 1024)**", "**build it**. 110.0 us", "**keep it, with its algorithms timed, in auto alone (mnist-linear 1024)**",
                     "**keep it (110m)**. 110m: 121.0 and 100.0 us, +21 %", "**try its serial kernel**. rwkv7-0.4b prompt of 4096 50 %.\n",
                     "**build them**. mamba2-130m 64 11 %.\n"):  # fmt: skip
            self.assertIn(line, text)
        self.assertNotIn("rwkv7-0.4b 256", text)  # too few rows
        self.assertEqual(decisions.decisions({("mnist-linear 8", "own"): 1.0}, {}).count("not decided, it lacks"), 6)

    def test_the_estimates_are_those_of_the_benchmarks(self):
        text = (HERE.parents[1] / "deploy/BENCHMARKS.md").read_text()

        def thousands(rates):
            return " to ".join(f"{rate / 1000:g}k" for rate in rates)

        for name, model in (("RWKV-7 0.4B", "rwkv7-0.4b"), ("Mamba-2 130m", "mamba2-130m"), ("Granite 4.0 H 350M", "granite-350m")):
            self.assertIn(f"| {name}, now | {' | '.join(map(thousands, estimates.FAMILY[model].values()))} |", text)
        words = re.sub(r"\s+", " ", text)
        low_high = ["{} to {}".format(*pair) for pair in estimates.MICROSECONDS.values()]
        self.assertIn("{} us a step at one row, {} at 64, {} at 1024 and {} at 4096 rows".format(*low_high), words)
        self.assertIn(f"a prompt of 784 tokens, estimated {low_high[-1]} us", words)

    def test_limits_are_those_of_the_device(self):
        figures = {"us/step": 100.0, "GB/s": 2400.0}
        self.assertEqual([report.limit(figures, f"NVIDIA {name}") for name in ("H200", "H100 80GB HBM3", "B200")], [50.0, 240000 / 3350, None])

    def test_a_server_that_does_not_start_is_a_failure(self):
        self.does("rivulet-server", "crash")
        self.run_phases("speed", code=1)
        self.assertEqual(self.outcomes("speed")["server"], "failed")
        self.assertEqual(self.outcomes("speed")["rwkv7-1.5b throughput"], "passed")

    def test_a_phase_ends_at_its_deadline_and_says_what_it_left_out(self):
        for name in TESTS:
            self.does(name, "hang")
        begin = time.monotonic()
        self.run_phases("parity", flags=("--deadline", "6"), code=1)
        self.assertLess(time.monotonic() - begin, 60)
        kinds = list(self.outcomes("parity").values())
        self.assertIn("timed_out", kinds)
        self.assertIn("not_run", kinds)
        self.assertEqual(set(TESTS) - {name.split()[0] for name in self.outcomes("parity")}, set())

    def test_a_kill_loses_nothing_that_was_done(self):
        self.does("gpu_cuda_slot_test", "hang")
        environment = {**os.environ, "PATH": f"{self.tools}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, HERE / "run.py", "--phase", "smoke", "--programs", self.programs, "--results", self.results]
        process = subprocess.Popen([str(part) for part in command], env=environment, stdout=subprocess.PIPE, start_new_session=True)
        for line in process.stdout:
            if b"layer_norm" in line:
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
        kept = phases.read_lines(self.results / "smoke.jsonl")  # and not what was cut short
        self.assertEqual([line["name"] for line in kept if "outcome" in line][-1], "norm: gpu_cuda_layer_norm_test *")
        self.assertIn("passed", self.report())

    def test_without_a_device_everything_is_skipped_and_nothing_passed(self):
        self.does("nvidia-smi", "crash")
        out = self.run_phases("smoke", "speed", code=77)
        self.assertNotIn("passed", out)
        self.assertIn("nvidia-smi shows no NVIDIA GPU 0", out)

    def test_tools_that_are_absent_or_do_not_work_are_named(self):
        (self.tools / "ncu").unlink()
        self.does("compute-sanitizer", "fail")
        self.run_phases("profile", "sanitizer", code=1)
        self.assertEqual(set(self.outcomes("profile").values()), {"skipped"})
        self.assertEqual(self.outcomes("sanitizer"), {"probe": "failed", "everything else": "skipped"})

    def test_no_more_files_than_a_lent_machine_returns(self):
        self.results.mkdir()
        for i in range(7):
            (self.results / f"other-{i}").touch()
        self.run_phases("smoke", "parity", code=2)
        self.assertFalse((self.results / "smoke.jsonl").exists())
        (self.results / "other-0").unlink()
        self.run_phases("smoke", "parity")

    def test_a_file_that_would_be_too_long_keeps_every_outcome(self):
        self.LIMITS += "; results.MOST_BYTES = 20000; results.ROOM_LEFT = 10000"
        self.does("bench_step", "garbage")
        self.run_phases("speed", code=1)
        self.assertLessEqual((self.results / "speed.jsonl").stat().st_size, 20000)
        self.assertEqual(self.outcomes("speed")["server 1024"], "passed")
        self.assertTrue(any("left_out" in line for line in self.lines("speed")))

    def test_figures_stand_beside_earlier_ones(self):
        self.run_phases("speed", code=77)  # without the sources of peer_pytorch
        self.assertIn("| 40.0 | 45.0 | 20.0 | 287 |  | 7 % | 1.00 |", self.report("--before", str(self.results)))


if __name__ == "__main__":
    unittest.main()
