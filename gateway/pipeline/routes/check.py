"""The check of a cascade on an answer: whether the answer is good enough, or a larger model is asked."""

from __future__ import annotations

import asyncio

from gateway.domain.errors import GatewayError
from gateway.domain.routing.policy.answers import MAX_ANSWER_CHARS, matches_schema
from gateway.domain.routing.policy.document import Accept
from gateway.pipeline.collected import Answer, Collected
from gateway.support.patterns import has_match

THREAD_ABOVE_CHARS = 4096
"""The number of characters above which an answer is checked in a thread, so that streams are not delayed."""


class NotAccepted(GatewayError):
    """The error for an answer that did not pass the check of a cascade. No client sees it."""

    code = "answer_not_accepted"


async def is_accepted(accept: Accept, collected: Collected) -> bool:
    """Tell whether every choice of an answer passes a check.

    A choice that calls tools has no text to check, so its log-probabilities alone count.
    """
    if sum(len(each.text) for each in collected.answers) > THREAD_ABOVE_CHARS:
        return await asyncio.to_thread(_all_accepted, accept, collected)
    return _all_accepted(accept, collected)


def _all_accepted(accept: Accept, collected: Collected) -> bool:
    return all(_is_accepted(accept, each) for each in collected.answers)


def _is_accepted(accept: Accept, answer: Answer) -> bool:
    if not answer.calls:
        if len(answer.text) > MAX_ANSWER_CHARS:
            return False
        if accept.schema is not None and not matches_schema(answer.text, accept.schema):
            return False
        if accept.regex is not None and not has_match(accept.regex, answer.text):
            return False
    return accept.min_logprob is None or ((mean := mean_logprob(answer)) is not None and mean >= accept.min_logprob)


def mean_logprob(answer: Answer) -> float | None:
    """Return the mean log-probability of an answer's tokens; None where no token has one."""
    known = [token.logprobs.logprob for token in answer.tokens if token.logprobs is not None]
    return sum(known) / len(known) if known else None
