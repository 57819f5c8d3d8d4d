#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The HTTP gateway in the archive of deploy/bundle.sh."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import unittest

import rivulet_wheel
from command import BIN_DIR, SOURCE_DIR


class BundleTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def bundle(self, python):
        """Makes the bundle with `python`; the wheels in it, and stderr."""
        path = self.folder / "bundle.tar"
        done = subprocess.run(
            [SOURCE_DIR / "deploy/bundle.sh", "--build", BIN_DIR.parent, path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RIVULET_PYTHON": str(python)},
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        with tarfile.open(path) as packed:
            packed.extractall(self.folder, filter="data")
        return list((self.folder / "rivulet-bundle").glob("*.whl")), done.stderr

    def test_the_gateway_of_the_bundle_can_be_installed_and_started(self):
        before = sorted((SOURCE_DIR / "client/python").rglob("*"))
        wheels, said = self.bundle(sys.executable)
        self.assertEqual(([wheel.name for wheel in wheels], said), ([rivulet_wheel.WHEEL.name], ""))
        self.assertEqual(sorted((SOURCE_DIR / "client/python").rglob("*")), before)
        place = self.folder / "gateway"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        (site,) = place.glob("lib/python*/site-packages")
        (site / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")  # what it depends on
        rivulet_wheel.pip("--python", place / "bin/python", "install", "--no-index", f"{wheels[0]}[gateway]")
        checked = subprocess.run([place / "bin/rivulet-gateway", "--target", "127.0.0.1:1", "--check-config"], capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))

    def test_a_python_that_cannot_build_it_leaves_it_out_and_says_so(self):
        python = self.folder / "empty/bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parent.parent], check=True)
        wheels, said = self.bundle(python)
        self.assertEqual(wheels, [])
        self.assertRegex(said, f"^{python} has not all of build, [^\n]*\nbundle.sh: left out the HTTP gateway [^\n]*\n$")


if __name__ == "__main__":
    unittest.main()
