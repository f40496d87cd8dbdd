"""Prompts and tokens equal those that transformers makes of the same model folder."""

from __future__ import annotations

import inspect
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers import PreTrainedTokenizerFast

from gateway.text.chat_template import ChatTemplate
from gateway.text.template_arguments import is_reserved
from gateway.text.tokenizer import Tokenizer
from gateway.text.tokenizer_files import read_tokenizer
from tests.demo import demo_model_dir
from tests.gateway.model_folder import CHAT_TEMPLATE, make_model_folder
from tests.gateway.text.tools import templates

LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|system|>\\nToday: " + date_string + "\\n\\n" + system_message }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' + call.function.name + '", ' }}
            {{- '"parameters": ' + (call.function.arguments | tojson(indent=2)) + "}" }}
        {%- endfor %}
    {%- else %}
        {{- '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}
"""
QWEN_3 = """{%- macro said(content) %}{{- content if content is string else '' }}{%- endmacro %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if loop.index0 > 40 %}{% break %}{% endif %}
    {%- if message.reasoning_content is string %}
        {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {%- if message.role == "assistant" %}
        {% generation %}{% set shown = said(message.content) %}{{- shown + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.role + ': ' + said(message.content) }}{{ shown }}
    {%- endif %}
    {%- if loop.index0 > ns.last %}{% continue %}{% endif %}
    late
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
ODD = """  {% set d = dict(a=1, b=messages[0].content) %}
{{ d | tojson(sort_keys=true, separators=(',', ':')) }} {{ dict.fromkeys(['x']) }} {{ '<é&>' | tojson }}
  {# a comment #}
{% for message in messages %}
  {{ message | tojson(indent=4, ensure_ascii=true) }}
{% endfor %}{{ tools }}{{ documents }}{{ pad_token }}{{ nothing }}{{ messages | length }}{{ message.thinking }}
{% for message in messages %}{{ message.thinking }}{% endfor %}"""
REFUSED = [
    "{{ messages.append(1) }}",
    "{{ messages[0].clear() }}",
    "{{ raise_exception('no') }}",
    "{{ nothing.at_all }}",
    "{{ messages[9].content }}",
    "{{ ''.__class__.__mro__ }}",
    "{% for message in messages %}{{ loop.__class__ }}{% endfor %}",
    "{% for message in messages %}{{ loop._iterable }}{% endfor %}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{{ namespace(__class__=1) }}",
    "{{ dict.mro() }}",
    "{{ range(1000000) }}",
    "{{ messages[0].role + 1 }}",
]
USER: dict[str, Any] = {"role": "user", "content": "  Hé <b>?\n", "name": None}
CALLS = [{"id": "a23456789", "type": "function", "function": {"name": "f", "arguments": {"x": [1, None, "é"]}}}]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief. "}, USER, {"role": "assistant", "content": "I thi "}],
    [USER, {"role": "assistant", "content": "Sure", "reasoning_content": "\nhm\n"}, USER],
    [USER, {"role": "assistant", "content": "Sure", "reasoning": "older", "thinking": None}],
    [USER, {"role": "assistant", "content": None, "tool_calls": CALLS}, {"role": "tool", "content": "1"}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"text": "a"}, {"image": "b"}]}],
    [],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "é", "parameters": {"type": "object"}}}]
TEMPLATES = [
    *(templates.QWEN, templates.LLAMA, templates.MISTRAL, templates.PLAIN, CHAT_TEMPLATE, LLAMA_3, QWEN_3, ODD),
    *REFUSED,
]


def outcome(render: Any) -> tuple[str, str] | type[Exception]:
    """Return the rendered prompt, or the type of the error: jinja2's, or ValueError for any other."""
    try:
        return "prompt", render()
    except jinja2.TemplateError as error:
        return type(error)
    except (TypeError, ValueError, KeyError, OverflowError):
        return ValueError


RENDERINGS = [
    {"add_generation_prompt": prompted, "continue_final_message": continued}
    for prompted, continued in itertools.product((True, False), (True, False))
]
ARGUMENTS: list[dict[str, Any]] = [{}, {"enable_thinking": False, "date_string": "then"}]


