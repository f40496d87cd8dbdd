"""A model that answers in channels, over HTTP: thinking before the answer, and messages to functions as calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tests.gateway.live import FakeEngine, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.live_gateway import gateways_with

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
THOUGHT = "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant"
ANSWER = f"{THOUGHT}<|channel|>final<|message|>Four."
CALL = f'{THOUGHT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"n": 4}}'
TEMPLATE = "{# <|channel|>commentary <|call|> #}{% if tools %}{% endif %}{{ messages[-1].content }}"


class Client:
    """A client of a model that repeats its prompt up to `<|return|>`."""

    def __init__(self, client: openai.OpenAI, tokenizer: Backend) -> None:
        self.tokenizer = tokenizer
        self.responses: Any = client.responses
        self._client = client
        self._end = tokenizer.token_to_id("<|return|>")

    def message(self, says: str, num_tokens: int, **fields: Any) -> Any:
        """Return the reply of the Messages API to a request for this number of tokens."""
        body = {"model": "tiny", "max_tokens": num_tokens, "messages": [{"role": "user", "content": says}], **fields}
        reply = self._client.post("/messages", body=body, cast_to=httpx.Response)
        return reply.json()

    def ask(self, says: str, **fields: Any) -> Any:
        messages: Any = [{"role": "user", "content": f"{says}<|return|>"}]
        asked = {"max_tokens": 100, "extra_body": {"stop_token_ids": [self._end]}, **fields}
        return self._client.chat.completions.create(model="tiny", messages=messages, **asked)


@pytest.fixture(scope="module")
def client(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("channels")
    model = make_model_folder(folder / "model")
    backend = Backend.from_file(str(model / "tokenizer.json"))
    names = ("return", "start", "channel", "message", "constrain", "end", "call")
    backend.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in names])
    backend.save(str(model / "tokenizer.json"))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((model / "config.json").read_text()) | {"vocab_size": backend.get_vocab_size()}
    (model / "config.json").write_text(json.dumps(config))
    key = asyncio.run(make_tenant(module_dsn, "acme", "pirate", "1")).key

    def engine(endpoint: str, model_dir: Path) -> FakeEngine:
        return FakeEngine(endpoint, model_dir, "--tokens-per-s", "2000")

    with (
        gateways_with(engine, module_dsn, model, data_dir=folder) as installed,
        openai.OpenAI(base_url=f"{installed.gateway.url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield Client(client, backend)


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}])
def test_an_answer_follows_its_thinking(client: Client, fields: dict[str, Any]) -> None:
    (choice,) = client.ask(ANSWER, **fields).choices
    assert (choice.message.content, choice.finish_reason) == ("<think>\nWhy?\n</think>\n\nFour.", "stop")
    assert choice.message.tool_calls is None
    streamed = [chunk.choices[0].delta.content or "" for chunk in client.ask(ANSWER, stream=True, **fields)]
    assert "".join(streamed) == choice.message.content


def test_a_message_to_a_function_is_a_call(client: Client) -> None:
    (choice,) = client.ask(CALL, tools=TOOLS).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("f", '{"n": 4}')
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content.strip() == "<think>\nWhy?\n</think>"


def test_a_message_to_a_function_without_tools_is_content(client: Client) -> None:
    (choice,) = client.ask(CALL).choices
    assert choice.message.content.endswith('<tool_call>\n{"name": "f", "arguments": {"n": 4}}\n</tool_call>')


def test_special_tokens_are_shown_where_they_are_asked_for(client: Client) -> None:
    extra = {"skip_special_tokens": False, "ignore_eos": True}
    (choice,) = client.ask(ANSWER, max_tokens=4, extra_body=extra).choices
    assert choice.message.content.startswith("<|channel|>")


def test_messages_have_thinking_in_a_block_of_its_own_whether_asked_for_or_not(client: Client) -> None:
    num_tokens = len(client.tokenizer.encode(ANSWER).ids)
    content = client.message(ANSWER, num_tokens)["content"]
    assert [(block["type"], block.get("thinking", block.get("text"))) for block in content] == [
        ("thinking", "Why?"),
        ("text", "Four."),
    ]


def test_responses_have_thinking_and_calls_as_items(client: Client) -> None:
    num_tokens = len(client.tokenizer.encode(CALL).ids)
    tools: Any = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    reply = client.responses.create(model="tiny", input=CALL, tools=tools, max_output_tokens=num_tokens)
    assert [item.type for item in reply.output] == ["reasoning", "function_call"]
    assert (reply.output[1].name, reply.output[1].arguments) == ("f", '{"n": 4}')
