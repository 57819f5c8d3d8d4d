#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the kit and prints the two commands for a borrowed machine with a GPU and a time limit: the first, and the one to send right after.
# Usage: tests/gpu/first.sh [--first SECONDS] [--second SECONDS] [--build DIR]      default: 540 and 170 s, build/release
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

first=540
second=170
build=build/release
while (($#)); do
  case "$1" in
    --first) first=${2:?first.sh: --first needs seconds}; shift ;;
    --second) second=${2:?first.sh: --second needs seconds}; shift ;;
    --build) build=${2:?first.sh: --build needs a directory}; shift ;;
    *) echo "first.sh: unknown option '$1'; usage: tests/gpu/first.sh [--first SECONDS] [--second SECONDS] [--build DIR]" >&2; exit 2 ;;
  esac
  shift
done
kit=build/gpu-kit.tar.xz
[[ ! -e $build/gpu-kit.txt ]] || cmake --build "$build" >/dev/null  # what changed since
deploy/bundle.sh --gpu-tests --build "$build" "$kit"
rm -rf build/kit  # of an older one, where the commands run here
unpack="[ -d build/kit ] || python3 -m tarfile -e $kit build/kit"
run="tests/gpu/run.sh --programs build/kit/rivulet-bundle/bin --phase"
cat <<END

Both run in the root of the tree's copy there. Carry: $kit. Results: \$OUT/gpu-results.
Send the second at once when the first has ended: a machine that waits may be taken away.

1. Limit $((first + 40)) s:
$unpack; $run first --deadline $first

2. Limit $((second + 30)) s:
$unpack; $run second --deadline $second

Then, here: tests/gpu/report.py RESULTS
END
