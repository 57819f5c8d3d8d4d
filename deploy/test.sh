#!/usr/bin/env bash
# Installs what is missing, then runs every test that this machine can run: the release build with all tiers, then
# the container image, the sanitizers, the fuzzers' smoke run, clang's thread-safety analysis and clang-tidy.
# Usage: deploy/test.sh [stage...]      stages: release image asan tsan fuzz tidy (default: all)
# Tests that need what this machine lacks (a GPU) are listed as skipped, never as passed.
set -euo pipefail
cd "$(dirname "$0")/.."

stages=("$@")
((${#stages[@]})) || stages=(release image asan tsan fuzz tidy)
deploy/setup.sh --tests
export CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=time_macros CCACHE_BASEDIR="$PWD"

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

for stage in "${stages[@]}"; do
  case "$stage" in release | image | asan | tsan | fuzz | tidy) ;; *)
    echo "test.sh: unknown stage '$stage'; stages: release image asan tsan fuzz tidy" >&2
    exit 2
    ;;
  esac
  echo "== $stage"
  preset=$stage
  [[ $stage != image ]] || preset=release  # tests of that build, in a stage of their own for the time they take
  mkdir -p "build/$preset"
  quietly "build/$preset/configure.log" cmake --preset "$preset"
  quietly "build/$preset/build.log" cmake --build --preset "$preset"
  if [[ $stage != tidy ]]; then
    ctest --preset "$stage" --output-log "build/$preset/test-$stage.log" --no-tests=error
  fi
done
echo "all stages passed: ${stages[*]}"
