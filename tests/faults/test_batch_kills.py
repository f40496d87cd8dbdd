"""Gateways, the engine and the database are killed over running batches: every line ends once, in the output or the
error file; counts agree, and the usage of the lines is that of the batch, of the ledger and of the invoice, at half the
price.

Two gateways in processes of their own, a database server of their own and the fake engine. A seed is a round with a
tenant of its own. `make long-batches` runs 100 rounds of 10 kills; `FIRST_SEED=k` goes on from a round, `NUM_ROUNDS`
runs fewer.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.db.billing.invoices import draft_invoice
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.domain.billing.invoice import Invoice
from gateway.settings import Settings
from tests.faults.processes import Engine, Gateway, Postgres
from tests.figures import figure
from tests.gateway.batches.jobs import CHAT, chat_line, file_of
from tests.gateway.billing.books import THIS_MONTH
from tests.gateway.limits.fleet import INPUT_NANOS, OUTPUT_NANOS, set_prices
from tests.gateway.live import BASE
from tests.gateway.model_folder import make_model_folder
from tests.installation.tenants import Key, make_key
from tests.installation.waiting import until

SIZE, FULL_SIZE = (60, 3), (400, 10)
"""Lines of each batch, and kills of a round."""
FULL_ROUNDS = 100
NUM_BATCHES = 2


class Site(msgspec.Struct, frozen=True):
    postgres: Postgres
    gateways: list[Gateway]
    engine: Engine

    @property
    def dsn(self) -> str:
        return self.postgres.dsn


@pytest.fixture(scope="module")
def site(open_folder: Path) -> Iterator[Site]:
    folder = open_folder / "batches"
    folder.mkdir(mode=0o711)
    model_dir = make_model_folder(folder / "model")
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir(parents=True)
    with ExitStack() as stack:
        postgres = Postgres(folder / "postgres")
        stack.callback(postgres.stop)
        asyncio.run(migrate(postgres.dsn))
        asyncio.run(set_prices(postgres.dsn))
        engine = Engine(settings.engine.endpoint, model_dir, log=folder / "engine.log")
        stack.callback(engine.kill)
        engine.start()
        gateways = [Gateway(settings, postgres.dsn, number) for number in range(2)]
        for gateway in gateways:
            stack.callback(gateway.close)
            gateway.start()
        for gateway in gateways:
            gateway.wait_ready()
        yield Site(postgres, gateways, engine)


async def test_every_line_ends_once_and_is_billed_once_whoever_is_killed(site: Site, full: bool) -> None:
    first = int(os.environ.get("FIRST_SEED", "0"))
    num_rounds = int(os.environ.get("NUM_ROUNDS", str(FULL_ROUNDS))) if full else 1
    for seed in range(first, first + num_rounds):
        rng = random.Random(seed)
        tenant = await make_key(site.dsn, f"batches-{seed}")
        num_lines, num_kills = FULL_SIZE if full else SIZE
        contents = [_lines(rng, num_lines) for _ in range(NUM_BATCHES)]
        ids = [await begun(site, tenant, content) for content in contents]
        for number in range(num_kills):
            await asyncio.sleep(rng.random() * 1.5)  # any moment will do
            await asyncio.to_thread(fault, site, number, rng)
        ended = [await once_ended(site, tenant, id) for id in ids]
        for content, batch in zip(contents, ended, strict=True):
            await check(site, tenant, content, batch)
        await check_ledger(site, tenant, ended)
        print(f"seed {seed}: {[batch['request_counts'] for batch in ended]}", flush=True)
    if full:
        figure(f"{num_rounds * FULL_SIZE[1]} kills over {num_rounds * NUM_BATCHES} batches of {FULL_SIZE[0]} lines")


def _lines(rng: random.Random, num_lines: int) -> list[dict[str, Any]]:
    lines = [chat_line(f"line-{n}", f"text {n}", max_tokens=rng.randrange(1, 60)) for n in range(num_lines)]
    for line in rng.sample(lines, num_lines // 20):
        line["body"]["temperature"] = 9
    return lines


def fault(site: Site, number: int, rng: random.Random) -> None:
    """Kill the engine, a gateway or the database, and start it again."""
    if number % 3 == 0:
        site.engine.kill()
        site.engine.start()
        return
    if number % 3 == 2:
        site.postgres.kill()
        return
    gateway = rng.choice(site.gateways)
    gateway.kill()
    gateway.start()
    gateway.wait_ready()


async def asked(site: Site, tenant: Key, method: str, path: str, **options: Any) -> httpx.Response:
    """Send a request to the gateways in turn; return the first answer."""
    answer: httpx.Response | None = None

    async def answers() -> bool:
        nonlocal answer
        for gateway in site.gateways:
            try:
                async with httpx.AsyncClient(base_url=gateway.url, headers=tenant.headers, timeout=10) as client:
                    answer = await client.request(method, path, **options)
            except httpx.TransportError:
                continue
            if answer.status_code == 200:
                return True
        return False

    await until(answers, lambda: f"{method} {path}: {answer.text if answer is not None else 'nothing'}")
    assert answer is not None
    return answer


async def begun(site: Site, tenant: Key, lines: list[dict[str, Any]]) -> str:
    form = {"files": {"file": ("lines.jsonl", file_of(lines))}, "data": {"purpose": "batch"}}
    file = (await asked(site, tenant, "POST", "/v1/files", **form)).json()
    body = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    return str((await asked(site, tenant, "POST", "/v1/batches", json=body)).json()["id"])


async def once_ended(site: Site, tenant: Key, id: str) -> dict[str, Any]:
    batch: dict[str, Any] = {}

    async def has_ended() -> bool:
        nonlocal batch
        batch = (await asked(site, tenant, "GET", f"/v1/batches/{id}")).json()
        return batch["status"] == "completed"

    await until(has_ended, lambda: f"the batch did not end: {batch}", pause_s=0.2)
    return batch


async def check(site: Site, tenant: Key, lines: list[dict[str, Any]], batch: dict[str, Any]) -> None:
    """Check that each line is in one of the two files, and that both say what the batch says."""
    found: list[list[dict[str, Any]]] = []
    for file_id in (batch["output_file_id"], batch["error_file_id"]):
        text = (await asked(site, tenant, "GET", f"/v1/files/{file_id}/content")).text if file_id else ""
        found.append([json.loads(line) for line in text.splitlines()])
    done, failed = found
    assert sorted(line["custom_id"] for line in [*done, *failed]) == sorted(line["custom_id"] for line in lines)
    assert {line["custom_id"] for line in failed} == {
        line["custom_id"] for line in lines if "temperature" in line["body"]
    }, [line["response"] for line in failed if line["response"]["status_code"] != 400]
    counts = {"total": len(lines), "completed": len(done), "failed": len(failed)}
    assert batch["request_counts"] == counts
    usages = [line["response"]["body"]["usage"] for line in done]
    assert sum(usage["prompt_tokens"] for usage in usages) == batch["usage"]["input_tokens"]
    assert sum(usage["completion_tokens"] for usage in usages) == batch["usage"]["output_tokens"]


async def check_ledger(site: Site, tenant: Key, batches: list[dict[str, Any]]) -> None:
    """Wait until the ledger has exactly the usage that the batches report, and the invoice comes to half its price."""
    used = [sum(batch["usage"][name] for batch in batches) for name in ("input_tokens", "output_tokens")]
    doubled = used[0] * INPUT_NANOS + used[1] * OUTPUT_NANOS
    found: tuple[int, ...] = ()
    sql = """
        SELECT coalesce(sum(prompt_tokens), 0)::bigint AS prompt,
               coalesce(sum(completion_tokens), 0)::bigint AS completion,
               coalesce(sum(cost_nanos), 0)::bigint AS cost, count(*) FILTER (WHERE prompt_tokens > 0) AS rows,
               count(*) FILTER (WHERE service_tier <> 'batch') AS others
        FROM usage_attempts WHERE project_id = $1
    """
    async with await Database.connect(site.dsn) as database:

        async def agrees() -> bool:
            nonlocal found
            async with database.acquire() as conn:
                row = await conn.fetchrow(sql, tenant.project_id)
            assert row is not None
            found = tuple(row.values())
            return list(found[:2]) == used

        await until(agrees, lambda: f"the ledger has {found}, the batches {used}", pause_s=0.2)
        num_done = sum(batch["request_counts"]["completed"] for batch in batches)
        assert (found[3], found[4]) == (num_done, 0)
        assert abs(2 * found[2] - doubled) <= num_done, "each row is rounded once"
        invoice: Invoice | None = None

        async def invoice_agrees() -> bool:
            nonlocal invoice
            async with database.acquire() as conn:
                invoice = await draft_invoice(conn, tenant.organization_id, tenant.project_id, THIS_MONTH)
            tokens = [0, 0]
            for line in invoice.lines:
                tokens[line.kind == "output"] += line.num_tokens
            return (invoice.total_nanos, tokens) == (found[2], used)

        await until(invoice_agrees, lambda: f"the ledger has {found}, the invoice is {invoice}", pause_s=0.2)
        assert invoice is not None and {line.service_tier for line in invoice.lines} == {"batch"}
