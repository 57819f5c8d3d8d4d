# SPDX-License-Identifier: Apache-2.0
"""`cmake --install` leaves what a program of somebody else's needs: it is configured as client/README.md says, built and run against
a server."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from command import BIN_DIR, CONFORMANCE, SANITIZER_FLAGS, SOURCE_DIR, CommandTest, Server, rivulet

BUILD_DIR = BIN_DIR.parent


class FindPackageTest(CommandTest):
    def run_command(self, *args, **options):
        done = subprocess.run(
            [str(arg) for arg in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )
        self.assertEqual(done.returncode, 0, f"{args}\n{done.stdout}")
        return done.stdout

    def test_an_installed_client_library_is_found_and_works(self):
        with tempfile.TemporaryDirectory(dir=BUILD_DIR, prefix="find-package-") as folder:
            prefix, build = pathlib.Path(folder) / "prefix", pathlib.Path(folder) / "build"
            self.run_command("cmake", "--install", BUILD_DIR, "--prefix", prefix)
            for file in ("include/rivulet/client.h", "share/rivulet/chat_worker/main.py"):
                self.assertTrue((prefix / file).is_file(), file)
            for program in ("rivulet", "rivulet-server"):
                self.run_command(prefix / "bin" / program, "--version")
            # Nothing installed may need the source tree or the build directory.
            for file in prefix.rglob("*.cmake"):
                for tree in (SOURCE_DIR, BUILD_DIR):
                    self.assertNotIn(f"{tree}/", file.read_text(), file)
            source = pathlib.Path(folder) / "source"
            source.mkdir()
            (lines,) = re.findall(r"```cmake\n(.*?)```", (SOURCE_DIR / "client/README.md").read_text(), re.DOTALL)
            (source / "CMakeLists.txt").write_text(lines)
            shutil.copy(SOURCE_DIR / "tests/e2e/client/find_package/program.cc", source)
            self.run_command(
                "cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
                f"-DCMAKE_CXX_FLAGS={SANITIZER_FLAGS}",
                f"-DCMAKE_CXX_COMPILER={os.environ.get('RIVULET_CXX', 'c++')}",
            )
            self.run_command("cmake", "--build", build)
            model = CONFORMANCE / "tiny-rfa"
            with Server(model) as server:
                tokens, field = self.run_command(build / "program", server.target).splitlines()
            same = self.succeeds(rivulet("generate", "--model", model, "--max-tokens", "10", "--seed", "1"))
            self.assertEqual(tokens.split(), same.out.split())
            self.assertEqual(field, "sampling.top_p")


if __name__ == "__main__":
    unittest.main()
