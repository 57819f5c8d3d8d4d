#!/usr/bin/env bash
# Installs the packages that a bare Debian 12 machine lacks. Usage: deploy/setup.sh [--unit | --constraints | --tests]
# Without an option: the packages for building the server and the command, and Python, with which the command renders chat
# templates and serves HTTP. --unit: also those for building all tests and running the unit tests. --tests: those for deploy/test.sh.
# --constraints also makes build/constraints, the library of deploy/constraints.txt, which replies in a given form (JSON schema,
# regular expression, choices) need, in about a minute; so does --tests.
# --tests also makes build/apps (tests/requirements-apps.txt), build/venv (tests/requirements.txt; if nvcc is installed, tests/requirements-cuda.txt too, and
# build/gpu-peer from tests/requirements-gpu.txt), build/node (tests/e2e/client/grpc_js) and build/typescript
# (client/typescript). Does nothing if everything is installed; otherwise needs root, or sudo.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  ca-certificates g++ make cmake ninja-build ccache pkg-config
  libgrpc++-dev libgrpc-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev
  libabsl-dev nlohmann-json3-dev libssl-dev libhwy-dev libisal-dev libpng-dev zlib1g-dev libcli11-dev
  libpcre2-dev libutf8proc-dev prometheus-cpp-dev libhiredis-dev
  python3-jinja2 python3-regex python3-venv
)
unit_packages=(libgtest-dev libgmock-dev libbenchmark-dev openssl python3)
test_packages=(
  clang-14 clang-format-14 libclang-rt-14-dev shellcheck
  git haproxy buildah debootstrap curl chromium prometheus redis-server logrotate qemu-user xz-utils
)

case "${1:-}" in
  "") ;;
  --unit) packages+=("${unit_packages[@]}") ;;
  --constraints) ;;
  --tests)
    packages+=("${unit_packages[@]}" "${test_packages[@]}")
    # Any Node.js will do: Debian's packages conflict with NodeSource's.
    command -v npm >/dev/null || packages+=(nodejs npm)
    ;;
  *) echo "setup.sh: unknown option '$1'; usage: deploy/setup.sh [--unit | --constraints | --tests]" >&2; exit 2 ;;
esac

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# logged <command...>: prints nothing unless the command fails.
logged() {
  if ! "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "setup.sh: failed: $*" >&2
    exit 1
  fi
}

install_packages() {
  local missing=() root=() package status
  for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  echo "setup: installing ${#missing[@]} packages: ${missing[*]}" >&2
  if ((EUID != 0)); then
    command -v sudo >/dev/null || { echo "setup.sh: installing packages needs root or sudo" >&2; exit 2; }
    root=(sudo)
  fi
  export DEBIAN_FRONTEND=noninteractive
  logged "${root[@]}" apt-get update
  logged "${root[@]}" apt-get install -y --no-install-recommends "${missing[@]}"
}

# unchanged <stamp> <file...>: whether the files are the same as when the stamp was made.
unchanged() { sha256sum "${@:2}" | cmp -s - "$1"; }

# Builds the library from the package index's source distribution; its own flags would stop at warnings of other compilers.
install_constraints() {
  local requirements=deploy/constraints.txt folder=build/constraints work packages pip
  ! unchanged "$folder/stamp" "$requirements" || return 0
  echo "setup: the library of $requirements into $folder" >&2
  rm -rf "$folder"
  mkdir -p "$folder/packages" "$folder/licenses" "$folder/scratch/source" "$folder/scratch/build"
  folder=$(realpath "$folder") work=$folder/scratch packages=$folder/packages
  grep -v '^xgrammar==' "$requirements" >"$work/tools.txt"
  grep '^xgrammar==' "$requirements" >"$work/source.txt"
  logged python3 -m venv "$work/venv"
  pip=("$work/venv/bin/python" -m pip --disable-pip-version-check)
  logged "${pip[@]}" download --require-hashes --only-binary=:all: -d "$packages" -r "$work/tools.txt"
  logged "${pip[@]}" install --no-index --find-links "$packages" -r "$work/tools.txt"
  logged "${pip[@]}" download --require-hashes --no-deps --no-binary=:all: --no-build-isolation -d "$packages" -r "$work/source.txt"
  tar -C "$work/source" --strip-components 1 -xzf "$packages"/xgrammar-*.tar.gz
  echo 'set(XGRAMMAR_BUILD_PYTHON_BINDINGS OFF)' >"$work/build/config.cmake"
  export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
  logged cmake -S "$work/source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DCMAKE_CXX_FLAGS="-fno-lto -Wno-error -ffile-prefix-map=$work/source/=" -DCMAKE_INSTALL_PREFIX="$folder" -DCMAKE_INSTALL_LIBDIR=lib
  logged cmake --build "$work/build"
  logged cmake --install "$work/build"
  unset CCACHE_BASEDIR CCACHE_NOHASHDIR
  cat "$work/source/LICENSE" "$work/source/NOTICE" >"$folder/licenses/xgrammar"
  cp "$work/source/3rdparty/dlpack/LICENSE" "$folder/licenses/dlpack"
  sed '/\*\//q' "$work/source/3rdparty/picojson/picojson.h" >"$folder/licenses/picojson"
  rm -rf "$work"
  sha256sum "$requirements" >"$folder/stamp"
}

