"""Grammars under test: compiled as the engine does it, walked by text, completed by a model of random weights."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from engine.grammar.limits import MASK_BURST_S, PARSER_LIMITS
from engine.grammar.matcher import GrammarMatcher
from engine.grammar.vocabulary import load_vocabulary
from engine.grammar.worker import judge
from engine.protocol import Grammar
from engine.sequence import Matcher
from tests.demo import demo_model_dir
from tests.patience import PATIENCE_S

VOCAB_SIZE = 49152
EOS = (2, 0)


@functools.cache
def vocabulary() -> LLTokenizer:
    return load_vocabulary(demo_model_dir(), VOCAB_SIZE, EOS)


def worker_pids() -> set[int]:
    """Return the ids of this process's children that compile grammars."""
    found = set()
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if b"engine.grammar.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.add(int(pid))
    return found


def schema(value: object) -> Grammar:
    return Grammar("json_schema", msgspec.json.encode(value).decode())


def refusal(grammar: Grammar) -> str:
    """Return the reason why the worker refuses a grammar; "" where it accepts the grammar."""
    return judge(vocabulary(), grammar).error or ""


def matchers(grammar: Grammar, *, is_bounded: bool = False) -> Callable[[], GrammarMatcher]:
    """Return a function that makes matchers of a grammar as the compiler's make_matcher does, without its thread and
    process.

    is_bounded: whether a matcher has the budget of processor time that the engine gives one. Without it, no test fails
    because a busy machine made the first masks slow.
    """
    verdict = judge(vocabulary(), grammar)
    assert verdict.error is None, verdict.error
    prototype = LLMatcher(vocabulary(), verdict.text, limits=PARSER_LIMITS, log_level=0)
    burst_s = MASK_BURST_S if is_bounded else PATIENCE_S
    return lambda: GrammarMatcher(prototype.deep_copy(), EOS, burst_s=burst_s)


def allowed_ids(matcher: Matcher, vocab_size: int = VOCAB_SIZE) -> NDArray[np.intp]:
    bitmask = np.zeros((vocab_size + 31) // 32, np.int32)
    matcher.fill_allowed(bitmask)
    return np.flatnonzero(np.unpackbits(bitmask.view(np.uint8), bitorder="little"))


def next_characters(matcher: GrammarMatcher) -> set[str]:
    """Return the first characters of all allowed next tokens; "" stands for the end."""
    ids = allowed_ids(matcher).tolist()
    texts = {vocabulary().decode_bytes([i])[:1].decode("latin-1") for i in ids if i not in EOS}
    return texts | ({""} if set(ids) & set(EOS) else set())


def feed(matcher: GrammarMatcher, text: str) -> bool:
    """Tell whether the mask allowed every token of a text, and the end after it."""
    for token in vocabulary().tokenize_bytes(text.encode()):
        if token not in allowed_ids(matcher):
            return False
        matcher.accept(token)
    return EOS[0] in allowed_ids(matcher)


class RandomModel:
    """A stand-in for an untrained model: random logits with standard deviation 1, sampled at temperature 1."""

    def __init__(self, seed: int, num_rows: int = 32) -> None:
        self._random = np.random.default_rng(seed)
        self._weights = np.exp(self._random.standard_normal((num_rows, VOCAB_SIZE), np.float32))

    def complete(self, matcher: GrammarMatcher, max_tokens: int) -> str | None:
        """Return a completion under a grammar; None where max_tokens did not suffice."""
        return self.complete_counted(matcher, max_tokens)[0]

    def complete_counted(self, matcher: GrammarMatcher, max_tokens: int) -> tuple[str | None, int]:
        """Return a completion as `complete` does, and its number of tokens, which is above max_tokens where those
        did not suffice."""
        token_ids: list[int] = []
        while len(token_ids) <= max_tokens:
            token = self._sample(allowed_ids(matcher))
            if token not in EOS:
                token_ids.append(token)
                matcher.accept(token)
            if token in EOS or matcher.is_complete:
                return vocabulary().decode_bytes(token_ids).decode(), len(token_ids)
        return None, len(token_ids)

    def _sample(self, ids: NDArray[np.intp]) -> int:
        weights = self._weights[self._random.integers(len(self._weights))]
        total = np.cumsum(weights[ids], dtype=np.float64)
        return int(ids[np.searchsorted(total, self._random.random() * total[-1], side="right")])
