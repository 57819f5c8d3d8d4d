# SPDX-License-Identifier: Apache-2.0
"""Runs the programs under test. RIVULET_BIN_DIR names the folder of the binaries, RIVULET_SOURCE_DIR the tree."""

import json
import os
import pathlib
import re
import subprocess
import unittest

SOURCE_DIR = pathlib.Path(os.environ.get("RIVULET_SOURCE_DIR", pathlib.Path(__file__).parents[3]))
BIN_DIR = pathlib.Path(os.environ.get("RIVULET_BIN_DIR", SOURCE_DIR / "build/release/bin"))
CONFORMANCE = SOURCE_DIR / "tests/conformance/models"
ZOO = SOURCE_DIR / "model/zoo"
# Flags of the programs' compiler that name sanitizers; empty without one.
SANITIZER_FLAGS = os.environ.get("RIVULET_CXX_FLAGS", "")
# Freed memory that AddressSanitizer keeps back, in MiB.
KEPT_BACK_MIB = 300 if "address" in SANITIZER_FLAGS else 0


class Result:
    """Exit code, stdout and stderr (bytes decoded as UTF-8) of one command."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]

    def __repr__(self):
        return f"exit code {self.code}\nstdout: {self.out[:2000]!r}\nstderr: {self.err[:2000]!r}"


def rivulet(*args, stdin="", timeout=120):
    """Runs `rivulet` to its end; a command that hangs is a failure of the test."""
    if isinstance(stdin, str):
        stdin = stdin.encode()
    done = subprocess.run(
        [BIN_DIR / "rivulet", *(arg if isinstance(arg, bytes) else str(arg) for arg in args)], input=stdin, capture_output=True,
        timeout=timeout, env={name: value for name, value in os.environ.items() if name not in ("RIVULET_TARGET", "RIVULET_MODEL")},
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def token_lines(sequences):
    """Input of `rivulet score` for lists of token ids."""
    return "".join(json.dumps({"tokens": tokens}) + "\n" for tokens in sequences)


class Server:
    """A `rivulet-server` on a free port of loopback, for a `with` statement; `admin` is its --admin-listen, `metrics` its
    --metrics-listen, where it has one. `log`: its lines until it listened."""

    def __init__(self, *models, args=()):
        flags = [flag for model in models for flag in ("--model", str(model))]
        self.command = [BIN_DIR / "rivulet-server", *flags, "--listen", "127.0.0.1:0", *args]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line.decode())
            admin = re.search(rb'"event":"admin_listening".*"port":(\d+)', line)
            if admin:
                self.admin = f"127.0.0.1:{int(admin.group(1))}"
            metrics = re.search(rb'"event":"metrics_listening".*"port":(\d+)', line)
            if metrics:
                self.metrics = f"127.0.0.1:{int(metrics.group(1))}"
            found = re.search(rb'"event":"listening".*"port":(\d+)', line)
            if found:
                self.target = f"127.0.0.1:{int(found.group(1))}"
                return self
        raise RuntimeError(f"the server did not start: {''.join(self.log)}")

    def __exit__(self, *exception):
        self.process.terminate()
        self.process.communicate(timeout=60)


class CommandTest(unittest.TestCase):
    """Assertions about a command's end."""

    def succeeds(self, result):
        self.assertEqual(result.code, 0, result)
        return result

    def fails(self, result, code, *mentions, out=""):
        """Exit code `code`, one line on stderr that holds every one of `mentions`, `out` on stdout."""
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.err.count("\n"), 1, result)
        self.assertTrue(result.err.startswith("rivulet: ") and result.err.endswith("\n"), result)
        for mention in mentions:
            self.assertIn(mention, result.err, result)
        if out is not None:
            self.assertEqual(result.out, out, result)
        return result
