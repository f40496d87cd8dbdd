"""What an engine has sent of a stream that nobody has taken yet, in little memory. Pure: knows neither streams nor
engines.

A reader that keeps up takes each delta by itself. Behind one that does not, deltas of one choice are joined, which is
smaller for the one who waits and less work for the one who comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.protocol import Delta

JOIN_ABOVE = 256
"""Deltas; those of one choice each are left."""

MAX_UNREAD_VALUES = 1 << 13
"""Token ids and log-probabilities of one stream, half a megabyte: more than a minute at a hundred tokens a second."""


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """One delta of each choice, as if the engine had sent all its tokens at once; in the order of their first ones."""
    of_choice: dict[int, list[Delta]] = {}
    for delta in deltas:
        of_choice.setdefault(delta.index, []).append(delta)
    return [_join(each) for each in of_choice.values()]


def _join(deltas: Sequence[Delta]) -> Delta:
    """Of one choice, in order."""
    first, last = deltas[0], deltas[-1]
    logprobs = None
    if any(delta.logprobs is not None for delta in deltas):
        logprobs = [each for delta in deltas for each in delta.logprobs or ()]
    return Delta(
        last.request_id,
        [token_id for delta in deltas for token_id in delta.token_ids],
        last.num_completion_tokens,
        first.index,
        logprobs,
        last.finish_reason,
        first.prompt_logprobs,
    )


def num_values(deltas: Sequence[Delta]) -> int:
    """Token ids and log-probabilities of completions: what the memory of deltas is proportional to."""
    return sum(
        len(delta.token_ids) + sum(1 + len(each.top_logprobs) for each in delta.logprobs or ()) for delta in deltas
    )
