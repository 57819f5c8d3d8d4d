#!/usr/bin/env bash
# Packs the server and the command with the shared libraries that they need, and the licences of all, into one relocatable
# folder, for machines with glibc 2.36 or newer and without our packages (Debian 12, Ubuntu 24.04).
# Usage: deploy/bundle.sh [--models] [--build DIR] [OUTPUT.tar.gz|.tar.xz|.tar]    default output: build/rivulet-bundle.tar.gz
#        deploy/bundle.sh --gpu-tests [--build DIR] [OUTPUT.tar.xz]              default output: build/gpu-kit.tar.xz
#   --models      also the bundled models
#   --build       the build directory; build/release unless given
#   --gpu-tests   instead the programs that tests/gpu/run.sh runs beside the source tree on a machine with a GPU, without models: at
#                 most 15 MiB, 62 with the tree. The build needs nvcc, and tests; RIVULET_CUDA_ARCHITECTURES (CMakeLists.txt) says
#                 for which GPUs, an H100 or H200 unless given
# Unpack anywhere, run rivulet-bundle/bin/rivulet-server. The HTTP gateway is in the bundle as rivulet_client-VERSION-py3-none-any.whl
# where build/venv, or the Python that RIVULET_PYTHON names, can build it; the kit has none.
set -euo pipefail
cd "$(dirname "$0")/.."

models=false
gpu_tests=false
output=
build=build/release
while (($#)); do
  argument=$1
  case "$argument" in
    --models) models=true ;;
    --build) build=${2:?bundle.sh: --build needs a directory}; shift ;;
    --gpu-tests) gpu_tests=true ;;
    -*) echo "bundle.sh: unknown option '$argument'" >&2; exit 2 ;;
    *) output=$argument ;;
  esac
  shift
done
# Prints what the build lacks for the programs of the kit; nothing if it has them.
lacks_kit() {
  local settings=$build/CMakeCache.txt
  if ! command -v nvcc >/dev/null; then echo "this machine has no nvcc"
  elif [[ ! -e $settings ]]; then echo "$build is not configured"
  elif ! grep -q '^RIVULET_TESTS:.*=ON$' "$settings"; then echo "$build has no tests (RIVULET_TESTS is OFF, as deploy/demo.sh sets it)"
  elif ! grep -q '^RIVULET_CUDA:.*=ON$' "$settings"; then echo "$build has no CUDA (RIVULET_CUDA is OFF)"
  elif ! grep -q '^GTest_DIR:.*/' "$settings"; then echo "$build was configured without GoogleTest"
  elif [[ ! -e build/gpu-peer.stamp ]]; then echo "build/gpu-peer, the Python packages of tests/requirements-gpu.txt, is missing"
  elif [[ ! -e $build/gpu-kit.txt ]]; then echo "$build is not configured to its end, or without the server"
  fi
}
if $gpu_tests; then
  lacks=$(lacks_kit)
  if [[ -n $lacks ]]; then
    echo "bundle.sh: $lacks; run: deploy/setup.sh --tests && cmake --preset release -DRIVULET_TESTS=ON -DRIVULET_CUDA=ON && cmake --build --preset release" >&2
    exit 2
  fi
  mapfile -t programs <"$build/gpu-kit.txt"
  output=${output:-build/gpu-kit.tar.xz}
else
  programs=("$build"/bin/rivulet{,-server,-grammar})
  [[ -x $build/bin/rivulet-grammar ]] || {
    echo "bundle.sh: $build has no rivulet-grammar, which constraints need; run: deploy/setup.sh --constraints && cmake --preset release && cmake --build $build" >&2
    exit 2
  }
fi
output=${output:-build/rivulet-bundle.tar.gz}
for program in "${programs[@]}"; do
  [[ -x $program ]] || { echo "bundle.sh: $program is not built; run: cmake --build $build" >&2; exit 2; }
done

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
bundle=$staging/rivulet-bundle
mkdir -p "$bundle/bin" "$bundle/lib"
if $gpu_tests; then
  cp -r build/gpu-peer "$bundle/python"
  git rev-parse --short HEAD >"$bundle/COMMIT" 2>/dev/null || echo unknown >"$bundle/COMMIT"  # for the tables
