"""Tools, calls and results are shown in a model's prompt, by templates that know tools and by one that does not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.protocol import CallGrammar, Delta
from gateway.backends.text.calling_choice import calling_choices
from gateway.domain.errors import InvalidRequest
from gateway.text.options import PLAIN
from gateway.text.thinking import ThinkingText
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools import formats
from gateway.text.tools.formats import template_tools
from gateway.text.tools.grammar import call_grammar
from gateway.text.tools.tool import NO_PARAMETERS, Tool, ToolUse
from tests.demo import demo_model_dir
from tests.gateway.model_folder import make_model_folder
from tests.gateway.text.tools import templates

WEATHER = Tool("get_weather", {"type": "object", "properties": {"city": {"type": "string"}}}, "w", "Says é.")
TIME = Tool("get_time", NO_PARAMETERS, "t")
USER = {"role": "user", "content": "Hot in Nice?"}


def call(name: str, arguments: Any, call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answered(*calls: dict[str, Any], said: str = "") -> list[dict[str, Any]]:
    """Return a conversation with these tool calls, where each result is the function's name."""
    results = [
        {"role": "tool", "content": each["function"]["name"], "tool_call_id": each["id"], "name": "x"} for each in calls
    ]
    return [USER, {"role": "assistant", "content": said, "tool_calls": list(calls)}, *results]


def tokenizer_of(template: str, folder: Path) -> Tokenizer:
    make_model_folder(folder)
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("template", "form", "is_native"),
    [
        (templates.QWEN, formats.HERMES, True),
        (templates.LLAMA, formats.LLAMA, True),
        (templates.MISTRAL, formats.MISTRAL, True),
        (templates.GRANITE_3, formats.GRANITE, True),
        (templates.SMOLLM_3, formats.HERMES, True),
        (templates.QWEN_3, formats.HERMES, True),
        (templates.QWEN_3_5, formats.QWEN_CODER, True),
        (templates.GLM_4, formats.GLM, True),
        (templates.MINISTRAL_3, formats.MINISTRAL, True),
        (templates.GPT_OSS, formats.HERMES, True),
        ("{{ tools }} [TOOL_CALLS]name[CALL_ID]id[ARGS]", formats.HERMES, False),
        (templates.PLAIN, formats.HERMES, False),
        ("{{ tools }} <tool_call><function=name> arguments", formats.HERMES, False),
        ("{{ tools }} <tool_call><function=name><parameter=name>", formats.HERMES, False),
        ("{{ tools }}, in a way of its own", formats.HERMES, False),
        ("{# no tools_here #}", formats.HERMES, False),
        (None, formats.HERMES, False),
    ],
)
def test_a_template_says_how_its_model_calls(template: str | None, form: formats.CallFormat, is_native: bool):
    found = template_tools(template)
    assert (found.format, found.is_native) == (form, is_native)


def test_a_template_that_knows_tools_is_given_them(tmp_path: Path):
    shown = tokenizer_of(templates.QWEN, tmp_path / "m").render_chat(
        answered(call("get_weather", {"city": "Nice"}), call("get_time", "{broken", "b"), said="Let me see."),
        [WEATHER, TIME],
    )
    assert '{"type": "function", "function": {"name": "get_weather", "description": "Says é.", "parameters"' in shown
    written = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Nice"}}\n</tool_call>'
    assert f"<|im_start|>assistant\nLet me see.\n{written}" in shown
    assert '{"name": "get_time", "arguments": "{broken"}' in shown
    assert "<tool_response>\nget_weather\n</tool_response>" in shown


def test_llama_is_given_one_call_at_a_time(tmp_path: Path):
    tokenizer = tokenizer_of(templates.LLAMA, tmp_path / "m")
    shown = tokenizer.render_chat(answered(call("get_weather", {"city": "Nice"})), [WEATHER])
    assert '[assistant]{"name": "get_weather", "parameters": {"city": "Nice"}}\n[ipython]get_weather\n' in shown
    with pytest.raises(InvalidRequest, match="one tool at a time") as refused:
        tokenizer.render_chat(answered(call("get_time", {}), call("get_time", {}, "b")), [TIME])
    assert refused.value.param == "messages"


