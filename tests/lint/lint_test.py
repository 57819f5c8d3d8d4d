#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules of the house that a compiler does not check. Each rule is proved on a small bad example before it judges the tree."""
import collections
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client/python"))
import make_sync  # noqa: E402

FOLDERS = ("kernels", "model", "server", "client", "proto", "tests", "deploy")
CODE = (".h", ".cc", ".cu", ".py", ".sh", ".proto", ".ts", ".js")


def tracked():
    """Files of the tree: what git tracks, or, in a copy without git, everything outside build folders."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        out = subprocess.run(["git", "-c", f"safe.directory={ROOT}", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                             check=True, capture_output=True, text=True).stdout
        return [ROOT / line for line in out.splitlines() if (ROOT / line).is_file()]
    return [p for f in FOLDERS for p in (ROOT / f).rglob("*") if p.is_file() and "__pycache__" not in p.parts]


def relative(path):
    return str(path.relative_to(ROOT))


FILES = tracked()
SOURCES = [p for p in FILES if p.suffix in CODE]
TEXTS = {p: p.read_text(encoding="utf-8") for p in SOURCES}


# The longest prefix decides. Each folder may include what is listed: what begins so, or, with * at the end, the files of a folder
# but not those of folders in it.
ENGINE_BASE = ["server/engine/" + name for name in ("clock.h", "load.h", "meters.", "options.h", "reply.",
                                                    "reply_fingerprint.", "request.h", "session_command.h", "validate.")]
BELOW_ENGINE = ["server/constraints/*", "server/sessions/", "server/base/", "model/", "kernels/"]
BELOW_STORES = ["server/sessions/*", "server/sessions/replicated/", "server/sessions/store/", "server/base/", "model/", "kernels/"]
BELOW_GRPC = [f"server/{name}" for name in ("base/", "config/", "constraints/*", "engine/", "health/", "keys/", "log.h", "metrics/", "model_loader.h", "process/", "request_log/",
                                            "sessions/", "tracing/")] + ["model/", "rivulet/v1/", "google/rpc/", "grpc/health/", "grpcpp/", "google/protobuf/"]
CUDA_FLOORS = ["common", "rows", "gemm", "attention", "sample", "blocks"]
LAYERS = {
    "kernels/": ["kernels/*"],
    "kernels/cpu/": ["kernels/*", "kernels/cpu/"],
    "kernels/ref/": ["kernels/*", "kernels/ref/"],
    **{f"kernels/cuda/{name}/": ["kernels/*", "kernels/cuda/common/", f"kernels/cuda/{name}/"] for name in CUDA_FLOORS},
    "model/base/": ["model/base/"],
    "model/text/": ["model/text/", "model/base/"],
    "model/state_parts.": ["model/state_parts.h", "kernels/*"],
    "model/block_config.h": ["kernels/*", "model/rope.h", "model/state_parts.h"],
    "model/config.h": ["model/block_config.h", "model/state_parts.h", "model/base/", "kernels/*"],
    "model/weights/": ["model/weights/", "model/config.h", "model/base/", "kernels/*"],
    "model/": ["model/*", "model/weights/", "model/text/", "model/base/", "kernels/*"],
    "model/loading/": ["model/*", "model/loading/", "model/weights/", "model/base/", "kernels/*"],
    "model/cpu/": ["model/*", "model/cpu/", "model/loading/", "model/base/", "kernels/*", "kernels/cpu/"],
    "model/cuda/": ["model/*", "model/cuda/", "model/loading/", "model/weights/", "model/base/", "kernels/*", "kernels/cuda/"],
    "server/sessions/": ["server/sessions/", "server/base/", "model/", "kernels/"],
    "server/sessions/replicated/": ["server/sessions/sealed/sealer.h", *BELOW_STORES],
    **{f"server/sessions/{name}/": [f"server/sessions/{name}/", *BELOW_STORES] for name in ("redis", "dir", "sealed")},
    **{name: ENGINE_BASE + BELOW_ENGINE for name in ENGINE_BASE},
    "server/constraints/": ["server/constraints/*", "server/base/", "model/*", "model/text/", "model/base/"],
    "server/constraints/worker/": ["server/constraints/messages.h", "server/constraints/worker/", "xgrammar/"],
    "server/engine/policy/": ["server/engine/policy/", *ENGINE_BASE, *BELOW_ENGINE],
    "server/engine/sequences/": ["server/engine/sequences/", "server/engine/policy/", *ENGINE_BASE, *BELOW_ENGINE],
    "server/engine/replicas/": ["server/engine/replicas/", "server/engine/sequences/", *ENGINE_BASE, *BELOW_ENGINE],
    "server/engine/loop/": ["server/engine/loop/", "server/engine/replicas/", "server/engine/sequences/", "server/engine/policy/", *ENGINE_BASE, *BELOW_ENGINE],
    "server/engine/": ["server/engine/", *BELOW_ENGINE],
    "server/config/": ["server/config/", "model/"],
    "server/grpc/wire/": ["server/grpc/wire/", *BELOW_GRPC],
    "server/grpc/connections/": ["server/grpc/connections/", *BELOW_GRPC],
    "server/grpc/calls/": ["server/grpc/calls/", "server/grpc/connections/", "server/grpc/wire/", *BELOW_GRPC],
    "server/grpc/": ["server/grpc/", *BELOW_GRPC],
    "server/tracing/": ["server/tracing/", "server/request_log/", "server/base/", "server/log.h", "model/", "opentelemetry/", "google/rpc/", "grpcpp/"],
    "server/": ["server/", "model/", "grpcpp/"],
    "client/cpp/": ["client/cpp/", "rivulet/", "google/rpc/", "grpcpp/", "google/protobuf/"],
    "client/cli/": ["client/", "rivulet/", "server/base/leave_behind.h", "model/slot_choice.h", "server/start/model_description.h", "server/start/model_quantizer.h",
                    "server/config/server_config.h", "server/server.h", "server/keys/", "server/log.h", "grpcpp/", "model/base/", "google/protobuf/"],
}
OURS = re.compile(r"^(kernels|model|server|client|tests|rivulet|google|grpcpp|opentelemetry)/")


def allows(entry, include):
    return include.startswith(entry.removesuffix("*")) and not (entry.endswith("*") and "/" in include[len(entry) - 1 :])


def layering_errors(name, text):
    """Includes of ours that the arrows of the design do not allow."""
    rule = next((LAYERS[k] for k in sorted(LAYERS, key=len, reverse=True) if name.startswith(k)), None)
    errors = []
    for include in re.findall(r'^\s*#include\s+[<"]([^>"]+)[>"]', text, re.M):
        if rule is not None and OURS.match(include) and not any(allows(entry, include) for entry in rule):
            errors.append(f"{name} includes {include}")
        if rule is None:
            continue
        if include.startswith("nlohmann/") and name.startswith(("kernels/", "server/engine/", "server/sessions/")):
            errors.append(f"{name} includes {include}")
        if include.startswith("hwy/") and not re.search(r"kernels/.*(_cpu\.cc|-inl\.h|cpu_target\.cc)$", name):
            errors.append(f"{name} includes {include}: only the _cpu kernels know Highway")
        if include.startswith("absl/") and name.startswith("kernels/"):
            errors.append(f"{name} includes {include}: kernels know the standard library alone")
        if re.match(r"cu(da|blas)", include) and not re.search(r"_cuda\.(cu|h)$|model/cuda/", name):
            errors.append(f"{name} includes {include}: only _cuda files know CUDA")
    return errors


CEILINGS = pathlib.Path(__file__).with_name("line_ceilings.tsv")


def counted_folder(name):
    """The folder, of two levels, to which the lines of a file count; "" where they do not."""
    return "/".join(name.split("/")[:-1][:2]) if name.endswith((*CODE, "CMakeLists.txt")) else ""


def lines_by_folder(texts):
    """{folder: lines} of {name: text}."""
    lines = collections.Counter()
    for name, text in texts.items():
        if folder := counted_folder(name):
            lines[folder] += text.count("\n")
    return lines


def tree_lines():
    return lines_by_folder({relative(p): p.read_text(encoding="utf-8") for p in FILES if counted_folder(relative(p))})


def includes(text):
    return re.findall(r'^\s*#include\s+"([^"]+)"', text, re.M)


def imports(text, package):
    """Modules of `package` that a module of it imports, for types only or not."""
    found = set()
    for folder, names in re.findall(rf"^\s*from {package}((?:\.\w+)*) import ([\w, ]+)", text, re.M):
        folder = folder.lstrip(".")
        found |= {folder} | {f"{folder}.{name.strip()}".lstrip(".") for name in names.split(",")}
    return found - {""}


def circle(arrows):
    """The nodes of a circle in {node: nodes that it points to}, or []."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done or node not in arrows:
            return []
        path.append(node)
        found = next(filter(None, map(visit, sorted(arrows[node]))), [])
        path.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(arrows))), [])


