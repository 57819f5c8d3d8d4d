# SPDX-License-Identifier: Apache-2.0
"""Commands of a Python environment that run the programs beside this file."""

import os
import pathlib
import signal
import sys


def _become(program):
    # Python ignores these two signals, and programs inherit that: `rivulet ... | head` would end with an error.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    # This Python, into which the extra `chat` was installed, renders chat templates.
    os.environ.setdefault("RIVULET_PYTHON", sys.executable)
    path = str(pathlib.Path(__file__).parent / "bin" / program)
    os.execv(path, [path, *sys.argv[1:]])


def rivulet():
    _become("rivulet")


def rivulet_server():
    _become("rivulet-server")