def test_mistral_is_given_ids_of_its_length(tmp_path: Path):
    shown = tokenizer_of(templates.MISTRAL, tmp_path / "m").render_chat(answered(call("get_time", {})), [TIME])
    short = hashlib.sha256(b"call_1").hexdigest()[:9]
    assert f'[TOOL_CALLS] [{{"name": "get_time", "arguments": {{}}, "id": "{short}"}}]' in shown
    assert f'"call_id": "{short}"' in shown


def test_glm_is_given_each_call_and_each_result_as_a_turn_of_its_own(tmp_path: Path):
    tokenizer = tokenizer_of(templates.GLM_4, tmp_path / "m")
    calls = (call("get_weather", {"city": "Nice"}), call("get_time", "{broken", "b"))
    shown = tokenizer.render_chat(answered(*calls, said="Let me see."), [WEATHER, TIME])
    assert '<|system|>\n# Tools\n\n## get_weather\n\n{\n    "name": "get_weather"' in shown
    assert shown.endswith(
        '<|user|>\nHot in Nice?<|assistant|>\nLet me see.<|assistant|>get_weather\n{"city": "Nice"}'
        "<|assistant|>get_time\n{broken<|observation|>\nget_weather<|observation|>\nget_time<|assistant|>"
    )
    silent = tokenizer.render_chat(answered(calls[0]), [WEATHER])
    assert '<|user|>\nHot in Nice?<|assistant|>get_weather\n{"city": "Nice"}<|observation|>' in silent


def test_glm_calls_by_a_name_and_a_line_of_arguments(tmp_path: Path):
    tokenizer = tokenizer_of(templates.GLM_4, tmp_path / "m")
    for written, found in (
        ('get_time\n{"zone": "CET"}', ("", ["get_time"], '{"zone": "CET"}')),
        ("get_time\nis the name of a tool", ("get_time\nis the name of a tool", [], "")),
        ('\nget_money\n{"much": true}', ('\nget_money\n{"much": true}', [], "")),
    ):
        assert read(tokenizer, tokenizer.encode_text(written)) == found


TOLD = {
    "granite 3": (
        templates.GRANITE_3,
        (
            '<|start_of_role|>available_tools<|end_of_role|>[\n    {\n        "type": "function"',
            '<|start_of_role|>assistant<|end_of_role|>Let me see.\n<|tool_call|>[{"name": "get_weather", '
            '"arguments": {"city": "Nice"}}, {"name": "get_time", "arguments": {}}]'
            "<|end_of_text|>\n<|start_of_role|>tool<|end_of_role|>get_weather<|end_of_text|>\n"
            "<|start_of_role|>tool<|end_of_role|>get_time<|end_of_text|>\n",
        ),
        '<|tool_call|>[{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": {"city": "Nice"}}]',
    ),
    "smollm 3": (
        templates.SMOLLM_3,
        (
            "<tools>\n{'type': 'function', 'function': {'name': 'get_weather'",
            '<|im_start|>assistant\nLet me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Nice"}}\n'
            '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call><|im_end|>\n'
            "<|im_start|>user\nget_weather<|im_end|>\n",
        ),
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Nice"}}\n</tool_call>',
    ),
    "qwen 3": (
        templates.QWEN_3,
        (
            '<tools>\n{"type": "function", "function": {"name": "get_weather"',
            "<|im_start|>assistant\n<think>\nTwo calls.\n</think>\n\nLet me see.\n"
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Nice"}}\n</tool_call>\n',
            "<|im_start|>user\n<tool_response>\nget_weather\n</tool_response>\n<tool_response>\nget_time\n"
            "</tool_response><|im_end|>\n",
        ),
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Nice"}}\n</tool_call>',
    ),
    "qwen 3.5": (
        templates.QWEN_3_5,
        (
            '<tools>\n{"type": "function", "function": {"name": "get_weather"',
            "<|im_start|>assistant\n<think>\nTwo calls.\n</think>\n\nLet me see.\n\n"
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nNice\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=get_time>\n</function>\n</tool_call><|im_end|>\n",
            "<|im_start|>user\n<tool_response>\nget_weather\n</tool_response>\n<tool_response>\nget_time\n"
            "</tool_response><|im_end|>\n",
        ),
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nNice\n</parameter>\n</function>\n</tool_call>",
    ),
}
"""Chat templates by model, with what each shows of a conversation with tools and reasoning, and how the model calls
two."""


