"""A request can fail, its neighbors can't fail with it: bad token ids, overflowing adapters, absurd temperatures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.store import AdapterStore
from engine.protocol import GenerateRequest
from tests.engine.harness import engine_config, greedy, run_engine
from tests.engine.lora.tenants import Tenants
from tests.engine.reference import Claim, assert_greedy_follows


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("tenants"))


@pytest.mark.parametrize(
    "bad",
    [
        greedy("bad", [1, 2], 4, min_tokens=2, stop_token_ids=[1_000_000]),
        greedy("bad", [1, 199], 4),
        greedy("bad", [-1], 4),
        greedy("bad", [], 4),
        greedy("bad", [1] * 500, 100),
    ],
    ids=["stop id", "prompt id", "negative", "empty", "too long"],
)
def test_a_request_the_model_cannot_take_is_refused_alone(tenants: Tenants, bad: GenerateRequest) -> None:
    answers = run_engine(engine_config(tenants.model_dir, tenants.store_dir), [greedy("good", [3, 4], 8), bad])
    assert answers["good"].final.finish_reason == "length"
    error = answers["bad"].final.error
    assert error is not None and error.code == "invalid_request"
    assert answers["bad"].final.usage.prompt_tokens == 0


def overflowing_adapter(tenants: Tenants, folder: Path, factor: float) -> str:
    """Store an adapter on attention with multiplied weights, finite themselves, that compute infinite values."""
    source = tenants.model_dir.parent / "attention-r4"
    tensors = {name: tensor * factor for name, tensor in load_file(source / "adapter_model.safetensors").items()}
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    return AdapterStore(tenants.store_dir).add(folder)


def test_an_overflowing_adapter_spoils_its_own_answers_only(tenants: Tenants, tmp_path: Path) -> None:
    digest = overflowing_adapter(tenants, tmp_path / "huge", 1e30)
    good = [greedy(f"good-{name}", [5, 6, 7], 30, adapter=value) for name, value in tenants.digests.items()]
    late = [greedy("good-late", [8, 9, 10, 11], 30)]  # on blocks that the bad one may have left
    config = engine_config(tenants.model_dir, tenants.store_dir)
    answers = run_engine(config, [greedy("bad", [1, 2, 3], 30, adapter=digest), *good], {12: late})
    for name, request in [*zip(tenants.digests, good, strict=True), ("", late[0])]:
        answer = answers[request.request_id]
        claim = Claim(request.prompt_token_ids, answer.token_ids, answer.logprobs)
        assert_greedy_follows(tenants.models[name], [claim], tolerance=1e-4)
    error = answers["bad"].final.error
    assert error is not None and error.code == "internal" and "not a number" in error.message


def test_an_adapter_too_large_for_the_dtype_is_refused(tenants: Tenants, tmp_path: Path) -> None:
    limit = torch.finfo(torch.float32).max
    digest = overflowing_adapter(tenants, tmp_path / "edge", limit)
    answers = run_engine(
        engine_config(tenants.model_dir, tenants.store_dir, dtype="bfloat16"),
        [greedy("bad", [1, 2], 4, adapter=digest), greedy("good", [3], 4)],
    )
    assert answers["good"].final.finish_reason == "length"
    assert answers["bad"].final.error is not None


@pytest.mark.parametrize("extreme", [{"temperature": 1e-40}, {"temperature": 1.0, "top_p": 1e-46}], ids=str)
def test_the_smallest_temperature_and_top_p_are_greedy(tenants: Tenants, extreme: dict[str, float]) -> None:
    config = engine_config(tenants.model_dir, tenants.store_dir)
    answers = run_engine(config, [greedy("extreme", [3, 4], 20, seed=1, **extreme), greedy("greedy", [3, 4], 20)])
    assert answers["extreme"].token_ids == answers["greedy"].token_ids


def test_a_tenant_fills_no_more_of_the_queue_than_it_leaves_to_others(tenants: Tenants) -> None:
    config = engine_config(tenants.model_dir, tenants.store_dir, max_num_seqs=4, max_waiting=4)
    floods = [greedy(f"r{i}", [i], 2) for i in range(9)]
    others = [greedy(f"o{i}", [i], 2, tenant="another") for i in range(3)]
    answers = run_engine(config, [*floods, *others])
    refused = [name for name, answer in answers.items() if answer.final.error is not None]
    assert refused == ["r6", "r7", "r8", "o2"]
