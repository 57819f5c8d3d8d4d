#!/usr/bin/env bash
# From a fresh machine to a picture: installs packages, builds the server and the command, starts the server on the
# bundled models, draws 64 digits over gRPC into digits.png and streams Shakespeare to the terminal.
# Usage: deploy/demo.sh        Environment: RIVULET_DEMO_DIGITS (64), RIVULET_DEMO_CHARACTERS (400)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }
[[ -t 2 ]] || say() { printf '%s\n' "$*" >&2; }

say "1/4 packages"
deploy/setup.sh

say "2/4 build (a few minutes the first time)"
log=build/demo-build.log
cuda=OFF  # the CUDA kernels are a quarter of the build
if command -v nvcc >/dev/null; then
  if nvidia-smi -L >/dev/null 2>&1; then
    cuda=ON
  else
    echo "no GPU: built for the CPU; cmake --preset release -DRIVULET_CUDA=ON compiles the CUDA kernels too" >&2
  fi
fi
unity=()
[[ -e build/release/CMakeCache.txt ]] || unity=(-DRIVULET_UNITY=ON)  # takes half the time if nothing is built yet
mkdir -p build
if ! { cmake --preset release -DRIVULET_TESTS=OFF "${unity[@]}" -DRIVULET_CUDA="$cuda" && cmake --build --preset release --target rivulet-server rivulet; } >"$log" 2>&1; then
  tail -n 30 "$log" >&2
  echo "demo.sh: the build failed, see $log" >&2
  exit 1
fi
# A later build here gets the preset's setting.
[[ $cuda == ON ]] || cmake -URIVULET_CUDA build/release >>"$log" 2>&1
bin=build/release/bin

say "3/4 server"
server_log=build/demo-server.log
$bin/rivulet-server --model model/zoo/mnist-linear --model model/zoo/shakespeare-rfa --listen 127.0.0.1:0 2>"$server_log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
target=
for ((i = 0; i < 300; ++i)); do
  port=$(sed -n 's/.*"event":"listening".*"port":\([0-9]*\).*/\1/p' "$server_log" | head -n 1)
  [[ -n $port ]] && target=127.0.0.1:$port && break
  kill -0 "$server" 2>/dev/null || { cat "$server_log" >&2; exit 1; }
  sleep 0.1
done
[[ -n $target ]] || { echo "demo.sh: the server did not start within 30 s, see $server_log" >&2; exit 1; }
backend=$(sed -n 's/.*"backend":"\([^"]*\)".*/\1/p' "$server_log" | head -n 1)
echo "serving mnist-linear and shakespeare-rfa on $target with the ${backend:-cpu} backend" >&2

say "4/4 generate"
$bin/rivulet generate --target "$target" --model-name mnist-linear --seed 2020 \
  --count "${RIVULET_DEMO_DIGITS:-64}" --out digits.png
echo
$bin/rivulet generate --target "$target" --model-name shakespeare-rfa --seed 2020 --temperature 0.8 \
  --prompt "ROMEO:" --max-tokens "${RIVULET_DEMO_CHARACTERS:-400}"
say "done: digits.png"