# install_venv <folder> <requirements>
install_venv() {
  local venv=$1 requirements=$2
  ! unchanged "$venv/stamp" "$requirements" || return 0
  echo "setup: Python packages of $requirements into $venv" >&2
  logged python3 -m venv --clear "$venv"
  logged "$venv/bin/pip" install --disable-pip-version-check -r "$requirements"
  sha256sum "$requirements" >"$venv/stamp"
}

# Some toolkits have only the compiler: their disassemblers and cuBLAS come from the package index.
install_cuda_tools() {
  local requirements=tests/requirements-cuda.txt venv=build/venv toolkit missing=()
  command -v nvcc >/dev/null && ! unchanged "$venv/stamp-cuda" "$requirements" || return 0
  toolkit=$(nvcc --dryrun -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
  [[ -n $toolkit ]] || { echo "setup.sh: nvcc --dryrun names no TOP, the folder of its toolkit" >&2; exit 1; }
  [[ -e $toolkit/bin/cuobjdump ]] || missing+=("$(grep '^nvidia-cuda-cuobjdump==' "$requirements")")
  [[ -e $toolkit/bin/nvdisasm ]] || missing+=("$(grep '^nvidia-cuda-nvdisasm==' "$requirements")")
  [[ -e $toolkit/include/cublasLt.h ]] || missing+=("$(grep '^nvidia-cublas==' "$requirements")")
  if ((${#missing[@]})); then
    echo "setup: CUDA tools of $requirements into $venv: ${missing[*]}" >&2
    logged "$venv/bin/pip" install --disable-pip-version-check --no-deps "${missing[@]}"
  fi
  sha256sum "$requirements" >"$venv/stamp-cuda"
}

# The library that our kernels are compared with on a GPU goes there with the kit (deploy/bundle.sh --gpu-tests).
install_gpu_peer() {
  local requirements=tests/requirements-gpu.txt folder=build/gpu-peer
  command -v nvcc >/dev/null && ! unchanged "$folder.stamp" "$requirements" || return 0
  echo "setup: Python packages of $requirements into $folder" >&2
  rm -rf "$folder"
  logged build/venv/bin/pip install --disable-pip-version-check --target "$folder" --no-deps --no-compile --only-binary=:all: --require-hashes -r "$requirements"
  sha256sum "$requirements" >"$folder.stamp"
}

# install_node <source> <node>: the packages that the lock file in <source> names.
install_node() {
  local source=$1 node=$2
  ! unchanged "$node/stamp" "$source"/package.json "$source"/package-lock.json || return 0
  echo "setup: npm packages of $source into $node" >&2
  mkdir -p "$node"
  cp "$source"/package.json "$source"/package-lock.json "$source"/.npmrc "$node/"
  logged npm ci --prefix "$node" --ignore-scripts --no-audit --no-fund
  sha256sum "$source"/package.json "$source"/package-lock.json >"$node/stamp"
}

install_packages
case "${1:-}" in --constraints | --tests) install_constraints ;; esac
if [[ ${1:-} == --tests ]]; then
  install_venv build/venv tests/requirements.txt
  install_venv build/apps tests/requirements-apps.txt
  install_cuda_tools
  install_gpu_peer
  install_node tests/e2e/client/grpc_js build/node
  install_node client/typescript build/typescript
fi
