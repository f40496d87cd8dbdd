"""Scheduled deliveries: a due delivery is tried, by one gateway, until it arrives, and arrives once; secrets stay
in."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.db.billing import deliveries
from gateway.db.billing.deliveries import DeliveryRow, try_become_deliverer
from gateway.exports.deliverer import Deliverer, places_below
from gateway.exports.place import Place
from tests.gateway.admin_server import SECRETS, AdminServer, serve_admin
from tests.gateway.exports.ledger import BEFORE, Books, write_usage
from tests.gateway.exports.reading import json_rows
from tests.gateway.exports.s3_server import ACCESS_KEY, SECRET, S3Server

NOTHING = datetime.timedelta(0)
MONTHLY = {"name": "books", "kind": "costs", "format": "focus", "schedule": "monthly", "from_period": "2025-09"}
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
async def books(books: Books) -> Books:
    """Return the books, after removing the deliveries of the last test."""
    async with books.database.acquire() as conn:
        await conn.execute("DELETE FROM deliveries")
    return books


def files_in(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


async def request_delivery(server: AdminServer, **fields: Any) -> httpx.Response:
    async with server.client(server.operator_key) as operator:
        return await operator.post("/deliveries", json=MONTHLY | {"destination": FOLDER} | fields)


async def runs_of(server: AdminServer, delivery_id: str) -> list[dict[str, Any]]:
    async with server.client(server.operator_key) as operator:
        found: list[dict[str, Any]] = (await operator.get(f"/deliveries/{delivery_id}")).json()["runs"]
    return found


async def test_a_closed_month_is_delivered_once_by_one_of_many_gateways(books: Books, tmp_path: Path) -> None:
    async with serve_admin(books.database, tmp_path / "server") as server:
        made = (await request_delivery(server)).json()
        gateways = [
            Deliverer(books.database, places_below(tmp_path / str(number), allow_private=False), SECRETS)
            for number in range(4)
        ]
        attempts = await asyncio.gather(*(gateway.deliver_due() for gateway in gateways))
        assert sum(attempts) == 1, attempts
        assert [await gateway.deliver_due() for gateway in gateways] == [0, 0, 0, 0]
        other = await books.database.connect_alone()
        assert await try_become_deliverer(other), "whoever has delivered lets others do it"
        await other.close()
        (run,) = await runs_of(server, made["id"])
        assert (run["period"], run["attempts"], run["due_at"], run["last_error"]) == (BEFORE, 1, None, None)
    files = [path.relative_to(tmp_path).parts[1:] for path in files_in(tmp_path, "costs*")]
    below = (books.organization_id, "finance", "monthly")
    assert files == [(*below, f"costs-{BEFORE}.focus.csv"), (*below, f"costs-{BEFORE}.focus.csv.manifest.json")]


async def test_every_day_that_is_over_is_delivered_and_again_once_late_rows_have_come(
    books: Books, tmp_path: Path
) -> None:
    """A day whose sums stay the same is not delivered again."""
    today = datetime.datetime.now(datetime.UTC).date()
    since = today - datetime.timedelta(days=3)
    deliverer = Deliverer(books.database, places_below(tmp_path / "out", allow_private=False), SECRETS)
    async with serve_admin(books.database, tmp_path / "server") as server:
        daily = {"kind": "usage", "format": "jsonl", "schedule": "daily", "from_period": since.isoformat()}
        made = (await request_delivery(server, **daily)).json()
        num_days = await deliverer.deliver_due()
        days = [run["period"] for run in await runs_of(server, made["id"])]
        assert {(since + datetime.timedelta(days=n)).isoformat() for n in range(2)} <= set(days)
        assert today.isoformat() not in days and len(days) == num_days
        assert [path.name[6:16] for path in files_in(tmp_path, "*.jsonl")] == sorted(days)
        late = datetime.datetime.combine(since, datetime.time(5), datetime.UTC)
        async with books.database.transaction() as conn:
            await conn.execute("SELECT ensure_ledger_day($1)", since)
            await write_usage(conn, books, "req_late_today_", late, late + datetime.timedelta(hours=1), 3)
        assert await deliverer.deliver_due() == 0, "not within the hour"
        for num_again in (1, 0):
            async with books.database.acquire() as conn:
                await conn.execute("UPDATE delivery_runs SET checked_at = now() - interval '61 minutes'")
            assert await deliverer.deliver_due() == num_again
        (path,) = files_in(tmp_path, f"usage-{since}.jsonl")
        assert [row["request_id"][:15] for row in json_rows(path.read_bytes())] == ["req_late_today_"] * 3


async def test_a_destination_that_fails_in_any_way_holds_up_nobody_else(
    books: Books, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The URL with a name that no resolver takes was stored before names were checked; the other one fails in its
    own way."""
    endpoints = {"dots": "https://a..b.example", "long": f"https://{'x' * 64}.example"}
    places = places_below(tmp_path / "out", allow_private=False)

    async def place(delivery: DeliveryRow) -> Place:
        if delivery.name == "unforeseen":
            raise ZeroDivisionError(f"not to be told: {(delivery.secret or b'').decode()}")
        return await places(delivery)

    async with serve_admin(books.database, tmp_path / "server") as server:
        made = {name: (await request_delivery(server, name=name, destination=STORE)).json()["id"] for name in endpoints}
        made |= {"unforeseen": (await request_delivery(server, name="unforeseen", destination=STORE)).json()["id"]}
        made |= {"well": (await request_delivery(server, name="well")).json()["id"]}
        async with books.database.acquire() as conn:
            for name, endpoint in endpoints.items():
                await conn.execute(
                    "UPDATE deliveries SET destination = destination || jsonb_build_object('endpoint', $2::text)"
                    " WHERE name = $1",
                    name,
                    endpoint,
                )
        assert await Deliverer(books.database, place, SECRETS).deliver_due() == 4
        (errors,) = zip(*[await runs_of(server, each) for each in made.values()], strict=True)
    assert [run["last_error"] for run in errors] == [
        "the host name of the endpoint has no address",
        "the host name of the endpoint has no address",
        "an unexpected failure; the server's log has the details",
        None,
    ]
    assert len(files_in(tmp_path, "costs*")) == 2
    logged = capfd.readouterr()
    assert "ZeroDivisionError: not to be told: ***" in logged.out + logged.err


