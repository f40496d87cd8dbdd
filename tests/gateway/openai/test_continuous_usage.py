"""With `continuous_usage_stats` every chunk of a stream tells what the reply has cost by then, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SAYS = "hello there €, and again"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>~'
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": SAYS}], "max_tokens": 30},
    TEXT: {"model": "tiny", "prompt": SAYS, "max_tokens": 30},
}


@pytest.fixture
def client(house: House) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {house.acme.key}"}
    with httpx.Client(base_url=house.url, headers=headers, timeout=PATIENCE_S) as client:
        yield client


def stream_chunks(
    client: httpx.Client, path: str, *, include_usage: bool = True, **fields: Any
) -> list[dict[str, Any]]:
    options = {"continuous_usage_stats": True, "include_usage": include_usage} | fields.pop("stream_options", {})
    reply = client.post(path, json=BODIES[path] | {"stream": True, "stream_options": options} | fields)
    assert reply.status_code == 200, reply.text
    return [msgspec.json.decode(each.removeprefix("data: ")) for each in reply.text.split("\n\n")[:-2]]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *(
            (path, fields)
            for path in (CHAT, TEXT)
            for fields in ({}, {"n": 3}, {"stop": "€", "n": 2}, {"stop": "re €"})
        ),
        (CHAT, {"logprobs": True}),
        (CHAT, {"messages": [{"role": "user", "content": f"One.{CALL}"}], "tools": TOOLS, "stop_token_ids": [93]}),
        (TEXT, {"logprobs": 1, "echo": True}),
        (TEXT, {"prompt": ["hello", "there €"], "n": 2, "stop": "€"}),
        (TEXT, {"stream_options": {"include_obfuscation": True}}),
    ],
    ids=str,
)
def test_each_chunk_counts_the_tokens_so_far(client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    *chunks, last = stream_chunks(client, path, return_token_ids=True, **fields)
    num_ids = 0
    for chunk in chunks:
        usage = chunk["usage"]
        num_ids += sum(len(choice.get("token_ids") or ()) for choice in chunk["choices"])
        assert set(usage) == {"prompt_tokens", "completion_tokens", "total_tokens"}
        assert usage["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["completion_tokens"] == num_ids
    assert last["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == last["usage"]["completion_tokens"] == num_ids
    assert "prompt_tokens_details" in last["usage"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_text_alone_is_counted_as_it_comes(client: httpx.Client, path: str) -> None:
    """No chunk is sent for the usage alone, where only the usage so far is asked for."""
    chunks = stream_chunks(client, path, include_usage=False)
    assert all(chunk["choices"] for chunk in chunks)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 30
    assert len(set(counts)) > 5, "not the last count in every chunk"


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_without_it_chunks_hold_no_usage(client: httpx.Client, path: str) -> None:
    options = {"continuous_usage_stats": False}
    assert all(
        "usage" not in chunk for chunk in stream_chunks(client, path, include_usage=False, stream_options=options)
    )
    *chunks, last = stream_chunks(client, path, stream_options=options)
    assert all(chunk["usage"] is None for chunk in chunks) and last["usage"]["completion_tokens"] == 30
