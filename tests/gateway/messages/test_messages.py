"""Messages over HTTP, whole and streamed. The engine here repeats its prompt."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import House
from tests.gateway.messages.laws import check, read
from tests.gateway.model_folder import CONTEXT
from tests.gateway.openai.test_tool_calls import ARGUMENTS, FIRST, SECOND

TOOLS: list[Any] = [{"name": name, "input_schema": {"type": "object"}} for name in ("f", "g")]
USER = {"role": "user", "content": "hello there"}
BILLING = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch={};"}


def create(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    """Return a message, after checking that it is equal whole and streamed."""
    body = {"model": "tiny", "max_tokens": 16, "messages": [USER]} | fields
    found: list[dict[str, Any]] = []
    for stream in (False, True):
        reply = http.post("/v1/messages", json=body | {"stream": stream})
        assert reply.status_code == 200, reply.text
        assert reply.headers["request-id"] == reply.headers["x-request-id"]
        message = check(read(reply.text)) if stream else reply.json()
        assert message is not None
        found.append(message)
    whole, streamed = found
    assert comparable(whole) == comparable(streamed)
    return whole


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Return a reply without the parts that differ when the second of two equal requests finds its prompt cached."""
    usage = message["usage"]
    content = [
        {name: value for name, value in block.items() if name not in ("id", "signature")}
        for block in message["content"]
    ]
    num_input = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return message | {"id": "", "content": content, "usage": (num_input, usage["output_tokens"])}


def text_of(message: dict[str, Any]) -> str:
    (block,) = message["content"]
    return str(block["text"])


def refused(http: httpx.Client, status: int, kind: str, **fields: Any) -> str:
    """Return the message of a refusal, after checking its status and type."""
    body = {"model": "tiny", "max_tokens": 16, "messages": [USER]} | fields
    reply = http.post("/v1/messages", json=body)
    assert reply.status_code == status, reply.text
    told = reply.json()
    assert set(told) == {"type", "error", "request_id"} and told["type"] == "error"
    assert set(told["error"]) == {"type", "message"}
    assert (told["error"]["type"], told["request_id"]) == (kind, reply.headers["request-id"])
    return str(told["error"]["message"])


def test_a_message_has_its_text_its_usage_and_why_it_ended(http: httpx.Client) -> None:
    message = create(http, system="Be brief.", temperature=0.5, metadata={"user_id": "u-1"})
    assert re.fullmatch("msg_[a-z2-7]{24}", message["id"])
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    assert text_of(message).startswith("system\nBe brief.")
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    assert message["usage"]["output_tokens"] == 16


def test_a_reply_names_the_stop_sequence_that_ended_it(http: httpx.Client) -> None:
    message = create(http, stop_sequences=["zzz", "there"], max_tokens=60)
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "there")
    assert text_of(message) == "user\nhello "


def test_a_limit_that_is_larger_than_the_context_is_what_is_left_of_it(http: httpx.Client) -> None:
    message = create(http, max_tokens=32_000)
    assert message["stop_reason"] == "model_context_window_exceeded"
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"] == CONTEXT


def test_turns_are_the_messages_that_chat_has(http: httpx.Client) -> None:
    call = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    chat = [
        {"role": "system", "content": "Be brief.\n\nAnd kind."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "3"},
        {"role": "user", "content": "and now?"},
    ]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "3"}]}
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see.", "citations": None},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "text", "text": "and now?"}, result]},
    ]
    system = [BILLING, {"type": "text", "text": "Be brief."}, {"type": "text", "text": "And kind."}]
    told = http.post("/v1/chat/completions", json={"model": "tiny", "messages": chat, "max_tokens": 200}).json()
    message = create(http, system=system, messages=turns, max_tokens=200)
    assert text_of(message) == told["choices"][0]["message"]["content"]
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == told["usage"]["prompt_tokens"]


def test_a_tool_that_failed_says_so(http: httpx.Client) -> None:
    turns = [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": "no disk", "is_error": True}],
        },
    ]
    assert "Error: no disk" in text_of(create(http, messages=turns, max_tokens=200))


def test_the_last_message_of_the_assistant_is_gone_on_with(http: httpx.Client) -> None:
    turns = [USER, {"role": "assistant", "content": "I say"}]
    counted = http.post("/v1/messages/count_tokens", json={"model": "tiny", "messages": turns}).json()
    body = {"model": "tiny", "messages": turns, "add_generation_prompt": False, "continue_final_message": True}
    assert counted["input_tokens"] == len(http.post("/tokenize", json=body).json()["tokens"])
    assert create(http, messages=turns)["usage"]["output_tokens"] == 16
    assert "white space" in refused(
        http, 400, "invalid_request_error", messages=[USER, {"role": "assistant", "content": "I "}]
    )


