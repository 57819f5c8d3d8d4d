# SPDX-License-Identifier: Apache-2.0
"""The running hash over a session's tokens, as the server computes it: FNV-1a, 64 bits, over each id as 4 bytes, lowest first."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from rivulet.errors import DataLoss

EMPTY_HASH = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_UNKNOWN = 0  # the hash is not known there; a real hash of 0 is not checked, one in 2^64


def hashes(tokens: Iterable[int], begin: int) -> Iterator[int]:
    """The hash after each of these tokens (int32), which follow tokens with the hash `begin`."""
    value = begin
    for token in map(int, tokens):
        # One expression for each token: prompts are long, and a loop over the bytes takes three times longer.
        value = (((value ^ token & 255) * _PRIME ^ token >> 8 & 255) * _PRIME ^ token >> 16 & 255) * _PRIME % 2**64
        value = (value ^ token >> 24 & 255) * _PRIME % 2**64
        yield value


class Sequence:
    """The hash after each position of a session, as far as this client knows the tokens. It does not know tokens of
    text, which the server tokenizes, and tokens from before it joined the session. 8 bytes per position. Thread: one
    at a time."""

    def __init__(self) -> None:
        self._hashes = array("Q", [EMPTY_HASH])

    @property
    def position(self) -> int:
        return len(self._hashes) - 1

    def copy(self, position: int) -> Sequence:
        """The first `position` tokens; tokens beyond the end are unknown."""
        copy = Sequence()
        copy._hashes = self._hashes[: position + 1]
        copy.skip(position - copy.position)
        return copy

    def extend(self, tokens: Iterable[int]) -> None:
        """Adds tokens."""
        value = self._hashes[-1]
        if value == _UNKNOWN:
            self.skip(len(list(tokens)))
        else:
            self._hashes.extend(hashes(tokens, value))

    def skip(self, count: int) -> None:
        """Adds unknown tokens."""
        self._hashes.extend(array("Q", [_UNKNOWN]) * max(count, 0))

    def at(self, position: int) -> int | None:
        """The hash of the first `position` tokens; None if it is not known."""
        return (self._hashes[position] or None) if 0 <= position <= self.position else None

    def check(self, position: int, sequence_hash: int) -> None:
        """Compares the hash at the end with the server's hash; if it is not known, takes over the server's hash. Errors: DataLoss."""
        if position != self.position:
            raise DataLoss(f"the server is at position {position} of the session, its replies end at {self.position}")
        if self._hashes[-1] not in (_UNKNOWN, sequence_hash):
            raise DataLoss(
                f"the server's tokens up to position {position} hash to {sequence_hash:016x}, "
                f"those that were given and received to {self._hashes[-1]:016x}"
            )
        self._hashes[-1] = sequence_hash