@pytest.mark.parametrize("model", TOLD)
def test_a_conversation_with_tools_and_reasoning_is_shown_and_an_answer_read_as_the_model_was_trained(
    model: str, tmp_path: Path
):
    template, shown, written = TOLD[model]
    tokenizer = tokenizer_of(template, tmp_path / "m")
    calls = (call("get_weather", {"city": "Nice"}), call("get_time", {}, "b"))
    conversation = answered(*calls, said="Let me see.")
    conversation[1]["reasoning_content"] = "Two calls."
    prompt = tokenizer.render_chat(conversation, [WEATHER, TIME])
    for part in shown:
        assert part in prompt
    assert ("get_weather" in tokenizer.render_chat([USER], [WEATHER])) and "tools>" not in tokenizer.render_chat([USER])

    thinking, reply = ThinkingText(is_open=False), f"<think>\nTwo.\n</think>\n\nOn it.\n{written}"
    parts = [*thinking.push(reply), *thinking.finish()]
    assert parts[0] == ("thinking", "Two.") and thinking.has_thought
    text = "".join(text for kind, text in parts if kind == "text")
    use = ToolUse((WEATHER, TIME), frozenset({WEATHER.name, TIME.name}))
    ids = tokenizer.encode_text(text)
    assert read(tokenizer, ids, use) == ("On it.", ["get_time", "get_weather"], '{}{"city": "Nice"}')


def test_a_template_that_writes_arguments_one_by_one_is_given_objects(tmp_path: Path):
    tokenizer = tokenizer_of(templates.QWEN_3_5, tmp_path / "m")
    calls = (call("get_weather", {"city": "Nice", "n": [1, "é"], "is": True}), call("get_time", "{broken", "b"))
    shown = tokenizer.render_chat(answered(*calls), [WEATHER, TIME])
    assert '<parameter=n>\n[1, "é"]\n</parameter>\n<parameter=is>\ntrue\n</parameter>\n</function>' in shown
    assert "<function=get_time>\n<parameter=arguments>\n{broken\n</parameter>\n</function>" in shown
    empty = tokenizer.render_chat(answered(call("get_time", "")), [TIME])
    assert "<function=get_time>\n</function>" in empty
    use = ToolUse((WEATHER, TIME), frozenset({WEATHER.name, TIME.name}))
    grammar = msgspec.json.decode(call_grammar(tokenizer.tools, use, None, None).source, type=CallGrammar)
    assert [tool.texts for tool in grammar.tools] == [["city"], []]
    assert grammar.argument_pieces == formats.QWEN_CODER.argument_pieces


def test_a_template_that_writes_of_tools_and_is_given_none_is_no_native_one(tmp_path: Path):
    template = templates.SMOLLM_3.replace("xml_tools", "my_tools")
    tokenizer = tokenizer_of(template, tmp_path / "m")
    assert tokenizer.tools == formats.NO_TOOLS
    assert '{"type": "function", "function": {"name": "get_time"' in tokenizer.render_chat([USER], [TIME])


def with_special_tokens(folder: Path, template: str, *special: str) -> Tokenizer:
    """Return a tokenizer that has the marks of a template's calls as special tokens."""
    tokenizer = tokenizer_of(template, folder)
    assert not tokenizer.tools.has_special
    tokenizer.backend.add_special_tokens(list(special))
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_folder(folder)


ONE_TOOL = ToolUse((TIME,), frozenset({TIME.name}))


