# SPDX-License-Identifier: Apache-2.0
"""rivulet-convert on RWKV-7 as its author publishes it: the written directory scores as the author's equations say, computed here in float64 from
the tensors of the .pth. No PyTorch is needed: the test writes the file of torch.save itself.
"""

import json
import pathlib
import re
import struct
import sys
import tempfile
import unittest
from collections import OrderedDict

import numpy as np
from command import CommandTest, Result, rivulet, token_lines
from torch_files import STORAGES, Tensor, meant, write_torch_file
from torch_python import TOOLS, module

sys.path.insert(0, str(TOOLS))
from rivulet_tools import rwkv7  # noqa: E402
from rivulet_tools.errors import BadInput  # noqa: E402

VOCAB, WIDTH, HEADS, LAYERS, FFN = 43, 128, 2, 3, 160
RANKS = {"w": 6, "a": 5, "v": 4, "g": 7}


def checkpoint(seed: int = 1, vocab: int = VOCAB) -> dict[str, np.ndarray]:
    """Random tensors, none of them trivial, with the names and shapes of the author's files."""
    random = np.random.default_rng(seed)

    def around(center: float, spread: float, *shape: int) -> np.ndarray:
        return (center + spread * random.standard_normal(shape)).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": around(1, 0.2, WIDTH), f"{name}.bias": around(0, 0.2, WIDTH)}

    tensors = {"emb.weight": around(0, 1, vocab, WIDTH), "head.weight": around(0, 0.1, vocab, WIDTH), **norm("ln_out"), **norm("blocks.0.ln0")}
    for i in range(LAYERS):
        b = f"blocks.{i}."
        tensors |= norm(b + "ln1") | norm(b + "ln2") | norm(b + "att.ln_x")
        tensors |= {f"{b}att.x_{c}": around(0.5, 0.3, 1, 1, WIDTH) for c in "rwkvag"}
        tensors |= {f"{b}att.{name}.weight": around(0, 0.1, WIDTH, WIDTH) for name in ("receptance", "key", "value", "output")}
        for c, rank in RANKS.items():
            if c == "v" and i == 0:
                continue
            tensors |= {f"{b}att.{c}1": around(0, 0.1, WIDTH, rank), f"{b}att.{c}2": around(0, 0.3, rank, WIDTH)}
            tensors |= {} if c == "g" else {f"{b}att.{c}0": around(0, 1, 1, 1, WIDTH)}
        tensors |= {b + "att.k_k": around(0.8, 0.2, 1, 1, WIDTH), b + "att.k_a": around(1, 0.2, 1, 1, WIDTH)}
        tensors |= {b + "att.r_k": around(0, 0.3, HEADS, WIDTH // HEADS), b + "ffn.x_k": around(0.5, 0.3, 1, 1, WIDTH)}
        tensors |= {b + "ffn.key.weight": around(0, 0.1, FFN, WIDTH), b + "ffn.value.weight": around(0, 0.1, WIDTH, FFN)}
    return tensors


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def layer_norm(x: np.ndarray, t: dict, name: str) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * t[name + ".weight"] + t[name + ".bias"]


class AuthorsModel:
    """RWKV-7 token by token, in float64, with the author's names."""

    def __init__(self, tensors: dict[str, np.ndarray]):
        self.t = {name: np.asarray(values, np.float64).squeeze() for name, values in tensors.items()}
        self.t |= {name: self.t[name].reshape(HEADS, -1) for name in tensors if name.endswith("r_k")}
        self.state = [np.zeros((HEADS, WIDTH // HEADS, WIDTH // HEADS)) for _ in range(LAYERS)]  # [head, value, key]
        self.before = np.zeros((LAYERS, 2, WIDTH))

    def token(self, token: int) -> np.ndarray:
        t, x, first_value = self.t, layer_norm(self.t["emb.weight"][token], self.t, "blocks.0.ln0"), None
        for i in range(LAYERS):
            b = f"blocks.{i}."
            h = layer_norm(x, t, b + "ln1")
            mixed, first_value = self.mix(i, h, first_value)
            x = x + mixed
            h = layer_norm(x, t, b + "ln2")
            k = h + (self.before[i, 1] - h) * t[b + "ffn.x_k"]
            self.before[i, 1] = h
            x = x + t[b + "ffn.value.weight"] @ np.maximum(t[b + "ffn.key.weight"] @ k, 0) ** 2
        return t["head.weight"] @ layer_norm(x, t, "ln_out")

    def mix(self, i: int, h: np.ndarray, first_value: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        t = {name.removeprefix(f"blocks.{i}.att."): values for name, values in self.t.items() if name.startswith(f"blocks.{i}.att.")}
        xr, xw, xk, xv, xa, xg = (h + (self.before[i, 0] - h) * t[f"x_{c}"] for c in "rwkvag")
        self.before[i, 0] = h
        r, k, v = t["receptance.weight"] @ xr, t["key.weight"] @ xk, t["value.weight"] @ xv
        w = np.exp(-0.606531 * sigmoid(t["w0"] + np.tanh(xw @ t["w1"]) @ t["w2"]))
        a = sigmoid(t["a0"] + (xa @ t["a1"]) @ t["a2"])
        g = sigmoid(xg @ t["g1"]) @ t["g2"]
        kk = (k * t["k_k"]).reshape(HEADS, -1)
        kk = kk / np.maximum(np.sqrt((kk**2).sum(-1, keepdims=True)), 1e-12)
        k = k * (1 + (a - 1) * t["k_a"])
        if first_value is None:
            first_value = v
        else:
            v = v + (first_value - v) * sigmoid(t["v0"] + (xv @ t["v1"]) @ t["v2"])
        out = np.empty((HEADS, WIDTH // HEADS))
        for head, (rh, wh, kh, vh, kkh, ah) in enumerate(zip(*(y.reshape(HEADS, -1) for y in (r, w, k, v, kk, a)), strict=True)):
            s = self.state[i][head]
            s = s * wh - np.outer(s @ kkh, kkh * ah) + np.outer(vh, kh)
            self.state[i][head] = s
            o = s @ rh
            out[head] = (o - o.mean()) / np.sqrt(o.var() + 64e-5)
        out = out.ravel() * t["ln_x.weight"] + t["ln_x.bias"]
        bonus = (r.reshape(HEADS, -1) * k.reshape(HEADS, -1) * t["r_k"]).sum(-1, keepdims=True) * v.reshape(HEADS, -1)
        return t["output.weight"] @ ((out + bonus.ravel()) * g), first_value


class Rwkv7Test(CommandTest):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path, self.model = self.folder / "rwkv7.pth", self.folder / "model"

    def convert(self, *args: object, code: int = 0) -> Result:
        result = module("convert", self.path, self.model, *args)
        self.assertEqual(result.code, code, result)
        return result

    def refused(self, *mentions: str, args: tuple = ()) -> None:
        result = self.convert(*args, code=2)
        self.assertEqual(result.err.count("\n"), 1, result)
        for mention in mentions:
            self.assertIn(mention, result.err)
        self.assertFalse(self.model.exists())

    def save(self, tensors: dict[str, np.ndarray], dtype: str = "F32", **options: object) -> None:
        turned = {name for name in tensors if name.endswith("receptance.weight")}
        content = OrderedDict((name, Tensor(str(i), v, dtype, name in turned, offset=i % 3)) for i, (name, v) in enumerate(tensors.items()))
        write_torch_file(self.path, content, **options)

    def test_the_directory_scores_as_the_authors_equations_say(self) -> None:
        tokens = [3, 1, 4, 1, 5, 9, 2, 6, 42, 0, 7, 7, 30]
        for dtype in STORAGES:
            with self.subTest(dtype):
                tensors = checkpoint()
                self.save(tensors, dtype)
                self.convert("--force")
                model = AuthorsModel({name: meant(values, dtype) for name, values in tensors.items()})
                want = np.array([model.token(token) for token in tokens[:-1]])
                scores = rivulet("score", "--model", self.model, "--input", "-", "--outputs", ",".join(map(str, range(12))), stdin=token_lines([tokens]))
                (line,) = self.succeeds(scores).lines()
                self.assertLess(np.abs(np.array(line["outputs"]) - want).max(), 1e-4)
                self.assertGreater(np.abs(want).max(), 0.5)
                data = (self.model / "model.safetensors").read_bytes()
                header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
                self.assertEqual({entry["dtype"] for entry in header.values()}, {dtype})

    def test_a_tuned_state_is_where_every_sequence_begins(self) -> None:
        tensors, tokens = checkpoint(), [3, 1, 4, 1, 5]
        states = {f"blocks.{i}.att.time_state": np.random.default_rng(i).standard_normal((HEADS, 64, 64)).astype(np.float32) for i in range(LAYERS)}
        tuned = self.folder / "tuned.pth"

        def write(changed: dict) -> None:
            write_torch_file(tuned, {n: Tensor(str(i), v, "F32") for i, (n, v) in enumerate(changed.items()) if v is not None})

        self.save(tensors, "F16")
        write(states)
        self.convert("--initial-state", tuned)
        model = AuthorsModel({name: meant(values, "F16") for name, values in tensors.items()})
        model.state = [values.astype(np.float64) for values in states.values()]  # as the author's code loads it for this version
        want = np.array([model.token(token) for token in tokens[:-1]])
        lines = token_lines([tokens, tokens])
        for line in self.succeeds(rivulet("score", "--model", self.model, "--input", "-", "--outputs", "0,1,2,3", stdin=lines)).lines():
            self.assertLess(np.abs(np.array(line["outputs"]) - want).max(), 1e-4)
        (tuned_model,) = self.succeeds(rivulet("models", "--model", self.model, "--backend", "cpu", "--json")).lines()
        self.convert("--force")
        (plain,) = self.succeeds(rivulet("models", "--model", self.model, "--backend", "cpu", "--json")).lines()
        self.assertNotEqual(tuned_model["weights_sha256"], plain["weights_sha256"])
        self.model.rename(self.folder / "aside")
        last = f"blocks.{LAYERS - 1}.att.time_state"
        for changes, mentions in (
            ({last: None}, (last, "missing")),
            ({last: np.ones((HEADS, 32, 64), np.float32)}, (last, "[2, 32, 64]", "[2, 64, 64]")),
            ({"blocks.9.att.time_state": np.ones((HEADS, 64, 64), np.float32)}, ("blocks.9.att.time_state", "no place")),
            ({last: np.full((HEADS, 64, 64), np.nan, np.float32)}, (last, "finite")),
        ):
            with self.subTest(mentions):
                write(states | changes)
                self.refused(*mentions, args=("--initial-state", tuned))
        self.refused("--initial-state", "no-such", args=("--initial-state", self.folder / "no-such"))

    def test_expect_compares_with_the_answers_of_other_code(self) -> None:
        tensors, tokens = checkpoint(), [1, 2, 3, 4]
        self.save(tensors | {"blocks.0.att.v0": tensors["blocks.0.att.a0"]})
        model = AuthorsModel(tensors)
        outputs = [model.token(token) for token in tokens[:-1]]
        nll = sum(np.log(np.exp(row).sum()) - row[token] for row, token in zip(outputs, tokens[1:], strict=True))
        golden = {"positions": [0, 1, 2], "sequences": [{"tokens": tokens, "num_scored": 3, "nll_nats": nll, "outputs": [list(row) for row in outputs]}]}
        (self.folder / "golden.json").write_text(json.dumps(golden))
        good = self.convert("--expect", self.folder / "golden.json")
        self.assertIn("good", good.out)
        self.assertIn("not used (1 tensors)\n  blocks.0.att.v0\n", good.out)
        golden["sequences"][0]["outputs"][1][5] += 0.01
        (self.folder / "golden.json").write_text(json.dumps(golden))
        self.assertIn("BEYOND THE LIMITS", self.convert("--expect", self.folder / "golden.json", "--force", code=1).out)

    def test_a_vocabulary_is_checked_and_copied(self) -> None:
        self.save(checkpoint(vocab=300))
        vocabulary = self.folder / "vocab.txt"
        every_byte = [f"{i + 1} b'\\x{i:02x}' 1" for i in range(256)]
        lines = [*every_byte, "257 'a b' 3", "258 b'\\xe2\\x80' 2", "259 '\\u00e9\\U0001F600' 6", '260 "it\'s" 4', "299 'é\u2028\x0b' 6"]
        for end in ("\n", "\r\n", ""):
            vocabulary.write_bytes((end or "\n").join(lines).encode() + end.encode())
            self.assertNotIn("WARNING", self.convert("--vocab", vocabulary, "--force").err)
            (copy,) = (path for path in self.model.iterdir() if path.name.startswith("rwkv_vocab"))
            self.assertEqual(copy.read_bytes(), vocabulary.read_bytes())
            (model,) = self.succeeds(rivulet("models", "--model", self.model, "--backend", "cpu", "--json")).lines()
            self.assertEqual(model["tokenizer"], {"kind": "world", "size": 300})
        warning = self.convert("--force").err
        self.assertIn("served as token ids", warning)
        self.assertIn("PyPI package rwkv", warning)
        vocabulary.write_bytes("\n".join([*every_byte, "1 'ab' 2"]).encode())
        self.model.rename(self.folder / "aside")
        self.refused("--vocab", "vocab.txt:257", args=("--vocab", vocabulary))
        self.refused("--vocab", "no-such", args=("--vocab", self.folder / "no-such"))

    def test_a_vocabulary_that_the_server_refuses_is_refused_with_its_line(self) -> None:
        self.save(checkpoint(vocab=300))
        self.convert()
        vocabulary = self.model / rwkv7.VOCABULARY

        def check(lines: list[str], mention: str, of_server: str) -> None:
            vocabulary.write_bytes("".join(f"{line}\n" for line in lines).encode())
            with self.assertRaisesRegex(BadInput, re.escape(mention)):
                rwkv7.read_vocabulary(vocabulary, 300)
            self.fails(rivulet("models", "--model", self.model), 2, of_server)

        every_byte = [f"{i + 1} b'\\x{i:02x}' 1" for i in range(256)]
        literals = ("'\\a' 1", "'\\0' 1", "'\\101' 1", "'\\N{DIGIT ONE}' 1", "b'\\u0041' 6", "r'ab' 2", "u'ab' 2", "B'ab' 2", "'a' 'b' 2", '"""ab""" 2')
        literals += ("'a'b' 3", "'\\ud800' 3", "'\\U00110000' 4", "b'é' 2", "__import__('os') 1", "12 1", "'ab", "'ab' 2 2", "'ab' x", "'ab' 3", "'' 0")
        literals += (f"'{'a' * 257}' 257", "'a' 1", "'\\x61' 1")  # the last two: a token of a line before
        for line in (*(f"257 {literal}" for literal in literals), "0 'ab' 2", "256 'ab' 2", "x 'ab' 2", "１ 'ab' 2", "2_57 'ab' 2", "-1 'ab' 2", "", "257"):
            with self.subTest(line):
                check([*every_byte, line, "258 'xyz' 3"], f"{vocabulary}:257: ", "line 257")
        check([], "0x00", "0x00")
        check(every_byte[:77] + every_byte[78:], "0x4D", "0x4D")
        for line in ("300 'ab' 2", "1000000 'ab' 2"):  # the server reads ids that the model does not have
            vocabulary.write_bytes("\n".join([*every_byte, line]).encode())
            with self.assertRaisesRegex(BadInput, "the id .*; allowed: 1 to 299"):
                rwkv7.read_vocabulary(vocabulary, 300)

    def test_a_checkpoint_with_other_tensors_is_refused_by_name(self) -> None:
        def without(name: str) -> dict:
            return {n: v for n, v in checkpoint().items() if n != name}

        for tensors, mentions in (
            (without("blocks.1.att.w2"), ("blocks.1.att.w2", "missing")),
            (without("emb.weight"), ("emb.weight", "missing")),
            (without("ln_out.bias"), ("ln_out.bias", "missing")),
            (checkpoint() | {"blocks.1.ffn.s_emb.weight": np.ones((2, 2), np.float32)}, ("blocks.1.ffn.s_emb.weight", "no place")),
            (checkpoint() | {"blocks.2.att.k_k": np.ones((1, 1, 64), np.float32)}, ("blocks.2.att.k_k", "[1, 1, 64]", "[128]")),
            (checkpoint() | {"blocks.2.att.w1": np.ones((6, 128), np.float32)}, ("blocks.2.att.w1", "[6, 128]")),
            (checkpoint() | {"blocks.0.att.r_k": np.ones((4, 32), np.float32)}, ("blocks.0.att.r_k", "[4, 32]", "64")),
            (checkpoint() | {"head.weight": np.full((VOCAB, WIDTH), np.nan, np.float32)}, ("head.weight", "finite")),
        ):
            with self.subTest(mentions):
                self.save(tensors)
                self.refused(*mentions)

    def test_a_flag_that_means_nothing_here_is_refused(self) -> None:
        self.save(checkpoint())
        self.refused("--num-heads", args=("--num-heads", 2))

    def test_no_code_of_a_pickle_is_run(self) -> None:
        ran = self.folder / "ran"

        class Code:
            def __reduce__(self) -> tuple:
                return pathlib.Path.touch, (ran,)

        self.save(checkpoint() | {})
        content = OrderedDict((name, Tensor(str(i), v, "F32")) for i, (name, v) in enumerate(checkpoint().items()))
        write_torch_file(self.path, content | {"code": Code()})
        # Neither this reader nor PyTorch, where the tool falls back to it, runs it.
        result = module("convert", self.path, self.model)
        self.assertIn(result.code, (2, 3), result)
        self.assertFalse(self.model.exists())
        self.assertFalse(ran.exists())

    def test_a_hostile_archive_is_refused_at_once(self) -> None:
        def tensor(shape: tuple, strides: tuple, elements: int = 4) -> Tensor:
            made = Tensor("0", np.zeros(elements, np.float32), "F32")
            made.shape, made.strides = shape, strides
            return made

        def write(value: object, **options: object) -> None:
            write_torch_file(self.path, OrderedDict([("blocks.0.att.r_k", value)]), **options)

        name, one = "'blocks.0.att.r_k'", tensor((2, 2), (2, 1))
        huge_memo = b"\x80\x02}r\xff\xff\xff\x0f."
        nested = b")" + b"2\x86" * 60  # a tuple twice in the next, and so on: its hash takes 2^60 steps
        as_key, in_set = b"\x80\x02}" + nested + b"K\x01s.", b"\x80\x04\x8f(" + nested + b"\x90."
        as_pair = b"\x80\x02ccollections\nOrderedDict\n(](" + nested + b"K\x01\x86etR."
        as_kind = b"\x80\x02(X\x07\x00\x00\x00storage" + nested + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ."
        for value, options, mentions in (
            (tensor((1 << 40,), (0,)), {}, (name, "[1099511627776]", "strides [0]", "the 4 of its storage")),
            (tensor((1 << 20, 1 << 20), (0, 0)), {}, (name, "1099511627776 elements")),
            (tensor((2, 2), (2, 3)), {}, (name, "strides [2, 3]", "4 elements")),
            (tensor((1,) * 65, (1,) * 65), {}, (name, "65 dimensions", "at most 8")),
            (one, {"compress": True}, ("compressed",)),
            (one, {"change": lambda n, data: data + b"\0" * (4 << 20) if n == "data.pkl" else data}, ("data.pkl", "at most 4194304")),
            (one, {"change": lambda n, data: huge_memo if n == "data.pkl" else data}, ("memo 268435455",)),
            *(
                (one, {"change": lambda n, data, pickled=pickled: pickled if n == "data.pkl" else data}, (mention,))
                for pickled, mention in (
                    (as_key, "tuples in tuples"), (in_set, "tuples in tuples"), (as_pair, "an OrderedDict of a list"),
                    (as_kind, "a storage is not described"),
                )
            ),
            (one, {"change": lambda n, data: b"little" * 9 if n == "byteorder" else data}, ("byteorder", "54 bytes", "at most 16")),
            (one, {"change": lambda n, data: data[:-4] if n == "data/0" else data}, (name, "12 bytes, not 16")),
        ):
            with self.subTest(mentions):
                write(value, **options)
                self.refused(*mentions)
        tensors = {name: Tensor(str(i), values, "F32") for i, (name, values) in enumerate(checkpoint().items())}
        other = Tensor("other", np.zeros((2, 2), np.float32), "F32")
        write_torch_file(self.path, OrderedDict(tensors | {"blocks.99999999999.att.r_k": other}))
        self.refused("layer 99999999999")

    def test_a_damaged_archive_is_one_line(self) -> None:
        for name, change, mention in (
            ("a short storage", lambda n, data: data[:-4] if n == "data/5" else data, "bytes"),
            ("no storage", lambda n, data: None if n == "data/5" else data, "data/5"),
            ("big-endian", lambda n, data: b"big" if n == "byteorder" else data, ""),
        ):
            with self.subTest(name):
                self.save(checkpoint(), change=change)
                result = module("convert", self.path, self.model)
                self.assertIn(result.code, (2, 3), result)
                self.assertEqual(result.err.count("\n"), 1, result)
                self.assertIn(mention, result.err)
                self.assertFalse(self.model.exists())
        self.save(checkpoint(), compress=True)
        self.assertIn(module("convert", self.path, self.model).code, (2, 3))


if __name__ == "__main__":
    unittest.main()
