"""Tools, calls and results in a model's prompt, through templates that know them and one that does not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from engine.protocol import Delta
from gateway.backends.text.calling_choice import calling_choices
from gateway.domain.errors import InvalidRequest
from gateway.text.options import PLAIN
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools import formats
from gateway.text.tools.formats import template_tools
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
    """Return a conversation in which these calls were made, each with its function's name as its result."""
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
        (templates.PLAIN, formats.HERMES, False),
        ("{{ tools }} <tool_call><function=name> arguments", formats.HERMES, False),
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


def with_trigger_token(folder: Path) -> Tokenizer:
    """Return a tokenizer whose template's trigger is one of its special tokens."""
    tokenizer = tokenizer_of("{{ tools }} [TOOL_CALLS] [", folder)
    assert tokenizer.tools.trigger_id is None
    tokenizer.backend.add_special_tokens(["[TOOL_CALLS]"])
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.from_folder(folder)


def read(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, list[str], str]:
    """Return the content of a completion, the names of its calls, and their arguments."""
    (choice,) = calling_choices(1, tokenizer, ToolUse((TIME,), frozenset({TIME.name})), (), min_tokens=0, style=PLAIN)
    pieces = [choice.push(Delta("r", [token_id], number)) for number, token_id in enumerate(ids, 1)]
    pieces.append(choice.end("stop"))
    calls = [call for piece in pieces if piece for call in piece.calls]
    content = "".join(piece.text for piece in pieces if piece)
    return content, [call.name for call in calls if call.name], "".join(call.arguments for call in calls)


def test_a_trigger_that_is_a_special_token_is_known_by_its_id(tmp_path: Path):
    tokenizer = with_trigger_token(tmp_path / "m")
    assert tokenizer.tools.trigger_id == tokenizer.backend.token_to_id("[TOOL_CALLS]")
    call = '[{"name": "get_time", "arguments": {}}]'
    ids = tokenizer.backend.encode(f"Look. [TOOL_CALLS] {call}").ids
    assert tokenizer.tools.trigger_id in ids and read(tokenizer, ids) == ("Look.", ["get_time"], "{}")
    spelled = [token_id for part in ("[TOOL", f"_CALLS] {call}") for token_id in tokenizer.backend.encode(part).ids]
    assert read(tokenizer, spelled) == (f"[TOOL_CALLS] {call}", [], "")


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
