# SPDX-License-Identifier: Apache-2.0
"""What the streams have in common: what is known of a reply, and errors that explain how to read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rivulet import replies
    from rivulet.core.reply_reader import Reader


class StreamHints:
    """Base of the streams."""

    _how_to_read: ClassVar[str]
    _reader: Reader

    @property
    def seed(self) -> int | None:
        """The seed that is used; None before the first part."""
        return self._reader.seed

    @property
    def usage(self) -> replies.Usage | None:
        """Token counts and times of the reply; None before its end."""
        return self._reader.usage

    @property
    def durability(self) -> replies.Durability | None:
        """The durability of a reply on a session, at its end; None before the end, and if the server shares no store of sessions."""
        return self._reader.durability

    if not TYPE_CHECKING:  # so that type checkers report the same mistakes

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
