#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our tokenizer against the library `tokenizers`: ids, offsets and decoded text of odd texts, for a vocabulary trained here with
each pre-tokenizer. Texts hold code points of Unicode 14."""
import json
import os
import sys
import tempfile
import unittest

from odd_texts import CORPUS, Texts, in_characters, ours

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: the Python package tokenizers is not installed; deploy/setup.sh --tests installs it")
    sys.exit(77)

TEXTS = int(os.environ.get("RIVULET_TOKENIZER_TEXTS", "600"))  # for each vocabulary
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
DEEPSEEK = r"[!-\/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel


def train(pre=None, normalizer=None, post=None, decoder=None, added=True, size=700, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoder or decoders.ByteLevel()
    special = ["<s>", "<|end|>"] + ([model["unk_token"]] if "unk_token" in model else [])
    alphabet = BYTES.alphabet() if decoder is None else []
    if model.get("byte_fallback"):
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    if model.get("byte_fallback"):  # no control tokens, but what the trainer takes is
        state = json.loads(tokenizer.to_str())
        state["added_tokens"] = [t for t in state["added_tokens"] if not t["content"].startswith("<0x")]
        tokenizer = Tokenizer.from_str(json.dumps(state))
    if added:
        tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("été", normalized=True), "    "])
        tokenizer.add_special_tokens([AddedToken("<|left|>", lstrip=True), AddedToken("<|pad|>", lstrip=True, rstrip=True)])
    if post is not None:
        tokenizer.post_processor = post
    return tokenizer


def vocabularies():
    """(name, tokenizer)"""
    begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    both = processors.TemplateProcessing(single="<s> $A <|end|>", special_tokens=[("<s>", 0), ("<|end|>", 1)])
    trim = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    sequence = pre_tokenizers.Sequence
    bytes_only = BYTES(add_prefix_space=False, use_regex=False)
    yield "byte level", train(BYTES(add_prefix_space=False), post=trim)
    yield "byte level with a prefix", train(BYTES(add_prefix_space=True), post=processors.ByteLevel(trim_offsets=True))
    yield "NFC and Qwen2's pattern", train(sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), bytes_only]), normalizers.NFC(),
                                          processors.ByteLevel(trim_offsets=False))
    yield "Llama 3", train(sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), bytes_only]), ignore_merges=True,
                           post=processors.Sequence([trim, begin]))
    yield "GPT-4o's pattern", train(sequence([pre_tokenizers.Split(Regex(GPT4O), "removed", invert=True), bytes_only]), post=both)
    yield "DeepSeek's patterns", train(sequence([pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
                                                pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                                pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"), bytes_only]))
    yield "digits", train(sequence([pre_tokenizers.Digits(individual_digits=True), BYTES(add_prefix_space=False)]), normalizers.NFC())
    yield "numbers", train(sequence([pre_tokenizers.Digits(individual_digits=False), BYTES(add_prefix_space=True)]))
    yield "script and look-ahead", train(sequence([pre_tokenizers.Split(Regex(r"(?=\p{Lu})|\p{Han}|\w\W"), "isolated"), bytes_only]))
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            yield f"split {behavior} {invert}", train(
                sequence([pre_tokenizers.Split(" " if invert else Regex(r"\s|\p{P}"), behavior, invert=invert), bytes_only]))
    for scheme, split in (("always", True), ("first", True), ("never", True), ("first", False)):
        yield f"metaspace {scheme} {split}", train(
            pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split), decoder=decoders.Metaspace(prepend_scheme=scheme, split=split),
            unk_token="<unk>", fuse_unk=split, post=begin)
    for added in (False, True):
        llama = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        yield f"Llama {added}", train(
            None, llama, begin, decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                                   decoders.Strip(" ", 1, 0)]), added, 900, unk_token="<unk>", byte_fallback=True, fuse_unk=True)


class TokenizerTest(unittest.TestCase):
    def compare(self, name, tokenizer, path, texts, flags):
        _, add_special, parse_special = flags
        tokenizer.encode_special_tokens = not parse_special
        found = ours(path, texts, flags)
        self.assertEqual(len(found), len(texts), name)
        for text, (ids, spans, decoded) in zip(texts, found):
            theirs = tokenizer.encode(text, add_special_tokens=bool(flags[0] and add_special))
            self.assertEqual(ids, theirs.ids, (name, flags, text))
            self.assertEqual(in_characters(text, spans), theirs.offsets, (name, flags, text, theirs.tokens))
            # Theirs decodes the normalized form of added tokens, and drops every leading space of a first token with Metaspace.
            if not {tokenizer.token_to_id("été"), tokenizer.token_to_id("    ")} & set(ids) and not name.startswith("metaspace"):
                mine = decoded.decode("utf-8", "replace")
                if name in ("Llama True", "Llama False"):
                    mine = mine.removeprefix(" ")
                self.assertEqual(mine, tokenizer.decode(ids, skip_special_tokens=False), (name, text))

    def test_same_ids_and_offsets(self):
        compared = 0
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tokenizer.json")
            for seed, (name, tokenizer) in enumerate(vocabularies()):
                with self.subTest(name):
                    tokenizer.save(path)
                    texts = Texts(seed).make(TEXTS)
                    self.compare(name, tokenizer, path, texts, (1, 1, 1))
                    self.compare(name, tokenizer, path, texts[:TEXTS // 4], (0, 1, 0))
                    compared += len(texts) + TEXTS // 4
        print(f"{compared} texts compared")


if __name__ == "__main__":
    unittest.main()
