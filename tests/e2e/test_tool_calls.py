"""A model too small to know tools calls them all the same: whatever it writes, its calls match their schemas.

By hand `make long-tools` takes 200 tools through every choice: twenty minutes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import openai
import pytest
from jsonschema import Draft202012Validator

from tests.e2e.installation import BASE, Installation
from tests.tool_schemas import Schema, tool_schema

AT_ONCE = 8
NUM_TOOLS, NUM_TOOLS_FULL = 4, 200
QUESTION = [{"role": "user", "content": "Please look up what I need with one of your tools."}]
MAX_TOKENS, MAX_TOKENS_FULL = 64, 200
END_OF_TURN, RESPONSE = "2", "7639"  # the model's token ids; the second one is of the word in <tool_response>
OTHER = {"type": "object", "properties": {}, "additionalProperties": False}


class Reply(msgspec.Struct):
    """The text and the tool calls of one reply."""

    content: str | None
    calls: list[tuple[str, str]]
    """The name and the arguments of each tool call."""
    finish_reason: str
    token_ids: list[int]


@pytest.fixture(scope="module")
def client(installation: Installation) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{installation.url}/v1", api_key=installation.keys["OPENAI_API_KEY"], max_retries=0
    ) as client:
        yield client


def tool(name: str, schema: Schema) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": f"Looks up {name}.", "parameters": schema}}


def called_before(num_times: int) -> list[dict[str, Any]]:
    """Return a conversation in which each question was followed by a tool call."""
    said: list[dict[str, Any]] = []
    for number in range(num_times):
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "target", "arguments": "{}"}}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "It is known."}
        said += [*QUESTION, {"role": "assistant", "tool_calls": [call]}, result]
    return said + QUESTION


# Where it need not call, so small a model calls what it called before, if it cannot repeat what it was told.
INCLINED = {"messages": called_before(3), "temperature": 0, "logit_bias": {RESPONSE: -100}}


def choices(name: str) -> dict[str, Any]:
    """Return every kind of tool_choice under which a tool may be called, by its name here."""
    named = {"type": "function", "function": {"name": name}}
    return {
        "auto": "auto",
        "required": "required",
        "named": named,
        "allowed": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}},
    }


def reply_of(chunks: Iterable[Any]) -> Reply:
    """Return the reply that the chunks of a stream add up to."""
    reply = Reply(None, [], "", [])
    for chunk in chunks:
        choice = chunk.choices[0]
        if choice.delta.content is not None:
            reply.content = (reply.content or "") + choice.delta.content
        for call in choice.delta.tool_calls or ():
            if call.function.name is not None:
                assert call.index == len(reply.calls) and call.id and call.type == "function"
                reply.calls.append((call.function.name, ""))
            name, arguments = reply.calls[call.index]
            reply.calls[call.index] = (name, arguments + call.function.arguments)
        reply.token_ids += getattr(choice, "token_ids", None) or ()
        reply.finish_reason = choice.finish_reason or reply.finish_reason
    return reply


def ask(client: openai.OpenAI, *, stream: bool = False, **fields: Any) -> Reply:
    asked = {"model": BASE, "messages": QUESTION, "max_tokens": MAX_TOKENS, "stream": stream, **fields}
    reply: Any = client.chat.completions.create(**asked, extra_body={"return_token_ids": True})
    if stream:
        return reply_of(reply)
    (choice,) = reply.choices
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return Reply(choice.message.content, calls, choice.finish_reason, choice.token_ids)


def check(reply: Reply, schemas: dict[str, Schema], mode: str) -> int:
    """Check that every call which was not cut off matches its tool's schema; return the number of these calls."""
    whole = reply.calls[:-1] if reply.finish_reason == "length" else reply.calls
    for name, arguments in whole:
        Draft202012Validator(schemas[name]).validate(json.loads(arguments))
    if mode == "auto":
        assert reply.content is not None or reply.calls
        return len(whole)
    assert reply.calls and reply.content is None
    if reply.finish_reason != "length":
        assert reply.finish_reason == ("stop" if mode == "named" else "tool_calls")
    if mode != "required":
        assert {name for name, _ in reply.calls} == {"target"}
    return len(whole)


