#!/usr/bin/env bash
# Packs the server and the command with the shared libraries that they need into one relocatable folder, for machines
# with glibc 2.36 or newer and without our packages (Debian 12, Ubuntu 24.04).
# Usage: deploy/bundle.sh [--models] [--gpu-tests] [OUTPUT.tar.gz|.tar.xz]     default output: build/rivulet-bundle.tar.gz
#   --models      also the bundled models
#   --gpu-tests   also what tests/gpu/run.sh runs on a machine with a GPU, and its models; needs a build with CUDA
# Unpack anywhere, run rivulet-bundle/bin/rivulet-server.
set -euo pipefail
cd "$(dirname "$0")/.."

models=false
gpu_tests=false
output=build/rivulet-bundle.tar.gz
for argument in "$@"; do
  case "$argument" in
    --models) models=true ;;
    --gpu-tests) gpu_tests=true ;;
    -*) echo "bundle.sh: unknown option '$argument'" >&2; exit 2 ;;
    *) output=$argument ;;
  esac
done
bin=build/release/bin
for program in rivulet rivulet-server; do
  [[ -x $bin/$program ]] || { echo "bundle.sh: $bin/$program is not built; run deploy/demo.sh or deploy/test.sh first" >&2; exit 2; }
done

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
bundle=$staging/rivulet-bundle
mkdir -p "$bundle/bin" "$bundle/lib"
programs=("$bin/rivulet" "$bin/rivulet-server")
if $gpu_tests; then
  programs+=("$bin"/bench_step "$bin"/bench_engine "$bin"/copy_rate_cuda build/release/tests/{gpu_cuda_*_test,*_cuda_test})
  mkdir -p "$bundle/tests/gpu" "$bundle/tests/bench" "$bundle/tests/conformance" "$bundle/model"
  cp tests/gpu/run.sh "$bundle/tests/gpu/"
  cp tests/bench/peer_*.py "$bundle/tests/bench/"
  cp -r tests/conformance/models "$bundle/tests/conformance/"
  cp -r model/zoo "$bundle/model/"
fi
for program in "${programs[@]}"; do
  cp "$program" "$bundle/bin/"
  strip "$bundle/bin/${program##*/}"
  # The C library and its loader must be those of the machine that runs it.
  ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
    grep -vE '/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv))\.so' |
    while read -r library; do cp -nL "$library" "$bundle/lib/"; done
done
cp LICENSE "$bundle/"
if $models; then cp -r model/zoo "$bundle/models"; fi

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
# Every program with CUDA carries the same kernels, 60 MB of them: a dictionary that spans two programs keeps one copy
# (where the output is .xz; it takes 2 GB of memory here and 192 MB to unpack).
export XZ_OPT="--lzma2=preset=3,dict=192MiB"
tar -C "$staging" -caf "$output" rivulet-bundle  # compressed as its name says
echo "$output: $(du -h "$output" | cut -f1)"
