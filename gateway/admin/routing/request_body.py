"""Reads the facts by which routes decide from a request's body, without running the request.

Knows the few fields of chat completions and completions that matter here, and judges none of the others.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from gateway.admin.paging import wrong_value
from gateway.admin.routing.wire import ExplainModel
from gateway.text.estimate import estimated_tokens

MAX_TOKENS = 2**31 - 1
TIERS = ("default", "flex", "priority")


def read_request_body(wanted: ExplainModel) -> ExplainModel:
    """Return the request to explain, completed by the facts in its body; without a body, as it is.

    Raises InvalidRequest: when a field of the body cannot be used; the error names the field.
    """
    body = wanted.body
    if body is None:
        return wanted
    prompts = _prompts(body)
    num_choices = _number(body, "n", 1)
    most = _number(body, "max_completion_tokens", _number(body, "max_tokens", wanted.max_tokens))
    tier = body.get("service_tier") or "default"
    return replace(
        wanted,
        user=_text(body, "user") or wanted.user,
        metadata=_metadata(body) | dict(wanted.metadata),
        num_prompts=len(prompts),
        prompt_tokens=sum(estimated_tokens(each) for each in prompts),
        max_tokens=most,
        n=num_choices * len(prompts),
        tools=bool(body.get("tools")),
        service_tier=tier if tier in TIERS else "default",
        stream=body.get("stream") is True,
    )


def _prompts(body: dict[str, Any]) -> list[Any]:
    """Return the prompts of a body: the messages of a conversation, texts, or token ids."""
    if "messages" in body:
        messages = body["messages"]
        if not (isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages)):
            raise wrong_value("body.messages", "expected a list of messages")
        return [messages]
    if "prompt" not in body:
        raise wrong_value("body", "expected 'messages' or a 'prompt'")
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return [prompt]
    if not (isinstance(prompt, list) and prompt):
        raise wrong_value("body.prompt", "expected a text, token ids, or a list of these")
    if all(isinstance(each, int) for each in prompt):
        return [prompt]
    if not all(isinstance(each, str | list) for each in prompt):
        raise wrong_value("body.prompt", "expected a text, token ids, or a list of these")
    return prompt


def _number(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
        raise wrong_value(f"body.{name}", "expected a number that is not negative")
    return value


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong_value(f"body.{name}", "expected a text")
    return value


def _metadata(body: dict[str, Any]) -> dict[str, str]:
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(each, str) for each in metadata.values()):
        raise wrong_value("body.metadata", "expected texts by their names")
    return metadata
