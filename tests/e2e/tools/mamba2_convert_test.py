# SPDX-License-Identifier: Apache-2.0
"""rivulet-convert on Mamba-2 as mamba_ssm saves it: committed folders with answers in float64 (checkpoints/make_mamba_ssm.py). No PyTorch is
needed."""

import json
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

import numpy as np
from command import SOURCE_DIR, CommandTest, Result, rivulet
from safetensors.numpy import load_file, save_file
from text_models import END, tokenizer_json
from torch_files import Tensor, write_torch_file
from torch_python import TOOLS, module

sys.path.insert(0, str(TOOLS))
from rivulet_tools.torch_file import TorchFile  # noqa: E402

CHECKPOINTS = SOURCE_DIR / "tests/e2e/tools/checkpoints"


class Mamba2ConvertTest(CommandTest):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.source, self.model = self.folder / "source", self.folder / "model"

    def copied(self, name: str, settings: dict | None = None, ssm: dict | None = None) -> pathlib.Path:
        """A copy of a committed folder with other settings; one that is ... is left out."""
        shutil.rmtree(self.source, ignore_errors=True)
        shutil.copytree(CHECKPOINTS / name, self.source)
        config = json.loads((self.source / "config.json").read_text())
        for part, changes in ((config["ssm_cfg"], ssm), (config, settings)):
            part.update(changes or {})
            for key in [key for key, value in part.items() if value is ...]:
                del part[key]
        (self.source / "config.json").write_text(json.dumps(config))
        return self.source

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        with TorchFile(CHECKPOINTS / name / "pytorch_model.bin") as file:
            return {tensor: file.read(tensor).values for tensor in file}

    def convert(self, source: pathlib.Path, *args: object, code: int = 0) -> Result:
        result = module("convert", source, self.model, *args)
        self.assertEqual(result.code, code, result)
        return result

    def refused(self, source: pathlib.Path, *mentions: str, args: tuple = ()) -> None:
        result = self.convert(source, *args, code=2)
        self.assertEqual(result.err.count("\n"), 1, result)
        for mention in mentions:
            self.assertIn(mention, result.err)
        self.assertFalse(self.model.exists())

    def types(self) -> set[str]:
        data = (self.model / "model.safetensors").read_bytes()
        header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
        return {entry["dtype"] for entry in header.values()}

    def test_the_directory_scores_as_the_authors_equations_say(self) -> None:
        for name, dtype in (("mamba-ssm", "F16"), ("mamba-ssm-groups", "F32")):
            with self.subTest(name):
                done = self.convert(CHECKPOINTS / name, "--expect", CHECKPOINTS / name / "golden.json", "--limit", 1e-4, "--force")
                self.assertIn("good", done.out)
                self.assertIn("there is no tokenizer.json", done.err)
                self.assertIn("EleutherAI/gpt-neox-20b", done.err)
                self.assertEqual(self.types(), {dtype})

    def test_a_safetensors_file_and_settings_at_their_defaults_are_read(self) -> None:
        source = self.copied("mamba-ssm", {"rms_norm": ..., "tie_embeddings": ..., "d_intermediate": ...}, {"dt_limit": [0.0, float("inf")], "ngroups": 1})
        save_file(self.tensors("mamba-ssm"), source / "model.safetensors")
        (source / "pytorch_model.bin").unlink()
        self.assertIn("good", self.convert(source, "--expect", source / "golden.json", "--limit", 1e-4, "--dtype", "f32").out)

    def test_the_tokenizer_comes_along_and_says_what_ends_a_text(self) -> None:
        source = self.copied("mamba-ssm")
        tokenizer = tokenizer_json()
        tokenizer["added_tokens"][1]["content"] = "<|endoftext|>"
        (source / "tokenizer.json").write_text(json.dumps(tokenizer))
        done = self.convert(source)
        self.assertNotIn("WARNING", done.err)
        self.assertEqual(json.loads((self.model / "config.json").read_text())["eos_token_id"], END)
        self.succeeds(rivulet("generate", "--model", self.model, "--prompt", "the hat", "--max-tokens", "4", "--seed", "1", "--backend", "cpu"))
        for given, wanted in (("none", None), ("7", 7)):
            self.convert(CHECKPOINTS / "mamba-ssm", "--tokenizer", source, "--eos", given, "--force")
            self.assertEqual(json.loads((self.model / "config.json").read_text())["eos_token_id"], wanted)
            self.assertTrue((self.model / "tokenizer.json").is_file())
        shutil.rmtree(self.model)
        self.refused(source, "--eos 64", "0 to 63", args=("--eos", 64))
        self.refused(source, "--tokenizer", "no tokenizer.json", args=("--tokenizer", self.folder))
        self.refused(source, "--vocab is not for Mamba-2", args=("--vocab", source / "tokenizer.json"))

    def test_a_setting_that_is_not_served_is_refused_by_name(self) -> None:
        for settings, ssm, mentions in (
            ({"d_intermediate": 64}, {}, ("d_intermediate is 64", "MLP")),
            ({"attn_layer_idx": [1]}, {}, ("attn_layer_idx is [1]", "attention")),
            ({"rms_norm": False}, {}, ("rms_norm is false",)),
            ({"ssm_cfg": {}}, {}, ("ssm_cfg.layer", "Mamba-1")),
            ({"ssm_cfg": None}, {}, ("ssm_cfg is null",)),
            ({}, {"layer": "Mamba3"}, ('ssm_cfg.layer is "Mamba3"',)),
            ({}, {"D_has_hdim": True}, ("ssm_cfg.D_has_hdim is true",)),
            ({}, {"norm_before_gate": True}, ("ssm_cfg.norm_before_gate is true",)),
            ({}, {"rmsnorm": False}, ("ssm_cfg.rmsnorm is false",)),
            ({}, {"d_ssm": 32}, ("ssm_cfg.d_ssm is 32", "null or 64")),
            ({}, {"headdim": 24}, ("ssm_cfg.expand is 2", "24")),
            ({}, {"ngroups": 3}, ("ssm_cfg.ngroups is 3", "4")),
            ({}, {"dt_limit": [0.5, 0.1]}, ("ssm_cfg.dt_limit",)),
            ({}, {"dt_rank": 4}, ("ssm_cfg.dt_rank is 4", "no such setting")),
            ({"scale": 2}, {}, ("scale is 2", "no such setting")),
            ({"n_layer": "2"}, {}, ('n_layer is "2"',)),
            ({"tie_embeddings": 1}, {}, ("tie_embeddings is 1",)),
        ):
            with self.subTest(mentions):
                self.refused(self.copied("mamba-ssm", settings, ssm), *mentions)

    def test_other_tensors_are_refused_by_name(self) -> None:
        for changes, mentions in (
            ({"backbone.layers.1.mixer.D": None}, ("backbone.layers.1.mixer.D", "missing")),
            ({"backbone.layers.1.mixer.D": np.ones((64,), np.float32)}, ("backbone.layers.1.mixer.D", "[64]", "[4]")),
            ({"backbone.layers.1.mlp.fc1.weight": np.ones((2, 2), np.float32)}, ("backbone.layers.1.mlp.fc1.weight", "no place")),
            ({"lm_head.weight": np.ones((64, 32), np.float32)}, ("lm_head.weight", "tie_embeddings")),
            ({"backbone.norm_f.weight": np.full(32, np.inf, np.float32)}, ("backbone.norm_f.weight", "finite")),
        ):
            with self.subTest(mentions):
                source = self.copied("mamba-ssm")
                tensors = {name: values for name, values in (self.tensors("mamba-ssm") | changes).items() if values is not None}
                write_torch_file(source / "pytorch_model.bin", {n: Tensor(str(i), v.astype("<f4"), "F32") for i, (n, v) in enumerate(tensors.items())})
                self.refused(source, *mentions)
        (source / "pytorch_model.bin").unlink()
        self.refused(source, "pytorch_model.bin", "model.safetensors")
        (source / "config.json").unlink()
        self.refused(source, "holds no model.safetensors and no pytorch_model.bin")

    def test_no_code_of_the_weights_is_run(self) -> None:
        source, ran = self.copied("mamba-ssm"), self.folder / "ran"

        class Code:
            def __reduce__(self) -> tuple:
                return pathlib.Path.touch, (ran,)

        write_torch_file(source / "pytorch_model.bin", {"backbone.norm_f.weight": Code()})
        self.refused(source, "pytorch_model.bin", "allowed: a dictionary of tensors")
        self.assertFalse(ran.exists())


if __name__ == "__main__":
    unittest.main()
