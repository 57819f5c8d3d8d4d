#!/usr/bin/env bash
# Installs what is missing, then runs every test that this machine can run: the release build with all tiers and the
# container image, then the sanitizers, the fuzzers' smoke run, and clang-tidy with clang's thread-safety analysis.
# Usage: deploy/test.sh [stage...]      stages: ci asan tsan fuzz tidy (default), release and image (the parts of ci)
# Without arguments, a stage after ci that has passed on this machine with the same sources, tools and packages is not run
# again, and the output says so. ci always runs, and so does a stage that is named.
# Tests that need what this machine lacks (a GPU) are listed as skipped, never as passed.
set -euo pipefail
cd "$(dirname "$0")/.."

stages=("$@")
named=$#
((named)) || stages=(ci asan tsan fuzz tidy)
deploy/setup.sh --tests
export CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=time_macros CCACHE_BASEDIR="$PWD"
# The compiler cache tells compilers apart by their files. image_test.sh compiles with this nvcc, too, so a link to it or a script
# that calls it would compile every kernel twice.
nvcc=$(readlink -m /usr/local/cuda/bin/nvcc)
[[ ! -x $nvcc ]] || export CUDACXX=${CUDACXX:-$nvcc}

# quietly <log> <command...>: the command's output goes to the log, its end to the terminal if it fails.
quietly() {
  local log=$1
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 60 "$log" >&2
    echo "test.sh: failed: $*; whole output in $log" >&2
    return 1
  fi
}

# why_skipped <log of ctest>: a line for each reason, with its tests.
why_skipped() {
  awk '/^[0-9]+\/[0-9]+ Test: / { test = $3 }
    /skipped: / { sub(/.*skipped: /, ""); tests[$0] = tests[$0] " " test }
    END { for (reason in tests) print "skipped: " reason ":" tests[reason] }' "$1" | sort
}

# What the result of asan, tsan, fuzz and tidy depends on, as one number: every file but documents, and what only ci compiles
# or runs; compilers, packages and the processor. Empty outside a checkout.
inputs() {
  local files
  files=$(git ls-files -co --exclude-standard -- . ':!*.md' ':!docs' ':!kernels/cuda' ':!tests/bench' ':!tests/gpu' \
    ':!tests/machine_code' 2>/dev/null) || return 0
  {
    sort -u <<<"$files" | while read -r file; do [[ ! -f $file ]] || printf '%s\0' "$file"; done | xargs -0 sha256sum
    dpkg-query -W
    g++ --version
    grep -m 1 ^flags /proc/cpuinfo
  } | sha256sum | cut -d ' ' -f 1
}
passed=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/rivulet-tests
state=$(inputs)

for stage in "${stages[@]}"; do
  case "$stage" in ci | release | image | asan | tsan | fuzz | tidy) ;; *)
    echo "test.sh: unknown stage '$stage'; stages: ci release image asan tsan fuzz tidy" >&2
    exit 2
    ;;
  esac
  mark=
  case "$stage" in asan | tsan | fuzz | tidy) mark=${state:+$passed/$stage-$state} ;; esac
  if ((!named)) && [[ -n $mark && -e $mark ]]; then
    echo "== $stage: not run: it passed on this machine with the same sources, tools and packages, on $(date -r "$mark" +%F)"
    continue
  fi
  echo "== $stage"
  begin=$SECONDS
  preset=$stage
  [[ $stage != ci && $stage != image ]] || preset=release  # tests of that build
  options=()
  # Builds our libraries in half the time if nothing is built yet; the other presets always do so.
  [[ $preset != release || -e build/release/CMakeCache.txt ]] || options=(-DRIVULET_UNITY=ON)
  mkdir -p "build/$preset"
  quietly "build/$preset/configure.log" cmake --preset "$preset" "${options[@]}"
  quietly "build/$preset/build.log" cmake --build --preset "$preset"
  if [[ $stage != tidy ]]; then
    ctest --preset "$stage" --output-log "build/$preset/test-$stage.log" --no-tests=error
    why_skipped "build/$preset/Testing/Temporary/LastTest.log"
  fi
  if [[ -n $mark && $state == "$(inputs)" ]]; then  # no file changed meanwhile
    mkdir -p "$passed"
    find "$passed" -type f -mtime +30 -delete
    touch "$mark"
  fi
  echo "== $stage: $((SECONDS - begin)) s"
done
echo "all stages passed: ${stages[*]}"
