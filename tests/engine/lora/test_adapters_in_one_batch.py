"""Requests of the base and of different adapters share every step, and each gets what peft computes for it alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model
from torch.profiler import ProfilerActivity, profile

from adapters.store import AdapterStore
from engine.bench.drive import BenchEngine
from engine.protocol import EngineStats, GenerateRequest
from tests.engine.harness import collect, engine_config, greedy, run_engine, run_events
from tests.engine.lora.tenants import Tenants
from tests.engine.models.tiny import save_tiny
from tests.engine.reference import Claim, assert_greedy_follows


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("tenants"))


def mixed_requests(
    tenants: Tenants, count: int, lengths: tuple[int, ...] = (1, 5, 30, 90), max_tokens: int = 20
) -> tuple[list[GenerateRequest], list[str]]:
    rnd = random.Random(7)
    names = [list(tenants.digests)[i % len(tenants.digests)] for i in range(count)]
    return [
        greedy(f"r{i}", [rnd.randrange(199) for _ in range(rnd.choice(lengths))], max_tokens, adapter=digest)
        for i, digest in enumerate(tenants.digests[name] for name in names)
    ], names


@pytest.mark.parametrize("changes", [{}, {"max_adapters": 2}, {"max_batched_tokens": 17}], ids=str)
def test_each_request_of_a_mixed_batch_equals_peft(tenants: Tenants, changes: dict[str, object]) -> None:
    requests, names = mixed_requests(tenants, 18)
    config = engine_config(tenants.model_dir, tenants.store_dir, **changes)
    later = {step: requests[6 + 2 * i : 8 + 2 * i] for i, step in enumerate((2, 3, 5, 8, 12, 15))}
    answers = run_engine(config, requests[:6], later)
    for request, name in zip(requests, names, strict=True):
        answer = answers[request.request_id]
        assert answer.final.finish_reason == "length"
        claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
        assert_greedy_follows(tenants.models[name], [claim], tolerance=1e-4)


PHI3 = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
GATE_UP = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
KINDS = {
    "gemma3": {},
    "gemma2": {},
    "granite-biases": {},
    "smollm3-windows": {},
    "olmo2-biases": {},
    "olmo3": {},
    "ministral3": {},
    "phi3": PHI3 | GATE_UP,
    "phi3-window": PHI3 | GATE_UP,
    "phi3-partial": PHI3 | GATE_UP,
    "phi3-longrope": PHI3 | GATE_UP,
    "glm4": GATE_UP,
}


@pytest.mark.parametrize("family", KINDS)
def test_multipliers_and_layers_of_other_kinds_hold_for_adapters_too(family: str, tmp_path: Path, full: bool) -> None:
    """Prompts are longer than a cache block, a chunk and an attention window."""
    tenants = Tenants(tmp_path, family, KINDS[family])
    max_tokens = 16 if full else 6
    requests, names = mixed_requests(tenants, 12, lengths=(1, 20, 47, 70), max_tokens=max_tokens)
    answers = run_engine(engine_config(tenants.model_dir, tenants.store_dir, max_batched_tokens=32), requests)
    for request, name in zip(requests, names, strict=True):
        answer = answers[request.request_id]
        claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
        assert_greedy_follows(tenants.models[name], [claim], tolerance=1e-4)


def test_preempted_requests_lose_and_repeat_nothing(tenants: Tenants) -> None:
    """The cache suffices for two of ten whole requests: they take turns, and each still equals its reference."""
    requests, names = mixed_requests(tenants, 10, lengths=(3, 20), max_tokens=80)
    block_bytes = 2 * 3 * 2 * 8 * 4 * 16
    config = engine_config(tenants.model_dir, tenants.store_dir, kv_cache_bytes=block_bytes * 14, max_model_len=200)
    events = run_events(config, requests)
    assert max(event.preemptions_total for event in events if isinstance(event, EngineStats)) > 0
    answers = collect(events)
    for request, name in zip(requests, names, strict=True):
        answer = answers[request.request_id]
        assert answer.counts == list(range(1, 81))
        claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
        assert_greedy_follows(tenants.models[name], [claim], tolerance=1e-4)


def test_an_adapter_that_does_not_fit_fails_its_own_requests_only(tenants: Tenants, tmp_path: Path) -> None:
    other = save_tiny("qwen3", tmp_path / "other")
    get_peft_model(other, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "misfit")
    digest = AdapterStore(tenants.store_dir).add(tmp_path / "misfit")
    missing = "0" * 64
    config = engine_config(tenants.model_dir, tenants.store_dir)
    answers = run_engine(
        config,
        [greedy("misfit", [1, 2], 4, adapter=digest), greedy("missing", [1], 4, adapter=missing), greedy("ok", [3], 4)],
    )
    assert answers["ok"].final.finish_reason == "length"
    for name, code, why in (
        ("misfit", "adapter_rejected", "q_proj"),
        ("missing", "internal", "the engine could not load the adapter"),
    ):
        error = answers[name].final.error
        assert error is not None and error.code == code and why in error.message
        assert missing not in error.message


def test_adapters_that_no_row_uses_cost_no_operation(tenants: Tenants) -> None:
    """The operations of a base request's steps are the same, one by one, with and without adapters in the slots."""
    profiles = []
    for preload in ([], list(filter(None, tenants.digests.values()))):
        config = engine_config(tenants.model_dir, tenants.store_dir)
        with BenchEngine(config, preload=preload) as engine:
            engine.answer(greedy("warm", [1, 2, 3], 4))
            with profile(activities=[ProfilerActivity.CPU]) as steps:
                engine.answer(greedy("base", [4, 5, 6], 4))
        profiles.append({event.key: event.count for event in steps.key_averages()})
    assert profiles[0] == profiles[1] and "aten::bmm" in profiles[0]
