"""Computes the hidden states of a plan on a GPU (`engine.device.DevicePath`).

A plan is written into the integers of a captured graph that holds it, which is replayed; where there is none, its
operations are launched one by one. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.cuda.accelerator import Accelerator, Beside
from engine.cuda.adapters import DeviceSlots
from engine.cuda.attention import PagedAttention, PagedCache
from engine.cuda.fill import Extent, Filler, extent_of, fill_work, row_slots
from engine.cuda.graphs import CapturedGraph, StepGraphs, StepLimits, extents_for
from engine.cuda.lora import LayerWaits, SlotLora, lora_workspace
from engine.cuda.metadata import StagedIntegers, StepBuffers, StepFields, StepShape, num_bytes_of
from engine.cuda.transfers import PinnedTransfers
from engine.device import AdapterIn, PausableForward
from engine.models.decoder import Batch
from engine.models.states import StateRows, StateTable, TableStates
from engine.sequence import Plan, Sequence
from engine.transfers import Event
from kernels.gpu.fed_tokens import fed_tokens
from kernels.gpu.query_tiles import max_tiles
from kernels.gpu.tuning import lora_block_m
from kernels.gpu.work_list import WorkList, max_chunks

NO_ROWS = Plan([], [])
CUT = 2  # one of so many parts of the layers comes before the point at which a step counts as halfway


class StepDecoder(Protocol):
    """A model on the device: `engine.models.decoder.Decoder`, or one that transformers computes."""

    @property
    def config(self) -> ModelConfig:
        """The sizes of the model."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""

    @property
    def device(self) -> torch.device:
        """The device that has the weights."""

    def forward(self, batch: Batch, before: Callable[[int], None]) -> Tensor:
        """Return the hidden states of the batch's output rows.

        before: called with each layer's index ahead of the layer. batch: the input of the step.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states."""


class _Used(NamedTuple):
    """The adapters that the last step used."""

    slots: list[int | None]
    """The slots of the plan's chunks.

    The adapters themselves are not held, since one that lost its slot must leave the device.
    """
    num_changes: int
    """The value of `DeviceSlots.num_changes` when the adapters were placed."""
    awaited: list[Many[Event]]
    """Arrivals of adapters that may not have come."""

    @property
    def has_adapters(self) -> bool:
        return any(slot is not None for slot in self.slots)


