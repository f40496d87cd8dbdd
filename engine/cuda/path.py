"""A plan to hidden states on a GPU (`engine.device.DevicePath`).

A plan of decodes alone is written into the integers of a captured graph, which is replayed; any other is launched
operation by operation. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

from torch import Tensor

from engine.cuda.accelerator import Accelerator, Beside
from engine.cuda.adapters import DeviceSlots
from engine.cuda.attention import PagedAttention, PagedCache
from engine.cuda.fill import Extent, Filler, extent_of, fill_work, row_slots
from engine.cuda.graphs import Bucket, Captured, DecodeGraphs, buckets_for
from engine.cuda.lora import LayerWaits, SlotLora, lora_workspace
from engine.cuda.metadata import Staged, StepBuffers, StepFields, StepShape, num_bytes_of
from engine.device import AdapterIn
from engine.lora.layer import LoadedAdapter
from engine.models.decoder import Batch, Decoder
from engine.sequence import Plan
from kernels.gpu.tuning import lora_block_m
from kernels.gpu.work_list import WorkList, max_chunks


class StepLimits(NamedTuple):
    """Of any step: rows, rows of decodes, sequences (a decode row is one), and tokens of the longest context."""

    max_rows: int
    max_decode_rows: int
    max_sequences: int
    max_context: int


class CudaPath:
    """use_graphs: False launches decodes, too, operation by operation."""

    def __init__(
        self,
        accelerator: Accelerator,
        decoder: Decoder,
        cache: PagedCache,
        slots: DeviceSlots,
        adapter_in: AdapterIn,
        limits: StepLimits,
        *,
        use_graphs: bool,
    ) -> None:
        self._accelerator = accelerator
        self._decoder = decoder
        self._cache = cache
        self._slots = slots
        self._adapter_in = adapter_in
        max_blocks = -(-limits.max_context // cache.block_size)
        self._filler = Filler(cache.block_size, limits.max_decode_rows, max_blocks)
        self._buffers = StepBuffers(accelerator, _most_bytes(limits, max_blocks, slots.num_slots))
        rows, context = limits.max_decode_rows, limits.max_context
        buckets = buckets_for(rows, context, has_adapters=slots.num_slots > 0) if use_graphs else []
        self._graphs = DecodeGraphs(buckets, self._capture)

    def order(self, plan: Plan) -> Many[int]:
        return range(len(plan.decodes))

    def forward(self, plan: Plan, output_rows: Many[int]) -> Tensor:
        adapters = self._place(plan)
        extent = extent_of(plan)
        if not plan.prefills:
            graph = self._graphs.find(extent.num_decode_rows, extent.decode_context, with_adapters=bool(adapters))
            if graph is not None:
                return self._replay(graph, plan, output_rows, adapters)
        return self._launch(plan, extent, output_rows, adapters)

    def logits(self, hidden: Tensor) -> Tensor:
        return self._decoder.logits(hidden)

    def _place(self, plan: Plan) -> list[LoadedAdapter]:
        """The adapters of the plan, their slots' entries written."""
        used = {chunk.sequence.adapter_slot for chunk in plan.chunks} - {None}
        adapters = {slot: self._adapter_in(slot) for slot in used if slot is not None}
        for slot, adapter in adapters.items():
            self._slots.place(slot, adapter)
        return list(adapters.values())

    def _replay(self, captured: Captured, plan: Plan, output_rows: Many[int], adapters: Many[LoadedAdapter]) -> Tensor:
        """All rows of a plan of decodes are wanted, in their order."""
        self._send(captured.staged, plan, [], with_adapters=captured.bucket.with_adapters)
        LayerWaits(self._accelerator.compute, adapters).await_all()
        return captured.graph.replay()[: len(output_rows)]

    def _launch(self, plan: Plan, extent: Extent, output_rows: Many[int], adapters: Many[LoadedAdapter]) -> Tensor:
        num_sequences = extent.num_decode_rows + len(plan.prefills)
        context = max(extent.decode_context, extent.prefill_context)
        staged = self._stage(plan.num_tokens, num_sequences, context, len(output_rows), with_adapters=bool(adapters))
        self._send(staged, plan, output_rows, with_adapters=bool(adapters))
        waits = LayerWaits(self._accelerator.compute, adapters)
        return self._decoder.forward(self._batch(staged.device, extent, waits if adapters else None))

    def _capture(self, bucket: Bucket) -> Captured:
        rows, context, with_adapters = bucket
        staged = self._stage(rows, rows, context, 0, with_adapters=with_adapters)
        self._send(staged, Plan([], []), [], with_adapters=with_adapters)
        extent = Extent(rows, context, 0, 0)
        waits = LayerWaits(self._accelerator.compute, []) if with_adapters else None

        def run() -> Tensor:
            """All of its memory is taken within it, and so shared with the other graphs."""
            return self._decoder.forward(self._batch(staged.device, extent, waits, self._accelerator.beside))

        return Captured(bucket, staged, self._accelerator.capture(run))

    def _stage(
        self, num_rows: int, num_sequences: int, max_context: int, num_outputs: int, *, with_adapters: bool
    ) -> Staged:
        num_chunks = max_chunks(num_rows, self._slots.num_slots, lora_block_m(num_rows)) if with_adapters else 0
        num_blocks = -(-max_context // self._cache.block_size)
        return self._buffers.stage(StepShape(num_rows, num_sequences, num_blocks, num_chunks, num_outputs))

    def _send(self, staged: Staged, plan: Plan, output_rows: Many[int], *, with_adapters: bool) -> None:
        """The plan's integers to the device, padded to the rows that were staged."""
        self._buffers.begin()
        self._filler.fill(plan, staged.host, output_rows)
        if with_adapters:
            num_rows = len(staged.host.rows)
            fill_work(row_slots(plan, num_rows), self._slots.num_slots, lora_block_m(num_rows), staged.host)
        self._buffers.send(staged)

    def _batch(
        self, fields: StepFields[Tensor], extent: Extent, waits: LayerWaits | None, beside: Beside | None = None
    ) -> Batch:
        """waits: None where no row has an adapter. A graph's batch names no output rows: it gives all."""
        lora = None if waits is None else self._lora(fields, waits, beside)
        output_rows = fields.output_rows if extent.prefill_queries or len(fields.output_rows) else None
        return Batch(fields.token_ids, PagedAttention(self._cache, fields, extent), output_rows, lora)

    def _lora(self, fields: StepFields[Tensor], waits: LayerWaits, beside: Beside | None) -> SlotLora:
        num_rows = len(fields.rows)
        config, dtype, device = self._decoder.config, self._decoder.dtype, self._decoder.device
        work = WorkList(fields.rows, fields.chunks, lora_block_m(num_rows))
        workspace = lora_workspace(config, num_rows, self._slots.max_rank, dtype, device)
        return SlotLora(self._slots, work, workspace, waits, beside)


def _most_bytes(limits: StepLimits, max_blocks: int, num_slots: int) -> int:
    """Of the integers of any step. A row may be wanted three times: to sample, to score, to pool."""
    most_chunks = limits.max_rows + num_slots + 1
    return num_bytes_of(StepShape(limits.max_rows, limits.max_sequences, max_blocks, most_chunks, 3 * limits.max_rows))
