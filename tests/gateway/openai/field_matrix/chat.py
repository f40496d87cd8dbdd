"""The rows of the matrix for the fields of chat completions."""

from __future__ import annotations

from typing import Any

from engine.protocol import Grammar
from tests.gateway.openai.field_matrix.cases import (
    ABSENT,
    NEEDED,
    USER,
    Check,
    Field,
    ObservedEffects,
    accepted,
    honoured,
    refused,
)
from tests.gateway.openai.field_matrix.common import completing, free_text, no_effect, switch, unsupported_field

PATH = "/v1/chat/completions"
SCHEMA = {"name": "answer", "schema": {"type": "object"}}
ASSISTANT = {"role": "assistant", "content": "hello"}


def _messages() -> list[Field]:
    return [
        Field(
            endpoint=PATH,
            name="messages",
            valid=(accepted([USER]), accepted([{"role": "system", "content": "be brief"}, USER, ASSISTANT, USER])),
            edge=(accepted([{"role": "user", "content": ""}]),),
            invalid=(
                refused([]),
                refused([{"role": "user", "content": "xyz " * 400}]),
                refused([{}], "messages[0].role"),
            ),
            null=NEEDED,
            wrong_type=(refused("hi"), refused(1), refused(["hi"], "messages[0]")),
        ),
        Field(
            endpoint=PATH,
            name="messages[0].role",
            valid=tuple(accepted(role) for role in ("developer", "system", "user", "assistant")),
            invalid=(refused("robot"), refused("")),
            null=NEEDED,
            wrong_type=(refused(1),),
        ),
        Field(
            endpoint=PATH,
            name="messages[0].content",
            valid=(
                honoured("once more", lambda seen: len(seen.asked.prompt_token_ids) > 5),
                honoured([{"type": "text", "text": "once more"}], lambda seen: len(seen.asked.prompt_token_ids) > 5),
            ),
            invalid=(
                refused([]),
                refused([{"type": "text"}], "messages[0].content[0].text"),
                refused([{"type": "image_url", "image_url": {"url": "x"}}], "messages[0].content[0].type"),
                refused([{"type": "input_audio", "input_audio": {}}], "messages[0].content[0].type"),
            ),
            null=NEEDED,
            wrong_type=(refused(1), refused({})),
        ),
        Field(
            endpoint=PATH,
            name="messages[0].name",
            valid=(accepted("ann"),),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="for templates that read it",
        ),
    ]


def _lengths() -> list[Field]:
    def bound(name: str, **beside: Any) -> Field:
        return Field(
            endpoint=PATH,
            name=name,
            valid=(honoured(3, lambda seen: seen.sampling.max_tokens == 3, **beside),),
            edge=(honoured(1, lambda seen: seen.sampling.max_tokens == 1, **beside),),
            invalid=(refused(0, **beside), refused(513, **beside), refused(-1, **beside)),
            null=(accepted(None, **beside),),
            wrong_type=(refused("3", **beside), refused(True, **beside), refused(1.5, **beside)),
        )

    return [bound("max_tokens"), bound("max_completion_tokens", max_tokens=None)]


def _logprobs() -> list[Field]:
    return [
        switch(
            PATH,
            "logprobs",
            lambda seen: len(seen.choice["logprobs"]["content"]) == 2,
            lambda seen: seen.choice["logprobs"] is None,
        ),
        Field(
            endpoint=PATH,
            name="top_logprobs",
            valid=(
                honoured(
                    2, lambda seen: len(seen.choice["logprobs"]["content"][0]["top_logprobs"]) == 2, logprobs=True
                ),
            ),
            edge=(
                accepted(0),
                honoured(
                    20, lambda seen: len(seen.choice["logprobs"]["content"][0]["top_logprobs"]) == 20, logprobs=True
                ),
            ),
            invalid=(refused(1), refused(21, logprobs=True), refused(-1, logprobs=True)),
            null=ABSENT,
            wrong_type=(refused("2"), refused(True)),
        ),
    ]


