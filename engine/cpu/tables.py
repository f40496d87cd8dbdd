"""Tables of the adapters in use, so that one batched product serves them all (`kernels.lora`).

A table has a row for each adapter of one layout. An adapter is copied to a row when a batch first uses it and stays as
long as nobody needs the row, so a changing set of adapters costs one copy for each that is new, never a rebuild. Rows
in use are kept close together: holes between them are computed too. In a 16-bit engine a layout has two tables: in fp32
for segments of few rows (decodes), in the engine's dtype for long ones (chunks of prompts). Scalings are applied in
fp32: multiplied into fp32 B's, or into what a 16-bit shrink gives.

Matrices of experts stay where they lie, which is many times the rest: no table has them.

New memory costs more than the copy (the system clears each page at its first touch), so the loading thread touches
the rows that its adapters will need. Knows nothing of slots or requests.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence, Set
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.cpu.lora import BatchedLora, ExpertAdapters, Segment, Span, TableBatch, expert_factors_of
from engine.lora.layer import AdapterLayout, GroupKey, LoadedAdapter
from kernels.cpu.library import installed
from kernels.lora import WIDE_ROWS
from kernels.workspace import Workspace

# The cost of one more span, in padded rows of the main one.
SPAN_COST_ROWS = 12


class AdapterTable:
    """Rows of one layout. `touch` belongs to the loading thread, everything else to the stepping thread."""

    def __init__(self, layout: AdapterLayout, capacity: int, dtype: torch.dtype) -> None:
        self._layout = layout
        self._capacity = capacity
        with torch.inference_mode(False):  # the loading thread writes to it outside of that mode
            self._weights = torch.empty(capacity, layout.num_elements, dtype=dtype)
            self._scales = torch.empty(0 if dtype == torch.float32 else capacity, layout.num_ranks)
        self.groups = layout.groups_of(self._weights)
        self.scales = layout.scales_of(self._scales) if len(self._scales) else {}
        self._keys: list[str | None] = [None] * capacity  # by row
        self._row_of: dict[str, int] = {}
        self._ready: set[int] = set()  # rows whose memory was touched
        self._claimed = 0  # rows that are ready or on their way there
        self._claim_lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """The bytes of the rows that take memory."""
        return self._claimed * self._layout.num_elements * self._weights.itemsize

    def touch(self) -> None:
        """Make one more row of the table ready in memory, if one is left."""
        row = self._claim_row()
        if row is not None:
            self._weights[row].zero_()
            self._ready.add(row)

    def place(self, adapters: Sequence[LoadedAdapter], *, compact: bool) -> bool:
        """Give every adapter a row. Return False where the next call with the same adapters may move one of them.

        compact: True: if the rows in use have a hole that is worth closing, one adapter is moved into it.

        Raises IndexError: when there are more adapters than the capacity.
        """
        used = {self._row_of[adapter.key] for adapter in adapters if adapter.key in self._row_of}
        for adapter in adapters:
            if adapter.key not in self._row_of:
                used.add(self._write(adapter, self._free_row(used)))
        if not compact:
            return True
        last = max(used)
        hole = min(self._ready - used, default=last)  # one operation: the loading thread adds to the set
        if hole >= last or last + 1 <= len(used) + len(used) // 4:
            return True
        self._write(next(a for a in adapters if self._row_of[a.key] == last), hole)  # one move in a step
        return False

    def row(self, adapter: LoadedAdapter) -> int:
        """Return the row of an adapter that was placed."""
        return self._row_of[adapter.key]

    def _free_row(self, used: set[int]) -> int:
        """Return the lowest ready row that this step does not use; a fresh one when there is none.

        Raises IndexError: when the table is full.
        """
        row = min(self._ready - used, default=None)
        if row is None:
            row = self._claim_row()
            if row is None:
                raise IndexError(f"a table of {self._capacity} adapters is full")
            self._ready.add(row)
        return row

    def _write(self, adapter: LoadedAdapter, row: int) -> int:
        previous = self._keys[row]
        if previous is not None:
            del self._row_of[previous]
        if adapter.key in self._row_of:
            self._keys[self._row_of[adapter.key]] = None
        self._keys[row] = adapter.key
        self._row_of[adapter.key] = row
        self._copy(adapter, row)
        if self.scales:
            self._scales[row].copy_(self._layout.by_rank(adapter.scalings))
            return row
        mine = {key: adapter.scalings[key] for key in self.groups}
        scalings = {scaling for of_group in mine.values() for scaling in of_group}
        if len(scalings) == 1:
            (scaling,) = scalings
            if scaling != 1.0:
                self._weights[row, self._layout.num_shrink_elements :].mul_(scaling)
            return row
        for key, of_group in mine.items():
            for b, scaling in zip(self.groups[key].bs, of_group, strict=True):
                b[row].mul_(scaling)
        return row

    def _copy(self, adapter: LoadedAdapter, row: int) -> None:
        if adapter.layout is self._layout:
            self._weights[row].copy_(adapter.weights)
            return
        for key, (_, a, bs) in self.groups.items():
            _, own_a, own_bs = adapter.groups[key]
            for to, matrix in zip((a, *bs), (own_a, *own_bs), strict=True):
                to[row].copy_(matrix)

    def _claim_row(self) -> int | None:
        with self._claim_lock:
            if self._claimed == self._capacity:
                return None
            self._claimed += 1
            return self._claimed - 1


class AdapterTables:
    """The tables of one engine.

    dtype: the engine's dtype. max_adapters: the most adapters in slots at once.
    A table has room for as many adapters of its layout as slots can hold; tables without used rows are dropped when all
    tables take more than max_bytes.
    """

    def __init__(self, max_adapters: int, dtype: torch.dtype, max_bytes: int) -> None:
        self._max_adapters = max_adapters
        self._max_bytes = max_bytes
        self._wide_dtype = dtype
        self._dtypes = {torch.float32, dtype}
        self._tables: dict[tuple[AdapterLayout, torch.dtype], AdapterTable] = {}  # the last one used last
        self._lock = threading.Lock()
        self._scratch = {each: Workspace(each, torch.device("cpu")) for each in self._dtypes}
        self._factors: WeakKeyDictionary[LoadedAdapter, Mapping[GroupKey, NDArray[np.void]]] = WeakKeyDictionary()
        self._experts: ExpertAdapters | None = None  # of the last step that had any
        weakref.finalize(self, _wait_for_helpers)
        self._order: tuple[list[LoadedAdapter | None], list[int]] | None = None
        self._step: tuple[list[Segment], BatchedLora] | None = None

    @staticmethod
    def bytes_per_element(dtype: torch.dtype) -> int:
        """Return the bytes of an adapter's element in all tables of an engine of this dtype."""
        return sum(each.itemsize for each in {torch.float32, dtype})

    @property
    def num_bytes(self) -> int:
        """The bytes of all tables."""
        return sum(table.num_bytes for table in self._tables.values())

    def expect(self, layout: AdapterLayout) -> None:
        """Make a row ready for an adapter of this layout, which was loaded and will be used.

        Called by the loading thread.
        """
        if layout.without_experts.num_elements:
            for dtype in self._dtypes:
                self._table(layout.without_experts, dtype).touch()

    def order(self, adapters: Sequence[LoadedAdapter | None]) -> list[int]:
        """Return the places of adapters, sorted so that rows in this order need not be gathered.

        They are sorted by table, then by row.

        adapters: the adapter of each decode; None: the base.
        """
        adapters = list(adapters)
        if self._order is not None and self._order[0] == adapters:
            return self._order[1]
        self._order = self._step = None  # rows may move
        tables: dict[AdapterLayout, tuple[int, AdapterTable]] = {}
        settled = True
        for layout, of_layout in _by_layout(adapters).items():
            table = self._table(layout, torch.float32)
            settled &= table.place(of_layout, compact=True)
            tables[layout] = len(tables), table

        def key(place: int) -> tuple[int, int]:
            adapter = adapters[place]
            if adapter is None or adapter.layout.without_experts not in tables:
                return len(tables), 0
            number, table = tables[adapter.layout.without_experts]
            return number, table.row(adapter)

        order = sorted(range(len(adapters)), key=key)
        self._order = (adapters, order) if settled else None
        return order

    def step(self, segments: Sequence[Segment]) -> BatchedLora | None:
        """Return the adapters of one batch; None if no row uses any."""
        segments = list(segments)
        if self._step is not None and self._step[0] == segments:
            return self._step[1]
        self._step = None  # rows may move
        if not segments:
            return None
        batches = []
        used, settled = set(), True
        for layout in _by_layout([segment.adapter for segment in segments]):
            by_dtype: dict[torch.dtype, list[Segment]] = {}
            for segment in segments:
                if segment.adapter.layout.without_experts is layout:
                    dtype = self._wide_dtype if segment.last - segment.first >= WIDE_ROWS else torch.float32
                    by_dtype.setdefault(dtype, []).append(segment)
            for dtype, mine in by_dtype.items():
                table = self._table(layout, dtype)
                (adapters,) = _by_layout([segment.adapter for segment in mine]).values()
                # `order` closes the holes of decodes; it has just told where their rows are.
                settled &= table.place(adapters, compact=dtype != torch.float32)
                batches.append(_batch(table, mine, self._scratch[dtype]))
                used.add((layout, dtype))
        self._drop_idle(used)
        step = BatchedLora(batches, self._of_experts(segments))
        self._step = (segments, step) if settled else None
        return step

    def _of_experts(self, segments: Sequence[Segment]) -> ExpertAdapters | None:
        """Return the adapters on experts of a batch, which are held until no thread reads them any more."""
        mine = [each for each in segments if each.adapter.layout.without_experts is not each.adapter.layout]
        if not mine:
            return None
        _wait_for_helpers()  # which may be late for steps that are over
        self._experts = ExpertAdapters(mine, self._factors_of)
        return self._experts

    def _factors_of(self, adapter: LoadedAdapter) -> Mapping[GroupKey, NDArray[np.void]]:
        found = self._factors.get(adapter)
        if found is None:
            found = self._factors[adapter] = expert_factors_of(adapter)
        return found

    def _table(self, layout: AdapterLayout, dtype: torch.dtype) -> AdapterTable:
        key = layout, dtype
        with self._lock:
            table = self._tables.pop(key, None)
            if table is None:
                room = self._max_bytes // (self.bytes_per_element(self._wide_dtype) * layout.num_elements)
                table = AdapterTable(layout, max(min(self._max_adapters, room), 1), dtype)
            self._tables[key] = table
            return table

    def _drop_idle(self, used: Set[tuple[AdapterLayout, torch.dtype]]) -> None:
        with self._lock:
            excess = self.num_bytes - self._max_bytes
            for key, table in list(self._tables.items()):
                if excess > 0 and key not in used:
                    excess -= table.num_bytes
                    del self._tables[key]


