"""The inputs of the engine: prompts that nobody has sent before, and requests of exactly as many tokens as asked."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Literal

from engine.protocol import GenerateRequest, SamplingParams

Popularity = Literal["turns", "identical", "uniform", "zipf"]
ZIPF_EXPONENT = 1.1


class Workload:
    """Makes prompts and requests from a seed: the same calls in the same order give the same prompts.

    Prompts have no id below FIRST_ID, since those may mean something special.
    """

    FIRST_ID = 100
    LAST_ID = 10_000

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._ids = range(min(self.FIRST_ID, vocab_size // 2), min(self.LAST_ID, vocab_size))
        self._numbers = itertools.count()

    def prompt(self, num_tokens: int) -> list[int]:
        """Return a new prompt of random ids."""
        return self._random.choices(self._ids, k=num_tokens)

    def request(
        self,
        prompt: list[int],
        max_tokens: int,
        *,
        tenant: str = "bench",
        adapter: str = "",
        weight: float = 1.0,
        sampling: SamplingParams | None = None,
    ) -> GenerateRequest:
        """Return a request with a new id, by default for the base model.

        sampling: takes the place of greedy decoding up to max_tokens tokens, which goes on after an end of sequence.
        """
        sampling = sampling or SamplingParams(max_tokens, temperature=0.0, ignore_eos=True)
        name = f"r{next(self._numbers)}"
        return GenerateRequest(name, prompt, sampling, tenant, adapter=adapter, weight=weight)

    def pick(self, digests: list[str], popularity: Popularity) -> Iterator[str]:
        """Yield the adapter of one request after the other, without end; "" throughout where there are none.

        zipf: the k-th of them with a probability that falls as k^-ZIPF_EXPONENT.
        """
        if not digests or popularity == "identical":
            return itertools.repeat(digests[0] if digests else "")
        if popularity == "turns":
            return itertools.cycle(digests)
        exponent = ZIPF_EXPONENT if popularity == "zipf" else 0.0
        weights = [rank**-exponent for rank in range(1, len(digests) + 1)]
        return (self._random.choices(digests, weights)[0] for _ in itertools.repeat(None))
