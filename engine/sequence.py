"""The data between the scheduler and the runner: one choice's tokens and state, a step's plan, a step's results.

No torch, and no behavior but what follows from the fields.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.protocol import GenerateRequest, TokenLogprobs


class Status(enum.Enum):
    """The state of a sequence between its arrival and its end."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class MatcherError(Exception):
    """The error for a matcher that cannot go on; the message has the reason.

    It ends the request of the matcher and no other.
    """


class Matcher(Protocol):
    """A grammar with the place of one completion in it; `engine.grammar` makes them."""

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
    """Guesses the tokens that follow one sequence: those of `engine.scheduling.drafter`, or a test's stand-in."""

    def propose(self, token_ids: list[int], max_tokens: int) -> tuple[int, ...]:
        """Propose up to max_tokens tokens that may follow token_ids, which only ever grows between calls."""


class Sequence(msgspec.Struct, eq=False):
    """One choice of a request. Owned by the scheduler; the runner reads it and never writes.

    Times are of the monotonic clock, in seconds; 0 means not yet.
    """

    request: GenerateRequest
    token_ids: list[int]
    """The prompt, then the completion, as far as they are known."""
    seed: int
    """The seed of the draws: the request's own seed, or one drawn for the request, plus `index`."""
    arrived_s: float
    index: int = 0
    """The index of the choice in its request."""
    matcher: Matcher | None = None
    """The matcher that enforces the request's grammar on the completion, once it is compiled."""
    drafter: Drafter | None = None
    """Guesses tokens, where the sequence speculates."""
    status: Status = Status.WAITING
    num_pending: int = 0
    """The number of further tokens that are chosen by steps that were launched and whose results were not taken yet."""
    num_computed: int = 0
    """The number of tokens, pending ones included, whose keys and values are in the cache, or will be before any step
    reads them that is launched from now on."""
    block_tables: list[list[int]] = msgspec.field(default_factory=list)
    """For each table of the cache's layout the blocks of computed tokens, in order, and of those that the next step
    adds. Empty for a sequence that has no memory."""
    num_past: list[int] = msgspec.field(default_factory=list)
    """For each table the number of blocks at its beginning that no window reaches any more. They no longer belong to
    the sequence: their numbers stay in the table, and what a step reads by these has no effect."""
    block_hashes: list[bytes] = msgspec.field(default_factory=list)
    """The identities of the sequence's full blocks (see `block_hashes`), as far as they were needed."""
    is_long: bool = False
    """True: the sequence is longer than `Limits.length_switch`, so that all of its positions are rotated by other
    angles."""
    num_registered: int = 0
    """The number of the sequence's blocks that the prefix cache has seen."""
    state_slot: int | None = None
    """The slot of the sequence's states, in models that keep some (`engine.scheduling.cache.state_slots`)."""
    state_source: tuple[int, int, bytes] | None = None
    """The snapshot with which the sequence began: the number of tokens before it, its slot, and its identity.

    None once the results of the sequence's first step are taken.
    """
    snapshots: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """The snapshots that nobody else knows of yet, in order: the number of tokens before each, and its slot."""
    adapter_slot: int | None = None
    """The number of the adapter's slot on the device; None for the base, and before the sequence starts."""
    adapter_load_bytes: int = 0
    """Bytes of the adapter if it was loaded for this sequence, else 0."""
    prompt_logprobs: list[TokenLogprobs] = msgspec.field(default_factory=list)
    """The prompt's log-probabilities, gathered over its chunks (see `ChunkResult`) until they are sent."""
    pooled: NDArray[np.float32] | None = None
    """The pooled hidden states, gathered over the prompt's chunks (see `ChunkResult`) until they are sent."""
    num_draft_tokens: int = 0
    """The number of tokens that were guessed."""
    num_accepted_drafts: int = 0
    """The number of guesses that became part of the completion."""
    num_kept_tokens: int | None = None
    """Set by an abort: the number of completion tokens that count; None counts all."""
    num_given_up: int = 0
    """The number of computed tokens that the sequence lost when it last gave its blocks up; 0 once it has started
    again."""
    adapter_wait_since_s: float = 0.0
    """The time at which the sequence was first passed over at admission because its adapter was not resident."""
    started_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def request_id(self) -> str:
        """The id of the request."""
        return self.request.request_id

    @property
    def is_batch(self) -> bool:
        """Tell whether the sequence's request is of the batch band."""
        return self.request.batch is not None

    @property
    def turn(self) -> tuple[float, float]:
        """The sort key of the sequence among the waiting ones of its tenant.

        In the batch band, first the moment from which the sequence's work cannot rest any more, then the arrival, which
        is that moment for work without a deadline: others may not come before it for ever.
        """
        if self.request.batch is None:
            return 0.0, self.arrived_s
        slack_s = self.request.batch.slack_s
        return self.arrived_s + (slack_s or 0.0), self.arrived_s

    @property
    def num_blocks(self) -> int:
        """The number of blocks that the sequence has, in all tables."""
        return sum(map(len, self.block_tables)) - sum(self.num_past)

    @property
    def num_prompt_tokens(self) -> int:
        """The number of the prompt's tokens."""
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
        """The number of tokens that have to be computed before the next one can be chosen."""
        return self.length - self.num_computed

    @property
    def is_alive(self) -> bool:
        """True until the choice has finished."""
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

    def become_long(self) -> None:
        """Have all tokens computed again, with the rotation of long sequences."""
        self.is_long = True
        self.block_hashes = []

    def forget_prompt(self) -> None:
        """Forget the log-probabilities and the embedding gathered from a prompt that will be computed again."""
        self.prompt_logprobs = []
        self.pooled = None


