#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel of the programs (deploy/wheel.sh), installed into an environment that has nothing else. deploy/image_test.sh uses it on a
system that has none of our libraries."""

import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

import command
import rivulet_wheel
from command import BIN_DIR, SOURCE_DIR, ZOO, Server
from server_wheel import WHEEL

GLIBC = re.compile(r"(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv))\.so[.\d]*$")
GENERATE = ("generate", "--prompt", "ROMEO:", "--max-tokens", "30", "--seed", "1")


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        venv.create(cls.folder, with_pip=False)
        rivulet_wheel.pip("--python", cls.folder / "bin/python", "install", "--no-index", WHEEL)
        (cls.programs,) = cls.folder.glob("lib/*/site-packages/rivulet_server/bin")

    def run_program(self, *words, **options):
        return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=60, **options)

    def test_name_and_version(self):
        (version,) = re.findall(r"project\(rivulet VERSION ([\d.]+)", (SOURCE_DIR / "CMakeLists.txt").read_text())
        self.assertEqual(WHEEL.name, f"rivulet_server-{version}-py3-none-manylinux_2_36_{os.uname().machine}.whl")
        for program in ("rivulet", "rivulet-server"):
            done = self.run_program(self.folder / "bin" / program, "--version")
            self.assertEqual((done.returncode, done.stdout), (0, f"{program} {version}\n"), done)

        # Beside it, and not newer than the programs where client/python changed since.
        self.assertEqual([path.name for path in WHEEL.parent.glob("rivulet_client-*.whl")], [f"rivulet_client-{version}-py3-none-any.whl"])

    def test_serve_needs_the_other_wheel(self):
        serve = (self.folder / "bin/rivulet", "serve", ZOO / "mnist-linear", "--check-config", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        done = self.run_program(*serve)
        self.assertEqual((done.returncode, "rivulet-client[gateway]" in done.stderr, done.stdout), (2, True, ""), done)
        done = self.run_program(*serve, env={**os.environ, "RIVULET_PYTHON": str(rivulet_wheel.PYTHON), "PYTHONPATH": ""})
        self.assertEqual((done.returncode, done.stdout), (0, "the configuration is good\n"), done)

    def test_licences_are_in_it(self):
        (metadata,) = self.programs.parent.parent.glob("rivulet_server-*.dist-info")
        licences = {path.name for path in (metadata / "licenses").rglob("*") if path.is_file() and path.stat().st_size > 0}
        self.assertIn("LICENSE", licences)
        for name in [path.name for path in self.programs.parent.parent.glob("rivulet_server*/*.so*")] + ["libstdc++.so.6"]:
            name = re.sub(r"-[0-9a-f]{8}\.so", ".so", name)
            owners = self.run_program("dpkg-query", "--search", f"*/{name}").stdout
            self.assertTrue({line.split(":")[0] for line in owners.splitlines()} & licences, name)
        self.assertLessEqual({"nlohmann-json3-dev", "libcli11-dev"}, licences)  # compiled into the programs

    def test_the_server_is_the_program_itself_with_the_libraries_of_the_wheel(self):
        started = Server(ZOO / "shakespeare-rfa")
        started.command[0] = self.folder / "bin/rivulet-server"
        with started as server:
            process = pathlib.Path(f"/proc/{server.process.pid}")
            self.assertEqual((process / "exe").readlink(), self.programs.resolve() / "rivulet-server")
            libraries = {line.split()[-1] for line in (process / "maps").read_text().splitlines() if re.search(r"/\S+\.so\S*$", line)}
            self.assertGreater(len(libraries), 20)
            inside = str(self.programs.parents[1].resolve()) + "/rivulet_server"
            self.assertEqual([path for path in libraries if not path.startswith(inside) and not GLIBC.search(path)], [])
            texts = [self.run_program(program, *GENERATE, "--target", server.target) for program in (self.folder / "bin/rivulet", BIN_DIR / "rivulet")]
            self.assertEqual(texts[0].returncode, 0, texts[0])
            self.assertEqual(texts[0].stdout, texts[1].stdout)

    def test_chat_templates_are_rendered_by_the_python_of_the_wheel(self):
        chat = (self.folder / "bin/rivulet", "chat", "--model", ZOO / "shakespeare-rfa", "--chat-template", ZOO / "dialogue.jinja", "--max-tokens", "9", "--seed", "4")
        done = self.run_program(*chat, input="What news?\n")
        self.assertEqual(done.returncode, 2, done)
        self.assertRegex(done.stderr, rf"jinja2 and regex; tried: {self.folder}/bin/python3?(\.\d+)? \(exit code 1\).*rivulet-server\[chat\]")
        site = self.programs.parent.parent
        for package in ("jinja2", "markupsafe", "regex"):
            (site / package).symlink_to(pathlib.Path(importlib.util.find_spec(package).origin).parent)
            self.addCleanup((site / package).unlink)
        texts = [self.run_program(*words, *chat[1:], input="What news?\n") for words in (chat[:1], (BIN_DIR / "rivulet",))]
        self.assertEqual([(done.returncode, done.stdout) for done in texts], [(0, texts[1].stdout)] * 2, texts)

    def test_a_reader_that_goes_away_ends_it_as_it_ends_the_program(self):
        def end(program):
            read, write = os.pipe()
            os.close(read)
            with os.fdopen(write, "wb") as out:
                return subprocess.run([program, "--help"], stdout=out, stderr=subprocess.PIPE, timeout=60)

        done = end(self.folder / "bin/rivulet")
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))
        self.assertEqual(done.returncode, end(BIN_DIR / "rivulet").returncode)

    def test_it_lives_beside_the_client_package(self):
        names = []
        for wheel in (WHEEL, rivulet_wheel.WHEEL):
            with zipfile.ZipFile(wheel) as file:
                commands = next(file.read(name).decode() for name in file.namelist() if name.endswith("/entry_points.txt"))
                names.append({name.split("/")[0] for name in file.namelist()} | set(re.findall(r"^([\w-]+) =", commands, re.M)))
        self.assertLess({"rivulet_server", "rivulet", "rivulet-server"}, names[0])
        # The command `rivulet` is no module, and the package `rivulet` no command.
        self.assertEqual((names[0] & names[1]) - {"rivulet"}, set())

    def test_a_cpu_without_avx2_is_refused_with_one_line(self):
        emulator = shutil.which("qemu-x86_64")
        if emulator is None or os.uname().machine != "x86_64":
            self.skipTest("qemu-x86_64 is not installed (package qemu-user), or this machine is no x86-64")
        model = ZOO / "shakespeare-rfa"
        for program, *words in (("rivulet-server", "--model", model, "--listen", "127.0.0.1:0"), ("rivulet", *GENERATE, "--model", model)):
            done = self.run_program(emulator, "-cpu", "Westmere", self.programs / program, *words)
            self.assertEqual((done.returncode, done.stdout), (3, ""), done)
            self.assertRegex(done.stderr, rf"^{program}: (\S+: )?backend cpu needs a CPU with AVX2 and FMA, which this one lacks\n$")


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    for test, reason in result.skipped:
        print(f"skipped: {test.id()}: {reason}")
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
