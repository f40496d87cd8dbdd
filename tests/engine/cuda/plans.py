"""Plans of steps, made by hand for tests of the GPU's path."""

from __future__ import annotations

from engine.protocol import GenerateRequest, SamplingParams
from engine.sequence import Chunk, Sequence


def sequence(token_ids: list[int], block_table: list[int], *, num_prompt: int = 1, slot: int | None = None) -> Sequence:
    request = GenerateRequest("r", token_ids[:num_prompt], SamplingParams(64, temperature=0.0), "t")
    made = Sequence(request, token_ids, 0, 0.0)
    made.block_tables, made.adapter_slot = [block_table], slot
    return made


def decode(of: Sequence, drafts: tuple[int, ...] = ()) -> Chunk:
    return Chunk.of(of, of.length - 1, 1 + len(drafts), drafts)
