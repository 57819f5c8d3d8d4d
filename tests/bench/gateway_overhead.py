#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the HTTP gateway costs: the same requests over gRPC and through rivulet-gateway, in turn, on one server.

    python3 tests/bench/gateway_overhead.py --server build/release/bin/rivulet-server --model model/zoo/shakespeare-rfa

Needs the Python package with its extra `gateway` (pip install './client/python[gateway]'). Both clients are Python on the same
machine: over gRPC rivulet.AsyncClient, over HTTP a reader that only finds the events in the bytes. Prints medians over the rounds
and the ratio of the two ways, the median of the ratios of each round. With --chat both go through the gateway: a completion and a
chat of one message, which the model's template shall render as its content; a process of its own does that."""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time

import rivulet


def start(command, pattern):
    """A process that says its port on stderr."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(pattern, line)
        if found:
            return process, int(found.group(1))
    raise RuntimeError(f"{command} did not start")


def cpu_seconds(process):
    """Of all threads, so far."""
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Grpc:
    def __init__(self, client, model, prompt):
        self.client, self.model, self.prompt = client, model, prompt

    async def generate(self, tokens, seed):
        """Seconds to the first message and to the end, and the number of messages."""
        begin, first, messages = time.perf_counter(), None, 0
        cache = rivulet.PromptCache()
        async for _ in self.client.generate(self.prompt, model=self.model, max_tokens=tokens, seed=seed, cache=cache):
            first = first or time.perf_counter() - begin
            messages += 1
        return first, time.perf_counter() - begin, messages


class Http:
    def __init__(self, port, model, prompt, chat=False):
        self.port, self.model, self.prompt, self.chat = port, model, prompt, chat

    async def generate(self, tokens, seed):
        begin, first = time.perf_counter(), None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        prompt = {"messages": [{"role": "user", "content": self.prompt}]} if self.chat else {"prompt": self.prompt}
        body = json.dumps({"model": self.model, **prompt, "max_tokens": tokens, "seed": seed, "stream": True}).encode()
        path = "/v1/chat/completions" if self.chat else "/v1/completions"
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        messages, tail = 0, b""
        while piece := await reader.read(1 << 16):
            tail += piece
            *events, tail = tail.split(b"\n\n")
            messages += len(events)
            if events and first is None:
                first = time.perf_counter() - begin
        writer.close()
        if first is None or not messages:
            raise RuntimeError("the gateway sent no event")
        return first, time.perf_counter() - begin, messages - 1  # without [DONE]


async def measure(way, requests, streams, tokens):
    """First token with one token a request, rate of one stream, rate and messages a token of `streams` at once."""
    firsts = [(await way.generate(1, seed))[1] for seed in range(requests)]
    _, alone, _ = await way.generate(tokens, 1)
    begin = time.perf_counter()
    replies = await asyncio.gather(*(way.generate(tokens, seed) for seed in range(streams)))
    rate = streams * tokens / (time.perf_counter() - begin)
    messages = sum(reply[2] for reply in replies) / (streams * tokens)
    return {
        "one token, ms": 1e3 * statistics.median(firsts), "one stream, tokens/s": tokens / alone,
        f"{streams} streams, tokens/s": rate, f"{streams} streams, messages a token": messages,
    }  # fmt: skip


async def compare(options, server_port, gateway, gateway_port):
    model = options.model.rstrip("/").rpartition("/")[2]
    rounds = []
    async with rivulet.AsyncClient(f"127.0.0.1:{server_port}") as client:
        ways = {"gRPC": Grpc(client, model, options.prompt), "gateway": Http(gateway_port, model, options.prompt)}
        if options.chat:
            ways = {"completion": ways["gateway"], "chat": Http(gateway_port, model, options.prompt, chat=True)}
        for way in ways.values():  # the first request of each is slower
            await measure(way, 3, 2, 20)
        for number in range(options.rounds):
            order = list(ways.items())[:: 1 if number % 2 else -1]
            before, result = cpu_seconds(gateway), {}
            for name, way in order:
                result[name] = await measure(way, options.requests, options.streams, options.tokens)
            tokens = options.requests + (1 + options.streams) * options.tokens
            if not options.chat:
                result["gateway"]["CPU of the gateway, us a token"] = 1e6 * (cpu_seconds(gateway) - before) / tokens
            rounds.append(result)
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", required=True, help="rivulet-server")
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--prompt", default="ROMEO:")
    parser.add_argument("--prompt-tokens", type=lambda text: [int(one) for one in text.split(",")], help="ids in place of --prompt")
    parser.add_argument("--weights", default="auto", help="of the server")
    parser.add_argument("--chat", action="store_true", help="completions and chats through the gateway")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=30, help="of one token, a round")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200, help="of a stream")
    options = parser.parse_args()
    command = [options.server, "--model", options.model, "--listen", "127.0.0.1:0", "--threads", "1", "--weights", options.weights]
    options.prompt = options.prompt_tokens or options.prompt
    server, port = start(command, r'"event":"listening".*"port":(\d+)')
    try:
        command = [sys.executable, "-m", "rivulet.gateway.command", "--target", f"127.0.0.1:{port}", "--listen", "127.0.0.1:0"]
        gateway, gateway_port = start(command, r'"event":"listening".*"port":(\d+)')
        try:
            rounds = asyncio.run(compare(options, port, gateway, gateway_port))
        finally:
            gateway.terminate()
    finally:
        server.terminate()
    ways = ("completion", "chat") if options.chat else ("gRPC", "gateway")
    print(f"{'':34} {ways[0]:>10} {ways[1]:>9} {'ratio':>7}   load {os.getloadavg()[0]:.1f}")
    for name in rounds[0][ways[1]]:
        values = [[one[way].get(name) for one in rounds] for way in ways]
        shown = [f"{statistics.median(way):9.2f}" if None not in way else f"{'-':>9}" for way in values]
        ratio = "" if None in values[0] else f"{statistics.median(b / a for a, b in zip(*values)):7.2f}"
        print(f"{name:34} {shown[0]:>10} {shown[1]} {ratio}")


if __name__ == "__main__":
    main()
