# SPDX-License-Identifier: Apache-2.0
"""Importing this makes `import rivulet` the wheel of client/python, installed into an environment of its own. The first test of a
build folder builds both; the others find them by the hash of the sources. Ends the script with code 77 where the tools for it are
absent."""

import fcntl
import hashlib
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import venv

from command import BIN_DIR, SOURCE_DIR

CLIENT = SOURCE_DIR / "client/python"

for _needed in ("grpc", "grpc_tools", "hatchling", "markdown_it", "numpy", "pip", "google.rpc"):
    try:
        _absent = importlib.util.find_spec(_needed) is None
    except ModuleNotFoundError:
        _absent = True
    if _absent:
        print(f"skipped: {sys.executable} has no {_needed} (deploy/setup.sh --tests)", file=sys.stderr)
        sys.exit(77)


def pip(*args):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")


def build(source, folder):
    """The wheel of `source`, built into `folder` without a network."""
    pip("wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def sources_hash():
    """What the wheel is made of, and for which Python."""
    state = hashlib.sha256(sys.executable.encode() + sys.version.encode())
    for file in sorted(file for folder in (CLIENT, SOURCE_DIR / "docs", SOURCE_DIR / "proto") for file in folder.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            state.update(f"\n{file.relative_to(SOURCE_DIR)}\n".encode() + file.read_bytes())
    return state.hexdigest()[:16]


CACHE = BIN_DIR.parent / "python-client"
FOLDER = CACHE / sources_hash()
PYTHON = FOLDER / "venv/bin/python"  # has rivulet, and what the interpreter of the tests has
SITE = FOLDER / pathlib.Path(sysconfig.get_path("purelib", "venv", {"base": "venv"}))


def prepare():
    """Fills FOLDER. `done` is its last file: what was begun and not finished is made anew."""
    for old in CACHE.iterdir():
        if old.is_dir():
            shutil.rmtree(old)
    wheel = build(CLIENT, FOLDER)
    venv.create(FOLDER / "venv")
    (SITE / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n" + sysconfig.get_path("platlib") + "\n")
    pip("--python", PYTHON, "install", "--no-deps", "--no-index", wheel)
    (FOLDER / "done").touch()


CACHE.mkdir(parents=True, exist_ok=True)
with open(CACHE / "lock", "w") as _lock:
    fcntl.flock(_lock, fcntl.LOCK_EX)
    if not (FOLDER / "done").exists():
        prepare()
(WHEEL,) = FOLDER.glob("*.whl")
sys.path.insert(0, str(SITE))


def run(*command, cwd=None, timeout=300):
    """Runs the environment's Python; its exit code, stdout and stderr. One that does not end tells where its threads are."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, "-X", "faulthandler", *map(str, command)]
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler prints the stacks
            threading.Timer(30, process.kill).start()
            out, err = process.communicate()
            raise AssertionError(f"{command} did not end within {timeout} s\n{out}\n{err}") from None
    return process.returncode, out, err


def await_idle(client, model, seconds=30):
    """Waits until no session of `model` holds a slot or waits for one; False where that does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        (load,) = client.load(model)
        if load.slots_used == 0 and load.queued == 0:
            return True
        time.sleep(0.01)
    return False
