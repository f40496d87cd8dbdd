"""Tables of the adapters in use, so that one batched product serves them all (`kernels.lora`).

A table has a row for each adapter of one layout, in fp32 with the scalings multiplied in. An adapter is copied to a row
when a batch first uses it and stays as long as nobody needs the row, so a changing set of adapters costs one
copy for each that is new, never a rebuild. Rows in use are kept close together: holes between them are computed too.

New memory costs more than the copy (the system clears each page at its first touch), so the loading thread touches
the rows that its adapters will need. Knows nothing of slots or requests.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.lora.layer import AdapterLayout, LoadedAdapter, Segment, StepLora, TableBatch
from kernels.lora import Run
from kernels.workspace import Workspace

# What one more run costs, in padded rows of the main one.
RUN_COST_ROWS = 12
# From here on plain products in the engine's dtype cost a segment less than its part of the batched ones.
PLAIN_ROWS = 128


class AdapterTable:
    """Rows of one layout. `touch` belongs to the loading thread, everything else to the stepping thread."""

    def __init__(self, layout: AdapterLayout, capacity: int, device: torch.device) -> None:
        self._layout = layout
        self._capacity = capacity
        self._device = device
        with torch.inference_mode(False):  # the loading thread writes to it outside of that mode
            self._weights = torch.empty(capacity, layout.num_elements, dtype=torch.float32, device=device)
            self._groups = layout.groups_of(self._weights)
        self._digests: list[str | None] = [None] * capacity  # by row
        self._row_of: dict[str, int] = {}
        self._ready: set[int] = set()  # rows whose memory was touched
        self._claimed = 0  # rows that are ready or on their way there
        self._claim_lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Of the rows that take memory."""
        return self._claimed * self._layout.num_elements * self._weights.itemsize

    def touch(self) -> None:
        """Make one more row ready, if there is one."""
        row = self._claim()
        if row is not None:
            self._weights[row].zero_()
            self._ready.add(row)

    def place(self, adapters: Sequence[LoadedAdapter]) -> None:
        """Give every adapter a row; raises IndexError if there are more than the capacity."""
        used = {self._row_of[adapter.digest] for adapter in adapters if adapter.digest in self._row_of}
        for adapter in adapters:
            if adapter.digest not in self._row_of:
                used.add(self._write(adapter, self._free_row(used)))
        last = max(used)
        hole = min(self._ready - used, default=last)  # one operation: the loading thread adds to the set
        if hole < last and last + 1 > len(used) + len(used) // 4:  # at most one move in a step
            self._write(next(a for a in adapters if self._row_of[a.digest] == last), hole)

    def batch(self, rows: Mapping[str, Sequence[int]]) -> TableBatch:
        """What the rows of a batch need, {digest: its rows}, all placed."""
        num_rows = 1 + max(max(indexes) for indexes in rows.values())
        mine = {self._row_of[digest]: list(indexes) for digest, indexes in rows.items()}
        first, last = min(mine), max(mine) + 1
        width = _width([len(indexes) for indexes in mine.values()], last - first)
        shares = [(first, [mine.get(row, [])[:width] for row in range(first, last)])]
        shares += [(row, [indexes[width:]]) for row, indexes in mine.items() if len(indexes) > width]
        runs: list[Run] = []
        place_of: dict[int, int] = {}
        end = 0
        for run_first, per_adapter in shares:
            take: list[int] = []
            run_width = max(len(indexes) for indexes in per_adapter)
            for indexes in per_adapter:
                place_of |= {index: end + len(take) + i for i, index in enumerate(indexes)}
                take += indexes + [0] * (run_width - len(indexes))
            runs.append(Run(run_first, run_first + len(per_adapter), self._unless_identity(take, num_rows)))
            end += len(take)
        ordered = sorted(place_of)
        places = self._unless_identity([place_of[index] for index in ordered], end)
        return TableBatch(num_rows, self._groups, runs, places, self._unless_identity(ordered, num_rows))

    def _free_row(self, used: set[int]) -> int:
        """The lowest ready row that this step does not use; a fresh one when there is none."""
        row = min(self._ready - used, default=None)
        if row is None:
            row = self._claim()
            if row is None:
                raise IndexError(f"a table of {self._capacity} adapters is full")
            self._ready.add(row)
        return row

    def _write(self, adapter: LoadedAdapter, row: int) -> int:
        previous = self._digests[row]
        if previous is not None:
            del self._row_of[previous]
        if adapter.digest in self._row_of:
            self._digests[self._row_of[adapter.digest]] = None
        self._digests[row] = adapter.digest
        self._row_of[adapter.digest] = row
        self._weights[row].copy_(adapter.weights)
        scalings = {scaling for of_group in adapter.scalings.values() for scaling in of_group}
        if len(scalings) == 1:
            (scaling,) = scalings
            if scaling != 1.0:
                self._weights[row, self._layout.num_shrink_elements :].mul_(scaling)
            return row
        for key, of_group in adapter.scalings.items():
            for b, scaling in zip(self._groups[key].bs, of_group, strict=True):
                b[row].mul_(scaling)
        return row

    def _claim(self) -> int | None:
        with self._claim_lock:
            if self._claimed == self._capacity:
                return None
            self._claimed += 1
            return self._claimed - 1

    def _unless_identity(self, indexes: list[int], length: int) -> Tensor | None:
        if indexes == list(range(length)):
            return None
        return torch.tensor(indexes, dtype=torch.int64).to(self._device)


