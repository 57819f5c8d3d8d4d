# SPDX-License-Identifier: Apache-2.0
"""The attack tests/stress/attack/extreme_numbers.py, on two models: the server lives, every answer is typed, another client gets its tokens."""

import sys
import unittest

from command import BIN_DIR, CONFORMANCE, SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "tests/stress/attack"))
try:
    import extreme_numbers
    import victim
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)


class ExtremeNumbersTest(unittest.TestCase):
    def test_every_number_of_every_request_is_answered(self):
        for model in ("tiny-elu-relu", "tiny-elu-learned-concat"):  # with a bos and endless; without one and bounded
            with self.subTest(model), victim.Victim(BIN_DIR / "rivulet-server", "--admin-listen", "127.0.0.1:0", model=CONFORMANCE / model) as server:
                figures = extreme_numbers.attack(server)
                self.assertTrue(server.alive(), figures)
                self.assertEqual((figures["wrong"], figures["ended_early"], figures["honest_failure"]), ([], None, None), figures)
                self.assertGreater(figures["honest_replies"], 0)
                self.assertGreater(figures["calls"], 500)
                for answer in ("OK", "OUT_OF_RANGE POSITION_OUT_OF_RANGE", "INVALID_ARGUMENT TIMEOUT_OUT_OF_RANGE"):
                    self.assertIn(answer, figures["answers"])


if __name__ == "__main__":
    unittest.main()
