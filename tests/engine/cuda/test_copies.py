"""Adapters are copied beside running steps: none is read before it has arrived or overwritten while it is read, and
no request waits for an adapter that it does not use."""

from __future__ import annotations

import pytest
import torch

from engine.cuda.adapters import PROJECTIONS, DeviceSlots
from engine.cuda.copies import SideCopies
from engine.cuda.lora import LayerWaits
from engine.cuda.transfers import PinnedTransfers
from engine.lora.layer import LoadedAdapter
from tests.engine.cuda.adapters import NUM_LAYERS, adapter, adapter_on_all_linears
from tests.engine.cuda.recording import Entry, RecordingAccelerator


@pytest.fixture
def accelerator() -> RecordingAccelerator:
    return RecordingAccelerator()


@pytest.mark.parametrize(
    "on_host",
    [
        adapter_on_all_linears("everywhere", 4),
        adapter("patterns", {(0, "v_proj"): 5, (2, "q_proj"): 1, (2, "down_proj"): 7}),
        adapter("one", {(1, "o_proj"): 3}),
    ],
    ids=lambda on_host: on_host.key,
)
def test_every_layer_is_copied_and_its_arrival_recorded_in_order(
    accelerator: RecordingAccelerator, on_host: LoadedAdapter
) -> None:
    arrived = SideCopies(accelerator, NUM_LAYERS).to_device(on_host)
    assert torch.equal(arrived.weights, on_host.weights) and arrived.weights is not on_host.weights
    assert arrived.groups.keys() == on_host.groups.keys()
    assert accelerator.journal == [Entry("side", "record", number) for number in range(NUM_LAYERS)]
    assert list(arrived.arrivals) == accelerator.events


def test_memory_that_was_given_back_is_not_overwritten_before_the_steps_that_read_it(
    accelerator: RecordingAccelerator,
) -> None:
    copies = SideCopies(accelerator, NUM_LAYERS)
    copies.give_back()
    copies.to_device(adapter_on_all_linears("next", 2))
    assert accelerator.journal[:2] == [Entry("compute", "record", 0), Entry("side", "wait", 0)]
    copies.give_back()
    copies.to_device(adapter_on_all_linears("after", 2))
    assert accelerator.journal.count(Entry("side", "wait", NUM_LAYERS + 1)) == 1


def test_a_step_waits_layer_by_layer_for_the_adapters_it_uses_alone(accelerator: RecordingAccelerator) -> None:
    copies = SideCopies(accelerator, NUM_LAYERS)
    there, coming, unused = (
        copies.to_device(adapter_on_all_linears(name, 2)) for name in ("there", "coming", "unused")
    )
    for event in there.arrivals:
        event.synchronize()
    del accelerator.journal[:]
    waits = LayerWaits(accelerator.compute, [there.arrivals, coming.arrivals])
    for layer in range(NUM_LAYERS):
        waits.await_layer(layer)
    numbers = [accelerator.events.index(event) for event in coming.arrivals]  # type: ignore[arg-type]
    assert accelerator.journal == [Entry("compute", "wait", number) for number in numbers]
    assert not unused.arrivals[0].has_come


def test_a_graph_waits_for_the_last_layer_and_then_for_nothing_more(accelerator: RecordingAccelerator) -> None:
    coming = SideCopies(accelerator, NUM_LAYERS).to_device(adapter_on_all_linears("coming", 2))
    del accelerator.journal[:]
    LayerWaits(accelerator.compute, [coming.arrivals]).await_all()
    assert accelerator.journal == [Entry("compute", "wait", NUM_LAYERS - 1)]
    coming.arrivals[-1].synchronize()
    LayerWaits(accelerator.compute, [coming.arrivals, LoadedAdapter("base", {}, 0).arrivals]).await_all()
    assert len(accelerator.journal) == 1


def test_a_slot_says_where_its_adapter_is_until_it_is_cleared(accelerator: RecordingAccelerator) -> None:
    slots = DeviceSlots(NUM_LAYERS, 4, 16, PinnedTransfers(accelerator), accelerator.device)
    placed = SideCopies(accelerator, NUM_LAYERS).to_device(
        adapter("patterns", {(0, "v_proj"): 5, (0, "q_proj"): 2, (2, "down_proj"): 7}, scaling=0.5)
    )
    slots.place(3, placed)
    expected = {(0, "q_proj"): 2, (0, "v_proj"): 5, (2, "down_proj"): 7}
    for layer in range(NUM_LAYERS):
        for p, name in enumerate(PROJECTIONS):
            rank = expected.get((layer, name), 0)
            assert slots.table.ranks[layer, p].tolist() == [0, 0, 0, rank]
            assert slots.table.scalings[layer, p, 3] == (0.5 if rank else 0.0)
    qkv, down = placed.groups[0, PROJECTIONS[:3]], placed.groups[2, ("down_proj",)]
    assert slots.table.a[0, 0, 3] == qkv.a.data_ptr()
    assert slots.table.a[0, 2, 3] == qkv.a.data_ptr() + 2 * 16 * 4  # below the A of q_proj
    assert slots.table.b[0, 2, 3] == qkv.bs[1].data_ptr()
    assert slots.table.b[2, 6, 3] == down.bs[0].data_ptr()
    slots.clear(3)
    assert not slots.table.ranks.any()
    slots.place(3, placed)
    assert slots.table.ranks[2, 6, 3] == 7