def function_lengths(text):
    """(first line, length) of function bodies as clang-format lays them out: `) ... {` at indent 0 or 2 to its closing brace."""
    lines, found = text.split("\n"), []
    start = None
    for i, line in enumerate(lines):
        if start is None:
            match = re.match(r"^( {0,2})\S.*\)[^;]*\{$", line)
            if match and not re.match(r"^\s*(namespace|class|struct|enum|if|for|while|switch|TEST)", line):
                start, indent = i, match.group(1)
        elif line == indent + "}":
            found.append((start + 1, i - start + 1))
            start = None
    return found


def member_counts(member):
    """(methods, fields) that one member of a class declares; types, friends, constants and deleted functions are neither."""
    if re.match(r"(enum|class|struct)\b.*\} *\w", member):  # a type and a field of it
        return 0, 1
    if member.endswith("= delete;") or re.match(
            r"(template <.*> )?(using|friend|typedef|enum|class|struct|static constexpr|static_assert|public|protected|private)\b", member):
        return 0, 0
    member = re.sub(r"\b(ABSL|RIVULET)_\w+\(([^()]|\([^()]*\))*\)|\[\[.*?\]\]|\balignas\([^)]*\)", "", member)
    while re.search(r"<[^<>]*>", member):
        member = re.sub(r"<[^<>]*>", "", member)
    if "(" in re.split(r"[={]", member, maxsplit=1)[0] or re.search(r"\boperator\b", member):
        return 1, 0
    while re.search(r"\{[^{}]*\}|\([^()]*\)", member):
        member = re.sub(r"\{[^{}]*\}|\([^()]*\)", "", member)
    return 0, member.count(",") + 1


