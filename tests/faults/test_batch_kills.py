"""Gateways, the engine and the database are killed over running batches: every line ends once, in the output or the
error file; counts agree, and the usage of the lines is that of the batch, of the ledger and of the invoice, at half the
price.

Three gateways in processes of their own, a database server of their own and the fake engine. A seed is a round with a
tenant of its own, some of whose batches run at any time until all kills are done. `make long-batches` runs 20 rounds of
50 kills; `FIRST_SEED=k` begins with round k, `NUM_ROUNDS=n` runs n rounds.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.batches.running import MAX_FAULTS
from gateway.db.billing.invoices import draft_invoice
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.domain.billing.invoice import Invoice
from gateway.settings import Settings
from tests.faults.processes import Engine, Gateway, Postgres
from tests.figures import figure
from tests.gateway.batches.jobs import CHAT, OPEN, chat_line, file_of
from tests.gateway.billing.books import THIS_MONTH
from tests.gateway.limits.fleet import INPUT_NANOS, OUTPUT_NANOS, set_prices
from tests.gateway.live import BASE
from tests.gateway.model_folder import make_model_folder
from tests.installation.tenants import Key, make_key
from tests.installation.waiting import until


class Size(msgspec.Struct, frozen=True):
    """The size of a round."""

    num_lines: int
    """The lines of each batch."""
    num_batches: int
    """The batches that run at once."""
    num_kills: int


SMALL, FULL = Size(60, 2, 3), Size(200, 8, 50)
FULL_ROUNDS = 20
MAX_PAUSE_S = 1.5
"""The longest pause before a kill."""


class Site(msgspec.Struct, frozen=True):
    """The processes that a test kills: a database server, three gateways and the fake engine."""

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
        flags = ("--tokens-per-s", "100", "--max-num-seqs", "64")
        engine = Engine(settings.engine.endpoint, model_dir, *flags, log=folder / "engine.log")
        stack.callback(engine.kill)
        engine.start()
        gateways = [Gateway(settings, postgres.dsn, number) for number in range(3)]
        for gateway in gateways:
            stack.callback(gateway.close)
            gateway.start()
        for gateway in gateways:
            gateway.wait_ready()
        yield Site(postgres, gateways, engine)


async def test_every_line_ends_once_and_is_billed_once_whoever_is_killed(site: Site, full: bool) -> None:
    first = int(os.environ.get("FIRST_SEED", "0"))
    num_rounds = int(os.environ.get("NUM_ROUNDS", str(FULL_ROUNDS))) if full else 1
    num_kills, num_batches, began_s = Counter[str](), 0, time.monotonic()
    async with httpx.AsyncClient(timeout=10) as client:
        for seed in range(first, first + num_rounds):
            tenant = await make_key(site.dsn, f"batches-{seed}")
            round = Round(site, tenant, client, FULL if full else SMALL, seed)
            batches = await round.run()
            num_kills += round.num_kills
            num_batches += len(batches)
            lines = sum(batch["request_counts"]["total"] for batch in batches)
            seconds = (time.monotonic() - began_s) / num_kills.total()
            print(f"seed {seed}: {dict(round.num_kills)} over {len(batches)} batches, {lines:,} lines; ", end="")
            print(f"{num_kills.total()} kills so far, {seconds:.1f} s each", flush=True)
    if full:
        figure(f"{num_kills.total()} kills {dict(num_kills)} over {num_batches} batches, {seconds:.1f} s each")


class Round:
    """The batches of one tenant, which run some at a time while processes are killed."""

    def __init__(self, site: Site, tenant: Key, client: httpx.AsyncClient, size: Size, seed: int) -> None:
        self._site = site
        self._tenant = tenant
        self._client = client
        self._size = size
        self._chance = random.Random(seed)
        self._contents: dict[str, list[dict[str, Any]]] = {}
        self._is_over = False
        self.num_kills: Counter[str] = Counter()

    async def run(self) -> list[dict[str, Any]]:
        """Run batches under kills until all have ended, check them, and return them."""
        rows = [asyncio.create_task(self._batches()) for _ in range(self._size.num_batches)]
        try:
            await until(self._has_begun, "no line ended")
            for number in range(self._size.num_kills):
                await asyncio.sleep(self._chance.random() * MAX_PAUSE_S)  # any moment will do
                await self._kill(("engine", "gateway", "database")[number % 3])
            self._is_over = True
            await asyncio.gather(*rows)
        finally:
            for row in rows:
                row.cancel()
        # A batch whose creation was answered to nobody was created once more: all that there are count.
        path = "/v1/batches?limit=100"
        batches: list[dict[str, Any]] = (await self._ask("GET", path))["data"]
        ended = [await self._ended(batch["id"]) for batch in batches]
        assert len(ended) < 100, "this is all of them"
        for batch in ended:
            await self._check(self._contents[batch["metadata"]["content"]], batch)
        await check_ledger(self._site, self._tenant, ended)
        return ended

    async def _batches(self) -> None:
        """Run one batch after the other until the kills are over."""
        while not self._is_over:
            name = f"content-{len(self._contents)}"
            self._contents[name] = lines = _lines(self._chance, self._size.num_lines)
            form = {"files": {"file": ("lines.jsonl", file_of(lines))}, "data": {"purpose": "batch"}}
            file = await self._ask("POST", "/v1/files", **form)
            asked = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
            batch = await self._ask("POST", "/v1/batches", json=asked | {"metadata": {"content": name}})
            await self._ended(batch["id"])

    async def _has_begun(self) -> bool:
        batches = (await self._ask("GET", "/v1/batches?limit=100"))["data"]
        return any(batch["request_counts"]["completed"] for batch in batches)

    async def _kill(self, kind: str) -> None:
        """Kill the engine, a gateway or the database, and start it again.

        Lines that have failed as often as they may may end first, since one more fault would rightly be their result.
        If they take long, a gateway is killed instead: its lines are begun again and do not count as failed.
        """
        give_up_s = time.monotonic() + MAX_PAUSE_S
        while kind != "gateway" and await self._num_endangered():
            if time.monotonic() > give_up_s:
                kind = "gateway"
            await asyncio.sleep(0.1)
        self.num_kills[kind] += 1
        if kind == "engine":
            await asyncio.to_thread(self._site.engine.restart)
        elif kind == "database":
            await asyncio.to_thread(self._site.postgres.kill)
        else:
            gateway = self._chance.choice(self._site.gateways)
            await asyncio.to_thread(gateway.kill)
            gateway.start()

    async def _num_endangered(self) -> int:
        sql = "SELECT count(*) FROM batch_lines WHERE num_faults >= $1 AND state IN ('waiting', 'running')"
        async with await Database.connect(self._site.dsn) as database, database.acquire() as conn:
            return int(await conn.fetchval(sql, MAX_FAULTS - 1))

    async def _ask(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self._text(method, path, **options))
        return found

    async def _text(self, method: str, path: str, **options: Any) -> str:
        """Send a request to the gateways in turn; return the first answer's body."""
        answer: httpx.Response | None = None

        async def answers() -> bool:
            nonlocal answer
            for gateway in self._site.gateways:
                try:
                    url = gateway.url + path
                    answer = await self._client.request(method, url, headers=self._tenant.headers, **options)
                except httpx.TransportError:
                    continue
                if answer.status_code == 200:
                    return True
            return False

        what = lambda: f"{method} {path}: {answer.text if answer is not None else 'nothing'}"  # noqa: E731
        await until(answers, what, pause_s=0.1)
        assert answer is not None
        return answer.text

    async def _ended(self, id: str) -> dict[str, Any]:
        """Return a batch once it is completed, in a bounded time after the last kill."""
        batch: dict[str, Any] = {}

        async def has_ended() -> bool:
            nonlocal batch
            batch = await self._ask("GET", f"/v1/batches/{id}")
            return batch["status"] not in OPEN

        async def has_ended_or_may() -> bool:
            return await has_ended() or self._is_over

        await until(has_ended_or_may, patience_s=math.inf, pause_s=0.5)
        await until(has_ended, lambda: f"the batch did not end: {batch}", pause_s=0.5)
        assert batch["status"] == "completed", batch
        return batch

    async def _check(self, lines: list[dict[str, Any]], batch: dict[str, Any]) -> None:
        """Check that each line is in one of the two files, and that both say what the batch says."""
        found: list[list[dict[str, Any]]] = []
        for file_id in (batch["output_file_id"], batch["error_file_id"]):
            text = await self._text("GET", f"/v1/files/{file_id}/content") if file_id else ""
            found.append([json.loads(line) for line in text.splitlines()])
        done, failed = found
        assert sorted(line["custom_id"] for line in [*done, *failed]) == sorted(line["custom_id"] for line in lines)
        wrong = {line["custom_id"] for line in lines if "temperature" in line["body"]}
        assert {line["custom_id"] for line in failed} == wrong, [
            line for line in failed if line["custom_id"] not in wrong
        ]
        counts = {"total": len(lines), "completed": len(done), "failed": len(failed)}
        assert batch["request_counts"] == counts
        usages = [line["response"]["body"]["usage"] for line in done]
        assert sum(usage["prompt_tokens"] for usage in usages) == batch["usage"]["input_tokens"]
        assert sum(usage["completion_tokens"] for usage in usages) == batch["usage"]["output_tokens"]


def _lines(rng: random.Random, num_lines: int) -> list[dict[str, Any]]:
    lines = [chat_line(f"line-{n}", f"text {n}", max_tokens=rng.randrange(1, 60)) for n in range(num_lines)]
    for line in rng.sample(lines, num_lines // 20):
        line["body"]["temperature"] = 9
    return lines


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
