#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/conformance/family is what make_family.py writes, and each tensor and setting changes its goldens."""
import contextlib
import io
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import numpy as np  # noqa: E402  (build/venv)

import make_family  # noqa: E402
from family_float64 import answers, difference  # noqa: E402
from hybrid_float64 import SKIPPED, network  # noqa: E402

FAMILY = pathlib.Path(__file__).resolve().parent / "family"
# An output changed by this much fails family_golden_test ten times over.
SEEN = 1e-3
SETTINGS = {
    "linear-attn": {"norm_eps": 2e-3},
    "retnet": {"norm_eps": 2e-3},
    "gla": {"norm_eps": 2e-3, "clamp_min": None, "gate_logit_normalizer": 16},
    "hgrn2": {"norm_eps": 2e-3},
    "mamba2": {"layer_norm_epsilon": 2e-3},
    "mamba2-groups": {"layer_norm_epsilon": 2e-3, "time_step_limit": [0.0, 0.6]},
    "delta-net": {"norm_eps": 2e-3, "allow_neg_eigval": False},
    "gated-deltanet": {"norm_eps": 2e-3},
    "gated-deltanet-plain": {"norm_eps": 2e-3, "allow_neg_eigval": False},
    "gated-deltanet-shared-keys": {"norm_eps": 2e-3},
    "kda": {"norm_eps": 2e-3, "allow_neg_eigval": False},
    "rwkv7": {"norm_eps": 2e-3},
    "rwkv7-old": {"norm_eps": 2e-3},
    "rwkv7-initial-state": {"norm_eps": 2e-3},
    "lfm2-moe": {"norm_eps": 2e-3, "norm_topk_prob": False, "num_experts_per_tok": 2, "rope_theta": 100.0, "routed_scaling_factor": 1.0},
    "granite-moe": {"attention_multiplier": 0.5, "embedding_multiplier": 1, "logits_scaling": 1, "num_experts_per_tok": 2,
                    "position_embedding_type": "rope", "residual_multiplier": 1, "rms_norm_eps": 2e-3},
    "qwen35-moe": {"num_experts_per_tok": 3, "rms_norm_eps": 2e-3, "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0}},
    "nemotron-moe": {"layer_norm_epsilon": 2e-3, "n_group": 1, "norm_topk_prob": False, "num_experts_per_tok": 2, "routed_scaling_factor": 1.0,
                     "time_step_limit": [0.0, 0.6], "topk_group": 2},
    "nemotron-dense": {"layer_norm_epsilon": 2e-3, "time_step_limit": [0.0, 0.6]},
}


def silently(function, *args):
    """(result, what it printed)"""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        return function(*args), printed.getvalue()


def read(name):
    config, golden = (json.loads((FAMILY / name / file).read_text()) for file in ("config.json", "golden.json"))
    return config, make_family.read_weights(FAMILY / name), golden


def changed(config, setting, value):
    """`config` with another value, under text_config where that has the settings."""
    if "text_config" in config:
        return config | {"text_config": changed(config["text_config"], setting, value)}
    return config | {setting: value}


class FamilyFilesTest(unittest.TestCase):
    def test_the_committed_files_are_what_the_script_writes(self):
        result, printed = silently(make_family.check, FAMILY)
        self.assertEqual(result, 0, printed)

    def test_the_goldens_are_the_answers_of_the_weights_as_they_lie_in_the_files(self):
        result, printed = silently(make_family.compare, sorted(FAMILY.iterdir()))
        self.assertEqual(result, 0, printed)

    def test_a_changed_file_is_found(self):
        def one_bit(path):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)

        def one_output(path):
            golden = json.loads(path.read_text())
            golden["sequences"][-1]["outputs"][-1][-1] += 1e-9
            path.write_text(json.dumps(golden))

        changes = {
            "gla/model.safetensors: differs": one_bit, "rwkv7/config.json: differs": one_bit, "kda/golden.json: differs": one_output,
            "rwkv7/model-00002-of-00002.safetensors: missing": os.unlink, "retnet/other: unexpected": pathlib.Path.touch,
            "mamba3: unexpected": os.mkdir}
        for line, change in changes.items():
            with self.subTest(line), tempfile.TemporaryDirectory() as folder:
                copy = pathlib.Path(folder) / "family"
                shutil.copytree(FAMILY, copy)
                change(copy / line.split(":")[0])
                self.assertEqual(silently(make_family.check, copy), (1, line + "\n"))

    def test_every_tensor_changes_an_output(self):
        for name in make_family.DIRECTORIES:
            config, values, golden = read(name)
            for tensor, value in values.items():
                by = np.where(np.arange(value.size) % 2 == 0, 0.9, 1.1).reshape(value.shape)
                other = network(config, values | {tensor: value * by})
                with self.subTest(name, tensor=tensor):
                    # An expert of the last layer may not be chosen where the first sequence has outputs.
                    changes = (difference([s], [answers(other, s["tokens"], golden["positions"])]) for s in golden["sequences"][::3])
                    self.assertEqual(any(change > SEEN for change in changes), not tensor.startswith(SKIPPED))

    def test_every_setting_changes_an_output(self):
        self.assertEqual(set(SETTINGS), set(make_family.DIRECTORIES))
        for name, settings in SETTINGS.items():
            config, values, golden = read(name)
            first = golden["sequences"][0]
            for setting, other in settings.items():
                with self.subTest(name, setting=setting):
                    found = answers(network(changed(config, setting, other), values), first["tokens"], golden["positions"])
                    self.assertGreater(difference([first], [found]), SEEN)


if __name__ == "__main__":
    unittest.main()
