# SPDX-License-Identifier: Apache-2.0
"""The tokens of a session that the store of its replicas may not have yet. No input or output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rivulet.v1 import inference_pb2, session_service_pb2


def content(message: Any, oneof: str) -> session_service_pb2.AppendRequest:
    """The content of a request: tokens if they are known, else text."""
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
    """Tokens `begin` to `end` of the session, or no tokens and a mark at that position. append: the request that gives them."""

    begin: int
    end: int
    append: session_service_pb2.AppendRequest
    mark: str = ""

    @property
    def is_text(self) -> bool:
        return bool(self.append.HasField("text"))  # only the server knows the tokens


class Pending:
    """The given and received tokens after the last durable position, to be given again if the replica is lost. Empty after each
    reply if no store is shared. Thread: one at a time."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._shared = False  # a reply has had `durability`

    def __bool__(self) -> bool:
        return self._shared and bool(self._pieces)

    def clear(self) -> None:
        """Called when everything is durable."""
        self._pieces.clear()

    def cut(self, position: int) -> None:
        """Drops everything after a position. If a part of a text is dropped, the whole text is."""
        for piece in self._pieces:
            if piece.begin < position < piece.end and not piece.is_text:
                del piece.append.tokens.ids[position - piece.begin :]
                piece.end = position
        self._pieces = [piece for piece in self._pieces if piece.end <= position]

    def add(self, begin: int, end: int, append: session_service_pb2.AppendRequest) -> None:
        """Adds given tokens at the session's end."""
        if end > begin:
            self._pieces.append(_Piece(begin, end, append))

    def extend(self, begin: int, tokens: Any) -> None:
        """Adds generated tokens at the session's end."""
        last = self._pieces[-1] if self._pieces else None
        if last is None or last.is_text or last.mark or last.end != begin:
            append = session_service_pb2.AppendRequest(tokens=inference_pb2.TokenSequence(ids=tokens))
            self.add(begin, begin + len(tokens), append)
        else:
            last.append.tokens.ids.extend(tokens)
            last.end += len(tokens)

    def ended(self, position: int, mark: str, reply: Any) -> None:
        """Called when a request has ended at the position and set the mark, if not empty. reply: has its durability."""
        if mark:
            self._pieces.append(_Piece(position, position, session_service_pb2.AppendRequest(tokens={}), mark))
        if not reply.HasField("durability"):
            self.clear()
            return
        self._shared = True
        at = reply.durability.position  # a mark at this position may not be durable yet
        self._pieces = [piece for piece in self._pieces if piece.end > at or (piece.end == at and piece.mark)]

    def missing(self, found: int, target: int) -> list[session_service_pb2.AppendRequest]:
        """The requests, in order, that bring the session from position `found` to `target`. Each has its mark and no position. Empty:
        the tokens are not known, or nothing is missing. REQUIRES: neither position is within a text."""
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
