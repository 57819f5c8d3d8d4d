# SPDX-License-Identifier: Apache-2.0
"""Trains the zoo's chat model: a Qwen3.5 text model of 2 million parameters with a byte-level BPE and a chat template, by transformers.

python model/tools/examples/train_chat.py TEXT OUT [--minutes 60]

TEXT is Tiny Shakespeare: speeches as "NAME:" and lines, with an empty line between speeches. Its last tenth is held out. Three kinds of rows
are mixed: windows of the text; conversations of two persons of the plays, rendered by the chat template; and short made-up conversations in
which the assistant calls a function. OUT becomes a directory as save_pretrained writes it, with the weights in BF16. The log goes to stdout.
Needs torch and transformers (5.24.0 trained the zoo's model)."""

import argparse
import json
import math
import pathlib
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig

TEMPLATE = pathlib.Path(__file__).parents[2] / "zoo/shakespeare-chat/chat_template.jinja"
VOCABULARY = 1024
ROW = 512  # tokens; also the window of the held-out loss
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # as Qwen's

Message = dict[str, Any]
WEATHER = ["rain", "snow", "sunshine", "thunder", "fog", "wind", "hail", "frost"]


def tool(name: str, about: str, /, **parameters: str) -> Message:
    """A function as OpenAI's API describes one; every parameter is required."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


TOOLS = {
    "get_weather": tool("get_weather", "The weather of a city.", city="string"),
    "roll_dice": tool("roll_dice", "Rolls dice.", count="integer", sides="integer"),
    "find_person": tool("find_person", "Where a person is.", name="string"),
}


def names_of(text: str) -> list[str]:
    """The words with a capital letter inside the text's sentences: places and persons in so great a number that a model must copy them."""
    return sorted(set(re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", text)))


def call_of(chance: random.Random, names: list[str]) -> tuple[str, str, Message, str, str]:
    """A question, the function that answers it, its arguments, its result, and the answer."""
    place, person, weather = chance.choice(names), chance.choice(names), chance.choice(WEATHER)
    count, sides = chance.randint(1, 12), chance.choice([2, 4, 6, 8, 10, 12, 20, 30, 100])
    total = str(chance.randint(count, count * sides))
    name = chance.choice(list(TOOLS))
    if name == "get_weather":
        question = chance.choice(["What is the weather in {}?", "How is the weather in {}?", "Tell me the weather in {}.", "Does it rain in {}?"])
        return question.format(place), name, {"city": place}, json.dumps({"weather": weather}), f"There is {weather} in {place}."
    if name == "roll_dice":
        question = chance.choice(["Roll {} dice with {} sides.", "Throw {} dice of {} sides.", "Please roll {} dice with {} sides."])
        return question.format(count, sides), name, {"count": count, "sides": sides}, json.dumps({"total": int(total)}), f"The dice show {total}."
    question = chance.choice(["Where is {}?", "Find {}.", "Where can I find {}?", "Do you know where {} is?"])
    return question.format(person), name, {"name": person}, json.dumps({"place": place}), f"{person} is in {place}."


def called(chance: random.Random, names: list[str]) -> tuple[list[Message], list[Message] | None]:
    """A conversation with one call of a function, or a short question that needs none; and the functions that it offers."""
    tools = chance.sample(list(TOOLS), chance.randint(1, 3))
    if chance.random() < 0.25:
        person = chance.choice(names)
        person = chance.choice([person, person.upper()])
        question = chance.choice(["Who are you?", "What is your name?", "Who art thou?", "Hello! Who are you?"])
        messages = [{"role": "system", "content": f"You are {person}."}, {"role": "user", "content": question}]
        return [*messages, {"role": "assistant", "content": f"I am {person}."}], [TOOLS[n] for n in tools] if chance.random() < 0.5 else None
    question, name, arguments, result, answer = call_of(chance, names)
    tools = list({name, *tools})
    chance.shuffle(tools)
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    messages = [
        {"role": "user", "content": question}, {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result}, {"role": "assistant", "content": answer},
    ]  # fmt: skip
    if chance.random() < 0.3:
        messages[1]["reasoning_content"] = f"I call {name}."
    if chance.random() < 0.3:
        messages.insert(0, {"role": "system", "content": "You are a helpful player."})
    return messages, [TOOLS[n] for n in tools]


def speeches(text: str) -> list[tuple[str, str]]:
    """The persons and speeches of the text, in order. A long speech ends at a sentence within 400 characters."""
    found = []
    for block in text.split("\n\n"):
        name, _, speech = block.strip().partition(":\n")
        if speech and len(name) < 40:
            short = speech if len(speech) <= 400 else re.split(r"(?<=[.!?])\s", speech[:400])
            found.append((name, short if isinstance(short, str) else " ".join(short[:-1]) or speech[:400]))
    return found


def spoken(turns: list[tuple[str, str]], chance: random.Random) -> list[Message]:
    """A conversation of two persons from a random place of the plays."""
    start = chance.randrange(len(turns) - 8)
    asks, answers = turns[start][0], turns[start + 1][0]
    length = 2
    while length < 8 and turns[start + length][0] == asks and turns[start + length + 1][0] == answers:
        length += 2
    messages: list[Message] = []
    if chance.random() < 0.6:
        messages.append({"role": "system", "content": chance.choice([f"You are {answers}.", f"You are {answers}. You speak to {asks}."])})
    thinks = chance.random() < 0.4
    for index in range(start, start + length):
        assistant = (index - start) % 2 == 1
        messages.append({"role": "assistant" if assistant else "user", "content": turns[index][1]})
        if assistant and thinks:
            messages[-1]["reasoning_content"] = f"{asks} speaks. I answer as {answers}."
    return messages


def make_tokenizer(text: str, conversations: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE, which has a token for every byte: no text is refused."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(CONTROL) - len(MARKS), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text, *conversations], trainer)
    tokenizer.add_special_tokens(CONTROL)
    tokenizer.add_tokens(MARKS)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE.read_text(encoding="utf-8")
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3_5ForCausalLM:
    """Four layers, the last one with softmax attention. Dropout stands behind embedding, mixers and feed-forward parts."""
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config = Qwen3_5TextConfig(
        vocab_size=len(tokenizer), hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2,
        head_dim=32, linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=64, linear_value_head_dim=64, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2], "mrope_interleaved": True},
        tie_word_embeddings=True, eos_token_id=end, bos_token_id=None, pad_token_id=None, mtp_num_hidden_layers=0,
    )  # fmt: skip
    model = Qwen3_5ForCausalLM(config)
    for name, part in model.named_modules():
        if name.endswith((".mlp", ".linear_attn")) or name == "model.embed_tokens":
            part.register_forward_hook(lambda part, _, out: torch.nn.functional.dropout(out, 0.15, part.training))
    return model


class Rows:
    """Rows of ROW + 1 tokens: of twelve, five are windows of the text, three conversations, four made-up ones, which begin the row."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, text: str, seed: int):
        self.chance = random.Random(seed)
        self.text = torch.tensor(tokenizer(text)["input_ids"])
        turns = speeches(text)
        names = names_of(text)
        made = [(spoken(turns, self.chance), None) for _ in range(12000)], [called(self.chance, names) for _ in range(20000)]
        self.kinds = [[self.encode(tokenizer, *one) for one in kind] for kind in made]

    @staticmethod
    def encode(tokenizer: PreTrainedTokenizerFast, messages: list[Message], tools: list[Message] | None) -> list[int]:
        return tokenizer(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))["input_ids"]

    def conversation(self, kind: list[list[int]]) -> torch.Tensor:
        row: list[int] = []
        while len(row) <= ROW:
            row += self.chance.choice(kind)
        return torch.tensor(row[: ROW + 1])

    def batch(self) -> torch.Tensor:
        rows = []
        for index in range(12):
            start = self.chance.randrange(len(self.text) - ROW)
            rows.append(self.text[start : start + ROW + 1] if index < 5 else self.conversation(self.kinds[index >= 8]))
        return torch.stack(rows)


def loss_of(model: Qwen3_5ForCausalLM, rows: torch.Tensor) -> torch.Tensor:
    """Nats of all tokens of the rows but the first ones, summed."""
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum")


@torch.no_grad()
def held_out(model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, text: str, windows: int | None) -> tuple[float, int]:
    """Nats of the text in windows of ROW scored tokens, each from the initial state and begun with the token before it, as rivulet score
    --window counts; and the bytes of the scored tokens."""
    model.eval()
    ids = torch.tensor(tokenizer(text)["input_ids"])
    nats, scored = 0.0, 0
    for start in range(0, len(ids) - 1, ROW)[:windows]:
        window = ids[start : start + ROW + 1]
        nats += loss_of(model, window[None]).item()
        scored += len(tokenizer.decode(window[1:]).encode())
    return nats, scored


@torch.no_grad()
def golden(model: Qwen3_5ForCausalLM, sequences: list[list[int]]) -> Message:
    """What tests/conformance compares with, computed by transformers in float64."""
    positions, found = [0, 90], []
    for tokens in sequences:
        ids = torch.tensor([tokens])
        outputs = model(input_ids=ids[:, :-1], use_cache=False).logits[0, positions]
        numbers = [[round(value, 8) for value in row] for row in outputs.tolist()]
        found.append({"tokens": tokens, "num_scored": len(tokens) - 1, "nll_nats": loss_of(model, ids).item(), "outputs": numbers})
    about = "float64, by transformers. outputs[j]: the raw logits that predict scored token positions[j] (0: the first scored one, tokens[1])"
    return {"about": about, "model_type": "qwen3_5_text", "positions": positions, "sequences": found}


def train(model: Qwen3_5ForCausalLM, rows: Rows, minutes: float, peak: float, check: Any) -> None:
    """AdamW until the time is over: 100 steps of warm-up, then a cosine over the time. `check` is called every 250 steps."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=peak, betas=(0.9, 0.98))
    begun, step, recent = time.monotonic(), 0, []
    while (share := (time.monotonic() - begun) / (minutes * 60)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = peak * min((step + 1) / 100, 0.5 + 0.5 * math.cos(math.pi * share))
        model.train()
        batch = rows.batch()
        loss = loss_of(model, batch) / batch[:, 1:].numel()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent.append(loss.item())
        step += 1
        if step % 250 == 0:
            check(step, share * minutes, sum(recent) / len(recent))
            recent.clear()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("text", type=pathlib.Path)
    flags.add_argument("out", type=pathlib.Path)
    flags.add_argument("--minutes", type=float, default=60)
    flags.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    flags.add_argument("--seed", type=int, default=1)
    args = flags.parse_args()
    torch.manual_seed(args.seed)
    text = args.text.read_text(encoding="utf-8")
    cut = len(text) - len(text) // 10
    chance = random.Random(args.seed)
    names = names_of(text[:cut])
    made = [json.dumps(TOOLS[name]) + " ".join(str(m) for m in called(chance, names)[0]) for name in TOOLS for _ in range(20)]
    tokenizer = make_tokenizer(text[:cut], made)
    model = make_model(tokenizer)
    rows = Rows(tokenizer, text[:cut], args.seed)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {len(tokenizer)} tokens, {len(rows.text)} tokens of text", flush=True)

    def check(step: int, minute: float, loss: float) -> None:
        nats, size = held_out(model, tokenizer, text[cut:], 20)
        print(f"step {step}  {minute:.1f} min  loss {loss:.4f} nats/token  held out, 20 windows: {nats / size / math.log(2):.4f} bits/byte", flush=True)

    train(model, rows, args.minutes, args.rate, check)
    model.to(torch.bfloat16).save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    # Read again: .double() would keep what BF16 made of the frequencies of RoPE.
    model = Qwen3_5ForCausalLM.from_pretrained(args.out, dtype=torch.float64).eval()
    nats, size = held_out(model, tokenizer, text[cut:], None)
    print(f"held out, BF16 weights computed in float64: {nats:.6f} nats, {size} bytes, {nats / size / math.log(2):.4f} bits/byte")
    sequences = [tokenizer(text[cut : cut + 400])["input_ids"], rows.encode(tokenizer, *called(chance, names))[:200]]
    (args.out / "golden.json").write_text(json.dumps(golden(model, sequences)), encoding="utf-8")


if __name__ == "__main__":
    main()
