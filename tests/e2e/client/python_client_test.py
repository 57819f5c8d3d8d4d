# SPDX-License-Identifier: Apache-2.0
"""The wheel of client/python: what it holds, its types and its README."""

import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile
from importlib.util import find_spec
from pathlib import Path

import rivulet_wheel
from command import SOURCE_DIR, ZOO, Server
from rivulet_wheel import CLIENT, FOLDER, WHEEL, run

README = (CLIENT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)
EXAMPLES = sorted((CLIENT / "examples").glob("*.py"))
MODELS = (ZOO / "mnist-linear", ZOO / "shakespeare-rfa")

TYPED = """
from collections.abc import Mapping
from typing_extensions import assert_type
import numpy as np
import rivulet
from numpy.typing import NDArray
from rivulet.v1 import inference_pb2

def use(client: rivulet.Client) -> None:
    with client.generate("a", model="m", temperature=0.5, stop=["b"], logit_bias={3: 1.0}, timeout=2) as stream:
        for part in stream:
            assert_type(part, rivulet.Part)
            assert_type(part.tokens, NDArray[np.int32])
            assert_type(part.proto, inference_pb2.GenerateReply)
            assert_type(part.proto.first_position, int)
    assert_type(client.generate(np.array([1, 2])).collect(), rivulet.Generation)
    assert_type(client.score([1, 2], window=3).nll_nats, float)
    assert_type(client.generate_images(3, on_progress=rivulet.draw.live()), NDArray[np.uint8])
    assert_type(client.health(), rivulet.HealthStatus)
    with client.open_session(model="m", seed=1, idle_timeout=2.5) as session:
        assert_type(session.append("a", score=True).nll_nats, float)
        for part in session.generate(max_tokens=3, resume=False, mark="m"):
            assert_type(part, rivulet.Part)
        assert_type(session.fork(2), list[rivulet.Session])
        assert_type(client.restore_session([session.snapshot()]).same_numerics, bool | None)
    assert_type(client.sessions(), tuple[rivulet.SessionInfo, ...])
    with client.multiplex(timeout=9) as stream:
        assert_type(stream.generate("a", max_tokens=3, timeout=2), int)
        for piece in stream:
            assert_type(piece, rivulet.MultiplexPart)
            assert_type(piece.tokens, list[int])
            assert_type(piece.error, rivulet.RivuletError | None)
    for piece in client.generate_many(["a", [1]], at_once=3, seed=1):
        assert_type(piece.ended, bool)

async def use_async(client: rivulet.AsyncClient) -> None:
    async for part in client.generate(b"12"):
        assert_type(part.text, str)
    async for snapshot in client.stream_images(2):
        assert_type(snapshot.images, NDArray[np.uint8])
    assert_type(await client.generate().collect(), rivulet.Generation)
    async with await client.session("id") as session:
        assert_type(await session.generate([1], position=0).collect(), rivulet.Generation)
        assert_type(await session.fork(), list[rivulet.AsyncSession])
    assert_type(await client.load(), tuple[rivulet.ModelLoad, ...])
    assert_type((await client.server_load()).refusals, Mapping[str, int])
    async with client.multiplex() as many:
        async for piece in many:
            assert_type(piece.text, str)
"""


class PackageTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_the_wheel_holds_package_messages_and_types_and_is_what_is_imported(self):
        import rivulet

        self.assertTrue(Path(rivulet.__file__).is_relative_to(FOLDER), rivulet.__file__)
        with zipfile.ZipFile(WHEEL) as wheel:
            names = set(wheel.namelist())
            (metadata,) = (wheel.read(name).decode() for name in names if name.endswith("METADATA"))
        for module in ("v1/inference_pb2", "v1/model_pb2"):
            self.assertLessEqual({f"rivulet/{module}.py", f"rivulet/{module}.pyi"}, names)
        sources = {path.relative_to(CLIENT / "src").as_posix() for path in (CLIENT / "src/rivulet").rglob("*.py")}
        self.assertLessEqual(sources | {"rivulet/py.typed", "rivulet/LICENSE"}, names)
        self.assertIn("Requires-Python: >=3.10", metadata)
        self.assertIn(f"Version: {rivulet.__version__}\n", metadata)
        print(f"{WHEEL.name}: {WHEEL.stat().st_size} bytes", file=sys.stderr)

    def test_the_client_for_threads_says_nothing_of_asyncio(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            for name, source in (("threads/client.py", "aio/client.py"), ("threads/session.py", "aio/session.py")):
                header, _, rest = wheel.read(f"rivulet/{name}").decode().split('"""', 2)  # the docstring names the other half
                self.assertIn(f"# SPDX-License-Identifier: Apache-2.0\n# Generated from {source} by ", header)
                self.assertEqual(re.findall(r".*(?:\bawait\b|(?i:async)|event loop|coroutine|aio\.).*", rest), [])

    @unittest.skipUnless(find_spec("build"), "the package build is absent")
    def test_an_sdist_holds_what_its_wheel_is_made_of(self):
        command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", self.folder, CLIENT]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        (sdist,) = self.folder.glob("*.tar.gz")
        # pip unpacks it elsewhere, where no ../../proto is.
        with zipfile.ZipFile(rivulet_wheel.build(sdist, self.folder)) as wheel, zipfile.ZipFile(WHEEL) as expected:
            package = [name for name in expected.namelist() if name.startswith("rivulet/")]
            self.assertLessEqual({"rivulet/threads/client.py", "rivulet/threads/session.py"}, set(package))
            for name in package:
                self.assertEqual(wheel.read(name), expected.read(name), name)

    def mypy(self, *files):
        return run(
            "-m", "mypy", "--strict", "--config-file", CLIENT / "pyproject.toml", "--cache-dir", FOLDER / "mypy", *files, cwd=self.folder
        )

    @unittest.skipUnless(find_spec("mypy"), "mypy is absent")
    def test_types_are_complete_and_reach_whoever_installs_the_wheel(self):
        files = [self.folder / "typed.py", *EXAMPLES]
        files[0].write_text(TYPED)
        for number, block in enumerate(BLOCKS):
            files.append(self.folder / f"readme_{number}.py")
            files[-1].write_text(block)
        code, out, err = self.mypy("-p", "rivulet")
        self.assertEqual(code, 0, out + err)
        for file in files:
            code, out, err = self.mypy(file)
            self.assertEqual(code, 0, out + err)

    @unittest.skipUnless(find_spec("mypy"), "mypy is absent")
    def test_types_find_mistakes(self):
        bad = self.folder / "bad.py"
        for line, mention in (
            ('client.generate("a", temprature=1.0)', "temprature"),
            ("client.generate(1.5)", "float"),
            ("client.open_session().generate(num_samples=2)", "num_samples"),
            ('client.score("a").nll', "nll"),
            ("client.stream_images(2, prompt='a')", "prompt"),
        ):
            bad.write_text(f"import rivulet\ndef use(client: rivulet.Client) -> None:\n    {line}\n")
            code, out, err = self.mypy(bad)
            self.assertEqual(code, 1, line + out + err)
            self.assertIn(mention, out)

    def test_the_quick_start_of_the_readme_runs(self):
        self.assertEqual(len(BLOCKS), 6)
        with Server(*MODELS) as server:
            outputs = []
            for block in BLOCKS:
                script = self.folder / "quick_start.py"
                self.assertIn('"127.0.0.1:50051"', block)
                script.write_text(block.replace("127.0.0.1:50051", server.target))
                code, out, err = run(script, cwd=self.folder)
                self.assertEqual((code, err), (0, ""), out)
                outputs.append(out)
        self.assertIn("(4, 28, 28) uint8\nINVALID_SAMPLING sampling.temperature\n", outputs[0])
        self.assertEqual(outputs[0].count(" LENGTH\n"), 2, outputs[0])
        self.assertRegex(outputs[0], r"\n40 characters in \d")
        self.assertIn("['mnist-linear', 'shakespeare-rfa']\n(2, 28, 28) ", outputs[1])
        self.assertRegex(outputs[2], r"(?s)at 46, marks \{'begin': 6\}\n(\d+ (['\"]).{20,}?\2\n){3}.*\n46 True \['[0-9a-f]{32}'\]\n$")
        self.assertRegex(outputs[3], r"^(ROMEO|JULIET): [a-z ]{5,20}[.!]\n$")
        self.assertRegex(outputs[4], r"^0 of 91 (['\"]).*\1\n83 of 91 (['\"]).*\2\n$")
        self.assertRegex(outputs[5], r"^300 (['\"]).{20,}\1\n[\d.]+\n[\d.]+\n$")
        self.assertEqual((self.folder / "digits.png").read_bytes()[:4], b"\x89PNG")

    def test_the_server_of_the_readme_serves_what_the_quick_start_asks_for(self):
        (command,) = re.findall(r"```sh\n(build/release/bin/rivulet-server .*)\n```", README)
        for model in re.findall(r"--model (\S+)", command):
            self.assertTrue((SOURCE_DIR / model / "config.json").is_file(), model)
            self.assertIn(f'model="{Path(model).name}"', BLOCKS[0])
        self.assertIn("--listen 127.0.0.1:50051", command)

    def project(self):
        """A copy of the package and of what its build reads, without what an editable install writes."""
        copy = self.folder / "project"
        generated = {"threads": {"client.py", "session.py"}, "rivulet": {"v1"}, "gateway": {"docs"}}
        shutil.copytree(CLIENT, copy / "client/python", ignore=lambda folder, names: generated.get(Path(folder).name, ()))
        for folder in ("docs", "proto"):
            shutil.copytree(SOURCE_DIR / folder, copy / folder)
        (copy / "LICENSE").write_text("")
        return copy / "client/python"

    def test_a_build_ends_where_a_text_that_make_sync_replaces_is_absent(self):
        project = self.project()
        aio = project / "src/rivulet/aio/client.py"
        aio.write_text(aio.read_text(encoding="utf-8").replace("The client for asyncio.", "A client for asyncio."), encoding="utf-8")
        with self.assertRaisesRegex(RuntimeError, r"PAIRS: in no source: \['The client for asyncio\.[^']*'\]"):
            rivulet_wheel.build(project, self.folder)

    def test_an_editable_install_finds_what_is_generated(self):
        # What the hook writes into src for `pip install -e`, without writing into the tree that is tested.
        project, target = self.project(), self.folder / "target"
        rivulet_wheel.pip("install", "--no-build-isolation", "--no-deps", "--no-index", "--target", target, "-e", project)
        program = f"""
            import site; site.addsitedir({str(target)!r})
            import sys; sys.path.remove({str(rivulet_wheel.SITE)!r})
            import rivulet.threads.client, rivulet.threads.session, rivulet.v1.inference_pb2
            import rivulet.gateway.page as page
            assert "/docs/concepts" in [route.path for route in page.routes()]
            print(rivulet.threads.client.__file__, rivulet.threads.session.__file__)
        """
        code, out, err = run("-c", textwrap.dedent(program))
        package = project / "src/rivulet"
        self.assertEqual((code, out.strip()), (0, f"{package}/threads/client.py {package}/threads/session.py"), err)


if __name__ == "__main__":
    unittest.main()
