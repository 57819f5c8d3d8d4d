#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a short turn of a long conversation waits for its first token where the state has to come back first, from memory or
from a file; and the same of llama.cpp's server.

    python3 tests/bench/restore.py --server build/release/bin/rivulet-server --model DIR --tokens 8192 \\
        [--peer llama-server --gguf FILE] [--rounds 9] [--threads 2]

Needs the Python package (pip install ./client/python). A round is, for each way, a turn of --turn given tokens and 8 generated ones.
Ours holds no slot between turns, so each turn reads its state back: from memory, or from a file (--session-state-mib 0; the page cache
has it). The prefill of a turn alone is the difference of a turn twice as long; what is left is the restore, printed in steps.
The peer: the turn with its state still in the slot; after another prompt had the slot (--cache-ram); and after the slot was read from
a file (/slots?action=restore, page cache). Medians of the rounds in ms (smallest to largest)."""

import argparse
import contextlib
import json
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import time
import urllib.request

import rivulet

GENERATED = 8


@contextlib.contextmanager
def started(command, pattern):
    """What the log of a process says of its port; the process ends with this. The log is a file: nobody reads a pipe later."""
    with tempfile.NamedTemporaryFile("w+", prefix="restore-") as log:
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log)
        try:
            while not (found := re.search(pattern, text := pathlib.Path(log.name).read_text(errors="replace"))):
                if process.poll() is not None:
                    raise SystemExit(f"{command} did not start: {text[-2000:]}")
                time.sleep(0.1)
            yield found.group(1)
        finally:
            process.terminate()
            process.wait()


class Ours:
    def __init__(self, args, folder, until):
        kept = ("--state-dir", folder, "--session-state-mib", 0) if folder else ("--session-state-mib", 4096)
        command = (args.server, "--model", args.model, "--listen", "127.0.0.1:0", "--threads", args.threads, "--slots", 2,
                   "--kv-cache", args.kv_cache, "--max-context", args.tokens + args.rounds * 4 * (args.turn + GENERATED), *kept)
        port = until.enter_context(started(command, r'"event":"listening".*"port":(\d+)'))
        self.client = rivulet.Client(f"127.0.0.1:{port}")
        self.session = self.client.open_session()

    def append(self, tokens):
        self.session.append(tokens)

    def turn(self, tokens):
        """Seconds to the first token, and a token after it."""
        begin, times = time.perf_counter(), []
        for piece in self.session.generate(tokens, max_tokens=GENERATED, temperature=0, ignore_eos=True):
            times += [time.perf_counter() - begin] * len(piece.tokens)
        return times[0], (times[-1] - times[0]) / (len(times) - 1)


class Peer:
    def __init__(self, args, folder, until):
        command = (args.peer, "-m", args.gguf, "--port", args.port, "-np", 1, "-c", args.tokens + 1024 + args.rounds * 4 * (args.turn + GENERATED),
                   "-t", args.threads, "-tb", args.threads, "--cache-ram", 8192, "--slot-save-path", f"{folder}/", "--no-warmup")
        until.enter_context(started(command, r"(server is listening|listening on)"))
        self.url, self.prompt = f"http://127.0.0.1:{args.port}", []

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        return urllib.request.urlopen(request, timeout=3600)

    def complete(self, prompt, tokens):
        """Seconds to the first token, and a token after it; and the tokens."""
        body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "stream": True, "return_tokens": True, "ignore_eos": True}
        begin, times, made = time.perf_counter(), [], []
        with self.post("/completion", body) as reply:
            for line in reply:
                if line.startswith(b"data: "):
                    ids = json.loads(line[6:]).get("tokens", [])
                    times += [time.perf_counter() - begin] * len(ids)
                    made += ids
                elif line.startswith(b"error"):
                    raise RuntimeError(line.decode(errors="replace"))
        return times[0], (times[-1] - times[0]) / max(len(times) - 1, 1), made

    def turn(self, tokens):
        first, step, made = self.complete(self.prompt + tokens, GENERATED)
        self.prompt += tokens + made
        return first, step

    def other(self):
        self.complete([5, 6, 7], 1)

    def slot(self, action):
        begin = time.perf_counter()
        self.post(f"/slots/0?action={action}", {"filename": "a"}).read()
        return time.perf_counter() - begin


def shown(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--kv-cache", default="f32")
    parser.add_argument("--peer", type=pathlib.Path, help="llama-server")
    parser.add_argument("--gguf", type=pathlib.Path, help="of the peer, with a vocabulary: its server ends on a file without one")
    parser.add_argument("--port", type=int, default=8089, help="of the peer")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--turn", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    draw = random.Random(1)
    some = lambda count: [draw.randrange(10, 5000) for _ in range(count)]
    history = some(args.tokens)
    results = {}

    def note(name, first, step=None):
        results.setdefault(name, []).append(first * 1e3)
        if step is not None:
            results.setdefault(f"{name.split(',')[0]}, step", []).append(step * 1e3)

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as states, contextlib.ExitStack() as until:
        ours = {"memory": Ours(args, "", until), "file": Ours(args, states, until)}
        for server in ours.values():
            server.append(history)
        peer = Peer(args, folder, until) if args.peer else None
        if peer:
            peer.prompt = list(history)
            peer.turn(some(1))
        for _ in range(args.rounds):
            for where, server in ours.items():
                first, step = server.turn(some(args.turn))
                note(f"ours, {where}", first, step)
                longer = server.turn(some(2 * args.turn))[0]
                prefill = longer - first
                results.setdefault(f"ours, {where}: restore in steps", []).append((first - prefill) / step)
            if not peer:
                continue
            note("peer, in its slot", *peer.turn(some(args.turn)))
            peer.other()
            note("peer, memory", *peer.turn(some(args.turn)))
            peer.slot("save")
            peer.other()
            restored = peer.slot("restore")
            note("peer, file", restored + peer.turn(some(args.turn))[0])
        files = [file.stat().st_size for file in pathlib.Path(states).rglob("*") if file.is_file()]
        print(f"bytes of our files {sum(files)}, of the peer's {sum(file.stat().st_size for file in pathlib.Path(folder).iterdir())}")
    for name, values in results.items():
        print(f"{name}: {shown(values)}")


if __name__ == "__main__":
    main()
