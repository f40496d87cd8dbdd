"""The billed usage of a server's reply: the server's counts where they can be true, else our own. Pure.

A server of another maker need not count truly, so its counts are checked against the facts that this gateway saw: token
ids, which are counted exactly, or bytes of text, which bound the tokens from both sides.
"""

from __future__ import annotations

import msgspec

BYTES_PER_TOKEN = 4
"""The number of bytes of text that count as one token where no exact count exists."""

MAX_TOKEN_BYTES = 128
"""The most bytes of text that one token may have: fewer tokens than that cannot be true."""

TEXTLESS_TOKENS = 8
"""The most tokens of a choice that may produce no text, such as the end token or the marks of a tool call."""


TEMPLATE_TOKENS = 256
"""The most tokens that a chat template may add to a conversation, such as a system message of the model."""


def likely_prompt(bound: int, template_tokens: int) -> int:
    """Return our own count of a prompt's tokens where only an upper bound of them is known: a fourth of its bytes.

    template_tokens: the part of the bound that a chat template may add of its own.
    """
    return max(1, -(-(bound - template_tokens) // BYTES_PER_TOKEN))


class Evidence(msgspec.Struct, frozen=True):
    """The facts about a request that this gateway knows without the server's report."""

    num_choices: int
    max_tokens: int
    """The bound on each choice's tokens that the request asked for."""
    prompt_tokens: int
    """The number of the prompt's tokens: exact, or an upper bound."""
    template_tokens: int
    """Tokens of the upper bound that a chat template may add of its own."""
    is_prompt_exact: bool
    """True if the prompt's tokens are an exact number."""
    is_exact: bool
    """True if the reply's tokens are counted by their ids."""
    completion_tokens: int = 0
    """The number of token ids in the reply; 0 for a reply that is text."""
    text_bytes: int = 0
    """Bytes of the reply's text, calls and hidden text included."""
    num_events: int = 0
    """The number of parts in which the reply arrived, each of one token at least."""


class BilledCounts(msgspec.Struct, frozen=True):
    """The token counts that are billed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    is_ours: bool
    """True if the counts are ours, since the server reported none or none that can be true."""
    is_false: bool
    """True if the server reported counts that cannot be true."""


def own_completion_tokens(evidence: Evidence) -> int:
    """Return this gateway's count of a reply's tokens, at most the number that was asked for.

    The count is exact where token ids are known; else it is the larger one of the reply's parts and a fourth of its
    bytes.
    """
    if evidence.is_exact:
        return evidence.completion_tokens
    return own_text_tokens(evidence.text_bytes, evidence.num_events, evidence.num_choices * evidence.max_tokens)


def own_text_tokens(text_bytes: int, num_events: int, most: int) -> int:
    """Return this gateway's count of the tokens of a text.

    most: the number of tokens that were asked for. num_events: the events of the stream that had text, each of which
    holds one token at least.
    """
    return min(most, max(num_events, -(-text_bytes // BYTES_PER_TOKEN)))


def own_prompt_tokens(evidence: Evidence) -> int:
    """Return this gateway's count of a prompt's tokens.

    The count is exact where token ids are known; else it is a fourth of the upper bound without the template's part.
    """
    if evidence.is_prompt_exact:
        return evidence.prompt_tokens
    return likely_prompt(evidence.prompt_tokens, evidence.template_tokens)


def settle(evidence: Evidence, reported: tuple[int, int, int] | None, *, reasoning_tokens: int = 0) -> BilledCounts:
    """Return the counts that are billed for a reply that has ended.

    reported: prompt, completion and cached tokens as the server reported them; None where it reported no counts.
    reasoning_tokens: the completion tokens that the server reported as reasoning, whose text it need not have sent.
    """
    if reported is None:
        return BilledCounts(
            own_prompt_tokens(evidence), own_completion_tokens(evidence), 0, is_ours=True, is_false=False
        )
    prompt, completion, cached = reported
    is_false = not (
        _is_prompt_true(evidence, prompt) and _is_completion_true(evidence, completion, max(0, reasoning_tokens))
    )
    if is_false:
        return BilledCounts(
            own_prompt_tokens(evidence), own_completion_tokens(evidence), 0, is_ours=True, is_false=True
        )
    if evidence.is_prompt_exact:
        prompt = evidence.prompt_tokens
    return BilledCounts(prompt, completion, max(0, min(cached, prompt)), is_ours=False, is_false=False)


def _is_prompt_true(evidence: Evidence, prompt: int) -> bool:
    if evidence.is_prompt_exact:
        return (
            evidence.prompt_tokens <= prompt <= evidence.prompt_tokens + 1
        )  # a server may add the beginning of a text
    return 0 < prompt <= evidence.prompt_tokens


def _is_completion_true(evidence: Evidence, completion: int, reasoning_tokens: int) -> bool:
    textless = TEXTLESS_TOKENS * evidence.num_choices
    if evidence.is_exact:
        return evidence.completion_tokens <= completion <= evidence.completion_tokens + textless
    fewest = -(-evidence.text_bytes // MAX_TOKEN_BYTES)
    most = min(evidence.text_bytes + reasoning_tokens + textless, evidence.num_choices * evidence.max_tokens)
    return fewest <= completion <= most
