# SPDX-License-Identifier: Apache-2.0
"""A client on Node.js: runs grpc_js/client_test.js, with the packages in build/node, against a server."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from command import SOURCE_DIR, ZOO, Server
from digits import MODEL, SEED, reference_digits

SCRIPT = pathlib.Path(__file__).parent / "grpc_js/client_test.js"
MODULES = SOURCE_DIR / "build/node/node_modules"


class GrpcJsTest(unittest.TestCase):
    def test_a_client_on_node_passes_its_tests(self):
        tests = len(re.findall(r"^test\b", SCRIPT.read_text(), re.M))
        self.assertGreater(tests, 0)
        with tempfile.TemporaryDirectory() as folder, Server(MODEL, ZOO / "shakespeare-rfa") as server:
            digits = pathlib.Path(folder) / "digits.json"
            digits.write_text(json.dumps({"seed": str(SEED), "digits": reference_digits(2)}))
            done = subprocess.run(
                ["node", "--test-reporter=tap", SCRIPT],
                env=os.environ
                | {
                    "NODE_PATH": str(MODULES),
                    "RIVULET_TARGET": server.target,
                    "RIVULET_PROTO_DIR": str(SOURCE_DIR / "proto"),
                    "RIVULET_DIGITS": str(digits),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=500,
            )
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(f"\n# pass {tests}\n", done.stdout)


if __name__ == "__main__":
    if not shutil.which("node"):
        print("skipped: there is no node; deploy/setup.sh --tests installs it")
        sys.exit(77)
    if not MODULES.is_dir():
        print(f"skipped: there is no {MODULES}; deploy/setup.sh --tests fills it")
        sys.exit(77)
    unittest.main()
