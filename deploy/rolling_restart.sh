#!/usr/bin/env bash
# Restarts replicas while clients generate, and counts what the clients lose. On free ports of loopback it starts replicas that
# share their sessions in Redis, and HAProxy in front of them. Clients of the Python library request replies, with and without
# sessions. Meanwhile every replica in turn ends with SIGTERM and starts again, then one is killed with -9, and so on. At the end
# a server that nothing disturbs gets the same requests, and the texts of all replies are compared.
# Usage: deploy/rolling_restart.sh [--seconds N] [--replicas N] [--clients N] [--build DIR] [--model DIR]
# Needs haproxy, redis-server, a build, and the Python that RIVULET_PYTHON names, that of deploy/demo.sh or of build/venv. If this Python has no
# Rivulet, client/python is installed into a temporary folder. All files that are written are in that folder.
# Exit code: 0 if no reply was lost and no text differs, 1 otherwise, 2 if something is missing.
set -euo pipefail
fail() { echo "rolling_restart.sh: $*; deploy/setup.sh --tests installs it" >&2; exit 2; }
PATH=$PATH:/usr/sbin # Debian's haproxy is there
command -v haproxy >/dev/null || fail "haproxy is not installed"
command -v redis-server >/dev/null || fail "redis-server is not installed"
deploy=$(cd "$(dirname "$0")" && pwd)
python=${RIVULET_PYTHON:-}
[[ -n $python ]] || for python in "$deploy"/../build/{release/gateway,venv}/bin/python; do [[ ! -x $python ]] || break; done
"$python" -c "import grpc" 2>/dev/null || fail "$python is missing, or has no grpcio"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -c "import rivulet" 2>/dev/null || "$python" -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps \
  --no-index --target "$folder/client" "$deploy/../client/python" || fail "$python has not all that client/python is built with"
export PYTHONPATH=$folder/client${PYTHONPATH:+:$PYTHONPATH}
exec "$python" "$deploy/rolling_restart.py" "$folder" "$@" # removes the folder
