# SPDX-License-Identifier: Apache-2.0
"""The tokens of a session that the store of its replicas may not have yet. No input or output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rivulet.v1 import inference_pb2, session_service_pb2


def content(message: Any, oneof: str) -> session_service_pb2.AppendRequest:
    """What a request gives, as tokens where they are known, else as text."""
    request = session_service_pb2.AppendRequest()
    tokens = given(message, oneof)
    if tokens is not None:
        request.tokens.ids.extend(tokens)
        return request
    request.text = message.text
    for option in ("add_special_tokens", "parse_special_tokens"):
        if message.HasField(option):
            setattr(request, option, getattr(message, option))
    return request


def given(message: Any, oneof: str) -> list[int] | bytes | None:
    """The tokens of a request; None for text, which the server tokenizes."""
    kind = message.WhichOneof(oneof)
    if kind == "text":
        return [] if not message.text and not message.add_special_tokens else None
    return bytes(message.image_values) if kind == "image_values" else list(message.tokens.ids)


@dataclass
class _Piece:
    """Tokens `begin` to `end` of the session, or none and a mark that was set there. append: would give them."""

    begin: int
    end: int
    append: session_service_pb2.AppendRequest
    mark: str = ""

    @property
    def is_text(self) -> bool:
        return bool(self.append.HasField("text"))  # the tokens are known to the server alone


class Pending:
    """What was given and received after the position that is known to be durable, to be given again if its replica is lost. Empty
    after each reply where no store is shared. Thread: one at a time."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._shared = False  # a reply has told its durability

    def __bool__(self) -> bool:
        return self._shared and bool(self._pieces)

    def clear(self) -> None:
        """All is durable."""
        self._pieces.clear()

    def cut(self, position: int) -> None:
        """Drops what comes after a position. Of a text nothing is left where a part of it goes."""
        for piece in self._pieces:
            if piece.begin < position < piece.end and not piece.is_text:
                del piece.append.tokens.ids[position - piece.begin :]
                piece.end = position
        self._pieces = [piece for piece in self._pieces if piece.end <= position]

    def add(self, begin: int, end: int, append: session_service_pb2.AppendRequest) -> None:
        """Tokens were given at the session's end."""
        if end > begin:
            self._pieces.append(_Piece(begin, end, append))

    def extend(self, begin: int, tokens: Any) -> None:
        """Tokens were generated at the session's end."""
        last = self._pieces[-1] if self._pieces else None
        if last is None or last.is_text or last.mark or last.end != begin:
            append = session_service_pb2.AppendRequest(tokens=inference_pb2.TokenSequence(ids=tokens))
            self.add(begin, begin + len(tokens), append)
        else:
            last.append.tokens.ids.extend(tokens)
            last.end += len(tokens)

    def ended(self, position: int, mark: str, reply: Any) -> None:
        """A request has ended at the position and set the mark, if that is not empty. reply: with its durability."""
        if mark:
            self._pieces.append(_Piece(position, position, session_service_pb2.AppendRequest(tokens={}), mark))
        if not reply.HasField("durability"):
            self.clear()
            return
        self._shared = True
        at = reply.durability.position  # where a mark may not be durable yet
        self._pieces = [piece for piece in self._pieces if piece.end > at or (piece.end == at and piece.mark)]

    def missing(self, found: int, target: int) -> list[session_service_pb2.AppendRequest]:
        """What brings the session from position `found` to `target`, one after another; each has its mark and no position. Empty: that
        is not known, or nothing is missing. REQUIRES: neither position is within a text."""
        requests: list[session_service_pb2.AppendRequest] = []
        at = found
        for piece in self._pieces if found < target else ():
            end = min(piece.end, target)
            if end < at or piece.begin > target or (end == at and not piece.mark):
                continue
            if piece.begin > at:
                return []
            request = session_service_pb2.AppendRequest()
            request.CopyFrom(piece.append)
            if not piece.is_text:
                del request.tokens.ids[end - piece.begin :]
                del request.tokens.ids[: at - piece.begin]
            if end == piece.end:
                request.session.mark = piece.mark
            requests.append(request)
            at = end
        return requests if at == target else []
