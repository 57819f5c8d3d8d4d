# SPDX-License-Identifier: Apache-2.0
"""Odd texts from a seed, and what our tokenizer makes of texts, for comparisons with the tokenizers of others."""
import os
import pathlib
import random
import subprocess
import unicodedata

PROGRAM = pathlib.Path(os.environ["RIVULET_BIN_DIR"]) / "tokenize_texts"
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


def code_points():
    return [chr(c) for a, b in BLOCKS for c in range(a, b + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


class Texts:
    """Odd texts from a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.all = code_points()
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
