#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lm-evaluation-harness, as it is, against rivulet-gateway: a small task of multiple choice and one of perplexity, whose results are those of
`rivulet score`. Needs the Python package lm_eval[api] and the gateway's packages; see tests/README.md."""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import rivulet_wheel  # noqa: F401

try:
    import lm_eval  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; tests/README.md says what this needs")
    sys.exit(77)

from command import ZOO, Server, rivulet, token_lines
from gateway import Gateway

import rivulet as client

MODEL = "shakespeare-rfa"
QUESTIONS = [
    ("To be, or not to b", ["e: that is the question", "q"]), ("ROMEO:\nO, she doth teach the torches to bur", ["n bright", "zzz"]),
    ("My kingdom for a hor", ["xq", "se"]), ("Good nig", ["ht, good night", "kk"]), ("What, ho", ["! Peter", "qq"]),
]  # fmt: skip
CHOICE = {
    "task": "small_choice", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "choice.jsonl"}}, "test_split": "test",
    "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}",
    "target_delimiter": "", "metric_list": [{"metric": "acc"}],
}  # fmt: skip
TEXT = {
    "task": "small_text", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "text.jsonl"}}, "test_split": "test",
    "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}", "target_delimiter": "",
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 8, "temperature": 0.0},
    "metric_list": [{"metric": "exact_match"}],
}  # fmt: skip


def expected(server):
    """The share of questions whose right answer is the likelier one, as Score says."""
    right = 0
    with client.Client(server.target) as connection:
        for question, choices in QUESTIONS:
            sums = []
            for choice in choices:
                ids = connection.tokenize(question + choice, model=MODEL).ids
                values = connection.score(ids, model=MODEL, logprobs=True).logprobs
                sums.append(float(values[len(question) - 1 :].sum()))
            right += sums.index(max(sums)) == answer_of(choices)
    return right / len(QUESTIONS)


def answer_of(choices):
    return choices.index(max(choices, key=len))


def greedy(server):
    with client.Client(server.target) as connection:
        return [connection.generate(q, model=MODEL, max_tokens=8, temperature=0.0, stop=["\n\n"], seed=1).collect().samples[0].text for q, _ in QUESTIONS]


def write(folder, server):
    (folder / "choice.jsonl").write_text("".join(
        json.dumps({"question": q, "choices": c, "answer": answer_of(c)}) + "\n" for q, c in QUESTIONS))  # fmt: skip
    (folder / "text.jsonl").write_text("".join(
        json.dumps({"question": q, "answer": text}) + "\n" for (q, _), text in zip(QUESTIONS, greedy(server), strict=True)))  # fmt: skip
    for task in (CHOICE, TEXT):
        (folder / f"{task['task']}.yaml").write_text(json.dumps(task))  # JSON is YAML


def main():
    with tempfile.TemporaryDirectory() as name, Server(ZOO / MODEL, args=("--threads", "1", "--backend", "cpu")) as server:
        with Gateway(server.target) as gateway:
            folder = pathlib.Path(name)
            write(folder, server)
            command = [
                sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args",
                f"model={MODEL},base_url={gateway.url}/v1/completions,num_concurrent=4", "--tasks", "small_choice,small_text",
                "--include_path", ".", "--output_path", "out",
            ]  # fmt: skip
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": "none"}
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=600)
            print(done.stdout[-3000:], done.stderr[-3000:] if done.returncode else "")
            if done.returncode:
                return 1
            (file,) = (folder / "out").rglob("results_*.json")
            results = json.loads(file.read_text())["results"]
            want = expected(server)
    found = results["small_choice"]["acc,none"], results["small_text"]["exact_match,none"]
    print(f"acc {found[0]}, of Score {want}; exact_match {found[1]}, wanted 1")
    return 0 if math.isclose(found[0], want) and 0 < want and found[1] == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
