#!/usr/bin/env bash
# Installs what a bare Debian 12 machine lacks. Usage: deploy/setup.sh [--tests]
# Without an option: what building the server and the command needs. --tests: also what deploy/test.sh needs.
# Does nothing where everything is there; otherwise needs root, or sudo.
set -euo pipefail

packages=(
  ca-certificates g++ make cmake ninja-build ccache pkg-config
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev nlohmann-json3-dev libssl-dev libhwy-dev libpng-dev zlib1g-dev libcli11-dev
)
test_packages=(
  libgtest-dev libgmock-dev libbenchmark-dev
  clang-14 clang-tidy-14 clang-format-14 libclang-rt-14-dev python3 shellcheck
)

case "${1:-}" in
  "") ;;
  --tests) packages+=("${test_packages[@]}") ;;
  *) echo "setup.sh: unknown option '$1'; usage: deploy/setup.sh [--tests]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then exit 0; fi

echo "setup: installing ${#missing[@]} packages: ${missing[*]}" >&2
root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || { echo "setup.sh: installing packages needs root or sudo" >&2; exit 2; }
  root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${root[@]}" apt-get update && "${root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "setup.sh: apt-get failed, see above" >&2
  exit 1
fi
