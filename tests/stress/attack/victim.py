# SPDX-License-Identifier: Apache-2.0
"""The server that an attack script attacks: one that it starts itself, or one that runs on loopback already."""

import argparse
import ipaddress
import json
import os
import pathlib
import re
import subprocess
import threading

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[3]
MODEL = SOURCE_DIR / "tests/conformance/models/tiny-elu-relu"


def loopback(target: str) -> tuple[str, int]:
    """Splits "HOST:PORT". Errors: argparse.ArgumentTypeError where HOST is not an address of loopback."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    try:
        allowed = ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name: what it means is up to a resolver
        allowed = False
    if not allowed or not port.isdigit():
        raise argparse.ArgumentTypeError(f'"{target}" is not ADDRESS:PORT of loopback; these scripts attack nothing else')
    return host, int(port)


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every script has; add more, then `Victim.of(parser.parse_args())`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--target", type=loopback, metavar="ADDRESS:PORT", help="a running server; needs --pid for figures of memory")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument(
        "--server", default=SOURCE_DIR / "build/release/bin/rivulet-server", help="the binary to start where there is no --target"
    )
    parser.add_argument("--flag", action="append", default=[], help="a flag for that binary, as --flag=--max-queue=8; repeatable")
    return parser


def report(**figures) -> None:
    """One line of JSON on stdout: what a closing note quotes."""
    print(json.dumps(figures), flush=True)


class Victim:
    """A rivulet-server on a free port of loopback, for a `with` statement; `target` is HOST:PORT, `address` the pair."""

    def __init__(self, server, *flags: str, model: pathlib.Path = MODEL, preexec=None):
        self.command = [str(server), "--model", str(model), "--listen", "127.0.0.1:0", "--backend", "cpu", *flags]
        self.preexec = preexec
        self.process: subprocess.Popen | None = None
        self.log: list[bytes] = []

    @classmethod
    def of(cls, parsed, *flags: str, **options) -> "Victim":
        """What the options of `arguments` ask for; `flags` are those of the attack."""
        victim = cls(parsed.server, *flags, *parsed.flag, **options)
        if parsed.target is not None:
            victim.address, victim.pid, victim.command = parsed.target, parsed.pid, []
        return victim

    @property
    def target(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def __enter__(self) -> "Victim":
        if not self.command:
            return self
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=self.preexec)
        self.pid = self.process.pid
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(rb'"event":"listening".*"port":(\d+)', line)
            if found:
                self.address = ("127.0.0.1", int(found.group(1)))
                threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
                return self
        raise RuntimeError(f"the server did not start: {b''.join(self.log).decode()}")

    def __exit__(self, *exception) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def alive(self) -> bool:
        return self.process is None or self.process.poll() is None

    def rss_mib(self) -> float | None:
        """Resident memory now; None where the process has ended or is not known."""
        return self._status("VmRSS")

    def peak_rss_mib(self) -> float | None:
        return self._status("VmHWM")

    def _status(self, name: str) -> float | None:
        try:
            text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return None
        found = re.search(rf"{name}:\s+(\d+) kB", text)
        return round(int(found.group(1)) / 1024, 1) if found else None

    def descriptors(self) -> int | None:
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError:
            return None
