"""Layers with windows free their blocks beside layers that see everything, and texts stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import load_model_config
from engine.device import kv_token_bytes
from engine.sequence import Plan
from tests.engine.harness import collect, engine_config, greedy, run_events
from tests.engine.models.tiny import save_tiny
from tests.engine.reference import Claim, assert_greedy_follows

BLOCK_SIZE = 16
NUM_BLOCKS = 12
"""The number of cache blocks of all layers: without windows, room for one of the texts, of 10 blocks."""
WAYS = [
    ("gemma2", {}),
    ("gemma3", {}),
    ("ministral", {}),
    ("olmo3", {}),
    ("qwen2-windows-in-some-layers", {}),
    ("gpt-oss", {}),
    ("gemma3", {"num_draft_tokens": 3}),
    ("gemma2", {"decoder": "transformers"}),
    ("gpt-oss", {"decoder": "transformers"}),
]


@pytest.mark.parametrize(("family", "changes"), WAYS, ids=lambda value: value if isinstance(value, str) else str(value))
def test_a_cache_for_one_text_holds_several_and_changes_none(
    family: str, changes: dict[str, object], tmp_path: Path
) -> None:
    """Four texts of 145 tokens with a common beginning are computed twice, in chunks of 32 over windows of 20 and 24.

    One of three layers sees everything. Some texts give way to others, and some find their beginning in the cache.
    """
    model = save_tiny(family, tmp_path / "model")
    text = torch.randint(0, 199, (120,)).tolist()
    requests = [greedy(f"r{i}", [*text, i], 24) for i in range(4)]
    again = [greedy(f"again{i}", [*text, i], 24) for i in range(4)]
    token_bytes = kv_token_bytes(load_model_config(tmp_path / "model"), torch.float32)
    config = engine_config(
        tmp_path / "model",
        tmp_path / "store",
        max_batched_tokens=32,
        kv_cache_bytes=NUM_BLOCKS * BLOCK_SIZE * token_bytes,
        **changes,
    )
    widths: list[int] = []

    def note(plan: Plan) -> None:
        widths.append(len(plan.decodes))
        for chunk in plan.chunks:
            full, *others = sorted(chunk.sequence.num_past)
            assert not full and len(others) == 2 and others[0] == others[1]

    events = run_events(config, requests, {16: again}, on_plan=note)
    answers = collect(events)
    for request in [*requests, *again]:
        answer = answers[request.request_id]
        assert len(answer.token_ids) == 24
        claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
        assert_greedy_follows(model, [claim], tolerance=1e-4)
    assert max(widths) >= 3
    cached = [answers[request.request_id].final.usage.cached_tokens for request in [*requests, *again]]
    assert any(cached), cached
