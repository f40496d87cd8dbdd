"""On real weights: a prompt found in the cache gives the text and log-probabilities of one computed from nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.lora.tenants import Tenants
from tests.engine.reference import Claim, assert_greedy_follows


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("tenants"))


@pytest.mark.parametrize("changes", [{}, {"max_batched_tokens": 17}, {"kv_cache_bytes": 40_000}], ids=str)
def test_a_cached_prefix_changes_nothing_but_the_work(
    tenants: Tenants, tmp_path: Path, changes: dict[str, int]
) -> None:
    prompt = [(7 * i) % 60 + 1 for i in range(40)]
    first = [greedy(f"first-{name}", prompt, 12, adapter=digest) for name, digest in tenants.digests.items()]
    again = [greedy(f"again-{name}", [*prompt, 5, 6], 12, adapter=digest) for name, digest in tenants.digests.items()]
    other = [greedy(f"other-{name}", [*prompt, 5, 6], 12, adapter=d, tenant="u") for name, d in tenants.digests.items()]
    config = engine_config(tenants.model_dir, tenants.store_dir, **changes)
    answers = run_engine(config, first, {9: again, 11: other}, preload=filter(None, tenants.digests.values()))
    for request in [*first, *again, *other]:
        answer = answers[request.request_id]
        model = tenants.models[request.request_id.partition("-")[2]]
        assert_greedy_follows(model, [Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)], 1e-4)
    if not changes:
        assert all(answers[request.request_id].final.usage.cached_tokens == 32 for request in again)
    assert not any(answers[request.request_id].final.usage.cached_tokens for request in [*first, *other])
