"""The engine's logits against the forward pass by its definition in fp32, adapters merged into its matrices.

Prompts in chunks, decodes, the base and two adapters in one batch, a prefix that is cached.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from engine.bench.report import Row
from engine.bench.shape.rig import Rig, decode_plan
from engine.bench.shape.weights import RandomAdapters
from engine.models.dense import DenseModel
from engine.sequence import Chunk, Plan, Sequence

# |ours - theirs| / |theirs| over the logits of a row. A 16-bit engine rounds every layer's sums, the reference none; a
# wrong row, position or adapter gives about 1.
LIMITS = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
NUM_DECODES = 2


def check_logits(rig: Rig, adapters: RandomAdapters) -> Iterator[Row]:
    """Yield a row for each sequence: the largest error of its logits, and whether it is within the limit."""
    rnd = random.Random(1)  # noqa: S311
    names = ["", "0", "1"]
    prompts = [[rnd.randrange(rig.model.vocab_size) for _ in range(length)] for length in (7, 3, 5)]
    sequences = [rig.start(prompt, 8, adapter=name) for prompt, name in zip(prompts, names, strict=True)]
    ours = _logits(rig, sequences)
    for name, sequence, rows in zip(names, sequences, ours, strict=True):
        reference = DenseModel(rig.model, rig.tensors.take, adapters.load(name) if name else None)
        theirs = reference.logits(sequence.token_ids)[-len(rows) :]
        error = max(_error(row, expected) for row, expected in zip(rows, theirs, strict=True))
        limit = LIMITS[rig.dtype]
        yield {"check": f"logits, adapter {name or 'none'}", "error": error, "limit": limit, "right": error <= limit}
    rig.end(sequences)


def _logits(rig: Rig, sequences: list[Sequence]) -> list[list[Tensor]]:
    """Return the logits of each sequence's last position after its prompt, and of each token decoded after that."""
    found: list[list[Tensor]] = [[] for _ in sequences]
    half = [len(sequence.token_ids) // 2 for sequence in sequences]
    rig.logits(Plan([], [Chunk.of(s, 0, middle) for s, middle in zip(sequences, half, strict=True)]), [0])
    rest = [Chunk.of(s, middle, len(s.token_ids) - middle) for s, middle in zip(sequences, half, strict=True)]
    last_rows = torch.tensor([chunk.num_tokens for chunk in rest]).cumsum(0) - 1
    _take(found, sequences, rig.logits(Plan([], rest), last_rows.tolist()), sequences)
    for _ in range(NUM_DECODES):
        plan = decode_plan(sequences)
        logits = rig.logits(plan, list(range(len(sequences))))
        _take(found, sequences, logits, [chunk.sequence for chunk in plan.decodes])
    for sequence in sequences:
        del sequence.token_ids[-1]  # nobody computed what follows it
    return found


def _take(found: list[list[Tensor]], sequences: list[Sequence], logits: Tensor, order: list[Sequence]) -> None:
    """Store a step's logits by sequence, and append each row's likeliest token to the sequence of the row.

    found: the rows so far of each of `sequences`. order: the sequence of each row of logits.
    """
    for row, sequence in zip(logits, order, strict=True):
        found[next(i for i, each in enumerate(sequences) if each is sequence)].append(row.clone())
        sequence.num_computed = len(sequence.token_ids)
        sequence.token_ids.append(int(row.argmax()))


def _error(ours: Tensor, theirs: Tensor) -> float:
    error = float((ours - theirs).norm() / theirs.norm())
    return error if error == error else float("inf")
