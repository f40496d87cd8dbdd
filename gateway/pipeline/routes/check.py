"""The check of a cascade on an answer: whether the answer is good enough, or a larger model is asked."""

from __future__ import annotations

from gateway.domain.errors import GatewayError
from gateway.domain.routing.policy.answers import MAX_ANSWER_CHARS, all_match_schema
from gateway.domain.routing.policy.document import Accept
from gateway.pipeline.collected import Answer, Collected
from gateway.support.patterns import all_match
from gateway.support.project_threads import ProjectThreads

THREAD_ABOVE_CHARS = 4096
"""The number of characters above which the log-probabilities of an answer are checked in a thread, so that streams are
not delayed."""


class NotAccepted(GatewayError):
    """The error for an answer that did not pass the check of a cascade. No client sees it."""

    code = "answer_not_accepted"


async def is_accepted(threads: ProjectThreads, project_id: str, accept: Accept, collected: Collected) -> bool:
    """Tell whether every choice of an answer passes a check.

    A choice that calls tools has no text to check, so its log-probabilities alone count.

    threads: the threads for checks that may take long: those of long answers, and those by a schema or a pattern, whose
    author decides how long they take. project_id: the id of the project that takes a turn in these threads.
    """
    is_long = sum(len(each.text) for each in collected.answers) > THREAD_ABOVE_CHARS
    if is_long or accept.schema is not None or accept.regex is not None:
        return await threads.run(project_id, _all_accepted, accept, collected)
    return _all_accepted(accept, collected)


def _all_accepted(accept: Accept, collected: Collected) -> bool:
    texts = [each.text for each in collected.answers if not each.calls]
    if any(len(text) > MAX_ANSWER_CHARS for text in texts):
        return False
    if accept.schema is not None and not all_match_schema(texts, accept.schema):
        return False
    if accept.min_logprob is not None:
        means = map(mean_logprob, collected.answers)
        if any(mean is None or mean < accept.min_logprob for mean in means):
            return False
    return accept.regex is None or not texts or all_match(accept.regex, texts)


def mean_logprob(answer: Answer) -> float | None:
    """Return the mean log-probability of an answer's tokens; None where no token has one."""
    known = [token.logprobs.logprob for token in answer.tokens if token.logprobs is not None]
    return sum(known) / len(known) if known else None
