# SPDX-License-Identifier: Apache-2.0
"""Prompts of chats are those of transformers' apply_chat_template, byte by byte: templates.json, which
tests/conformance/libraries/transformers_templates.py writes with that package. The gateway and `rivulet chat` render with one worker."""

import json
import sys
import unittest

import text_models
from command import SOURCE_DIR

sys.path.append(str(SOURCE_DIR / "client/python/src/rivulet/gateway"))
try:
    from worker import rendering
except ImportError as absent:
    print(f"skipped: there is no {absent.name} (deploy/setup.sh --tests)", file=sys.stderr)
    sys.exit(77)

FILE = SOURCE_DIR / "tests/e2e/gateway/templates.json"

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
    "headers": (  # Llama 3
        "{{- bos_token }}\n{%- if not tools is defined %}{%- set tools = none %}{%- endif %}\n{%- if tools is not none %}{{- 'tools' }}{%- endif %}"
        "{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') if strftime_now is defined else '26 Jul 2024' %}{%- endif %}"
        "{{ date_string|length }}{% for m in messages %}{% set content = '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' %}"
        "{% if loop.first %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    ),
    "roles": (  # Gemma
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for message in messages %}"
        "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}{{'<start_of_turn>model\\n'}}"
    ),
    "backwards": (  # Qwen 3
        "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}\n{%- for message in messages[::-1] %}\n"
        "    {%- set index = (messages|length - 1) - loop.index0 %}\n    {%- if ns.multi_step_tool and message.role == \"user\" and message.content is string "
        "and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}\n"
        "        {%- set ns.multi_step_tool = false %}\n        {%- set ns.last_query_index = index %}\n    {%- endif %}\n{%- endfor %}\n"
        "{{- ns.last_query_index }}{% if loop is defined %}x{% endif %}{%- for message in messages %}{%- if message.reasoning_content is string %}r{%- else %}"
        "{%- if '</think>' in message.content %}{{- message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}{%- endif %}{%- endif %}"
        "{%- endfor %}{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>' }}{%- endif %}"
    ),
    "controls": (  # loop controls, recursion and what a loop knows
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ loop.cycle('a', 'b') }}{{ loop.revindex }}"
        "{{ loop.previtem.role if loop.previtem is defined }}{{ loop.changed(m.role) }}{% if loop.index == 3 %}{% break %}{% endif %}{% else %}none{% endfor %}"
        "{% for x in [1, [2, [3]]] recursive %}{{ loop.depth }}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}"
    ),
    "filters": (
        "{{ messages | map(attribute='role') | unique | sort(reverse=true) | join('+') }}{{ messages | rejectattr('role', 'eq', 'user') | list | count }}"
        "{{ (messages | first).role | title }}{{ (messages | last).content | wordcount }}{{ '3.75' | float | round(1) }}{{ ' x ' | trim | indent(2, true) }}"
        "{{ missing | default('d') }}{{ none | default('n', true) }}{{ [3, 1, 2] | sort | reverse | list }}{{ {'b': 1, 'a': 2} | dictsort }}"
        "{% for role, group in messages | groupby('role') %}{{ role }}{{ group | length }}{% endfor %}{{ [1, 2, 3, 4] | sum }}{{ 'a,b' | replace(',', ';') }}"
        "{% for row in [1, 2, 3] | batch(2, 0) %}{{ row }}{% endfor %}{{ 'é' | upper }}{{ 'é' | length }}{{ 'a<b' | escape }}{{ 'x' | safe }}"
    ),
    "to json": (  # GLM 4.5, Hermes
        "{{ messages | tojson(ensure_ascii=False) }}{{ messages | tojson(indent=2) }}{{ {'b': '<é>', 'a': none} | tojson(sort_keys=true, separators=(',', ':')) }}"
        "{{ 'é' | tojson(True) }}{{ messages[0] | tojson(indent=4) | length }}"
    ),
    "tools": (  # those that transformers gives: none
        "{% if tools is not none %}some{% endif %}{% if tools %}some{% endif %}{{ tools }}{{ documents is defined }}{{ documents }}"
        "{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ tools is iterable }}{{ tools is mapping }}{{ custom_tools is defined }}"
    ),
    "dates": "{{ strftime_now('%Y-%m-%d') | length }}{{ strftime_now('%f') | length }}{{ strftime_now('%%')}}{{ strftime_now is defined }}",
    "scopes": (
        "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% generation %}{% set x = 3 %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}{{ x }}"
        "{% generation %}{% set y = 4 %}{{ y }}{% endgeneration %}{{ y is defined }}{% if true %}{% set z = 5 %}{% endif %}{{ z }}"
        "{% with w = 6 %}{{ w }}{% endwith %}{{ w is defined }}{% filter upper %}f{{ x }}{% endfilter %}"
    ),
    "calls": (
        "{% macro outer(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller else '' }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ outer(1) }}{{ outer(1, 3, 4, k=5) }}"
        "{% call outer('x') %}inner{% endcall %}{% macro down(n) %}{{ n }}{% if n %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(3) }}"
        "{{ messages[0].get('tool_calls') }}{{ messages[0].get('x', 'y') }}{{ dict(a=1).items() | list }}{{ range(2, 8, 3) | list }}"
    ),
    "texts": (
        "{% for m in messages %}{{ m.content.split('\\n') }}{{ m.content[:3] }}{{ m['content'][-2:] }}{{ m.content.find('o') }}{{ m.content.count('n') }}"
        "{{ m.content.title() }}{{ m.content.strip().endswith('?') }}{{ m.content.replace('o', '0', 1) }}{{ '%s|%3d' % (m.role, 7) }}{{ '{}-{:>4}'.format(m.role, 'x') }}"
        "{% endfor %}{{ 'a' 'b' }}{{ 'x' ~ 1 ~ none }}{{ 'abc'[::-1] }}{{ 'A-B'.lower().partition('-')[2] }}{{ ' a b '.split() }}{{ 'a' in 'abc' }}{{ 'aXbX'.rsplit('X', 1) }}"
    ),
    "numbers": "{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 2 ** 10 }}{{ 7 / 2 }}{{ 1e3 }}{{ 10 | int }}{{ '7' | int + 1 }}{{ 1 < 2 < 3 }}{{ [1, 2] + [3] }}{{ 0.1 + 0.2 }}{{ true }}{{ 1_000 }}",
    "raw": "  {%+ if true %}\n  kept{%- raw %} {{ not.read }} {% endraw -%}{% endif %}\n\n{#- c -#}  d{% if false %}e{% elif true %}f\n{% endif %}\n\n",
    "undefined": "{{ nothing }}{% if nothing %}a{% endif %}{{ messages[99] }}{{ messages[0].absent }}{{ messages[0].absent.further if messages[1] }}",
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


def answers(render):
    """Prompts by template and conversation; null: `render`(template, messages) refuses the conversation, by an error."""
    found = {}
    for name, template in {**TEMPLATES, "world": world()}.items():
        found[name] = {}
        for conversation, messages in CONVERSATIONS.items():
            try:
                found[name][conversation] = render(template, messages)
            except Exception:
                found[name][conversation] = None
    return found


class TemplatesTest(unittest.TestCase):
    def test_prompts(self):
        found = answers(lambda template, messages: rendering.render(template, {**SPECIAL, "messages": messages}))
        self.assertGreaterEqual(len(found), 20)
        self.maxDiff = None
        self.assertEqual(found, json.loads(FILE.read_text())["answers"])

    def test_the_built_in_one_asks_for_no_answer_after_an_answer(self):
        said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        self.assertEqual(rendering.render(world(), {"messages": said[:1]}), "User: a\n\nAssistant:")
        self.assertEqual(rendering.render(world(), {"messages": said}), "User: a\n\nAssistant: b\n\n")


if __name__ == "__main__":
    unittest.main()
