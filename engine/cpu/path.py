"""Computes the hidden states of a plan on a CPU, with its adapters in tables (`engine.model_runner.DevicePath`)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

import torch
from torch import Tensor

from engine.cpu.attention import PagedAttention, PagedCache
from engine.cpu.batch import BatchBuilder
from engine.cpu.lora import BatchedLora, Segment
from engine.cpu.tables import AdapterTables
from engine.cpu.threads import AdaptedThreads
from engine.device import PausableForward
from engine.lora.layer import LoadedAdapter
from engine.models.decoder import Batch, Decoder
from engine.models.states import StateRows, StateTable, TableStates
from engine.sequence import Plan, Sequence
from engine.transfers import Event, PastEvent


class AdapterPath:
    """The parts that paths on a CPU share: adapters in tables, and steps that are done when they are launched.

    adapter_in: returns the adapter that a slot of the pool holds.
    tables: the tables of decodes.
    threads: None keeps PyTorch's number of threads.
    """

    def __init__(
        self,
        adapter_in: Callable[[int], LoadedAdapter],
        tables: AdapterTables,
        threads: AdaptedThreads | None = None,
    ) -> None:
        self._adapter_in = adapter_in
        self._tables = tables
        self._threads = threads

    @property
    def feeds(self) -> bool:
        """False: no token goes from one step to the next on the device, since a step is done when it is launched."""
        return False

    @property
    def halfway(self) -> Event:
        """Return an event that has happened already, since a step is done when it is launched."""
        return PastEvent()

    def begin(self, plan: Plan, output_rows: Many[int]) -> PausableForward | None:
        """Raise NotImplementedError: a step cannot pause."""
        raise NotImplementedError("a step cannot pause")

    def replays(self, plan: Plan, num_outputs: int) -> bool:
        """Return False: a step is launched operation by operation."""
        return False

    def feed(self, token_ids: Tensor, sequences: Many[Sequence]) -> None:
        """Raise NotImplementedError: on a CPU tokens go over the host."""
        raise NotImplementedError("tokens go over the host")

    def order(self, plan: Plan) -> Many[int]:
        """Return the order of the tables' rows where all chunks decode, so that nothing is gathered, or the plan's."""
        if plan.prefills:
            return range(len(plan.decodes))
        return self._tables.order([self._adapter_of(chunk.sequence) for chunk in plan.decodes])

    def adapt_threads(self) -> None:
        """Set the number of threads to the processors that other work leaves, unless the number is configured."""
        if self._threads is not None:
            self._threads.adapt()

    def step_lora(self, plan: Plan) -> BatchedLora | None:
        """Return the adapters of a plan's rows; None where no row has any."""
        segments: list[Segment] = []
        first = 0
        for chunk in plan.chunks:
            adapter = self._adapter_of(chunk.sequence)
            if adapter is not None:
                segments.append(Segment(adapter, first, first + chunk.num_tokens))
            first += chunk.num_tokens
        return self._tables.step(segments)

    def _adapter_of(self, sequence: Sequence) -> LoadedAdapter | None:
        return None if sequence.adapter_slot is None else self._adapter_in(sequence.adapter_slot)


class CpuPath(AdapterPath):
    """Computes plans with PyTorch's operations."""

    def __init__(
        self,
        decoder: Decoder,
        cache: PagedCache,
        block_size: int,
        adapter_in: Callable[[int], LoadedAdapter],
        tables: AdapterTables,
        threads: AdaptedThreads | None = None,
        states: StateTable | None = None,
    ) -> None:
        super().__init__(adapter_in, tables, threads)
        self._decoder = decoder
        self._cache = cache
        self._states = states
        self._batches = BatchBuilder(block_size, cache.views, cache.length_switch)

    def forward(self, plan: Plan, output_rows: Many[int]) -> Tensor:
        """Return the hidden states [W, hidden] of these rows of a plan."""
        self.adapt_threads()
        token_ids, rows = self._batches.build(plan)
        wanted = torch.tensor(output_rows, dtype=torch.int64)
        attention, lora = PagedAttention(self._cache, rows), self.step_lora(plan)
        states = None if self._states is None else TableStates(self._states, StateRows.of(plan, torch.from_numpy))
        return self._decoder.forward(Batch(token_ids, attention, wanted, lora, states))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of rows of `forward`: [W, hidden] -> [W, V] fp32."""
        return self._decoder.logits(hidden)
