# SPDX-License-Identifier: Apache-2.0
"""What single tokens stand for, for log-probabilities and for prompts of token ids."""

from __future__ import annotations

from collections.abc import Iterable

from rivulet import AsyncClient, CallOptions, Model, TextContent
from rivulet.core.token_bytes import MOST_ASKED, TokenBytes, learn


class TokenTexts:
    """The texts of a model's tokens. Where tokens are not characters, the server is asked for those that are not known yet."""

    def __init__(self, client: AsyncClient, model: Model, options: CallOptions, known: TokenBytes) -> None:
        self._client = client
        self._model = model
        self._options = options
        self._alphabet = model.content.alphabet if isinstance(model.content, TextContent) else ""
        self._has_text = isinstance(model.content, TextContent)
        self._known = known.of(model)

    async def prepare(self, ids: Iterable[int]) -> None:
        """Before the other methods are called with these ids. Errors: those of the server."""
        if self._alphabet or not self._has_text:
            return
        unknown = sorted(set(ids) - self._known.keys())
        for begin in range(0, len(unknown), MOST_ASKED):
            asked = unknown[begin : begin + MOST_ASKED]
            reply = await self._client.detokenize(asked, model=self._model.summary.name, **self._options)
            learn(self._known, asked, reply)

    def raw(self, id: int) -> bytes:
        """Nothing for a token without text."""
        if self._alphabet:
            return self._alphabet[id].encode() if 0 <= id < len(self._alphabet) else b""
        return self._known.get(id, b"")

    def text(self, id: int) -> str:
        """Of bytes that are no UTF-8 alone and of tokens without text a name, as OpenAI's and other servers write them."""
        raw = self.raw(id)
        if not raw:
            return f"token_id:{id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def length(self, id: int) -> int:
        """Characters in the text of a reply."""
        return len(self.raw(id).decode("utf-8", "replace"))
