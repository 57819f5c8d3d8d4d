# SPDX-License-Identifier: Apache-2.0
"""Replies to random JSON schemas, over four kinds of vocabularies: each reply that ends by itself is JSON that satisfies its schema, by
Python's jsonschema. 300 schemas; schemas_test.py --schemas N [--seed S] tries more. Prints how many replies ended."""

import argparse
import collections
import concurrent.futures
import datetime
import json
import pathlib
import random
import shutil
import tempfile
import unittest

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import jsonschema
import numpy as np
import safetensors.numpy

import random_schemas
import rivulet
from command import BIN_DIR, SOURCE_DIR, ZOO, Server
from random_schemas import BYTES, WORDS

SEEDS = argparse.Namespace(schemas=300, seed=1)
SMALL = SOURCE_DIR / "tests/conformance/family/delta-net"


def widened(folder, size):
    """The small model with `size` tokens."""
    folder.mkdir()
    config = json.loads((SMALL / "config.json").read_text())
    tensors = safetensors.numpy.load_file(SMALL / "model.safetensors")
    draw = np.random.default_rng(1)
    for name, value in tensors.items():
        if value.shape[:1] == (config["vocab_size"],):
            tensors[name] = draw.standard_normal((size, *value.shape[1:])).astype(value.dtype)
    config["vocab_size"] = size
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


def world(folder):
    (widened(folder, 1 + len(BYTES + WORDS)) / "rwkv_vocab_v20230424.txt").write_text(random_schemas.world_vocabulary())


def byte_fallback(folder):
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + [word.decode().replace(" ", "▁") for word in WORDS]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "pre_tokenizer": None, "post_processor": None,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
            "byte_fallback": True, "ignore_merges": False, "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [],
        },
    }  # fmt: skip
    (widened(folder, len(pieces)) / "tokenizer.json").write_text(json.dumps(tokenizer))


def format_checker():
    """Those of jsonschema that need no other package, and the times of Python."""
    checker = jsonschema.FormatChecker(formats=("date", "ipv4", "ipv6", "uuid", "email"))
    checker.checks("time", ValueError)(lambda value: not isinstance(value, str) or datetime.time.fromisoformat(value) is not None)
    checker.checks("date-time", ValueError)(lambda value: not isinstance(value, str) or datetime.datetime.fromisoformat(value) is not None)
    return checker


@unittest.skipUnless((BIN_DIR / "rivulet-grammar").exists(), "rivulet-grammar was not built: deploy/setup.sh --constraints")
class SchemasTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        world(folder / "world")
        byte_fallback(folder / "fallback")
        cls.models = ["world", "fallback", "shakespeare-chat"]
        server = cls.enterClassContext(Server(folder / "world", folder / "fallback", ZOO / "shakespeare-chat", args=("--threads", "1", "--backend", "cpu")))
        cls.client = cls.enterClassContext(rivulet.Client(server.target))
        # Tokens that end a value, so that replies end.
        cls.bias = {
            model: {id: bias for text, bias in (('"', 8.0), ("}", 8.0), ("]", 8.0), (",", -2.0)) for id in cls.client.tokenize(text, model=model, add_special_tokens=False).ids.tolist()[-1:]}
            for model in cls.models
        }

    def reply(self, number):
        draw = random.Random(SEEDS.seed * 1_000_000 + number)
        schema = random_schemas.document(draw)
        model = self.models[number % len(self.models)]
        try:
            done = self.client.generate(
                "x", model=model, constraint=schema, seed=number, max_tokens=600, logit_bias=self.bias[model], stop_token_ids=()
            ).collect()
        except rivulet.RivuletError as error:
            return schema, model, None, error
        return schema, model, done, None

    def test_a_reply_that_ends_satisfies_its_schema(self):
        ended, checker = collections.Counter(), format_checker()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for number, (schema, model, done, error) in enumerate(pool.map(self.reply, range(SEEDS.schemas))):
                about = f"schema {number} of seed {SEEDS.seed}, {model}: {json.dumps(schema, ensure_ascii=False)}"
                self.assertIsNone(error, f"{about}\n{error}")
                reason = done.samples[0].finish.reason
                ended[reason.name] += 1
                if reason is rivulet.FinishReason.LENGTH:
                    continue
                try:
                    value = json.loads(done.text)
                    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(value)
                except ValueError as error:
                    self.fail(f"{about}\n{done.text!r}\n{error}")
                except jsonschema.ValidationError as error:
                    self.fail(f"{about}\n{done.text!r}\n{error.message}")
        share = 1 - ended["LENGTH"] / SEEDS.schemas
        print(f"{SEEDS.schemas} schemas, {100 * share:.1f} % of the replies ended: {dict(ended)}")
        self.assertGreater(share, 0.9)


if __name__ == "__main__":
    random_schemas.main(SEEDS, __doc__)
