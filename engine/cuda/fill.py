"""Writes the integers of one step on a GPU from its plan, in NumPy. No tensors, no device.

Rows are the plan's, decodes first; a decode row is a sequence of one query, also where a draft shares its blocks with
the token before it. A batch may have more rows than the plan, after its decodes and after its prompts, and more
sequences: padding writes nothing, sees nothing, uses no slot.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cuda.metadata import StepFields
from engine.sequence import Chunk, Plan, Sequence
from kernels.gpu.query_tiles import fill_tiles

Ints = NDArray[np.int64]
NO_SLOT = -1


class BlockTables:
    """Block tables of decode rows, kept from step to step: most are those of the last step, or one block longer.

    Remembers by row which list was copied and how much of it: a sequence's table only grows until it is replaced.
    """

    def __init__(self, max_rows: int, max_blocks: int) -> None:
        self._tables = np.zeros((max_rows, max_blocks), dtype=np.int32)
        self._copied: list[tuple[list[int], int]] = [([], 0)] * max_rows

    def as_array(self, tables: Many[list[int]]) -> NDArray[np.int32]:
        """Return tables as [len(tables), max_blocks]; what lies beyond a table's end is arbitrary.

        Valid until the next call.
        """
        for row, table in enumerate(tables):
            known, length = self._copied[row]
            first = length if known is table else 0
            if first < len(table):
                self._tables[row, first : len(table)] = table[first:]
            if known is not table or first != len(table):
                self._copied[row] = table, len(table)
        return self._tables[: len(tables)]


class Extent(NamedTuple):
    """The numbers of rows, chunks and tokens that determine a step's shape, padded or not; 0 where it has none."""

    num_prompt_rows: int
    """Rows of chunks of prompts."""
    num_decode_rows: int
    """The number of rows of decodes."""
    num_prefills: int
    """The number of chunks of prompts."""
    decode_context: int
    """The longest context of decodes."""
    prefill_context: int
    """The longest context of chunks of prompts."""
    with_adapters: bool = False
    """True if some row has an adapter."""

    @property
    def num_rows(self) -> int:
        """The number of rows of the batch."""
        return self.num_decode_rows + self.num_prompt_rows

    @property
    def num_sequences(self) -> int:
        """The number of sequences of the batch: a decode's row each, and a prefill each."""
        return self.num_decode_rows + self.num_prefills

    def holds(self, other: Extent) -> bool:
        """Tell whether a step of the other's extent can be padded to this one."""
        return self.with_adapters == other.with_adapters and all(map(operator.ge, self, other))


def extent_of(plan: Plan, *, with_adapters: bool) -> Extent:
    """Return the sizes of a plan, which the step's kernels are launched for.

    with_adapters: True: some row of the plan has an adapter.
    """
    return Extent(
        sum(chunk.num_tokens for chunk in plan.prefills),
        sum(chunk.num_tokens for chunk in plan.decodes),
        len(plan.prefills),
        max((_end_of(chunk) for chunk in plan.decodes), default=0),
        max((_end_of(chunk) for chunk in plan.prefills), default=0),
        with_adapters,
    )


class _LastStep(NamedTuple):
    """The decodes of the last step, one token each."""

    fields: StepFields[NDArray[Any]]
    """The fields into which the last step was written."""
    tables: list[list[list[int]]]
    """For each number of a block table the sequences' own tables, which grow, in the order of rows."""
    output_rows: Many[int]
    """The rows whose hidden states were wanted, which chose the tokens."""


