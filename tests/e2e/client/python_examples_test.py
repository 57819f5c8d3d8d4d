# SPDX-License-Identifier: Apache-2.0
"""The examples of the Python client, with their own defaults, at the server that its README starts."""

import re
import tempfile
import unittest
from pathlib import Path

import rivulet_wheel  # makes rivulet what is imported below

import numpy as np

from command import SOURCE_DIR, ZOO, Server

EXAMPLES = rivulet_wheel.CLIENT / "examples"
MOLECULES = SOURCE_DIR / "tests/conformance/molformer/gp-molformer"  # with random weights


class ExamplesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.server = cls.enterClassContext(Server(ZOO / "mnist-linear", ZOO / "shakespeare-rfa", f"gp-molformer-uniq={MOLECULES}", args=("--threads", "1")))

    def run_example(self, name, *arguments):
        """Exit code, stdout and stderr; without arguments it would call the server of the README."""
        text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        self.assertIn('default="127.0.0.1:50051"', text)
        script = self.folder / f"{name}.py"
        script.write_text(text.replace("127.0.0.1:50051", self.server.target), encoding="utf-8")
        return rivulet_wheel.run(script, *arguments)

    def test_chat(self):
        code, out, err = self.run_example("chat", "--max-tokens", "30", "--seed", "1")
        self.assertEqual((code, err, out[:6], len(out)), (0, "", "ROMEO:", 6 + 30 + 1))
        code, out, err = self.run_example("chat", "\u00e9")
        self.assertEqual((code, out), (2, ""))
        self.assertIn("TEXT_NOT_IN_ALPHABET, prompt.text", err)

    def test_digits(self):
        self.endings("digits", 7)

    def test_fork_digit(self):
        digits = self.endings("fork_digit", 16)
        for digit in digits:
            self.assertEqual(digit[:14].tolist(), digits[0][:14].tolist())
            self.assertGreater(digit[:14].max(), 128)

    def endings(self, name, count):
        """Runs an example that draws so many endings of one digit; its pictures."""
        from PIL import Image

        file = self.folder / f"{name}.png"
        code, out, err = self.run_example(name, "--out", file)
        self.assertEqual((code, out, err), (0, f"{count} different endings of one digit\n", ""))
        picture = np.array(Image.open(file))
        tiles = [(y, x) for y in range(0, picture.shape[0], 29) for x in range(0, picture.shape[1], 29)]
        return [picture[y : y + 28, x : x + 28] for y, x in tiles[:count]]

    def test_molecules(self):
        code, out, err = self.run_example("molecules", "--count", "8", "CC")
        self.assertEqual((code, err), (0, ""))
        *molecules, last = out.splitlines()
        self.assertEqual((len(molecules), {molecule[:2] for molecule in molecules}), (8, {"CC"}))
        self.assertRegex(last, r"^[0-8] of 8 molecules are valid \(\d+%\), [0-8] different$")
        # Shakespeare is no chemist.
        code, out, err = self.run_example("molecules", "--model", "shakespeare-rfa", "--count", "1", "C")
        self.assertEqual((code, err, out.splitlines()[-1]), (0, "", "0 of 1 molecules are valid (0%), 0 different"))

    def test_rewind_text(self):
        code, out, err = self.run_example("rewind_text")
        self.assertEqual((code, err), (0, ""))
        _, begin, one, other, again = re.split(r"--- .*, from position (?:6|126)\n", out)
        self.assertEqual([len(text) for text in (begin, one, other, again)], [121] * 4)
        self.assertNotEqual(one, other)
        self.assertEqual(one, again)

    def test_every_example_says_how_it_is_used_where_it_cannot_run(self):
        examples = sorted(EXAMPLES.glob("*.py"))
        self.assertEqual([example.stem for example in examples], ["chat", "digits", "fork_digit", "molecules", "rewind_text"])
        for example in examples:
            for arguments, mention in (
                (["--target", "127.0.0.1:1"], "connect"),
                (["--target", "http://127.0.0.1:50051"], "got the URL"),
                (["--frob"], "--frob"),
            ):
                code, out, err = rivulet_wheel.run(example, *arguments)
                self.assertEqual((code, out), (2, ""), err)
                self.assertNotIn("Traceback", err)
                self.assertTrue(err.startswith(f"usage: {example.name} "), err)
                self.assertIn(mention, err)


if __name__ == "__main__":
    unittest.main()
