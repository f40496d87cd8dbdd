"""One request on its way through the engine: its tokens, what is computed, and the blocks it owns."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.protocol import GenerateRequest, TokenLogprobs


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class MatcherError(Exception):
    """A matcher cannot go on; the message says why. It ends its request and no other."""


class Matcher(Protocol):
    """A grammar and where one completion stands in it; `engine.grammar` makes them."""

    def fill_allowed(self, bitmask: NDArray[np.int32]) -> None:
        """Set bit t of bitmask [ceil(V / 32)] where token t may come next, the end-of-sequence ids included."""

    def accept(self, token_id: int) -> None:
        """Go on by a token that was allowed. Raises MatcherError."""

    @property
    def is_complete(self) -> bool:
        """Nothing but the end may follow."""


class Sequence(msgspec.Struct, eq=False):
    """One choice of a request. Owned by the scheduler; the runner reads it and never writes.

    token_ids: prompt, then completion. num_computed: how many of them have their keys and values in the cache.
    block_table: the blocks that hold them, in order. seed: the request's plus index, or one drawn for it.
    matcher: what holds the completion to the request's grammar, once that is compiled.
    Times are of the monotonic clock, in seconds; 0 means not yet.
    """

    request: GenerateRequest
    token_ids: list[int]
    seed: int
    arrived_s: float
    index: int = 0
    matcher: Matcher | None = None
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
    """The part of a sequence that one step computes: num_tokens tokens from position first, drafts the last of them.

    samples: the chunk reaches the sequence's end, so the step chooses its next token. drafts: guesses of the tokens
    that follow the sequence's end, computed along with it; only in decodes.
    """

    sequence: Sequence
    first: int
    num_tokens: int
    drafts: tuple[int, ...] = ()

    @property
    def samples(self) -> bool:
        return self.first + self.num_tokens == len(self.sequence.token_ids) + len(self.drafts)

    @property
    def token_ids(self) -> list[int]:
        """Of its rows, in order."""
        return [*self.sequence.token_ids[self.first : self.first + self.num_tokens - len(self.drafts)], *self.drafts]


class Sampled(msgspec.Struct, frozen=True):
    """The token chosen after one position. finite: False when its logits were no numbers to choose by."""

    token_id: int
    finite: bool = True
    logprobs: TokenLogprobs | None = None


class ChunkResult(msgspec.Struct, frozen=True):
    """What a step computed for one chunk.

    sampled: empty if the chunk does not sample; else the token after the sequence's last one, then one after each
    draft, given that this draft and those before it are right. A draft that is not what was sampled before it is wrong,
    and everything sampled after it is void.
    prompt_logprobs: of the chunk's prompt tokens after the prompt's first, where the request asks for them.
    pooled: fp32 [hidden], this chunk's part of the pooled hidden states: the sum of its rows for `mean`, the last
    token's row for `last`.
    """

    sampled: list[Sampled] = []
    prompt_logprobs: list[TokenLogprobs] = []
    pooled: NDArray[np.float32] | None = None


class Plan(msgspec.Struct, frozen=True):
    """One step. decodes: a token each (and its drafts) over a computed context, those with an adapter first; prefills:
    the rest."""

    decodes: list[Chunk]
    prefills: list[Chunk]

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prefills)

    @property
    def chunks(self) -> list[Chunk]:
        return self.decodes + self.prefills

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)
