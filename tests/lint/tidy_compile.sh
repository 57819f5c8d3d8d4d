#!/usr/bin/env bash
# What the tidy preset runs in place of the compiler: compiles, then runs clang-tidy on the same source file.
# ccache calls it (CCACHE_PREFIX), so a file whose text and headers are unchanged is not checked again; a finding
# makes the compilation fail, and ccache keeps no failure. Generated sources are compiled only.
# Usage: tidy_compile.sh COMPILER ARGUMENT...
set -euo pipefail

"$@"
for argument in "$@"; do
  case $argument in
    *.pb.cc | proto/*/Unity/*.cxx) exit 0 ;;
    *.cc | */Unity/*.cxx) exec clang-tidy-14 --quiet "$argument" -- "${@:2}" ;;
  esac
done
