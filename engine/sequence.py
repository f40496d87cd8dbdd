"""What the scheduler and the runner tell each other: one choice's tokens and state, a step's plan, a step's results.

No torch, and no behavior but what follows from the fields.
"""

from __future__ import annotations

import enum
from math import inf
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
        """Go on by a token that was allowed.

        Raises MatcherError: when the matcher has failed.
        """

    @property
    def is_complete(self) -> bool:
        """True when nothing but the end may follow."""

    @property
    def expected_cost_s(self) -> float:
        """The time in seconds that the matcher's next token is expected to take of the stepping thread."""


class Drafter(Protocol):
    """Guesses what follows one sequence; those of `engine.scheduling.drafter`, or a test's stand-in."""

    def propose(self, token_ids: list[int], max_tokens: int) -> tuple[int, ...]:
        """Propose up to max_tokens tokens that may follow token_ids, which only ever grows between calls."""


class Sequence(msgspec.Struct, eq=False):
    """One choice of a request. Owned by the scheduler; the runner reads it and never writes.

    token_ids: prompt, then completion, as far as they are known. num_pending: how many more are chosen by steps that
    were launched and whose results were not taken yet. num_computed: of how many tokens, pending ones included, keys
    and values are in the cache, or will be before any step reads them that is launched from now on.
    block_table: the blocks that hold them, in order, and room for what the next step adds. block_hashes: identities of
    its full blocks (see `block_hashes`), as far as they were needed; num_registered: how many of its blocks the
    prefix cache has seen. seed: the request's plus index, or one drawn for it plus index.
    matcher: what holds the completion to the request's grammar, once that is compiled. drafter: where it speculates.
    prompt_logprobs, pooled: gathered over the chunks of the prompt (see `ChunkResult`) until they are sent.
    num_kept_tokens: set by an abort, how many completion tokens count; None counts all.
    num_given_up: how many tokens were computed when it gave its blocks up last, until it starts again.
    Times are of the monotonic clock, in seconds; 0 means not yet. adapter_wait_since_s: when it was first passed over
    at admission because its adapter was not resident.
    """

    request: GenerateRequest
    token_ids: list[int]
    seed: int
    arrived_s: float
    index: int = 0
    matcher: Matcher | None = None
    drafter: Drafter | None = None
    status: Status = Status.WAITING
    num_pending: int = 0
    num_computed: int = 0
    block_table: list[int] = msgspec.field(default_factory=list)
    block_hashes: list[bytes] = msgspec.field(default_factory=list)
    num_registered: int = 0
    adapter_slot: int | None = None
    adapter_load_bytes: int = 0
    prompt_logprobs: list[TokenLogprobs] = msgspec.field(default_factory=list)
    pooled: NDArray[np.float32] | None = None
    num_draft_tokens: int = 0
    num_accepted_drafts: int = 0
    num_kept_tokens: int | None = None
    num_given_up: int = 0
    adapter_wait_since_s: float = 0.0
    started_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_batch(self) -> bool:
        """Tell whether its request is of the batch band."""
        return self.request.batch is not None

    @property
    def turn(self) -> tuple[float, float]:
        """The sort key of the sequence among the waiting ones of its tenant.

        In the batch band, first the moment from which the sequence's work cannot rest any more, if it has one, then the
        arrival.
        """
        if self.request.batch is None:
            return 0.0, self.arrived_s
        slack_s = self.request.batch.slack_s
        return inf if slack_s is None else self.arrived_s + slack_s, self.arrived_s

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_completion_tokens(self) -> int:
        """The number of completion tokens that are known."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def length(self) -> int:
        """The length in tokens, pending ones included."""
        return len(self.token_ids) + self.num_pending

    @property
    def max_length(self) -> int:
        """The length in tokens, with all that are to come."""
        return self.num_prompt_tokens + self.request.sampling.max_tokens

    @property
    def num_uncomputed(self) -> int:
        return self.length - self.num_computed

    @property
    def is_alive(self) -> bool:
        return self.status is not Status.FINISHED

    @property
    def is_decoding(self) -> bool:
        """True when all is computed but the last token of the completion."""
        return self.num_computed == self.length - 1 >= len(self.request.prompt_token_ids)

    @property
    def needs_no_step(self) -> bool:
        """True when every step that the sequence takes was launched."""
        is_full = self.length - self.num_prompt_tokens == self.request.sampling.max_tokens
        return not self.num_uncomputed or (is_full and self.num_pending > 0)

    @property
    def may_reuse_prefix(self) -> bool:
        """True when computed tokens may be skipped: not while every position of the prompt is asked for."""
        asks_logprobs = self.request.sampling.num_prompt_logprobs is not None and not self.index
        return self.request.pooling != "mean" and (not asks_logprobs or self.num_completion_tokens > 0)

    @property
    def is_chosen_by_text(self) -> bool:
        """True when all tokens must be known before the next is chosen: a grammar or penalties depend on them."""
        sampling = self.request.sampling
        has_penalties = sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0
        return sampling.grammar is not None or bool(has_penalties)

    def forget_prompt(self) -> None:
        """Forget what was gathered of a prompt that will be computed again."""
        self.prompt_logprobs = []
        self.pooled = None


class Chunk(msgspec.Struct, frozen=True):
    """The part of a sequence that one step computes: num_tokens tokens from position first, drafts the last of them.

    drafts: guesses of the tokens that follow the sequence's end, computed along with it; only in decodes, and only of
    sequences without a matcher. samples: the chunk reaches the sequence's end, so the step chooses its next token.
    follows: its one token is pending, chosen by the step that is launched before this one.
    """

    sequence: Sequence
    first: int
    num_tokens: int
    drafts: tuple[int, ...]
    samples: bool
    follows: bool

    @classmethod
    def of(cls, sequence: Sequence, first: int, num_tokens: int, drafts: tuple[int, ...] = ()) -> Chunk:
        """Return a chunk of the sequence as it is now: the sequence goes on while the chunk is computed."""
        samples = first + num_tokens == sequence.length + len(drafts)
        follows = first >= len(sequence.token_ids)
        assert not follows or (num_tokens == sequence.num_pending == 1), "no more than one token is fed by the device"
        return cls(sequence, first, num_tokens, drafts, samples, follows)

    @property
    def token_ids(self) -> list[int]:
        """The token ids of the chunk's rows, in order, unless the chunk follows."""
        return [*self.sequence.token_ids[self.first : self.first + self.num_tokens - len(self.drafts)], *self.drafts]


