"""Bounds the part of a step that grammars may take. Adds up the times that matchers report, and measures nothing."""

from __future__ import annotations

from engine.sequence import Sequence

STEP_S = 0.020  # for all costly grammars of a step together
ORDINARY_S = 0.0005  # a grammar that takes no more than this for a token is not counted


class MatcherTime:
    """The time that all grammars of one step may take together; each grammar's own bound is in `engine.grammar.limits`.

    A sequence that finds the step's time taken waits for the next step. The least advanced go first, so that all get
    on.
    """

    def __init__(self) -> None:
        self._left_s = STEP_S

    def start_step(self, decoding: list[Sequence]) -> list[Sequence]:
        """Return the decoding sequences that take part in this step, in their order."""
        self._left_s = STEP_S
        costly = sorted(filter(_is_costly, decoding), key=lambda sequence: sequence.num_completion_tokens)
        waiting = {id(sequence) for sequence in costly if not self.take(sequence)}
        return [sequence for sequence in decoding if id(sequence) not in waiting] if waiting else decoding

    def take(self, sequence: Sequence) -> bool:
        """Tell whether the sequence's next token may be chosen in this step; if so, its time is taken."""
        if not _is_costly(sequence):
            return True
        if self._left_s <= 0:
            return False
        assert sequence.matcher is not None
        self._left_s -= sequence.matcher.expected_cost_s
        return True


def _is_costly(sequence: Sequence) -> bool:
    return sequence.matcher is not None and sequence.matcher.expected_cost_s > ORDINARY_S
