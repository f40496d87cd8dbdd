"""The rows of the matrix for the fields of responses."""

from __future__ import annotations

from typing import Any

from engine.protocol import Grammar
from tests.gateway.openai.field_matrix.cases import (
    ABSENT,
    NEEDED,
    Check,
    Field,
    ObservedEffects,
    accepted,
    honoured,
    refused,
)
from tests.gateway.openai.field_matrix.common import (
    free_text,
    metadata,
    model,
    no_effect,
    sampled,
    switch,
    unsupported_field,
)

PATH = "/v1/responses"
USER = {"role": "user", "content": "hello"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "c"}


def _is_grammar(kind: str) -> Check:
    return lambda seen: isinstance(seen.sampling.grammar, Grammar) and seen.sampling.grammar.kind == kind


def _echoes(name: str, value: Any) -> Check:
    return lambda seen: seen.reply[name] == value


def _event(seen: ObservedEffects, name: str) -> Any:
    return next(event for event in seen.reply if event != "[DONE]" and event["type"] == f"response.{name}")


def _input() -> list[Field]:
    return [
        Field(
            endpoint=PATH,
            name="input",
            valid=(
                honoured("once more", lambda seen: "once more" in seen.prompt),
                honoured([USER], lambda seen: "hello" in seen.prompt),
            ),
            edge=(accepted(""),),
            invalid=(refused([]), refused("xyz " * 400), refused([{}], "input[0].role")),
            null=NEEDED,
            wrong_type=(refused(1), refused(["hi"], "input[0]")),
        ),
        Field(
            endpoint=PATH,
            name="input[0].type",
            valid=(accepted("message", input=[USER]),),
            invalid=(
                refused("web_search_call", input=[USER]),
                refused("compaction", "input[0].role", input=[USER]),
                refused("item_reference", "input[0].id", input=[{"id": "msg_x"}]),
            ),
            null=(refused(None, input=[USER]),),
            wrong_type=(refused(1, input=[USER]),),
            note="message, function_call, custom_tool_call, their outputs, reasoning, compaction, item_reference",
        ),
        Field(
            endpoint=PATH,
            name="instructions",
            valid=(honoured("Be brief.", lambda seen: "system\nBe brief." in seen.prompt),),
            edge=(accepted(""),),
            null=ABSENT,
            wrong_type=(refused(1), refused(["Be brief."])),
            note="of this response alone",
        ),
        Field(
            endpoint=PATH,
            name="conversation",
            invalid=(
                refused("conv_x"),
                refused({"id": "conv_x"}),
                refused({"id": "conv_x", "previous_response_id": "x"}, "conversation.previous_response_id"),
                refused(""),
            ),
            null=ABSENT,
            wrong_type=(refused(1), refused({}, "conversation.id")),
            note="of the project; not beside `previous_response_id`",
        ),
        unsupported_field(PATH, "prompt", {"id": "pmpt_x"}, note="templates of OpenAI's dashboard are not served"),
        Field(
            endpoint=PATH,
            name="context_management",
            valid=(accepted([]),),
            invalid=(refused([{"type": "compaction", "compact_threshold": 1000}]),),
            null=ABSENT,
            wrong_type=(refused(1), refused("x")),
            note="not served: a summary would be a second answer, billed and limited within one response; "
            "`POST /v1/responses/compact` is one of its own",
        ),
        Field(
            endpoint=PATH,
            name="truncation",
            valid=(
                honoured(
                    "auto",
                    lambda seen: "oldest" not in seen.prompt and "user\nnewest" in seen.prompt,
                    input=[
                        {"role": "user", "content": "oldest " * 400},
                        {"role": "assistant", "content": "I see."},
                        {"role": "user", "content": "newest"},
                    ],
                ),
                honoured("disabled", _echoes("truncation", "disabled")),
            ),
            edge=(honoured("auto", _echoes("truncation", "auto")),),
            invalid=(refused("left"), refused("auto", "input", input="xyz " * 400)),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="the last turn is never left out",
        ),
        Field(
            endpoint=PATH,
            name="background",
            valid=(accepted(False),),
            invalid=(refused(True), refused(True, store=False)),
            null=ABSENT,
            wrong_type=(refused(1), refused("false")),
            note="where the project allows responses to be stored, which these are",
        ),
    ]