def test_calls_are_blocks_of_their_own(http: httpx.Client) -> None:
    says = [{"role": "user", "content": f"Let me see.\n{FIRST}\n{SECOND}\nEND"}]
    message = create(http, messages=says, tools=TOOLS, max_tokens=300, stop_sequences=["END"])
    text, first, second = message["content"]
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    assert text["text"] == "Let me see."
    assert (first["name"], first["input"]) == ("f", httpx.Response(200, text=ARGUMENTS).json())
    assert (second["name"], second["input"]) == ("g", {})
    assert first["id"] != second["id"]


@pytest.mark.parametrize("max_tokens", range(1, 60, 7))
def test_a_call_that_is_cut_off_has_what_there_is_of_it(http: httpx.Client, max_tokens: int) -> None:
    says = [{"role": "user", "content": FIRST}]
    message = create(http, messages=says, tools=TOOLS, max_tokens=max_tokens, tool_choice={"type": "any"})
    assert message["stop_reason"] == "max_tokens"
    (block,) = message["content"]
    assert isinstance(block["input"], dict) if block["type"] == "tool_use" else block["text"] == ""


def test_the_header_for_billing_leaves_the_beginning_of_the_prompt_as_it_is(http: httpx.Client) -> None:
    def system(number: int) -> list[dict[str, str]]:
        return [
            BILLING | {"text": BILLING["text"].format(number)},
            {"type": "text", "text": "You are a coding agent. " * 8},
        ]

    turns: list[Any] = [{"role": "user", "content": "first, then second"}]
    first = http.post(
        "/v1/messages", json={"model": "tiny", "max_tokens": 8, "system": system(1), "messages": turns}
    ).json()
    size = sum(first["usage"][name] for name in ("input_tokens", "cache_read_input_tokens"))
    turns += [{"role": "assistant", "content": text_of(first)}, {"role": "user", "content": "go on"}]
    second = http.post(
        "/v1/messages", json={"model": "tiny", "max_tokens": 8, "system": system(2), "messages": turns}
    ).json()
    assert second["usage"]["cache_read_input_tokens"] >= 0.9 * size - 16, "but for the block that was not full"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"temperature": 1.5}, "temperature"),
        ({"frequency_penalty": 0}, "frequency_penalty"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "h"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.budget_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]},
                    USER,
                ]
            },
            "messages[1]",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": "b"}]},
                    USER,
                ]
            },
            "messages[0].content[0].signature",
        ),
    ],
)
def test_a_wrong_field_is_refused_by_name(http: httpx.Client, fields: dict[str, Any], named: str) -> None:
    assert named in refused(http, 400, "invalid_request_error", **fields)


def test_errors_have_the_types_of_the_api(house: House, http: httpx.Client) -> None:
    assert "nope" in refused(http, 404, "not_found_error", model="nope")
    assert "Invalid method" in http.get("/v1/messages").json()["error"]["message"]
    with httpx.Client(base_url=house.url) as stranger:
        reply = stranger.post("/v1/messages", json={}, headers={"x-api-key": "sk-wrong"})
        assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")
        reply = stranger.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")
        assert stranger.get("/v1/models").json()["error"]["type"] == "invalid_request_error"


def test_a_key_is_read_from_either_header(house: House) -> None:
    body = {"model": "tiny", "max_tokens": 1, "messages": [USER]}
    for headers in ({"x-api-key": house.acme.key}, {"authorization": f"Bearer {house.acme.key}"}):
        assert httpx.post(f"{house.url}/v1/messages?beta=true", json=body, headers=headers).status_code == 200


def test_models_are_listed_in_pages_for_these_clients(http: httpx.Client) -> None:
    page = http.get("/v1/models").json()
    assert (page["has_more"], page["first_id"]) == (False, page["data"][0]["id"])
    assert {"tiny", "tiny:pirate"} <= {model["id"] for model in page["data"]}
    assert all(model["type"] == "model" and model["display_name"] == model["id"] for model in page["data"])
    seen, after = [], {}
    while True:
        page_of_one = http.get("/v1/models", params={"limit": "1", **after}).json()
        seen += [model["id"] for model in page_of_one["data"]]
        if not page_of_one["has_more"]:
            break
        after = {"after_id": page_of_one["last_id"]}
    assert seen == [model["id"] for model in page["data"]]
    assert http.get("/v1/models/tiny").json()["type"] == "model"
    assert http.get("/v1/models", params={"limit": "0"}).json()["error"]["type"] == "invalid_request_error"


def test_a_reply_is_replayed_for_its_idempotency_key(http: httpx.Client) -> None:
    body = {"model": "tiny", "max_tokens": 4, "messages": [USER]}
    first, second = (http.post("/v1/messages", json=body, headers={"idempotency-key": "m-1"}) for _ in range(2))
    assert first.content == second.content and second.headers["idempotent-replayed"] == "true"