async def test_a_failed_delivery_is_tried_again_after_growing_pauses_until_it_arrives(
    books: Books, tmp_path: Path
) -> None:
    with S3Server() as store:
        async with serve_admin(books.database, tmp_path) as server:
            made = (await request_delivery(server, destination=bucket(store.url))).json()
            impatient = Deliverer(
                books.database, places_below(tmp_path, allow_private=True), SECRETS, first_delay=NOTHING
            )
            store.fail_puts = 3
            assert await impatient.deliver_due() == 4
            assert len(store.objects) == 2 and store.uploads == {}
            (run,) = await runs_of(server, made["id"])
            assert run["attempts"] == 4
        async with books.database.acquire() as conn:
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
    books: Books, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with S3Server() as store:
        async with serve_admin(books.database, tmp_path) as server:
            shown = [await request_delivery(server, destination=bucket(store.url))]
            store.fail_puts = 1  # the refusal quotes the secret
            deliverer = Deliverer(books.database, places_below(tmp_path, allow_private=True), SECRETS)
            assert await deliverer.deliver_due() == 1
            async with server.client(server.operator_key) as operator:
                shown += [await operator.get(path) for path in ("/deliveries", f"/deliveries/{shown[0].json()['id']}")]
                shown.append(await operator.get("/audit_logs"))
                shown.append(await operator.delete(f"/deliveries/{shown[0].json()['id']}"))
    assert [reply.status_code for reply in shown] == [200] * 5
    assert "the destination refused the access key" in shown[2].text and ACCESS_KEY in shown[1].text
    assert "AccessDenied" not in shown[2].text, "what was spoken to, and what it said, is for the operator's log"
    assert not any(SECRET in reply.text for reply in shown)
    logged = capfd.readouterr()
    assert "AccessDenied" in logged.out + logged.err and SECRET not in logged.out + logged.err


async def test_a_store_at_a_private_address_is_refused_unless_that_is_wanted(books: Books, tmp_path: Path) -> None:
    with S3Server() as store:
        async with serve_admin(books.database, tmp_path) as server:
            made = (await request_delivery(server, destination=bucket(store.url))).json()
            await Deliverer(books.database, places_below(tmp_path, allow_private=False), SECRETS).deliver_due()
            (run,) = await runs_of(server, made["id"])
        assert (
            "not a public address; the setting LORIKEET_PRIVATE_WEBHOOKS allows" in run["last_error"]
            and run["delivered_at"] is None
        )
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
    ({"destination": STORE | {"endpoint": "https://a..b.example"}}, "destination.endpoint"),
    ({"destination": STORE | {"endpoint": f"https://{'x' * 64}.example"}}, "destination.endpoint"),
    ({"destination": STORE | {"prefix": "../x"}}, "destination.prefix"),
    ({"destination": STORE | {"region": "the moon"}}, "destination.region"),
    ({"destination": STORE | {"surprise": "x"}}, "destination"),
    ({"format": "stripe"}, "format"),
    ({"kind": "invoice", "format": "csv", "schedule": "daily"}, "schedule"),
    ({"from_period": "soon"}, "from_period"),
    ({"from_period": "1999-11"}, "from_period"),
    ({"schedule": "daily", "from_period": "2025-01-01"}, "from_period"),
    ({"name": " x"}, "name"),
]


async def test_a_wrong_delivery_is_refused_by_its_field(books: Books, tmp_path: Path) -> None:
    async with serve_admin(books.database, tmp_path) as server:
        for fields, param in WRONG:
            reply = await request_delivery(server, **fields)
            assert reply.status_code == 400, fields
            assert reply.json()["error"]["param"].startswith(param), reply.text
        async with server.client(server.operator_key) as operator:
            assert (await operator.get("/deliveries")).json()["data"] == []


async def test_setting_a_delivery_again_changes_it_and_keeps_what_was_delivered(books: Books, tmp_path: Path) -> None:
    deliverer = Deliverer(books.database, places_below(tmp_path / "out", allow_private=False), SECRETS)
    async with serve_admin(books.database, tmp_path / "server") as server:
        first = (await request_delivery(server)).json()
        assert await deliverer.deliver_due() == 1
        second = (await request_delivery(server, format="csv", from_period=None)).json()
        assert (second["id"], second["format"], second["from_period"]) == (first["id"], "csv", "2025-09")
        assert await deliverer.deliver_due() == 0
        async with server.client(server.operator_key) as operator:
            events = [row["type"] for row in (await operator.get("/audit_logs")).json()["data"]]
        third = (await request_delivery(server, from_period="2025-10")).json()
        assert third["from_period"] == "2025-10"
    assert events[:2] == ["delivery.updated", "delivery.created"]
