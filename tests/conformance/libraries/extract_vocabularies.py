#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the vocabularies of public models for vocabularies_test.py: tokenizer.json of GPT-NeoX, Qwen2, Qwen3.5, Llama 3 and Llama 2, with
the texts and ids that llama.cpp has for them, and the RWKV World vocabulary.

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    extract_vocabularies.py llama_cpp_python-0.3.36.tar.gz FOLDER

The source distribution holds the tokens and merges as GGUF files. Those do not hold the rest of tokenizer.json: the normalizer, the
pre-tokenizer and the flags of added tokens are written here as the models' own files have them. World is copied from the package
`rwkv`. Needs the packages gguf, tokenizers and rwkv. Nothing that this writes belongs into the repository.
"""

import argparse
import importlib.util
import json
import pathlib
import shutil
import sys
import tarfile
import tempfile

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

CONTROL, ADDED = 3, 4  # types of tokens in a GGUF file
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel


class Vocabulary:
    """The tokens of a GGUF file, without those that only fill the model's embedding up."""

    def __init__(self, path: pathlib.Path) -> None:
        fields = gguf.GGUFReader(path).fields
        types = fields["tokenizer.ggml.token_type"].contents()
        tokens = fields["tokenizer.ggml.tokens"].contents()
        kept = {i: token for i, token in enumerate(tokens) if token != f"[PAD{i}]"}
        self.special = [token for i, token in kept.items() if types[i] == CONTROL]
        self.added = [token for i, token in kept.items() if types[i] == ADDED]
        self.ids = {token: i for i, token in kept.items()}
        if "tokenizer.ggml.merges" in fields:
            self.merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
        else:
            self.merges = self.merges_by_score(fields["tokenizer.ggml.scores"].contents())

    def merges_by_score(self, scores: list[float]) -> list[tuple[str, str]]:
        """The merges of a SentencePiece vocabulary: each way to make a token of two, the token with the best score first."""
        ways = []
        for token, i in self.ids.items():
            if token in self.special:
                continue
            parts = [(token[:at], token[at:]) for at in range(1, len(token))]
            ways += [(-scores[i], self.ids[a], self.ids[b], (a, b)) for a, b in parts if a in self.ids and b in self.ids]
        return [merge for *_, merge in sorted(ways)]

    def tokenizer(self, added_normalized: bool = False, **model: object) -> Tokenizer:
        """Without added tokens in the model, as the published files have it where it makes a difference (white space)."""
        vocab = {token: i for token, i in self.ids.items() if token not in self.added}
        made = Tokenizer(models.BPE(vocab=vocab, merges=self.merges, **model))
        # The library numbers tokens that it adds from the size of the vocabulary on, so that ids must be without gaps.
        made.add_tokens([AddedToken(token, normalized=added_normalized) for token in self.added])
        made.add_special_tokens([AddedToken(token, normalized=False) for token in self.special])
        for token, i in self.ids.items():
            if made.token_to_id(token) != i:
                raise ValueError(f"token {token!r} has id {made.token_to_id(token)} instead of {i}")
        return made


def gpt_neox(vocabulary: Vocabulary) -> Tokenizer:
    made = vocabulary.tokenizer(added_normalized=True)
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = BYTES(add_prefix_space=False, trim_offsets=True)
    made.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    made.decoder = decoders.ByteLevel()
    return made


def qwen2(vocabulary: Vocabulary, pattern: str = SPLIT % "") -> Tokenizer:
    made = vocabulary.tokenizer()
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), BYTES(add_prefix_space=False, use_regex=False)]
    )
    made.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    made.decoder = decoders.ByteLevel()
    return made


def qwen35(vocabulary: Vocabulary) -> Tokenizer:
    """Marks belong to words."""
    return qwen2(vocabulary, (SPLIT % "").replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}"))


def llama3(vocabulary: Vocabulary) -> Tokenizer:
    made = vocabulary.tokenizer(ignore_merges=True)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT % "{1,3}"), "isolated"), BYTES(add_prefix_space=False, use_regex=False)]
    )
    begin = "<|begin_of_text|>"
    made.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, vocabulary.ids[begin])]),
    ])
    made.decoder = decoders.ByteLevel()
    return made


def llama2(vocabulary: Vocabulary) -> Tokenizer:
    vocabulary.special.insert(0, "<unk>")
    made = vocabulary.tokenizer(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocabulary.ids["<s>"])])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


MADE = {
    "gpt-neox": ("gpt-neox", gpt_neox),
    "qwen2": ("qwen2", qwen2),
    "qwen3.5": ("qwen35", qwen35),
    "llama-3": ("llama-bpe", llama3),
    "llama-2": ("llama-spm", llama2),
}
# GGUF files with llama.cpp's texts, which are compared as they are.
GGUF = ("gpt-2", "llama-bpe", "mpt", "qwen2", "qwen35", "refact", "starcoder")
WORLD = "rwkv_vocab_v20230424.txt"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=pathlib.Path, help="the source distribution of llama-cpp-python")
    parser.add_argument("folder", type=pathlib.Path, help="where FOLDER/NAME/tokenizer.json and the World vocabulary go")
    options = parser.parse_args()
    with tarfile.open(options.archive) as archive, tempfile.TemporaryDirectory() as temporary:
        members = {pathlib.PurePath(member.name).name: member for member in archive.getmembers() if member.isfile()}
        for name, (file, make) in MADE.items():
            path = pathlib.Path(temporary) / name
            with archive.extractfile(members[f"ggml-vocab-{file}.gguf"]) as source, path.open("wb") as copy:
                shutil.copyfileobj(source, copy)
            made = make(Vocabulary(path))
            (options.folder / name).mkdir(parents=True, exist_ok=True)
            made.save(str(options.folder / name / "tokenizer.json"))
            for kind in ("inp", "out"):
                if texts := members.get(f"ggml-vocab-{file}.gguf.{kind}"):
                    (options.folder / name / f"llama.{kind}").write_bytes(archive.extractfile(texts).read())
            print(f"{name}: {made.get_vocab_size()} tokens, {len(json.loads(made.to_str())['model']['merges'])} merges")
        (options.folder / "gguf").mkdir(parents=True, exist_ok=True)
        for file in (f"ggml-vocab-{name}.gguf{kind}" for name in GGUF for kind in ("", ".inp", ".out")):
            (options.folder / "gguf" / file).write_bytes(archive.extractfile(members[file]).read())
    (options.folder / "world").mkdir(parents=True, exist_ok=True)
    package = pathlib.Path(importlib.util.find_spec("rwkv").origin).parent
    shutil.copyfile(package / WORLD, options.folder / "world" / WORLD)
    print(f"world: {len((package / WORLD).read_bytes().splitlines())} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
