"""The facts about a request that a route decides by, as far as the request states them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from gateway.domain.routing.policy.document import metadata_keys
from gateway.domain.routing.policy.facts import Facts
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import Conversation, Prompt, TextRequest
from gateway.routing.policies import RoutedPolicy
from gateway.text.estimate import estimated_tokens

USUAL_MAX_TOKENS = 256


def facts_of(context: RequestContext, policy: RoutedPolicy, asked: Sequence[TextRequest]) -> Facts:
    """Return the facts of a request for all its prompts together, without those of targets."""
    principal, now = context.principal, datetime.datetime.now(datetime.UTC)
    return Facts(
        route_id=policy.id,
        request_id=context.request_id,
        user=context.unit("user"),
        key_id=principal.api_key_id,
        metadata={key: context.unit(f"metadata.{key}") for key in metadata_keys(policy.document)},
        num_prompts=len(asked),
        prompt_tokens=sum(_estimated(each.prompt) for each in asked),
        max_tokens=max((each.max_tokens or each.usual_max_tokens or USUAL_MAX_TOKENS for each in asked), default=0),
        n=sum(each.n for each in asked),
        tools=any(isinstance(each.prompt, Conversation) and each.prompt.tools is not None for each in asked),
        tier=asked[0].service_tier if asked else "default",
        stream=context.stream,
        minute=now.hour * 60 + now.minute,
    )


def _estimated(prompt: Prompt) -> int:
    """Return about how many tokens a prompt has, before any model has read it."""
    return estimated_tokens(prompt.messages if isinstance(prompt, Conversation) else prompt)
