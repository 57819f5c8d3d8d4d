# SPDX-License-Identifier: Apache-2.0
"""`rivulet models --model DIR` describes a directory without reading weights. `--model NAME=DIR` names a model; without NAME the directory does."""

import json
import pathlib
import re
import shutil
import struct
import tempfile
import unittest

from command import CONFORMANCE, SOURCE_DIR, ZOO, CommandTest, Server, rivulet

FAMILY = SOURCE_DIR / "tests/conformance/family"
GGUF = SOURCE_DIR / "tests/conformance/gguf"


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


class QuantizeTest(DirectoryTest):
    def test_a_quantized_directory_is_served_with_the_tokens_of_the_choice(self):
        out, text = self.folder / "small", self.folder / "text"
        text.write_text("What's in a name? That which we call a rose\n")
        result = self.succeeds(rivulet("quantize", ZOO / "shakespeare-rfa", out, "--weights", "int4", "--check", text))
        self.assertEqual(result.out, "")
        self.assertRegex(result.err, r"small: 6\.\d MiB of weights, 33 % of 21\.\d MiB; 37 tensors rounded with --weights int4")
        losses = [float(loss) for loss in re.findall(r"([\d.]+) nats/token", result.err)]
        self.assertEqual(len(losses), 2)
        self.assertAlmostEqual(losses[0], losses[1], delta=0.05)
        generated = {
            place: self.succeeds(rivulet("generate", "--model", place, *args, "--prompt", "ROMEO:", "--seed", "1", "--max-tokens", "40")).out
            for place, args in ((ZOO / "shakespeare-rfa", ("--weights", "int4")), (out, ()))}
        self.assertEqual(len(set(generated.values())), 1, generated)
        self.fails(rivulet("quantize", ZOO / "shakespeare-rfa", out, "--weights", "int4"), 2, "exists and is not empty")
        self.fails(rivulet("quantize", ZOO / "shakespeare-rfa", self.folder / "x", "--weights", "f16"), 2, '"f16"', "int8 or int4")
        self.fails(rivulet("quantize", self.folder / "nowhere", self.folder / "x", "--weights", "int8"), 2, "nowhere")
        gguf = next(GGUF.rglob("*.gguf"))
        self.fails(rivulet("quantize", gguf, self.folder / "x", "--weights", "int8"), 2, "is a GGUF file; quantize takes a model directory")

    def test_a_check_scores_windows_of_the_first_tokens_as_score_does(self):
        text, part = self.folder / "text", ("--window", "9", "--limit", "31")
        text.write_text("What's in a name? That which we call a rose\n")
        model = ZOO / "shakespeare-rfa"
        result = self.succeeds(rivulet("quantize", model, self.folder / "small", "--weights", "int8", "--check", text, *part))
        scored = [rivulet("score", "--model", place, "--text", text, *part).err for place in (model, self.folder / "small")]
        losses = [re.search(r"31 tokens, ([\d.]+) nats/token", told)[1] for told in scored]
        self.assertEqual(re.findall(r"31 tokens, ([\d.]+) nats/token", result.err), losses)
        self.fails(rivulet("quantize", model, self.folder / "x", "--weights", "int8", "--window", "9"), 2, "--check")


class ModelWeightsTest(DirectoryTest):
    """`--model-weights` of a server."""

    MODEL = ZOO / "shakespeare-rfa"

    def numerics(self, server):
        models = self.succeeds(rivulet("models", "--target", server.target, "--json")).lines()
        return {model["name"]: model["numerics_id"] for model in models}

    def test_two_models_of_one_directory_have_each_its_weights(self):
        flags = ("--model-weights", "b=int4", "--weights", "f32")
        snapshot = self.folder / "snapshot"
        with Server(f"a={self.MODEL}", f"b={self.MODEL}", args=(*flags, "--admin-listen", "127.0.0.1:0")) as server:
            found = self.numerics(server)
            self.assertIn("-exact-", found["a"])
            self.assertIn("-int4", found["b"])
            shown = self.succeeds(rivulet("models", "--target", server.target)).out
            self.assertRegex(shown, rf"a +text .* {found['a']} (.*\n)b +text .* {found['b']} ")
            generate = ("generate", "--prompt", "ROMEO:", "--seed", "1", "--max-tokens", "30")
            for name, weights in (("a", "f32"), ("b", "int4")):
                alone = self.succeeds(rivulet(*generate, "--model", self.MODEL, "--weights", weights))
                self.assertEqual(self.succeeds(rivulet(*generate, "--target", server.target, "--model-name", name)).out, alone.out)
            for action in ("unload", "load"):
                self.succeeds(rivulet("models", action, "b", "--target", server.admin))
            self.assertEqual(self.numerics(server), found)
            call = ("--target", server.target, "--model-name", "a")
            session = self.succeeds(rivulet("sessions", "open", *call)).out.strip()
            self.succeeds(rivulet("sessions", "append", session, *call, "--prompt", "ROMEO:"))
            self.succeeds(rivulet("sessions", "snapshot", session, *call, "--out", snapshot))
        # A warm state of one type is not of the model that keeps the same weights in another type.
        warm = (*flags, "--warm-states", snapshot)
        with Server(f"a={self.MODEL}", f"b={self.MODEL}", args=warm) as server:
            cached = {name: rivulet("generate", "--target", server.target, "--model-name", name, "--prompt", "ROMEO:", "--cache", "--max-tokens", "1").err
                      for name in ("a", "b")}  # fmt: skip
            self.assertIn("5 of 6 prompt tokens cached", cached["a"])
            self.assertIn("0 of 6 prompt tokens cached", cached["b"])

    def test_a_model_of_a_repository_is_loaded_with_its_weights(self):
        args = ("--model-repository", ZOO, "--model-weights", "shakespeare-rfa=int8", "--admin-listen", "127.0.0.1:0")
        with Server(args=args) as server:
            self.succeeds(rivulet("models", "load", "shakespeare-rfa", "--target", server.admin))
            self.assertIn("-int8", self.numerics(server)["shakespeare-rfa"])


