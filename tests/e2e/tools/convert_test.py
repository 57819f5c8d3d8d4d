# SPDX-License-Identifier: Apache-2.0
"""rivulet-convert: checkpoints of every feature map and of the paper's image model, scored like the library in float64.

The first part needs no PyTorch: committed checkpoints with the library's answers (tests/e2e/tools/checkpoints). The second makes fresh ones with
the library itself (see torch_python.py) and lets the converter check them; where that is absent the output says so.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from checkpoints.cases import CASES, Case
from command import BIN_DIR, SOURCE_DIR, CommandTest, Result, Server, rivulet, token_lines
from safetensors.numpy import load_file, save_file
from torch_python import LIBRARY, TORCH_PYTHON, missing_library, missing_torch, module

CHECKPOINTS = SOURCE_DIR / "tests/e2e/tools/checkpoints"
BY_NAME = {case.name: case for case in CASES}
QUERY = "transformer.layers.N.attention.query_projection.weight"
FOREIGN = {  # what a checkpoint of other code may call the library's tensors
    "embedding": "wte", "position": "wpe", "predictor": "head", "transformer.norm": "ln_f", "norm1": "ln_1", "norm2": "ln_2",
    "transformer.layers": "blocks", "attention.query_projection": "attn.q", "attention.key_projection": "attn.k",
    "attention.value_projection": "attn.v", "attention.out_projection": "attn.out", "linear1": "mlp.0", "linear2": "mlp.2",
}  # fmt: skip
NO_TORCH, NO_LIBRARY = missing_torch(), missing_library()


def field(config: dict, dotted: str) -> object:
    for name in dotted.split("."):
        config = config[name]
    return config


class ConvertTest(CommandTest):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model"

    def convert(self, checkpoint: object, *args: object, code: int = 0, says: str = "", **kwargs: object) -> Result:
        result = module("convert", checkpoint, self.model, *args, **kwargs)
        self.assertEqual(result.code, code, result)
        self.assertIn(says, result.out + result.err, result)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.startswith(".")], [], "temporary files stay behind")
        return result

    def refused(self, checkpoint: object, *args: object, says: tuple[str, ...], **kwargs: object) -> None:
        """Exit code 2, one line that mentions `says`, nothing written."""
        result = self.convert(checkpoint, *args, code=2, **kwargs)
        self.assertEqual(result.err.count("\n"), 1, result)
        for mention in says:
            self.assertIn(mention, result.err)
        self.assertFalse(self.model.exists())

    def write_map(self, content: object) -> pathlib.Path:
        path = self.folder / "map.json"
        path.write_text(json.dumps(content))
        return path

    def flags(self, case: Case, checkpoint: pathlib.Path, **kwargs: object) -> tuple[object, ...]:
        """The flags of a case; where its names are not known, they are in a map, which completes the start that the error prints."""
        embedding, position, head = case.names
        if head.endswith("predictor"):
            return case.flags
        start = json.loads(self.convert(checkpoint, "--force", code=2, **kwargs).out)
        form = start["tensors"][QUERY].removesuffix(case.encoder + QUERY.removeprefix("transformer."))  # 'state_dict.', or as the trainer's file has it
        ends = {"embedding.weight": embedding, "position.weight": position, "predictor.weight": f"{head}.weight", "predictor.bias": f"{head}.bias"}
        start["tensors"] |= {key: form + name for key, name in ends.items()}
        start["settings"] = {flag.removeprefix("--"): value for flag, value in zip(case.flags[::2], case.flags[1::2], strict=True)}
        return ("--map", self.write_map(start))

    def committed(self, name: str) -> pathlib.Path:
        return CHECKPOINTS / f"{name}.safetensors"

    def changed(self, name: str, change: object) -> pathlib.Path:
        """A copy of a committed checkpoint whose dictionary of tensors `change` has changed."""
        tensors = load_file(self.committed(name))
        change(tensors)
        path = self.folder / "changed.safetensors"
        save_file(tensors, path)
        return path


class CommittedCheckpointsTest(ConvertTest):
    def test_every_map_scores_like_the_library(self) -> None:
        self.assertEqual({case.map for case in CASES},
                         {"elu", "random_fourier", "smoothed_random_fourier", "favor", "generalized_random", "rfa"})  # fmt: skip
        for case in CASES:
            with self.subTest(case.name):
                self.convert(
                    self.committed(case.name), "--expect", CHECKPOINTS / f"{case.name}.golden.json", "--limit", case.limit, "--force",
                    *self.flags(case, self.committed(case.name)), says="good",
                )  # fmt: skip
                self.compare_independently(case, "--model", self.model)
                config = json.loads((self.model / "config.json").read_text())
                for name, value in case.config.items():
                    self.assertEqual(field(config, name), value, name)

    def compare_independently(self, case: Case, *where: object) -> None:
        """The same comparison without the converter's own code."""
        golden = json.loads((CHECKPOINTS / f"{case.name}.golden.json").read_text())
        result = rivulet(
            "score", *where, "--input", "-", "--outputs", ",".join(map(str, golden["positions"])),
            stdin=token_lines(s["tokens"] for s in golden["sequences"]),
        )  # fmt: skip
        for got, want in zip(self.succeeds(result).lines(), golden["sequences"], strict=True):
            self.assertEqual(got["num_scored"], want["num_scored"])
            self.assertLessEqual(abs(got["nll_nats"] - want["nll_nats"]), 1e-4 * want["nll_nats"])
            self.assertLessEqual(np.abs(np.array(got["outputs"]) - np.array(want["outputs"])).max(), case.limit)

    def test_a_map_as_the_error_describes_it_is_served_with_the_right_numbers(self) -> None:
        def foreign(name: str) -> str:
            for ours, theirs in FOREIGN.items():
                name = name.replace(ours, theirs)
            return name.removeprefix("module.")

        checkpoint = self.changed("elu-learned", lambda t: [t.update({foreign(name): t.pop(name)}) for name in list(t)])
        golden = CHECKPOINTS / "elu-learned.golden.json"
        result = self.convert(checkpoint, "--expect", golden, code=2)
        self.assertFalse(self.model.exists())
        for mention in ("no tensor is called ...layers.0.attention.query_projection.weight", "--map FILE", "> FILE", "  wpe  [1, 48, 16] F32\n",
                        "  blocks.N.mlp.0.weight  [48, 16] F32  (N: 0 to 1)\n"):  # fmt: skip
            self.assertIn(mention, result.err)
        content = json.loads(result.out)
        self.assertEqual(content["settings"], dict.fromkeys(("num-heads", "activation", "bos"), "?"))
        self.assertEqual(len(content["tensors"]), 22)
        content["tensors"] = {key: foreign(key).replace("wpe.weight", "wpe") for key in content["tensors"]}
        content["settings"] = {"num-heads": 2, "activation": "gelu", "bos": 0}
        self.convert(checkpoint, "--expect", golden, "--map", self.write_map(content), "--limit", "1e-4", says="good")
        with Server(self.model) as server:
            self.compare_independently(BY_NAME["elu-learned"], "--target", server.target)
        self.convert(checkpoint, "--expect", golden, "--map", self.write_map(content), "--num-heads", "4", "--force", code=1)  # the flag counts

    def test_bad_maps_are_refused_by_key_and_value(self) -> None:
        checkpoint = self.committed("elu-concat")
        good = json.loads(self.flags(BY_NAME["elu-concat"], checkpoint)[1].read_text())
        query = good["tensors"][QUERY]

        def tensors(key: str, value: object) -> dict:
            return good | {"tensors": good["tensors"] | {key: value}}

        def settings(key: str, value: object) -> dict:
            return good | {"settings": {key: value}}

        for content, *says in (
            ([], "an object"),
            (good | {"tensor": {}}, '"tensor" is {}', '"tensors" and "settings"'),
            (good | {"settings": 3}, '"settings" is 3'),
            ({"settings": {}}, '"tensors" has no "embedding.weight"'),
            (tensors("embed.weight", "a"), '"embed.weight" is "a"', "has no such tensor"),
            (tensors("embedding.weight", "?"), '"embedding.weight" is "?"', "tensor '?' is missing"),
            (tensors("embedding.weight", None), '"embedding.weight" is null', "name of a tensor"),
            (tensors(QUERY, "?"), f'"{QUERY}" is "?"', "N, the number of the layer"),
            (tensors(QUERY, query.replace("query", "q")), f'"{QUERY}" is "model.', "layers.0.attention.q_projection.weight' is missing"),
            (settings("num_heads", 2), '"num_heads" is 2', "a flag"),
            (settings("num-heads", "?"), '"num-heads" is "?"', "positive integer"),
            (settings("activation", ["relu"]), '"activation" is ["relu"]', "relu"),
            (settings("name", None), '"name" is null', "string or number"),
            (settings("stabilize", True), '"stabilize" is true'),
        ):
            with self.subTest(says):
                self.refused(checkpoint, "--map", self.write_map(content), says=("--map", "map.json", *says))
        self.refused(checkpoint, "--map", checkpoint, says=("--map", "elu-concat.safetensors", "utf-8"))
        self.refused(checkpoint, "--map", self.folder / "none", says=("--map", "No such file"))

    def test_settings_that_no_tensor_states_are_listed(self) -> None:
        flags = ("--num-heads", "2", "--activation", "gelu", "--bos", "0", "--no-check")
        report = self.convert(self.committed("elu-learned"), *flags).out.partition("assumed (7 settings)\n")[2]
        for setting in ("layer_norm_eps = 1e-05: --layer-norm-eps", "normalizer.eps = 1e-06", "feature_map = elu", "output.type", "content"):
            self.assertIn(setting, report)
        said = ("--layer-norm-eps", "1e-5", "--eps", "1e-6", "--feature-map", "elu", "--output", "categorical")
        self.convert(self.committed("elu-learned"), *flags, *said, "--force", says="assumed (3 settings)\n  eos_token_id = none")

    def test_the_check_finds_a_wrong_setting(self) -> None:
        for name, *wrong in (
            ("elu-learned", "--num-heads", "4", "--activation", "gelu", "--bos", "0"),
            ("elu-learned", "--num-heads", "2", "--activation", "relu", "--bos", "0"),
            ("elu-learned", "--num-heads", "2", "--activation", "gelu", "--bos", "1"),
            ("favor", "--activation", "gelu", "--feature-map", "random_fourier"),
            ("smoothed", "--activation", "gelu", "--feature-map", "smoothed_random_fourier", "--n-dims", "16", "--smoothing", "0.75"),
            ("smoothed", "--activation", "gelu", "--feature-map", "smoothed_random_fourier", "--n-dims", "15", "--softmax-temp", "0.5"),
            ("generalized", "--activation", "relu", "--feature-map", "generalized_random"),
            ("rfa", "--activation", "gelu", "--clamp-min", "0.5"),
        ):
            with self.subTest(wrong):
                golden = CHECKPOINTS / f"{name}.golden.json"
                self.convert(self.committed(name), "--expect", golden, "--force", *wrong, code=1, says="BEYOND THE LIMITS")

    def test_the_report_says_what_was_mapped_assumed_and_not_used(self) -> None:
        surplus = self.changed("image-generator", lambda t: t.update({
            "optimizer.state.0.exp_avg": np.zeros((4, 4), "f4"), "num_batches_tracked": np.zeros(1, "i8"), "aux.weight": np.ones((3, 3), "f4"),
        }))  # fmt: skip
        flags = BY_NAME["image-generator"].flags[:-2]  # without --scale
        self.refused(surplus, *flags, "--no-check", says=("aux.weight", "[3, 3]", "--ignore-unused", "--map"))
        out = self.convert(surplus, *flags, "--no-check", "--ignore-unused").out
        lines = [" ".join(line.split()) for line in out.splitlines()]
        self.assertIn("transformer.layers.1.linear1.weight -> transformer.layers.1.linear1.weight [48, 16] F32", lines)
        self.assertIn("value_embedding.weight -> embedding.weight [256, 8] F32", lines)
        self.assertIn("pos_embedding.pe -> (sinusoidal, computed) [1, 43, 8] F32", lines)
        self.assertIn("scale = elu: --scale; the paper's ImageGenerator samples so", lines)
        self.assertIn("activation = relu: --activation; the paper's ImageGenerator has it", lines)
        self.assertIn("not used (3 tensors)", lines)
        self.assertIn("aux.weight [3, 3] F32", lines)

    def test_element_types(self) -> None:
        case = BY_NAME["elu-learned"]
        for given, stored in (("f32", "F32"), ("f16", "F16"), ("bf16", "BF16"), ("keep", "F32")):
            with self.subTest(given):
                self.convert(self.committed(case.name), "--dtype", given, "--no-check", "--force", *case.flags)
                raw = (self.model / "model.safetensors").read_bytes()
                header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
                self.assertEqual({e["dtype"] for n, e in header.items() if n != "__metadata__"}, {stored})
                golden = json.loads((CHECKPOINTS / f"{case.name}.golden.json").read_text())
                sequence = golden["sequences"][0]
                result = rivulet("score", "--model", self.model, "--input", "-", stdin=token_lines([sequence["tokens"]]))
                (line,) = self.succeeds(result).lines()
                relative = abs(line["nll_nats"] - sequence["nll_nats"]) / sequence["nll_nats"]
                self.assertLess(relative, {"F32": 1e-6, "F16": 1e-3, "BF16": 1e-2}[stored])
                if stored != "F32":
                    self.assertGreater(relative, 1e-7, "rounding must show")

    def test_content_and_settings_reach_the_configuration(self) -> None:
        alphabet = self.folder / "alphabet.txt"
        alphabet.write_text("\n abcdefghijklmnopqrstuvwxyzäöü?!.,;'")
        self.convert(self.committed("favor"), "--no-check", *BY_NAME["favor"].flags, "--alphabet", alphabet, "--name", "verse", "--eps", "1e-5",
                     "--bos", "36", "--eos", "36", "--softmax-temp", "0.5", "--layer-norm-eps", "1e-6")  # fmt: skip
        config = json.loads((self.model / "config.json").read_text())
        self.assertEqual(config["content"]["tokenizer"]["alphabet"], alphabet.read_text())
        self.assertEqual((config["name"], config["bos_token_id"], config["eos_token_id"]), ("verse", 36, 36))
        self.assertEqual(config["attention"]["normalizer"], {"type": "add_eps", "eps": 1e-5})
        self.assertEqual((config["attention"]["feature_map"]["softmax_temp"], config["layer_norm_eps"]), (0.5, 1e-6))
        self.succeeds(rivulet("score", "--model", self.model, "--input", "-", stdin='{"text":"größe"}\n'.replace("ß", "s")))

    def test_one_of_two_copies_can_be_chosen(self) -> None:
        def add_average(tensors: dict) -> None:
            tensors.update({name.replace("module.", "ema."): 0 * value for name, value in tensors.items()})

        checkpoint, case = self.changed("elu-learned", add_average), BY_NAME["elu-learned"]
        start = self.convert(checkpoint, *case.flags, code=2, says="more than one encoder: 'ema.transformer.', 'module.transformer.'").out
        self.assertFalse(self.model.exists())
        flags = (*case.flags, "--map", self.write_map({"tensors": json.loads(start.replace("ema.", "module."))["tensors"]}))
        self.refused(checkpoint, *flags, says=("ema.", "--ignore-unused"))
        self.convert(checkpoint, *flags, "--ignore-unused", "--expect", CHECKPOINTS / "elu-learned.golden.json", "--limit", "1e-4", says="good")

    def test_a_head_without_bias_gets_zeros(self) -> None:
        checkpoint = self.changed("favor", lambda t: t.pop("predictor.bias"))
        self.convert(checkpoint, "--no-check", *BY_NAME["favor"].flags, says="predictor.bias = zeros")

    def test_what_shapes_do_not_tell_is_asked_for(self) -> None:
        self.refused(self.committed("elu-learned"), says=("--num-heads is needed", "1, 2, 4, 8, 16 fit"))
        self.refused(self.committed("elu-learned"), "--num-heads", "3", says=("--num-heads 3", "1, 2, 4, 8, 16 fit"))
        self.refused(self.committed("elu-learned"), "--num-heads", "2", says=("--activation is needed", "relu", "gelu"))
        plain = self.changed("image-generator", lambda t: t.update({"embedding.weight": t.pop("value_embedding.weight")}))
        self.refused(plain, "--num-heads", "2", "--activation", "relu", says=("--scale is needed", "exp or elu"))
        self.refused(self.committed("favor"), says=("--feature-map is needed", "[8, 8]", "favor (n_dims 16)", "generalized_random (n_dims 8)"))
        self.refused(self.committed("favor"), "--feature-map", "elu", says=("--feature-map elu", "favor"))
        self.refused(self.committed("favor"), "--feature-map", "favor", "--num-heads", "4", says=("--num-heads 4", "2"))
        self.refused(self.committed("smoothed"), "--feature-map", "smoothed_random_fourier", "--n-dims", "17", says=("--n-dims 17", "15 or 16"))
        self.refused(self.committed("smoothed"), "--feature-map", "smoothed_random_fourier", says=("--n-dims is needed", "15 or 16"))
        self.refused(self.committed("favor"), "--feature-map", "favor", "--stabilize", says=("stabilize", "cannot be represented"))

    def test_bad_checkpoints_are_refused_by_name(self) -> None:
        case = BY_NAME["elu-learned"]
        key = "module.transformer.layers.1.attention.key_projection.weight"

        def nan(tensors: dict) -> None:
            tensors[key][2, 3] = np.nan

        def drop_layer(tensors: dict) -> None:
            for name in [n for n in tensors if ".layers.0." in n]:
                del tensors[name]

        for change, says in (
            (nan, ("nan", "finite", "weight 35", "layers.1.attention.key_projection.weight")),
            (drop_layer, ("module.transformer.layers.0.", "is missing")),
            (lambda t: t.pop(key), (key, "missing")),
            (lambda t: t.update({key: t[key][:-1].copy()}), (key, "[15, 16]", "[16, 16]")),
            (lambda t: t.update({"module.transformer.extra": t[key]}), ("module.transformer.extra", "--ignore-unused")),
            (lambda t: t.update({n: v[:-1].copy() for n, v in t.items() if "predictor" in n}), ("36 outputs", "rows (37)")),
            (lambda t: t.update({key: np.ones((16, 16), "i4")}), (key, "I32")),
        ):
            with self.subTest(says):
                self.refused(self.changed("elu-learned", change), *case.flags, says=says)
        zero = self.changed("favor", lambda t: t.update({n: v * 0 for n, v in t.items() if "omega" in n}))
        self.refused(zero, *BY_NAME["favor"].flags, says=("omega", "all zeros"))
        huge = self.changed("elu-learned", lambda t: t[key].fill(1e6))
        self.refused(huge, *case.flags, "--dtype", "f16", says=("key_projection", "F16", "--dtype"))

    def test_bad_files_are_refused_by_name(self) -> None:
        for name, content, says in (
            ("absent.safetensors", None, "no such file"),
            ("odd.txt", b"x", ".safetensors"),
            ("cut.safetensors", self.committed("favor").read_bytes()[:999], "not a safetensors file"),
        ):
            with self.subTest(name):
                path = self.folder / name
                if content is not None:
                    path.write_bytes(content)
                self.refused(path, says=(name, says))

    def test_an_existing_directory_stays(self) -> None:
        flags = (*BY_NAME["favor"].flags, "--no-check")
        self.convert(self.committed("favor"), *flags)
        before = (self.model / "config.json").read_bytes()
        self.convert(self.committed("rfa"), "--activation", "gelu", "--no-check", code=2, says="--force")
        self.assertEqual((self.model / "config.json").read_bytes(), before)
        self.convert(self.committed("rfa"), "--activation", "gelu", "--no-check", "--force")
        self.assertIn('"rfa"', (self.model / "config.json").read_text())
        (self.model / "thesis.tex").write_text("mine")
        self.convert(self.committed("favor"), *flags, "--force", code=2, says="thesis.tex")
        self.assertTrue((self.model / "thesis.tex").exists())

    def test_an_absent_check_is_told_and_keeps_the_directory(self) -> None:
        flags, golden = BY_NAME["favor"].flags, CHECKPOINTS / "favor.golden.json"
        result = self.convert(self.committed("favor"), *flags, "--expect", golden, code=3, says="NOT CHECKED: the command rivulet", path="/nowhere")
        self.assertIn("NOT CHECKED", result.err)
        self.assertTrue((self.model / "model.safetensors").exists())
        result = self.convert(self.committed("favor"), *flags, "--force", "--library", self.folder, code=3)
        self.assertIn("NOT CHECKED", result.err)
        self.assertNotIn("good", result.out)


