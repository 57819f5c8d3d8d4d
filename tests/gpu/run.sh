#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, in one command: tests of kernels and of the backend on the device, the same under
# compute-sanitizer, and the figures of deploy/BENCHMARKS.md as a Markdown table: steps and prefill, the server on loopback,
# and the peers, where python3 (or RIVULET_TORCH_PYTHON) has PyTorch (RIVULET_FAST_TRANSFORMERS: sources of that library).
# Usage: tests/gpu/run.sh [--device N] [--no-bench] [--no-sanitizer] [OUTPUT.md]     default output: ./gpu-results.md
# Runs from the source tree after a build with CUDA (build/release), or from a folder that deploy/bundle.sh made.
# Exit code: 0 all of it ran and passed, 1 something failed, 2 bad usage, 77 nothing failed but something was skipped
# (no GPU, no compute-sanitizer, a program that is not here); each is named.
set -euo pipefail

device=0
bench=true
sanitizer=true
output="gpu-results.md"
while (($#)); do
  case "$1" in
    --device)
      [[ ${2-} =~ ^[0-9]+$ ]] || { echo "run.sh: --device takes a number" >&2; exit 2; }
      device=$2
      shift
      ;;
    --no-bench) bench=false ;;
    --no-sanitizer) sanitizer=false ;;
    -*) echo "run.sh: unknown option '$1'" >&2; exit 2 ;;
    *) output=$1 ;;
  esac
  shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tests=$root/build/release/tests
bin=$root/build/release/bin
if [[ ! -d $tests ]]; then  # a bundle: all programs in one folder
  tests=$root/bin
  bin=$root/bin
fi
export RIVULET_SOURCE_DIR=$root       # where tests find models
export CUDA_DEVICE_ORDER=PCI_BUS_ID   # as nvidia-smi counts
export CUDA_VISIBLE_DEVICES=$device   # every program sees this one as device 0
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

failed=()
skipped=()
note() { printf '%s\n' "$*"; }

# check NAME COMMAND...: runs it, and remembers a failure or a skip (exit code 77) under NAME.
check() {
  local name=$1 code=0
  shift
  local log="$logs/${name//[^A-Za-z0-9_]/_}.log"
  if [[ $(type -t "$1") == function ]]; then
    "$@" >"$log" 2>&1 || code=$?
  else
    timeout 3600 "$@" >"$log" 2>&1 || code=$?  # 124: it hangs
  fi
  case $code in
    0) note "passed   $name" ;;
    77)
      note "skipped  $name: $(tail -n 1 "$log")"
      skipped+=("$name")
      ;;
    *)
      note "FAILED   $name (exit code $code)"
      tail -n 40 "$log" | sed 's/^/    /'
      failed+=("$name")
      ;;
  esac
}

skip() {
  note "skipped  $1: $2"
  skipped+=("$1")
}

