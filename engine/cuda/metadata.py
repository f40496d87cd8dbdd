"""One step's integers for a GPU: their places side by side in one buffer, and the one copy that brings them there.

The places follow from a few numbers (`StepShape`) alone, so a captured graph finds a step's integers where those of the
step that it was captured from were.
"""

from __future__ import annotations

import math
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.cuda.accelerator import Accelerator
from engine.transfers import Event

ALIGNMENT = 16  # bytes: what kernels may read at once
T = TypeVar("T")


class StepShape(NamedTuple):
    """The sizes of one step's fields."""

    num_rows: int
    """N, the rows of the batch."""
    num_sequences: int
    """The number of sequences (B): each decode row and each prefill chunk is of another one."""
    num_blocks: int
    """M, the blocks of the longest block table."""
    num_chunks: int
    """C, the chunks of adapters' work."""
    num_tiles: int
    """T, the tiles of prompts' queries."""
    num_outputs: int
    """W, the rows whose hidden states are wanted after the last layer."""
    num_tables: int = 1
    """G, the block tables of a sequence."""


class StepFields(NamedTuple, Generic[T]):
    """The integers of one step: arrays on the host, tensors on the device. For the sizes see `StepShape`."""

    token_ids: T
    """[N] int64, the token of each row, as in `kernels.gpu.fed_tokens`."""
    angles: T
    """[N] int64, the row of the tables of angles: the position, or for a long sequence a row of its own tables."""
    slots: T
    """[G, N] int64, the cache slot of each row; -1 for a row that is padding."""
    output_rows: T
    """[W] int64, the rows whose hidden states are wanted."""
    context_lens: T
    """[B] int32, as in `kernels.gpu.attention`."""
    query_starts: T
    """[B + 1] int32, as in `kernels.gpu.attention`."""
    tiles: T
    """[T, 2] int32, as in `kernels.gpu.query_tiles`."""
    rows: T
    """[N] int32, as in `kernels.gpu.work_list`."""
    chunks: T
    """[C, 3] int32, as in `kernels.gpu.work_list`."""
    block_tables: T
    """[G, B, M] int32, as in `kernels.gpu.attention`."""


def fields_of(shape: StepShape) -> StepFields[tuple[torch.dtype, tuple[int, ...]]]:
    """Return the dtype and shape of each field."""
    n, b = shape.num_rows, shape.num_sequences
    long, short = torch.int64, torch.int32
    return StepFields(
        token_ids=(long, (n,)),
        angles=(long, (n,)),
        slots=(long, (shape.num_tables, n)),
        output_rows=(long, (shape.num_outputs,)),
        context_lens=(short, (b,)),
        query_starts=(short, (b + 1,)),
        tiles=(short, (shape.num_tiles, 2)),
        rows=(short, (n,)),
        chunks=(short, (shape.num_chunks, 3)),
        block_tables=(short, (shape.num_tables, b, shape.num_blocks)),
    )


def num_bytes_of(shape: StepShape) -> int:
    """Return the bytes that the integers of a step of this shape take."""
    return sum(_aligned(_size(*field)) for field in fields_of(shape))


def views(shape: StepShape, buffer: Tensor) -> StepFields[Tensor]:
    """Return the fields as views of a uint8 buffer."""
    found, first = [], 0
    for dtype, of_field in fields_of(shape):
        size = _size(dtype, of_field)
        found.append(buffer[first : first + size].view(dtype).view(of_field))
        first += _aligned(size)
    return StepFields(*found)


class StagedIntegers(NamedTuple):
    """A step's integers: written on the host, then sent, then read on the device."""

    host: StepFields[NDArray[Any]]
    device: StepFields[Tensor]
    num_bytes: int


class StepBuffers:
    """Room for one step of at most num_bytes on the host, pinned, and on the device. It never moves."""

    def __init__(self, accelerator: Accelerator, num_bytes: int) -> None:
        self._compute = accelerator.compute
        self._host = accelerator.host_buffer(num_bytes)
        self._device = torch.zeros(num_bytes, dtype=torch.uint8, device=accelerator.device)
        self._sent: Event | None = None

    def stage(self, shape: StepShape) -> StagedIntegers:
        """Return places in the buffers for a step of this shape; code that captures a graph keeps its own."""
        num_bytes = num_bytes_of(shape)
        assert num_bytes <= self._host.numel(), f"{shape} takes {num_bytes} bytes of {self._host.numel()}"
        host = StepFields(*(view.numpy() for view in views(shape, self._host)))
        return StagedIntegers(host, views(shape, self._device), num_bytes)

    def begin(self) -> None:
        """Wait, before the host's side is written, until the last step's copy has read it, which rarely takes time."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self, staged: StagedIntegers) -> None:
        """Launch the copy of what was staged; the host's buffer is not written again before the copy is done."""
        self._device[: staged.num_bytes].copy_(self._host[: staged.num_bytes], non_blocking=True)
        self._sent = self._compute.record()


def _size(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * math.prod(shape)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
