# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

from rivulet import Part, Sample
from rivulet.gateway.routes import sampling
from rivulet.gateway.routes.prompt_logprobs import of_prompt
from rivulet.gateway.routes.reply_objects import Piece, Reply, finish_reason, ids_of, logprob
from rivulet.gateway.routes.tokens import TokenTexts
from rivulet.gateway.web.body import PROMPT_TYPES, Prompt, prompts
from rivulet.gateway.web.exchange import Call, begun, checked
from rivulet.gateway.web.problems import invalid

DEFAULT_MAX_TOKENS = 16  # OpenAI's
_MOST_CHOICES = 1024


class CompletionForm:
    """echo: for each choice, the text with which it begins. prompts: for each choice, the log-probabilities of this
    text. texts: for log-probabilities. None: not requested."""

    kind = "text_completion"
    chunk_kind = "text_completion"
    id_prefix = "cmpl"

    def __init__(
        self, echo: list[str] | None, prompts: list[dict[str, Any]] | None, texts: TokenTexts | None, return_token_ids: bool
    ) -> None:
        self._echo = echo
        self._prompts = prompts
        self._texts = texts
        self._return_token_ids = return_token_ids
        self._offsets: dict[int, int] = {}  # characters of each choice so far

    def _choice(self, index: int, text: str, piece: Piece | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
        if piece is not None:
            choice["finish_reason"] = finish_reason(piece.finish)
            if self._return_token_ids:
                choice["token_ids"] = piece.tokens.tolist()
            if self._texts is not None:
                choice["logprobs"] = self._logprobs(index, self._texts, piece)
        return choice

    async def prepare(self, index: int, piece: Piece) -> None:
        if self._texts is not None:
            await self._texts.prepare(ids_of(piece))

    def _logprobs(self, index: int, texts: TokenTexts, piece: Piece) -> dict[str, Any]:
        offsets = []
        for id in piece.tokens.tolist():
            offset = self._offsets.setdefault(index, len(self._echo[index]) if self._echo else 0)
            offsets.append(offset)
            self._offsets[index] = offset + texts.length(id)
        top = None
        if piece.top_logprobs is not None:
            top = [
                dict(zip(map(texts.text, entry.token_ids.tolist()), map(logprob, entry.logprobs.tolist())))
                for entry in piece.top_logprobs
            ]
        values = [] if piece.logprobs is None else piece.logprobs.tolist()
        return {
            "tokens": [texts.text(id) for id in piece.tokens.tolist()], "token_logprobs": [logprob(one) for one in values],
            "top_logprobs": top, "text_offset": offsets,
        }  # fmt: skip

    def opening(self, index: int) -> dict[str, Any] | None:
        if not (self._echo and self._echo[index]):
            return None
        return {**self._choice(index, self._echo[index], None), "logprobs": self._prompts[index] if self._prompts else None}

    def alone(self, index: int) -> dict[str, Any]:
        """A choice without generated tokens."""
        choice = self._choice(index, self._echo[index] if self._echo else "", None)
        if self._return_token_ids:
            choice["token_ids"] = []
        return {**choice, "logprobs": self._prompts[index] if self._prompts else None, "finish_reason": "length"}

    def chunk(self, index: int, part: Part) -> dict[str, Any] | None:
        holds_more = part.tokens.size and (self._return_token_ids or self._texts is not None)
        if not (part.text or part.finish or holds_more):
            return None
        return self._choice(index, part.text, part)

    def whole(self, index: int, sample: Sample) -> dict[str, Any]:
        choice = self._choice(index, (self._echo[index] if self._echo else "") + sample.text, sample)
        if self._prompts:
            own, before = choice["logprobs"], self._prompts[index]
            choice["logprobs"] = {key: None if own[key] is None else before[key] + own[key] for key in own}
        return choice


async def echoed(call: Call, model: str, given: list[Prompt]) -> list[str]:
    """The texts of prompts. Errors: the server's errors; it refuses to decode tokens that are not text."""
    found = []
    for prompt in given:
        if not isinstance(prompt, str):
            prompt = (await call.client.detokenize(prompt, model=model, **call.options)).text
        found.append(prompt)
    return found


def take_logprobs(call: Call, options: dict[str, Any]) -> bool:
    """Whether log-probabilities are requested. Errors: Problem."""
    call.names["top_logprobs"] = call.names["logprobs.top_n"] = "logprobs"
    top = call.body.integer("logprobs", 0, 20)
    if top is None:
        return False
    options.update(logprobs=True, top_logprobs=top)
    return True


async def _check(call: Call, options: dict[str, Any]) -> None:
    """Checks the options of an answer without generated tokens. The server checks options only when it generates: so this
    generates one token after a prompt of one token. Errors: Problem; the server's errors."""
    one = {**options, "max_tokens": 1, "logprobs": False, "top_logprobs": 0, "cache": None}
    await checked(lambda: call.client.generate([0], **one), call.names).collect()


async def _echoes(call: Call, form: CompletionForm, reply: Reply, given: list[Prompt], stream: bool) -> Any:
    """The answer to max_tokens = 0. Errors: the server's errors."""
    tokens = 0
    for prompt in given:
        given_text = await call.client.tokenize(prompt, model=reply.model, **call.options) if isinstance(prompt, str) else None
        tokens += len(prompt) if given_text is None else len(given_text.ids) - given_text.added_behind
    choices = [form.alone(index) for index in range(len(given) * reply.samples)]
    usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 0}}
    return await begun(reply.given_events(choices, usage), call.names) if stream else reply.given(choices, usage)


