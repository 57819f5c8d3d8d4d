# SPDX-License-Identifier: Apache-2.0
"""The ids of a stream's events. A client that lost the stream sends its last id with the same request (Last-Event-ID), to any
gateway. This gateway generates the reply again, with the same seed, and leaves out the part that the client has."""

from __future__ import annotations

import base64
import re
import secrets
import struct
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rivulet import Part
from rivulet.errors import FailedPrecondition
from rivulet.gateway.web.problems import Problem

_MOST_CHOICES = 128  # of a stream with ids, because a server may limit a header to 8 KiB
_HEAD = struct.Struct(">8sQ12sQQQ?H")
_CHOICE = struct.Struct(">??III")
_SUM = struct.Struct(">I")


@dataclass
class Sent:
    """The part of a choice that a client has. opened: the chunk before the first part was sent. checksum: CRC-32 of the tokens."""

    opened: bool = False
    ended: bool = False
    tokens: int = 0
    characters: int = 0
    checksum: int = 0

    def take(self, part: Part) -> None:
        self.ended = self.ended or part.finish is not None
        self.tokens += part.tokens.size
        self.characters += len(part.text)
        self.checksum = zlib.crc32(part.tokens.astype("<i4").tobytes(), self.checksum)

    def is_as_long_as(self, other: Sent) -> bool:
        return (self.tokens, self.characters, self.checksum) == (other.tokens, other.characters, other.checksum)


@dataclass
class Progress:
    """The seed of a reply, and the part of the reply that its client has.

    request: a digest of the HTTP request. fingerprints: of the server's reply to each prompt; 0: not known yet. seed: of the
    first prompt, if the body has none. position, sequence_hash: of the session at the beginning of the reply; hash 0: unknown.
    """

    request: bytes
    fingerprints: list[int]
    choices: list[Sent]
    seed: int = field(default_factory=lambda: secrets.randbits(64))
    reply: bytes = field(default_factory=lambda: secrets.token_bytes(12))
    created: int = field(default_factory=lambda: int(time.time()))
    position: int = 0
    sequence_hash: int = 0
    usage_sent: bool = False
    _again: dict[int, Sent] = field(default_factory=dict)  # parts of choices generated again, until the client's part is complete
    _can_continue: bool = True

    def begins(self, number: int, part: Part) -> None:
        """Takes the first part of the reply to a prompt. Without a fingerprint another server may continue differently: then there
        are no ids. Errors: FailedPrecondition."""
        if self.fingerprints[number] not in (0, part.proto.fingerprint):
            raise _mismatch()
        self.fingerprints[number] = part.proto.fingerprint
        self._can_continue = self._can_continue and part.proto.fingerprint != 0

    def split(self, index: int, part: Part) -> tuple[Part | None, Part | None]:
        """Splits a part: the piece that the client has, and the rest. Errors: FailedPrecondition."""
        again, has = self._again.get(index), self.choices[index]
        if again is None:
            return None, part
        old, new = _cut(part, has.tokens - again.tokens, has.characters - again.characters)
        again.take(old)
        if not (new.tokens.size or new.text or new.finish):
            return old, None
        if not again.is_as_long_as(has) or (has.ended and (new.tokens.size or new.text)):
            raise _mismatch()
        del self._again[index]
        return old, None if has.ended else new

    def line(self) -> bytes:
        """The id line of the event to send now; empty if the stream cannot be continued."""
        if len(self.choices) > _MOST_CHOICES or not self._can_continue:
            return b""
        raw = _HEAD.pack(
            self.request, self.seed, self.reply, self.created, self.position, self.sequence_hash, self.usage_sent,
            len(self.fingerprints),
        )  # fmt: skip
        raw += struct.pack(f">{len(self.fingerprints)}Q", *self.fingerprints)
        raw += b"".join(_CHOICE.pack(one.opened, one.ended, one.tokens, one.characters, one.checksum) for one in self.choices)
        return b"id: v1." + base64.urlsafe_b64encode(raw + _SUM.pack(zlib.crc32(raw))) + b"\n"


def read(values: Iterable[str]) -> Progress:
    """Reads a line of line() from the values of the header, for a reply that is generated again. Errors: Problem."""
    match = re.fullmatch(r"v1\.([\w-]+={0,2})", ", ".join(values), re.ASCII)
    try:
        return _decoded(base64.urlsafe_b64decode(match.group(1) if match else ""))
    except (ValueError, struct.error):
        raise malformed() from None


def malformed() -> Problem:
    return Problem(400, "the header Last-Event-ID must be the id of an event of this stream, unchanged", "EVENT_ID_MALFORMED")


def _decoded(raw: bytes) -> Progress:
    """Errors: ValueError, struct.error."""
    content, (checksum,) = raw[: -_SUM.size], _SUM.unpack(raw[-_SUM.size :])
    if zlib.crc32(content) != checksum:
        raise ValueError("the checksum is wrong")
    request, seed, reply, created, position, sequence_hash, usage_sent, prompts = _HEAD.unpack_from(content)
    fingerprints = list(struct.unpack_from(f">{prompts}Q", content, _HEAD.size))
    sent = [Sent(*values) for values in _CHOICE.iter_unpack(content[_HEAD.size + 8 * prompts :])]
    again = {index: Sent() for index in range(len(sent))}
    return Progress(request, fingerprints, sent, seed, reply, created, position, sequence_hash, usage_sent, again)


def _mismatch() -> FailedPrecondition:
    return FailedPrecondition(
        "the server would not send the rest of this stream: it has another model, or computes otherwise (numerics_id)", "RESUME_MISMATCH"
    )


def _cut(part: Part, tokens: int, characters: int) -> tuple[Part, Part]:
    """Cuts a part in two: its beginning, and the rest, which has its end."""

    def piece(which: slice, text: str, **more: Any) -> Part:
        logprobs = None if part.logprobs is None else part.logprobs[which]
        top = None if part.top_logprobs is None else part.top_logprobs[which]
        return replace(part, tokens=part.tokens[which], text=text, logprobs=logprobs, top_logprobs=top, **more)

    return piece(slice(tokens), part.text[:characters], finish=None), piece(slice(tokens, None), part.text[characters:])
