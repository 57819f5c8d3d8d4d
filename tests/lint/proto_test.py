#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""proto/ under buf: its rules of style hold, and nothing that the last release had has changed. Each rule is proved on a bad copy."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
RELEASES = PROTO / "releases"
INFERENCE = "rivulet/v1/inference.proto"
# A package per platform; npm installs the one that runs here.
BUF = next(iter((ROOT / "build/node/node_modules/@bufbuild").glob("buf-*/bin/buf")), None)


def newest_release(names):
    """The file of the highest version among names like "0.10.0.binpb"."""
    return max(names, key=lambda name: [int(part) for part in name.removesuffix(".binpb").split(".")])


def released_versions(changelog):
    """Versions that have a heading of their own: "## 1.2.3", not "## Unreleased (1.2.3)"."""
    return re.findall(r"^## \[?v?(\d+\.\d+\.\d+)\b", changelog, re.M)


class ProtoTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.image = RELEASES / newest_release([path.name for path in RELEASES.iterdir()])

    def buf(self, *args):
        """(file, rule, message) of everything that buf objects to. It has an empty home and no way to a network."""
        nowhere = "http://127.0.0.1:1"
        env = os.environ | {"HOME": str(self.folder), "BUF_CACHE_DIR": str(self.folder / "cache"),
                            "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere, "ALL_PROXY": nowhere}
        done = subprocess.run([BUF, *map(str, args), "--error-format=json"], env=env, capture_output=True, text=True)
        self.assertIn(done.returncode, (0, 100), done)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual((done.returncode == 0, done.stderr), (not found, ""), done)
        return [(entry.get("path", ""), entry["type"], entry["message"]) for entry in found]

    def changed(self, before, after, name=INFERENCE):
        """A copy of proto/ in which `before`, which stands once in file `name`, is `after`."""
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "proto"
        shutil.copytree(PROTO, copy)
        text = (copy / name).read_text(encoding="utf-8")
        self.assertEqual(text.count(before), 1, before)
        (copy / name).write_text(text.replace(before, after), encoding="utf-8")
        return copy

    def test_style_holds(self):
        self.assertEqual(self.buf("lint", PROTO), [])

    def test_bad_style_is_reported(self):
        for before, after, rule in (
            ("optional int32 top_k = 2;", "optional int32 topK = 2;", "FIELD_LOWER_SNAKE_CASE"),
            ("message TopLogprobs {", "message topThings {}\nmessage TopLogprobs {", "MESSAGE_PASCAL_CASE"),
            ("FINISH_REASON_LENGTH = 1;", "LENGTH = 1;", "ENUM_VALUE_PREFIX"),
            ("rpc GetLoad(GetLoadRequest)", "rpc get_load(GetLoadRequest)", "RPC_PASCAL_CASE"),
            ("  // The models that this server serves.\n", "", "COMMENT_RPC"),
            ("rpc GetLoad(GetLoadRequest)", "rpc GetLoad(GetModelRequest)", "RPC_REQUEST_RESPONSE_UNIQUE"),
        ):
            with self.subTest(rule):
                found = self.buf("lint", self.changed(before, after))
                self.assertIn(rule, [kind for _, kind, _ in found])
                self.assertEqual({path.rpartition("proto/")[2] for path, _, _ in found}, {INFERENCE})

    def test_nothing_of_the_last_release_has_changed(self):
        self.assertEqual(self.buf("breaking", PROTO, "--against", self.image), [])

    def test_a_breaking_change_is_reported(self):
        seed = "optional uint64 seed = 9;"
        cases = (
            ("renumbered field", seed, "optional uint64 seed = 10;", "FIELD_NO_DELETE"),
            ("removed field", seed, "", "FIELD_NO_DELETE"),
            ("removed and reserved field", seed, 'reserved 9;\nreserved "seed";', "FIELD_NO_DELETE"),
            ("renamed field", seed, "optional uint64 the_seed = 9;", "FIELD_SAME_NAME"),
            ("other type", seed, "optional int64 seed = 9;", "FIELD_SAME_TYPE"),
            ("lost optional", seed, "uint64 seed = 9;", "FIELD_SAME_CARDINALITY"),
            ("out of its oneof", "string text = 3;\n    // For models whose content is an image: the first",
             "}\n  string text = 3;\n  oneof other {\n    // For models whose content is an image: the first", "FIELD_SAME_ONEOF"),
            ("removed enum value", "FINISH_REASON_STOP_STRING = 3;", "", "ENUM_VALUE_NO_DELETE"),
            ("removed RPC", "rpc GetLoad(GetLoadRequest) returns (GetLoadReply);", "", "RPC_NO_DELETE"),
            ("no longer streaming", "returns (stream GenerateReply)", "returns (GenerateReply)", "RPC_SAME_SERVER_STREAMING"),
        )
        for what, before, after, rule in cases:
            with self.subTest(what):
                found = self.buf("breaking", self.changed(before, after), "--against", self.image)
                self.assertIn(rule, [kind for _, kind, _ in found], found)

    def test_an_addition_is_not_breaking(self):
        copy = self.changed("optional uint64 seed = 9;", "optional uint64 seed = 9;\n  optional float typical_p = 10;")
        self.assertEqual(self.buf("breaking", copy, "--against", self.image), [])
        self.assertEqual(self.buf("lint", copy), [])

    def test_every_release_left_its_image(self):
        self.assertEqual(newest_release(["0.9.0.binpb", "0.10.0.binpb", "0.2.11.binpb"]), "0.10.0.binpb")
        example = "# Changelog\n## Unreleased (0.3.0)\n## 0.2.0, 2026-12-01\n- text 0.1.5\n## [0.1.0]\n"
        self.assertEqual(released_versions(example), ["0.2.0", "0.1.0"])
        images = {path.name for path in RELEASES.iterdir()}
        released = released_versions((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
        self.assertEqual([version for version in released if f"{version}.binpb" not in images], [])

    def test_the_packages_name_no_host(self):
        # Links to sponsors are written by npm and not needed by it: `npm run lock` there takes them out.
        for folder in ("tests/e2e/client/grpc_js", "client/typescript"):
            lock = (ROOT / folder / "package-lock.json").read_text(encoding="utf-8")
            self.assertEqual(re.findall(r"\w+://[^\"]*", lock), [])


if __name__ == "__main__":
    if BUF is None:
        print(f"skipped: no buf in {ROOT}/build/node; deploy/setup.sh --tests puts it there")
        sys.exit(77)
    unittest.main()
