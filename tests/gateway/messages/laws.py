"""Laws that hold on every stream of a message, whatever the model writes, and however it ends."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gateway.messages.partial_json import object_of

BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"text": "", "citations": None},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}, "caller": {"type": "direct"}},
}
DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
USAGE = {
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cache_creation",
    "service_tier",
    "inference_geo",
    "output_tokens_details",
    "server_tool_use",
}

Events = list[dict[str, Any]]


def read(stream: str) -> Events:
    """Return the events of a stream, and check that each event's name is that of its data."""
    *parts, end = stream.split("\n\n")
    assert end == ""
    events = []
    for part in parts:
        name, _, data = part.partition("\n")
        assert "\n" not in data and data.startswith("data: ")
        event = msgspec.json.decode(data.removeprefix("data: "), type=dict[str, Any])
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def check(events: Events) -> dict[str, Any] | None:
    """Check that a stream keeps the laws. Return the message that its events form; None where it ends with an error."""
    first, *between = events
    assert first["type"] == "message_start"
    message = first["message"]
    assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
    assert (message["stop_reason"], message["stop_sequence"]) == (None, None)
    assert set(message["usage"]) == USAGE and message["usage"]["input_tokens"] > 0
    if between[-1]["type"] == "error":
        error = between.pop()
        assert set(error) == {"type", "error", "request_id"} and set(error["error"]) == {"type", "message"}
        _blocks(between, is_whole=False)
        return None
    *between, ended, stopped = between
    assert (ended["type"], stopped) == ("message_delta", {"type": "message_stop"})
    assert set(ended["usage"]) == USAGE
    content = _blocks(between, is_whole=True)
    assert content
    has_calls = any(block["type"] == "tool_use" for block in content)
    reason = ended["delta"]["stop_reason"]
    assert reason in ("end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded")
    assert (reason == "tool_use") <= has_calls
    assert (ended["delta"]["stop_sequence"] is not None) == (reason == "stop_sequence")
    return dict(message | ended["delta"] | {"content": content, "usage": ended["usage"]})


def _blocks(events: Events, *, is_whole: bool) -> list[dict[str, Any]]:
    """Check the events of all blocks, one after the other; return the blocks.

    is_whole: whether the last block must have ended.
    """
    content: list[dict[str, Any]] = []
    while events:
        end = next((at for at, event in enumerate(events) if event["type"] == "content_block_stop"), None)
        if end is None:
            assert not is_whole
            end = len(events)
        content.append(_block(events[: end + 1], len(content), is_ended=end < len(events)))
        events = events[end + 1 :]
    return content


def _block(events: Events, place: int, *, is_ended: bool) -> dict[str, Any]:
    begun, *deltas = events
    assert begun["type"] == "content_block_start"
    assert {event["index"] for event in events} == {place}
    block = dict(begun["content_block"])
    kind = block["type"]
    assert BLOCKS[kind].items() <= block.items()
    if is_ended:
        deltas.pop()
    assert all(event["type"] == "content_block_delta" for event in deltas)
    if kind == "thinking" and is_ended:
        signed = deltas.pop()["delta"]
        assert signed["type"] == "signature_delta" and signed["signature"]
        block["signature"] = signed["signature"]
    texts = []
    for event in deltas:
        field = DELTAS[event["delta"]["type"]]
        assert field == ("partial_json" if kind == "tool_use" else kind)
        assert event["delta"][field], "no delta is empty"
        texts.append(event["delta"][field])
    text = "".join(texts)
    text.encode()  # no character is split
    if kind == "tool_use":
        assert block["id"].startswith("toolu_")
        block["input"] = object_of(text)
        assert isinstance(json.loads(json.dumps(block["input"])), dict)
    else:
        block[kind] = text
    return block
