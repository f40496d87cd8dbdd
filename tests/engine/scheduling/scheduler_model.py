"""A model in place of the model: the scheduler's tests know what every request must get, token for token.

`HashingRunner` writes to each cache slot what stands for keys and values: a hash of the token, of its tenant, of the
adapter that is in the sequence's slot of the pool at that step, of the rotation, of the block table, and of the entry
before it. It derives the next token from all that windows leave of the prefix, as read back through each block table:
one foreign, stale or missing entry changes all that follow. A sequence's state, in a model that keeps some, is the
entry of its last token: a step that begins with another one fails.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.lora.layer import LoadedAdapter
from engine.protocol import GenerateRequest, TokenLogprobs
from engine.sequence import Chunk, ChunkResult, ChunkStates, MatcherError, Plan, SampledToken, Sequence
from tests.engine.steps import ComputedStep

VOCAB = 50
EOS = 7
BROKEN = 13  # the token no grammar can take


Windows = tuple[int | None, ...]
"""The number of tokens that a position attends to, by block table, itself included; None: all."""
Prefix = Many[Many[bytes]]
"""The cache entries of a sequence's first tokens, by block table."""
SEES_ALL: Windows = (None,)


def entry(parent: bytes, token: int, tenant: str, adapter: str, is_long: bool, table: int) -> bytes:
    """Return the cache entry of a token, from its parent's entry.

    is_long: True if the sequence is long. table: the number of the block table.
    """
    return blake2b(msgspec.msgpack.encode((parent, token, tenant, adapter, is_long, table)), digest_size=8).digest()


def entries(request: GenerateRequest, token_ids: Many[int], switch: int, windows: Windows) -> Prefix:
    """Return the cache entries of a request's tokens. switch: as `Limits.length_switch`."""
    found: list[list[bytes]] = [[] for _ in windows]
    is_long = 0 < switch < len(token_ids)
    for table, column in enumerate(found):
        for token in token_ids:
            parent = column[-1] if column else b""
            column.append(entry(parent, token, request.tenant, request.adapter, is_long, table))
    return found


def visible_entries(prefix: Prefix, length: int, windows: Windows) -> Prefix:
    """Return the entries that the last of `length` positions attends to."""
    pairs = zip(prefix, windows, strict=True)
    return [column[0 if window is None else max(length - window, 0) : length] for column, window in pairs]


def next_token(prefix: Prefix, seed: int) -> int:
    digest = blake2b(msgspec.msgpack.encode((prefix, seed)), digest_size=4).digest()
    return int.from_bytes(digest, "big") % VOCAB


def rating(prefix: Prefix) -> TokenLogprobs:
    """Return fake log-probabilities for the token after a prefix."""
    return TokenLogprobs(-float(next_token(prefix, seed=0)), [], [])


def hidden_states(prefix: Prefix) -> NDArray[np.float32]:
    return np.array([len(prefix[0]), next_token(prefix, seed=1), 1], dtype=np.float32)


class CountingMatcher:
    """A grammar matcher whose text ends with the first token id divisible by ten."""

    expected_cost_s = 0.011  # a step has time for two

    def __init__(self) -> None:
        self.is_complete = False

    def fill_allowed(self, bitmask: NDArray[np.int32]) -> None:
        bitmask[:] = -1

    def accept(self, token_id: int) -> None:
        assert not self.is_complete and token_id != EOS
        if token_id == BROKEN:
            raise MatcherError("out of fuel")
        self.is_complete = token_id % 10 == 0


class ExpectedAnswer(msgspec.Struct, frozen=True):
    """The answer that one choice must get, as if it ran alone."""

    shown: list[int]
    produced: list[int]
    """The tokens shown and the token that stops the choice."""
    reason: str
    """The finish reason; "error" where the choice must fail."""


def expected_choice(
    request: GenerateRequest, seed: int, switch: int = 0, windows: Windows = SEES_ALL
) -> ExpectedAnswer:
    """Return the answer that a choice with this seed must get.

    switch: the length beyond which positions have another rotation; 0: none. windows: for each block table the tokens
    that a position sees.
    """
    sampling = request.sampling
    produced = list[int]()
    while len(produced) < sampling.max_tokens:
        token_ids = [*request.prompt_token_ids, *produced]
        known = entries(request, token_ids, switch, windows)
        token = next_token(visible_entries(known, len(token_ids), windows), seed)
        produced.append(token)
        is_early = len(produced) <= sampling.min_tokens
        ends = token == EOS and (sampling.grammar is not None or not (is_early or sampling.ignore_eos))
        if ends or (token in sampling.stop_token_ids and not is_early):
            return ExpectedAnswer(produced[:-1], produced, "stop")
        if sampling.grammar is not None and token == BROKEN:
            return ExpectedAnswer(produced[:-1], produced, "error")
        if sampling.grammar is not None and token % 10 == 0:
            return ExpectedAnswer(produced, produced, "stop")
    return ExpectedAnswer(produced, produced, "stop" if request.pooling else "length")


def expected_embedding(request: GenerateRequest, switch: int = 0, windows: Windows = SEES_ALL) -> NDArray[np.float32]:
    prompt = entries(request, request.prompt_token_ids, switch, windows)
    rows = [hidden_states(visible_entries(prompt, i + 1, windows)) for i in range(len(request.prompt_token_ids))]
    pooled = rows[-1] if request.pooling == "last" else np.sum(rows, axis=0)
    return pooled / np.linalg.norm(pooled)


