"""A probe reports what an adapter does to the connection that asked, and counts as nobody's request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapters.store import AdapterStore
from engine.lora.pool import NOT_LOADED
from engine.mailbox import Event
from engine.probes import MAX_PROMPT_TOKENS, NUM_COMPLETION_TOKENS, probe_prompt
from engine.protocol import Abort, AdapterStatus, EngineStats, LoadAdapter, UnloadAdapter
from tests.engine.harness import collect, engine_config, greedy, run_events
from tests.engine.lora.tenants import Tenants
from tests.engine.scheduling.scheduler_model import expected_choice
from tests.engine.scripted_core import final, request, run_core, stats, text

PROBE = LoadAdapter("a", pin=False, probe=True)
NUM_TOKENS = MAX_PROMPT_TOKENS + NUM_COMPLETION_TOKENS


def statuses(events: list[Event]) -> list[AdapterStatus]:
    return [event for event in events if isinstance(event, AdapterStatus)]


def test_a_probe_is_answered_and_nobodys_request() -> None:
    events, plans = run_core(request(max_tokens=30), later={3: [PROBE]})
    (status,) = statuses(events)
    assert status.probed and status.error is None and status.resident
    assert status.probe is not None
    assert (status.probe.num_tokens, status.probe.num_bytes) == (NUM_TOKENS, 1)
    assert status.probe.max_difference > 0
    assert set(collect(events)) == {"r"}
    assert text(events) == expected_choice(request(max_tokens=30), seed=5).shown
    pictures = [event for event in events if isinstance(event, EngineStats)]
    assert set().union(*(picture.tenants for picture in pictures)) <= {"t"}
    assert any(len({chunk.sequence.request_id for chunk in plan.chunks}) == 3 for plan in plans), "both in one step"


def test_the_first_request_finds_what_its_probe_has_loaded() -> None:
    events, _ = run_core(PROBE, later={2: [request(adapter="a")]})
    assert stats(events).adapter_loads_total == 1
    assert final(events).usage.adapter_load_bytes == 0


def test_who_asks_for_a_probe_that_is_under_way_shares_its_answer() -> None:
    events, _ = run_core(request(max_tokens=30), later={2: [PROBE, PROBE], 3: [PROBE]})
    assert len(statuses(events)) == 1


def test_loading_and_probing_at_once_is_answered_for_each() -> None:
    events, _ = run_core(request(max_tokens=30), later={2: [LoadAdapter("a"), PROBE]})
    assert [(status.probed, status.error) for status in statuses(events)] == [(False, None), (True, None)]


def test_an_adapter_that_is_unloaded_meanwhile_may_be_probed_again() -> None:
    events, _ = run_core(request(max_tokens=30), later={2: [PROBE, UnloadAdapter("a"), PROBE]})
    unloaded, given_up, probed = statuses(events)
    assert not unloaded.probed
    assert (given_up.probed, given_up.code) == (True, "queue_full")
    assert probed.probe is not None


def test_a_probe_in_line_for_a_slot_is_given_up_when_its_adapter_is_unloaded() -> None:
    """Running requests take both slots, so that the load has not begun."""
    crowd = [request(name, adapter=name, max_tokens=30) for name in ("b", "c")]
    events, _ = run_core(*crowd, later={4: [PROBE], 5: [UnloadAdapter("a")], 6: [PROBE]})
    _, given_up, probed = statuses(events)
    assert (given_up.probed, given_up.code) == (True, "queue_full")
    assert probed.probe is not None


def test_a_request_that_leaves_takes_no_load_from_a_probe() -> None:
    asked = request("s", adapter="a")
    events, _ = run_core(request(max_tokens=30), later={2: [PROBE, asked, Abort("s")]})
    assert statuses(events)[0].probe is not None


def test_a_full_engine_puts_a_probe_off() -> None:
    crowd = [request(f"r{index}", tenant=f"t{index}") for index in range(8)]
    events, _ = run_core(*crowd, PROBE)
    (status,) = statuses(events)
    assert status.code == "queue_full"


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("tenants"))


def changed(tenants: Tenants, folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Store an adapter whose B matrices are changed; return its digest."""
    source = tenants.store_dir / tenants.digests["attention-r4"]
    folder.mkdir()
    tensors = load_file(source / "adapter_model.safetensors")
    save_file(
        {name: change(each) if "lora_B" in name else each for name, each in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    (folder / "adapter_config.json").write_bytes((source / "adapter_config.json").read_bytes())
    return AdapterStore(tenants.store_dir).add(folder)


def test_what_changes_nothing_or_overflows_is_refused_beside_others(tenants: Tenants, tmp_path: Path) -> None:
    good = tenants.digests["attention-r4"]
    without_effect = changed(tenants, tmp_path / "zero", torch.zeros_like)
    overflowing = changed(tenants, tmp_path / "huge", lambda b: b * 1e38)
    probes = [LoadAdapter(key, pin=False, probe=True) for key in (good, without_effect, overflowing, "0" * 64)]
    config = engine_config(tenants.model_dir, tenants.store_dir)
    events = run_events(config, [greedy("r", [1, 2, 3], 40, adapter=good)], {2: probes})
    by_key = {status.digest: status for status in statuses(events)}
    assert by_key[good].error is None and by_key[good].probe is not None
    assert by_key[good].probe.num_bytes > 0
    assert (by_key[without_effect].code, "changes nothing" in (by_key[without_effect].error or "")) == (
        "adapter_rejected",
        True,
    )
    assert "not a number" in (by_key[overflowing].error or "")
    assert by_key["0" * 64].error == NOT_LOADED
    assert collect(events)["r"].final.finish_reason == "length"


def test_the_prompt_of_a_probe_fits_any_model() -> None:
    assert probe_prompt(50_000, 4096)[:3] == [0, 6250, 12500]
    for vocab_size, max_model_len in ((1, 5), (3, 64), (50_000, 5)):
        prompt = probe_prompt(vocab_size, max_model_len)
        assert prompt and len(prompt) + NUM_COMPLETION_TOKENS <= max_model_len
        assert max(prompt) < vocab_size
