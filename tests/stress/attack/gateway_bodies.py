# SPDX-License-Identifier: Apache-2.0
"""Bodies that hold up the HTTP gateway: large ones of each kind with and without a key, small chunks, and chat templates that never
end. For each: its answer, how long that took, and the longest time for which an honest client waited for /health meanwhile."""

import argparse
import hashlib
import http.client
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

import victim

sys.path.append(str(victim.SOURCE_DIR / "tests/e2e/support"))
import text_models

KEY = "the-key-of-the-honest-client"
MOST_BYTES = (8 << 20) - 4096
TEMPLATES = {
    "plain": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "indent": "{{ ('a\n' * 1024) | indent(2097152) }}",
    "output": "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'a' * 65536 }}{% endfor %}{% endfor %}",
}


def filled(head: str, entry: str, tail: str, size: int = MOST_BYTES) -> bytes:
    """A body of about `size` bytes with as many entries as fit."""
    return f"{head}{','.join([entry] * ((size - len(head) - len(tail)) // (len(entry) + 1)))}{tail}".encode()


def numbered(head: str, entry: str, tail: str, count: int) -> bytes:
    """As filled(), where entries hold their numbers instead of %d."""
    return f"{head}{','.join(entry % index for index in range(count))}{tail}".encode()


def bodies() -> dict[str, tuple[str, bytes]]:
    """Path and body by the name of a kind."""
    text, chat = '{"model":"plain","max_tokens":1,', '{"model":"plain","max_tokens":1,"messages":'
    completions, chats = "/v1/completions", "/v1/chat/completions"
    return {
        "ids": (completions, filled(text + '"prompt":[', "1", "]}")),
        "stop": (completions, filled(text + '"prompt":"a","stop":[', '"abc"', "]}")),
        "logit_bias": (completions, numbered(text + '"prompt":"a","logit_bias":{', '"%d":1', "}}", 700_000)),
        "messages": (chats, filled(chat + "[", '{"role":"user","content":"a"}', "]}")),
        "arrays": (completions, filled(text + '"prompt":"a","metadata":[', "[]", "]}")),
        "names": (completions, numbered(text, '"a%d":1', "}", 700_000)),
        "text": (completions, filled(text + '"prompt":"', "a" * 1000, '"}')),
        "text_5_mib": (completions, filled(text + '"prompt":"', "a" * 1000, '"}', 5 << 20)),
        "surrogate": (completions, b'{"model":"plain","\\ud800":1}'),
        **{f"template_{name}": (chats, json.dumps({"model": name, "messages": [{"role": "user", "content": "a"}]}).encode())
           for name in ("endless", "indent", "output")},
    }  # fmt: skip