def expected_prompt_logprobs(
    request: GenerateRequest, switch: int = 0, windows: Windows = SEES_ALL
) -> list[TokenLogprobs | None]:
    prompt = entries(request, request.prompt_token_ids, switch, windows)
    return [None, *(rating(visible_entries(prompt, i, windows)) for i in range(1, len(request.prompt_token_ids)))]


class HashingRunner:
    """A runner whose cache is a list of entries by slot.

    adapter_in: returns the adapter in a slot of the pool. The runner runs ahead: it knows the tokens of the step
    before, as a device would.
    """

    runs_ahead = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        adapter_in: Callable[[int], LoadedAdapter],
        windows: Windows = SEES_ALL,
    ) -> None:
        self._block_size = block_size
        self._windows = windows
        self._adapter_in = adapter_in
        self._cache = [b""] * (num_blocks * block_size)
        self._states: dict[int, bytes] = {}
        self._chosen: dict[Sequence, int] = {}

    def launches_fast(self, plan: Plan) -> bool:
        return True

    def launch(self, plan: Plan) -> ComputedStep:
        return ComputedStep(self.run(plan))

    def run(self, plan: Plan) -> list[ChunkResult]:
        for chunk in plan.chunks:
            token_ids = [self._chosen[chunk.sequence]] if chunk.follows else chunk.token_ids
            assert len(token_ids) == chunk.num_tokens
            slot = chunk.sequence.adapter_slot
            adapter = "" if slot is None else self._adapter_in(slot).key
            tenant, is_long = chunk.sequence.request.tenant, chunk.sequence.is_long
            for table in range(len(self._windows)):
                for position, token in enumerate(token_ids, chunk.first):
                    parent = self._cache[self._slot(chunk, position - 1, table)] if position else b""
                    written = entry(parent, token, tenant, adapter, is_long, table)
                    self._cache[self._slot(chunk, position, table)] = written
        for chunk in plan.chunks:
            if chunk.states is not None:
                self.go_on(chunk, chunk.states)
        results = [self._result(chunk) for chunk in plan.chunks]
        chunks_and_results = zip(plan.chunks, results, strict=True)
        self._chosen = {c.sequence: result.sampled[0].token_id for c, result in chunks_and_results if result.sampled}
        return results

    def go_on(self, chunk: Chunk, states: ChunkStates) -> None:
        """Compute a chunk from the state before it, and store the states after it."""
        before = b"" if states.source is None else self._states[states.source]
        assert before == (self._cache[self._slot(chunk, chunk.first - 1)] if chunk.first else b""), "another state"
        for position, slot in [*states.snapshots, (chunk.first + chunk.num_tokens, states.slot)]:
            self._states[slot] = self._cache[self._slot(chunk, position - 1)]

    def begin(self, plan: Plan) -> Callable[[], list[ChunkResult]]:
        """Begin a plan whose step pauses; return the function that computes it.

        Entries of a sequence that has ended meanwhile are wrong, and go to the blocks that it had.
        """
        tables = [[list(table) for table in chunk.sequence.block_tables] for chunk in plan.chunks]

        def run() -> list[ChunkResult]:
            results = iter(self.run(plan.alive))
            for chunk, blocks in zip(plan.chunks, tables, strict=True):
                if not chunk.sequence.is_alive:
                    for position in range(chunk.first, chunk.first + chunk.num_tokens):
                        for table in blocks:
                            slot = table[position // self._block_size] * self._block_size
                            self._cache[slot + position % self._block_size] = b"late"
            return [next(results) if chunk.sequence.is_alive else ChunkResult() for chunk in plan.chunks]

        return run

    def corrupt_cache(self, plan: Plan) -> None:
        """Overwrite the cache entries that a plan wrote by wrong ones."""
        for chunk in plan.chunks:
            for position in range(chunk.first, chunk.first + chunk.num_tokens):
                for table in range(len(self._windows)):
                    self._cache[self._slot(chunk, position, table)] = b"wrong"

    def _slot(self, chunk: Chunk, position: int, table: int = 0) -> int:
        block = chunk.sequence.block_tables[table][position // self._block_size]
        return block * self._block_size + position % self._block_size

    def _result(self, chunk: Chunk) -> ChunkResult:
        sequence, request = chunk.sequence, chunk.sequence.request
        end = chunk.first + chunk.num_tokens
        tables = range(len(self._windows))
        prefix = [[self._cache[self._slot(chunk, position, table)] for position in range(end)] for table in tables]
        result = ChunkResult()
        if chunk.samples and request.sampling.max_tokens:
            lengths = range(end - len(chunk.drafts), end + 1)
            result = ChunkResult(
                [
                    SampledToken(next_token(visible_entries(prefix, length, self._windows), sequence.seed))
                    for length in lengths
                ]
            )
        elif request.pooling == "mean" or (request.pooling == "last" and chunk.samples):
            first = chunk.first if request.pooling == "mean" else end - 1
            pooled = np.sum(
                [hidden_states(visible_entries(prefix, i + 1, self._windows)) for i in range(first, end)], axis=0
            )
            result = ChunkResult(pooled=pooled.astype(np.float32))
        if request.sampling.num_prompt_logprobs is not None and not sequence.index:
            rated = range(chunk.first + 1, min(end, sequence.num_prompt_tokens - 1) + 1)
            logprobs = (
                []
                if sequence.num_completion_tokens
                else [rating(visible_entries(prefix, i, self._windows)) for i in rated]
            )
            result = msgspec.structs.replace(result, prompt_logprobs=logprobs)
        return result
