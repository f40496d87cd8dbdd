"""Every wrong use of tools is refused with the path of the field at fault."""

# ruff: noqa: E501 - one wrong request, one line

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

USER = {"role": "user", "content": "hi"}
ASKED = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "1"}


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def messages(*given: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [USER, *given]}


def call(**fields: Any) -> dict[str, Any]:
    """Return an assistant's message with a call that has these fields."""
    return {"role": "assistant", "tool_calls": [{**ASKED["tool_calls"][0], **fields}]}  # type: ignore[dict-item]


def allowed_tools_choice(*tools: Any, mode: str = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


F, NAMED = tool(), {"type": "function", "function": {"name": "f"}}
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    # name, fields, param, code
    ("129 tools", {"tools": [tool(f"f{i}") for i in range(129)]}, "tools", "invalid_value"),
    ("a tool that is no object", {"tools": [3]}, "tools[0]", "invalid_type"),
    ("no type", {"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "missing_required_parameter"),
    ("no function", {"tools": [F, {"type": "function"}]}, "tools[1].function", "missing_required_parameter"),
    ("no name", {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing_required_parameter"),
    ("a bad name", {"tools": [tool("a b")]}, "tools[0].function.name", "invalid_value"),
    ("a name of two lines", {"tools": [tool("a\n")]}, "tools[0].function.name", "invalid_value"),
    ("a long name", {"tools": [tool("a" * 65)]}, "tools[0].function.name", "invalid_value"),
    ("an unknown field", {"tools": [tool(foo=1)]}, "tools[0].function.foo", "unknown_parameter"),
    ("two of one name", {"tools": [F, tool("g"), F]}, "tools[2].function.name", "invalid_value"),
    ("a custom tool", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type", "unsupported_value"),
    ("parameters that are no object", {"tools": [tool(parameters=[])]}, "tools[0].function.parameters", "invalid_type"),
    ("a schema of a string", {"tools": [tool(parameters={"type": "string"})]}, "tools[0].function.parameters", "invalid_value"),
    ("strict is a string", {"tools": [tool(strict="yes")]}, "tools[0].function.strict", "invalid_type"),
    ("an unknown choice", {"tools": [F], "tool_choice": "any"}, "tool_choice", "invalid_value"),
    ("a choice without tools", {"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ("a named one without tools", {"tool_choice": NAMED}, "tool_choice", "invalid_value"),
    ("a named one that is not there", {"tools": [tool("g")], "tool_choice": NAMED}, "tool_choice.function.name", "invalid_value"),
    ("no name of the chosen one", {"tools": [F], "tool_choice": {"type": "function"}}, "tool_choice.function", "missing_required_parameter"),
    ("a chosen custom tool", {"tools": [F], "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice.type", "unsupported_value"),
    ("allowed tools that are none", {"tools": [F], "tool_choice": allowed_tools_choice()}, "tool_choice.allowed_tools.tools", "invalid_value"),
    ("allowed tools of a wrong mode", {"tools": [F], "tool_choice": allowed_tools_choice(NAMED, mode="none")}, "tool_choice.allowed_tools.mode", "invalid_value"),
    ("an allowed tool that is not there", {"tools": [tool("g")], "tool_choice": allowed_tools_choice(NAMED)}, "tool_choice.allowed_tools.tools", "invalid_value"),
    ("two kinds of choice", {"tools": [F], "tool_choice": {**NAMED, **allowed_tools_choice(NAMED), "type": "function"}}, "tool_choice.allowed_tools", "invalid_value"),
    ("parallel is a number", {"tools": [F], "parallel_tool_calls": 1}, "parallel_tool_calls", "invalid_type"),
    ("parallel without tools", {"parallel_tool_calls": True}, "parallel_tool_calls", "invalid_value"),
    ("parallel with no tools", {"tools": [], "parallel_tool_calls": False}, "parallel_tool_calls", "invalid_value"),
    ("parallel functions", {"functions": [{"name": "f"}], "parallel_tool_calls": False}, "parallel_tool_calls", "invalid_value"),
    ("tools and functions", {"tools": [F], "functions": [{"name": "f"}]}, "functions", "invalid_parameter_combination"),
    ("functions of one name", {"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name", "invalid_value"),
    ("a bad function", {"functions": [{"name": "f", "parameters": {"type": 3}}]}, "functions[0].parameters", "invalid_value"),
    ("a function call without functions", {"function_call": {"name": "f"}}, "function_call", "invalid_value"),
    ("a function call to nobody", {"functions": [{"name": "g"}], "function_call": {"name": "f"}}, "function_call.name", "invalid_value"),
    ("a required function", {"functions": [{"name": "g"}], "function_call": "required"}, "function_call", "invalid_value"),
    ("text of a regex", {"tools": [F], "structured_outputs": {"regex": "a"}}, "structured_outputs.regex", "invalid_parameter_combination"),
    ("a schema as text that is none", {"tools": [F], "structured_outputs": {"json": "{"}}, "structured_outputs.json", "invalid_value"),
    ("a schema that cannot be enforced", {"tools": [F, tool("g", parameters={"unsupported": 1})]}, "tools[1].function.parameters", "invalid_value"),  # type: ignore[list-item]
    ("a result without a call", messages(RESULT), "messages[1].tool_call_id", "invalid_value"),
    ("a result of another call", messages(ASKED, {**RESULT, "tool_call_id": "b"}), "messages[2].tool_call_id", "invalid_value"),
    ("a result without an id", messages(ASKED, {"role": "tool", "content": ""}), "messages[2].tool_call_id", "missing_required_parameter"),
    ("a result twice", messages(ASKED, RESULT, RESULT), "messages[3].tool_call_id", "invalid_value"),
    ("a result that is null", messages(ASKED, {**RESULT, "content": None}), "messages[2].content", "invalid_type"),
    ("a call without a result", messages(ASKED, USER), "messages[2]", "invalid_value"),
    ("a call at the end", messages(ASKED), "messages", "invalid_value"),
    ("a user's call", messages({**ASKED, "role": "user", "content": "a"}), "messages[1].tool_calls", "invalid_value"),
    ("a user's result", messages({**USER, "tool_call_id": "a"}), "messages[1].tool_call_id", "invalid_value"),
    ("a user's refusal", messages({**USER, "refusal": "no"}), "messages[1].refusal", "invalid_value"),
    ("annotations", messages({"role": "assistant", "content": "a", "annotations": [{}]}), "messages[1].annotations", "unsupported_value"),
    ("audio", messages({"role": "assistant", "audio": {"id": "a"}}), "messages[1].audio", "unsupported_value"),
    ("calls that are no list", messages({"role": "assistant", "tool_calls": {}}), "messages[1].tool_calls", "invalid_type"),
    ("a call without an id", messages({"role": "assistant", "tool_calls": [{"type": "function"}]}), "messages[1].tool_calls[0].id", "missing_required_parameter"),
    ("a call without a function", messages(call(function=None)), "messages[1].tool_calls[0].function", "missing_required_parameter"),
    ("a call of a custom tool", messages(call(type="custom", function=None, custom={})), "messages[1].tool_calls[0].type", "unsupported_value"),
    ("a call's bad name", messages(call(function={"name": "a b", "arguments": ""})), "messages[1].tool_calls[0].function.name", "invalid_value"),
    ("arguments that are no text", messages(call(function={"name": "f", "arguments": {}})), "messages[1].tool_calls[0].function.arguments", "invalid_type"),
    ("two calls of one id", messages({**ASKED, "tool_calls": ASKED["tool_calls"] * 2}), "messages[1].tool_calls[1].id", "invalid_value"),  # type: ignore[operator]
    ("both kinds of calls", messages({**ASKED, "function_call": {"name": "f", "arguments": ""}}), "messages[1].function_call", "invalid_value"),
    ("a function's result without its name", messages({"role": "function", "content": "1"}), "messages[1].name", "missing_required_parameter"),
    ("nothing said", messages({"role": "assistant"}), "messages[1].content", "invalid_type"),
    ("a user's refused part", messages({**USER, "content": [{"type": "refusal", "refusal": "no"}]}), "messages[1].content[0].type", "unsupported_value"),
    ("a refused part without words", messages({"role": "assistant", "content": [{"type": "refusal"}]}), "messages[1].content[0].refusal", "missing_required_parameter"),
]  # fmt: skip


@pytest.fixture(scope="module")
def http(house: House):
    with httpx.Client(
        base_url=house.url, headers={"authorization": f"Bearer {house.acme.key}"}, timeout=PATIENCE_S
    ) as client:
        yield client


def post(http: httpx.Client, fields: dict[str, Any]) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"model": "tiny", "messages": [USER], "max_tokens": 2, **fields})


@pytest.mark.parametrize(("fields", "param", "code"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_use_of_tools_is_refused_by_name(http, fields, param, code):
    reply = post(http, fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {
            "tools": [tool(description="", parameters=None, strict=None)],
            "tool_choice": None,
            "parallel_tool_calls": None,
        },
        {"tools": [tool("a" * 64, parameters={}, strict=True), tool("-_9")], "parallel_tool_calls": False},
        {"tools": [tool(f"f{i}") for i in range(128)], "tool_choice": "none"},
        {
            "tools": [F],
            "tool_choice": allowed_tools_choice(NAMED, mode="required"),
            "response_format": {"type": "json_object"},
        },
        {"tools": [F], "tool_choice": NAMED, "structured_outputs": {"json": {}}},
        {"tools": [F], "structured_outputs": {"json": ' {"type": "object"}'}},
        {"functions": [], "tools": None, "function_call": "none"},
        {"functions": [{"name": "f", "parameters": {"type": "object"}}], "function_call": {"name": "f"}},
        messages(
            ASKED,
            RESULT,
            {"role": "assistant", "content": None, "refusal": "No.", "annotations": [], "audio": None},
            USER,
        ),
        messages({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "tool_calls": []}),
        messages(
            {"role": "assistant", "function_call": {"name": "f", "arguments": "no JSON"}},
            {"role": "function", "name": "f", "content": None},
        ),
        messages(call(id="x"), {**RESULT, "tool_call_id": "x", "content": [{"type": "text", "text": "1"}]}),
    ],
)
def test_documented_uses_of_tools_are_accepted(http, fields):
    reply = post(http, fields)
    assert reply.status_code == 200, reply.text
