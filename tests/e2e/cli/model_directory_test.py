# SPDX-License-Identifier: Apache-2.0
"""`--model NAME=DIR` names a model, at start and at LoadModel; without NAME the directory does."""

import pathlib
import shutil
import tempfile
import unittest

from command import CONFORMANCE, SOURCE_DIR, ZOO, CommandTest, Server, rivulet

FAMILY = SOURCE_DIR / "tests/conformance/family"


class DirectoryTest(CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def copy(self, source, name):
        shutil.copytree(source, self.folder / name)
        return self.folder / name

    def described(self, place, *args):
        (line,) = self.succeeds(rivulet("models", "--model", place, "--json", *args)).lines()
        return line


class NameTest(DirectoryTest):
    def test_a_model_is_named_by_the_flag_or_after_its_directory(self):
        copy = self.copy(FAMILY / "gla", "My Model.v2")
        cache = self.copy(FAMILY / "gla", "models--org--GLA-340M/snapshots/0a1b")
        equals = self.copy(FAMILY / "gla", "a=b")
        for place, name in (
            (copy, "my-model.v2"), (f"{copy}//", "my-model.v2"), (cache, "gla-340m"), (equals, "a-b"), (f"mine={copy}", "mine"),
            (ZOO / "mnist-linear", "mnist-linear"), (f"digits={ZOO / 'mnist-linear'}", "digits"),
        ):  # fmt: skip
            with self.subTest(place):
                self.assertEqual(self.described(place, "--backend", "cpu")["name"], name)

    def test_what_is_no_name_is_refused(self):
        for place, mention in (("Mine=x", "must match"), ("=x", "must match"), ("mine=", "no directory"), (f"{'a' * 65}=x", "must match")):
            with self.subTest(place):
                self.fails(rivulet("models", "--model", place, "--backend", "cpu"), 2, f'model is "{place}"', mention)

    def test_one_directory_is_served_under_two_names_and_loaded_again_by_each(self):
        gla, rfa = FAMILY / "gla", CONFORMANCE / "tiny-rfa"
        with Server(f"one={gla}", f"two={gla}", f"three={rfa}", args=("--admin-listen", "127.0.0.1:0")) as server:
            names = {line["name"] for line in self.succeeds(rivulet("models", "--target", server.target, "--json")).lines()}
            self.assertEqual(names, {"one", "two", "three"})
            for name in ("two", "three"):
                self.succeeds(rivulet("models", "unload", name, "--target", server.admin))
                self.succeeds(rivulet("models", "load", name, "--target", server.admin))
                self.succeeds(rivulet("generate", "--target", server.target, "--model-name", name, "--tokens", "1,2", "--max-tokens", "3"))
            self.fails(rivulet("models", "load", "gla", "--target", server.admin), 2, "gla")

    def test_two_models_of_one_name_are_refused_with_the_remedy(self):
        rfa = CONFORMANCE / "tiny-rfa"
        with self.assertRaisesRegex(RuntimeError, "both hold a model named.*tiny-rfa.*NAME=DIR"):
            with Server(rfa, rfa):
                pass


if __name__ == "__main__":
    unittest.main()
