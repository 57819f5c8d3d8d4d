# SPDX-License-Identifier: Apache-2.0
"""Many prompts and many contents, for programs with threads. aio/bulk.py has the same for asyncio."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

from rivulet import errors, replies
from rivulet.core.bulk import BulkGeneration, Failure, Patience
from rivulet.threads.multiplex import Multiplex


def generate_all(
    prepare: Callable[[], None], stream: Callable[[], Multiplex], bulk: BulkGeneration
) -> Generator[replies.Generation | Failure, None, None]:
    """prepare: runs before each stream."""
    while not bulk.has_ended:
        prepare()
        with stream() as multiplex:
            lost = False
            while not lost:
                bulk.start(multiplex.generate)
                yield from bulk.results()
                if bulk.has_ended:
                    return
                if not bulk.is_open:
                    time.sleep(bulk.pause())
                    continue
                try:
                    bulk.take(next(multiplex))
                except errors.Unavailable as error:
                    bulk.lost(error)
                    lost = True


def _scored(
    score: Callable[[Any], replies.Score], content: Any, patience: Patience, left: threading.Event
) -> replies.Score | Failure:
    while True:
        try:
            result = score(content)
        except (TypeError, ValueError) as error:
            return error
        except errors.RivuletError as error:
            wait = patience.wait(error)
            if wait is None or left.wait(wait):
                return error
        else:
            patience.succeeded()
            return result


def score_many(
    score: Callable[[Any], replies.Score], contents: Iterator[Any], at_once: int, patience: Patience
) -> Generator[replies.Score | Failure, None, None]:
    running: deque[Future[replies.Score | Failure]] = deque()
    left = threading.Event()  # the caller has stopped iterating
    pool = ThreadPoolExecutor(at_once)
    try:
        while True:
            for content in islice(contents, at_once - len(running)):
                running.append(pool.submit(_scored, score, content, patience, left))
            if not running:
                return
            yield running[0].result()
            running.popleft()
    finally:
        left.set()
        pool.shutdown(cancel_futures=True)