def test_templates_make_the_same_prompts(tmp_path: Path) -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(make_model_folder(tmp_path / "model"))
    theirs.bos_token = "<s>"
    num_prompts = 0
    for source in [*TEMPLATES, read_tokenizer(demo_model_dir()).templates]:
        assert isinstance(source, str)
        ours = ChatTemplate(source, theirs.special_tokens_map)
        for case in itertools.product(CONVERSATIONS, (None, TOOLS), RENDERINGS, ARGUMENTS):
            messages, tools, rendering, arguments = case
            kwargs = {**rendering, **arguments, "chat_template": source, "tokenize": False}
            expected = outcome(partial(theirs.apply_chat_template, messages, tools, **kwargs))
            found = outcome(partial(ours.render, messages, tools, **rendering, arguments=arguments))
            assert found == expected, (source, case)
            num_prompts += isinstance(found, tuple)
    assert num_prompts > 300


def test_no_request_can_set_what_transformers_sets() -> None:
    names = inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters
    assert all(is_reserved(name) for name in names)


def token(content: str, **flags: bool) -> dict[str, Any]:
    defaults = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {"content": content, **defaults, **flags}


FOLDERS: dict[str, dict[str, Any]] = {
    "no config": {},
    "named tokens that are missing": {
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<s>", "unk_token": None}
    },
    "tokens as objects, and unknown names": {
        "tokenizer_config.json": {
            "bos_token": {"__type": "AddedToken", **token("<s>", lstrip=True)},
            "image_token": "<image>",
            "add_bos_token": True,
            "extra_special_tokens": {"audio_token": "<audio>", "boi_token": "<boi>"},
        }
    },
    "declared with numbers": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "301": token("<second>", special=False, normalized=True),
                "300": token("<first>"),
                "299": token("<|im_end|>", rstrip=True),
            },
            "additional_special_tokens": ["<first>", "<third>"],
            "bos_token": "<second>",
            "split_special_tokens": False,
        },
        "special_tokens_map.json": {"eos_token": "<ignored>"},
    },
    "older": {
        "tokenizer_config.json": {"bos_token": "<s>", "additional_special_tokens": ["<a>"]},
        "special_tokens_map.json": {
            "eos_token": {key: value for key, value in token("<|im_end|>").items() if key != "special"},
            "pad_token": "<pad>",
            "extra_special_tokens": ["<a>", "<b>"],
        },
        "added_tokens.json": {"<word>": 305, "<pad>": 304},
    },
    "special tokens are text": {"tokenizer_config.json": {"split_special_tokens": True}},
    "templates by name in the config": {
        "chat_template.jinja": None,
        "tokenizer_config.json": {
            "chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "{{ tools }}"}]
        },
    },
    "templates in files": {
        "chat_template.jinja": "d",
        "additional_chat_templates/tool_use.jinja": "t",
        "tokenizer_config.json": {"chat_template": "ignored"},
    },
    "one template in the config": {"chat_template.jinja": None, "tokenizer_config.json": {"chat_template": "c"}},
    "no template": {"chat_template.jinja": None},
    "for Mistral's words": {
        "tokenizer_config.json": {"fix_mistral_regex": True, "bos_token": "<s>"},
    },
}
TEXT = "<s>hello <|im_end|>  <first> <third><second>the <image> <audio><pad><word> quick\n<a><b> <boi>"


@pytest.mark.parametrize("kind", FOLDERS)
def test_model_folders_are_read_alike(kind: str, tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "model")
    (folder / "tokenizer_config.json").unlink()
    for name, content in FOLDERS[kind].items():
        (folder / name).parent.mkdir(exist_ok=True)
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    theirs = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    files = read_tokenizer(folder)
    assert files.special_tokens == theirs.special_tokens_map
    assert files.templates == theirs.chat_template
    added = {each: repr(token) for each, token in theirs.added_tokens_decoder.items()}
    assert {each: repr(token) for each, token in files.backend.get_added_tokens_decoder().items()} == added
    ours = Tokenizer.from_folder(folder)
    assert ours.encode_text(TEXT) == theirs(TEXT)["input_ids"]
    assert ours.decode(ours.encode_text(TEXT)) == theirs.decode(theirs(TEXT)["input_ids"], skip_special_tokens=True)


def test_the_demo_model_is_read_alike() -> None:
    theirs = PreTrainedTokenizerFast.from_pretrained(demo_model_dir())
    ours = Tokenizer.from_folder(demo_model_dir())
    prompt = ours.render_chat(CONVERSATIONS[1])
    assert prompt == theirs.apply_chat_template(CONVERSATIONS[1], tokenize=False, add_generation_prompt=True)
    assert ours.encode_chat(prompt, "tenant") == theirs(prompt, add_special_tokens=False)["input_ids"]
    assert ours.encode_text(TEXT) == theirs(TEXT)["input_ids"]
