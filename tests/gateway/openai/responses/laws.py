"""Laws that hold on every stream of a response, whatever the model writes, and however it ends."""

from __future__ import annotations

from typing import Any

import msgspec
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PREFIXES = {"message": "msg_", "function_call": "fc_", "custom_tool_call": "ctc_", "reasoning": "rs_"}
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
TEXT_OF = {"message": "text", "function_call": "arguments", "custom_tool_call": "input"}
KINDS = {
    "message": "output_text",
    "function_call": "function_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
    "reasoning": "reasoning_text",
}
EMPTY_PARTS: dict[str, dict[str, Any]] = {
    "message": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text", "text": ""},
}
CODES = {"server_error", "rate_limit_exceeded", "invalid_prompt"}

Events = list[dict[str, Any]]


def read(stream: str) -> Events:
    """Return the events of a stream.

    Checks that each event's name is that of its data, and that the stream ends with [DONE].
    """
    *parts, done, end = stream.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    events = []
    for part in parts:
        name, _, data = part.partition("\n")
        assert "\n" not in data and data.startswith("data: ")
        event = msgspec.json.decode(data.removeprefix("data: "), type=dict[str, Any])
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def check(events: Events, *, strictly: bool = True) -> dict[str, Any]:
    """Check that a stream keeps the laws, and return its last response.

    strictly: check the types of OpenAI's client as well, which takes most of the time.
    """
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    first, second, *between, last = events
    if first["response"]["background"]:
        assert (first["type"], first["response"]["status"]) == ("response.created", "queued")
        assert (second["type"], second["response"]["status"]) == ("response.queued", "queued")
        if not between and last["response"]["status"] == "cancelled":  # in the queue: it never ran
            assert last["response"]["output"] == []
        else:
            second, *between = between
    else:
        assert (first["type"], first["response"]["status"]) == ("response.created", "in_progress")
    if second["type"] != "response.queued":
        assert (second["type"], second["response"]["status"]) == ("response.in_progress", "in_progress")
    for event in (first, second):
        assert (event["response"]["output"], event["response"]["usage"]) == ([], None)
    if between and between[-1]["type"] == "error":
        error = between.pop()
        assert last["type"] == "response.failed"
        assert error["error"]["message"] == error["message"] and error["error"]["code"] == error["code"]
    assert not TERMINAL & {event["type"] for event in between}
    response = last["response"]
    assert last["type"] == f"response.{'failed' if response['status'] == 'cancelled' else response['status']}"
    output = _items(between)
    assert output == response["output"]
    _check_end(response)
    changed = {"status", "output", "usage", "completed_at", "incomplete_details", "error", "store", "conversation"}
    assert {name for name in response if response[name] != first["response"][name]} <= changed
    if strictly:
        for event in events:
            EVENT.validate_python(event)
        Response.model_validate(response)
    return response


def _items(events: Events) -> list[dict[str, Any]]:
    """Check the events of all items, one after the other, and return the items in their final state."""
    done: list[dict[str, Any]] = []
    while events:
        end = next(at for at, event in enumerate(events) if event["type"] == "response.output_item.done")
        done.append(_item(events[: end + 1], len(done)))
        events = events[end + 1 :]
    ids = [item["id"] for item in done]
    assert len(set(ids)) == len(ids)
    return done


def _item(events: Events, place: int) -> dict[str, Any]:
    added, *within, ended = events
    assert added["type"] == "response.output_item.added"
    assert {event["output_index"] for event in events} == {place}
    begun, item = added["item"], ended["item"]
    kind, field, id = item["type"], TEXT_OF.get(item["type"], "text"), item["id"]
    assert (begun["type"], begun["id"], begun["status"]) == (kind, id, "in_progress") and id.startswith(PREFIXES[kind])
    assert all(event["item_id"] == id for event in within)
    if kind in EMPTY_PARTS:
        assert begun["content"] == [] and begun.get("summary", []) == []
        part_added, *within, part_done = within
        assert part_added["type"] == "response.content_part.added"
        assert part_added["part"] == EMPTY_PARTS[kind]
        assert part_done["type"] == "response.content_part.done"
        assert [part_done["part"]] == item["content"]
        text = part_done["part"]["text"]
    else:
        assert begun[field] == "" and begun["name"] == item["name"] and begun["call_id"] == item["call_id"]
        assert begun.get("namespace") == item.get("namespace") and "__" not in item["name"]
        text = item[field]
    *deltas, told = within
    assert told["type"] == f"response.{KINDS[kind]}.done" and told[field] == text
    assert all(event["type"] == f"response.{KINDS[kind]}.delta" and event["delta"] for event in deltas)
    assert "".join(event["delta"] for event in deltas) == text
    if kind == "message":
        logprobs = [each for event in deltas for each in event["logprobs"]]
        assert told["logprobs"] == part_done["part"]["logprobs"]
        assert told["logprobs"][: len(logprobs)] == logprobs
    return dict(item)


def _check_end(response: dict[str, Any]) -> None:
    """Check the fields of an ended response that concern its end."""
    status, output, usage = response["status"], response["output"], response["usage"]
    is_whole = status == "completed"
    assert [item["status"] for item in output[:-1]] == ["completed"] * len(output[:-1])
    if output:
        assert output[-1]["status"] == ("completed" if is_whole else "incomplete") or status in ("failed", "cancelled")
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    assert response["incomplete_details"] == details
    assert (response["completed_at"] is not None) == is_whole
    assert (response["error"] is not None) == (status == "failed")
    assert status != "failed" or response["error"]["code"] in CODES
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
