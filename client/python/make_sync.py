# SPDX-License-Identifier: Apache-2.0
"""Generates the client for programs with threads from the client for asyncio. hatch_build.py calls it."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = {"threads/client.py": "aio/client.py", "threads/session.py": "aio/session.py"}  # the source of each generated module

# Texts that only asyncio needs, and their replacement for threads. A pair whose text is in no source is an error.
PAIRS = (
    # aio/client.py
    ("The client for asyncio. threads/client.py has the same for programs with threads.",
     "The client for programs with threads. aio/client.py has the same for asyncio."),
    (" It belongs to one event loop: create it in a coroutine.", ""),
    ("If a task is cancelled, its call ends.\n    Thread: the event loop's; calls may run", "Thread: any; calls may run"),
    ("RuntimeError (outside a coroutine), TypeError, ValueError (arguments), OSError (a certificate file cannot be\n    read)",
     "TypeError, ValueError (arguments), OSError (a certificate file cannot be read)"),
    (" | AsyncIterable[bytes]", ""),
    ("; an AsyncIterable is read whole before the call", ""),
    ("        if isinstance(snapshot, AsyncIterable):\n            snapshot = [chunk async for chunk in snapshot]\n", ""),
    ("AsyncIterable, ", ""),
    ("ValueError, TypeError; while iterating also ValueError (for example a model that does not generate\n        images) and the errors of",
     "ValueError (for example a model that does not generate images), TypeError; while iterating the errors of\n       "),
    ("called in this task,\n        and must not block, with", "called on this thread\n        with"),
    # aio/session.py
    ("Sessions for asyncio. threads/session.py has the same for programs with threads.",
     "Sessions for programs with threads. aio/session.py has the same for asyncio."),
    ("an `async with`", "a `with`"),
    ("Thread: the event loop's; one task at a time.\n    Only",
     "Thread: one at a time; SessionStream.close() may be\n    called from any thread. Only"),
    (" After a reply that was left early or lost, the call\n        starts when its first part is requested.", ""),
)  # fmt: skip

# Patterns of keywords and names, in code and in docstrings, and what replaces them.
RULES = (
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__a(enter|exit)__", r"__\1__"),
    (r"\bAsyncGenerator\[([\w. |]+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\brivulet\.aio(?=\.\w+ import)", "rivulet.threads"),
)


def sync(source: str, name: str) -> str:
    """The module that is generated from the module `name` with this text."""
    licence, rest = source.split("\n", 1)
    for asyncio, threads in PAIRS:
        rest = rest.replace(asyncio, threads)
    for pattern, replacement in RULES:
        rest = re.sub(pattern, replacement, rest)
    return f"{licence}\n# Generated from {name} by client/python/make_sync.py when the package is built: change {name}.\n{rest}"


def generate(package: Path, out: Path) -> None:
    """Writes the modules into `out`; `package` has their sources. Errors: RuntimeError (no source has a text of PAIRS)."""
    texts = {name: (package / name).read_text(encoding="utf-8") for name in SOURCES.values()}
    if missing := [asyncio for asyncio, _ in PAIRS if not any(asyncio in text for text in texts.values())]:
        raise RuntimeError(f"PAIRS: in no source: {missing}")
    for generated, name in SOURCES.items():
        (out / generated).parent.mkdir(parents=True, exist_ok=True)
        (out / generated).write_text(sync(texts[name], name), encoding="utf-8")
