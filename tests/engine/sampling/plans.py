"""A real ModelRunner whose plans are made by hand, to test a runner without a scheduler's decisions."""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import pairwise
from pathlib import Path

import torch

from adapters.store import AdapterStore
from engine.config import load_model_config
from engine.cpu.attention import PagedCache
from engine.cpu.path import CpuPath
from engine.cpu.tables import AdapterTables
from engine.lora.loader import AdapterLoader, HostTier
from engine.model_runner import ModelRunner
from engine.models.checkpoint import load_weights
from engine.models.decoder import Decoder
from engine.protocol import GenerateRequest
from engine.sampling.sampler import Sampler
from engine.sequence import Chunk, ChunkResult, Plan, Sequence
from engine.transfers import HostTransfers

BLOCK_SIZE = 16
NUM_BLOCKS = 1024
MAX_MODEL_LEN = 512


class HandMadePlans:
    """A runner in fp32 on the CPU, with steps planned by the test.

    A sequence gets all the blocks it will ever need when it starts; slot i holds adapter i.
    """

    def __init__(self, model_dir: Path, store_dir: Path, digests: Many[str] = ()) -> None:
        cpu = torch.device("cpu")
        model = load_model_config(model_dir)
        decoder = Decoder(model, load_weights(model_dir, model, torch.float32, cpu))
        loader = AdapterLoader(AdapterStore(store_dir), model, torch.float32, host=HostTier(1 << 30))
        self._slots = {digest: slot for slot, digest in enumerate(digests)}
        loaded = [loader.load(digest) for digest in digests]
        tables = AdapterTables(max(len(digests), 1), decoder.dtype, max_bytes=1 << 30)
        cache = PagedCache(model, NUM_BLOCKS * BLOCK_SIZE, MAX_MODEL_LEN, decoder.dtype)
        path = CpuPath(decoder, cache, BLOCK_SIZE, loaded.__getitem__, tables)
        self._runner = ModelRunner(path, Sampler(model.eos_token_ids), HostTransfers())
        self._free = list(range(1, NUM_BLOCKS))

    def start(self, request: GenerateRequest, index: int = 0) -> Sequence:
        sequence = Sequence(request, list(request.prompt_token_ids), (request.sampling.seed or 0) + index, 0.0, index)
        sequence.adapter_slot = self._slots[request.adapter] if request.adapter else None
        num_tokens = sequence.num_prompt_tokens + request.sampling.max_tokens
        sequence.block_tables = [[self._free.pop() for _ in range(-(-num_tokens // BLOCK_SIZE))]]
        return sequence

    def step(self, decodes: Many[Chunk] = (), prefills: Many[Chunk] = ()) -> list[ChunkResult]:
        """Compute a step of these chunks, and accept right drafts. Return the results in the order of the arguments."""
        ordered = sorted(decodes, key=lambda chunk: not chunk.sequence.request.adapter)
        plan = Plan(ordered, list(prefills))
        by_sequence = {id(c.sequence): result for c, result in zip(plan.chunks, self._runner.run(plan), strict=True)}
        results = [by_sequence[id(chunk.sequence)] for chunk in (*decodes, *prefills)]
        for chunk, result in zip((*decodes, *prefills), results, strict=True):
            _commit(chunk, result)
        return results

    def prefill(self, sequence: Sequence, borders: Many[int] = ()) -> list[ChunkResult]:
        """Compute all uncomputed tokens of one sequence, in chunks that are cut before each of the borders."""
        cuts = [sequence.num_computed, *borders, len(sequence.token_ids)]
        chunks = [(first, last - first) for first, last in pairwise(cuts)]
        return [result for first, count in chunks for result in self.step(prefills=[Chunk.of(sequence, first, count)])]


def decode(sequence: Sequence, drafts: tuple[int, ...] = ()) -> Chunk:
    return Chunk.of(sequence, sequence.num_computed, 1 + len(drafts), drafts)


def _commit(chunk: Chunk, result: ChunkResult) -> None:
    """Append the sampled tokens to a sequence, up to the first rejected draft."""
    sequence = chunk.sequence
    num_right = 0
    for draft, sampled in zip(chunk.drafts, result.sampled, strict=False):
        if draft != sampled.token_id:
            break
        num_right += 1
    sequence.num_computed += chunk.num_tokens - len(chunk.drafts) + num_right
    sequence.token_ids += [sampled.token_id for sampled in result.sampled[: num_right + 1]]
