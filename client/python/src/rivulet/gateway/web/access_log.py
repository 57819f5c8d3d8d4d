# SPDX-License-Identifier: Apache-2.0
"""A JSON line for each HTTP request. A thread writes the lines, so that a slow disk or reader delays no request."""

from __future__ import annotations

import json
import logging
import queue
import sys
from datetime import datetime, timezone
from logging.handlers import QueueListener, WatchedFileHandler

_MOST_WAITING = 8192  # lines


def now() -> str:
    """The time in the form of rivulet-server's log."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class AccessLog:
    """Thread: the event loop's. For a `with` statement, whose end waits until all lines are written."""

    def __init__(self, path: str) -> None:
        """path: a file, which is opened again if it was renamed; or "stderr". Errors: OSError."""
        handler = logging.StreamHandler(sys.stderr) if path == "stderr" else WatchedFileHandler(path)
        self._waiting: queue.Queue[logging.LogRecord] = queue.Queue(_MOST_WAITING)
        self._listener = QueueListener(self._waiting, handler)
        self._handler = handler

    def __enter__(self) -> AccessLog:
        self._listener.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listener.stop()
        self._handler.close()

    def write(self, **fields: object) -> bool:
        """Returns False if the line is dropped because too many lines wait."""
        line = json.dumps({"ts": now(), "event": "http", **fields}, separators=(",", ":"))
        try:
            self._waiting.put_nowait(logging.makeLogRecord({"msg": line}))
        except queue.Full:
            return False
        return True