class Case(msgspec.Struct, frozen=True):
    seed: int
    mode: str
    max_tokens: int

    @property
    def schemas(self) -> dict[str, Schema]:
        return {"target": tool_schema(self.seed), "other": OTHER}

    def replies(self, client: openai.OpenAI) -> tuple[Reply, Reply]:
        """Return the replies to the same request, asked for whole and streamed."""
        asked: dict[str, Any] = {
            "tools": [tool(name, schema) for name, schema in self.schemas.items()],
            "tool_choice": choices("target")[self.mode],
            "parallel_tool_calls": self.seed % 3 == 0,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
        } | (INCLINED if self.mode == "auto" else {})
        return ask(client, **asked), ask(client, **asked, stream=True)


def test_calls_match_their_schemas_whole_and_streamed(client: openai.OpenAI, full: bool) -> None:
    modes = list(choices("target"))
    cases = [Case(seed, modes[seed % len(modes)], MAX_TOKENS) for seed in range(NUM_TOOLS)]
    if full:
        cases = [Case(seed, mode, MAX_TOKENS_FULL) for seed in range(NUM_TOOLS_FULL) for mode in modes]
    num_valid, num_replies = dict.fromkeys(modes, 0), dict.fromkeys(modes, 0)
    num_cut = num_alike = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for case, (whole, streamed) in zip(cases, pool.map(lambda case: case.replies(client), cases), strict=True):
            for reply in (whole, streamed):
                num_valid[case.mode] += check(reply, case.schemas, case.mode)
                num_replies[case.mode] += 1
                num_cut += reply.finish_reason == "length"
            if whole.token_ids == streamed.token_ids:  # in batches of other shapes bfloat16 may choose differently
                assert whole == streamed
                num_alike += 1
    print(f"{len(cases)} cases, {num_valid} valid calls, {num_cut} replies cut off, {num_alike} streams alike")
    assert num_alike >= len(cases) // 2
    assert all(num_valid[mode] >= num_replies[mode] // 2 >= 1 for mode in modes), num_replies


def test_several_tools_are_called_at_once_unless_only_one_may_be(client: openai.OpenAI) -> None:
    tools = [tool("get_time", OTHER), tool("get_date", OTHER)]
    wanted = {"tools": tools, "tool_choice": "required", "temperature": 0, "logit_bias": {END_OF_TURN: -100}}
    several = ask(client, **wanted, max_tokens=160)
    assert len(several.calls) == 4 and several.finish_reason == "tool_calls"
    assert all(json.loads(arguments) == {} for _, arguments in several.calls)
    one = ask(client, parallel_tool_calls=False, **wanted)
    assert len(one.calls) == 1 and one.finish_reason == "tool_calls"


def test_a_conversation_with_calls_and_results_goes_on(client: openai.OpenAI) -> None:
    tools = [tool("get_time", OTHER)]
    reply = client.chat.completions.create(
        model=BASE,
        messages=QUESTION,  # type: ignore[arg-type]
        tools=tools,  # type: ignore[arg-type]
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
    )
    message = reply.choices[0].message
    (call,) = message.tool_calls or ()
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is noon."}
    again = client.chat.completions.create(
        model=BASE,
        messages=[*QUESTION, message.model_dump(exclude_none=True), result],  # type: ignore[list-item]
        tools=tools,  # type: ignore[arg-type]
        tool_choice="none",
        max_tokens=20,
    )
    assert again.choices[0].message.content and not again.choices[0].message.tool_calls


def test_text_of_a_schema_may_come_instead_of_a_call(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
    schema["additionalProperties"] = False
    for seed in range(2):
        reply = ask(
            client,
            tools=[tool("get_time", OTHER)],
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
            seed=seed,
            parallel_tool_calls=False,
        )
        if reply.content is not None:
            Draft202012Validator(schema).validate(json.loads(reply.content))
        else:
            assert [(name, json.loads(arguments)) for name, arguments in reply.calls] == [("get_time", {})]


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_tool(client: openai.OpenAI) -> None:
    bad = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model=BASE,
                messages=QUESTION,  # type: ignore[arg-type]
                tools=[tool("fine", OTHER), tool("bad", bad)],  # type: ignore[arg-type]
                stream=stream,
            )
        assert refused.value.param == "tools[1].function.parameters"
        assert "'not' can't be enforced" in refused.value.message
