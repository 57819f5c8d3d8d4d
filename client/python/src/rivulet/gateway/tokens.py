# SPDX-License-Identifier: Apache-2.0
"""What single tokens stand for, for log-probabilities and for prompts of token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rivulet import AsyncClient, CallOptions, Model, TextContent

_CALLS_AT_ONCE = 32
_MOST_MODELS = 16

KnownBytes = dict[tuple[str, str], dict[int, bytes]]
"""By name and hash of the weights of a model: bytes by token id."""


class TokenTexts:
    """The texts of a model's tokens. Where tokens are not characters, the server is asked once for each token (`known`)."""

    def __init__(self, client: AsyncClient, model: Model, options: CallOptions, known: KnownBytes) -> None:
        self._client = client
        self._model = model
        self._options = options
        self._alphabet = model.content.alphabet if isinstance(model.content, TextContent) else ""
        self._has_text = isinstance(model.content, TextContent)
        if len(known) >= _MOST_MODELS:
            known.clear()
        self._known = known.setdefault((model.summary.name, model.summary.weights_sha256), {})

    async def prepare(self, ids: Iterable[int]) -> None:
        """Before the other methods are called with these ids. Errors: those of the server."""
        if self._alphabet or not self._has_text:
            return
        asked = asyncio.Semaphore(_CALLS_AT_ONCE)

        async def ask(id: int) -> None:
            async with asked:
                reply = await self._client.detokenize([id], model=self._model.summary.name, **self._options)
                self._known[id] = reply.raw_bytes

        await asyncio.gather(*(ask(id) for id in set(ids) - self._known.keys()))

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
