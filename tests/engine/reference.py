"""The reference of transformers and peft that every numeric promise about an engine's answer is checked against."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch

from engine.protocol import TokenLogprobs

TIE = 1e-4  # two log-probabilities this close may be chosen in either order


class Claim(msgspec.Struct, frozen=True):
    """One greedy answer of the engine, to be checked against the reference."""

    prompt: Sequence[int]
    answer: Sequence[int]
    logprobs: Sequence[TokenLogprobs]


def assert_greedy_follows(model: torch.nn.Module, claims: Sequence[Claim], tolerance: float) -> None:
    """Check that at each position the reference's most likely token, given the answer so far, is the answer's next.

    By induction the answer is the reference's greedy text, up to ties; one forward pass for all instead of one per
    token. Rows are padded on the right, which causal attention never reads.
    """
    rows = [[*claim.prompt, *claim.answer][:-1] for claim in claims]
    longest = max(map(len, rows))
    asked = min(len(claim.prompt) for claim in claims) - 1  # nothing before it is compared
    with torch.inference_mode():
        padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        logits = model(padded, logits_to_keep=longest - asked).logits
    for claim, row in zip(claims, logits, strict=True):
        first = len(claim.prompt) - 1 - asked
        _assert_row(row[first : first + len(claim.answer)].float().log_softmax(-1), claim, tolerance)


def _assert_row(expected: torch.Tensor, claim: Claim, tolerance: float) -> None:
    for position, (row, token, ours) in enumerate(zip(expected, claim.answer, claim.logprobs, strict=True)):
        best = row.max()
        assert best - row[token] <= TIE, f"position {position}: {token} is not the reference's choice"
        assert abs(row[token].item() - ours.logprob) <= tolerance, f"position {position}: logprob differs"
        theirs = row.topk(len(ours.top_logprobs)).values.tolist()
        assert ours.top_logprobs == pytest.approx(theirs, abs=tolerance), f"position {position}: top logprobs differ"
