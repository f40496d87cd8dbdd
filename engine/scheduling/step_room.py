"""What is left of one step for batch work, in time, by what steps were seen to take."""

from __future__ import annotations

from engine.scheduling.limits import BatchLimits
from engine.scheduling.step_time import FIRST_TOKENS, StepLoad, StepTime


class StepRoom:
    """Beside interactive requests a step is lengthened by a share, alone it has a bound. A first row always fits alone,
    so that work gets on however slow the device is. Beside others nothing fits before any step was seen."""

    def __init__(self, step_time: StepTime, load: StepLoad, limits: BatchLimits) -> None:
        """load: of the interactive requests in the step. Whatever is added to it takes up room."""
        self._costs = costs = step_time.costs()
        self._max_rows = step_time.max_rows
        self._max_prompt_tokens = step_time.max_prompt_tokens
        self._load = load
        self._is_alone = not load.num_rows
        if self._is_alone:
            self._limit_s = max(limits.step_s, limits.num_one_row_steps * costs.seconds(StepLoad(1)))
        else:
            self._limit_s = (1 + limits.lengthening) * costs.seconds(load) if step_time.is_known else 0.0

    def takes_row(self, num_context_tokens: int) -> bool:
        """Whether one more sequence may decode."""
        if self._is_first:
            return True
        costs = self._costs
        added_s = costs.row_s + costs.context_token_s * num_context_tokens
        return self._load.num_rows < self._max_rows and costs.seconds(self._load) + added_s <= self._limit_s

    def num_prompt_tokens(self, first: int) -> int:
        """How many tokens of a prompt may be computed from position first on."""
        costs, load = self._costs, self._load
        most = self._max_prompt_tokens - load.num_prompt_tokens
        left_s = self._limit_s - costs.seconds(load) - costs.row_s - costs.context_token_s * first
        token_s = costs.prompt_token_s + costs.context_token_s
        if token_s > 0:
            most = min(most, int(left_s / token_s))
        elif left_s < 0:
            most = 0
        return max(most, FIRST_TOKENS) if self._is_first else max(most, 0)

    @property
    def _is_first(self) -> bool:
        return self._is_alone and not self._load.num_rows
