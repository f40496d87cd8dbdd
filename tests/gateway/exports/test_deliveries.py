"""Scheduled deliveries: what is due arrives once, from one gateway, again and again until it does; secrets stay in."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.db import deliveries
from gateway.db.pool import Database
from gateway.exports.deliverer import Deliverer, places_below
from tests.gateway.admin_server import AdminServer, serve_admin
from tests.gateway.exports.ledger import BEFORE, Books, make_books
from tests.gateway.exports.s3_server import ACCESS_KEY, SECRET, S3Server

NOTHING = datetime.timedelta(0)
MONTHLY = {"name": "books", "kind": "costs", "format": "focus", "schedule": "monthly", "from_period": "2025-01"}
FOLDER = {"type": "folder", "path": "finance/monthly"}


def bucket(url: str) -> dict[str, str]:
    return {
        "type": "s3",
        "bucket": "books",
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET,
        "endpoint": url,
    }


@pytest.fixture
async def small(database: Database) -> Books:
    return await make_books(database, num_rows=40)


def found(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


async def order(server: AdminServer, **fields: Any) -> httpx.Response:
    async with server.client(server.operator_key) as operator:
        return await operator.post("/deliveries", json=MONTHLY | {"destination": FOLDER} | fields)


async def runs(server: AdminServer, delivery_id: str) -> list[dict[str, Any]]:
    async with server.client(server.operator_key) as operator:
        found: list[dict[str, Any]] = (await operator.get(f"/deliveries/{delivery_id}")).json()["runs"]
    return found


async def test_a_closed_month_is_delivered_once_by_one_of_many_gateways(small: Books, tmp_path: Path) -> None:
    async with serve_admin(small.database, tmp_path / "server") as server:
        made = (await order(server)).json()
        gateways = [
            Deliverer(small.database, places_below(tmp_path / str(number), allow_private=False)) for number in range(4)
        ]
        attempts = await asyncio.gather(*(gateway.deliver_due() for gateway in gateways))
        assert sum(attempts) == 1, attempts
        assert [await gateway.deliver_due() for gateway in gateways] == [0, 0, 0, 0]
        (run,) = await runs(server, made["id"])
        assert (run["period"], run["attempts"], run["due_at"], run["last_error"]) == (BEFORE, 1, None, None)
    files = [path.relative_to(tmp_path).parts[1:] for path in found(tmp_path, "costs*")]
    below = (small.organization_id, "finance", "monthly")
    assert files == [(*below, f"costs-{BEFORE}.focus.csv"), (*below, f"costs-{BEFORE}.focus.csv.manifest.json")]


async def test_every_day_that_is_over_is_delivered(small: Books, tmp_path: Path) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    since = today - datetime.timedelta(days=3)
    async with serve_admin(small.database, tmp_path / "server") as server:
        reply = await order(server, schedule="daily", from_period=since.isoformat())
        await Deliverer(small.database, places_below(tmp_path / "out", allow_private=False)).deliver_due()
        days = {run["period"] for run in await runs(server, reply.json()["id"])}
    assert {(since + datetime.timedelta(days=n)).isoformat() for n in range(2)} <= days
    assert today.isoformat() not in days
    assert {path.name[6:16] for path in found(tmp_path, "*.focus.csv")} == days


async def test_what_fails_is_tried_again_after_growing_pauses_until_it_arrives(small: Books, tmp_path: Path) -> None:
    with S3Server() as store:
        async with serve_admin(small.database, tmp_path) as server:
            made = (await order(server, destination=bucket(store.url))).json()
            impatient = Deliverer(small.database, places_below(tmp_path, allow_private=True), first_delay=NOTHING)
            store.fail_puts = 3
            assert await impatient.deliver_due() == 4
            assert len(store.objects) == 2 and store.uploads == {}
            (run,) = await runs(server, made["id"])
            assert run["attempts"] == 4
        async with small.database.acquire() as conn:
            pauses = []
            await conn.execute("UPDATE delivery_runs SET delivered_at = NULL, attempts = 0")
            for _ in range(12):
                due = await deliveries.next_due_run(conn)
                assert due is not None
                await deliveries.note_failed(conn, due, "no")
                left = await conn.fetchval("SELECT due_at - clock_timestamp() FROM delivery_runs")
                pauses.append(round(left.total_seconds()))
                await conn.execute("UPDATE delivery_runs SET due_at = now()")
    assert pauses == [30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, 21600, 21600]


async def test_a_secret_goes_in_and_never_comes_out(
    small: Books, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with S3Server() as store:
        async with serve_admin(small.database, tmp_path) as server:
            shown = [await order(server, destination=bucket(store.url))]
            store.fail_puts = 1  # it quotes the secret in its refusal
            deliverer = Deliverer(small.database, places_below(tmp_path, allow_private=True))
            assert await deliverer.deliver_due() == 1
            async with server.client(server.operator_key) as operator:
                shown += [await operator.get(path) for path in ("/deliveries", f"/deliveries/{shown[0].json()['id']}")]
                shown.append(await operator.get("/audit_logs"))
                shown.append(await operator.delete(f"/deliveries/{shown[0].json()['id']}"))
    assert [reply.status_code for reply in shown] == [200] * 5
    assert "AccessDenied" in shown[2].text and ACCESS_KEY in shown[1].text
    assert not any(SECRET in reply.text for reply in shown)
    logged = capfd.readouterr()
    assert "delivery_failed" in logged.out + logged.err and SECRET not in logged.out + logged.err


async def test_a_store_at_a_private_address_is_refused_unless_that_is_wanted(small: Books, tmp_path: Path) -> None:
    with S3Server() as store:
        async with serve_admin(small.database, tmp_path) as server:
            made = (await order(server, destination=bucket(store.url))).json()
            await Deliverer(small.database, places_below(tmp_path, allow_private=False)).deliver_due()
            (run,) = await runs(server, made["id"])
        assert "not a public address" in run["last_error"] and run["delivered_at"] is None
        assert store.objects == {}


STORE = bucket("https://s3.example.com")
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"destination": {"type": "folder", "path": "../elsewhere"}}, "destination.path"),
    ({"destination": {"type": "folder", "path": "/etc"}}, "destination.path"),
    ({"destination": {"type": "folder", "path": "a//b"}}, "destination.path"),
    ({"destination": {"type": "folder", "path": ".hidden"}}, "destination.path"),
    ({"destination": {"type": "ftp", "path": "x"}}, "destination"),
    ({"destination": STORE | {"bucket": "A/B"}}, "destination.bucket"),
    ({"destination": STORE | {"secret_access_key": ""}}, "destination.secret_access_key"),
    ({"destination": STORE | {"endpoint": "https://user:pass@s3.example.com"}}, "destination.endpoint"),
    ({"destination": STORE | {"endpoint": "file:///etc/passwd"}}, "destination.endpoint"),
    ({"destination": STORE | {"prefix": "../x"}}, "destination.prefix"),
    ({"destination": STORE | {"region": "the moon"}}, "destination.region"),
    ({"destination": STORE | {"surprise": "x"}}, "destination"),
    ({"format": "stripe"}, "format"),
    ({"kind": "invoice", "format": "csv", "schedule": "daily"}, "schedule"),
    ({"from_period": "soon"}, "from_period"),
    ({"name": " x"}, "name"),
]


async def test_a_wrong_delivery_is_refused_by_its_field(database: Database, tmp_path: Path) -> None:
    async with serve_admin(database, tmp_path) as server:
        for fields, param in WRONG:
            reply = await order(server, **fields)
            assert reply.status_code == 400, fields
            assert reply.json()["error"]["param"].startswith(param), reply.text
        async with server.client(server.operator_key) as operator:
            assert (await operator.get("/deliveries")).json()["data"] == []


async def test_setting_a_delivery_again_changes_it_and_keeps_what_was_delivered(small: Books, tmp_path: Path) -> None:
    deliverer = Deliverer(small.database, places_below(tmp_path / "out", allow_private=False))
    async with serve_admin(small.database, tmp_path / "server") as server:
        first = (await order(server)).json()
        assert await deliverer.deliver_due() == 1
        second = (await order(server, format="csv")).json()
        assert (second["id"], second["format"]) == (first["id"], "csv")
        assert await deliverer.deliver_due() == 0
        async with server.client(server.operator_key) as operator:
            events = [row["type"] for row in (await operator.get("/audit_logs")).json()["data"]]
    assert events[:2] == ["delivery.updated", "delivery.created"]
