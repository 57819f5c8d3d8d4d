# SPDX-License-Identifier: Apache-2.0
"""Models of the family and hybrids, from the directory as it is to the command: scores agree with the float64 goldens, and sessions keep every
part of their states through forks, rewinds and snapshots.

RIVULET_FAMILY_DIR (folders of model directories, separated by colons) adds directories that the repository does not hold.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from command import BIN_DIR, SOURCE_DIR, CommandTest, Server, rivulet, token_lines

FOLDERS = [SOURCE_DIR / "tests/conformance/family", SOURCE_DIR / "tests/conformance/hybrid"]
FOLDERS += [pathlib.Path(path) for path in os.environ.get("RIVULET_FAMILY_DIR", "").split(":") if path]
DIRECTORIES = sorted(golden.parent for folder in FOLDERS for golden in folder.glob("*/golden.json"))
DIRECTORIES.append(SOURCE_DIR / "tests/conformance/molformer/gp-molformer-bf16")
FIRST, MORE = [3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5]


def text(tokens):
    return ",".join(map(str, tokens))


class FamilyTest(CommandTest):
    def test_scores_agree_with_the_goldens(self):
        self.assertGreaterEqual(len({d.name for d in DIRECTORIES}), 10, "the repository holds one of each kind at least")
        for directory in DIRECTORIES:
            golden = json.loads((directory / "golden.json").read_text())
            for sequence in golden["sequences"]:
                positions = [p for p in golden["positions"] if p < sequence["num_scored"]]
                with self.subTest(f"{directory.name}, {len(sequence['tokens'])} tokens"):
                    result = rivulet(
                        "score", "--model", directory, "--input", "-", "--outputs", text(positions),
                        stdin=token_lines([sequence["tokens"]]),
                    )
                    (line,) = self.succeeds(result).lines()
                    self.assertEqual(line["num_scored"], sequence["num_scored"])
                    self.assertLessEqual(abs(line["nll_nats"] - sequence["nll_nats"]), 1e-4 * max(1, sequence["nll_nats"]))
                    self.assertEqual(len(line["outputs"]), len(sequence["outputs"]))
                    for got, want in zip(line["outputs"], sequence["outputs"]):
                        self.assertLessEqual(max(abs(a - b) for a, b in zip(got, want, strict=True)), 1e-4)

    def test_sessions_keep_every_part_of_their_states(self):
        for directory in DIRECTORIES:
            with self.subTest(directory.name):
                self.check_sessions(directory)

    def generate(self, server, session, *args):
        command = ("generate", "--session", session, "--target", server.target, "--json", "--max-tokens", "9", *args)
        return [token for part in self.succeeds(rivulet(*command)).lines() for token in part["tokens"]]

    def sessions(self, server, action, *args):
        return self.succeeds(rivulet("sessions", action, *args, "--target", server.target)).out.split()

    def check_sessions(self, directory):
        whole = rivulet("generate", "--model", directory, "--tokens", text(FIRST + MORE), "--seed", "7", "--max-tokens", "9", "--ignore-eos")
        want = [int(token) for token in self.succeeds(whole).out.split()]
        self.assertEqual(len(want), 9)
        drawn = ("--seed", "7", "--ignore-eos", "--tokens", text(MORE))
        with tempfile.TemporaryDirectory() as folder, Server(directory) as server:
            (session,) = self.sessions(server, "open")
            self.sessions(server, "append", session, "--tokens", text(FIRST))
            (fork,) = self.sessions(server, "fork", session)
            snapshot = os.path.join(folder, "snapshot")
            self.sessions(server, "snapshot", session, "--out", snapshot)
            self.assertEqual(self.generate(server, session, *drawn), want, "a session")
            self.assertEqual(self.generate(server, fork, *drawn), want, "a fork")
            self.sessions(server, "rewind", session, "--position", str(len(FIRST)))
            self.assertEqual(self.generate(server, session, *drawn), want, "after a rewind")
            with Server(directory) as other:
                (restored,) = self.sessions(other, "restore", "--input", snapshot)
                self.assertEqual(self.generate(other, restored, *drawn), want, "restored in another process")

    def test_a_sequence_ends_at_the_context_of_the_server(self):
        directory = next(d for d in DIRECTORIES if d.name == "granite-nope")
        with Server(directory, args=("--max-context", "20")) as server:
            at = ("--target", server.target)
            (model,) = self.succeeds(rivulet("models", *at, "--json")).lines()
            self.assertEqual(model["max_sequence_tokens"], 21, "20 are fed, the last one is not")
            drawn = ("generate", *at, "--tokens", text(FIRST), "--seed", "7", "--ignore-eos", "--json", "--max-tokens")
            parts = self.succeeds(rivulet(*drawn, "100")).lines()
            self.assertEqual(sum(len(part["tokens"]) for part in parts), 21 - len(FIRST))
            # The usage may come behind it.
            self.assertEqual([part["finish"]["reason"] for part in parts if "finish" in part], ["length"])
            short = self.succeeds(rivulet(*drawn, "9")).lines()
            whole = [token for part in parts for token in part["tokens"]]
            self.assertEqual([token for part in short for token in part["tokens"]], whole[:9], "the limit changes no token")
            self.fails(rivulet("generate", *at, "--tokens", text(range(1, 23))), 2, "holds 22 tokens", "raise --max-context")
            session = self.succeeds(rivulet("sessions", "open", *at)).out.strip()
            self.succeeds(rivulet("sessions", "append", session, "--tokens", text(range(1, 21)), *at))
            self.fails(rivulet("sessions", "append", session, "--tokens", "1,2", *at), 2, "at position 20", "allows 21", "raise --max-context")
            # However large its state is.
            with tempfile.TemporaryDirectory() as folder, Server(directory) as larger:
                (long,) = self.sessions(larger, "open")
                self.sessions(larger, "append", long, "--tokens", text([1] * 1000))
                snapshot = os.path.join(folder, "snapshot")
                self.sessions(larger, "snapshot", long, "--out", snapshot)
                restore = rivulet("sessions", "restore", "--input", snapshot, *at)
                self.fails(restore, 2, "the snapshot holds 1000 tokens; this server allows 21", "raise --max-context")
        # A model in the process of the command has the same limit.
        local = ("--model", directory, "--max-context", "20", "--kv-cache", "bf16")
        self.fails(rivulet("generate", *local, "--tokens", text(range(1, 23))), 2, "holds 22 tokens", "raise --max-context")
        (whole,) = self.succeeds(rivulet("models", "--model", directory, "--json")).lines()
        (model,) = self.succeeds(rivulet("models", *local, "--json")).lines()
        self.assertEqual((model["context"], model["token_bytes"]), (20, whole["token_bytes"] // 2))
        for context, said in (("0", "allowed: auto, or 1 to"), ("1000000000", "allowed: auto, or 1 to"), ("many", "max-context is \"many\"")):
            with self.assertRaisesRegex(RuntimeError, said):
                Server(directory, args=("--max-context", context)).__enter__()

    def test_a_context_is_chosen_by_the_number_of_slots(self):
        directory = next(d for d in DIRECTORIES if d.name == "granite-nope")  # trained for 2,048 tokens
        (model,) = self.succeeds(rivulet("models", "--model", directory, "--json", "--kv-cache", "f16")).lines()
        self.assertEqual((model["kv_cache"], model["contexts"]), ("f16", [{"context": 2048, "slots": 256}]))
        self.assertRegex(self.succeeds(rivulet("models", "--model", directory)).out, "with --max-context 2048 .* a state, 256 slots, --kv-cache f32")
        with Server(directory, args=("--max-context", "auto:4")) as server:
            (model,) = self.succeeds(rivulet("models", "--target", server.target, "--json")).lines()
            self.assertEqual(model["max_sequence_tokens"], 2049)
            (contexts,) = [line for line in map(json.loads, server.log) if line["event"] == "contexts"]
            self.assertEqual((contexts["context"], contexts["kv_cache"], contexts["slots_by_context"]), (2048, "f32", "2048: 256"))
        checked = subprocess.run([BIN_DIR / "rivulet-server", "--check-config", "--model", directory, "--max-context", "auto:4"], capture_output=True, text=True, timeout=60)
        self.assertIn("model granite-nope: a context of 2048 with 256 slots; slots by context with --kv-cache f32: 2048: 256\n", checked.stdout)
        self.fails(rivulet("models", "--model", directory, "--max-context", "auto:0"), 2, "auto:SLOTS with 1 to 256 slots", '"auto:0"')

    def test_keys_and_values_of_16_bits_take_half_and_have_another_numerics_id(self):
        directory = next(d for d in DIRECTORIES if d.name == "granite-nope")
        drawn = ("--seed", "7", "--ignore-eos", "--tokens", text(MORE))
        ids, sizes, snapshots = {}, {}, {}
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("f32", "f16", "bf16"):
                with Server(directory, args=("--kv-cache", kind, "--max-context", "1024")) as server:
                    at = ("--target", server.target)
                    (model,) = self.succeeds(rivulet("models", *at, "--json")).lines()
                    ids[kind], sizes[kind] = model["numerics_id"], int(model["state_bytes"])
                    whole = self.succeeds(rivulet("generate", *at, "--tokens", text(FIRST + MORE), "--seed", "7", "--max-tokens", "9", "--ignore-eos"))
                    want = [int(token) for token in whole.out.split()]
                    (session,) = self.sessions(server, "open")
                    self.sessions(server, "append", session, "--tokens", text(FIRST))
                    snapshots[kind] = os.path.join(folder, kind)
                    self.sessions(server, "snapshot", session, "--out", snapshots[kind])
                    # Of another type the tokens are read, and the state is computed again.
                    for kept, path in snapshots.items():
                        (restored,) = self.sessions(server, "restore", "--input", path)
                        self.assertEqual(self.generate(server, restored, *drawn), want, f"{kept} read by {kind}")
        self.assertEqual([ids["f16"], ids["bf16"]], [ids["f32"] + "-kv-f16", ids["f32"] + "-kv-bf16"])
        self.assertEqual(sizes["f16"], sizes["bf16"])
        self.assertGreater(sizes["f32"], sizes["f16"])
        with self.assertRaisesRegex(RuntimeError, "kv-cache.*allowed: f32, f16"):
            Server(directory, args=("--kv-cache", "int8")).__enter__()

    def test_a_tensor_that_is_missing_misshapen_or_not_expected_ends_the_start(self):
        directory = next(d for d in DIRECTORIES if d.name == "gla")
        name = "model.layers.1.attn.g_proj.weight"
        for change, said in (
            (lambda tensors: tensors.pop(name), "the checkpoint lacks it"),
            (lambda tensors: tensors[name]["shape"].reverse() or tensors[name]["shape"].append(2), "the configuration needs"),
            (lambda tensors: tensors.update({name + "2": tensors.pop(name)}), name + "2"),
        ):
            with self.subTest(said), tempfile.TemporaryDirectory() as folder:
                copy = pathlib.Path(folder) / "gla"
                shutil.copytree(directory, copy)
                self.change_header(copy / "model.safetensors", change)
                result = rivulet("generate", "--model", copy, "--tokens", "1")
                self.fails(result, 2, name)
                self.assertEqual(len(result.err.splitlines()), 1)

    @staticmethod
    def change_header(path, change):
        data = path.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        tensors = json.loads(data[8 : 8 + size])
        change(tensors)
        kept = {name: tensor for name, tensor in tensors.items() if name != "__metadata__"}
        body, at = b"", 0
        for tensor in kept.values():
            begin, end = tensor["data_offsets"]
            values = 1
            for extent in tensor["shape"]:
                values *= extent
            part = data[8 + size + begin : 8 + size + end]
            part = (part * 2)[: values * (2 if tensor["dtype"] != "F32" else 4)]
            tensor["data_offsets"] = [at, at + len(part)]
            at += len(part)
            body += part
        header = json.dumps(kept).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + body)

    def test_what_cannot_be_served_is_one_line(self):
        directory = next(d for d in DIRECTORIES if d.name == "gla")
        for settings, field in (({"attn": {"layers": [1]}}, "attn"), ({"use_gv": True}, "use_gv"), ({"tomorrow": 1}, "tomorrow")):
            with self.subTest(field), tempfile.TemporaryDirectory() as folder:
                copy = pathlib.Path(folder) / "gla"
                shutil.copytree(directory, copy)
                config = json.loads((copy / "config.json").read_text())
                (copy / "config.json").write_text(json.dumps(config | settings))
                result = rivulet("generate", "--model", copy, "--tokens", "1")
                self.fails(result, 2, field)
                self.assertEqual(len(result.err.splitlines()), 1)

    def test_generation_ends_at_each_eos_of_the_generation_config(self):
        directory = next(d for d in DIRECTORIES if d.name == "gla")
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "gla"
            shutil.copytree(directory, copy)
            command = ("generate", "--model", copy, "--tokens", "1,2,3", "--seed", "5", "--max-tokens", "8")
            drawn = self.succeeds(rivulet(*command, "--ignore-eos")).out.split()
            last = next(i for i in range(2, 8) if drawn[i] not in drawn[:i])
            (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [int(drawn[last]), 0], "temperature": 9}))
            self.assertEqual(self.succeeds(rivulet(*command)).out.split(), drawn[:last])
            (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [10**6]}))
            self.fails(rivulet(*command), 2, "eos_token_id")

    def test_a_prompt_must_hold_a_token_and_be_no_text(self):
        for directory in DIRECTORIES[:1]:
            self.fails(rivulet("generate", "--model", directory, "--tokens", ""), 2, "prompt")
            self.fails(rivulet("generate", "--model", directory, "--prompt", "a"), 2, "has no tokenizer: its directory has neither tokenizer.json")


if __name__ == "__main__":
    unittest.main()