def _by_layout(adapters: Iterable[LoadedAdapter | None]) -> dict[AdapterLayout, list[LoadedAdapter]]:
    """Return the adapters by their layout without experts, each adapter once.

    Adapters that have no matrices but those of experts are left out.
    """
    found: dict[AdapterLayout, dict[str, LoadedAdapter]] = {}
    for adapter in adapters:
        if adapter is not None and adapter.layout.without_experts.num_elements:
            found.setdefault(adapter.layout.without_experts, {})[adapter.key] = adapter
    return {layout: list(of_layout.values()) for layout, of_layout in found.items()}


def _batch(table: AdapterTable, segments: Sequence[Segment], scratch: Workspace) -> TableBatch:
    """Return the inputs of one table's batched products for its segments, whose adapters have rows."""
    start, stop = min(segment.first for segment in segments), max(segment.last for segment in segments)
    mine: dict[int, list[int]] = {}
    for segment in segments:
        mine.setdefault(table.row(segment.adapter), []).extend(range(segment.first - start, segment.last - start))
    first, last = min(mine), max(mine) + 1
    width = _width([len(indexes) for indexes in mine.values()], last - first)
    shares = [(first, [mine.get(row, [])[:width] for row in range(first, last)])]
    shares += [(row, [indexes[width:]]) for row, indexes in mine.items() if len(indexes) > width]
    spans: list[Span] = []
    place_of: dict[int, int] = {}
    end = 0
    for span_first, per_adapter in shares:
        take: list[int] = []
        span_width = max(len(indexes) for indexes in per_adapter)
        for indexes in per_adapter:
            place_of |= {index: end + len(take) + i for i, index in enumerate(indexes)}
            take += indexes + [0] * (span_width - len(indexes))
        spans.append(Span(span_first, span_first + len(per_adapter), _unless_identity(take, stop - start)))
        end += len(take)
    ordered = sorted(place_of)
    places = _unless_identity([place_of[index] for index in ordered], end)
    rows = _unless_identity(ordered, stop - start)
    return TableBatch(table.groups, table.scales, scratch, slice(start, stop), spans, places, rows)


def _wait_for_helpers() -> None:
    """Wait until no thread of the native kernels reads the tables of steps that have ended."""
    library = installed()
    if library is not None:
        library.functions.lorikeet_wait_for_helpers()


def _unless_identity(indexes: list[int], length: int) -> Tensor | None:
    if indexes == list(range(length)):
        return None
    return torch.tensor(indexes, dtype=torch.int64)


def _width(counts: Sequence[int], num_adapters: int) -> int:
    """Return the places for each adapter in the main span.

    Adapters with more rows get a span of their own for the rest.
    """

    def cost(width: int) -> int:
        return num_adapters * width + sum(count - width + SPAN_COST_ROWS for count in counts if count > width)

    return min(sorted(set(counts)), key=cost)