class Filler:
    """Writes plans. Knows the cache's block size and tables, the most decode rows of a step, and the tiling of prompts.

    length_switch: the number of rows in the tables of angles before those of long sequences.

    fed: the place of each token that the last step chose, by its sequence, for chunks that follow.
    """

    def __init__(
        self,
        block_size: int,
        max_rows: int,
        max_blocks: int,
        queries_at_once: int,
        length_switch: int = 0,
        num_tables: int = 1,
    ) -> None:
        self._block_size = block_size
        self._tables = [BlockTables(max_rows, max_blocks) for _ in range(num_tables)]
        self._queries_at_once = queries_at_once
        self._length_switch = length_switch
        self._last: _LastStep | None = None
        self.fed: Mapping[Sequence, int] = {}

    def fill(self, plan: Plan, fields: StepFields[NDArray[Any]], output_rows: Many[int], num_decode_rows: int) -> bool:
        """Fill all fields but the adapters' work.

        output_rows: the plan's rows whose hidden states are wanted. num_decode_rows: the row at which prompts begin.

        Return whether the plan is that of the last call, into the same fields, one token later, which is most of the
        time.
        """
        if self._advance(plan, fields, output_rows):
            return True
        num_decodes = self._fill_decodes(plan.decodes, fields)
        last_row, last_sequence = self._fill_prefills(plan.prefills, fields, num_decode_rows)
        fields.query_starts[num_decodes : num_decode_rows + 1] = np.arange(num_decodes, num_decode_rows + 1)
        fields.query_starts[last_sequence:] = last_row
        for padding in (slice(num_decodes, num_decode_rows), slice(last_row, None)):
            fields.token_ids[padding] = 0
            fields.angles[padding] = 0
            fields.slots[:, padding] = NO_SLOT
        fields.context_lens[num_decodes:num_decode_rows] = 0
        fields.context_lens[last_sequence:] = 0
        wanted = np.array(output_rows, dtype=np.int64)
        wanted[wanted >= num_decodes] += num_decode_rows - num_decodes
        fields.output_rows[: len(wanted)] = wanted
        fields.output_rows[len(wanted) :] = 0
        simple = not plan.prefills and num_decodes == len(plan.decodes)
        self._last = _LastStep(fields, self._tables_of(plan.decodes), output_rows) if simple else None
        return False

    def _advance(self, plan: Plan, fields: StepFields[NDArray[Any]], output_rows: Many[int]) -> bool:
        """Update the fields of the last step for the next token of each sequence.

        Return False, and change nothing, if the plan is anything but the next token of each of the same sequences.
        """
        last, count = self._last, len(plan.decodes)
        if last is None or plan.prefills or last.fields is not fields or output_rows != last.output_rows:
            return False
        tables = self._tables_of(plan.decodes)
        if tables != last.tables or any(chunk.drafts for chunk in plan.decodes):
            return False
        positions = np.array([chunk.first for chunk in plan.decodes], dtype=np.int64)
        angles = positions + self._shifts(plan.decodes)
        if not np.array_equal(angles, fields.angles[:count] + 1):
            return False
        if not (positions % self._block_size).all():  # some begin a block
            self._fill_tables(tables, fields)
        fields.token_ids[:count] = [token for chunk in plan.decodes for token in self._new_tokens(chunk)]
        fields.angles[:count] = angles
        self._fill_slots(fields, positions)
        fields.context_lens[:count] = positions + 1
        return True

    def _fill_decodes(self, decodes: Many[Chunk], fields: StepFields[NDArray[Any]]) -> int:
        """Fill the decodes, and return how many rows they are."""
        num_rows = sum(chunk.num_tokens for chunk in decodes)
        if not num_rows:
            return 0
        tokens = [token for chunk in decodes for token in self._new_tokens(chunk)]
        positions = np.array([chunk.first + i for chunk in decodes for i in range(chunk.num_tokens)], dtype=np.int64)
        self._fill_tables(self._tables_of(decodes), fields)
        fields.token_ids[:num_rows] = tokens
        fields.angles[:num_rows] = positions + self._shifts(decodes)
        self._fill_slots(fields, positions)
        fields.context_lens[:num_rows] = positions + 1
        fields.query_starts[:num_rows] = np.arange(num_rows)
        return num_rows

    def _shifts(self, chunks: Many[Chunk]) -> Ints | int:
        """Return how far each row's angles lie behind its position in the tables; 0 where all are as positions."""
        if not self._length_switch:
            return 0
        shifts = [chunk.sequence.is_long * self._length_switch for chunk in chunks]
        return np.repeat(np.array(shifts, dtype=np.int64), [chunk.num_tokens for chunk in chunks])

    def _new_tokens(self, chunk: Chunk) -> Many[int]:
        """Return the chunk's token ids, without copying the list of a decode that has no drafts.

        For a chunk that follows, return the number by which `kernels.gpu.fed_tokens` finds its token.
        """
        if chunk.follows:
            return (-1 - self.fed[chunk.sequence],)
        return chunk.token_ids if chunk.drafts else (chunk.sequence.token_ids[chunk.first],)

    def _tables_of(self, decodes: Many[Chunk]) -> list[list[list[int]]]:
        """Return the tables of all rows of decodes, by the numbers of the tables."""
        sequences = [chunk.sequence for chunk in decodes for _ in range(chunk.num_tokens)]
        return [[sequence.block_tables[number] for sequence in sequences] for number in range(len(self._tables))]

    def _fill_tables(self, tables: Many[list[list[int]]], fields: StepFields[NDArray[Any]]) -> None:
        for number, each in enumerate(tables):
            width = min(fields.block_tables.shape[2], max(map(len, each)))
            fields.block_tables[number, : len(each), :width] = self._tables[number].as_array(each)[:, :width]

    def _fill_slots(self, fields: StepFields[NDArray[Any]], positions: Ints) -> None:
        """Fill the slots of decodes, the rows at these positions."""
        count = len(positions)
        for slots, tables in zip(fields.slots, fields.block_tables, strict=True):
            slots[:count] = self._slots(tables, np.arange(count), positions)

    def _fill_prefills(
        self, prefills: Many[Chunk], fields: StepFields[NDArray[Any]], first_row: int
    ) -> tuple[int, int]:
        """Fill the prompts, and return the first row and the first sequence after them.

        There are as many rows as sequences before the prompts. Tiles count sequences from the first chunk.
        """
        row, sequence = first_row, first_row
        ends = np.array([_end_of(chunk) for chunk in prefills], dtype=np.int64)
        query_lens = np.array([chunk.num_tokens for chunk in prefills], dtype=np.int64)
        fill_tiles(fields.tiles, ends, query_lens, self._queries_at_once)
        for chunk in prefills:
            last = row + chunk.num_tokens
            positions = np.arange(chunk.first, _end_of(chunk), dtype=np.int64)
            num_blocks = -(-_end_of(chunk) // self._block_size)
            for number in range(len(self._tables)):
                table = np.array([chunk.sequence.block_tables[number][:num_blocks]], dtype=np.int32)
                fields.block_tables[number, sequence, :num_blocks] = table[0]
                fields.slots[number, row:last] = self._slots(table, np.zeros(len(positions), dtype=np.int64), positions)
            fields.token_ids[row:last] = chunk.token_ids
            fields.angles[row:last] = positions + self._shifts([chunk])
            fields.context_lens[sequence] = _end_of(chunk)
            fields.query_starts[sequence] = row
            row, sequence = last, sequence + 1
        return row, sequence

    def _slots(self, tables: NDArray[np.int32], rows: Ints, positions: Ints) -> Ints:
        """Return the cache slots of these positions of these rows of tables."""
        block = tables[rows, positions // self._block_size].astype(np.int64)
        return block * self._block_size + positions % self._block_size


def fill_work(adapter_slots: Ints, num_slots: int, block_m: int, fields: StepFields[NDArray[Any]]) -> None:
    """Fill rows and chunks of `kernels.gpu.work_list`, by its definition.

    adapter_slots [N], NO_SLOT where there is none.

    block_m: the most rows of a chunk.
    """
    keys = np.where(adapter_slots < 0, num_slots, adapter_slots)
    counts = np.bincount(keys, minlength=num_slots + 1)
    per_slot = -(-counts // block_m)
    num_chunks = int(per_slot.sum())
    slots = np.repeat(np.arange(num_slots + 1), per_slot)
    before = np.arange(num_chunks) - np.repeat(per_slot.cumsum() - per_slot, per_slot)  # chunks of the same slot
    ends = counts.cumsum()
    first = (ends - counts)[slots] + before * block_m
    fields.rows[:] = np.argsort(keys, kind="stable")
    fields.chunks[:num_chunks, 0] = np.where(slots == num_slots, NO_SLOT, slots)
    fields.chunks[:num_chunks, 1] = first
    fields.chunks[:num_chunks, 2] = np.minimum(ends[slots] - first, block_m)
    fields.chunks[num_chunks:] = 0


def row_slots(plan: Plan, num_rows: int, num_decode_rows: int) -> Ints:
    """Return the adapter slot of every row, [num_rows], NO_SLOT for the base and for padding; as in `Filler.fill`."""
    slots = np.full(num_rows, NO_SLOT, dtype=np.int64)
    for first_row, chunks in ((0, plan.decodes), (num_decode_rows, plan.prefills)):
        row = first_row
        for chunk in chunks:
            if chunk.sequence.adapter_slot is not None:
                slots[row : row + chunk.num_tokens] = chunk.sequence.adapter_slot
            row += chunk.num_tokens
    return slots


def _end_of(chunk: Chunk) -> int:
    return chunk.first + chunk.num_tokens
