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
from command import BIN_DIR, SOURCE_DIR, CommandTest, Result, rivulet, token_lines
from safetensors.numpy import load_file, save_file
from torch_python import LIBRARY, TORCH_PYTHON, missing_library, missing_torch, module

CHECKPOINTS = SOURCE_DIR / "tests/e2e/tools/checkpoints"
BY_NAME = {case.name: case for case in CASES}
WITHOUT_SCALE = BY_NAME["image-generator"].flags[:-2]  # how it draws is then guessed
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
                    *case.flags, says="good",
                )  # fmt: skip
                self.compare_independently(case)
                config = json.loads((self.model / "config.json").read_text())
                for name, value in case.config.items():
                    self.assertEqual(field(config, name), value, name)

    def compare_independently(self, case: Case) -> None:
        """The same comparison without the converter's own code."""
        golden = json.loads((CHECKPOINTS / f"{case.name}.golden.json").read_text())
        result = rivulet(
            "score", "--model", self.model, "--input", "-", "--outputs", ",".join(map(str, golden["positions"])),
            stdin=token_lines(s["tokens"] for s in golden["sequences"]),
        )  # fmt: skip
        for got, want in zip(self.succeeds(result).lines(), golden["sequences"], strict=True):
            self.assertEqual(got["num_scored"], want["num_scored"])
            self.assertLessEqual(abs(got["nll_nats"] - want["nll_nats"]), 1e-4 * want["nll_nats"])
            self.assertLessEqual(np.abs(np.array(got["outputs"]) - np.array(want["outputs"])).max(), case.limit)

    def test_a_guess_that_changes_numbers_is_not_called_good(self) -> None:
        # As in the README, except for --activation gelu. The library would be given relu too, so its agreement would prove nothing.
        flags = ("--num-heads", "2", "--bos", "0")
        result = self.convert(self.committed("elu-learned"), *flags, "--no-check", code=4)
        report, _, repeated = result.out.partition("wrote ")
        self.assertIn("activation = relu", report)
        self.assertIn("guessed and not confirmed (5 settings)", repeated)
        for setting in ("activation = relu: --activation", "layer_norm_eps = 1e-05", "normalizer.eps = 1e-06", "feature_map = elu", "output.type"):
            self.assertIn(setting, repeated)
        self.assertNotIn("content", repeated, "changes no number")
        self.assertIn("NOT CONFIRMED: 5 settings", result.err)
        self.assertTrue((self.model / "model.safetensors").exists(), "kept to look at")
        result = self.convert(self.committed("elu-learned"), *flags, "--no-check", "--accept-guesses", "--force")
        self.assertIn("guessed and accepted (5 settings)", result.out)
        self.assertEqual(result.err, "")
        said = ("--activation", "relu", "--layer-norm-eps", "1e-5", "--eps", "1e-6", "--feature-map", "elu", "--output", "categorical")
        result = self.convert(self.committed("elu-learned"), *flags, *said, "--no-check", "--force")
        self.assertNotIn("not confirmed", result.out)

    def test_answers_of_other_code_confirm_what_a_score_shows(self) -> None:
        golden = CHECKPOINTS / "elu-learned.golden.json"
        right = ("--num-heads", "2", "--bos", "0", "--activation", "gelu", "--limit", "1e-4", "--expect", golden)
        self.assertNotIn("not confirmed", self.convert(self.committed("elu-learned"), *right, says="good").out)
        wrong = ("--num-heads", "2", "--bos", "0", "--expect", golden)
        result = self.convert(self.committed("elu-learned"), *wrong, "--force", code=1, says="BEYOND THE LIMITS")
        self.assertIn("activation = relu", result.out.partition("check:")[2], "it may be the guess that is wrong")
        case = BY_NAME["image-generator"]
        result = self.convert(
            self.committed(case.name), *WITHOUT_SCALE, "--expect", CHECKPOINTS / "image-generator.golden.json", "--limit", case.limit, "--force", code=4
        )
        self.assertIn("guessed and not confirmed (1 settings)\n  scale = elu", result.out)

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

    def test_the_report_says_what_was_mapped_guessed_and_not_used(self) -> None:
        surplus = self.changed("image-generator", lambda t: t.update({
            "optimizer.state.0.exp_avg": np.zeros((4, 4), "f4"), "num_batches_tracked": np.zeros(1, "i8"), "aux.weight": np.ones((3, 3), "f4"),
        }))  # fmt: skip
        flags = WITHOUT_SCALE
        self.refused(surplus, *flags, "--no-check", says=("aux.weight", "[3, 3]", "--ignore-unused"))
        out = self.convert(surplus, *flags, "--no-check", "--ignore-unused", "--accept-guesses").out
        lines = [" ".join(line.split()) for line in out.splitlines()]
        self.assertIn("transformer.layers.1.linear1.weight -> transformer.layers.1.linear1.weight [48, 16] F32", lines)
        self.assertIn("value_embedding.weight -> embedding.weight [256, 8] F32", lines)
        self.assertIn("pos_embedding.pe -> (sinusoidal, computed) [1, 43, 8] F32", lines)
        self.assertIn("scale = elu: --scale; the paper's ImageGenerator samples so", lines)
        self.assertIn("activation = relu: --activation; the library's default", lines)
        self.assertIn("not used (3 tensors)", lines)
        self.assertIn("aux.weight [3, 3] F32", lines)

    def test_element_types(self) -> None:
        case = BY_NAME["elu-learned"]
        for given, stored in (("f32", "F32"), ("f16", "F16"), ("bf16", "BF16"), ("keep", "F32")):
            with self.subTest(given):
                self.convert(self.committed(case.name), "--dtype", given, "--no-check", "--accept-guesses", "--force", *case.flags)
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
        self.convert(self.committed("favor"), "--no-check", "--accept-guesses", *BY_NAME["favor"].flags, "--alphabet", alphabet, "--name", "verse", "--eps", "1e-5",
                     "--bos", "36", "--eos", "36", "--softmax-temp", "0.5", "--layer-norm-eps", "1e-6")  # fmt: skip
        config = json.loads((self.model / "config.json").read_text())
        self.assertEqual(config["content"]["tokenizer"]["alphabet"], alphabet.read_text())
        self.assertEqual((config["name"], config["bos_token_id"], config["eos_token_id"]), ("verse", 36, 36))
        self.assertEqual(config["attention"]["normalizer"], {"type": "add_eps", "eps": 1e-5})
        self.assertEqual((config["attention"]["feature_map"]["softmax_temp"], config["layer_norm_eps"]), (0.5, 1e-6))
        self.succeeds(rivulet("score", "--model", self.model, "--input", "-", stdin='{"text":"größe"}\n'.replace("ß", "s")))

    def test_names_can_be_said_where_they_are_not_found(self) -> None:
        def rename(tensors: dict) -> None:
            tensors["a.weight"] = tensors.pop("module.embed.weight")
            tensors["b"] = tensors.pop("module.pos_embed")
            tensors["c.weight"], tensors["c.bias"] = tensors.pop("module.lm_head.weight"), tensors.pop("module.lm_head.bias")

        strange, case = self.changed("elu-learned", rename), BY_NAME["elu-learned"]
        self.refused(strange, *case.flags, says=("'b'", "[1, 48, 16]", "--ignore-unused"))
        self.refused(strange, *case.flags, "--position", "b", "--embedding", "d", says=("--embedding 'd'", "no tensor has that name"))
        self.convert(
            strange, *case.flags, "--embedding", "a.weight", "--position", "b", "--predictor", "c.weight", "--limit", "1e-4",
            "--expect", CHECKPOINTS / "elu-learned.golden.json", says="good",
        )  # fmt: skip

    def test_one_of_two_copies_can_be_chosen(self) -> None:
        def add_average(tensors: dict) -> None:
            tensors.update({name.replace("module.", "ema."): 0 * value for name, value in tensors.items()})

        checkpoint, case = self.changed("elu-learned", add_average), BY_NAME["elu-learned"]
        self.refused(checkpoint, *case.flags, says=("'ema.transformer.', 'module.transformer.'", "--prefix"))
        self.refused(checkpoint, *case.flags, "--prefix", "other.", says=("--prefix 'other.'", "'ema.transformer.'"))
        flags = (*case.flags, "--prefix", "module.transformer.")
        self.refused(checkpoint, *flags, says=("ema.", "--ignore-unused"))
        self.convert(checkpoint, *flags, "--ignore-unused", "--expect", CHECKPOINTS / "elu-learned.golden.json", "--limit", "1e-4", says="good")

    def test_a_head_without_bias_gets_zeros(self) -> None:
        checkpoint = self.changed("favor", lambda t: t.pop("predictor.bias"))
        self.convert(checkpoint, "--no-check", "--accept-guesses", *BY_NAME["favor"].flags, says="predictor.bias = zeros")

    def test_what_shapes_do_not_tell_is_asked_for(self) -> None:
        self.refused(self.committed("elu-learned"), says=("--num-heads is needed", "1, 2, 4, 8, 16 fit"))
        self.refused(self.committed("elu-learned"), "--num-heads", "3", says=("--num-heads 3", "1, 2, 4, 8, 16 fit"))
        self.refused(self.committed("favor"), says=("--feature-map is needed", "[8, 8]", "favor (n_dims 16)", "generalized_random (n_dims 8)"))
        self.refused(self.committed("favor"), "--feature-map", "elu", says=("--feature-map elu", "favor"))
        self.refused(self.committed("favor"), "--feature-map", "favor", "--num-heads", "4", says=("--num-heads 4", "2"))
        self.refused(self.committed("smoothed"), "--feature-map", "smoothed_random_fourier", "--n-dims", "17", says=("--n-dims 17", "15 or 16"))
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
            (drop_layer, ("layer 0 is missing", "N = 1")),
            (lambda t: t.pop(key), (key, "missing")),
            (lambda t: t.update({key: t[key][:-1].copy()}), (key, "[15, 16]", "[16, 16]")),
            (lambda t: t.update({"module.transformer.extra": t[key]}), ("module.transformer.extra", "--ignore-unused")),
            (lambda t: t.update({n.replace("module.", "ema."): v for n, v in dict(t).items()}), ("more than one encoder", "--prefix")),
            (lambda t: t.update({n: v[:-1].copy() for n, v in t.items() if "lm_head" in n}), ("36 outputs", "rows (37)")),
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
            ("other.safetensors", None, "layers.0.attention.query_projection.weight"),
        ):
            with self.subTest(name):
                path = self.folder / name
                if content is not None:
                    path.write_bytes(content)
                elif name.startswith("other"):
                    save_file({"conv.weight": np.ones((2, 2), "f4")}, path)
                self.refused(path, says=(name, says) if not name.startswith("other") else (says,))

    def test_an_existing_directory_stays(self) -> None:
        flags = (*BY_NAME["favor"].flags, "--no-check", "--accept-guesses")
        self.convert(self.committed("favor"), *flags)
        before = (self.model / "config.json").read_bytes()
        self.convert(self.committed("rfa"), "--activation", "gelu", "--no-check", code=2, says="--force")
        self.assertEqual((self.model / "config.json").read_bytes(), before)
        self.convert(self.committed("rfa"), "--activation", "gelu", "--no-check", "--accept-guesses", "--force")
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
                common = (checkpoint, *case.flags, "--limit", case.limit, "--force")
                self.convert(
                    *common, *library, "--golden", "--check-length", "48", "--accept-guesses", python=TORCH_PYTHON,
                    says="the same, with the guesses below on both sides",
                )  # fmt: skip
                own = json.loads((self.model / "golden.json").read_text())
                self.assertEqual(own["sequences"][0]["num_scored"], len(own["positions"]))
                self.convert(*common, "--expect", fresh / f"{case.name}.golden.json", python=TORCH_PYTHON, says="good")
                self.compare_golden(fresh / f"{case.name}.golden.json", checkpoint, case, library)

    def compare_golden(self, want: pathlib.Path, checkpoint: pathlib.Path, case: Case, library: list[str]) -> None:
        """--golden writes what make.py, which shares no code with it, answers for the same tokens."""
        answers = json.loads(want.read_text())
        tokens = self.folder / "tokens.jsonl"
        tokens.write_text(token_lines(s["tokens"] for s in answers["sequences"]))
        self.convert(
            checkpoint, *case.flags, *library, "--golden", "--force", "--check-tokens", tokens, "--limit", case.limit, "--accept-guesses",
            python=TORCH_PYTHON,
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
                        self.committed(name), *case.flags, *library, "--dtype", dtype, "--limit", "1e-4", "--force", "--accept-guesses", python=TORCH_PYTHON,
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
                    path, "--activation", "gelu", "--limit", "1e-4", "--force", "--accept-guesses", python=TORCH_PYTHON,
                    says="the same, with the guesses below on both sides",
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