async def create(call: Call) -> Any:
    """Text, or token ids, after a prompt."""
    body = call.body
    model = body.required_text("model")
    prompt = body.take("prompt", *PROMPT_TYPES)
    given = prompts("" if prompt is None else prompt)
    stream, include_usage = sampling.take_stream(body)
    options = sampling.take(body)
    options.update(sampling.take_constraint(body, call.names))
    asks_more = bool(options)
    echo = body.flag("echo")
    most = sampling.take_max_tokens(body, "max_tokens", echo)
    options.update(model=model, max_tokens=DEFAULT_MAX_TOKENS if most is None else most, cache=call.cache, **call.options)
    samples = body.integer("n", 1, _MOST_CHOICES) or 1
    options["num_samples"] = samples
    if len(given) * samples > _MOST_CHOICES:
        raise invalid("n", f"must give at most {_MOST_CHOICES} choices; got {samples} for each of {len(given)} prompts")
    best_of = body.integer("best_of", 1, _MOST_CHOICES)
    if best_of not in (None, samples):
        raise invalid("best_of", f"only {samples}, the value of n, is supported; got {best_of}", "UNSUPPORTED_PARAMETER")
    body.only("suffix", "")
    ids = body.flag("return_token_ids")
    wants_logprobs = take_logprobs(call, options)
    body.end()
    if most == 0 and (asks_more or samples > 1):
        await _check(call, options)
    texts, of_prompts = None, None
    if wants_logprobs:
        described = await call.client.model(model, **call.options)
        texts = call.token_texts(described)
        if echo:
            call.names["output_positions"] = "logprobs"
            found = [await of_prompt(call, described, texts, one, options["top_logprobs"]) for one in given]
            of_prompts = [one for one in found for _ in range(samples)]
    before = [text for text in await echoed(call, model, given) for _ in range(samples)] if echo else None
    form = CompletionForm(before, of_prompts, texts, ids)
    progress = call.progress(len(given), samples)
    if most == 0:
        return await _echoes(call, form, Reply(form, model, [], samples, progress, include_usage), given, stream)
    seeds = [options.get("seed", (progress.seed + number) % 2**64) for number in range(len(given))]
    streams = [checked(lambda: call.client.generate(one, **{**options, "seed": seed}), call.names) for one, seed in zip(given, seeds)]
    reply = Reply(form, model, streams, samples, progress, include_usage)
    return await begun(reply.events(), call.names) if stream else await reply.complete()
