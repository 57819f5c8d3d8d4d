#!/usr/bin/env bash
# What the tidy preset runs in place of the compiler: clang-tidy, with the compiler's own warnings. Writes the list of headers
# that the compiler would write, and an object without code; the preset links nothing.
# ccache calls it (CCACHE_PREFIX), so a file whose text and headers are unchanged is not checked again; a finding
# fails, and ccache keeps no failure. Generated sources are not checked.
# Usage: tidy.sh COMPILER ARGUMENT...      RIVULET_CLANG_TIDY names clang-tidy
set -euo pipefail

source='' object=0
for ((i = 2; i <= $#; ++i)); do
  case ${!i} in
    -o) object=$((i + 1)) ;;
    *.pb.cc | proto/*/Unity/*.cxx) ;;
    *.cc | */Unity/*.cxx) source=${!i} ;;
  esac
done
# -Wno-error leaves the errors to .clang-tidy, which names them. Clang's own errors would include the headers of packages.
[[ -z $source ]] || "$RIVULET_CLANG_TIDY" --quiet --config-file="${0%/*}/../../.clang-tidy" "$source" -- "${@:2}" -Wno-error
"$@" -E -o /dev/null
"$1" -x c++ -c /dev/null -o "${!object}"