def _formats() -> list[Field]:
    def is_grammar(kind: str) -> Any:
        return lambda seen: isinstance(seen.sampling.grammar, Grammar) and seen.sampling.grammar.kind == kind

    return [
        Field(
            endpoint=PATH,
            name="response_format",
            valid=(
                accepted({"type": "text"}),
                honoured({"type": "json_object"}, is_grammar("json_object")),
                honoured({"type": "json_schema", "json_schema": SCHEMA}, is_grammar("json_schema")),
            ),
            invalid=(
                refused({}, "response_format.type"),
                refused({"type": "json_schema"}, "response_format.json_schema"),
                refused({"type": "text", "json_schema": SCHEMA}, "response_format.json_schema"),
                refused(
                    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"unsupported": 1}}},
                    "response_format.json_schema.schema",
                ),
            ),
            null=ABSENT,
            wrong_type=(refused("json"), refused([])),
        ),
        Field(
            endpoint=PATH,
            name="response_format.type",
            valid=(accepted("text"), honoured("json_object", is_grammar("json_object"))),
            invalid=(refused("xml"), refused("")),
            null=NEEDED,
            wrong_type=(refused(1),),
        ),
        Field(
            endpoint=PATH,
            name="response_format.json_schema.name",
            valid=(honoured("a-1_B", is_grammar("json_schema"), response_format=_schema()),),
            edge=(honoured("x" * 64, is_grammar("json_schema"), response_format=_schema()),),
            invalid=(
                refused("", response_format=_schema()),
                refused("a b", response_format=_schema()),
                refused("x" * 65, response_format=_schema()),
            ),
            null=(refused(None, response_format=_schema()),),
            wrong_type=(refused(1, response_format=_schema()),),
        ),
        Field(
            endpoint=PATH,
            name="response_format.json_schema.schema",
            valid=(honoured({"type": "object"}, is_grammar("json_schema"), response_format=_schema()),),
            null=(honoured(None, is_grammar("json_object"), response_format=_schema()),),
            wrong_type=(refused([1], response_format=_schema()), refused("x", response_format=_schema())),
        ),
        Field(
            endpoint=PATH,
            name="response_format.json_schema.strict",
            valid=(accepted(True, response_format=_schema()), accepted(False, response_format=_schema())),
            null=(accepted(None, response_format=_schema()),),
            wrong_type=(refused("yes", response_format=_schema()),),
            note="enforced either way",
        ),
        Field(
            endpoint=PATH,
            name="response_format.json_schema.description",
            valid=(accepted("an answer", response_format=_schema()),),
            null=(accepted(None, response_format=_schema()),),
            wrong_type=(refused(1, response_format=_schema()),),
        ),
    ]


def _schema() -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": SCHEMA}


