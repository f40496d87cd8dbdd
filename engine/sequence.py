"""One request on its way through the engine: its tokens, what is computed, and the blocks it owns."""

from __future__ import annotations

import enum

import msgspec

from engine.protocol import GenerateRequest


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence(msgspec.Struct, eq=False):
    """Owned by the scheduler; the runner reads it and never writes.

    token_ids: prompt, then completion. num_computed: how many of them have their keys and values in the cache.
    block_table: the blocks that hold them, in order. seed: the request's, or one drawn for it.
    Times are of the monotonic clock, in seconds; 0 means not yet.
    """

    request: GenerateRequest
    token_ids: list[int]
    seed: int
    arrived_s: float
    status: Status = Status.WAITING
    num_computed: int = 0
    block_table: list[int] = msgspec.field(default_factory=list)
    adapter_slot: int | None = None
    adapter_load_bytes: int = 0
    started_s: float = 0.0
    first_token_s: float = 0.0
    num_preemptions: int = 0

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_completion_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        return len(self.token_ids) - self.num_computed


class Chunk(msgspec.Struct, frozen=True):
    """The part of a sequence that one step computes: token_ids[first : first + num_tokens].

    samples: the chunk reaches the sequence's end, so the step chooses its next token.
    """

    sequence: Sequence
    first: int
    num_tokens: int

    @property
    def samples(self) -> bool:
        return self.first + self.num_tokens == len(self.sequence.token_ids)


class Plan(msgspec.Struct, frozen=True):
    """One step. decodes: one token each over a computed context, those with an adapter first; prefills: the rest."""

    decodes: list[Chunk]
    prefills: list[Chunk]

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prefills)

    @property
    def chunks(self) -> list[Chunk]:
        return self.decodes + self.prefills

    @property
    def num_tokens(self) -> int:
        return len(self.decodes) + sum(chunk.num_tokens for chunk in self.prefills)
