# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch and the reference library are, for tests that can use them, and a run of a module of model/tools.

RIVULET_TORCH_PYTHON: an interpreter with torch, numpy, safetensors and tqdm (else the test's own). RIVULET_FAST_TRANSFORMERS: the folder that holds
the sources of pytorch-fast-transformers (else it must be importable there).
"""

import os
import subprocess
import sys

from command import BIN_DIR, SOURCE_DIR, Result

TORCH_PYTHON = os.environ.get("RIVULET_TORCH_PYTHON") or sys.executable
LIBRARY = os.environ.get("RIVULET_FAST_TRANSFORMERS")
TOOLS = SOURCE_DIR / "model" / "tools"


def module(name: str, *args: object, python: str = sys.executable, timeout: float = 600, path: str | None = None) -> Result:
    """Runs `python -m rivulet_tools.NAME` with the binaries under test first on PATH (or `path` as PATH)."""
    environment = os.environ | {"PYTHONPATH": str(TOOLS), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    environment["PATH"] = path if path is not None else f"{BIN_DIR}:{os.environ.get('PATH', '')}"
    command = [python, "-m", f"rivulet_tools.{name}", *map(str, args)]
    done = subprocess.run(command, capture_output=True, env=environment, timeout=timeout)
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def missing_for(what: str, python: str = TORCH_PYTHON) -> str | None:
    """Why `python` cannot run the Python statements `what`; None where it can."""
    environment = os.environ | {"PYTHONPATH": str(TOOLS)}
    done = subprocess.run([python, "-c", what], capture_output=True, env=environment, text=True, timeout=300)
    return None if done.returncode == 0 else f"{python}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"


def missing_torch() -> str | None:
    """Why there is no PyTorch for the tests; None where there is."""
    return missing_for("import torch, numpy, safetensors, tqdm")


def missing_library() -> str | None:
    """Why there is no reference library for the tests; None where there is."""
    return missing_torch() or missing_for(
        f"import pathlib; from rivulet_tools.library import import_library; import_library({LIBRARY and f'pathlib.Path({LIBRARY!r})'})"
    )