finish() {
  note "failed: ${#failed[@]}, skipped: ${#skipped[@]}"
  if ((${#failed[@]})); then
    printf '  failed %s\n' "${failed[@]}"
    exit 1
  fi
  if ((${#skipped[@]})); then
    printf '  skipped %s\n' "${skipped[@]}"
    exit 77
  fi
  exit 0
}

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -i "$device" >/dev/null 2>&1; then
  skip "everything" "no NVIDIA GPU $device on this machine (nvidia-smi does not show it)"
  finish
fi
gpu=$(nvidia-smi -i "$device" --query-gpu=name,driver_version,clocks.max.sm --format=csv,noheader)
note "device $device: $gpu"

# gpu_*_test: kernels against their references. *_cuda_test: the backend under the seam's tests. Each skips itself where it
# cannot run.
shopt -s nullglob
programs=("$tests"/gpu_*_test "$tests"/*_cuda_test)
shopt -u nullglob
if ((${#programs[@]} == 0)); then
  skip "tests" "no gpu_*_test or *_cuda_test in $tests; build with RIVULET_CUDA=ON"
fi
for program in "${programs[@]}"; do
  check "$(basename "$program")" "$program"
done

# Sanitizers slow a kernel a hundred times: kernels on their small shapes, the backend on tiny models.
if $sanitizer; then
  tool=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if [[ -x $tool ]]; then
    for program in "${programs[@]}"; do
      filter='*'
      case "$(basename "$program")" in
        backend_bits_cuda_test) filter="*OddSizes*:*tiny_favor*" ;;
        backend_golden_cuda_test) filter='*tiny*' ;;
        backend_latency_cuda_test) filter='*Special*:*tiny_image*' ;;
        shared_math_cuda_test) continue ;;  # one arithmetic kernel on 65536 draws
      esac
      for kind in memcheck racecheck initcheck synccheck; do
        check "$kind $(basename "$program")" env RIVULET_TESTS_SMALL=1 \
          "$tool" --tool "$kind" --error-exitcode 1 --kill yes "$program" --gtest_filter="$filter"
      done
    done
  else
    skip "compute-sanitizer" "it is not installed"
  fi
fi

# table NAME CSV: the rows of a benchmark's CSV as Markdown.
table() {
  awk -F, -v title="$1" '
    function value(name) { return name in column ? $column[name] : "" }
    $1 == "name" {
      for (i = 1; i <= NF; ++i) { gsub(/"/, "", $i); column[$i] = i }
      printf "\n### %s\n\n| benchmark | us | us/step | thousand tok/s | GB/s | TFLOP/s | share of the limit |\n", title
      print "| --- | --- | --- | --- | --- | --- | --- |"
      seen = 1
      next
    }
    seen && /^"/ {
      name = $1
      gsub(/"/, "", name)
      sub(/\/real_time$/, "", name)
      step = value("us/step")
      rate = value("GB/s")
      products = value("TFLOP/s")
      share = value("share")
      unit = $column["time_unit"] == "ms" ? 1000 : 1
      printf "| %s | %.1f | %s | %.1f | %s | %s | %s |\n", name, $column["real_time"] * unit,
        step == "" ? "" : sprintf("%.1f", step), $column["tok/s"] / 1000,
        rate == "" ? "" : sprintf("%.0f", rate), products == "" ? "" : sprintf("%.1f", products), share == "" ? "" : sprintf("%.0f %%", 100 * share)
    }' "$2"
}

# load ROWS...: `rivulet bench` against a server with 1024 slots, with so many streams at once.
# shellcheck disable=SC2317  # called by check()
load() {
  local rows target="" pid code=0
  "$bin/rivulet-server" --model "$root/model/zoo/mnist-linear" --backend cuda --max-sessions 1024 --listen 127.0.0.1:0 2>"$logs/server" &
  pid=$!
  for _ in {1..600}; do
    target=$(sed -n 's/.*"event":"listening","address":"\([^"]*\)".*/\1/p' "$logs/server")
    if [[ -n $target ]] || ! kill -0 "$pid" 2>/dev/null; then break; fi
    sleep 0.1
  done
  printf '\n### mnist-linear through the server, on loopback\n' >>"$output"
  for rows in "$@"; do
    printf '\nStreams at once: %s\n```\n' "$rows" >>"$output"
    timeout 300 "$bin/rivulet" bench --target "$target" --concurrency "$rows" --warmup 2 --duration 10 --fail-on-error >>"$output" 2>&1 || code=1
    printf '```\n' >>"$output"
  done
  kill -INT "$pid" && wait "$pid" || code=1
  cat "$logs/server"
  return "$code"
}

# peer NAME ARGUMENTS...: a script of tests/bench, whose JSON lines become figures.
peer() {
  local script=$root/tests/bench/$1
  shift
  check "peer ${script##*/} $*" "${RIVULET_TORCH_PYTHON:-python3}" "$script" "$@"
  local log="peer ${script##*/} $*"
  # shellcheck disable=SC2016  # Markdown, no command
  printf '\n### %s\n\n```\n%s\n```\n' "$log" "$(grep '^{' "$logs/${log//[^A-Za-z0-9_]/_}.log" || true)" >>"$output"
}

if $bench; then
  if [[ -x $bin/bench_step && -x $bin/bench_engine && -x $bin/copy_rate_cuda ]]; then
    check "copy rate" "$bin/copy_rate_cuda"
    rate=$(tail -n 1 "$logs/copy_rate.log")
    [[ $rate =~ ^[0-9.]+$ ]] || rate=0
    # The rate of large fp16 products, by the library that PyTorch brings: what prompts are measured against.
    products=$("${RIVULET_TORCH_PYTHON:-python3}" - 2>/dev/null <<'PYTHON' || true
import torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.float16) for _ in range(2))
times = []
for _ in range(15):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    a @ b
    end.record()
    end.synchronize()
    times.append(begin.elapsed_time(end))
print(f"{2 * 8192**3 / sorted(times)[7] / 1e9:.1f}")
PYTHON
    )
    if [[ ! $products =~ ^[0-9.]+$ ]]; then
      products=0
      skip "matrix rate" "${RIVULET_TORCH_PYTHON:-python3} has no PyTorch that sees a GPU; prompts have no share"
    fi
    {
      echo "# GPU results"
      echo
      echo "$gpu; $(date -u +%F). Copy rate, read and written: $rate GB/s. Bytes of a step: all weights once, every state"
      echo "read and written once; above 100 % the caches answered. One run after another on whatever else the machine does."
      echo "Prompts: TFLOP/s of the layers' products; share of $products TFLOP/s, the rate of fp16 products of 8192 x 8192 x 8192."
    } >"$output"
    for precision in default float32; do
      common=("--backend=cuda" "--precision=$precision" "--copy-gb-per-s=$rate" "--matrix-tflop-per-s=$products" "--models=$root/model/zoo"
        "--benchmark_out_format=csv")
      for program in bench_step bench_engine; do
        csv=$logs/$program-$precision.csv
        check "$program $precision" "$bin/$program" "${common[@]}" "--benchmark_out=$csv"
        if [[ -s $csv ]]; then table "$program, precision $precision" "$csv" >>"$output"; fi
      done
    done
    check "server" load 1 64 1024
    if "${RIVULET_TORCH_PYTHON:-python3}" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
      for model in "$root/model/zoo/mnist-linear" "$root/model/zoo/shakespeare-rfa" cifar-10; do
        peer peer_graph.py --model "$model" --rows 1,64,1024,4096
      done
      peer peer_graph.py --model 110m --rows 1,16,64
      if [[ -n ${RIVULET_FAST_TRANSFORMERS-} ]]; then
        peer peer_pytorch.py --sources "$RIVULET_FAST_TRANSFORMERS" --device cuda --rows 1,64,1024,4096
      else
        skip "peer fast_transformers" "RIVULET_FAST_TRANSFORMERS names no sources of it"
      fi
    else
      skip "peers" "${RIVULET_TORCH_PYTHON:-python3} has no PyTorch that sees a GPU"
    fi
    note "figures: $output"
  else
    skip "benchmarks" "bench_step, bench_engine or copy_rate_cuda is not in $bin"
  fi
fi
finish
