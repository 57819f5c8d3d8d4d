# SPDX-License-Identifier: Apache-2.0
"""The TypeScript package of client/typescript: packed, installed, compiled strictly against, and run with a server. The
npm packages are those in build/typescript."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

import text_models
from command import SOURCE_DIR, ZOO, Server
from digits import MODEL, SEED, reference_digits

CLIENT = SOURCE_DIR / "client/typescript"
TESTS = pathlib.Path(__file__).parent / "typescript"
MODULES = SOURCE_DIR / "build/typescript/node_modules"
PAGES = (CLIENT / "README.md", SOURCE_DIR / "docs/typescript.md")
MODELS = (MODEL, ZOO / "shakespeare-rfa")
OPENSSL = shutil.which("openssl")
PROTO = {"RIVULET_PROTO_DIR": str(SOURCE_DIR / "proto")}
PATIENCE = 300  # seconds


def run(*command, cwd, **env):
    """The command's stdout; its whole output is the error."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make_application(folder):
    """An application in which the dependencies of the package are installed, so that npm needs no network."""
    packages = json.loads((MODULES / ".package-lock.json").read_text(encoding="utf-8"))["packages"]
    installed = {path: package for path, package in packages.items() if not package.get("dev")}
    for path in installed:
        shutil.copytree(MODULES.parent / path, folder / path, dirs_exist_ok=True)
    # npm fetches a package again whose commands are missing.
    shutil.copytree(MODULES / ".bin", folder / "node_modules/.bin", symlinks=True)
    wanted = json.loads((CLIENT / "package.json").read_text(encoding="utf-8"))["dependencies"]
    application = {"name": "app", "version": "1.0.0", "private": True, "dependencies": wanted}
    lock = {"lockfileVersion": 3, "packages": {"": application, **installed}}
    for name, content in (("package.json", application), ("package-lock.json", lock)):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")


class TypescriptTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Packs the client from a copy of its sources, and installs it into the application `app`, without a network."""
        cls.root = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        source, cls.app = cls.root / "client/typescript", cls.root / "app"
        shutil.copytree(CLIENT, source, ignore=shutil.ignore_patterns("node_modules", "dist", "gen", "LICENSE", "*.tgz"))
        (source / "node_modules").symlink_to(MODULES)
        for name in ("proto", "LICENSE"):
            (cls.root / name).symlink_to(SOURCE_DIR / name)
        quiet = {"npm_config_offline": "true", "npm_config_cache": str(cls.root / "cache"), "npm_config_update_notifier": "false"}
        run("npm", "pack", "--pack-destination", cls.root, cwd=source, **quiet)
        (cls.tarball,) = cls.root.glob("*.tgz")
        make_application(cls.app)
        run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", cls.tarball, cwd=cls.app, **quiet)
        for path in TESTS.iterdir():
            if path.suffix in (".ts", ".json"):
                shutil.copy(path, cls.app)
        cls.blocks = {}
        for page in PAGES:
            for number, block in enumerate(re.findall(r"```ts\n(.*?)```", page.read_text(encoding="utf-8"), re.S)):
                file = cls.app / f"{page.stem.lower()}_{number}.mts"
                file.write_text(block, encoding="utf-8")
                cls.blocks[file] = page
        run(MODULES / ".bin/tsc", "-p", ".", cwd=cls.app)

    def run_tests(self, name, **env):
        """Runs every test of a file."""
        tests = len(re.findall(r"^test\(", (TESTS / f"{name}.ts").read_text(encoding="utf-8"), re.M))
        self.assertGreater(tests, 0)
        out = run("node", "--test-reporter=tap", f"{name}.js", cwd=self.app, **env)
        self.assertIn(f"\n# pass {tests}\n", out, out)

    def test_the_package_holds_what_it_needs(self):
        with tarfile.open(self.tarball) as archive:
            names = {name.removeprefix("package/") for name in archive.getnames()}
        self.assertLessEqual({"package.json", "README.md", "LICENSE", "dist/index.js", "dist/index.d.ts"}, names)
        others = {name for name in names if not name.startswith("dist/")} - {"package.json", "README.md", "LICENSE"}
        self.assertEqual(others, set())

    def test_with_a_server(self):
        with Server(*MODELS) as server:
            digits = self.root / "digits.json"
            digits.write_text(json.dumps({"seed": str(SEED), "digits": reference_digits(2)}), encoding="utf-8")
            self.run_tests("server_test", RIVULET_TARGET=server.target, RIVULET_DIGITS=str(digits))

    def test_with_a_tokenizer(self):
        models = [text_models.with_tokenizer("mamba2", self.root, "text"), text_models.copy("mamba2", self.root, "plain")]
        with Server(*models) as server:
            self.run_tests("text_test", RIVULET_TARGET=server.target)

    @unittest.skipUnless(OPENSSL, "openssl is absent")
    def test_with_servers_that_fail_and_a_balancer(self):
        for name in ("server", "client"):
            run(
                OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}.test",
                "-keyout", f"{name}.key", "-out", f"{name}.pem", cwd=self.root,
            )  # fmt: skip
        with Server(*MODELS) as server:
            self.run_tests("connection_test", RIVULET_TARGET=server.target, RIVULET_CERTIFICATES=str(self.root), **PROTO)

    def test_lost_replies(self):
        self.run_tests("resume_test", **PROTO)

    def test_the_examples_of_the_pages_run(self):
        self.assertEqual(set(self.blocks.values()), set(PAGES))
        with Server(*MODELS) as server:
            for file, page in self.blocks.items():
                with self.subTest(page=page.name, block=file.stem):
                    script = file.with_suffix(".mjs")
                    text = script.read_text(encoding="utf-8")
                    script.write_text(text.replace("127.0.0.1:50051", server.target), encoding="utf-8")
                    writes = "console.log" in text
                    self.assertEqual(bool(run("node", script, cwd=self.app)), writes)


if __name__ == "__main__":
    for tool in ("node", "npm", "protoc"):
        if not shutil.which(tool):
            print(f"skipped: there is no {tool}; deploy/setup.sh --tests installs it")
            sys.exit(77)
    if not MODULES.is_dir():
        print(f"skipped: there is no {MODULES}; deploy/setup.sh --tests fills it")
        sys.exit(77)
    unittest.main()
