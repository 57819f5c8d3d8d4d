# SPDX-License-Identifier: Apache-2.0
"""rivulet-convert on GP-MoLFormer as the hub has it, and the same model in our own format. No PyTorch is needed."""

import json
import pathlib
import shutil
import tempfile
import unittest

import numpy as np
from command import SOURCE_DIR, CommandTest, Result, rivulet
from safetensors.numpy import load_file, save_file
from torch_files import Tensor, write_torch_file
from torch_python import module

GOLDENS = SOURCE_DIR / "tests/conformance/molformer"
SMILES = json.loads((GOLDENS / "gp-molformer/golden.json").read_text())["texts"]
OWN_NAMES = (
    ("molformer.embeddings.word_embeddings", "embedding"), ("molformer.encoder.layer.", "transformer.layers."), ("attention.self.query", "attention.query_projection"),
    ("attention.self.key", "attention.key_projection"), ("attention.self.value", "attention.value_projection"), ("attention.output.dense", "attention.out_projection"),
    ("attention.self.feature_map.weight", "attention.inner_attention.feature_map.omega"), ("attention.output.LayerNorm", "norm1"), ("intermediate.dense", "linear1"),
    ("output.dense", "linear2"), ("output.LayerNorm", "norm2"), ("molformer.LayerNorm", "transformer.norm"), ("lm_head.transform.dense", "transform.linear"),
    ("lm_head.transform.LayerNorm", "transform.norm"), ("lm_head.decoder", "predictor"),
)  # fmt: skip


