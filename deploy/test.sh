#!/usr/bin/env bash
# Installs what is missing, then runs every test that this machine can run: the release build with all tiers, then
# the sanitizers, the fuzzers' smoke run, clang's thread-safety analysis and clang-tidy.
# Usage: deploy/test.sh [stage...]      stages: release asan tsan fuzz tidy (default: all)
# Tests that need what this machine lacks (a GPU) are listed as skipped, never as passed.
set -euo pipefail
cd "$(dirname "$0")/.."

stages=("$@")
((${#stages[@]})) || stages=(release asan tsan fuzz tidy)
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
  case "$stage" in release | asan | tsan | fuzz | tidy) ;; *)
    echo "test.sh: unknown stage '$stage'; stages: release asan tsan fuzz tidy" >&2
    exit 2
    ;;
  esac
  echo "== $stage"
  mkdir -p "build/$stage"
  quietly "build/$stage/configure.log" cmake --preset "$stage"
  quietly "build/$stage/build.log" cmake --build --preset "$stage"
  if [[ $stage != tidy ]]; then
    ctest --preset "$stage" --output-log "build/$stage/test.log" --no-tests=error
  fi
done
echo "all stages passed: ${stages[*]}"
