# SPDX-License-Identifier: Apache-2.0
"""What the gateway makes of chat templates: tests/unit/client/cli/chat/templates.json, which the unit tests of `rivulet chat` hold
the C++ engine to. With --write: writes the file."""

import json
import sys
import unittest

import text_models
from command import SOURCE_DIR

sys.path.append(str(SOURCE_DIR / "client/python/src/rivulet/gateway"))
try:
    import worker
except ImportError as absent:
    print(f"skipped: there is no {absent.name} (deploy/setup.sh --tests)", file=sys.stderr)
    sys.exit(77)

FILE = SOURCE_DIR / "tests/unit/client/cli/chat/templates.json"

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
SYSTEM = {"role": "system", "content": " Be brief.\n"}
ASK, REPLY = {"role": "user", "content": "Who \"is\" é?\n"}, {"role": "assistant", "content": " <think>hm</think>\n\nNobody. "}
CONVERSATIONS = {"one": [ASK], "two": [ASK, REPLY, {"role": "user", "content": "Why\n\nnot?"}], "system": [SYSTEM, ASK, REPLY, ASK],
                 "tool": [ASK, {"role": "tool", "content": "4"}]}  # fmt: skip

# In the manner of templates that published models come with: what each of them needs of the language.
TEMPLATES = {
    "plain": text_models.TEMPLATE,
    "upper": (
        "{%- for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
        "{{ message.role | upper }}:\n{{ message.content }}\n\n{% endfor %}{% if add_generation_prompt %}ASSISTANT:\n{% endif %}"
    ),
    "chatml": (
        "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
    ),
    "namespace": (
        "{%- set ns = namespace(system='', found=false) -%}\n{%- for m in messages -%}\n"
        "  {%- if m['role'] == 'system' -%}{%- set ns.system = m['content'] -%}{%- set ns.found = true -%}{%- endif -%}\n{%- endfor -%}\n"
        "{{ bos_token }}\n{%- if ns.found -%}{{ 'System: ' + ns.system|trim + '\\n\\n' }}{%- endif -%}\n"
        "{%- for m in messages if m.role != 'system' -%}{{ loop.index0 ~ '/' ~ loop.length ~ (' last' if loop.last else '') ~ ': ' }}"
        "{{ m.content }}{{ eos_token if m.role == 'assistant' else '' }}{%- endfor -%}"
    ),
    "slices": (
        "{% if messages[0]['role'] == 'system' %}{% set system_message = '<<SYS>>\\n' + messages[0]['content'].strip() + '\\n<</SYS>>\\n\\n' %}"
        "{% set messages = messages[1:] %}{% else %}{% set system_message = '' %}{% endif %}{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
        "{% if loop.index0 == 0 %}{% set content = system_message + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}{{ '[INST] ' + content | trim + ' [/INST]' }}{% else %}{{ ' ' + content | trim + ' ' + eos_token }}"
        "{% endif %}{% endfor %}"
    ),
    "thinking": (
        "{% for m in messages %}{% if m.role == 'assistant' and '</think>' in m.content %}{% set text = m.content.split('</think>')[-1].lstrip('\\n') %}"
        "A: {{ text.rstrip() }}\n{% elif m.role is defined and m.role in ['user', 'system'] %}{{ m.role|capitalize }}: {{ m.content|replace('\\n', ' ') }}\n"
        "{% endif %}{% endfor %}{% if add_generation_prompt and enable_thinking is not defined %}A: <think>\n\n</think>\n{% endif %}"
    ),
    "macro": (
        "{% macro turn(role, text='none') %}<{{ role }}>{{ text }}</{{ role }}>\n{% endmacro %}{# a comment #}"
        "{%- for m in messages[::-1] %}{{ turn(m.role, text=m.content) }}{% endfor %}{{ messages | length }}{{ messages[-1].role.startswith('us') }}"
    ),
    "json": (
        "{{ messages | tojson }}\n{% for m in messages %}{% for key, value in m.items() %}{{ key }}={{ value|string|trim }};{% endfor %}"
        "{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}{{ messages | map(attribute='role') | join(',') }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ tools is defined and tools is not none }}{{ [1, 2.5, none, true] | tojson }}"
    ),
    "generation": (
        "{% for m in messages %}{{ m.role }}: {% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}"
    ),
    "whitespace": (
        "  {% if true %}\n   a\n  {% endif %}\n{% if true %} b{% endif %}\n\n{{- 'c' -}}\n  d\n"
        "{% set block %}x{{ 1 + 2 * 3 - -1 }}{% endset %}{{ block }}{{ 7 % 3 }}{{ 'ab' * 2 }}{{ not false and (1 < 2) }}\n"
    ),
}


def world():
    """The built-in template for RWKV World, as the server has it."""
    source = (SOURCE_DIR / "model/model_text.cc").read_text()
    lines = source.partition("kWorldTemplate[] =\n")[2].partition(";\n")[0].splitlines()
    return "".join(json.loads(line.strip()) for line in lines)


def cases():
    """[{template, messages, special_tokens, prompt}]; a prompt of null: the template refuses the conversation."""
    found = []
    for name, template in {**TEMPLATES, "world": world()}.items():
        for conversation, messages in CONVERSATIONS.items():
            try:
                prompt = worker.render(template, messages, SPECIAL).decode()
            except worker.Refused:
                prompt = None
            found.append({"name": f"{name}, {conversation}", "template": template, "messages": messages, "prompt": prompt})
    return {"special_tokens": SPECIAL, "cases": found}


class TemplatesTest(unittest.TestCase):
    def test_prompts(self):
        self.assertEqual(json.loads(FILE.read_text()), cases())

    def test_the_built_in_one_asks_for_no_answer_after_an_answer(self):
        said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        self.assertEqual(worker.render(world(), said[:1], {}).decode(), "User: a\n\nAssistant:")
        self.assertEqual(worker.render(world(), said, {}).decode(), "User: a\n\nAssistant: b\n\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(json.dumps(cases(), ensure_ascii=False, indent=1) + "\n")
    else:
        unittest.main()
