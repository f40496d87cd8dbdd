"""Gives the batch band its part of each step: what interactive requests leave, and a small share in any case.

Interactive requests are planned as if there were no batch work. The rest of the step's rows and tokens goes to batch
work, as far as the step's time allows (`engine.scheduling.step_time`). A sequence of the band that gets no part in a
step sits out: it keeps its blocks, and goes on in any later step.

- Memory. Batch work takes blocks that hold nothing recent of interactive requests, beyond half of all blocks, which it
  may hold whatever these have left in the cache. It leaves as many free as these used at most in the last minutes.
  Blocks that interactive requests lack are taken from batch work, from the newest sequence first: the sequence keeps
  its tokens, its computed blocks stay in the prefix cache while there is room, and the rest is computed again.
- Share. The band gets first the service that it is owed (`engine.scheduling.guaranteed_share`), at the cost of
  interactive requests: places in the step, tokens, time, and blocks that nobody uses. Only requests of at most a
  SMALL-th of all blocks are covered, and adapters only as far as they find a slot. The oldest of those that run keep
  their blocks, a SMALL-th of all, while interactive requests run.
- Order. The tenants' counters in the band decide which request goes first and is admitted; within a tenant the
  deadlines do.
- Pauses. If steps of batch work can pause, one may be computed in parts over several others. Meanwhile its sequences
  keep all they have, and no more batch work is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many

import msgspec

from engine.scheduling.admission import Admission
from engine.scheduling.band import Band
from engine.scheduling.block_manager import BlockManager
from engine.scheduling.fairness import DECODE_COST, QUANTUM_TOKENS
from engine.scheduling.guaranteed_share import GuaranteedShare
from engine.scheduling.limits import Limits
from engine.scheduling.matcher_time import MatcherTime
from engine.scheduling.running_set import AdapterSlots
from engine.scheduling.step_time import StepLoad, StepRoom, StepTime
from engine.scheduling.totals import Totals
from engine.sequence import Chunk, Plan, Sequence, Status

HALF = 2
"""The divisor of all blocks that gives the number that batch work may hold even where they held content of recent
interactive requests. With less, busy minutes would leave it nothing: every prompt stays in the cache."""

SMALL = 8
"""The divisor that bounds the guaranteed share: it covers requests of at most one SMALL-th of all blocks.

