#!/usr/bin/env bash
# Makes the page that rivulet-gateway serves. Usage: client/page/build.sh [FOLDER]
# FOLDER: by default the place in the Python package whose content is committed. Needs build/typescript, which
# deploy/setup.sh --tests makes.
set -euo pipefail
cd "$(dirname "$0")"
root=../..
out=${1:-../python/src/rivulet/gateway/page}
mkdir -p "$out"
"$root/build/typescript/node_modules/.bin/tsc" -p . --outDir "$out"
cp index.html style.css icon.svg "$out/"
