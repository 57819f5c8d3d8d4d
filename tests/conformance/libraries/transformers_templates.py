#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chat templates as the package transformers renders them, beside the worker of the gateway and of `rivulet chat`.

    pip install transformers==5.24.0 jinja2==3.1.6
    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    transformers_templates.py --write                             the answers of tests/e2e/gateway/templates.json
    transformers_templates.py llama_cpp_python-0.3.36.tar.gz      compares templates of published models, three conversations each

The source distribution holds the templates; none of them belongs into the repository.
"""

import hashlib
import json
import pathlib
import sys
import tarfile

import jinja2
import tokenizers
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "tests/e2e/support"), str(ROOT / "tests/e2e/gateway")]
import gateway_templates_test as ours  # noqa: E402

VERSIONS = {"transformers": "5.24.0", "jinja2": "3.1.6"}
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
TOKENIZER = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "</s>": 1})), **ours.SPECIAL)


def theirs(template: str, messages: list[dict[str, str]]) -> str:
    """Errors: of any kind, where the template refuses the messages."""
    text = TOKENIZER.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text


def prompt_or_error(render: object, template: str, messages: list[dict[str, str]]) -> str | None:
    try:
        return render(template, messages)  # type: ignore[operator]
    except Exception:
        return None


def compare(archive: pathlib.Path) -> bool:
    if (found := hashlib.sha256(archive.read_bytes()).hexdigest()) != SHA256:
        sys.exit(f"{archive}: SHA-256 is {found}, not {SHA256}")
    count = refused = different = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            if "/models/templates/" not in member.name or not member.name.endswith(".jinja"):
                continue
            file = tar.extractfile(member)
            assert file is not None
            template = file.read().decode()
            count += 1
            for name in ("one", "two", "system"):
                messages = ours.CONVERSATIONS[name]
                expected = prompt_or_error(theirs, template, messages)
                got = prompt_or_error(lambda t, m: ours.worker.render(t, m, ours.SPECIAL).decode(), template, messages)
                refused += expected is None
                if got != expected:
                    different += 1
                    print(f"{pathlib.PurePath(member.name).name}, {name}:\n  transformers {expected!r}\n  ours         {got!r}")
    print(f"{count} templates, {3 * count} conversations: transformers refuses {refused}, {different} differ")
    return count >= 70 and different == 0


def main() -> None:
    found = {"transformers": transformers.__version__, "jinja2": jinja2.__version__}
    if found != VERSIONS:
        sys.exit(f"needs {VERSIONS}; got {found}")
    if sys.argv[1:] != ["--write"]:
        sys.exit(0 if compare(pathlib.Path(sys.argv[1])) else 1)
    ours.FILE.write_text(json.dumps({"made_by": VERSIONS, "answers": ours.answers(theirs)}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