def _output() -> list[Field]:
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    return [
        Field(
            endpoint=PATH,
            name="max_output_tokens",
            valid=(honoured(3, lambda seen: seen.sampling.max_tokens == 3),),
            edge=(honoured(1, lambda seen: seen.sampling.max_tokens == 1),),
            invalid=(refused(0), refused(513), refused(-1)),
            null=ABSENT,
            wrong_type=(refused("3"), refused(True), refused(1.5)),
            note="OpenAI's own least is 16",
        ),
        Field(
            endpoint=PATH,
            name="text",
            valid=(
                accepted({}),
                accepted({"format": {"type": "text"}}),
                honoured({"format": {"type": "json_object"}}, _is_grammar("json_object")),
                honoured({"format": schema}, _is_grammar("json_schema")),
            ),
            invalid=(
                refused({"format": {}}, "text.format.type"),
                refused({"format": {"type": "json_schema", "name": "a"}}, "text.format.schema"),
                refused({"format": {"type": "text", "schema": {}}}, "text.format.schema"),
                refused({"format": schema | {"schema": {"unsupported": 1}}}, "text.format.schema"),
            ),
            null=ABSENT,
            wrong_type=(refused("json"), refused([])),
        ),
        Field(
            endpoint=PATH,
            name="text.format",
            valid=(accepted({"type": "text"}), honoured(schema, _is_grammar("json_schema"))),
            invalid=(refused({}, "text.format.type"), refused({"type": "xml"}, "text.format.type")),
            null=ABSENT,
            wrong_type=(refused("json"), refused([])),
        ),
        Field(
            endpoint=PATH,
            name="text.verbosity",
            valid=(honoured("low", lambda seen: "verbosity=low" in seen.prompt),),
            edge=(accepted("medium"),),
            invalid=(refused("loud"),),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="for templates that read it",
        ),
        Field(
            endpoint=PATH,
            name="reasoning",
            valid=(
                honoured({"effort": "low"}, lambda seen: "reasoning_effort=low" in seen.prompt),
                accepted({"summary": "auto"}),
                accepted({"generate_summary": "concise"}),
            ),
            edge=(accepted({}), accepted({"context": "auto"}), accepted({"mode": "standard"})),
            invalid=(
                refused({"effort": "none at all"}, "reasoning.effort"),
                refused({"mode": "pro"}, "reasoning.mode"),
                refused({"context": "all_turns"}, "reasoning.context"),
            ),
            null=ABSENT,
            wrong_type=(refused("low"), refused([])),
            note="the effort for templates that read it; there are no summaries",
        ),
        Field(
            endpoint=PATH,
            name="top_logprobs",
            valid=(honoured(2, lambda seen: seen.sampling.num_logprobs == 2),),
            edge=(accepted(0), honoured(20, lambda seen: seen.sampling.num_logprobs == 20)),
            invalid=(refused(21), refused(-1)),
            null=ABSENT,
            wrong_type=(refused("2"), refused(True)),
        ),
        Field(
            endpoint=PATH,
            name="include",
            valid=(
                honoured(
                    ["message.output_text.logprobs"],
                    lambda seen: len(seen.reply["output"][0]["content"][0]["logprobs"]) == 2,
                ),
                accepted(["reasoning.encrypted_content"]),
            ),
            edge=(accepted([]), accepted(["file_search_call.results"])),
            invalid=(refused(["everything"], "include[0]"),),
            null=ABSENT,
            wrong_type=(refused("x"), refused([1], "include[0]")),
            note="but for log-probabilities there is nothing to select",
        ),
        switch(
            PATH,
            "stream",
            lambda seen: seen.reply[-1] == "[DONE]" and _event(seen, "created")["sequence_number"] == 0,
            lambda seen: seen.reply["object"] == "response",
        ),
        Field(
            endpoint=PATH,
            name="stream_options",
            valid=(
                honoured(
                    {"include_obfuscation": True},
                    lambda seen: _event(seen, "output_text.delta")["obfuscation"],
                    stream=True,
                ),
            ),
            edge=(accepted({}, stream=True),),
            invalid=(refused({}), refused({"include_usage": True}, "stream_options.include_usage", stream=True)),
            null=ABSENT,
            wrong_type=(refused(1), refused("x")),
            note="with `stream` alone; padding is off unless it is asked for",
        ),
    ]


