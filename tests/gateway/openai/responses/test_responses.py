"""Responses as the official client reads them, whole and streamed. The engine here repeats its prompt."""

from __future__ import annotations

import re
from typing import Any

import httpx
import openai
import pytest

from tests.gateway.conftest import House
from tests.gateway.openai.responses.laws import check, read
from tests.gateway.openai.test_tool_calls import ARGUMENTS, END, END_ID, FIRST

TOOLS: list[Any] = [
    {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False} for name in ("f", "g")
]
CUSTOM = '<tool_call>\n{"name": "note", "arguments": {"input": "a \\"b\\"\\n\\u00e9"}}\n</tool_call>'
ENDS: dict[str, Any] = {"extra_body": {"stop_token_ids": [END_ID]}}
MESSAGES = [{"role": "user", "content": "hello there"}]


def stream_of(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a streamed response, after checking the laws of streams."""
    body = {"model": "tiny", "input": "hello there", "max_output_tokens": 16, "stream": True} | fields
    reply = http.post("/v1/responses", json=body)
    assert reply.status_code == 200, reply.text
    events = read(reply.text)
    check(events)
    return events


def test_a_response_has_its_text_usage_and_what_was_asked_for(client: openai.OpenAI) -> None:
    reply = client.responses.create(
        model="tiny",
        input="hello there",
        instructions="Be brief.",
        max_output_tokens=16,
        metadata={"a": "b"},
        temperature=0.5,
        user="u-1",
    )
    assert re.fullmatch("resp_[a-z2-7]{24}", reply.id)
    assert (reply.object, reply.model, reply.instructions) == ("response", "tiny", "Be brief.")
    assert reply.output_text.startswith("system\nBe brief.")
    (message,) = reply.output
    assert message.type == "message" and message.id == f"msg_{reply.id.removeprefix('resp_')}_1"
    assert (reply.status, message.status) == ("incomplete", "incomplete")
    assert reply.incomplete_details is not None and reply.incomplete_details.reason == "max_output_tokens"
    assert reply.usage is not None and reply.usage.output_tokens == 16
    assert (reply.temperature, reply.top_p, reply.metadata, reply.user) == (0.5, 1.0, {"a": "b"}, "u-1")
    assert (reply.error, reply.tools, reply.tool_choice, reply.parallel_tool_calls) == (None, [], "auto", True)


def test_a_response_that_ends_by_itself_is_completed(client: openai.OpenAI) -> None:
    reply = client.responses.create(model="tiny", input=f"hello{END}", max_output_tokens=40, **ENDS)
    assert (reply.status, reply.incomplete_details) == ("completed", None)
    assert reply.output_text == "user\nhello" and reply.completed_at is not None


def test_the_clients_stream_helper_ends_with_the_whole_response(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": f"hello{END}", "max_output_tokens": 40, **ENDS}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        streamed = stream.get_final_response()
    assert len(texts) > 1 and "".join(texts) == streamed.output_text == whole.output_text
    assert streamed.usage is not None and whole.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_a_cut_off_stream_never_says_completed(http: httpx.Client) -> None:
    events = stream_of(http)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-2]["item"]["status"] == "incomplete"


def test_items_are_the_messages_that_chat_has(client: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    chat: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "user", "content": "and now?"},
    ]
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}],
        },
        {
            "type": "message",
            "id": "msg_theirs",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {"type": "reasoning", "id": "rs_theirs", "summary": []},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "3"}]},
        {"role": "user", "content": "and now?"},
    ]
    for _ in range(2):  # the second finds its prompt in the cache
        completion = client.chat.completions.create(model="tiny", messages=chat, max_tokens=200, seed=7)
        reply = client.responses.create(model="tiny", input=items, max_output_tokens=200, extra_body={"seed": 7})
    assert reply.output_text == completion.choices[0].message.content
    assert completion.usage is not None and reply.usage is not None
    assert reply.usage.input_tokens == completion.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_items_of_their_own(client: openai.OpenAI, http: httpx.Client, stream: bool) -> None:
    says = f"Let me see.\n{FIRST}{END}"
    asked: dict[str, Any] = {"model": "tiny", "input": says, "tools": TOOLS, "max_output_tokens": 300}
    if stream:
        events = stream_of(http, **asked, stop_token_ids=[END_ID])
        output = events[-1]["response"]["output"]
        assert len([event for event in events if event["type"] == "response.function_call_arguments.delta"]) > 5
    else:
        made = client.responses.create(**asked, **ENDS).output
        output = [item.model_dump(exclude_unset=True) for item in made]
    message, call = output
    assert message["content"][0]["text"] == "Let me see."
    assert (call["type"], call["name"], call["arguments"], call["status"]) == (
        "function_call",
        "f",
        ARGUMENTS,
        "completed",
    )
    assert call["id"].startswith("fc_") and call["call_id"].startswith("call_")
    told = {"type": "function_call_output", "call_id": call["call_id"], "output": "3"}
    follow_up: list[Any] = [*(output if stream else made), told]
    assert client.responses.create(model="tiny", input=follow_up, max_output_tokens=16).usage is not None


def test_a_custom_tool_is_called_with_text(http: httpx.Client) -> None:
    tool = {"type": "custom", "name": "note", "description": "Keeps a note."}
    events = stream_of(http, input=CUSTOM + END, tools=[tool, *TOOLS], max_output_tokens=300, stop_token_ids=[END_ID])
    (call,) = events[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "note", 'a "b"\né')
    assert events[0]["response"]["tools"][0] == tool | {"format": {"type": "text"}}
    follow_up = [call, {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "kept"}]
    reply = http.post("/v1/responses", json={"model": "tiny", "input": follow_up, "max_output_tokens": 200}).json()
    assert "tool\nkept" in reply["output"][0]["content"][0]["text"]


def test_a_call_that_is_cut_off_is_an_incomplete_item(http: httpx.Client) -> None:
    events = stream_of(http, input=FIRST + END, tools=TOOLS, max_output_tokens=50, stop_token_ids=[END_ID])
    assert events[-1]["type"] == "response.incomplete"
    (call,) = events[-1]["response"]["output"]
    assert call["status"] == "incomplete" and ARGUMENTS.startswith(call["arguments"])


def test_log_probabilities_are_in_deltas_parts_and_items(http: httpx.Client) -> None:
    events = stream_of(http, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == 16 and all(len(each["top_logprobs"]) == 2 for each in logprobs)
    assert events[-1]["response"]["top_logprobs"] == 2
    plain = stream_of(http)
    assert plain[-1]["response"]["output"][0]["content"][0]["logprobs"] == []


def test_padding_is_of_deltas_alone(http: httpx.Client) -> None:
    events = stream_of(http, stream_options={"include_obfuscation": True})
    padded = {event["type"] for event in events if "obfuscation" in event}
    assert padded == {"response.output_text.delta"}
    sizes = {len(event["delta"].encode()) + len(event["obfuscation"]) for event in events if "obfuscation" in event}
    assert len(sizes) <= 3  # but for escapes


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input[0].id"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": ""}]}, "input[0].call_id"),
        ({"input": [{"role": "user", "content": "x", "arguments": "{}"}]}, "input[0].arguments"),
        (
            {"input": [{"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "x"}]},
            "input[0].encrypted_content",
        ),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "f"}]}, "input[0].arguments"),
        ({"tools": [{"type": "web_search", "filters": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": []}]}, "tools[0].tools"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [TOOLS[0]], "strict": True}]}, "tools[0].strict"),
        ({"tools": [{**TOOLS[0], "tools": [TOOLS[0]]}]}, "tools[0].tools"),
        (
            {"tools": [TOOLS[0], {"type": "namespace", "name": "n", "tools": [TOOLS[0], TOOLS[0]]}]},
            "tools[1].tools[1].name",
        ),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name"),
        ({"tools": [{"type": "custom", "name": "c", "parameters": {}}]}, "tools[0].parameters"),
        (
            {"tools": [{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark"}}]},
            "tools[0].format.definition",
        ),
        (
            {
                "tools": [
                    {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": ""}}
                ]
            },
            "tools[0].format.definition",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "h"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "name": "f"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "name": "a"}}}, "text.format.name"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"stream_options": {}}, "stream_options"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_x"}, "conversation"),
        ({"conversation": {"id": "conv_x"}, "previous_response_id": "resp_x"}, "conversation"),
        ({"truncation": "left"}, "truncation"),
        ({"input": "x" * 4000}, "input"),
    ],
)
def test_a_wrong_request_is_refused_by_its_path(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    refused = http.post("/v1/responses", json={"model": "tiny", "input": "hi", "max_output_tokens": 16} | fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


def test_another_tenants_model_is_no_model(house: House, http: httpx.Client) -> None:
    body = {"model": f"tiny:{house.globex.adapter}", "input": "hi"}
    refused = http.post("/v1/responses", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_a_key_runs_a_response_once(http: httpx.Client) -> None:
    body = {"model": "tiny", "input": "hi", "max_output_tokens": 16, "stream": True}
    first, again = (http.post("/v1/responses", json=body, headers={"Idempotency-Key": "resp-1"}) for _ in range(2))
    assert first.text == again.text
    assert again.headers["idempotent-replayed"] == "true"
