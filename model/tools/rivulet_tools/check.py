# SPDX-License-Identifier: Apache-2.0
"""Checks a model directory: compares the raw outputs and log-likelihoods of `rivulet score` with those of another program."""

import dataclasses
import itertools
import json
import pathlib
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rivulet_tools.errors import Absent, BadInput
from rivulet_tools.library import Reference
from rivulet_tools.plan import Config

NLL_LIMIT = 1e-4  # relative
MOST_POSITIONS = 64  # scored tokens whose raw outputs are compared
_ABOUT = "float64 answers; sequences[i].outputs[j] are the raw head outputs that predict scored token positions[j]"


def output_limit(config: Config) -> float:
    """Largest absolute difference of a raw output: trained checkpoints have features and outputs of large range."""
    return 5e-3 if config["attention"]["feature_map"]["type"] == "random_fourier" else 2e-3


def find_rivulet(given: pathlib.Path | None) -> str:
    """The path of the `rivulet` command: the given one, else the one on PATH. Raises Absent."""
    found = shutil.which(str(given) if given is not None else "rivulet")
    if found is None:
        raise Absent(f"--rivulet {given}: no such command" if given is not None else "the command rivulet is not on PATH (--rivulet PATH names it)")
    return found


def random_tokens(config: Config, length: int, seed: int) -> list[int]:
    """Tokens that the model can score, at most `length` of them, the same for the same seed."""
    position = config["position"]
    if position["type"] != "none":
        length = min(length, position["max_length"] + (config["bos_token_id"] is None))
    limit = config["output"].get("num_levels", config["vocab_size"])
    chosen = random.Random(seed)
    return [chosen.randrange(limit) for _ in range(length)]


def read_tokens(path: pathlib.Path) -> list[list[int]]:
    """Sequences from a file of lines {"tokens": [...]}, as `rivulet score --input` takes them. Raises BadInput with the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--check-tokens {path}: {error}") from error
    sequences = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        tokens = value.get("tokens") if isinstance(value, dict) else None
        if not isinstance(tokens, list) or not all(isinstance(t, int) and not isinstance(t, bool) for t in tokens):
            raise BadInput(f'{path}:{number}: a line {{"tokens": [integers]}} is needed')
        sequences.append(tokens)
    if not sequences:
        raise BadInput(f"{path}: holds no sequence")
    return sequences


def spread(num_scored: int) -> list[int]:
    """At most MOST_POSITIONS indices from 0 to num_scored - 1, with both ends."""
    if num_scored <= MOST_POSITIONS:
        return list(range(num_scored))
    return sorted({round(i * (num_scored - 1) / (MOST_POSITIONS - 1)) for i in range(MOST_POSITIONS)})


def golden(reference: Reference, sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The content of golden.json (model/FORMAT.md) for these sequences."""
    answers = [reference.answer(tokens) for tokens in sequences]
    positions = spread(min(len(a.nll) for a in answers))
    return {
        "about": _ABOUT,
        "positions": positions,
        "sequences": [
            {
                "tokens": list(tokens),
                "num_scored": len(a.nll),
                "nll_nats": float(a.nll.sum()),
                "outputs": a.outputs[positions].tolist(),
            }
            for tokens, a in zip(sequences, answers, strict=True)
        ],
    }


def read_golden(path: pathlib.Path) -> dict[str, Any]:
    """A golden.json, its form checked. Raises BadInput."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        for sequence in value["sequences"]:
            rows, tokens = sequence["outputs"], sequence["tokens"]
            good = len(rows) <= len(value["positions"]) and all(isinstance(x, (int, float)) for row in rows for x in row)
            good = good and isinstance(sequence["nll_nats"], (int, float)) and all(isinstance(t, int) for t in tokens)
            if not good:
                raise ValueError("a sequence has rows of numbers in 'outputs', at most one for each of 'positions', a number 'nll_nats' and 'tokens'")
        if not value["sequences"]:
            raise ValueError("no sequence")
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise BadInput(f"{path}: not a golden.json as model/FORMAT.md describes it: {reason}") from error
    return value


def rivulet_score(rivulet: str, directory: pathlib.Path, want: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of `rivulet score` for the sequences of `want`. Raises BadInput with its message if it refuses the directory."""
    answers = []
    # A golden may leave out positions past the end of a sequence.
    for rows, sequences in itertools.groupby(want["sequences"], key=lambda s: len(s["outputs"])):
        lines = "".join(json.dumps({"tokens": s["tokens"]}) + "\n" for s in sequences)
        command = [rivulet, "score", "--model", str(directory), "--input", "-", "--backend", "cpu"]
        if rows:
            command += ["--outputs", ",".join(map(str, want["positions"][:rows]))]
        done = subprocess.run(command, input=lines, capture_output=True, text=True)
        if done.returncode != 0:
            raise BadInput(f"{directory}: rivulet score does not take it: {done.stderr.strip() or f'exit code {done.returncode}'}")
        answers += [json.loads(line) for line in done.stdout.splitlines()]
    return answers


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest differences over all sequences: outputs absolute, nll relative to the larger of the wanted value and 1 nat."""

    outputs: float
    nll: float

    def within(self, limit: float) -> bool:
        """False for NaN too."""
        return self.outputs <= limit and self.nll <= NLL_LIMIT


def difference(want: dict[str, Any], got: Sequence[dict[str, Any]]) -> Difference:
    """Compares the answers. Raises BadInput if their forms differ, for example by a head of another size."""
    if len(got) != len(want["sequences"]):
        raise BadInput(f"{len(got)} answers for {len(want['sequences'])} sequences")
    outputs = nll = 0.0
    for w, g in zip(want["sequences"], got, strict=True):
        if [len(row) for row in w["outputs"]] != [len(row) for row in g["outputs"]]:
            raise BadInput(f"rows of {[len(r) for r in w['outputs']]} outputs are wanted, the model gives {[len(r) for r in g['outputs']]}")
        pairs = [abs(a - b) for x, y in zip(w["outputs"], g["outputs"], strict=True) for a, b in zip(x, y, strict=True)]
        relative = abs(w["nll_nats"] - g["nll_nats"]) / max(abs(w["nll_nats"]), 1.0)
        outputs, nll = _larger(outputs, *pairs), _larger(nll, relative)
    return Difference(outputs, nll)


def _larger(*values: float) -> float:
    """The maximum; NaN if there is a NaN."""
    return next((v for v in values if v != v), max(values))


def print_difference(found: Difference, limit: float, against: str, want: dict[str, Any], verdict: str) -> bool:
    """Prints the differences, and `verdict` if they are within the limits; returns whether they are."""
    counted = sum(s["num_scored"] for s in want["sequences"]) if "num_scored" in want["sequences"][0] else "?"
    print(f"check: rivulet score against {against}: {len(want['sequences'])} sequence(s), {counted} scored tokens")
    print(f"  raw outputs  largest difference {found.outputs:.2e}, limit {limit:.0e}")
    print(f"  nll          relative difference {found.nll:.2e}, limit {NLL_LIMIT:.0e}")
    good = found.within(limit)
    print(f"  {verdict}" if good else "  BEYOND THE LIMITS", flush=True)
    return good


def say_not_checked(reason: str) -> None:
    """Reports that the check could not be made."""
    print(f"NOT CHECKED: {reason}", file=sys.stderr, flush=True)