def missing_said(test: type[ConvertTest], reason: str | None) -> type[ConvertTest]:
    """Skips a class where something is absent, and says so on stdout, which ctest keeps."""
    if reason is not None:
        print(f"SKIPPED: {test.__name__}: {reason}", flush=True)
    return unittest.skipIf(reason is not None, reason or "")(test)


class LibraryTest(ConvertTest):
    def test_fresh_checkpoints_of_trainers_match_the_library(self) -> None:
        fresh = self.folder / "fresh"
        fresh.mkdir()
        make = [TORCH_PYTHON, CHECKPOINTS / "make.py", "--out", fresh, "--pytorch", *(["--library", LIBRARY] if LIBRARY else [])]
        subprocess.run(make, check=True, capture_output=True, timeout=300)
        library = ["--library", LIBRARY] if LIBRARY else []
        self.assertEqual({p.suffix for p in fresh.iterdir()}, {".json", ".pt", ".pth", ".ckpt", ".bin"})
        for case in CASES:
            with self.subTest(case.name):
                (checkpoint,) = (p for p in fresh.glob(f"{case.name}.*") if p.suffix != ".json")
                flags = self.flags(case, checkpoint, python=TORCH_PYTHON)
                common = (checkpoint, *flags, "--limit", case.limit, "--force")
                self.convert(
                    *common, *library, "--golden", "--check-length", "48", python=TORCH_PYTHON,
                    says="the same, with the assumed settings on both sides",
                )  # fmt: skip
                own = json.loads((self.model / "golden.json").read_text())
                self.assertEqual(own["sequences"][0]["num_scored"], len(own["positions"]))
                self.convert(*common, "--expect", fresh / f"{case.name}.golden.json", python=TORCH_PYTHON, says="good")
                self.compare_golden(fresh / f"{case.name}.golden.json", checkpoint, case, *flags, *library)

    def compare_golden(self, want: pathlib.Path, checkpoint: pathlib.Path, case: Case, *flags: object) -> None:
        """--golden writes what make.py, which shares no code with it, answers for the same tokens."""
        answers = json.loads(want.read_text())
        tokens = self.folder / "tokens.jsonl"
        tokens.write_text(token_lines(s["tokens"] for s in answers["sequences"]))
        self.convert(
            checkpoint, *flags, "--golden", "--force", "--check-tokens", tokens, "--limit", case.limit, python=TORCH_PYTHON,
        )  # fmt: skip
        own = json.loads((self.model / "golden.json").read_text())
        rows = [own["positions"].index(p) for p in answers["positions"]]
        for mine, theirs in zip(own["sequences"], answers["sequences"], strict=True):
            self.assertAlmostEqual(mine["nll_nats"], theirs["nll_nats"], delta=1e-9 * theirs["nll_nats"])
            np.testing.assert_allclose(np.array(mine["outputs"])[rows], theirs["outputs"], atol=1e-9)

    def test_rounded_weights_are_checked_as_rounded(self) -> None:
        library = ["--library", LIBRARY] if LIBRARY else []
        for dtype in ("f16", "bf16"):
            for name in ("elu-learned", "image-generator", "favor"):
                with self.subTest((dtype, name)):
                    case = BY_NAME[name]
                    self.convert(
                        self.committed(name), *case.flags, *library, "--dtype", dtype, "--limit", "1e-4", "--force", python=TORCH_PYTHON,
                        says=f"rounding to {dtype} changes raw outputs",
                    )  # fmt: skip