def _templates() -> list[Field]:
    """Return the fields that the chat template of the matrix reads: effort, verbosity and enable_thinking.

    The template writes them into the prompt.
    """
    efforts = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    continued = {"messages": [USER, ASSISTANT]}

    def is_written(name: str, value: str) -> Check:
        return lambda seen: f"{name}={value}\n" in seen.prompt

    return [
        Field(
            endpoint=PATH,
            name="reasoning_effort",
            valid=tuple(honoured(effort, is_written("reasoning_effort", effort)) for effort in efforts),
            invalid=(refused("extreme"), refused("")),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="where the template reads it; else only `none` and `medium` are accepted",
        ),
        Field(
            endpoint=PATH,
            name="verbosity",
            valid=tuple(honoured(each, is_written("verbosity", each)) for each in ("low", "medium", "high")),
            invalid=(refused("extreme"),),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="where the template reads it; else only `medium` is accepted",
        ),
        Field(
            endpoint=PATH,
            name="chat_template_kwargs",
            valid=(honoured({"enable_thinking": False}, lambda seen: "enable_thinking=False" in seen.prompt),),
            edge=(
                accepted({}),
                accepted({"enable_thinking": None}),
                accepted({"unread": 1}),
            ),
            invalid=(
                refused({"chat_template": "x"}, "chat_template_kwargs.chat_template"),
                refused({"tokenize": True}, "chat_template_kwargs.tokenize"),
                refused({"messages": "x"}, "chat_template_kwargs.messages"),
                refused({"eos_token": "x"}, "chat_template_kwargs.eos_token"),
                refused({"enable_thinking": "x" * 1025}),
                refused({str(number): 1 for number in range(17)}),
            ),
            null=ABSENT,
            wrong_type=(refused([]), refused({"enable_thinking": [1]}), refused({"enable_thinking": {}})),
            note="scalars; a name that the template does not read has no effect",
        ),
        switch(
            PATH,
            "add_generation_prompt",
            lambda seen: seen.ends_for_assistant,
            lambda seen: not seen.ends_for_assistant,
        ),
        Field(
            endpoint=PATH,
            name="continue_final_message",
            valid=(
                honoured(True, lambda seen: not seen.ends_for_assistant, **continued),
                honoured(False, lambda seen: seen.ends_for_assistant, **continued),
            ),
            invalid=(refused(True), refused(True, add_generation_prompt=True, **continued)),
            null=ABSENT,
            wrong_type=(refused(1), refused("true")),
        ),
        Field(
            endpoint=PATH,
            name="add_special_tokens",
            valid=(accepted(True), accepted(False)),
            null=ABSENT,
            wrong_type=(refused(1), refused("true")),
            note="those that the tokenizer adds; templates write their own",
        ),
    ]


def _predictions() -> list[Field]:
    def predicted(seen: Any) -> object:
        return seen.asked.predicted_token_ids and seen.reply["usage"]["completion_tokens_details"]

    return [
        Field(
            endpoint=PATH,
            name="prediction",
            valid=(
                honoured({"type": "content", "content": "hello"}, predicted),
                honoured({"type": "content", "content": [{"type": "text", "text": "hello"}]}, predicted),
            ),
            edge=(accepted({"type": "content", "content": ""}), accepted({"type": "content", "content": []})),
            invalid=(
                refused({}, "prediction.type"),
                refused({"type": "content"}, "prediction.content"),
                refused({"type": "other", "content": ""}, "prediction.type"),
                refused({"type": "content", "content": [{"type": "image"}]}, "prediction.content[0].type"),
                refused({"type": "content", "content": "x"}, n=2),
            ),
            null=ABSENT,
            wrong_type=(refused("hello"), refused([])),
            note="makes answers faster where the engine speculates, and never other ones",
        ),
    ]


def _tiers() -> list[Field]:
    return [
        Field(
            endpoint=PATH,
            name="service_tier",
            valid=(
                honoured("flex", lambda seen: seen.asked.weight == 0.5 and seen.reply["service_tier"] == "flex"),
                honoured("priority", lambda seen: seen.asked.weight == 2.0),
                honoured("default", lambda seen: seen.asked.weight == 1.0),
                honoured("auto", lambda seen: seen.reply["service_tier"] == "default"),
            ),
            invalid=(refused("scale"), refused("fast"), refused("gold")),
            null=ABSENT,
            wrong_type=(refused(1),),
        ),
        free_text(PATH, "safety_identifier", most=64, note="for the caller's own bookkeeping"),
        free_text(PATH, "prompt_cache_key", note="prefixes are cached by tenant and content"),
        Field(
            endpoint=PATH,
            name="prompt_cache_retention",
            valid=(accepted("in_memory"),),
            invalid=(refused("24h"), refused("1h")),
            null=ABSENT,
            wrong_type=(refused(1),),
        ),
        unsupported_field(PATH, "prompt_cache_options", {"mode": "explicit"}),
        no_effect(PATH, "modalities", ["text"], (["text", "audio"], ["audio"], []), ("text", 1)),
        unsupported_field(PATH, "audio", {"voice": "alloy", "format": "mp3"}),
        unsupported_field(PATH, "web_search_options", {}),
        unsupported_field(PATH, "moderation", {"model": "omni"}),
    ]


