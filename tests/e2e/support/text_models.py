# SPDX-License-Identifier: Apache-2.0
"""Directories of small models of the family (tests/conformance/family, 39 tokens) with tokenizers, as their users have them."""

import json
import shutil

from command import SOURCE_DIR

FAMILY = SOURCE_DIR / "tests/conformance/family"
KINDS = sorted(path.parent.name for path in FAMILY.glob("*/config.json"))
# Token i of the tokenizer. "Ġ" is a space, "Ċ" a new line; "Ã", "©", "§" and "ð" are bytes that alone are no UTF-8.
PIECES = ["a", "b", "c", "d", "e", "h", "n", "t", "Ġ", "Ċ", ".", "Ã", "©", "§", "ð", "th", "the", "Ġa", "Ġthe", "an", "and", "Ġand",
          "Ċb", ".Ċ", "ed", "Ã©"]  # fmt: skip
MERGES = ["t h", "th e", "Ġ the", "a n", "an d", "Ġ and", "Ġ a", "Ċ b", ". Ċ", "e d", "Ã ©"]
START, END, NAME = 30, 31, 32  # ids of "<s>", "<end>", "<name>"; the last is no control token
SIZE = 33  # of the tokenizer: the model also draws ids from here to 38
TEMPLATE = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
_ALPHABET = {"Ġ": b" ", "Ċ": b"\n", "Ã": b"\xc3", "©": b"\xa9", "§": b"\xa7", "ð": b"\xf0"}
_BYTES = {i: b"".join(_ALPHABET.get(c, c.encode()) for c in piece) for i, piece in enumerate(PIECES)}
_BYTES |= {START: b"<s>", END: b"<end>", NAME: b"<name>"}


def decode(ids):
    """The text of a reply: what the tokens stand for, U+FFFD for what is no UTF-8."""
    return b"".join(_BYTES.get(i, b"") for i in ids).decode("utf-8", "replace")


def tokenizer_json():
    def added(i, content, special):
        return {"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}

    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": byte_level, "decoder": byte_level,
        "added_tokens": [added(START, "<s>", True), added(END, "<end>", True), added(NAME, "<name>", False)],
        "post_processor": {
            "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [START], "tokens": ["<s>"]}},
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(PIECES)}, "merges": MERGES,
        },
    }  # fmt: skip


def world_vocabulary():
    """Every byte is a token; those of the English alphabet are among the model's 39."""
    order = list(range(ord("a"), ord("a") + 26)) + [ord(c) for c in " .\n"]
    order += [byte for byte in range(256) if byte not in order]
    lines = [f"{i} {bytes([byte])!r} 1" for i, byte in enumerate(order, 1)]
    return "".join(line + "\n" for line in [*lines, "300 'abc' 3"])


def copy(kind, parent, name):
    """The directory PARENT/NAME, a copy without a tokenizer."""
    target = parent / name
    shutil.copytree(FAMILY / kind, target)
    return target


def with_tokenizer(kind, parent, name=None):
    """... with tokenizer.json and the files that come beside it."""
    target = copy(kind, parent, name or kind)
    (target / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    config = {"bos_token": "<s>", "eos_token": {"content": "<end>", "special": True}, "pad_token": None, "chat_template": TEMPLATE,
              "model_max_length": 10**30}  # fmt: skip
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    (target / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<s>", "unk_token": "<unk>"}))
    return target


def with_world(kind, parent, name):
    target = copy(kind, parent, name)
    (target / "rwkv_vocab_v20230424.txt").write_text(world_vocabulary())
    return target
