# SPDX-License-Identifier: Apache-2.0
"""Texts of single tokens, for log-probabilities and for prompts of token ids."""

from __future__ import annotations

from collections.abc import Iterable

from rivulet import AsyncClient, CallOptions, Model, TextContent
from rivulet.core.token_bytes import MOST_ASKED, TokenBytes, learn


class TokenTexts:
    """The texts of a model's tokens. If tokens are not characters, unknown texts are requested from the server."""

    def __init__(self, client: AsyncClient, model: Model, options: CallOptions, known: TokenBytes) -> None:
        self._client = client
        self._model = model
        self._options = options
        self._alphabet = model.content.alphabet if isinstance(model.content, TextContent) else ""
        self._has_text = isinstance(model.content, TextContent)
        self._known = known.of(model)

    async def prepare(self, ids: Iterable[int]) -> None:
        """To be called before the other methods are called with these ids. Errors: the server's errors."""
        if self._alphabet or not self._has_text:
            return
        unknown = sorted(set(ids) - self._known.keys())
        for begin in range(0, len(unknown), MOST_ASKED):
            asked = unknown[begin : begin + MOST_ASKED]
            reply = await self._client.detokenize(asked, model=self._model.summary.name, **self._options)
            learn(self._known, asked, reply)

    def raw(self, id: int) -> bytes:
        """The bytes of a token; empty for a token without text."""
        if self._alphabet:
            return self._alphabet[id].encode() if 0 <= id < len(self._alphabet) else b""
        return self._known.get(id, b"")

    def text(self, id: int) -> str:
        """The text of a token. For bytes that alone are not UTF-8, and for tokens without text: a name in the form of
        OpenAI's and other servers."""
        raw = self.raw(id)
        if not raw:
            return f"token_id:{id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def length(self, id: int) -> int:
        """Number of characters that a token adds to the text of a reply."""
        return len(self.raw(id).decode("utf-8", "replace"))