class Sampled(msgspec.Struct, frozen=True):
    """The token chosen after one position. finite: False when its logits were no numbers to choose by."""

    token_id: int
    finite: bool = True
    logprobs: TokenLogprobs | None = None


class ChunkResult(msgspec.Struct, frozen=True):
    """What a step computed for one chunk.

    sampled: empty if the chunk does not sample or max_tokens is 0; else the token after the sequence's last one, then
    one after each draft, given that this draft and those before it are right. A draft that is not what was sampled
    before it is wrong, and everything sampled after it is void.
    prompt_logprobs: where the request asks for them, of the prompt's tokens that the chunk's rows predict: those at
    positions first + 1 to first + num_tokens, so that the chunks of a prompt give all of it but its first token.
    Only choice 0 gives them, and only before its first completion token.
    pooled: fp32 [hidden], this chunk's part of the pooled hidden states: the sum of its rows for `mean`, the row of the
    prompt's last token for `last`, None where the chunk has no part in it.
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
    def alive(self) -> Plan:
        """The plan without the sequences that have ended since it was made."""
        decodes, prefills = ([c for c in chunks if c.sequence.is_alive] for chunks in (self.decodes, self.prefills))
        return Plan(decodes, prefills)

    @property
    def chunks(self) -> list[Chunk]:
        return self.decodes + self.prefills

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)
