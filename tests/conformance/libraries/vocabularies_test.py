#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Our tokenizer against `tokenizers` (GPT-NeoX, Qwen2, Qwen3.5, Llama 3, Llama 2) and `rwkv` (World) on the vocabularies of public models,
which extract_vocabularies.py writes: ids, offsets and decoded text of odd texts must be the same. So must the ids of llama.cpp's texts.

RIVULET_VOCABULARIES names the folder with the vocabularies; RIVULET_TOKENIZER_TEXTS the number of texts for each (100,000).
"""

import functools
import importlib.metadata
import json
import os
import pathlib
import random
import sys
import tempfile
import unicodedata
import unittest

from odd_texts import SPACES, Texts, in_characters, ours

FOLDER = os.environ.get("RIVULET_VOCABULARIES", "")
if not FOLDER:
    print("skipped: RIVULET_VOCABULARIES names no folder; tests/README.md says how to fill one")
    sys.exit(77)
if unicodedata.unidata_version != "14.0.0":
    print(f"skipped: this Python knows Unicode {unicodedata.unidata_version}; texts of Unicode 14 need Python 3.11")
    sys.exit(77)
try:
    from rwkv.rwkv_tokenizer import TRIE_TOKENIZER
    from tokenizers import Tokenizer
except ImportError as error:
    print(f"skipped: {error}; tests/README.md says what this needs")
    sys.exit(77)

TEXTS = int(os.environ.get("RIVULET_TOKENIZER_TEXTS", "100000"))
BATCH = 5000
HOSTILE = ("a", " ", "\n", " \n", "'", "'s", "(", "\u0301", "\u0f73\u0f71", "0", "ab", "\t ", "\u3000", "🇩", "👩\u200d", "<|", "Ġ", "▁", "é", "が")


class PublicTexts(Texts):
    """Odd texts of every code point that Unicode 14 assigns, with the control tokens of a vocabulary, and some of thousands of bytes."""

    def __init__(self, seed: int, added: list[str]) -> None:
        super().__init__(seed)
        self.all = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
        self.marks = [c for c in self.all if unicodedata.combining(c)]
        self.spaces = [c for c in self.all if c.isspace()] + list(SPACES)
        self.added = added or ["<|endoftext|>"]
        self.common = [c for c in self.all if ord(c) < 0x3000]

    def stretch(self) -> str:
        r = self.random
        kind = r.randrange(12)
        if kind == 0:
            token = r.choice(self.added)
            return r.choice((token, token[:-1], token[1:], " " + token, token + " ", "\n" + token + token))
        if kind == 1:
            return "".join(r.choice(self.spaces) for _ in range(r.randrange(1, 12)))
        if kind == 2:
            return "".join(r.choice("0123456789٣٤१२๑๒²½Ⅷ①,. ") for _ in range(r.randrange(1, 12)))
        if kind == 3:
            return "".join(r.choice(self.common) for _ in range(r.randrange(1, 20)))
        if kind == 4:
            return r.choice("aZéßя中") + r.choice("'’ʼ") + r.choice(("s", "T", "re", "VE", "m", "ll", "D", "ſ", "x"))
        return super().stretch()

    def hostile(self) -> str:
        r = self.random
        parts = [r.choice(HOSTILE) * r.randrange(1, 3000) for _ in range(r.randrange(1, 4))]
        return "".join(parts) + (r.choice(self.all) if r.random() < 0.5 else "")

    def one(self) -> str:
        if self.random.random() < 0.002:
            return self.hostile()
        return "".join(self.stretch() for _ in range(self.random.randrange(1, 12)))


class VocabulariesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tokenizers", "rwkv"))
        print(f"Unicode {unicodedata.unidata_version}, {versions}")

    def compare(self, name: str, path: pathlib.Path, added: list[str], theirs, seed: int) -> None:
        """`theirs(text, flags)`: (ids, offsets in characters or None, decoded text)."""
        texts, characters, tokens, differences = PublicTexts(seed, added), 0, 0, []
        for begin in range(0, TEXTS, BATCH):
            batch = [texts.one() for _ in range(min(BATCH, TEXTS - begin))]
            # A tenth continues a sequence and takes control tokens as text.
            flags = (1, 1, 1) if begin // BATCH % 10 else (0, 1, 0)
            found = ours(path, batch, flags)
            self.assertEqual(len(found), len(batch))
            for text, (ids, spans, decoded) in zip(batch, found, strict=True):
                want, offsets, shown = theirs(text, flags)
                tokens += len(ids)
                characters += len(text)
                same = ids == want
                same &= offsets is None or in_characters(text, spans) == offsets
                # Where a text begins with a space that is not the user's, decoding a reply takes it off, TokenBytes does not.
                text_of_tokens = decoded.decode("utf-8", "replace")
                same &= shown in (text_of_tokens, text_of_tokens.removeprefix(" "))
                if not same:
                    differences.append((text, ids, want))
        print(f"{name}: {TEXTS} texts, {characters} characters, {tokens} tokens, {len(differences)} differences", flush=True)
        self.assertEqual(len(differences), 0, f"{name}: the first: {differences[:1]}")

    def json_vocabulary(self, name: str, seed: int) -> None:
        path = pathlib.Path(FOLDER) / name / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]

        def theirs(text: str, flags: tuple[int, int, int]):
            tokenizer.encode_special_tokens = not flags[2]
            encoded = tokenizer.encode(text, add_special_tokens=bool(flags[0] and flags[1]))
            return encoded.ids, encoded.offsets, tokenizer.decode(encoded.ids, skip_special_tokens=False)

        self.compare(name, path, added, theirs, seed)

    def test_gpt_neox(self) -> None:
        self.json_vocabulary("gpt-neox", 1)

    def test_qwen2(self) -> None:
        self.json_vocabulary("qwen2", 2)

    def test_qwen35(self) -> None:
        self.json_vocabulary("qwen3.5", 6)

    def texts_of_llama_cpp(self, path: str) -> tuple[list[str], list[list[int]]]:
        """The texts and their ids."""
        texts = pathlib.Path(FOLDER, path + ".inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
        self.assertEqual(texts.pop(), "", "each text ends with the separator")
        return texts, [[int(i) for i in line.split()] for line in pathlib.Path(FOLDER, path + ".out").read_text().splitlines()]

    def test_gguf_files(self) -> None:
        """The vocabularies of llama.cpp as GGUF files have them, with its texts."""
        files = sorted(pathlib.Path(FOLDER, "gguf").glob("*.gguf"))
        self.assertGreater(len(files), 5)
        for file in files:
            texts, want = self.texts_of_llama_cpp(f"gguf/{file.name}")
            self.assertEqual([ids for ids, _, _ in ours(file, texts, (0, 0, 1))], want, file.name)
            print(f"{file.name}: {len(texts)} texts of llama.cpp", flush=True)

    def test_texts_of_llama_cpp(self) -> None:
        """It does not normalize."""
        for name in ("qwen2", "qwen3.5", "llama-3"):
            folder = pathlib.Path(FOLDER) / name
            texts, want = self.texts_of_llama_cpp(f"{name}/llama")
            vocabulary = json.loads((folder / "tokenizer.json").read_text()) | {"normalizer": None}
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump(vocabulary, file)
                file.flush()
                found = [ids for ids, _, _ in ours(pathlib.Path(file.name), texts, (0, 1, 0))]
            self.assertEqual(found, want, name)
            print(f"{name}: {len(texts)} texts of llama.cpp", flush=True)

    def test_llama_3(self) -> None:
        self.json_vocabulary("llama-3", 3)

    def test_llama_2(self) -> None:
        self.json_vocabulary("llama-2", 4)

    def test_world(self) -> None:
        path = pathlib.Path(FOLDER) / "world" / "rwkv_vocab_v20230424.txt"
        tokenizer = TRIE_TOKENIZER(str(path))
        self.compare("world", path, [], lambda text, flags: (tokenizer.encode(text), None, text), 5)


if __name__ == "__main__":
    unittest.main()
