"""A prompt is answered once, by whichever replica is left, and retries stay within their budget."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import pytest

from engine.protocol import EngineStats, GenerateRequest, SamplingParams, Usage
from gateway.backends.base import Capabilities, Health, Model, Unanswered
from gateway.backends.generation import Generation, Item, Piece
from gateway.backends.pool import ManagedBackend, PoolRevision, Replica
from gateway.domain.errors import BackendFailed, Overloaded
from gateway.domain.routing.retry_budget import FLOOR_PER_S, RetryBudget
from gateway.pipeline.items.attempts import MAX_ATTEMPTS, RESTARTED, embed_prompt, generate_items

REQUEST = GenerateRequest("req_1", [1, 2], SamplingParams(max_tokens=4, seed=7), tenant="proj_1")
PIECE, USAGE = [Piece(0, "abc")], Usage(2, 3)


class ScriptedBackend:
    """A fake backend that yields items, then ends or fails, and records the outcome of its attempts."""

    def __init__(self, *items: Item, kind: str | None = None, error: Exception | None = None) -> None:
        self.items, self.kind, self.error = items, kind, error
        self.attempts: list[int] = []
        self.settled: list[int] = []
        self.superseded: list[int] = []
        self.is_ready = True

    num_in_flight = 0
    num_running = 0

    def health(self) -> Health:
        return Health(self.is_ready, "away", EngineStats(num_running=self.num_running))

    def watch(self, changed: Callable[[], None], has_other: Callable[[], bool]) -> None:
        """Ignore the watcher, since this backend never changes."""

    is_full = False

    def usual_ms(self) -> float | None:
        return None

    capabilities = Capabilities(
        max_model_len=8, vocab_size=8, max_choices=1, max_in_flight=8, embedding_size=1, longest_token_bytes=1
    )

    async def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        attempt = generation.request.attempt
        self.attempts.append(attempt)
        for item in self.items:
            yield item
        if self.error is not None:
            raise self.error
        if self.kind is not None:
            raise Unanswered(
                Overloaded(f"it was {self.kind}"),
                self.kind,  # type: ignore[arg-type]
                was_sent=self.kind != "absent",
                settle=lambda: self.settled.append(attempt),
                supersede=lambda: self.superseded.append(attempt),
            )

    async def embed(self, request: GenerateRequest, trace: str = "") -> tuple[bytes, Usage]:
        async for item in self.generate(Generation(request)):
            if isinstance(item, Usage):
                return b"vector", item
        raise AssertionError


def pool_of(*backends: ScriptedBackend) -> PoolRevision:
    """Return a revision whose replicas are picked in this order, since later ones have more load."""
    for number, backend in enumerate(backends):
        backend.num_running = backend.num_in_flight = 100 * number
    replicas = [Replica(f"r{number}", cast("ManagedBackend", each)) for number, each in enumerate(backends)]
    return PoolRevision("tiny", cast("Model", None), replicas)


async def read(pool: PoolRevision, budget: RetryBudget | None = None, **options: Any) -> list[Any]:
    return [item async for item in generate_items(pool, Generation(REQUEST), budget or RetryBudget(), **options)]


async def test_a_death_before_the_first_item_is_tried_again_and_one_attempt_is_billed() -> None:
    dead, alive = ScriptedBackend(kind="died"), ScriptedBackend(PIECE, USAGE)
    assert await read(pool_of(dead, alive)) == [PIECE, USAGE]
    assert (dead.superseded, dead.settled) == ([0], [])
    assert alive.attempts == [1]


async def test_a_stream_whose_text_has_left_is_not_begun_anew() -> None:
    dead, alive = ScriptedBackend(PIECE, kind="died"), ScriptedBackend(PIECE, USAGE)
    with pytest.raises(Overloaded, match="it was died"):
        await read(pool_of(dead, alive))
    assert (dead.superseded, dead.settled, alive.attempts) == ([], [0], [])


async def test_a_whole_reply_is_begun_anew_and_its_reader_told() -> None:
    dead, alive = ScriptedBackend(PIECE, kind="died"), ScriptedBackend(PIECE, USAGE)
    assert await read(pool_of(dead, alive), may_restart=True) == [PIECE, RESTARTED, PIECE, USAGE]
    assert (dead.superseded, alive.attempts) == ([0], [1])


async def test_an_absent_replica_is_skipped_without_counting_an_attempt() -> None:
    absent = [ScriptedBackend(kind="absent") for _ in range(5)]
    alive = ScriptedBackend(PIECE, USAGE)
    assert await read(pool_of(*absent, alive)) == [PIECE, USAGE]
    assert alive.attempts == [0]


async def test_each_replica_is_asked_once_and_the_last_one_tells_the_client() -> None:
    backends = [ScriptedBackend(kind="died"), ScriptedBackend(kind="died")]
    with pytest.raises(Overloaded, match="it was died"):
        await read(pool_of(*backends))
    assert [each.attempts for each in backends] == [[0], [1]]
    assert (backends[0].superseded, backends[1].settled) == ([0], [1])


async def test_a_prompt_is_sent_to_few_replicas_however_many_there_are() -> None:
    backends = [ScriptedBackend(kind="full") for _ in range(MAX_ATTEMPTS + 2)]
    with pytest.raises(Overloaded, match="it was full"):
        await read(pool_of(*backends))
    assert sum(len(each.attempts) for each in backends) == MAX_ATTEMPTS


async def test_an_engines_own_failure_is_nobody_elses_to_repeat() -> None:
    failing, alive = ScriptedBackend(error=BackendFailed("it failed")), ScriptedBackend(PIECE, USAGE)
    with pytest.raises(BackendFailed):
        await read(pool_of(failing, alive))
    assert alive.attempts == []


class SpentBudget(RetryBudget):
    """A retry budget without anything left."""

    def take(self, now_s: float) -> bool:
        return False


async def test_the_first_retry_after_a_death_is_free_and_others_are_not() -> None:
    alive = ScriptedBackend(PIECE, USAGE)
    with pytest.raises(Overloaded, match="it was full"):
        await read(pool_of(ScriptedBackend(kind="full"), alive), SpentBudget())
    assert await read(pool_of(ScriptedBackend(kind="died"), alive), SpentBudget()) == [PIECE, USAGE]
    with pytest.raises(Overloaded, match="it was died"):
        await read(pool_of(ScriptedBackend(kind="died"), ScriptedBackend(kind="died"), alive), SpentBudget())


async def test_embeddings_are_tried_again_too() -> None:
    dead, alive = ScriptedBackend(kind="died"), ScriptedBackend(USAGE)
    assert await embed_prompt(pool_of(dead, alive), REQUEST, RetryBudget()) == (b"vector", USAGE)
    assert (dead.superseded, alive.attempts) == ([0], [1])


async def test_without_a_ready_replica_the_reason_is_told() -> None:
    away = ScriptedBackend(PIECE, USAGE)
    away.is_ready = False
    with pytest.raises(Overloaded, match=r"No engine is ready for 'tiny' \(away\)"):
        await read(pool_of(away))


def test_a_budget_is_a_fifth_of_the_requests_and_never_below_its_floor() -> None:
    budget = RetryBudget()
    assert [budget.take(0.0) for _ in range(FLOOR_PER_S + 1)] == [True] * FLOOR_PER_S + [False]
    assert budget.take(1.0), "each second has the floor"
    budget = RetryBudget()
    for _ in range(1000):
        budget.sent(5.0)
    assert sum(budget.take(5.5) for _ in range(1000)) == 200
