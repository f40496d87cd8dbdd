"""Three gateways begin and run batches at the edge of a limit: never more is enqueued, and never more is spent.

At full size there are 40 tenants for each limit instead of 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest

from tests.figures import figure
from tests.gateway.batches.jobs import begin_batch, cancel_and_wait, file_of, read_batch
from tests.gateway.limits.fleet import INPUT_NANOS, OUTPUT_NANOS, Fleet, Key, completion, put_limit, running_fleet
from tests.gateway.live import BASE
from tests.installation.tenants import make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

COMPLETIONS = "/v1/completions"
PROMPT, MAX_TOKENS = [5, 6, 7, 8], 6
LINE_NANOS = (len(PROMPT) * INPUT_NANOS + MAX_TOKENS * OUTPUT_NANOS) // 2
"""The cost of a line, which uses all that it reserves: half of a request's."""

TENANTS, FULL_TENANTS = 2, 40
ENQUEUED = "SELECT enqueued_batch_tokens($1, $2, $3)"
SPENT = "SELECT coalesce(sum(cost_nanos), 0)::bigint FROM ledger WHERE project_id = $1"


@pytest.fixture(scope="module")
def fleet(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    flags = ("--tokens-per-s", "100")
    with running_fleet(module_dsn, tmp_path_factory.mktemp("fleet"), engine_flags=flags, jumps_s=(0,)) as fleet:
        yield fleet


def price_in_nanos(usage: dict[str, int], input_tokens: str, output_tokens: str) -> int:
    """Return the price of a usage object outside batches, in nanos of the currency.

    input_tokens, output_tokens: the names of the object's fields.
    """
    return usage[input_tokens] * INPUT_NANOS + usage[output_tokens] * OUTPUT_NANOS


@asynccontextmanager
async def clients(fleet: Fleet, tenant: Key) -> AsyncIterator[list[httpx.AsyncClient]]:
    opened = [httpx.AsyncClient(base_url=url, headers=tenant.headers, timeout=PATIENCE_S) for url in fleet.urls]
    try:
        yield opened
    finally:
        for each in opened:
            await each.aclose()


def batch_file(num_lines: int, max_tokens: int = MAX_TOKENS) -> bytes:
    body = completion(PROMPT, max_tokens)
    return file_of({"custom_id": str(n), "method": "POST", "url": COMPLETIONS, "body": body} for n in range(num_lines))


async def test_no_more_tokens_are_enqueued_over_gateways_than_a_limit_allows(fleet: Fleet, full: bool) -> None:
    """Nine batches begin at once on three gateways; as many begin as fit, and the others fail and say why."""
    lines = batch_file(60, max_tokens=400)  # four seconds, in which no line ends: its tokens would make room for others
    largest = num_begun = 0
    conn = await asyncpg.connect(fleet.dsn)
    try:
        for number in range(FULL_TENANTS if full else TENANTS):
            tenant = await make_key(fleet.dsn, f"enqueued-{number}")
            fits = 1 + number % 4
            most = fits * len(lines) + len(lines) // 2
            limit = tenant.limit("enqueued_batch_tokens", "none", most, model=BASE if number % 2 else None)
            await put_limit(fleet.dsn, limit)
            async with clients(fleet, tenant) as gateways:
                ids = await asyncio.gather(*(begin_batch(gateways[n % 3], lines, COMPLETIONS) for n in range(9)))

                async def are_checked() -> list[dict[str, Any]] | None:
                    nonlocal largest
                    enqueued = await conn.fetchval(ENQUEUED, tenant.organization_id, tenant.project_id, None)  # noqa: B023
                    assert enqueued <= most, (enqueued, most)  # noqa: B023
                    largest = max(largest, enqueued)
                    batches = [await read_batch(gateways[0], id) for id in ids]  # noqa: B023
                    return batches if all(batch["status"] != "validating" for batch in batches) else None

                batches = await until(are_checked, "files were not checked", pause_s=0.02)
                failed = [batch for batch in batches if batch["status"] == "failed"]
                assert len(failed) == 9 - fits, [batch["status"] for batch in batches]
                assert {batch["errors"]["data"][0]["code"] for batch in failed} == {"token_limit_exceeded"}
                num_begun += fits
                await asyncio.gather(*(cancel_and_wait(gateways[0], batch["id"]) for batch in batches))
    finally:
        await conn.close()
    assert largest > 0
    if full:
        figure(f"enqueued tokens: {num_begun} of {9 * FULL_TENANTS} batches began, 0 over their limits")


async def test_batches_and_requests_together_never_cost_more_than_a_limit_allows(fleet: Fleet, full: bool) -> None:
    """Six batches run over three gateways, with requests beside them, all of one tenant with a limit of cost."""
    num_lines = 0
    conn = await asyncpg.connect(fleet.dsn)
    try:
        for number in range(FULL_TENANTS if full else TENANTS):
            tenant = await make_key(fleet.dsn, f"cost-{number}")
            most = LINE_NANOS * (20 + 7 * number % 50) + LINE_NANOS - 1
            await put_limit(fleet.dsn, tenant.limit("cost_nanos", "month" if number % 2 else "day", most))
            async with clients(fleet, tenant) as gateways:
                ids = await asyncio.gather(
                    *(begin_batch(gateways[n % 3], batch_file(40), COMPLETIONS) for n in range(6))
                )
                asked = (
                    gateways[n % 3].post(COMPLETIONS, json=completion(PROMPT, MAX_TOKENS)) for n in range(number % 9)
                )
                answers = await asyncio.gather(*asked)
                assert {answer.status_code for answer in answers} <= {200, 429}

                async def is_full() -> bool:
                    spent = await conn.fetchval(SPENT, tenant.project_id)  # noqa: B023
                    assert spent <= most, (spent, most)  # noqa: B023
                    return bool(spent > most - 2 * LINE_NANOS)  # noqa: B023

                await until(is_full, "the limit was not used up", pause_s=0.05)
                batches = await asyncio.gather(*(cancel_and_wait(gateways[0], id) for id in ids))
            num_done = sum(batch["request_counts"]["completed"] for batch in batches)
            due = sum(price_in_nanos(batch["usage"], "input_tokens", "output_tokens") for batch in batches) // 2
            replies = [answer.json() for answer in answers if answer.status_code == 200]
            due += sum(price_in_nanos(reply["usage"], "prompt_tokens", "completion_tokens") for reply in replies)
            spent = 0

            async def is_billed() -> bool:
                nonlocal spent
                spent = await conn.fetchval(SPENT, tenant.project_id)  # noqa: B023
                return abs(spent - due) <= num_done  # noqa: B023 - each line is rounded once

            await until(is_billed, lambda: f"the ledger came to {spent}, not {due}", pause_s=0.05)  # noqa: B023
            assert spent <= most
            num_lines += num_done
    finally:
        await conn.close()
    if full:
        figure(f"cost: {num_lines} lines of {FULL_TENANTS} tenants ran at the edge of their limits, 0 over")