def _tool_fields() -> list[Field]:
    return [
        Field(
            endpoint=PATH,
            name="tools",
            valid=(
                honoured([FUNCTION, CUSTOM], _is_grammar("tool_calls")),
                honoured(
                    [CUSTOM | {"format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}}],
                    _is_grammar("tool_calls"),
                ),
                honoured(
                    [CUSTOM | {"format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"+'}}],
                    lambda seen: '"input_lark"' in seen.sampling.grammar.source,
                ),
                honoured(
                    [{"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}],
                    lambda seen: "n__f" in seen.sampling.grammar.source,
                ),
            ),
            edge=(accepted([]),),
            invalid=(
                refused([{"type": "web_search"}], "tools[0].type"),
                refused([{"type": "namespace"}], "tools[0].name"),
                refused([{"type": "namespace", "name": "n"}], "tools[0].tools"),
                refused([{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}], "tools[0].tools[0].type"),
                refused([{"type": "mcp"}], "tools[0].type"),
                refused([FUNCTION, FUNCTION], "tools[1].name"),
                refused([FUNCTION | {"name": "a b"}], "tools[0].name"),
                refused([FUNCTION | {"parameters": {"type": "array"}}], "tools[0].parameters"),
                refused([FUNCTION | {"defer_loading": True}], "tools[0].defer_loading"),
                refused([CUSTOM | {"format": {"type": "grammar", "syntax": "lark"}}], "tools[0].format.definition"),
                refused(
                    [CUSTOM | {"format": {"type": "grammar", "syntax": "lark", "definition": "unsupported"}}],
                    "tools[0].format.definition",
                ),
            ),
            null=ABSENT,
            wrong_type=(refused("x"), refused([3], "tools[0]")),
            note="functions, custom tools with any text, a regular expression or Lark, and namespaces of these",
        ),
        Field(
            endpoint=PATH,
            name="tool_choice",
            valid=(
                honoured("required", _echoes("tool_choice", "required"), tools=[FUNCTION]),
                honoured(
                    {"type": "function", "name": "f"},
                    _echoes("tool_choice", {"type": "function", "name": "f"}),
                    tools=[FUNCTION],
                ),
                honoured(
                    {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "c"}]},
                    _is_grammar("tool_calls"),
                    tools=[FUNCTION, CUSTOM],
                ),
                honoured("none", lambda seen: seen.sampling.grammar is None, tools=[FUNCTION]),
            ),
            edge=(accepted("auto"), accepted("none")),
            invalid=(
                refused("required"),
                refused("sometimes"),
                refused({"type": "function", "name": "g"}, "tool_choice.name", tools=[FUNCTION]),
                refused({"type": "file_search"}, "tool_choice.type", tools=[FUNCTION]),
            ),
            null=ABSENT,
            wrong_type=(refused(1),),
        ),
        switch(
            PATH,
            "parallel_tool_calls",
            _echoes("parallel_tool_calls", True),
            _echoes("parallel_tool_calls", False),
            tools=[FUNCTION],
        ),
        Field(
            endpoint=PATH,
            name="max_tool_calls",
            valid=(accepted(3),),
            edge=(accepted(1),),
            invalid=(refused(0), refused(-1)),
            null=ABSENT,
            wrong_type=(refused("3"), refused(1.5)),
            note="bounds tools that the server runs, of which there are none",
        ),
    ]


def _other_fields() -> list[Field]:
    return [
        Field(
            endpoint=PATH,
            name="service_tier",
            valid=(
                honoured("default", lambda seen: seen.asked.weight == 1.0),
                honoured("flex", lambda seen: seen.asked.weight == 0.5 and seen.reply["service_tier"] == "flex"),
                honoured("priority", lambda seen: seen.asked.weight == 2.0),
            ),
            edge=(accepted("auto"),),
            invalid=(refused("scale"), refused("fast"), refused("slow")),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="those that the project may use",
        ),
        free_text(PATH, "user", note="for the caller's own bookkeeping"),
        free_text(PATH, "safety_identifier", most=64, note="for the caller's own bookkeeping"),
        free_text(PATH, "prompt_cache_key", most=512, note="prompts are found in the cache by their tokens"),
        no_effect(PATH, "prompt_cache_retention", "in_memory", ("24h", "1h"), (1,)),
        unsupported_field(PATH, "prompt_cache_options", {"mode": "explicit"}),
        unsupported_field(PATH, "moderation", {"model": "omni"}),
        metadata(PATH),
        Field(
            endpoint=PATH,
            name="client_metadata",
            valid=(accepted({"a": "b"}),),
            edge=(accepted({}),),
            invalid=(refused({str(number): "" for number in range(65)}),),
            null=ABSENT,
            wrong_type=(refused([]), refused({"k": 1})),
            note="sent by Codex",
        ),
        Field(
            endpoint=PATH,
            name="chat_template_kwargs",
            valid=(honoured({"enable_thinking": False}, lambda seen: "enable_thinking=False" in seen.prompt),),
            edge=(accepted({}), accepted({"unread": 1})),
            invalid=(refused({"tokenize": False}, "chat_template_kwargs.tokenize"),),
            null=ABSENT,
            wrong_type=(refused([]), refused("x")),
        ),
    ]


def _state_fields() -> list[Field]:
    return [
        Field(
            endpoint=PATH,
            name="store",
            valid=(accepted(False),),
            invalid=(refused(True),),
            null=ABSENT,
            wrong_type=(refused(1), refused("false")),
            note="where the project allows it; left out, the project's setting decides",
        ),
        Field(
            endpoint=PATH,
            name="previous_response_id",
            invalid=(refused("resp_x"), refused("")),
            null=ABSENT,
            wrong_type=(refused(1),),
            note="of a stored response of the project",
        ),
    ]


RESPONSES = [model(PATH), *_input(), *_output(), *_tool_fields(), *_other_fields(), *_state_fields(), *sampled(PATH)]

COUNT = "/v1/responses/input_tokens"


def _counted(name: str, *values: Any, wrong: tuple[Any, ...], invalid: tuple[Any, ...] = (), note: str = "") -> Field:
    """Return a field of token counting with the same meaning as for a response."""
    return Field(
        endpoint=COUNT,
        name=name,
        valid=tuple(map(accepted, values)),
        invalid=tuple(refused(*each) if isinstance(each, tuple) else refused(each) for each in invalid),
        null=ABSENT,
        wrong_type=tuple(map(refused, wrong)),
        note=note,
    )


INPUT_TOKENS = [
    model(COUNT),
    Field(
        endpoint=COUNT,
        name="input",
        valid=(
            honoured("hello", lambda seen: seen.reply["input_tokens"] > 5),
            honoured([USER], lambda seen: seen.reply["input_tokens"] > 5),
        ),
        edge=(honoured("xyz " * 400, lambda seen: seen.reply["input_tokens"] > 512),),
        invalid=(refused([]), refused([{}], "input[0].role")),
        null=NEEDED,
        wrong_type=(refused(1), refused(["hi"], "input[0]")),
        note="longer than the context as well",
    ),
    Field(
        endpoint=COUNT,
        name="instructions",
        valid=(honoured("x" * 100, lambda seen: seen.reply["input_tokens"] > 50),),
        null=ABSENT,
        wrong_type=(refused(1),),
    ),
    _counted("previous_response_id", invalid=("resp_x", ""), wrong=(1,)),
    _counted("tools", [FUNCTION], [], invalid=(([{"type": "mcp"}], "tools[0].type"),), wrong=("x",)),
    _counted("tool_choice", "auto", "none", invalid=("required", "sometimes"), wrong=(1,)),
    _counted("parallel_tool_calls", True, False, wrong=(1, "true")),
    _counted("text", {}, {"format": {"type": "text"}}, invalid=(({"format": {}}, "text.format.type"),), wrong=("x",)),
    _counted("reasoning", {}, {"effort": "low"}, invalid=(({"mode": "pro"}, "reasoning.mode"),), wrong=("low",)),
    _counted("truncation", "auto", "disabled", invalid=("left",), wrong=(1,)),
    _counted("conversation", invalid=("conv_x", {"id": "conv_x"}), wrong=(1,)),
    _counted(
        "chat_template_kwargs",
        {"enable_thinking": False},
        {},
        invalid=(({"tokenize": False}, "chat_template_kwargs.tokenize"),),
        wrong=([], "x"),
    ),
]

COMPACT_PATH = "/v1/responses/compact"

COMPACT = [
    model(COMPACT_PATH),
    Field(
        endpoint=COMPACT_PATH,
        name="input",
        valid=(
            honoured("once more", lambda seen: "once more" in seen.prompt and "Summarize" in seen.prompt),
            honoured([USER], lambda seen: seen.reply["output"][0]["content"][0]["text"] == "hello"),
        ),
        invalid=(
            refused([]),
            refused([{}], "input[0].role"),
            refused([{"type": "compaction"}], "input[0].encrypted_content"),
            refused([{"type": "compaction", "encrypted_content": "AQ=="}], "input[0].encrypted_content"),
        ),
        null=NEEDED,
        wrong_type=(refused(1), refused(["hi"], "input[0]")),
        note="or `previous_response_id`",
    ),
    Field(
        endpoint=COMPACT_PATH,
        name="instructions",
        valid=(honoured("Be brief.", lambda seen: "system\nBe brief." in seen.prompt),),
        null=ABSENT,
        wrong_type=(refused(1),),
    ),
    Field(
        endpoint=COMPACT_PATH,
        name="previous_response_id",
        invalid=(refused("resp_x"), refused("")),
        null=ABSENT,
        wrong_type=(refused(1),),
    ),
    Field(
        endpoint=COMPACT_PATH,
        name="service_tier",
        valid=(honoured("flex", lambda seen: seen.asked.weight == 0.5),),
        edge=(accepted("auto"),),
        invalid=(refused("scale"), refused("slow")),
        null=ABSENT,
        wrong_type=(refused(1),),
    ),
    free_text(COMPACT_PATH, "prompt_cache_key", most=512, note="prompts are found in the cache by their tokens"),
]
