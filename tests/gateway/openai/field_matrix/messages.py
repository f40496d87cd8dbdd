"""The rows of the matrix for the fields of messages, in Anthropic's API."""

from __future__ import annotations

from typing import Any

from engine.protocol import Grammar
from tests.gateway.openai.field_matrix.cases import ABSENT, NEEDED, Check, Field, accepted, honoured, refused
from tests.gateway.openai.field_matrix.common import model, no_effect, switch, unsupported_field

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
USER = {"role": "user", "content": "hello"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
THINK = {"type": "enabled", "budget_tokens": 1024}


def _is_grammar(kind: str) -> Check:
    return lambda seen: isinstance(seen.sampling.grammar, Grammar) and seen.sampling.grammar.kind == kind


def _prompt() -> list[Field]:
    return [
        Field(
            endpoint=PATH,
            name="messages",
            valid=(
                honoured([USER], lambda seen: "user\nhello" in seen.prompt),
                honoured([USER, {"role": "system", "content": "soon"}], lambda seen: "system\nsoon" in seen.prompt),
                honoured([USER, {"role": "assistant", "content": "I"}], lambda seen: not seen.ends_for_assistant),
            ),
            edge=(accepted([{"role": "user", "content": ""}]), accepted([USER, {"role": "assistant", "content": ""}])),
            invalid=(
                refused([]),
                refused([{"role": "user", "content": "xyz " * 400}]),
                refused([{"role": "tool", "content": "x"}], "messages[0].role"),
                refused([{"role": "user"}], "messages[0].content"),
                refused([{"role": "user", "content": [IMAGE]}], "messages[0].content[0].type"),
                refused([USER, {"role": "assistant", "content": "I "}]),
            ),
            null=NEEDED,
            wrong_type=(refused("hello"), refused([1], "messages[0]")),
            note="text, thinking, calls and results of tools; the beginning of an answer may come last",
        ),
        Field(
            endpoint=PATH,
            name="system",
            valid=(
                honoured("Be brief.", lambda seen: "system\nBe brief." in seen.prompt),
                honoured([{"type": "text", "text": "Be brief."}], lambda seen: "system\nBe brief." in seen.prompt),
                honoured(
                    [{"type": "text", "text": "x-anthropic-billing-header: a"}],
                    lambda seen: "billing" not in seen.prompt,
                ),
            ),
            edge=(accepted(""), accepted([])),
            invalid=(refused([IMAGE], "system[0].type"), refused([{"type": "text"}], "system[0].text")),
            null=ABSENT,
            wrong_type=(refused(1), refused(["x"], "system[0]")),
            note="a block with Claude Code's header for billing is left out",
        ),
        Field(
            endpoint=PATH,
            name="tools",
            valid=(
                honoured([TOOL], _is_grammar("tool_calls")),
                honoured(
                    [TOOL | {"type": "custom", "cache_control": {"type": "ephemeral"}}], _is_grammar("tool_calls")
                ),
            ),
            edge=(accepted([]),),
            invalid=(
                refused([{"name": "f"}], "tools[0].input_schema"),
                refused([TOOL, TOOL], "tools[1].name"),
                refused([TOOL | {"name": "a b"}], "tools[0].name"),
                refused([{"type": "bash_20250124", "name": "bash"}], "tools[0].type"),
                refused([{"type": "web_search_20250305", "name": "web_search", "max_uses": 1}], "tools[0].type"),
                refused([TOOL | {"defer_loading": True}], "tools[0].defer_loading"),
            ),
            null=ABSENT,
            wrong_type=(refused("x"), refused([3], "tools[0]")),
            note="tools that the client runs",
        ),
        Field(
            endpoint=PATH,
            name="tool_choice",
            valid=(
                honoured({"type": "any"}, _is_grammar("tool_calls"), tools=[TOOL]),
                honoured({"type": "tool", "name": "f"}, _is_grammar("tool_calls"), tools=[TOOL]),
                honoured({"type": "none"}, lambda seen: seen.sampling.grammar is None, tools=[TOOL]),
                honoured({"type": "auto", "disable_parallel_tool_use": True}, _is_grammar("tool_calls"), tools=[TOOL]),
            ),
            edge=(accepted({"type": "auto"}), accepted({"type": "none"})),
            invalid=(
                refused({"type": "any"}),
                refused({"type": "tool"}, "tool_choice.name", tools=[TOOL]),
                refused({"type": "tool", "name": "g"}, "tool_choice.name", tools=[TOOL]),
                refused({"type": "auto", "name": "f"}, "tool_choice.name", tools=[TOOL]),
                refused({"type": "required"}, "tool_choice.type"),
            ),
            null=ABSENT,
            wrong_type=(refused("auto"), refused(1)),
        ),
        Field(
            endpoint=PATH,
            name="thinking",
            valid=(
                honoured({"type": "adaptive"}, lambda seen: "enable_thinking=True" in seen.prompt),
                honoured({"type": "disabled"}, lambda seen: "enable_thinking=False" in seen.prompt),
                honoured(THINK, lambda seen: "enable_thinking=True" in seen.prompt, max_tokens=1025),
            ),
            invalid=(
                refused(THINK, "thinking.budget_tokens"),
                refused({"type": "enabled"}, "thinking.budget_tokens"),
                refused({"type": "enabled", "budget_tokens": 1}, "thinking.budget_tokens", max_tokens=100),
                refused({"type": "adaptive", "budget_tokens": 1024}, "thinking.budget_tokens"),
                refused({"type": "sometimes"}, "thinking.type"),
            ),
            null=ABSENT,
            wrong_type=(refused(True), refused("adaptive")),
            note="for templates that read `enable_thinking`; off where it is left out",
        ),
        Field(
            endpoint=PATH,
            name="output_config",
            valid=(
                honoured({"effort": "low"}, lambda seen: "reasoning_effort=low" in seen.prompt),
                honoured({"format": {"type": "json_schema", "schema": {"type": "object"}}}, _is_grammar("json_schema")),
            ),
            edge=(accepted({}),),
            invalid=(
                refused({"effort": "none"}, "output_config.effort"),
                refused({"format": {"type": "json_schema"}}, "output_config.format.schema"),
                refused({"format": {"type": "text"}}, "output_config.format.type"),
            ),
            null=ABSENT,
            wrong_type=(refused("low"), refused([])),
            note="the effort for templates that read it",
        ),
        Field(
            endpoint=PATH,
            name="context_management",
            valid=(accepted({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),),
            edge=(accepted({}), accepted({"edits": []})),
            invalid=(
                refused({"edits": [{"type": "clear_tool_uses_20250919"}]}, "context_management.edits[0].type"),
                refused({"edits": [{"type": "compact_20260112"}]}, "context_management.edits[0].type"),
            ),
            null=ABSENT,
            wrong_type=(refused("x"), refused([])),
            note="the thinking of earlier turns",
        ),
        Field(
            endpoint=PATH,
            name="cache_control",
            valid=(accepted({"type": "ephemeral"}),),
            edge=(accepted({"type": "ephemeral", "ttl": "1h"}),),
            invalid=(refused({"type": "lasting"}, "cache_control.type"),),
            null=ABSENT,
            wrong_type=(refused("ephemeral"), refused(1)),
            note="prompts are found in the cache by their tokens",
        ),
        no_effect(PATH, "mcp_servers", [], ([{"type": "url", "url": "https://x"}],), ("x", 1), note="not served"),
    ]


def _sampling_fields() -> list[Field]:
    return [
        Field(
            endpoint=PATH,
            name="max_tokens",
            valid=(honoured(3, lambda seen: seen.sampling.max_tokens == 3),),
            edge=(
                honoured(1, lambda seen: seen.sampling.max_tokens == 1),
                honoured(32_000, lambda seen: 300 < seen.sampling.max_tokens < 512),
            ),
            invalid=(refused(0), refused(-1)),
            null=NEEDED,
            wrong_type=(refused("3"), refused(1.5), refused(True)),
            note="more than fits the context is what is left of it",
        ),
        Field(
            endpoint=PATH,
            name="temperature",
            valid=(honoured(0.5, lambda seen: seen.sampling.temperature == 0.5),),
            edge=(accepted(1), honoured(0, lambda seen: seen.sampling.temperature == 0)),
            invalid=(refused(1.1), refused(-0.1)),
            null=(honoured(None, lambda seen: seen.sampling.temperature == 1.0),),
            wrong_type=(refused("1"), refused(True)),
        ),
        Field(
            endpoint=PATH,
            name="top_p",
            valid=(honoured(0.5, lambda seen: seen.sampling.top_p == 0.5),),
            edge=(accepted(1), accepted(0)),
            invalid=(refused(1.1), refused(-0.1)),
            null=ABSENT,
            wrong_type=(refused("1"),),
        ),
        Field(
            endpoint=PATH,
            name="top_k",
            valid=(honoured(5, lambda seen: seen.sampling.top_k == 5),),
            edge=(accepted(0),),
            invalid=(refused(-1),),
            null=ABSENT,
            wrong_type=(refused("5"), refused(1.5)),
        ),
        Field(
            endpoint=PATH,
            name="stop_sequences",
            valid=(honoured(["there"], lambda seen: seen.reply["stop_sequence"] == "there", max_tokens=60),),
            edge=(accepted([]),),
            invalid=(refused([""], "stop_sequences[0]"), refused(["x"] * 17)),
            null=ABSENT,
            wrong_type=(refused("x"), refused([1], "stop_sequences[0]")),
        ),
        switch(
            PATH,
            "stream",
            lambda seen: (seen.reply[0]["type"], seen.reply[-1]["type"]) == ("message_start", "message_stop"),
            lambda seen: seen.reply["type"] == "message",
        ),
        Field(
            endpoint=PATH,
            name="metadata",
            valid=(accepted({"user_id": "u-1"}),),
            edge=(accepted({}), accepted({"user_id": None}), accepted({"user_id": "u" * 512})),
            invalid=(refused({"team": "blue"}, "metadata.team"), refused({"user_id": "u" * 513})),
            null=ABSENT,
            wrong_type=(refused("x"), refused({"user_id": 1})),
            note="for the caller's own bookkeeping",
        ),
        Field(
            endpoint=PATH,
            name="service_tier",
            valid=(accepted("auto"), accepted("standard_only")),
            invalid=(refused("priority"),),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="all messages are of the tier `standard`",
        ),
        unsupported_field(PATH, "container", {"id": "c"}),
        unsupported_field(PATH, "diagnostics", {"previous_message_id": "msg_x"}),
        unsupported_field(PATH, "inference_geo", "us"),
        Field(
            endpoint=PATH,
            name="speed",
            valid=(accepted("standard"),),
            invalid=(refused("fast"),),
            null=ABSENT,
            wrong_type=(refused(1),),
        ),
    ]


def _counted(name: str, *values: Any, wrong: tuple[Any, ...], invalid: tuple[Any, ...] = ()) -> Field:
    """Return a field of token counting with the same meaning as for a message."""
    return Field(
        endpoint=COUNT,
        name=name,
        valid=tuple(map(accepted, values)),
        invalid=tuple(refused(*each) if isinstance(each, tuple) else refused(each) for each in invalid),
        null=ABSENT,
        wrong_type=tuple(map(refused, wrong)),
    )


MESSAGES = [model(PATH), *_prompt(), *_sampling_fields()]

COUNT_TOKENS = [
    model(COUNT),
    Field(
        endpoint=COUNT,
        name="messages",
        valid=(honoured([USER], lambda seen: seen.reply["input_tokens"] > 5),),
        edge=(honoured([{"role": "user", "content": "xyz " * 400}], lambda seen: seen.reply["input_tokens"] > 512),),
        invalid=(refused([]), refused([{"role": "user", "content": [IMAGE]}], "messages[0].content[0].type")),
        null=NEEDED,
        wrong_type=(refused("hello"), refused([1], "messages[0]")),
        note="longer than the context as well",
    ),
    Field(
        endpoint=COUNT,
        name="system",
        valid=(honoured("x" * 100, lambda seen: seen.reply["input_tokens"] > 50),),
        null=ABSENT,
        wrong_type=(refused(1),),
    ),
    _counted("tools", [TOOL], [], invalid=(([{"name": "f"}], "tools[0].input_schema"),), wrong=("x",)),
    _counted("tool_choice", {"type": "auto"}, invalid=({"type": "any"},), wrong=("auto",)),
    _counted("thinking", {"type": "adaptive"}, THINK, invalid=(({"type": "x"}, "thinking.type"),), wrong=(True,)),
    _counted("output_config", {"effort": "low"}, {}, invalid=(({"effort": "x"}, "output_config.effort"),), wrong=([],)),
    _counted("context_management", {"edits": []}, wrong=([], "x")),
    _counted("cache_control", {"type": "ephemeral"}, invalid=(({"type": "x"}, "cache_control.type"),), wrong=("x",)),
    no_effect(COUNT, "mcp_servers", [], ([{"url": "https://x"}],), ("x", 1), note="not served"),
]