class ChunkStates(msgspec.Struct, frozen=True):
    """The states between which a chunk leads, in models that keep some."""

    source: int | None
    """The slot with the states before the chunk; None: zeros."""
    slot: int
    """The slot that holds the states after the chunk."""
    snapshots: tuple[tuple[int, int], ...] = ()
    """The numbers of the sequence's tokens within the chunk after which a snapshot is taken, and its slot."""

    @classmethod
    def of(cls, sequence: Sequence, slot: int, first: int, last: int) -> ChunkStates:
        """Return the states of a sequence for the tokens from first to last.

        slot: the sequence's own slot.
        """
        source: int | None = slot if first else None
        if sequence.state_source is not None and sequence.state_source[0] == first:
            source = sequence.state_source[1]
        return cls(source, slot, tuple(each for each in sequence.snapshots if first < each[0] <= last))


class Chunk(msgspec.Struct, frozen=True):
    """The part of a sequence that one step computes."""

    sequence: Sequence
    first: int
    """The position of the first token."""
    num_tokens: int
    """The number of tokens, of which drafts are the last."""
    drafts: tuple[int, ...]
    """Guesses of the tokens that follow the sequence's end, computed along with it; only in decodes, and only of
    sequences without a matcher."""
    samples: bool
    """True: the chunk reaches the sequence's end, so the step chooses its next token."""
    follows: bool
    """True: the chunk's only token is pending, chosen by the step that is launched before this one."""
    states: ChunkStates | None = None
    """The states between which the chunk leads; None in models that keep no states."""

    @classmethod
    def of(cls, sequence: Sequence, first: int, num_tokens: int, drafts: tuple[int, ...] = ()) -> Chunk:
        """Return a chunk of the sequence as it is now: the sequence goes on while the chunk is computed.

        drafts: the guesses that the chunk ends with.
        """
        samples = first + num_tokens == sequence.length + len(drafts)
        follows = first >= len(sequence.token_ids)
        assert not follows or (num_tokens == sequence.num_pending == 1), "no more than one token is fed by the device"
        slot = sequence.state_slot
        states = None if slot is None else ChunkStates.of(sequence, slot, first, first + num_tokens)
        return cls(sequence, first, num_tokens, drafts, samples, follows, states)

    @property
    def token_ids(self) -> list[int]:
        """The token ids of the chunk's rows, in order, unless the chunk follows."""
        return [*self.sequence.token_ids[self.first : self.first + self.num_tokens - len(self.drafts)], *self.drafts]


class SampledToken(msgspec.Struct, frozen=True):
    """The token chosen after one position."""

    token_id: int
    finite: bool = True
    """False if the token's logits were NaN or infinite."""
    logprobs: TokenLogprobs | None = None


class ChunkResult(msgspec.Struct, frozen=True):
    """The results of a step for one chunk."""

    sampled: list[SampledToken] = []
    """The sampled tokens: the one after the sequence's last token, then one after each draft.

    The one after a draft holds only if this draft and those before it are right: a draft that differs from the token
    sampled before it is wrong, and everything sampled after it is void. Empty if the chunk does not sample or
    max_tokens is 0.
    """
    prompt_logprobs: list[TokenLogprobs] = []
    """The log probabilities of the prompt's tokens that the chunk's rows predict, if the request asks for them: at
    positions first + 1 to first + num_tokens, so that the chunks of a prompt give all of it but its first token. Only
    choice 0 gives them, and only before its first completion token."""
    pooled: NDArray[np.float32] | None = None
    """fp32 [hidden], this chunk's part of the pooled hidden states: the sum of its rows for `mean`, the row of the
    prompt's last token for `last`, None where the chunk has no part in it."""


class Plan(msgspec.Struct, frozen=True):
    """The chunks of one step."""

    decodes: list[Chunk]
    """Chunks of one token each (and its drafts) over a computed context, those with an adapter first."""
    prefills: list[Chunk]
    """All chunks that are not decodes."""

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prefills)

    @property
    def is_batch(self) -> bool:
        """True if all chunks are batch work."""
        return all(chunk.sequence.is_batch for chunk in self.chunks)

    @property
    def alive(self) -> Plan:
        """The plan without the sequences that have ended since the plan was made."""
        decodes, prefills = ([c for c in chunks if c.sequence.is_alive] for chunks in (self.decodes, self.prefills))
        return Plan(decodes, prefills)

    @property
    def chunks(self) -> list[Chunk]:
        """All chunks of the step, decodes first."""
        return self.decodes + self.prefills

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the step computes."""
        return sum(chunk.num_tokens for chunk in self.chunks)