def _tools() -> list[Field]:
    """Return the fields of tools. The fields inside of tools have a test of their own, `test_wrong_tools`."""
    one, other = {"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [one]}}
    with_tools: dict[str, Any] = {"tools": [one]}
    old: dict[str, Any] = {"functions": [{"name": "f"}]}

    def says(text: str) -> Check:
        return lambda seen: seen.sampling.grammar is not None and text in seen.sampling.grammar.source

    def none(seen: ObservedEffects) -> bool:
        return seen.sampling.grammar is None

    return [
        Field(
            endpoint=PATH,
            name="tools",
            valid=(honoured([one], says('"tools"')), honoured([one, other], says('"tools"'))),
            edge=(accepted([]),),
            invalid=(
                refused([{}], "tools[0].type"),
                refused([one, one], "tools[1].function.name"),
                refused([{"type": "custom", "custom": {"name": "f"}}], "tools[0].type"),
                refused([one] * 129),
            ),
            null=ABSENT,
            wrong_type=(refused("x"), refused(1), refused([3], "tools[0]")),
            note="functions, 128 at most",
        ),
        Field(
            endpoint=PATH,
            name="tool_choice",
            valid=(
                honoured("auto", says('"max_calls"'), **with_tools),
                honoured("required", says('"must_call":true'), **with_tools),
                honoured(one, says('"must_call":true'), **with_tools),
                honoured(allowed, says('"tools"'), **with_tools),
                honoured("none", none, **with_tools),
            ),
            invalid=(
                refused("any", **with_tools),
                refused("required"),
                refused(other, "tool_choice.function.name", **with_tools),
            ),
            null=(honoured(None, says('"tools"'), **with_tools),),
            wrong_type=(refused(1, **with_tools), refused([], **with_tools)),
        ),
        Field(
            endpoint=PATH,
            name="parallel_tool_calls",
            valid=(
                honoured(True, says('"max_calls"'), **with_tools),
                honoured(False, lambda seen: not says('"max_calls"')(seen), **with_tools),
            ),
            invalid=(refused(True), refused(False, **old)),
            null=(accepted(None, **with_tools),),
            wrong_type=(refused(1, **with_tools), refused("true", **with_tools)),
        ),
        Field(
            endpoint=PATH,
            name="functions",
            valid=(honoured([{"name": "f"}], says('"tools"')),),
            edge=(accepted([]),),
            invalid=(refused([{}], "functions[0].name"), refused([{"name": "f"}], **with_tools)),
            null=ABSENT,
            wrong_type=(refused("x"), refused([3], "functions[0]")),
            note="answered in their own shape",
        ),
        Field(
            endpoint=PATH,
            name="function_call",
            valid=(
                honoured("auto", says('"tools"'), **old),
                honoured({"name": "f"}, says('"must_call":true'), **old),
                honoured("none", none, **old),
            ),
            invalid=(refused("required", **old), refused({"name": "g"}, "function_call.name", **old)),
            null=(honoured(None, says('"tools"'), **old),),
            wrong_type=(refused(1, **old), refused([], **old)),
        ),
        Field(
            endpoint=PATH,
            name="store",
            valid=(accepted(False),),
            invalid=(refused(True),),
            null=ABSENT,
            wrong_type=(refused("x"),),
            note="true where the project stores completions",
        ),
    ]


CHAT = [
    *_messages(),
    *completing(PATH),
    *_lengths(),
    *_logprobs(),
    *_formats(),
    *_templates(),
    *_predictions(),
    *_tiers(),
    *_tools(),
]