class PickleTest(ConvertTest):
    def torch_file(self, statements: str) -> pathlib.Path:
        path = self.folder / "file.pt"
        subprocess.run([TORCH_PYTHON, "-c", f"import torch\n{statements}\n", path], check=True, capture_output=True, timeout=120)
        return path

    def test_a_pickle_that_would_run_code_is_refused_unrun(self) -> None:
        witness = self.folder / "witness"
        path = self.torch_file(
            f"import pathlib, sys\nclass Bad:\n  def __reduce__(self): return (pathlib.Path.touch, (pathlib.Path({str(witness)!r}),))\n"
            "torch.save({'state': Bad()}, sys.argv[1])"
        )
        subprocess.run([TORCH_PYTHON, "-c", "import sys, torch; torch.load(sys.argv[1], weights_only=False)", path], check=True, timeout=120)
        self.assertTrue(witness.exists(), "the pickle must be one that runs code")
        witness.unlink()
        self.refused(path, python=TORCH_PYTHON, says=("file.pt", "could run code", "state_dict"))
        self.assertFalse(witness.exists())

    def test_damaged_files_are_refused(self) -> None:
        path = self.folder / "file.pt"
        path.write_bytes(b"PK\x03\x04 not a checkpoint")
        self.refused(path, python=TORCH_PYTHON, says=("file.pt", "not a PyTorch checkpoint"))
        self.refused(self.torch_file("import sys; torch.save({'a': 1}, sys.argv[1])"), python=TORCH_PYTHON, says=("holds no tensor",))

    def test_double_and_bfloat_checkpoints(self) -> None:
        for dtype, kept in (("float64", "F32"), ("bfloat16", "BF16"), ("float16", "F16")):
            with self.subTest(dtype):
                path = self.torch_file(
                    f"import sys; from safetensors.torch import load_file; t = load_file({str(self.committed('rfa'))!r})\n"
                    f"torch.save({{n: v.to(torch.{dtype}) for n, v in t.items()}}, sys.argv[1])"
                )
                self.convert(
                    path, "--activation", "gelu", "--limit", "1e-4", "--force", python=TORCH_PYTHON,
                    says="the same, with the assumed settings on both sides",
                )  # fmt: skip
                self.assertIn(f'"{kept}"'.encode(), (self.model / "model.safetensors").read_bytes()[:400])


class WithoutTorchTest(ConvertTest):
    def test_a_pytorch_file_says_that_torch_is_needed(self) -> None:
        path = self.folder / "weights.pt"
        path.write_bytes(b"PK\x03\x04")
        result = self.convert(path, code=3)
        self.assertIn("needs PyTorch", result.err)
        self.assertIn(".safetensors", result.err)


LibraryTest = missing_said(LibraryTest, NO_LIBRARY)
PickleTest = missing_said(PickleTest, NO_TORCH)
OWN_TORCH = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0
WithoutTorchTest = missing_said(WithoutTorchTest, "this interpreter has torch" if OWN_TORCH else None)

if __name__ == "__main__":
    if not (BIN_DIR / "rivulet").exists():
        raise SystemExit(f"{BIN_DIR}/rivulet is not built")
    unittest.main()
