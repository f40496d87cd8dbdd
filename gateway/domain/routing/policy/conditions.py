"""Conditions on requests, and the reason why a request does not meet one."""

from __future__ import annotations

from gateway.domain.routing.policy.document import Hours, When
from gateway.domain.routing.policy.facts import Facts


def condition_mismatch(when: When, facts: Facts) -> str | None:
    """Return the first reason why a request does not meet a condition, in words; None where it meets the condition."""
    for key, wanted in when.metadata.items():
        if facts.metadata.get(key) not in ((wanted,) if isinstance(wanted, str) else wanted):
            return f"metadata.{key} has another value"
    size = when.prompt_tokens
    if size is not None and size.min is not None and facts.prompt_tokens < size.min:
        return f"the prompt has about {facts.prompt_tokens} tokens"
    if size is not None and size.max is not None and facts.prompt_tokens > size.max:
        return f"the prompt has about {facts.prompt_tokens} tokens"
    if when.tools is not None and when.tools != facts.tools:
        return "the request brings tools" if facts.tools else "the request brings no tools"
    if when.tier is not None and facts.tier not in ((when.tier,) if isinstance(when.tier, str) else when.tier):
        return f"the service tier is {facts.tier}"
    if when.time is not None and not _is_within(when.time, facts.minute):
        return f"it is {facts.minute // 60:02d}:{facts.minute % 60:02d}"
    if when.stream is not None and when.stream != facts.stream:
        return "the reply is streamed" if facts.stream else "the reply is not streamed"
    return None


def _is_within(hours: Hours, minute: int) -> bool:
    start, end = (int(text[:2]) * 60 + int(text[3:]) for text in (hours.from_, hours.until))
    return start <= minute < end if start <= end else minute >= start or minute < end