class MolformerConvertTest(CommandTest):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.source, self.model = self.folder / "source", self.folder / "model"

    def copied(self, name: str = "gp-molformer", settings: dict | None = None, tensors: dict | None = None) -> pathlib.Path:
        """A copy of a golden with other settings and tensors; those that are None are left out."""
        shutil.rmtree(self.source, ignore_errors=True)
        shutil.copytree(GOLDENS / name, self.source)
        config = json.loads((self.source / "config.json").read_text()) | (settings or {})
        (self.source / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
        if tensors is not None:
            held = load_file(self.source / "model.safetensors") | tensors
            save_file({key: value for key, value in held.items() if value is not None}, self.source / "model.safetensors")
        return self.source

    def convert(self, source: pathlib.Path, *args: object, code: int = 0) -> Result:
        result = module("convert", source, self.model, "--force", *args)
        self.assertEqual(result.code, code, result)
        return result

    def refused(self, source: pathlib.Path, *mentions: str, args: tuple = ()) -> None:
        result = self.convert(source, *args, code=2)
        for mention in mentions:
            self.assertIn(mention, result.err)
        self.assertEqual((result.err.count("\n"), self.model.exists()), (1, False), result)

    def outputs(self, model: pathlib.Path, tokens: list[int]) -> np.ndarray:
        lines = self.succeeds(rivulet("score", "--model", model, "--input", "-", "--outputs", "0,5,38", "--backend", "cpu", stdin=json.dumps({"tokens": tokens}))).out
        return np.array(json.loads(lines.splitlines()[0])["outputs"])

    def test_the_directory_scores_as_the_equations_and_the_golden_say(self) -> None:
        for name, expect in (("gp-molformer", ()), ("gp-molformer-bf16", ()), *((name, ("--expect", GOLDENS / name / "golden.json")) for name in ("gp-molformer", "gp-molformer-bf16"))):
            with self.subTest(name, expect=bool(expect)):
                done = self.convert(GOLDENS / name, "--limit", 1e-5, *expect)
                self.assertIn("good", done.out)
                self.assertEqual("against its equations in float64" in done.out, not expect)
                self.assertEqual("deterministic_eval is false" in done.out, name == "gp-molformer")
                self.assertEqual("ibm-research/MoLFormer-XL-both-10pct" in done.err, name == "gp-molformer-bf16")

    def test_a_tied_head_and_a_pytorch_file_are_read_and_no_code_of_it_is_run(self) -> None:
        source = self.copied(settings={"tie_word_embeddings": True}, tensors={"lm_head.decoder.weight": None})
        tensors = load_file(source / "model.safetensors")
        tensors["lm_head.decoder.weight"] = tensors["molformer.embeddings.word_embeddings.weight"]  # as torch.save writes it
        (source / "model.safetensors").unlink()
        stored = {name: Tensor(str(i), values, "F32") for i, (name, values) in enumerate(tensors.items())}
        write_torch_file(source / "pytorch_model.bin", stored)
        self.assertIn("good", self.convert(source, "--dtype", "f16").out)
        save_file({name: values.copy() for name, values in tensors.items()}, source / "model.safetensors")
        self.succeeds(rivulet("generate", "--model", source, "--tokens", "0", "--backend", "cpu"))  # the second name is skipped
        (source / "model.safetensors").unlink()
        shutil.rmtree(self.model)
        ran = self.folder / "ran"

        class Code:
            def __reduce__(self) -> tuple:
                return pathlib.Path.touch, (ran,)

        write_torch_file(source / "pytorch_model.bin", stored | {"x": Code()})
        self.refused(source, "allowed: a dictionary of tensors")
        self.assertFalse(ran.exists())

    def test_the_tokenizer_comes_along_and_a_prompt_has_the_bos_and_not_the_eos(self) -> None:
        self.convert(GOLDENS / "gp-molformer-bf16", "--tokenizer", GOLDENS / "gp-molformer")
        for text in SMILES:
            ids = self.succeeds(rivulet("tokenize", "--model", self.model, "--text", text["text"])).out.strip()
            self.assertEqual(ids, ",".join(map(str, text["ids"])), text)
        prompts = ({"text": "C"}, {"tokens": [0, 5]})
        lines = [self.succeeds(rivulet("generate", "--model", GOLDENS / "gp-molformer", *flags, "--seed", "3", "--max-tokens", "12", "--backend", "cpu")).out
                 for flags in (("--prompt", "C"), ("--tokens", "0,5"), (), ("--tokens", "0"))]  # fmt: skip
        self.assertEqual((lines[0], lines[2]), (lines[1], lines[3]), prompts)
        (self.folder / "text").write_text("CC(=O)O")
        scored = [self.succeeds(rivulet("score", "--model", GOLDENS / "gp-molformer", *flags, "--backend", "cpu", stdin='{"text": "CC(=O)O"}')).lines()[0]["nll_nats"]
                  for flags in (("--text", self.folder / "text"), ("--input", "-"))]  # fmt: skip
        self.assertEqual(scored[0], scored[1])
        shutil.rmtree(self.model)
        self.refused(GOLDENS / "gp-molformer", "--tokenizer", "no tokenizer.json", args=("--tokenizer", self.folder))

    def test_other_settings_and_tensors_are_refused_by_name(self) -> None:
        for settings, tensors, mentions in (
            ({"architectures": ["MolformerForMaskedLM"]}, None, ("MolformerForMaskedLM", "encoder has no causal form")),
            ({"is_decoder": False}, None, ("is_decoder is false; allowed: true",)),
            ({"hidden_act": "relu"}, None, ('hidden_act is "relu"',)),
            ({"model_type": "bert"}, None, ('model_type is "bert"',)),
            ({"num_attention_heads": 32}, None, ("num_attention_heads is 32",)),
            ({"hidden_size": "48"}, None, ('hidden_size is "48"',)),
            ({}, {"molformer.LayerNorm.bias": None}, ("molformer.LayerNorm.bias", "missing")),
            ({}, {"molformer.LayerNorm.bias": np.ones(3, np.float32)}, ("molformer.LayerNorm.bias", "[3]", "[48]")),
            ({}, {"lm_head.decoder.bias": np.ones(52, np.float32)}, ("lm_head.decoder.bias", "no place")),
            ({}, {"molformer.embeddings.word_embeddings.weight": None}, ("neither mamba_ssm", "nor GP-MoLFormer")),
        ):
            with self.subTest(mentions):
                self.refused(self.copied(settings=settings, tensors=tensors), *mentions)
        self.refused(GOLDENS / "gp-molformer", "2 or more tokens", args=("--check-length", 1))
        self.refused(GOLDENS / "gp-molformer", "--activation is not for GP-MoLFormer", args=("--activation", "relu"))

    def test_our_own_format_has_the_same_model_with_pairs_in_halves_and_interleaved(self) -> None:
        source, own = GOLDENS / "gp-molformer", self.folder / "own"
        tensors = load_file(source / "model.safetensors")
        renamed = {}
        for name, values in tensors.items():
            for theirs, ours in OWN_NAMES:
                name = name.replace(theirs, ours)
            renamed[name] = values
        renamed["predictor.bias"] = np.zeros(52, np.float32)
        config = {
            "format": "rivulet-model", "format_version": 1, "name": "own", "vocab_size": 52, "bos_token_id": None, "eos_token_id": 1, "hidden_size": 48,
            "num_layers": 4, "num_heads": 3, "key_dim": 16, "value_dim": 16, "ffn_size": 48, "activation": "gelu", "layer_norm_eps": 1e-12, "final_norm": True,
            "position": {"type": "rotary", "base": 10000, "pairs": "halves"},
            "attention": {"feature_map": {"type": "generalized_random", "n_dims": 24, "softmax_temp": 1, "kernel": "relu"}, "gate": "none",
                          "normalizer": {"type": "clamp_min", "min": 1e-6}},
            "output": {"type": "categorical", "transform": "gelu"}, "content": {"type": "text", "tokenizer": {"type": "tokenizer.json"}},
        }  # fmt: skip
        own.mkdir()
        tokens = json.loads((source / "golden.json").read_text())["sequences"][0]["tokens"]
        save_file(renamed, own / "model.safetensors")
        (own / "config.json").write_text(json.dumps(config))
        self.assertIn("tokenizer.json: there is no such file", rivulet("models", "--model", own).err)
        shutil.copy(source / "tokenizer.json", own)
        self.assertTrue(np.array_equal(self.outputs(own, tokens), self.outputs(source, tokens)))
        # Value i of a half and its partner become neighbours.
        order = np.arange(16).reshape(2, 8).T.ravel()
        rows = (np.arange(3)[:, None] * 16 + order).ravel()
        for name, values in renamed.items():
            if "query_projection" in name or "key_projection" in name:
                renamed[name] = values[rows].copy()
            elif name.endswith("omega"):
                renamed[name] = values[order].copy()
        config["position"]["pairs"] = "interleaved"
        save_file(renamed, own / "model.safetensors")
        (own / "config.json").write_text(json.dumps(config))
        difference = np.abs(self.outputs(own, tokens) - self.outputs(source, tokens)).max()
        self.assertTrue(0 < difference < 1e-5, difference)


if __name__ == "__main__":
    unittest.main()
