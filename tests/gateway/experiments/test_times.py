"""Times of arms that share engines, and of clients that give up.

An arm that slows the other one as well is found by the engine's own time, and a client that left before the first token
counts with the time that it waited.
"""

from __future__ import annotations

import msgspec

from gateway.db.pool import Database
from gateway.domain.experiments.definition import Experiment, Guardrail, Metrics, Primary
from gateway.experiments.results import read_results
from tests.gateway.experiments.books_rows import DEFINITION, UnitRequest, keep_books, make_experiment, send, unit
from tests.gateway.experiments.test_books import LONG_AGO, check_recount

NUM_UNITS = 400


def judged_by(*guardrails: str) -> Experiment:
    """Return an experiment's definition with guardrails that tolerate 10 % more."""
    listed = tuple(Guardrail(each, margin=0.1) for each in guardrails)
    return msgspec.structs.replace(DEFINITION, metrics=Metrics((Primary("paid", "increase"),), listed))


async def test_an_arm_that_slows_the_other_is_known_by_the_time_of_the_engine(database: Database) -> None:
    """The treatment computes for longer, and the control waits for that in the queue: clients of both arms wait
    alike."""
    made_of = {0: (25.0, 40.0), 1: (5.0, 60.0)}
    async with database.acquire() as conn:
        made = await make_experiment(conn, judged_by("ttft_ms", "queue_ms", "engine_ms", "engine_ms.p50"))
        sent = []
        for number in range(NUM_UNITS):
            queue_ms, decode_ms = made_of[number % 2]
            wait_ms = queue_ms + decode_ms
            times = {"ttft_ms": wait_ms, "latency_ms": wait_ms + 1, "queue_ms": queue_ms, "decode_ms": decode_ms}
            sent.append(
                UnitRequest(
                    unit(number), number % 2, LONG_AGO, **{name: ms + number // 2 % 5 for name, ms in times.items()}
                )
            )
        await send(conn, made, sent)
        await keep_books(database)
        found = {each.metric: each.verdict for each in (await read_results(conn, made)).guardrails}
    assert found == {"ttft_ms": "safe", "queue_ms": "safe", "engine_ms": "harmed", "engine_ms.p50": "harmed"}


async def test_clients_that_give_up_do_not_make_their_arm_faster(database: Database) -> None:
    """A fifth of the treatment's clients leave after two seconds without a token; all others are served alike."""
    async with database.acquire() as conn:
        made = await make_experiment(conn, judged_by("ttft_ms", "ttft_ms.p90"))
        sent = []
        for number in range(NUM_UNITS):
            given_up = number % 10 in (1, 3)
            sent.append(
                UnitRequest(
                    unit(number), number % 2, LONG_AGO, 1, finish_reason="abort", ttft_ms=None, latency_ms=2_000
                )
                if given_up
                else UnitRequest(unit(number), number % 2, LONG_AGO, ttft_ms=100.0 + number // 2 % 20, latency_ms=500)
            )
        await send(conn, made, sent)
        await keep_books(database)
        results = await read_results(conn, made)
    assert {each.metric: each.verdict for each in results.guardrails} == {"ttft_ms": "harmed", "ttft_ms.p90": "harmed"}
    (mean,) = (each for each in results.comparisons if each.metric == "ttft_ms")
    assert (mean.control.n, mean.treatment.n) == (NUM_UNITS // 2, NUM_UNITS // 2), "nobody is left out"
    await check_recount(database, made, NUM_UNITS)
