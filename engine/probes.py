"""Probes of adapters on this engine: one short greedy generation with the adapter and one without it, compared.

Both are requests like any other to the scheduler and the runner, on any device, but nobody submitted them: their
outputs are taken out before the others leave the stepping thread. They begin together once the adapter is resident, so
that as a rule one step computes both and differences are the adapter's doing, not rounding's. Knows nothing of sockets,
devices or files.
"""

from __future__ import annotations

import math
import secrets
import struct
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from engine.protocol import (
    AdapterProbe,
    AdapterStatus,
    Delta,
    EngineError,
    GenerateRequest,
    Pooling,
    SamplingParams,
    StepOutputs,
)
from engine.scheduling.completion import NOT_A_NUMBER

NOBODY = ""
"""The tenant of a probe."""

MAX_PROMPT_TOKENS = 8  # so few that the step of both prompts takes hardly longer than the next one
NUM_COMPLETION_TOKENS = 4


class Adapters(Protocol):
    """The operations of the adapter pool that a probe needs."""

    def num_bytes(self, key: str) -> int:
        """Return how many bytes of the device's memory a resident adapter takes."""


class _Side(msgspec.Struct, eq=False):
    """One of the two generations of a probe: with the adapter, or without."""

    request: GenerateRequest
    token_ids: list[int] = []
    """The tokens of the completion so far."""
    logprobs: list[float] = []
    """The log-probabilities of the prompt's tokens but the first, then of the completion's."""
    error: EngineError | None = None
    has_ended: bool = False

    def take(self, delta: Delta) -> None:
        self.logprobs += [each.logprob for each in delta.prompt_logprobs or () if each is not None]
        self.logprobs += [each.logprob for each in delta.logprobs or ()]
        self.token_ids += delta.token_ids


class _Probe(msgspec.Struct, eq=False):
    """A probe of one adapter that is under way."""

    key: str
    """The key of the adapter's content."""
    since_s: float
    """The time at which the probe was asked for, by the monotonic clock."""
    load_seconds: float = 0.0
    """Seconds that the load of the adapter took."""
    sides: tuple[_Side, _Side] | None = None
    """The generation with the adapter and the one without it; None until the adapter is resident."""


