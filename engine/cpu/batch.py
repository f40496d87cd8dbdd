"""From a plan to the tensors of one step on a CPU: its tokens, and the cached positions that each of them sees."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.cpu.attention import AttentionRows, PrefillRows
from engine.sequence import Chunk, Plan

Ints = NDArray[np.int64]


class BatchBuilder:
    """Knows the cache's block size and the windows of the model's layers; holds nothing of a step.

    length_switch: the number of rows in the tables of angles before those of long sequences.
    """

    def __init__(self, block_size: int, windows: Iterable[int | None], length_switch: int = 0) -> None:
        self._block_size = block_size
        self._length_switch = length_switch
        self._windows = sorted(set(windows), key=lambda window: window or 0)

    def build(self, plan: Plan) -> tuple[Tensor, dict[int | None, AttentionRows]]:
        """Return the token ids [N] int64 of all rows, and what these look at in layers of each window."""
        chunks = plan.chunks
        num_decodes = sum(chunk.num_tokens for chunk in plan.decodes)
        tokens = [token for chunk in chunks for token in chunk.token_ids]
        positions = np.concatenate([np.arange(c.first, c.first + c.num_tokens, dtype=np.int64) for c in chunks])
        slots = np.concatenate([self._slots(c, c.first) for c in chunks])
        shifts = np.repeat([c.sequence.is_long * self._length_switch for c in chunks], [c.num_tokens for c in chunks])
        angles = torch.from_numpy(positions + shifts)
        all_positions, all_slots = torch.from_numpy(positions), torch.from_numpy(slots)
        lengths, blocks = self._decodes(plan.decodes)
        rows = {
            window: AttentionRows(
                positions=all_positions,
                angles=angles,
                slots=all_slots,
                num_decodes=num_decodes,
                decode_blocks=torch.from_numpy(blocks),
                decode_hidden=self._hidden(lengths, blocks.shape[1], window),
                prefills=self._prefills(plan.prefills, num_decodes, window),
            )
            for window in self._windows
        }
        return torch.from_numpy(np.array(tokens, dtype=np.int64)), rows

    def _slots(self, chunk: Chunk, first: int) -> Ints:
        """Return the cache slots of the sequence's positions from `first` to the chunk's end."""
        positions = np.arange(first, chunk.first + chunk.num_tokens, dtype=np.int64)
        table = np.array(chunk.sequence.block_table, dtype=np.int64)
        return table[positions // self._block_size] * self._block_size + positions % self._block_size

    def _decodes(self, decodes: Many[Chunk]) -> tuple[Ints, Ints]:
        """Return the length of every decode row's context, and its blocks, padded to the longest with block 0.

        A token and the drafts after it are rows over the same blocks, each one position longer than the last.
        """
        rows = [(chunk.sequence.block_table, chunk.first + i + 1) for chunk in decodes for i in range(chunk.num_tokens)]
        lengths = np.array([length for _, length in rows], dtype=np.int64)
        num_blocks = -(-int(lengths.max(initial=0)) // self._block_size)
        blocks = np.zeros((len(rows), num_blocks), dtype=np.int64)
        for row, (table, _) in enumerate(rows):
            blocks[row, : min(len(table), num_blocks)] = table[:num_blocks]
        return lengths, blocks

    def _hidden(self, lengths: Ints, num_blocks: int, window: int | None) -> Tensor:
        """Return which cached positions of its blocks each decode row does not see."""
        columns = np.arange(num_blocks * self._block_size)
        hidden = columns >= lengths[:, None]
        if window is not None:
            hidden |= columns < lengths[:, None] - window
        return torch.from_numpy(hidden[:, None])

    def _prefills(self, prefills: Many[Chunk], first_row: int, window: int | None) -> list[PrefillRows]:
        rows = []
        for chunk in prefills:
            queries = np.arange(chunk.first, chunk.first + chunk.num_tokens)[:, None]
            keys = np.arange(chunk.first + chunk.num_tokens)[None]
            visible = keys <= queries
            if window is not None:
                visible &= keys > queries - window
            last_row = first_row + chunk.num_tokens
            slots = torch.from_numpy(self._slots(chunk, 0))
            rows.append(PrefillRows(first_row, last_row, slots, torch.from_numpy(visible)))
            first_row = last_row
        return rows