def read(tokenizer: Tokenizer, ids: list[int], use: ToolUse = ONE_TOOL) -> tuple[str, list[str], str]:
    """Return the content of a completion, the names of its calls, and their arguments."""
    (choice,) = calling_choices(1, tokenizer, use, (), min_tokens=0, style=PLAIN)
    pieces = [choice.push(Delta("r", [token_id], number)) for number, token_id in enumerate(ids, 1)]
    pieces.append(choice.end("stop"))
    calls = [call for piece in pieces if piece for call in piece.calls]
    content = "".join(piece.text for piece in pieces if piece)
    return content, [call.name for call in calls if call.name], "".join(call.arguments for call in calls)


def test_a_trigger_that_is_a_special_token_is_known_by_its_id(tmp_path: Path):
    tokenizer = with_special_tokens(tmp_path / "m", "{{ tools }} [TOOL_CALLS] [", "[TOOL_CALLS]")
    assert tokenizer.tools.trigger_id == tokenizer.backend.token_to_id("[TOOL_CALLS]")
    call = '[{"name": "get_time", "arguments": {}}]'
    ids = tokenizer.backend.encode(f"Look. [TOOL_CALLS] {call}").ids
    assert tokenizer.tools.trigger_id in ids and read(tokenizer, ids) == ("Look.", ["get_time"], "{}")
    spelled = [token_id for part in ("[TOOL", f"_CALLS] {call}") for token_id in tokenizer.backend.encode(part).ids]
    assert read(tokenizer, spelled) == (f"[TOOL_CALLS] {call}", [], "")


def test_ministral_calls_by_special_tokens(tmp_path: Path):
    tokenizer = with_special_tokens(tmp_path / "m", templates.MINISTRAL_3, "[TOOL_CALLS]", "[ARGS]")
    calls = (call("get_weather", {"city": "Nice"}), call("get_time", "{broken", "b"))
    shown = tokenizer.render_chat(answered(*calls, said="Let me see."), [WEATHER, TIME])
    written = '[TOOL_CALLS]get_weather[ARGS]{"city": "Nice"}[TOOL_CALLS]get_time[ARGS]'
    assert f"[INST]Hot in Nice?[/INST]Let me see.{written}{{broken</s>[TOOL_RESULTS]get_weather[/TOOL_RESULTS]" in shown

    marks = {mark: tokenizer.backend.token_to_id(mark) for mark in ("[TOOL_CALLS]", "[ARGS]")}
    assert (tokenizer.tools.trigger_id, tokenizer.tools.marks) == (marks["[TOOL_CALLS]"], marks)
    ids = tokenizer.backend.encode(f"Look. {written}{{}}").ids
    assert set(marks.values()) < set(ids)
    use = ToolUse((WEATHER, TIME), frozenset({WEATHER.name, TIME.name}))
    assert read(tokenizer, ids, use) == ("Look.", ["get_weather", "get_time"], '{"city": "Nice"}{}')
    grammar = msgspec.json.decode(call_grammar(tokenizer.tools, use, None, None).source, type=CallGrammar)
    assert (grammar.trigger, grammar.marks) == (marks["[TOOL_CALLS]"], marks)


def test_the_demo_model_is_told_in_words():
    tokenizer = Tokenizer.from_folder(demo_model_dir())
    calls = (call("get_weather", {"city": "Nice"}), call("get_time", {}, "b"))
    shown = tokenizer.render_chat([{"role": "system", "content": "Be brief."}, *answered(*calls)], [WEATHER, TIME])
    system, user, assistant, results, rest = shown.split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nBe brief.\n\nYou can call these functions:\n<tools>\n{")
    assert '"name": "get_time", "description": "", "parameters"' in system
    assert user == "<|im_start|>user\nHot in Nice?"
    assert assistant == (
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Nice"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    )
    assert results == (
        "<|im_start|>user\n<tool_response>\nget_weather\n</tool_response>\n<tool_response>\nget_time\n</tool_response>"
    )
    assert rest == "<|im_start|>assistant\n"


def test_calls_of_earlier_turns_are_shown_without_any_tools():
    tokenizer = Tokenizer.from_folder(demo_model_dir())
    shown = tokenizer.render_chat(answered(call("get_time", {}), said="Wait."))
    assert 'Wait.\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call><|im_end|>' in shown
    assert "You can call" not in shown
