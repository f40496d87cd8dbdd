"""Tokens that the host knows stay; pending ones are replaced by the tokens that the step before chose."""

from __future__ import annotations

import pytest
import torch

from kernels.gpu.fed_tokens import fed_tokens
from tests.kernels.gpu.compare import DEVICE


@pytest.mark.parametrize("num_rows", [1, 64, 300])
def test_a_negative_token_is_a_place_among_the_chosen(num_rows: int) -> None:
    """One chosen value is no token; the token that replaces it can be looked up in the embedding."""
    chosen = torch.randint(1, 1 << 40, (num_rows + 5,))
    chosen[num_rows // 2] = -1
    places = torch.randperm(num_rows + 5)[:num_rows]
    known = torch.randint(1 << 40, (num_rows,))
    is_fed = torch.rand(num_rows) < 0.5
    token_ids = torch.where(is_fed, -1 - places, known)
    found = fed_tokens(token_ids.to(DEVICE), chosen.to(DEVICE))
    assert torch.equal(found.cpu(), torch.where(is_fed, chosen[places].clamp(min=0), known))