class DescriptionTest(DirectoryTest):
    def test_every_kind_is_described_as_it_is_served(self):
        directories = [*sorted(FAMILY.iterdir()), ZOO / "mnist-linear", ZOO / "shakespeare-rfa"]
        self.assertGreaterEqual(len(directories), 12)
        fields = ("name", "kind", "content", "num_parameters", "state_bytes", "vocab_size", "hidden_size", "num_layers", "num_heads")
        for directory in directories:
            with self.subTest(directory.name):
                told = self.described(directory)
                served = self.described(directory, "--backend", "cpu")
                self.assertEqual([told[field] for field in fields], [served[field] for field in fields])
                self.assertEqual(told.get("tokenizer"), served.get("tokenizer"))
                self.assertEqual(told["slots"], served["limits"]["slots"])
        for words in (("kind", "gated_deltanet"), ("tokenizer", "none"), ("slots", "256")):
            self.assertRegex(self.succeeds(rivulet("models", "--model", FAMILY / "gated-deltanet")).out, rf"(?m)^{words[0]} +{words[1]}\b")

    def test_the_weights_count_as_they_are_kept(self):
        with Server(FAMILY / "gla") as server:
            (event,) = (event for event in map(json.loads, server.log) if event["event"] == "model")
        kept = {weights: self.described(FAMILY / "gla", "--weights", weights) for weights in ("auto", "f32", "f16")}
        self.assertEqual(kept["auto"]["weight_bytes"], event["weight_bytes"])
        self.assertEqual(kept["auto"]["weight_bytes"], kept["f32"]["weight_bytes"])
        self.assertLess(kept["f16"]["weight_bytes"], kept["f32"]["weight_bytes"])
        self.assertEqual(kept["f16"]["dtypes"], "F32", "of the file")

    def test_what_int8_and_int4_would_take_is_said(self):
        told = self.described(ZOO / "shakespeare-rfa")
        for choice in told["choices"]:
            kept = self.described(ZOO / "shakespeare-rfa", "--weights", choice["weights"])
            self.assertEqual((choice["weight_bytes"], choice["slots"]), (kept["weight_bytes"], kept["slots"]))
        self.assertEqual([choice["weights"] for choice in told["choices"]], ["int8", "int4"])
        self.assertLess(told["choices"][1]["weight_bytes"], told["choices"][0]["weight_bytes"])
        self.fails(rivulet("models", "--model", ZOO / "shakespeare-rfa", "--weights", "int2"), 2, '"int2"', "int8 or int4")

    def test_no_weight_is_read(self):
        copy = self.copy(FAMILY / "gla", "gla")
        weights = copy / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-4:] = struct.pack("<f", float("nan"))
        weights.write_bytes(data)
        varies = {"slots_choice": ""}
        self.assertEqual(self.described(copy) | varies, self.described(FAMILY / "gla") | varies)
        self.fails(rivulet("models", "--model", copy, "--backend", "cpu"), 2, "model.norm.weight", "nan")

    def test_an_error_names_file_field_and_value(self):
        copy = self.copy(FAMILY / "gla", "gla")
        config = json.loads((copy / "config.json").read_text())
        for change, mentions in (
            ({"use_gv": True}, ("config.json", "use_gv", "true")),
            ({"num_heads": -2}, ("config.json", "num_heads", "-2")),
            ({"hidden_size": 64}, ("gla", "model.embeddings.weight", "[39, 32]", "[39, 64]")),
            ({"norm_eps": "small"}, ("config.json", "norm_eps", "small")),
        ):
            with self.subTest(change):
                (copy / "config.json").write_text(json.dumps(config | change))
                self.fails(rivulet("models", "--model", copy), 2, *mentions)
        (copy / "config.json").write_text(json.dumps(config))
        (copy / "tokenizer.json").write_text("{}")
        self.fails(rivulet("models", "--model", copy), 2, "tokenizer.json")
        self.fails(rivulet("models", "--model", self.folder / "absent"), 2, "absent")


