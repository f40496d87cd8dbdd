"""What transformers and peft say about an engine's answer: the reference every numeric promise is held against."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine.protocol import TokenLogprobs

TIE = 1e-4  # two log-probabilities this close may be chosen in either order


def assert_greedy_follows(
    model: torch.nn.Module,
    prompt: Sequence[int],
    answer: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    tolerance: float,
) -> None:
    """Given the answer's own prefix, the reference's most likely token is the answer's next one, at every position.

    By induction that is the reference's greedy text, up to ties; one forward pass instead of len(answer).
    """
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0].float()
    expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    assert expected.shape[0] == len(answer) == len(logprobs)
    for position, (row, token, ours) in enumerate(zip(expected, answer, logprobs, strict=True)):
        best = row.max()
        assert best - row[token] <= TIE, f"position {position}: {token} is not the reference's choice"
        assert abs(row[token].item() - ours.logprob) <= tolerance, f"position {position}: logprob differs"
        theirs = row.topk(len(ours.top_logprobs)).values.tolist()
        assert ours.top_logprobs == pytest.approx(theirs, abs=tolerance), f"position {position}: top logprobs differ"
