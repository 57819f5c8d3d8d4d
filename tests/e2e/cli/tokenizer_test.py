#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our tokenizer against the library `tokenizers`: ids, offsets and decoded text of odd texts, for a vocabulary trained here with
each pre-tokenizer. Texts hold code points of Unicode 14, with NFC of Unicode 3.2: the library's composition tables are old."""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest

try:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: the Python package tokenizers is not installed; deploy/setup.sh --tests installs it")
    sys.exit(77)

PROGRAM = pathlib.Path(os.environ["RIVULET_BIN_DIR"]) / "tokenize_texts"
TEXTS = int(os.environ.get("RIVULET_TOKENIZER_TEXTS", "600"))  # for each vocabulary
BLOCKS = [(0x00, 0x7F), (0x80, 0x24F), (0x250, 0x36F), (0x370, 0x58F), (0x590, 0x6FF), (0x900, 0xDFF), (0xE00, 0x11FF), (0x1680, 0x18AF),
          (0x1E00, 0x1FFF), (0x2000, 0x23FF), (0x2460, 0x27BF), (0x2E80, 0x30FF), (0x3130, 0x33FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
          (0xE000, 0xE010), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFFFD), (0x10300, 0x1034F), (0x1D100, 0x1D7FF),
          (0x1F100, 0x1F6FF), (0x20000, 0x20100), (0xE0020, 0xE007F)]
SPACES = " \t\n\r\v\f\x1c\x85\u00a0\u1680\u180e\u2000\u2028\u202f\u205f\u3000\u200b\ufeff"
CORPUS = ["The quick brown fox jumps over the lazy dog, doesn't it? I'll say: 1234567 times!\n\n  def f(x):\n\treturn x + 1\n",
          "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Ça alors, où est l'été? ÉCOLE école",
          "Съешь ещё этих мягких французских булок, да выпей чаю. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
          "我能吞下玻璃而不伤身体。いろはにほへと ちりぬるを カタカナ 한국어 텍스트 ๐๑๒ ١٢٣ ½ Ⅷ", "e\u0301a\u0308 \u1112\u1161\u11ab 👩\u200d👩\u200d👧 🇩🇪"]
PIECES = ["'s", "'LL", "'ſ", "don't", "ThisIsCamelCase", "HTTPServer", "   ", "\r\n\r\n", " \n \n", "0", "1234567", "٣٤", "x²", "▁", "▁▁a", "Ġ",
          "<|end|>", "<|end|", " <|pad|>  ", "  <|left|>", "word", "wordy", " word ", "<s>", "<s>a", "<0x41>", "été", "e\u0301te\u0301", "\u0958",
          "\u1112\u1161\u11ab", "\u212b", "q\u0323\u0307\u0307\u0323", "\u0f73\u0f71", "\U0001d15e", "\u0344", "aaaaaaaaaaaaaaaa", "....!!", "--", "\0", "ﬁ"]
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
DEEPSEEK = r"[!-\/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel


def code_points(old):
    known = unicodedata.ucd_3_2_0 if old else unicodedata
    return [chr(c) for a, b in BLOCKS for c in range(a, b + 1) if known.category(chr(c)) not in ("Cn", "Cs")]


class Texts:
    """Odd texts from a seed."""

    def __init__(self, seed, old):
        self.random = random.Random(seed)
        self.all = code_points(old)
        self.marks = [c for c in self.all if unicodedata.combining(c)]

    def stretch(self):
        r = self.random
        kind = r.randrange(8)
        if kind == 0:
            return "".join(r.choice(self.all) for _ in range(r.randrange(1, 9)))
        if kind == 1:
            return "".join(r.choice(SPACES) for _ in range(r.randrange(1, 5)))
        if kind == 2:
            return r.choice(self.all) + "".join(r.choice(self.marks) for _ in range(r.randrange(1, 6)))
        if kind == 3:
            return r.choice(self.all) * r.randrange(1, 40)
        if kind == 4:
            line = r.choice(CORPUS)
            at = r.randrange(len(line))
            return line[at:at + r.randrange(1, 40)]
        return r.choice(PIECES)

    def make(self, count):
        return ["", " ", "\0"] + ["".join(self.stretch() for _ in range(self.random.randrange(1, 12))) for _ in range(count)]


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


def ours(path, texts, flags):
    """[(ids, byte spans, decoded bytes)]"""
    data = b"".join(b"%d %d %d %d\n%s" % (len(t.encode()), *flags, t.encode()) for t in texts)
    out = subprocess.run([PROGRAM, path], input=data, stdout=subprocess.PIPE, check=False).stdout.decode().splitlines()
    results = []
    for line in out:
        if line.startswith("error"):
            raise AssertionError(line)
        ids, spans, decoded = line.split("|")
        results.append(([int(i) for i in ids.split()], [tuple(map(int, s.split(":"))) for s in spans.split()], bytes.fromhex(decoded)))
    return results


def in_characters(text, spans):
    at, starts = 0, {}
    for i, c in enumerate(text):
        starts[at] = i
        at += len(c.encode())
    starts[at] = len(text)
    return [(starts[a], starts[b]) for a, b in spans]


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
                    texts = Texts(seed, tokenizer.normalizer is not None).make(TEXTS)
                    self.compare(name, tokenizer, path, texts, (1, 1, 1))
                    self.compare(name, tokenizer, path, texts[:TEXTS // 4], (0, 1, 0))
                    compared += len(texts) + TEXTS // 4
        print(f"{compared} texts compared")


if __name__ == "__main__":
    unittest.main()
