#!/bin/sh
# in_venv.sh SCRIPT: runs a Python test with the packages of tests/requirements.txt, or skips it (exit code 77).
# Looked for when the test runs, not when CMake does: the environment may come later.
venv=$(dirname "$0")/../../build/venv
if ! [ -x "$venv/bin/python" ]; then
  echo "skipped: no build/venv; deploy/setup.sh --tests makes it"
  exit 77
fi
exec "$venv/bin/python" "$@"