class Probes:
    """The probes of one engine, at most one of each adapter. Belongs to the stepping thread."""

    def __init__(
        self,
        adapters: Adapters,
        vocab_size: int,
        max_model_len: int,
        clock: Callable[[], float] = time.perf_counter,
        *,
        pooling: Pooling | None = None,
    ) -> None:
        """Set up probes. pooling: the pooling of the vectors that are compared, for a model that makes no text."""
        self._pooling = pooling
        self._adapters = adapters
        self._prompt = probe_prompt(vocab_size, max_model_len)
        self._clock = clock
        self._probes: dict[str, _Probe] = {}
        self._sides: dict[str, tuple[_Probe, _Side]] = {}  # by request

    def is_loading(self, key: str) -> bool:
        """Tell whether a probe waits for this adapter to be loaded."""
        probe = self._probes.get(key)
        return probe is not None and probe.sides is None

    def start(self, key: str, is_resident: bool) -> list[GenerateRequest]:
        """Start a probe, and return the requests to run now.

        A probe of the same adapter that is under way answers this one, too. is_resident: False: the requests come from
        `loaded`, once the adapter has been loaded.
        """
        if key in self._probes:
            return []
        self._probes[key] = _Probe(key, self._clock())
        return self._generate_both(self._probes[key]) if is_resident else []

    def loaded(self, key: str) -> list[GenerateRequest]:
        """Record that the adapter that a probe waits for is resident, and return the requests to run now."""
        probe = self._probes[key]
        probe.load_seconds = self._clock() - probe.since_s
        return self._generate_both(probe)

    def fail(self, key: str, error: EngineError) -> AdapterStatus:
        """End a probe whose adapter will not come, and return its answer."""
        del self._probes[key]
        return AdapterStatus(key, False, error.message, error.code, probed=True)

    def take(self, outputs: StepOutputs) -> tuple[StepOutputs, list[AdapterStatus]]:
        """Return the outputs without those of probes, and the answers of the probes that ended with them."""
        if not self._sides:
            return outputs, []
        others = StepOutputs([], [])
        statuses = []
        for delta in outputs.deltas:
            if delta.request_id in self._sides:
                self._sides[delta.request_id][1].take(delta)
            else:
                others.deltas.append(delta)
        for final in outputs.finals:
            if final.request_id not in self._sides:
                others.finals.append(final)
                continue
            probe, side = self._sides.pop(final.request_id)
            if final.embedding is not None:
                side.logprobs += [value for (value,) in struct.iter_unpack("<f", final.embedding)]
            side.error, side.has_ended = final.error, True
            if probe.sides is not None and all(each.has_ended for each in probe.sides):
                statuses.append(self._status_of(probe, *probe.sides))
        return others, statuses

    def _generate_both(self, probe: _Probe) -> list[GenerateRequest]:
        name = secrets.token_hex(16)
        sampling = SamplingParams(
            NUM_COMPLETION_TOKENS, temperature=0.0, ignore_eos=True, num_logprobs=0, num_prompt_logprobs=0
        )
        plain = GenerateRequest(f"probe-{name}-base", self._prompt, sampling, NOBODY)
        if self._pooling is not None:
            plain = msgspec.structs.replace(plain, sampling=SamplingParams(0), pooling=self._pooling)
        adapted = msgspec.structs.replace(plain, request_id=f"probe-{name}", adapter=probe.key)
        probe.sides = (_Side(adapted), _Side(plain))
        self._sides |= {side.request.request_id: (probe, side) for side in probe.sides}
        return [side.request for side in probe.sides]

    def _status_of(self, probe: _Probe, adapted: _Side, plain: _Side) -> AdapterStatus:
        del self._probes[probe.key]
        error = _refusal(adapted, plain)
        if error is not None:
            return AdapterStatus(probe.key, True, error.message, error.code, probed=True)
        num_tokens = len(self._prompt) + len(adapted.token_ids)
        num_bytes = self._adapters.num_bytes(probe.key)
        outcome = AdapterProbe(probe.load_seconds, num_bytes, num_tokens, _max_difference(adapted, plain))
        return AdapterStatus(probe.key, True, probed=True, probe=outcome)


def probe_prompt(vocab_size: int, max_model_len: int) -> list[int]:
    """Return ids spread over the vocabulary, the same for every adapter, with room for the completion.

    max_model_len: the most tokens of a sequence.
    """
    num_tokens = max(1, min(MAX_PROMPT_TOKENS, vocab_size, max_model_len - NUM_COMPLETION_TOKENS))
    return [vocab_size * position // num_tokens for position in range(num_tokens)]


def _refusal(adapted: _Side, plain: _Side) -> EngineError | None:
    """Return `adapter_rejected` if the adapter is at fault, the error of a generation that failed, or None."""
    if plain.error is not None:
        return plain.error
    if adapted.error is not None and adapted.error.message != NOT_A_NUMBER:
        return adapted.error
    if adapted.error is not None or not all(map(math.isfinite, adapted.logprobs)):
        return EngineError("adapter_rejected", "with it the model's output is not a number: its weights overflow")
    if not _max_difference(adapted, plain):
        return EngineError("adapter_rejected", "it changes nothing: the model answers with it as it does without it")
    return None


def _max_difference(adapted: _Side, plain: _Side) -> float:
    """Return the largest difference over the prompt, and the completion up to and with the first token that differs.

    The two log-probabilities of the token that differs are of different tokens, which are different answers in any
    case.
    """
    num_equal = next(
        (i for i, (a, b) in enumerate(zip(adapted.token_ids, plain.token_ids, strict=True)) if a != b),
        len(plain.token_ids),
    )
    num_compared = len(plain.logprobs) - len(plain.token_ids) + num_equal + 1  # of embeddings, all numbers
    pairs = zip(adapted.logprobs[:num_compared], plain.logprobs[:num_compared], strict=True)
    return max((abs(a - b) for a, b in pairs), default=0.0)