fi
for program in "${programs[@]}"; do
  cp --no-dereference "$program" "$bundle/bin/"
  [[ ! -L $program ]] || continue  # to a program that is in the bundle
  strip "$bundle/bin/${program##*/}"
  # The C library and its loader must come from the machine that runs the bundle.
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv))\.so' |
    while read -r library; do cp -nL "$library" "$bundle/lib/"; done
done
if $gpu_tests; then strip "$bundle"/lib/librivulet_*; fi  # other libraries stay as in their packages
cp LICENSE "$bundle/"
if ! $gpu_tests; then cp -r "$build/share" "$bundle/"; fi
# Adds the licences of the distribution's code: of the libraries, and of the code that is compiled into the programs.
pack_licences() {
  local owner
  mkdir "$bundle/licenses"
  {
    for library in "$bundle"/lib/*; do
      owner=$(dpkg-query --search "*/${library##*/}") || {
        echo "bundle.sh: no package owns ${library##*/}, so its licence is unknown" >&2
        return 1
      }
      cut -d : -f 1 <<<"$owner"
    done
    printf '%s\n' nlohmann-json3-dev libcli11-dev
  } | sort -u | while read -r owner; do
    cp --dereference "/usr/share/doc/$owner/copyright" "$bundle/licenses/$owner"
  done
  cp build/constraints/licenses/* "$bundle/licenses/"
}
if ! $gpu_tests; then pack_licences; fi
if $models; then
  model/zoo/unpack.py
  cp -r model/zoo "$bundle/models"
  rm "$bundle"/models/{unpack.py,*/*.xz}
fi
# Builds the wheel of client/python into the bundle, and leaves nothing else behind; says so where the Python cannot.
pack_client() {
  local python=${RIVULET_PYTHON:-build/venv/bin/python}
  if ! "$python" -I -c "import build, grpc_tools, hatchling, markdown_it" 2>/dev/null; then
    echo "$python has not all of build, grpcio-tools, hatchling and markdown-it-py. To install them:" \
      "python3 -m venv build/venv && build/venv/bin/pip install -c tests/requirements.txt build grpcio-tools hatchling markdown-it-py" >&2
    echo "bundle.sh: left out the HTTP gateway (rivulet_client-VERSION-py3-none-any.whl)" >&2
    return 0
  fi
  if ! PYTHONDONTWRITEBYTECODE=1 "$python" -m build --wheel --no-isolation --outdir "$staging/client" client/python >"$staging/log" 2>&1; then
    cat "$staging/log" >&2
    return 1
  fi
  mv "$staging"/client/*.whl "$bundle/"
}
if ! $gpu_tests; then pack_client; fi

# The programs look beside themselves first (RPATH $ORIGIN/../lib, CMakeLists.txt): nothing may come from elsewhere.
outside=$(ldd "$bundle"/bin/* |
  awk '/not found/ || ($2 == "=>" && $3 ~ /^\//) {print $1, $3}' |
  grep -vE "$bundle/bin/\.\./lib/|^(ld-linux|lib(c|m|dl|rt|pthread|resolv)\.so)" || true)
if [[ -n $outside ]]; then
  echo "bundle.sh: these libraries are not in the bundle: $outside" >&2
  exit 1
fi
"$bundle/bin/rivulet" --version >/dev/null
mkdir -p "$(dirname "$output")"
# Programs of one source have common parts: a dictionary larger than a program finds them.
export XZ_OPT="--lzma2=preset=6,dict=128MiB"
tar -C "$staging" -caf "$output" rivulet-bundle  # compressed as its name says
echo "$output: $(du -h "$output" | cut -f1)"
if $gpu_tests; then
  kit=$(stat -c %s "$output")
  tree=$(git ls-files -z 2>/dev/null | xargs -0r stat -c %s | awk '{sum += $1} END {print sum + 0}')
  ((kit <= 15 << 20 && kit + tree <= 62 << 20)) || { echo "bundle.sh: the kit has $kit bytes, and the tree $tree: at most 15 MiB, and 62 MiB together" >&2; exit 1; }
fi
