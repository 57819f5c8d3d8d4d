#!/bin/sh
# in_reference.sh SCRIPT: runs a comparison with libraries of others, or skips it (exit code 77).
if [ -z "$RIVULET_REFERENCE_PYTHON" ]; then
  echo "skipped: RIVULET_REFERENCE_PYTHON names no interpreter with the libraries; tests/README.md says which"
  exit 77
fi
exec "$RIVULET_REFERENCE_PYTHON" "$@"
