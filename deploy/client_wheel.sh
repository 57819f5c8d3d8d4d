# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For deploy/bundle.sh and deploy/wheel.sh, which source this file in the root of the project.

# client_wheel PYTHON OUTPUT_DIR: builds the wheel of client/python, and prints its path. Leaves nothing else behind.
# Errors: 2 if PYTHON cannot build it, 1 if the build failed; the reason is on stderr.
client_wheel() (
  if ! "$1" -I -c "import build, grpc_tools, hatchling, markdown_it" 2>/dev/null; then
    echo "$1 has not all of build, grpcio-tools, hatchling and markdown-it-py. To install them:" \
      "python3 -m venv build/venv && build/venv/bin/pip install -c tests/requirements.txt build grpcio-tools hatchling markdown-it-py" >&2
    exit 2
  fi
  scratch=$(mktemp -d) || exit 1
  trap 'rm -rf "$scratch"' EXIT
  if ! PYTHONDONTWRITEBYTECODE=1 "$1" -m build --wheel --no-isolation --outdir "$scratch" client/python >"$scratch/log" 2>&1; then
    cat "$scratch/log" >&2
    exit 1
  fi
  made=("$scratch"/*.whl)
  mkdir -p "$2" && mv "${made[0]}" "$2/" && echo "$2/${made[0]##*/}"
)
