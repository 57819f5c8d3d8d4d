# SPDX-License-Identifier: Apache-2.0
"""Errors that explain how to read a reply, for code that uses a stream like a reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar


class StreamHints:
    """Base of the streams. These methods are hidden from type checkers, so that type checkers report the same mistakes."""

    _how_to_read: ClassVar[str]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__} has no attribute {name!r}"
            if name in ("samples", "text", "tokens"):
                message += f": the reply is still to come. {self._how_to_read}"
            raise AttributeError(message)

        def __await__(self) -> Any:
            raise TypeError(f"{type(self).__name__} cannot be awaited. {self._how_to_read}")


def check_untouched(begun: bool) -> None:
    """Called by collect(). Errors: RuntimeError (parts were taken already)."""
    if begun:
        raise RuntimeError("collect() was called after parts of the reply had been taken; call it once, instead of iterating")