class Honest(threading.Thread):
    """Asks for /health again and again, until stop(); waits: seconds of each answer, also of the one that is missing."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.waits, self.asked, self.ending = port, [], time.monotonic(), threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        while not self.ending.is_set():
            self.asked = time.monotonic()
            connection.request("GET", "/health")
            connection.getresponse().read()
            self.waits.append(time.monotonic() - self.asked)
            time.sleep(0.002)
        self.asked = time.monotonic()

    def stop(self) -> float:
        """The longest wait."""
        last = time.monotonic() - self.asked
        self.ending.set()
        return max([*self.waits, last])


def head(path: str, key: str | None, *headers: str) -> bytes:
    own = [f"authorization: Bearer {key}"] if key else []
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *own, *headers, "", ""]).encode()


def request(path: str, body: bytes, key: str | None) -> bytes:
    return head(path, key, f"content-length: {len(body)}") + body


def in_chunks(path: str, body: bytes, key: str | None) -> bytes:
    """Each chunk holds one byte."""
    return head(path, key, "transfer-encoding: chunked") + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


def answer_to(port: int, sent: bytes, seconds: float) -> tuple[str, float]:
    """Status and code, or what happened instead, and after how many seconds."""
    begin = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), seconds) as connection:
        try:
            connection.sendall(sent)
        except OSError:  # an answer may be there all the same
            pass
        try:
            found = b""
            while b'"code":' not in found and (piece := connection.recv(1 << 16)):
                found += piece
        except OSError as error:
            return type(error).__name__, time.monotonic() - begin
    status = re.match(rb"HTTP/1.1 (\d+)", found)
    code = re.search(rb'"code":"?(\w+)', found)
    said = " ".join(match.group(1).decode() for match in (status, code) if match) or "closed"
    return said, time.monotonic() - begin


class Gateway:
    """A rivulet-gateway on a free port, for a `with` statement."""

    def __init__(self, command: pathlib.Path, target: str) -> None:
        self.command = [str(command), "--target", target, "--listen", "127.0.0.1:0"]

    def __enter__(self) -> "Gateway":
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.port = json.loads(self.process.stderr.readline())["port"]
        self.log: list[str] = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self.process.kill()
        self.process.wait()

    def peak_mib(self) -> float:
        """Resident memory of the gateway and its processes at their highest, in total."""
        pids = [self.process.pid]
        for status in pathlib.Path("/proc").glob("[0-9]*/status"):
            try:
                if f"PPid:\t{self.process.pid}\n" in status.read_text():
                    pids.append(int(status.parent.name))
            except OSError:  # it has ended
                continue
        found = [re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()) for pid in pids]
        return round(sum(int(match.group(1)) for match in found if match) / 1024, 1)


def attack(command: pathlib.Path, target: str, sent: bytes, seconds: float) -> dict[str, object]:
    with Gateway(command, target) as gateway:
        warm = request("/v1/completions", b'{"model":"plain","prompt":"a","max_tokens":1}', KEY)
        answer_to(gateway.port, warm, seconds)
        honest = Honest(gateway.port)
        honest.start()
        time.sleep(0.5)
        usual = max(honest.waits)
        said, took = answer_to(gateway.port, sent, seconds)
        time.sleep(0.2)
        stall, peak = honest.stop(), gateway.peak_mib()
        traces = sum("Traceback" in line for line in gateway.log)
    return {"answer": said, "seconds": round(took, 3), "stall_ms": round(1000 * stall, 1), "usual_ms": round(1000 * usual, 1),
            "peak_mib": peak, "traces": traces}  # fmt: skip


def models(folder: pathlib.Path) -> list[str]:
    """Flags for one small model for each template."""
    flags = []
    for name, template in TEMPLATES.items():
        made = text_models.with_tokenizer("mamba2", folder, name)
        (made / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        flags += ["--model", str(made)]
    return flags


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default=victim.SOURCE_DIR / "build/release/bin/rivulet-server", help="the server's binary")
    parser.add_argument("--gateway", type=pathlib.Path, required=True, help="the command rivulet-gateway, as pip has installed it")
    parser.add_argument("--seconds", type=float, default=20, help="after which an answer is no longer waited for")
    parser.add_argument("--only", action="append", help="a kind; repeatable")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        entry = {"name": "honest", "sha256": hashlib.sha256(KEY.encode()).hexdigest(), "tenant": "honest"}
        (folder / "keys.json").write_text(json.dumps([entry]))
        flags = models(folder)
        with victim.Victim(parsed.server, *flags, "--keys-file", str(folder / "keys.json"), "--threads", "1") as server:
            for kind, (path, body) in bodies().items():
                if parsed.only and kind not in parsed.only:
                    continue
                for key in (None, KEY):
                    found = attack(parsed.gateway, server.target, request(path, body, key), parsed.seconds)
                    victim.report(attack="gateway_bodies", kind=kind, key=key is not None, bytes=len(body), **found)
            if not parsed.only or "chunks" in parsed.only:
                path, body = "/v1/completions", filled('{"model":"plain","prompt":"', "a" * 1000, '"}', 1 << 20)
                for key in (None, KEY):
                    found = attack(parsed.gateway, server.target, in_chunks(path, body, key), parsed.seconds)
                    victim.report(attack="gateway_bodies", kind="chunks", key=key is not None, bytes=len(body), **found)


if __name__ == "__main__":
    main()