def gguf_of(architecture):
    """A GGUF file without tensors."""
    key, value = b"general.architecture", architecture.encode()
    return b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key + struct.pack("<IQ", 8, len(value)) + value


class ForeignTest(DirectoryTest):
    COMMANDS = (("models",), ("generate", "--tokens", "1"), ("score", "--input", "-"), ("tokenize", "--text", "a"), ("bench",))

    def test_packed_weights_of_the_zoo_are_named(self):
        for name in ("shakespeare-rfa", "shakespeare-chat"):
            place = self.copy(ZOO / name, name)
            (place / "model.safetensors").unlink()
            for command in (("models",), ("generate", "--prompt", "a")):
                self.fails(rivulet(*command, "--model", place), 2, f"{place}: model.safetensors is packed", "model/zoo/unpack.py")

    def test_every_command_says_what_a_file_of_another_program_is(self):
        for name, content, what, remedy in (
            ("world.pth", b"PK\3\4" + bytes(22) + b"\x10\0\0\0archive/data.pkl", "a PyTorch checkpoint", "rivulet-convert"),
            ("model.gguf", gguf_of("llama"), "a GGUF file", "rwkv7, mamba2"),
            ("model.safetensors", struct.pack("<Q", 2) + b"{}", "a safetensors file", "the directory that holds it"),
        ):
            file = self.folder / name
            file.write_bytes(content)
            for command in self.COMMANDS:
                with self.subTest(name=name, command=command):
                    self.fails(rivulet(*command, "--model", file), 2, f"{file}: this is {what}", remedy, "docs/models.md")
            with self.assertRaisesRegex(RuntimeError, f"this is {what}"):
                with Server(file):
                    pass


class GgufTest(DirectoryTest):
    def test_a_file_stands_where_a_directory_may(self):
        for name, kind, types in (
            ("rwkv7-parts/model-00001-of-00003.gguf", "rwkv7", "Q5_0, F32, Q6_K, Q5_K, Q4_K, F16"), ("mamba2-bf16/model.gguf", "mamba2", "BF16, F32"),
        ):  # fmt: skip
            with self.subTest(name):
                told = self.described(GGUF / name)
                self.assertEqual((told["kind"], told["dtypes"], told["name"]), (kind, types, f"small-{kind}"))
                self.assertEqual(told["slots"], self.described(GGUF / name, "--backend", "cpu")["limits"]["slots"])
                request = ("--tokens", "1,2,3", "--max-tokens", "9", "--seed", "5", "--json")
                alone = self.succeeds(rivulet("generate", "--model", GGUF / name, *request)).lines()
                with Server(f"mine={GGUF / name}", args=("--admin-listen", "127.0.0.1:0")) as server:
                    self.assertEqual(self.succeeds(rivulet("models", "--target", server.target, "--json")).lines()[0]["name"], "mine")
                    served = self.succeeds(rivulet("generate", "--target", server.target, *request)).lines()
                tokens = [sum((line.get("tokens", []) for line in lines), []) for lines in (alone, served)]
                self.assertEqual(len(tokens[0]), 9)
                self.assertEqual(tokens[0], tokens[1])

    def test_a_damaged_file_is_refused_by_every_command(self):
        data = bytearray((GGUF / "rwkv7-q8_0/model.gguf").read_bytes())
        for name, content, mention in (("short", data[:-99], "of the data, of which the file has"), ("empty", b"", "not a directory, nor a GGUF file")):
            file = self.folder / f"{name}.gguf"
            file.write_bytes(content)
            for command in ForeignTest.COMMANDS:
                with self.subTest(name, command=command):
                    self.fails(rivulet(*command, "--model", file), 2, str(file), mention)


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
                self.assertEqual(self.described(place)["name"], name)
                self.assertEqual(self.described(place, "--backend", "cpu")["name"], name)

    def test_where_every_model_is_mounted_its_configuration_names_it(self):
        copy = self.copy(FAMILY / "gla", "models")
        for path, name, source in (("fla-hub/GLA-340M", "gla-340m", "_name_or_path of config.json"), ("/models", "gla", "model_type of config.json")):
            config = json.loads((copy / "config.json").read_text()) | {"_name_or_path": path}
            (copy / "config.json").write_text(json.dumps(config))
            self.assertEqual(self.described(copy)["name"], name)
            with Server(copy, f"mine={copy}") as server:
                events = [event for event in map(json.loads, server.log) if event["event"] == "model"]
            self.assertEqual([(event["model"], event["name_from"]) for event in events], [(name, source), ("mine", "NAME=DIR or LoadModel")])

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
