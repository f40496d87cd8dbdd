"""A model whose prompts begin its thinking, and whose vocabulary has no token that ends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.openai.echo import EchoClient, echoing

TEMPLATE = "{# <tool_call> arguments #}{% if tools %}{% endif %}{{ messages[-1].content }}<think>\n"
ANSWER = '{"n": 4}'
CALL = f'<tool_call>\n{{"name": "f", "arguments": {ANSWER}}}\n</tool_call>'
JSON: Any = {"type": "json_object"}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def client(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoClient]:
    with echoing(module_dsn, tmp_path_factory.mktemp("begun"), TEMPLATE, []) as client:
        yield client


def test_what_is_held_from_the_first_token_is_no_reasoning(client: EchoClient) -> None:
    message = client.ask(ANSWER, response_format=JSON).choices[0].message
    assert message.content == ANSWER and not hasattr(message, "reasoning_content")
    chunks = client.ask(ANSWER, response_format=JSON, stream=True)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == ANSWER
    message = client.ask(CALL, tools=TOOLS, tool_choice="required").choices[0].message
    assert message.content is None and message.tool_calls[0].function.arguments == ANSWER


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}])
def test_what_may_be_thought_is_reasoning(client: EchoClient, fields: dict[str, Any]) -> None:
    message = client.ask("Why?</think>4", **fields).choices[0].message
    assert (message.reasoning_content, message.content) == ("Why?", "4")