def class_sizes(text):
    """(first line, name, methods, fields) of classes as clang-format lays them out; structs without methods, plain data, are left out."""
    lines, found = text.split("\n"), []
    for at, line in enumerate(lines):
        opening = re.match(r"( *)(?:template <.*> )?(class|struct) (\w+)\b[^;()]*\{$", line)
        if opening is None:
            continue
        indent, kind, name = opening.groups()
        methods = fields = 0
        member = ""
        for body in lines[at + 1:]:
            if body.startswith(indent + "}"):
                break
            code = body.split("//")[0].rstrip()
            if not member and not re.match(rf"{indent}  [\w~:\[]", code):
                continue
            member = (member + " " + code.strip()).strip()
            whole = member.count("{") == member.count("}")
            if whole and member.endswith((";", "}")):  # its declaration, or its body, is complete
                more_methods, more_fields = member_counts(member)
                methods, fields, member = methods + more_methods, fields + more_fields, ""
        if kind == "class" or methods > 0:
            found.append((at + 1, name, methods, fields))
    return found


# Classes beyond 30 methods or 20 fields, each with the reason why it is one.
LARGE_CLASSES = {
    "client/cli/bench/bench_load.cc Load": "what the callbacks of one load count, under one lock",
    "client/cpp/include/rivulet/client.h Client": "a method for each call of the API",
    "tests/stress/cancel_stage.h CancelStage": "a method for each thing that a trial can do to its stage",
}

# Headers that wrap what is PTX on a GPU and a call of the emulator without one.
KNOW_THE_EMULATOR = {
    "kernels/cuda/common/async_copy_cuda.h",
    "kernels/cuda/common/device_cuda.h",
}


def gpu_settings(text):
    """Commands that change the clocks or another setting of a GPU, which may be somebody else's. ncu does unless it is told not to."""
    keeps = r"""--clock-control["']?[ =,]+["']?none\b"""
    blocks = re.split(r"\n(?=\S)", text.replace("\\\n", " "))  # functions, and commands at the start of a line
    found = [block for block in blocks if re.search(r"""which\(["']ncu["']\)|/ncu["']|\[["']ncu["']""", block) and not re.search(keeps, block)]
    lines = [line for block in blocks for line in block.split("\n")]
    found += [line for line in lines if re.search(r"(^|[\s;&|(`/])ncu +-", line) and not re.search(keeps, line)]
    settings = r"\bnvidia-smi\b.*[\s\"'](-(lgc|rgc|lmc|rmc|ac|rac|pm|pl|r|c|mig)|--(lock|reset)-\w+-clocks|--gpu-reset|--power-limit|--applications-clocks)\b"
    return found + [line for line in lines if re.search(settings, line)]


