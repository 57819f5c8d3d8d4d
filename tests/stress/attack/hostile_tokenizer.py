# SPDX-License-Identifier: Apache-2.0
"""Files tokenizer.json and texts that ask for time and memory: seconds, peak memory and answer of each, and of an honest text beside.
Attacks the tokenizer alone (`tokenize_texts`, built with the tests), not a server: what one call would cost."""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import tempfile
import time

from victim import SOURCE_DIR, report

LIMIT_BYTES = 8 << 30  # of memory, for the machine's sake
FUSE = {"type": "Fuse"}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def alphabet() -> dict[str, int]:
    """The byte alphabet of GPT-2."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return {chr(c): i for i, c in enumerate(own + list(range(256, 256 + 256 - len(own))))}


def file(normalizer=None, pre_tokenizer=None, decoder=None, vocabulary=None, merges=()) -> str:
    model = {"type": "BPE", "vocab": vocabulary or {"a": 0, "b": 1, "c": 2}, "merges": list(merges)}
    return json.dumps(
        {"version": "1.0", "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder or FUSE, "model": model}
    )


def split(pattern: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def doublings(member: str, count: int) -> dict:
    return {"type": "Sequence", member: [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * count}


def attacks():
    """(name, tokenizer.json, text)"""
    yield "200 replacements, 1 byte", file(normalizer=doublings("normalizers", 200)), "a"
    yield "25 replacements, 1 byte", file(normalizer=doublings("normalizers", 25)), "a"
    yield "25 replacements in the decoder, 1 byte", file(decoder=doublings("decoders", 25)), "a"
    for pattern in ("a*b|c", "(?:a|a)*b|c", "(?=a*b)a|c", "a{100}b|c"):
        yield f"{pattern}, 200 kB", file(pre_tokenizer=split(pattern)), "a" * 200_000
    tries = "|".join(f"a*+{c}" for c in "bcdefghijklmnopqrstuvwxyz" * 2) + "|a"
    yield "52 tries a character, 200 kB", file(pre_tokenizer=split(tries)), ("a" * 50 + "B") * 3_900
    yield "one word, 2 MB", file(pre_tokenizer=BYTE_LEVEL, decoder=BYTE_LEVEL, vocabulary=alphabet() | {"aa": 256}, merges=["a a"]), "a" * 2_000_000


def honest():
    text = "".join(path.read_text() for path in sorted((SOURCE_DIR / "docs").glob("*.md")))
    text = (text * (4_000_000 // len(text) + 1))[:4_000_000]
    merges = {"th": 256, "the": 257, "in": 258, "Ġthe": 259}
    pre = {"type": "Sequence", "pretokenizers": [split(LLAMA3), BYTE_LEVEL | {"use_regex": False}]}
    parts = {"decoder": BYTE_LEVEL, "vocabulary": alphabet() | merges, "merges": ["t h", "th e", "i n", "Ġ the"]}
    yield "honest, 4 MB, GPT-2's pattern", file(pre_tokenizer=BYTE_LEVEL, **parts), text
    yield "honest, 4 MB, Llama 3's pattern, NFC", file(pre_tokenizer=pre, normalizer={"type": "NFC"}, **parts), text


def attack(program: pathlib.Path, name: str, tokenizer: str, text: str, timeout: float) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tokenizer.json"
        path.write_text(tokenizer)
        data = text.encode()
        started = time.monotonic()
        process = subprocess.Popen(
            [program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES)),
        )  # fmt: skip
        try:
            out, _ = process.communicate(b"%d 1 1 1\n" % len(data) + data, timeout=timeout)
            answer = out[:200].decode(errors="replace").split("\n")[0] if out.startswith(b"error") else f"{len(out)} bytes of tokens"
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            answer = "no answer"
        seconds = time.monotonic() - started
    return {"attack": name, "seconds": round(seconds, 2), "answer": answer, "exit": process.returncode}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=pathlib.Path, default=SOURCE_DIR / "build/release/bin/tokenize_texts", help="the binary")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for each")
    parsed = parser.parse_args()
    for one in [*attacks(), *honest()]:
        # A process of its own, so that its peak is that of this attack.
        child = os.fork()
        if child == 0:
            figures = attack(parsed.program, *one, parsed.timeout)
            figures["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
            report(**figures)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