class CudaPath:
    """Computes plans on a GPU. use_graphs: False launches every step operation by operation."""

    def __init__(
        self,
        accelerator: Accelerator,
        decoder: StepDecoder,
        cache: PagedCache,
        slots: DeviceSlots,
        adapter_in: AdapterIn,
        limits: StepLimits,
        *,
        use_graphs: bool,
        states: StateTable | None = None,
    ) -> None:
        self._states = states
        self._transfers = PinnedTransfers(accelerator)
        self._accelerator = accelerator
        self._decoder = decoder
        self._cache = cache
        self._slots = slots
        self._adapter_in = adapter_in
        max_blocks = -(-limits.max_context // cache.block_size)
        self._filler = Filler(
            cache.block_size,
            limits.max_decode_rows,
            max_blocks,
            cache.queries_at_once,
            cache.config.length_switch,
            cache.num_tables,
        )
        extents = extents_for(limits, has_adapters=slots.num_slots > 0)
        self._largest = extents[0]
        of_graphs = (num_bytes_of(self._shape(extent)) for extent in extents)
        num_bytes = max(_most_bytes(limits, max_blocks, slots.num_slots, cache.num_tables), *of_graphs)
        self._buffers = StepBuffers(accelerator, num_bytes)
        self._chosen = torch.zeros(limits.max_sequences, dtype=torch.int64, device=decoder.device)
        shape = self._largest.num_sequences, decoder.config.hidden_size
        self._hidden = torch.empty(shape, dtype=decoder.dtype, device=decoder.device)  # of whichever graph ran last
        self._used = _Used([], 0, [])
        self._sent_slots: list[int | None] = []
        self._halfway = accelerator.compute.record()
        self._graphs = StepGraphs(extents if use_graphs else [], self._capture)

    @property
    def feeds(self) -> bool:
        """True: chosen tokens stay on the device for the next step."""
        return True

    @property
    def halfway(self) -> Event:
        """The event that comes when the device is halfway through the last `forward`."""
        return self._halfway

    def order(self, plan: Plan) -> Many[int]:
        """Return the places of decodes as the plan has them."""
        return range(len(plan.decodes))

    def forward(self, plan: Plan, output_rows: Many[int]) -> Tensor:
        """Return the hidden states [W, hidden] of these rows, by a replayed graph where one fits the plan."""
        self._place_adapters(plan)
        extent = extent_of(plan, with_adapters=self._used.has_adapters)
        waits = LayerWaits(self._accelerator.compute, self._used.awaited)
        self._used = self._used._replace(awaited=waits.pending)
        graph = self._graphs.find(extent, len(output_rows))
        if graph is not None:
            return self._replay(graph, plan, output_rows, waits)
        return self._launch(plan, extent, output_rows, waits)

    def begin(self, plan: Plan, output_rows: Many[int]) -> PausableForward | None:
        """Raise NotImplementedError: a step cannot pause."""
        raise NotImplementedError("a step cannot pause")

    def replays(self, plan: Plan, num_outputs: int) -> bool:
        """Tell whether a graph fits the plan, so that `forward` is one launch.

        num_outputs: the rows whose hidden states are wanted.
        """
        with_adapters = any(chunk.sequence.adapter_slot is not None for chunk in plan.chunks)
        return self._graphs.find(extent_of(plan, with_adapters=with_adapters), num_outputs) is not None

    def launch_largest(self) -> None:
        """Launch the step of the largest graph operation by operation, with padding in all rows."""
        self._padded(self._largest)[1]()

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows of `forward`: [W, hidden] -> [W, V] fp32."""
        return self._decoder.logits(hidden)

    def feed(self, token_ids: Tensor, sequences: Many[Sequence]) -> None:
        """Copy chosen tokens [N] to where the next plan's chunks find those of their sequences."""
        self._chosen[: len(token_ids)].copy_(token_ids)
        self._filler.fed = {sequence: place for place, sequence in enumerate(sequences)}

    def _place_adapters(self, plan: Plan) -> None:
        """Write the adapters of the plan's slots to the slot table, unless they are those of the last plan."""
        slots = [chunk.sequence.adapter_slot for chunk in plan.chunks]
        if slots == self._used.slots and self._slots.num_changes == self._used.num_changes:
            return
        adapters = [(slot, self._adapter_in(slot)) for slot in set(slots) if slot is not None]
        for slot, adapter in adapters:
            self._slots.place(slot, adapter)
        self._used = _Used(slots, self._slots.num_changes, [adapter.arrivals for _, adapter in adapters])

    def _replay(self, captured: CapturedGraph, plan: Plan, output_rows: Many[int], waits: LayerWaits) -> Tensor:
        self._send(captured.staged, plan, output_rows, captured.extent)
        waits.await_all()
        return captured.graph.replay(self._come_halfway)[: len(output_rows)]

    def _launch(self, plan: Plan, extent: Extent, output_rows: Many[int], waits: LayerWaits) -> Tensor:
        staged = self._buffers.stage(self._shape(extent, len(output_rows)))
        self._send(staged, plan, output_rows, extent)
        at_cut = self._at_cut(self._come_halfway)
        return self._decoder.forward(self._batch(staged.device, extent, waits, plan=plan), before=at_cut)

    def _capture(self, extent: Extent) -> CapturedGraph:
        staged, run = self._padded(extent)
        return CapturedGraph(extent, staged, self._accelerator.capture(run))

    def _padded(self, extent: Extent) -> tuple[StagedIntegers, Callable[[], Tensor]]:
        """Return a padding step's sent integers, and the function that a graph of this extent captures."""
        staged = self._buffers.stage(self._shape(extent))
        self._send(staged, Plan([], []), [], extent)

        nothing = LayerWaits(self._accelerator.compute, [])

        def run() -> Tensor:
            """Compute the step.

            All memory is taken within the run, so that graphs share it, as they share the memory to which the result is
            copied.
            """
            batch = self._batch(staged.device, extent, nothing, self._accelerator.beside)
            hidden = self._decoder.forward(batch, before=self._at_cut(self._accelerator.cut))
            return self._hidden[: len(hidden)].copy_(hidden)

        return staged, run

    def _come_halfway(self) -> None:
        self._halfway = self._accelerator.compute.record()

    def _at_cut(self, do: Callable[[], None]) -> Callable[[int], None]:
        """Return a function for `forward` that calls `do` ahead of the layer with which the second half begins."""
        layer = self._decoder.config.num_layers // CUT
        return lambda index: do() if index == layer else None

    def _shape(self, extent: Extent, num_outputs: int | None = None) -> StepShape:
        """Return the shape of a step.

        num_outputs: the number of rows whose hidden states are wanted; None: one for each sequence.
        """
        rows, sequences = extent.num_rows, extent.num_sequences
        return StepShape(
            num_rows=rows,
            num_sequences=sequences,
            num_blocks=-(-max(extent.decode_context, extent.prefill_context) // self._cache.block_size),
            num_chunks=max_chunks(rows, self._slots.num_slots, lora_block_m(rows)) if extent.with_adapters else 0,
            num_tiles=max_tiles(extent.num_prompt_rows, extent.num_prefills, self._cache.queries_at_once),
            num_outputs=sequences if num_outputs is None else num_outputs,
            num_tables=self._cache.num_tables,
        )

    def _send(self, staged: StagedIntegers, plan: Plan, output_rows: Many[int], extent: Extent) -> None:
        """Send the plan's integers to the device, padded to the extent that was staged."""
        self._buffers.begin()
        num_rows, num_decode_rows = extent.num_rows, extent.num_decode_rows
        same_rows = self._filler.fill(plan, staged.host, output_rows, num_decode_rows)
        slots = self._used.slots
        if extent.with_adapters and not (same_rows and slots == self._sent_slots):
            of_rows = row_slots(plan, num_rows, num_decode_rows)
            fill_work(of_rows, self._slots.num_slots, lora_block_m(num_rows), staged.host)
        self._sent_slots = slots
        self._buffers.send(staged)

    def _batch(
        self,
        fields: StepFields[Tensor],
        extent: Extent,
        waits: LayerWaits,
        beside: Beside | None = None,
        plan: Plan = NO_ROWS,
    ) -> Batch:
        """Return the batch of a step.

        waits: the copies of adapters that the step has to wait for.
        beside: launches adapters' products on a second stream; None: all of the step runs on one.
        plan: the plan of the step's rows, in a model with states; without rows for padding alone.
        """
        lora = self._lora(fields, waits, beside) if extent.with_adapters else None
        token_ids = fed_tokens(fields.token_ids, self._chosen)
        states = None
        if self._states is not None:
            states = TableStates(self._states, StateRows.of(plan, self._transfers.put))
        return Batch(token_ids, PagedAttention(self._cache, fields, extent), fields.output_rows, lora, states)

    def _lora(self, fields: StepFields[Tensor], waits: LayerWaits, beside: Beside | None) -> SlotLora:
        num_rows = len(fields.rows)
        config, dtype, device = self._decoder.config, self._decoder.dtype, self._decoder.device
        work = WorkList(fields.rows, fields.chunks, lora_block_m(num_rows))
        workspace = lora_workspace(config, num_rows, self._slots.max_rank, dtype, device)
        return SlotLora(self._slots, work, workspace, waits, beside)


def _most_bytes(limits: StepLimits, max_blocks: int, num_slots: int, num_tables: int) -> int:
    """Return the most bytes of the integers of any step that is launched.

    A row may be wanted three times: to sample, to score, to pool.

    max_blocks: the blocks of the longest block table. num_tables: the block tables of a sequence.
    """
    rows = limits.max_rows
    shape = StepShape(rows, limits.max_sequences, max_blocks, rows + num_slots + 1, rows, 3 * rows, num_tables)
    return num_bytes_of(shape)
