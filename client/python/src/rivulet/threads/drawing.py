# SPDX-License-Identifier: Apache-2.0
"""The threads that draw the images of one call of Client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from rivulet.core import images
from rivulet.model_replies import Model

if TYPE_CHECKING:
    from rivulet.threads.streams import GenerateStream


def snapshots(
    order: images.Order, model: Callable[..., Model], generate: Callable[..., GenerateStream]
) -> Generator[images.Snapshot, None, None]:
    """Asks for the model, then draws. model, generate: the client's methods. Errors: ValueError (a model that does not fit);
    the errors of model(); while iterating the errors of generate()."""
    canvas = images.Canvas(order, model(order.model, **order.call_options()))
    return Drawing(generate, canvas).snapshots(order.interval)


class Drawing:
    """Sends the requests, a few at a time, until all images are drawn or one request fails. The first failure ends the others.
    Workers write into the canvas and never wait for its readers."""

    def __init__(self, generate: Callable[..., GenerateStream], canvas: images.Canvas) -> None:
        self._generate = generate
        self._canvas = canvas
        self._lock = threading.Lock()  # guards everything below and the canvas
        self._left = canvas.plan()[::-1]
        self._running: set[GenerateStream] = set()
        self._workers = min(len(self._left), images.REQUESTS_AT_ONCE)
        self._error: Exception | None = None
        self._ended = threading.Event()  # no worker is left

    def snapshots(self, interval: float) -> Generator[images.Snapshot, None, None]:
        """Draws. Yields a snapshot every `interval` seconds, and the complete images at the end. Errors: the first
        error of a request."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._workers)]
        for thread in threads:
            thread.start()
        try:
            ended = False
            while not ended:
                ended = self._ended.wait(interval)
                with self._lock:
                    if self._error is not None:
                        raise self._error
                    snapshot = self._canvas.snapshot()
                yield snapshot
        finally:
            with self._lock:
                self._stop()
            for thread in threads:
                thread.join()

    def _stop(self) -> None:
        """Ends the running requests; no other request begins. REQUIRES: the lock is held."""
        self._left.clear()
        for stream in self._running:
            stream.close()

    def _work(self) -> None:
        while self._draw_next():
            pass
        with self._lock:
            self._workers -= 1
            if self._workers == 0:
                self._ended.set()

    def _draw_next(self) -> bool:
        """Draws the images of one request; returns False if no request is left."""
        try:
            with self._lock:
                if not self._left:
                    return False
                request = self._left.pop()
                prompt, options = self._canvas.generate_arguments(request)
                stream = self._generate(prompt, **options)
                self._running.add(stream)
            try:
                for part in stream:
                    with self._lock:
                        self._canvas.add(request, part)
            finally:
                with self._lock:
                    self._running.discard(stream)
                stream.close()
        except Exception as error:
            with self._lock:
                self._error = self._error or error  # the first error ends the other requests
                self._stop()
            return False
        return True
