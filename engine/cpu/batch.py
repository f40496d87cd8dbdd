"""Makes the tensors of one step on a CPU from its plan: its tokens, and the cached positions that each of them sees."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.cpu.attention import AttentionRows, PrefillRows, View
from engine.sequence import Chunk, Plan

Ints = NDArray[np.int64]


class BatchBuilder:
    """Makes the tensors of a step from its plan. Holds the cache's block size and the views of the model's layers.

    length_switch: the number of rows in the tables of angles before those of long sequences.
    """

    def __init__(self, block_size: int, views: Iterable[View], length_switch: int = 0) -> None:
        self._block_size = block_size
        self._length_switch = length_switch
        self._views = list(dict.fromkeys(views))
        self._tables = {view.table for view in self._views}
        self._windows = {view.window for view in self._views}

    def build(self, plan: Plan) -> tuple[Tensor, dict[View, AttentionRows]]:
        """Return the token ids [N] int64 of all rows, and for each view the positions that the rows attend to."""
        chunks = plan.chunks
        num_decodes = sum(chunk.num_tokens for chunk in plan.decodes)
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        positions = np.concatenate([np.arange(c.first, c.first + c.num_tokens, dtype=np.int64) for c in chunks])
        shifts = np.repeat([c.sequence.is_long * self._length_switch for c in chunks], [c.num_tokens for c in chunks])
        angles = torch.from_numpy(positions + shifts)
        all_positions = torch.from_numpy(positions)
        slots = {table: self._all_slots(chunks, table) for table in self._tables}
        blocks = {table: self._decode_blocks(plan.decodes, table) for table in self._tables}
        contexts = {table: self._contexts(plan.prefills, table) for table in self._tables}
        lengths = np.array([c.first + i + 1 for c in plan.decodes for i in range(c.num_tokens)], dtype=np.int64)
        hidden = {window: self._hidden(lengths, window) for window in self._windows}
        visible = {window: [_visible(chunk, window) for chunk in plan.prefills] for window in self._windows}
        rows = {
            view: AttentionRows(
                positions=all_positions,
                angles=angles,
                slots=slots[view.table],
                num_decodes=num_decodes,
                decode_blocks=blocks[view.table],
                decode_hidden=hidden[view.window],
                prefills=_prefills(num_decodes, contexts[view.table], visible[view.window]),
            )
            for view in self._views
        }
        return torch.from_numpy(np.array(tokens, dtype=np.int64)), rows

    def _all_slots(self, chunks: Many[Chunk], table: int) -> Tensor:
        """Return the cache slots [N] int64 of all rows.

        table: the number of the block table.
        """
        return torch.from_numpy(np.concatenate([self._slots(chunk, chunk.first, table) for chunk in chunks]))

    def _contexts(self, prefills: Many[Chunk], table: int) -> list[Tensor]:
        """Return the cache slots [C] int64 of each prompt's positions up to the chunk's end.

        table: the number of the block table.
        """
        return [torch.from_numpy(self._slots(chunk, 0, table)) for chunk in prefills]

    def _slots(self, chunk: Chunk, first: int, table: int) -> Ints:
        """Return the cache slots of the sequence's positions from `first` to the chunk's end.

        table: the number of the block table.
        """
        positions = np.arange(first, chunk.first + chunk.num_tokens, dtype=np.int64)
        blocks = np.array(chunk.sequence.block_tables[table], dtype=np.int64)
        return blocks[positions // self._block_size] * self._block_size + positions % self._block_size

    def _decode_blocks(self, decodes: Many[Chunk], table: int) -> Tensor:
        """Return the blocks of every decode row's context, padded to the longest with block 0.

        A token and the drafts after it are rows over the same blocks, each one position longer than the last.

        table: the number of the block table.
        """
        num_blocks = -(-max((chunk.first + chunk.num_tokens for chunk in decodes), default=0) // self._block_size)
        blocks = np.zeros((sum(chunk.num_tokens for chunk in decodes), num_blocks), dtype=np.int64)
        row = 0
        for chunk in decodes:
            of_sequence = chunk.sequence.block_tables[table][:num_blocks]
            blocks[row : row + chunk.num_tokens, : len(of_sequence)] = of_sequence
            row += chunk.num_tokens
        return torch.from_numpy(blocks)

    def _hidden(self, lengths: Ints, window: int | None) -> Tensor:
        """Return a mask of the cached positions that each decode row does not see, in the blocks of the row.

        lengths: the length of each row's context, the row's own token included. window: the number of tokens that a
        row sees, itself included; None: its whole context.
        """
        columns = np.arange(-(-int(lengths.max(initial=0)) // self._block_size) * self._block_size)
        hidden = columns >= lengths[:, None]
        if window is not None:
            hidden |= columns < lengths[:, None] - window
        return torch.from_numpy(hidden[:, None])


def _visible(chunk: Chunk, window: int | None) -> Tensor:
    """Return a mask of the cached positions that each row of a prompt's chunk sees, bool [rows, context].

    window: the number of tokens that a row sees, itself included; None: all before it.
    """
    queries = np.arange(chunk.first, chunk.first + chunk.num_tokens)[:, None]
    keys = np.arange(chunk.first + chunk.num_tokens)[None]
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    return torch.from_numpy(visible)


def _prefills(first_row: int, contexts: Many[Tensor], visible: Many[Tensor]) -> list[PrefillRows]:
    rows = []
    for slots, seen in zip(contexts, visible, strict=True):
        rows.append(PrefillRows(first_row, first_row + len(seen), slots, seen))
        first_row += len(seen)
    return rows