class LintTest(unittest.TestCase):
    def test_layers(self):
        self.assertTrue(layering_errors("kernels/a.h", '#include "model/config.h"\n'))
        self.assertTrue(layering_errors("model/a.cc", "#include <grpcpp/grpcpp.h>\n"))
        self.assertTrue(layering_errors("server/engine/a.cc", '#include "server/grpc/wire/convert.h"\n'))
        self.assertTrue(layering_errors("server/engine/sequences/a.h", '#include "server/engine/loop/emitter.h"\n'))
        self.assertTrue(layering_errors("server/engine/reply.cc", '#include "server/engine/sequences/sequence.h"\n'))
        self.assertTrue(layering_errors("model/weights/a.h", '#include "model/model.h"\n'))
        self.assertTrue(layering_errors("model/a.h", '#include "model/cpu/cpu_backend.h"\n'))
        self.assertTrue(layering_errors("kernels/cuda/rows/a.cu", '#include "kernels/cuda/gemm/gemm_cuda.h"\n'))
        self.assertTrue(layering_errors("server/grpc/wire/a.cc", '#include "server/grpc/calls/caller.h"\n'))
        self.assertTrue(layering_errors("server/grpc/connections/a.cc", '#include "server/grpc/wire/convert.h"\n'))
        self.assertFalse(layering_errors("server/grpc/calls/a.cc", '#include "server/grpc/wire/convert.h"\n'))
        self.assertTrue(layering_errors("kernels/gemm.h", "#include <hwy/highway.h>\n"))
        self.assertTrue(layering_errors("kernels/gemm.h", "#include <cuda_runtime.h>\n"))
        self.assertTrue(layering_errors("model/a.cc", "#include <cuda_runtime_api.h>\n"))
        self.assertFalse(layering_errors("kernels/cuda/gemm/gemm_cuda.h", "#include <cuda_runtime_api.h>\n"))
        self.assertFalse(layering_errors("model/a.cc", '#include "kernels/gemm.h"\n#include <vector>\n'))
        errors = [e for p, t in TEXTS.items() if p.suffix in (".h", ".cc", ".cu") for e in layering_errors(relative(p), t)]
        self.assertEqual(errors, [])

    def test_nothing_includes_itself_by_way_of_others(self):
        self.assertEqual(circle({"a": ["b"], "b": ["c"], "c": ["b"]}), ["b", "c", "b"])
        self.assertEqual(circle({"a": ["b", "c"], "b": ["c"], "c": []}), [])
        text = "from rivulet import a, b\nif TYPE_CHECKING:\n    from rivulet.c.d import E\nfrom rivulet.f import g\n"
        self.assertLessEqual({"a", "b", "c.d", "f.g"}, imports(text, "rivulet"))
        self.assertEqual(includes('#include <vector>\n#include "model/a.h"\n'), ["model/a.h"])
        self.assertEqual(circle({relative(p): includes(t) for p, t in TEXTS.items() if p.suffix == ".h"}), [])
        root = ROOT / "client/python/src/rivulet"
        texts = {p.relative_to(root).as_posix(): t for p, t in TEXTS.items() if root in p.parents and p.stem != "__init__"}
        texts |= {name: make_sync.sync(texts[source], source) for name, source in make_sync.SOURCES.items()}
        package = {name.removesuffix(".py").replace("/", "."): imports(text, "rivulet") for name, text in texts.items()}
        self.assertIn("threads.session", package["threads.client"])
        self.assertEqual(circle(package), [])

    def test_folders_grow_in_a_commit_that_says_so(self):
        example = {"a/b/c/d.cc": "1\n2\n", "a/b/e.h": "3\n", "a/b/CMakeLists.txt": "4\n", "a/b/g.md": "5\n", "f.py": "6\n"}
        self.assertEqual(lines_by_folder(example), {"a/b": 4})
        ceilings = dict(row.split("\t") for row in CEILINGS.read_text(encoding="utf-8").splitlines())
        lines = tree_lines()
        above = [f"{folder}: {n} lines, at most {ceilings.get(folder, 0)}" for folder, n in lines.items() if n > int(ceilings.get(folder, 0))]
        self.assertEqual(above, [], "tests/lint/count_lines.py --write raises a ceiling; the commit says why")

    def test_functions_stay_small(self):
        self.assertEqual(function_lengths("int F() {\n  x;\n}\n"), [(1, 3)])
        errors = []
        for path, text in TEXTS.items():
            name = relative(path)
            if path.suffix == ".cc" and not name.startswith("tests/"):
                errors += [f"{name}:{at}: a function of {n} lines, at most 60" for at, n in function_lengths(text) if n > 60]
        self.assertEqual(errors, [])

    def test_classes_have_one_idea(self):
        example = """
class Example final : public Base {
 public:
  explicit Example(int a)
      : a_(a),
        b_{a} {}
  Example(const Example&) = delete;
  static constexpr int kMost = 3;
  struct Part {
    int x, y;
  };
  std::function<void(int, int)> called;  // (not a method);
  virtual bool Do(
      int a) const = 0;
  bool operator()(int a) const { return a > 0; }

 private:
  void Locked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const int a_, b_ = Two(1, 2);
  std::map<int, int> c_ ABSL_GUARDED_BY(mutex_) = {{1, 2},
                                                   {3, 4}};
  enum class State : uint8_t { kOne, kTwo } state_ = State::kOne;
};
struct Plain {
  int a = 0;
};
"""
        self.assertEqual(class_sizes(example), [(2, "Example", 4, 5)])
        large = set()
        for path, text in TEXTS.items():
            if path.suffix in (".h", ".cc", ".cu"):
                large |= {f"{relative(path)} {name}" for _, name, methods, fields in class_sizes(text) if methods > 30 or fields > 20}
        self.assertEqual(large, set(LARGE_CLASSES), "a class of more than 30 methods or 20 fields holds several ideas")

    def test_every_source_names_its_licence(self):
        missing = [relative(p) for p, t in TEXTS.items() if p.suffix != ".sh" and "SPDX-License-Identifier: Apache-2.0" not in t[:300]]
        self.assertEqual(missing, [])

    def test_every_source_is_built(self):
        lists = "\n".join(p.read_text() for p in FILES if p.name == "CMakeLists.txt")
        orphans = []
        for path in SOURCES:
            stem = path.stem if relative(path).startswith("tests/") else path.name
            # find_package/ is a project of its own, built by a test
            if path.suffix in (".cc", ".cu") and not re.search(rf"\b{re.escape(stem)}\b", lists):
                orphans.append(relative(path))
        self.assertEqual(orphans, [])

    def test_every_python_test_is_run(self):
        lists = "\n".join(p.read_text() for p in FILES if p.name == "CMakeLists.txt")
        tests = [p for p in FILES if p.name.endswith("_test.py")]
        self.assertGreater(len(tests), 50)
        self.assertEqual([relative(p) for p in tests if not re.search(rf"(?<!\w){p.stem}\b", lists)], [])

    def test_one_word_one_meaning(self):
        banned = re.compile(r"(?i)(^|[_/])(util|utils|helper|helpers|manager|misc)([_./]|$)")
        self.assertTrue(banned.search("server/slot_manager.h"))
        self.assertEqual([relative(p) for p in FILES if banned.search(relative(p))], [])

    def test_no_text_installs_the_rivulet_of_pypi(self):
        """PyPI's package of that name is another project's."""
        wrong = re.compile(r"pip[ ]install\b[^\n;&`]*[ '\"]rivulet(-client|-server)?(?![\w./-])")
        self.assertTrue(wrong.search("pip" + " install 'rivulet-client[png]'"))
        texts = {**TEXTS, **{p: p.read_text(encoding="utf-8") for p in FILES if p.suffix == ".md"}}
        self.assertEqual([relative(p) for p, text in texts.items() if wrong.search(text)], [])

    def test_no_backend_by_preprocessor_and_no_exceptions_of_ours(self):
        errors = []
        for path, text in TEXTS.items():
            name = relative(path)
            if path.suffix not in (".h", ".cc") or name.startswith("tests/"):
                continue
            if re.search(r"#\s*if(def)?\s.*(RIVULET_CUDA\b|CUDA_ENABLED)", text):
                errors.append(f"{name}: chooses a backend with the preprocessor")
            if "RIVULET_CUDA_EMULATED" in text and name not in KNOW_THE_EMULATOR:
                errors.append(f"{name}: knows the emulator; only {sorted(KNOW_THE_EMULATOR)} do")
            # CLI11 takes an error of a flag as an exception within its parse.
            allowed = r"(?!UsageError\b)" if name.startswith("client/cli/options/") else ""
            if re.search(rf"^\s*throw\s+{allowed}", text, re.M):
                errors.append(f"{name}: throws")
        self.assertEqual(errors, [])

    def test_the_server_locks_with_its_own_mutex(self):
        """server/base/mutex.h says why it is not absl::Mutex."""
        other = re.compile(r"\babsl::(Mutex|ReaderMutex|WriterMutex|CondVar)|absl/synchronization/mutex\.h|\bstd::(shared_|recursive_|timed_)?mutex\b")
        for bad in ("absl::Mutex a_;", "absl::MutexLock lock(&a);", '#include "absl/synchronization/mutex.h"', "std::mutex a_;"):
            self.assertTrue(other.search(bad), bad)
        self.assertFalse(other.search("Mutex a_;\nMutexLock lock(&a_);\nabsl::Notification b;"))
        names = {relative(p): "\n".join(line.split("//")[0] for line in t.split("\n")) for p, t in TEXTS.items() if relative(p).startswith("server/")}
        self.assertEqual([name for name, code in names.items() if other.search(code)], ["server/base/mutex.h"])

    def test_nothing_names_the_machine_it_was_written_on(self):
        needle = re.compile(r"/work/|/root/|\.\./shared|/tmp/build")
        texts = {p: p.read_text(encoding="utf-8") for p in FILES if p.suffix in CODE + (".md", ".txt", ".json") and
                 p != pathlib.Path(__file__) and p.name != "golden.json"}
        self.assertEqual([relative(p) for p, t in texts.items() if needle.search(t)], [])

    def test_nothing_changes_the_clocks_of_a_gpu(self):
        self.assertTrue(gpu_settings("ncu --metrics x program"))
        self.assertTrue(gpu_settings("ncu \\\n  --metrics x program\nncu --clock-control none program"))
        self.assertTrue(gpu_settings('def f():\n    tool = shutil.which("ncu")\n    run([tool, "--csv"])\n'))
        self.assertTrue(gpu_settings('run(["ncu", "--csv"])'))
        self.assertTrue(gpu_settings("sudo nvidia-smi -i 0 -lgc 1980"))
        self.assertTrue(gpu_settings("nvidia-smi --lock-gpu-clocks=1980"))
        self.assertFalse(gpu_settings('def f():\n    tool = shutil.which("ncu")\n    run([tool, "--clock-control", "none"])\n'))
        self.assertFalse(gpu_settings("ncu --csv \\\n  --clock-control=none program\nnvidia-smi -q -d CLOCK,PERFORMANCE\n"))
        texts = {p: p.read_text(encoding="utf-8") for p in FILES if p.suffix in CODE + (".md", ".txt", ".yml", ".yaml") or p == ROOT / ".ci/run"}
        errors = [f"{relative(p)}: {found}" for p, text in texts.items() if p != pathlib.Path(__file__) for found in gpu_settings(text)]
        self.assertEqual(errors, [])

    def test_tracked_data_is_below_48_mib(self):
        self.assertLess(sum(p.stat().st_size for p in FILES), 48 << 20)

    def test_markdown_links_lead_somewhere(self):
        errors = []
        for path in FILES:
            if path.suffix != ".md":
                continue
            for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", path.read_text(encoding="utf-8")):
                if not (path.parent / link).exists():
                    errors.append(f"{relative(path)}: {link}")
        self.assertEqual(errors, [])

    def test_comments_are_at_most_100_columns_wide(self):
        """Columns that clang-format leaves to us: it does not reflow comments."""
        wide = re.compile(r"^(?=.{101}) *//.*$", re.M)
        self.assertTrue(wide.search("  // " + "x" * 96))
        self.assertFalse(wide.search("  // " + "x" * 95 + "\n" + "x" * 101))
        comments = {relative(p): wide.findall(t) for p, t in TEXTS.items() if p.suffix in (".h", ".cc", ".cu", ".proto")}
        self.assertEqual({name: lines for name, lines in comments.items() if lines}, {})

    @unittest.skipUnless(shutil.which("clang-format-14"), "clang-format-14 is not installed")
    def test_format(self):
        files = [str(p) for p in SOURCES if p.suffix in (".h", ".cc", ".cu")]
        result = subprocess.run(["clang-format-14", "--dry-run", "-Werror", "--ferror-limit=1", *files], cwd=ROOT,
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr[:2000])

    @unittest.skipUnless(shutil.which("shellcheck"), "shellcheck is not installed")
    def test_shell(self):
        files = [str(p) for p in SOURCES if p.suffix == ".sh"] + [str(ROOT / ".ci" / "run")]
        result = subprocess.run(["shellcheck", *files], cwd=ROOT, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    unittest.main()