class AdapterTables:
    """The tables of one engine, by layout. max_adapters, max_bytes: what can be in slots at once, the bytes in fp32.

    A table has room for as many adapters of its layout as slots can hold; those that no row uses are dropped when all
    take more than max_bytes."""

    def __init__(self, max_adapters: int, device: torch.device, max_bytes: int) -> None:
        self._max_adapters = max_adapters
        self._max_bytes = max_bytes
        self._device = device
        self._tables: dict[AdapterLayout, AdapterTable] = {}  # the last one used last
        self._lock = threading.Lock()
        self._scratch = Workspace(torch.float32, device)

    def expect(self, layout: AdapterLayout) -> None:
        """An adapter of this layout was loaded and will decode. Called by the loading thread."""
        if layout.num_elements:
            self._table(layout).touch()

    def batches(self, segments: Sequence[Segment]) -> list[TableBatch]:
        """What the segments of one batch need, in any order."""
        rows_of: dict[AdapterLayout, dict[str, list[int]]] = {}
        for segment in segments:
            of_layout = rows_of.setdefault(segment.adapter.layout, {})
            of_layout.setdefault(segment.adapter.digest, []).extend(range(segment.first, segment.last))
        adapters = {segment.adapter.digest: segment.adapter for segment in segments}
        batches = []
        for layout, mine in rows_of.items():
            if layout.num_elements:
                table = self._table(layout)
                table.place([adapters[digest] for digest in mine])
                batches.append(table.batch(mine))
        self._drop_idle(rows_of)
        return batches

    def step(self, segments: Sequence[Segment]) -> StepLora | None:
        """The adapters of one batch; None if no row uses any."""
        if not segments:
            return None
        short = [s for s in segments if s.last - s.first < PLAIN_ROWS]
        return StepLora(self.batches(short), [s for s in segments if s.last - s.first >= PLAIN_ROWS], self._scratch)

    def _table(self, layout: AdapterLayout) -> AdapterTable:
        with self._lock:
            table = self._tables.pop(layout, None)
            if table is None:
                capacity = min(self._max_adapters, self._max_bytes // (4 * layout.num_elements))
                table = AdapterTable(layout, max(capacity, 1), self._device)
            self._tables[layout] = table
            return table

    def _drop_idle(self, used: Mapping[AdapterLayout, object]) -> None:
        with self._lock:
            excess = sum(table.num_bytes for table in self._tables.values()) - self._max_bytes
            for layout, table in list(self._tables.items()):
                if excess > 0 and layout not in used:
                    excess -= table.num_bytes
                    del self._tables[layout]


def _width(counts: Sequence[int], num_adapters: int) -> int:
    """Places for each adapter in the main run; those with more rows get a run of their own for the rest."""

    def cost(width: int) -> int:
        return num_adapters * width + sum(count - width + RUN_COST_ROWS for count in counts if count > width)

    return min(sorted(set(counts)), key=cost)