It has at most one SMALL-th of the places of a step, or three times the share if that is more.
"""

OWED_TOKENS = 16
"""The tokens of a part of a prompt that is computed only because batch work is owed service; single tokens would cost a
step each."""

AHEAD_BLOCKS = 4
"""Blocks that stay free for each sequence of the band that runs, as far as it has more to come."""

WANTED_AHEAD = 8
"""Choices that the engine wants beyond twice those computed at once and those ended in two seconds."""


class BatchWork:
    """Plans batch work. The scheduler calls `begin_step`, `take_owed`, `fill` and `end_step` in this order."""

    def __init__(
        self,
        band: Band,
        interactive: Band,
        admission: Admission,
        blocks: BlockManager,
        adapters: AdapterSlots,
        limits: Limits,
        matcher_time: MatcherTime,
        totals: Totals,
        note_start: Callable[[Sequence], None],
    ) -> None:
        """Set up the planning of batch work. note_start: called with each sequence that starts for the first time."""
        self._band = band
        self._interactive = interactive
        self._admission = admission
        self._blocks = blocks
        self._adapters = adapters
        self._limits = limits
        self._matcher_time = matcher_time
        self._totals = totals
        self._note_start = note_start
        self._share = GuaranteedShare(limits.batch.share)
        self._small_room = blocks.num_blocks // SMALL * blocks.block_size  # as in `BlockManager.max_room`
        self._planned: dict[int, Chunk] = {}  # by the id of the sequence
        self._paused: frozenset[int] = frozenset()  # the ids of sequences whose step pauses
        self._has_given_up = False
        self._must_wait = False
        self._may_grow = True
        self._left_owed = 0.0
        self._max_held_places = max(1, int(limits.max_num_seqs * max(1 / SMALL, 3 * limits.batch.share)))
        self._peaks = _Peaks()
        self._peaks_before = _Peaks()  # of the minute before
        self.step_time = StepTime()
        self.num_held_places = 0
        """Places of this step that interactive requests may not take."""
        self.num_held_blocks = 0
        """Blocks that have to stay free when an interactive request is admitted."""
        self.holds_slot = False
        """True where a slot for states has to stay free as well."""

    @property
    def num_rows(self) -> int:
        """The most sequences of the band that a step of the last minutes computed.

        A step may compute as many in the next minute, if interactive requests leave it to them.
        """
        return max(self._peaks.num_rows, self._peaks_before.num_rows)

    def age(self) -> None:
        """Record that a minute has passed."""
        self._peaks_before, self._peaks = self._peaks, _Peaks()

    @property
    def delays_interactive(self) -> bool:
        """Tell whether the end of the pausing step gives an interactive request the memory that it lacks."""
        return self._must_wait and bool(self._paused)

    @property
    def is_in_the_way(self) -> bool:
        """Tell whether interactive requests wait for memory that batch sequences hold until their step ends."""
        return self._must_wait

    def begin_step(self, paused: Plan | None = None) -> None:
        """Begin the plan of a step: leave slots of adapters that interactive requests wait for.

        paused: the batch work whose step pauses. Then `take_owed` and `fill` are left out.
        """
        self._planned = {}
        self._paused = frozenset() if paused is None else frozenset(id(chunk.sequence) for chunk in paused.chunks)
        self._has_given_up = self._must_wait = False
        self._may_grow = True
        self.num_held_places = self.num_held_blocks = 0
        self.holds_slot = False
        if not self._band.num_alive:
            return
        num_used = sum(sequence.num_blocks for sequence in self._interactive.running)
        self._peaks.num_blocks = max(self._peaks.num_blocks, num_used)
        for sequence in list(self._band.running):
            slot = sequence.adapter_slot
            if slot is None or not self._adapters.is_reclaimed(slot):
                continue
            if id(sequence) in self._paused:
                self._must_wait = True
            elif not sequence.num_pending:
                self._give_up(sequence)

    def reclaim(self, num_blocks: int, starting: Sequence | None = None) -> None:
        """Have sequences of the band give up their blocks, as far as that lets an interactive request have num_blocks.

        They give up blocks until so many are free. None of these may hold recent content, unless the band is down to
        the blocks that it may always hold. starting: the sequence that is to start with these blocks, and with a slot
        for its states.
        """
        if not len(self._band.running) or not (self._lacks_blocks(num_blocks) or self._lacks_slot(starting)):
            return
        victims = self._victims()
        num_within_reach = self._blocks.num_free + sum(sequence.num_blocks for sequence in victims)
        if num_within_reach < num_blocks or (not victims and self._lacks_slot(starting)):
            # A sequence whose tokens are pending can give up once the tokens are known: until then it gets no more.
            paused = [sequence for sequence in self._band.running if id(sequence) in self._paused]
            if paused:
                num_within_reach += sum(sequence.num_blocks for sequence in paused)
                self._must_wait |= num_within_reach >= num_blocks
            else:
                self._must_wait |= any(sequence.num_pending for sequence in self._band.running)
            return
        for sequence in victims:
            if not (self._lacks_blocks(num_blocks) or self._lacks_slot(starting)):
                return
            self._give_up(sequence)

    def _lacks_blocks(self, num_blocks: int) -> bool:
        """Tell whether batch work cannot have the blocks without taking recent ones of interactive requests."""
        blocks = self._blocks
        return num_blocks > blocks.num_free or (num_blocks > blocks.num_idle and not self._max_recent())

    def _lacks_slot(self, starting: Sequence | None) -> bool:
        return starting is not None and self._blocks.lacks_slot(starting, starting.may_reuse_prefix)

    def take_owed(self, num_places: int, left: int) -> list[Chunk]:
        """Plan the batch work that is guaranteed in this step, and return its chunks.

        num_places: the places of running sequences. left: the tokens of the step's budget that interactive decodes
        left.
        """
        self._left_owed = self._share.payable
        if not self._band.num_alive or self._left_owed < DECODE_COST:
            return []
        going_on = list(self._in_turn())
        for sequence in going_on:
            if self._left_owed < DECODE_COST or self.num_held_places >= self._max_held_places:
                break
            if sequence.status is Status.RUNNING:  # else one before it has taken its blocks
                left -= self._pay(sequence, num_places, left)
        num_paid = self._share.payable - self._left_owed
        if self._share.owed - num_paid >= OWED_TOKENS and self.num_held_places < self._max_held_places:
            started = self._start_owed(num_places)
            if started is not None:
                self._pay(started, num_places, left)
        return list(self._planned.values())

    def fill(self, decodes: Many[Chunk], prefills: Many[Chunk], num_places: int, left: int, *, may_grow: bool) -> None:
        """Plan batch work beside the chunks of interactive requests: num_places sequences and `left` tokens.

        Sequences that were owed are not among them. may_grow: True: no interactive request lacks memory.
        """
        if not self._band.num_alive or self._must_wait:
            return
        self._may_grow = may_grow
        load = StepLoad.of(decodes, prefills)
        room = StepRoom(self.step_time, load, self._limits.batch, self._limits.max_num_seqs)
        for owed in self._planned.values():
            _add(load, owed)
        sit_out: list[Sequence] = []
        for sequence in self._in_turn():
            if id(sequence) in self._planned or sequence.status is not Status.RUNNING:
                continue
            chunk: Chunk | None = None
            if num_places > 0 and left > 0 and (may_grow or not self._blocks.num_missing(sequence)):
                chunk = self._fitting_chunk(sequence, room, left)
            if chunk is None:
                sit_out.append(sequence)
                continue
            _add(load, chunk)
            num_places -= 1
            left -= chunk.num_tokens
        if may_grow and not self._has_given_up:
            self._admit(room, load, sit_out, num_places, left)

    def end_step(self, decodes: Many[Chunk], prefills: Many[Chunk]) -> Plan:
        """Return the band's part of the step beside these chunks of interactive requests, and note what both got."""
        planned = list(self._planned.values())
        interactive = sum(map(_service, decodes)) + sum(map(_service, prefills))
        self._share.count(interactive, sum(map(_service, planned)), has_work=self._band.num_alive > 0)
        self._peaks.num_rows = max(self._peaks.num_rows, len(planned))
        own = [chunk for chunk in planned if chunk.sequence.is_decoding]
        return Plan(own, [chunk for chunk in planned if not chunk.sequence.is_decoding])

    def _pay(self, sequence: Sequence, num_places: int, left: int) -> int:
        """Compute tokens of a sequence that the band is owed, if one of num_places is free; return how many.

        Parts of prompts are not so small that a step is longer for next to nothing.

        left: the tokens that are left of the step's budget.
        """
        if num_places <= self.num_held_places:
            self.num_held_places += 1
            return 0
        if not sequence.is_decoding and self._share.owed < min(OWED_TOKENS, sequence.num_uncomputed):
            return 0
        chunk = self._plan(sequence, min(left, max(int(self._left_owed), OWED_TOKENS)))
        if chunk is None:
            return 0
        self.num_held_places += 1
        self._left_owed -= _service(chunk)
        return chunk.num_tokens

    def _in_turn(self) -> Iterator[Sequence]:
        """Yield the running sequences that need a step, in the order of their tenants' counters.

        Counters are taken in steps of a quantum, so that not each token changes who goes on. Among equals, decoding
        sequences come first, then the oldest.
        """
        counters = self._band.counters
        running = [s for s in self._band.running if not s.needs_no_step and not (s.num_pending and s.is_chosen_by_text)]
        running.sort(key=lambda s: (counters.service_of(s.request.tenant) // QUANTUM_TOKENS, not s.is_decoding))
        return iter(running)

    def _start_owed(self, num_places: int) -> Sequence | None:
        """Start a sequence of batch work to which the band has a right.

        If there is no place or no block for it, have interactive requests leave them.
        """
        held = sum(map(self._blocks.max_room, self._band.running))
        sequence = self._admission.next(self._small_room - held)
        if sequence is None or self._has_given_up:
            return None
        if num_places <= self.num_held_places:
            self.num_held_places += 1
            return None
        if not self._start_sequence(sequence, 0):
            if len(self._interactive.running):  # else nobody is in the way
                self.num_held_blocks = self._blocks.num_needed(sequence, sequence.may_reuse_prefix)
                self.holds_slot = self._blocks.lacks_slot(sequence, sequence.may_reuse_prefix)
            return None
        return sequence

    def _fitting_chunk(self, sequence: Sequence, room: StepRoom, left: int) -> Chunk | None:
        if sequence.is_decoding:
            return self._plan(sequence, 1) if room.takes_row(sequence.length) else None
        return self._plan(sequence, min(left, room.num_prompt_tokens(sequence.num_computed)))

    def _admit(self, room: StepRoom, load: StepLoad, sit_out: Many[Sequence], num_places: int, left: int) -> None:
        """Start waiting sequences: not while others sit out, unless their tenants had a quantum more.

        room: what the step's time allows. sit_out: the running sequences that get no part in the step. num_places: the
        free places of running sequences. left: the tokens that are left of the step's budget.
        """
        counters = self._band.counters
        while num_places > 0 and left > 0 and len(self._band.running) < self._limits.max_num_seqs:
            if room.num_prompt_tokens(0) <= 0 or not self._band.waiting:
                return
            if sit_out:
                least = min(counters.service_of(sequence.request.tenant) for sequence in sit_out)
                if self._band.waiting.smallest_counter() + QUANTUM_TOKENS > least:
                    return
            sequence = self._admission.next()
            if sequence is None or not self._start_sequence(sequence, self._num_spare()):
                return
            chunk = self._fitting_chunk(sequence, room, left)
            if chunk is None:
                return
            _add(load, chunk)
            num_places -= 1
            left -= chunk.num_tokens

    def _num_spare(self) -> int:
        """Return how many blocks stay free when a sequence starts: none in an engine that has nothing else to do."""
        if self._has_nothing_else:
            return 0
        block_size = self._blocks.block_size
        num_ahead = 0
        for sequence in self._band.running:
            num_had = max(map(len, sequence.block_tables))
            num_ahead += min(AHEAD_BLOCKS, -(-sequence.max_length // block_size) - num_had)
        num_used = sum(sequence.num_blocks for sequence in self._interactive.running)
        peak = max(self._peaks.num_blocks, self._peaks_before.num_blocks) - num_used
        num_tables = self._blocks.num_tables
        return num_ahead * num_tables + max(peak, len(self._interactive.running) * num_tables)

    @property
    def _has_nothing_else(self) -> bool:
        return not self._planned and not len(self._interactive.running)

    def _max_recent(self) -> int:
        """Return how many blocks may be taken that hold something recent of interactive requests.

        In an engine that has nothing else to do, all of them may.
        """
        if self._has_nothing_else:
            return self._blocks.num_blocks
        num_held = sum(sequence.num_blocks for sequence in self._band.running)
        return max(self._blocks.num_blocks // HALF - num_held, 0)

    def _start_sequence(self, sequence: Sequence, num_spare: int) -> bool:
        if not self._admission.start(sequence, num_spare, max_recent=self._max_recent()):
            return False
        self._totals.batch_recomputed_tokens += max(sequence.num_given_up - sequence.num_computed, 0)
        sequence.num_given_up = 0
        if not sequence.started_s:
            self._note_start(sequence)
        return True

    def _plan(self, sequence: Sequence, max_tokens: int) -> Chunk | None:
        """Have the step compute a token of a sequence, or up to max_tokens of its prompt; return None if it can't."""
        num_tokens = min(sequence.num_uncomputed, max_tokens)
        if num_tokens <= 0 or not self._grow(sequence):
            return None
        num_tokens = self._grow_ahead(sequence, num_tokens)
        if num_tokens == sequence.num_uncomputed and not self._matcher_time.take(sequence):
            num_tokens -= 1
        if num_tokens <= 0:
            return None
        if not sequence.is_decoding:
            self._totals.prompt_tokens += num_tokens
            self._totals.batch_prompt_tokens += num_tokens
        chunk = self._planned[id(sequence)] = Chunk.of(sequence, sequence.num_computed, num_tokens)
        return chunk

    def _grow(self, sequence: Sequence) -> bool:
        """Find room for a sequence's next token, if need be by preempting newer ones; return False if there is none."""
        while self._blocks.num_missing(sequence) and not self._blocks.grow(
            sequence, sequence.num_computed + 1, max_recent=self._max_recent()
        ):
            victims = self._victims(sequence)
            if not victims:
                return False
            self._give_up(victims[0])
        return True

    def _grow_ahead(self, sequence: Sequence, num_tokens: int) -> int:
        """Find room for a sequence's next num_tokens tokens, or for fewer; return for how many."""
        if not self._may_grow:
            return min(num_tokens, self._blocks.num_with_room(sequence) - sequence.num_computed)
        while num_tokens > 0 and not self._blocks.grow(
            sequence, sequence.num_computed + num_tokens, max_recent=self._max_recent()
        ):
            num_tokens //= 2
        return num_tokens

    def _victims(self, after: Sequence | None = None) -> list[Sequence]:
        """Return the sequences that may give up their blocks, the newest first.

        Left out are those whose steps are under way, pause or are planned, and the oldest ones that the guaranteed
        share covers while interactive requests run.
        after: only sequences newer than this one; None: all.
        """
        running = list(self._band.running)
        is_covered = self._share.share > 0 and len(self._interactive.running) > 0
        num_covered, left = 0, self._small_room if is_covered else 0
        for sequence in running:
            left -= self._blocks.max_room(sequence)
            if left < 0:
                break
            num_covered += 1
        first = max(num_covered, 0 if after is None else running.index(after) + 1)
        newest = reversed(running[first:])
        return [s for s in newest if not s.num_pending and id(s) not in self._planned and id(s) not in self._paused]

    def _give_up(self, sequence: Sequence) -> None:
        """Take away the blocks and the slot of a sequence, which waits to be computed again."""
        sequence.num_given_up = max(sequence.num_given_up, sequence.num_computed)
        self._band.running.leave(sequence)
        sequence.status = Status.WAITING
        sequence.forget_prompt()
        self._band.waiting.push(sequence)
        self._totals.batch_preemptions += 1
        self._has_given_up = True


class _Peaks(msgspec.Struct):
    """The largest numbers that occurred in a minute."""

    num_blocks: int = 0
    """The most blocks that interactive requests held at once."""
    num_rows: int = 0
    """The most sequences of the batch band that one step computed."""


def _service(chunk: Chunk) -> float:
    """Return the service of a chunk, in the units of `engine.scheduling.fairness`."""
    sequence = chunk.sequence
    cost = 0.0 if sequence.is_decoding else float(chunk.num_tokens)
    return cost + DECODE_COST * (chunk.samples and sequence.request.sampling.max_tokens > 0)


def _add(load: StepLoad, chunk: Chunk) -> None:
    if chunk.sequence.is_decoding:
        load.add_row(chunk.first + 1)
    else:
        load.add_prompt(chunk.first, chunk.num_tokens)
