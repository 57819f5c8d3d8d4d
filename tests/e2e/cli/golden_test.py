# SPDX-License-Identifier: Apache-2.0
"""Every model directory with a golden.json gives the golden's numbers through `rivulet score`.

RIVULET_EXTRA_MODELS (folders of model directories, separated by colons) adds goldens that the repository does not hold.
"""

import json
import os
import pathlib
import unittest

from command import CONFORMANCE, ZOO, CommandTest, rivulet, token_lines

NLL_RELATIVE = 1e-4


def tolerance(directory):
    """Largest absolute error of an output. The goldens are computed in float64."""
    if directory.parent == ZOO:
        return 2e-3  # trained: features and outputs of large range
    name = json.loads((directory / "config.json").read_text())["name"]
    if name == "tiny-random-fourier":
        return 5e-3  # q . z comes close to zero, so that rounding is magnified
    return 2e-3 if (directory / "model.safetensors").stat().st_size > 4 << 20 else 1e-4


def model_directories():
    folders = [CONFORMANCE, ZOO]
    folders += [pathlib.Path(p) for p in os.environ.get("RIVULET_EXTRA_MODELS", "").split(":") if p]
    return sorted(golden.parent for folder in folders for golden in folder.glob("*/golden.json"))


class GoldenTest(CommandTest):
    def check(self, directory):
        golden = json.loads((directory / "golden.json").read_text())
        positions, sequences = golden["positions"], golden["sequences"]
        result = self.succeeds(
            rivulet(
                "score", "--model", directory, "--input", "-",
                "--outputs", ",".join(map(str, positions)),
                stdin=token_lines(sequence["tokens"] for sequence in sequences),
            )
        )
        lines = result.lines()
        self.assertEqual(len(lines), len(sequences))
        allowed = tolerance(directory)
        for line, want in zip(lines, sequences):
            self.assertEqual(list(line), ["nll_nats", "num_scored", "perplexity", "outputs"])
            self.assertEqual(line["num_scored"], want["num_scored"])
            self.assertLessEqual(
                abs(line["nll_nats"] - want["nll_nats"]), NLL_RELATIVE * abs(want["nll_nats"])
            )
            self.assertEqual(len(line["outputs"]), len(positions))
            for position, got_row, want_row in zip(positions, line["outputs"], want["outputs"]):
                self.assertEqual(len(got_row), len(want_row))
                error = max(abs(a - b) for a, b in zip(got_row, want_row))
                self.assertLessEqual(error, allowed, f"outputs at scored token {position}")

    def test_every_golden_is_matched(self):
        directories = model_directories()
        self.assertGreaterEqual(len(directories), 11, "the repository holds eleven")
        for directory in directories:
            with self.subTest(directory.name):
                self.check(directory)


if __name__ == "__main__":
    unittest.main()
