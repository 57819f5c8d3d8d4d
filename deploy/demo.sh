#!/usr/bin/env bash
# From a fresh machine to a picture, a text and a chat: installs packages, builds the programs, serves the bundled models with `rivulet
# serve`, draws 64 digits into digits.png, streams Shakespeare, asks the chat model over HTTP, and then serves until Ctrl-C where stdout is
# a terminal.
# Usage: deploy/demo.sh        Environment: RIVULET_DEMO_DIGITS (64), RIVULET_DEMO_CHARACTERS (400), RIVULET_DEMO_HTTP (127.0.0.1:8000)
set -euo pipefail
cd "$(dirname "$0")/.."
(($# == 0)) || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }

say() { printf '\n\033[1m%s\033[0m\n' "$*" >&2; }
[[ -t 2 ]] || say() { printf '%s\n' "$*" >&2; }
http=${RIVULET_DEMO_HTTP:-127.0.0.1:8000}
log=build/demo-build.log

# logged <what> <command...>: the output goes to the log; its end is shown if the command fails.
logged() {
  if ! "${@:2}" >>"$log" 2>&1; then
    tail -n 30 "$log" >&2
    echo "demo.sh: $1 failed, see $log" >&2
    exit 1
  fi
}

say "1/4 packages"
deploy/setup.sh

say "2/4 build (a few minutes the first time)"
mkdir -p build
: >"$log"
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
logged "the build" cmake --preset release -DRIVULET_TESTS=OFF "${unity[@]}" -DRIVULET_CUDA="$cuda"
logged "the build" cmake --build --preset release --target rivulet-server rivulet
# A later build here gets the preset's setting.
[[ $cuda == ON ]] || cmake -URIVULET_CUDA build/release >>"$log" 2>&1
bin=$PWD/build/release/bin
gateway=build/release/gateway  # where rivulet serve looks for it
sources=$(find client/python docs proto -type f -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
if [[ $(cat "$gateway/stamp" 2>/dev/null) != "$sources" ]]; then
  logged "python3 -m venv" python3 -m venv --clear $gateway
  logged "pip" $gateway/bin/pip install --disable-pip-version-check './client/python[gateway]'
  echo "$sources" >$gateway/stamp
fi

say "3/4 server"
models=(model/zoo/mnist-linear model/zoo/shakespeare-rfa model/zoo/shakespeare-chat)
"$bin/rivulet" serve "${models[@]}" --listen 127.0.0.1:0 --http "$http" >build/demo-address 2>build/demo-server.log &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
until [[ -s build/demo-address ]]; do
  kill -0 "$server" 2>/dev/null || { cat build/demo-server.log >&2; exit 1; }
  sleep 0.1
done
page=$(sed 's/^The page is \(.*\)\/, OpenAI.*/\1/' build/demo-address)
target=$(sed 's/.*gRPC is \(.*\)\. Ctrl-C.*/\1/' build/demo-address)
echo "serving ${models[*]##*/}" >&2

say "4/4 generate"
"$bin/rivulet" generate --target "$target" --model-name mnist-linear --seed 2020 --count "${RIVULET_DEMO_DIGITS:-64}" --out digits.png
echo
"$bin/rivulet" generate --target "$target" --model-name shakespeare-rfa --seed 2020 --temperature 0.8 \
  --prompt "ROMEO:" --max-tokens "${RIVULET_DEMO_CHARACTERS:-400}"
echo
$gateway/bin/python - "$page" <<'END'
import json, sys, urllib.request

messages = [{"role": "system", "content": "You are JULIET. You speak to ROMEO."}, {"role": "user", "content": "What news, my love?"}]
body = json.dumps({"model": "shakespeare-chat", "messages": messages, "max_tokens": 200, "seed": 7, "temperature": 0.7})
request = urllib.request.Request(f"{sys.argv[1]}/v1/chat/completions", body.encode(), {"content-type": "application/json"})
with urllib.request.urlopen(request) as answer:
    print(f"{messages[1]['content']}\n-- {json.load(answer)['choices'][0]['message']['content']}")
END
say "done: digits.png"
[[ -t 1 ]] || exit 0
say "The page is $page/ and OpenAI's API $page/v1. Ctrl-C ends the server."
trap : INT  # the server gets it, too, and lets its answers end
wait "$server" || wait "$server" || true
