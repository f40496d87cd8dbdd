"""Accounts equal the ledger's sums, however its rows come and change; leases end when their gateway is silent."""

from __future__ import annotations

import asyncio
import datetime
import itertools

import asyncpg
import pytest

from gateway.db.ledger.rollups import roll_up
from gateway.db.ledger.usage import UsageEvent, write_usage_events
from gateway.db.limits.leases import PostgresLeases, unix_ns
from gateway.db.limits.limits import LimitState, list_limits, load_limits, remove_limit, set_limit
from gateway.db.organization.keys import create_key
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from gateway.domain.limits.exchange import Snapshot
from gateway.domain.limits.limit import Limit, Unit, Window, calendar_window
from gateway.domain.limits.slices import Key
from gateway.domain.limits.store import SessionLost
from gateway.domain.tenancy.keys import new_key
from tests.installation.databases import NUM_WAITING
from tests.patience import TRIES

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture
async def acme(database: Database) -> Limit:
    """Return a limit of the project acme, as a template for others."""
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, "acme")
    assert project is not None
    return Limit("", organization.id, project.id, None, None, "tokens", "day", 100, True)


def event(limit: Limit, request_id: str, tokens: int = 5, **changes: object) -> UsageEvent:
    values: dict[str, object] = {
        "request_id": request_id,
        "attempt": 0,
        "organization_id": limit.organization_id,
        "project_id": limit.project_id,
        "api_key_id": "key_a",
        "endpoint": "/v1/completions",
        "model": "tiny",
        "adapter_id": None,
        "adapter_version": None,
        "adapter_digest": None,
        "stream": False,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "completion_tokens": tokens,
        "discarded_tokens": 0,
        "finish_reason": "stop",
        "queue_ms": 0.0,
        "prefill_ms": 0.0,
        "decode_ms": 0.0,
        "ttft_ms": None,
        "latency_ms": None,
        "adapter_load_bytes": 0,
        "created_at": NOW,
        "finished_at": NOW,
    }
    return UsageEvent(**(values | changes))  # type: ignore[arg-type]


async def put_limit(database: Database, limit: Limit, **changes: object) -> str:
    async with database.acquire() as conn:
        limit_id, _ = await set_limit(conn, Limit(**{**_fields(limit), **changes}))  # type: ignore[arg-type]
        return limit_id


def _fields(limit: Limit) -> dict[str, object]:
    return {field: getattr(limit, field) for field in limit.__struct_fields__}


async def limit_state(database: Database, limit: Limit, limit_id: str) -> LimitState:
    async with database.acquire() as conn:
        (found,) = await list_limits(conn, limit.organization_id, limit.project_id, limit_id=limit_id)
        return found


async def write_events(database: Database, *events: UsageEvent) -> None:
    async with database.acquire() as conn:
        await write_usage_events(conn, events)


@pytest.mark.parametrize(
    ("unit", "window", "used"),
    [
        ("requests", "minute", 2),
        ("input_tokens", "day", 30),
        ("output_tokens", "month", 15),
        ("tokens", "day", 45),
        ("cost_nanos", "day", 0),
    ],
)
async def test_usage_is_settled_whether_the_limit_is_made_before_or_after_it(
    database: Database, acme: Limit, unit: Unit, window: Window, used: int
) -> None:
    before = await put_limit(database, acme, unit=unit, window=window)
    await write_events(database, event(acme, "req_1"), event(acme, "req_1.1"))
    async with database.transaction() as conn:
        await roll_up(conn)
    await write_events(database, event(acme, "req_2"))  # waits to be rolled up
    after = await put_limit(database, acme, unit=unit, window=window, hard=False)
    if window == "minute" and calendar_window("minute", unix_ns(NOW)) != calendar_window(
        "minute", unix_ns(await _now(database))
    ):
        return  # the minute ended meanwhile
    assert (await limit_state(database, acme, before)).used == used
    assert (await limit_state(database, acme, after)).used == used


async def test_limits_made_while_usage_is_written_and_rolled_up_count_every_row_once(
    database: Database, acme: Limit
) -> None:
    units: tuple[Unit, ...] = ("requests", "input_tokens", "output_tokens", "tokens")
    windows: tuple[Window, ...] = ("day", "month")
    num_requests, made, done = 60, dict[str, Unit](), asyncio.Event()

    async def use() -> None:
        for number in range(num_requests):
            await write_events(database, event(acme, f"req_{number}"))
        done.set()

    async def sum_up() -> None:
        while not done.is_set():
            async with database.transaction() as conn:
                await roll_up(conn, 3)

    async def limit() -> None:
        for unit, window, hard in itertools.product(units, windows, (True, False)):
            made[await put_limit(database, acme, unit=unit, window=window, hard=hard)] = unit

    await asyncio.gather(use(), sum_up(), limit())
    each = {"requests": 1, "input_tokens": 10, "output_tokens": 5, "tokens": 15}
    for limit_id, unit in made.items():
        assert (await limit_state(database, acme, limit_id)).used == num_requests * each[unit], unit


async def test_a_new_limit_waits_for_nobody_but_the_ledger_and_not_for_long(database: Database, acme: Limit) -> None:
    async with database.transaction() as writer:
        await write_usage_events(writer, [event(acme, "req_1")])
        for _ in range(TRIES):  # a busy machine may take as long as it waits
            making = asyncio.create_task(put_limit(database, acme))
            async with database.acquire() as conn:
                while not making.done() and not await conn.fetchval(NUM_WAITING):
                    pass
                await conn.execute("UPDATE installation SET change_version = change_version + 1")
            still_waits = not making.done()
            with pytest.raises(asyncpg.LockNotAvailableError):
                await making
            if still_waits:
                break
        assert still_waits, "others change things meanwhile"
    assert (await limit_state(database, acme, await put_limit(database, acme))).used == 15


async def test_a_row_counts_once_and_its_correction_by_the_difference(database: Database, acme: Limit) -> None:
    limit_id = await put_limit(database, acme)
    guess = event(acme, "req_1", 3, finish_reason="error")
    for each in (guess, guess, event(acme, "req_1", 8), event(acme, "req_1", 9)):
        await write_events(database, each)
    assert (await limit_state(database, acme, limit_id)).used == 18


async def test_usage_of_other_projects_and_windows_does_not_count(database: Database, acme: Limit) -> None:
    whole = await put_limit(database, acme, project_id=None)
    model = await put_limit(database, acme, model="tiny:pirate")
    async with database.acquire() as conn:
        made = new_key()
        key = await create_key(
            conn,
            organization_id=acme.organization_id,
            project_id=acme.project_id,
            name="a",
            public=made.public,
            sha256=made.sha256,
            scopes=["inference"],
        )
    assert key is not None
    mine = await put_limit(database, acme, api_key_id=key.id)
    yesterday = NOW - datetime.timedelta(days=1, minutes=1)
    await write_events(
        database,
        event(acme, "req_1"),
        event(acme, "req_2", model="tiny:pirate"),
        event(acme, "req_3", api_key_id=key.id),
        event(acme, "req_4", project_id="proj_other"),
        event(acme, "req_5", organization_id="org_other", project_id="proj_other"),
        event(acme, "req_6", created_at=yesterday),
    )
    async with database.acquire() as conn:
        (found,) = await list_limits(conn, acme.organization_id, None)
    assert (found.limit.id, found.used) == (whole, 60)
    assert (await limit_state(database, acme, model)).used == 15
    assert (await limit_state(database, acme, mine)).used == 15


async def test_a_limit_set_while_usage_is_written_misses_none_of_it(database: Database, acme: Limit) -> None:
    async def keep_writing(first: int) -> None:
        for number in range(first, first + 40):
            await write_events(database, event(acme, f"req_{number}"))

    async def keep_setting() -> None:
        for number in range(8):
            await put_limit(database, acme, model=None, unit="tokens", max=number, hard=bool(number % 2))
            await put_limit(database, acme, model="tiny", unit="requests", window="month" if number % 2 else "day")

    await asyncio.gather(keep_writing(0), keep_writing(100), keep_setting())
    async with database.acquire() as conn:
        used = {(each.limit.unit, each.used) for each in await list_limits(conn, acme.organization_id, acme.project_id)}
    assert used == {("tokens", 80 * 15), ("requests", 80)}


async def test_setting_is_idempotent_and_tells_caches_once(database: Database, acme: Limit) -> None:
    first = await put_limit(database, acme)
    async with database.acquire() as conn:
        version = await conn.fetchval("SELECT change_version FROM installation")
    assert await put_limit(database, acme) == first
    async with database.acquire() as conn:
        assert await conn.fetchval("SELECT change_version FROM installation") == version
        changed, is_new = await set_limit(conn, Limit(**{**_fields(acme), "max": 5}))  # type: ignore[arg-type]
        assert (changed, is_new) == (first, False)
        assert await conn.fetchval("SELECT change_version FROM installation") == version + 1
        (loaded,) = await load_limits(conn, acme.organization_id, acme.project_id or "")
        assert loaded.max == 5
        assert await remove_limit(conn, acme.organization_id, acme.project_id, first)
        assert not await remove_limit(conn, acme.organization_id, acme.project_id, first)
        assert not await load_limits(conn, acme.organization_id, acme.project_id or "")


async def test_leases_are_seen_by_others_and_end_with_their_gateway(database: Database, acme: Limit) -> None:
    limit_id = await put_limit(database, acme)
    leases = PostgresLeases(database)
    seen: list[int] = []

    async def exchange(gateway_id: str, amount: int) -> None:
        def decide(snapshot: Snapshot | None) -> dict[Key, int]:
            assert snapshot is not None
            account = snapshot.accounts[limit_id]
            assert account.window_start == calendar_window("day", snapshot.now_ns).start
            seen.append(account.leased)
            return {(limit_id, account.window_start): amount}

        await leases.exchange(gateway_id, [limit_id], decide)

    for gateway_id in ("one", "two"):
        await leases.claim(gateway_id, {})
    await exchange("one", 30)
    await exchange("two", 20)
    await exchange("one", 40)
    await exchange("two", 0)
    await exchange("one", 40)
    assert seen == [0, 30, 20, 40, 0]
    assert (await limit_state(database, acme, limit_id)).reserved == 40
    await _backdate_gateway(database, "one", heard_s=6)
    assert (await leases.beat("two")).num_gateways == 2  # counted before this beat suspects the other one
    assert (await leases.beat("two")).num_gateways == 1
    assert (await limit_state(database, acme, limit_id)).reserved == 40, "suspected, not forgotten"
    await _backdate_gateway(database, "one", suspected_s=16)
    await leases.beat("two")
    assert (await limit_state(database, acme, limit_id)).reserved == 0
    for lost in (leases.beat("one"), exchange("one", 1)):
        with pytest.raises(SessionLost):
            await lost
    await leases.claim("again", {(limit_id, calendar_window("day", unix_ns(NOW)).start): 7})
    await leases.leave("again")
    assert (await limit_state(database, acme, limit_id)).reserved == 0


async def test_time_in_which_the_database_was_away_makes_nobody_forgotten(database: Database) -> None:
    """The first gateway to reach the database afterwards is an old one, or a new one."""
    leases = PostgresLeases(database)
    for number, newcomer in enumerate((False, True)):
        late, other = f"late{number}", f"other{number}"
        await leases.claim(late, {})
        await leases.claim(other, {})
        await _backdate_gateway(database, late, heard_s=6)
        await leases.beat(other)  # and now it is suspected
        for gateway_id in (late, other):
            await _backdate_gateway(database, gateway_id, heard_s=30, suspected_s=30)
        if newcomer:
            await leases.claim("new", {})
        await leases.beat(other)
        await leases.beat(late)  # raises SessionLost where it was forgotten
        for gateway_id in (late, other):
            await leases.leave(gateway_id)


async def test_concurrent_exchanges_see_each_other(database: Database, acme: Limit) -> None:
    limit_id = await put_limit(database, acme)
    leases = PostgresLeases(database)
    granted: dict[str, int] = {}

    async def take(gateway_id: str) -> None:
        await leases.claim(gateway_id, {})

        def decide(snapshot: Snapshot | None) -> dict[Key, int]:
            assert snapshot is not None
            account = snapshot.accounts[limit_id]
            granted[gateway_id] = min(30, account.max - account.settled - account.leased)
            return {(limit_id, account.window_start): granted[gateway_id]}

        await leases.exchange(gateway_id, [limit_id], decide)

    await asyncio.gather(*(take(f"gw{number}") for number in range(6)))
    assert sum(granted.values()) == acme.max
    assert (await limit_state(database, acme, limit_id)).free == 0


async def test_a_threshold_is_announced_once_per_window(database: Database, acme: Limit) -> None:
    limit_id = await put_limit(database, acme, hard=False, alert_percents=(50, 100))
    async with database.acquire() as conn:
        await conn.execute(
            "INSERT INTO webhooks (id, organization_id, url, secret) VALUES ('wh', $1, 'http://localhost', '\\x00')",
            acme.organization_id,
        )
    for number in range(8):
        await write_events(database, event(acme, f"req_{number}"))
    async with database.acquire() as conn:
        rows = await conn.fetch(
            "SELECT (body::json)->'data'->>'percent' AS percent, (body::json)->'data'->>'used' AS used "
            "FROM webhook_deliveries ORDER BY due_at"
        )
        assert await conn.fetchval("SELECT count(*) FROM limit_alerts WHERE limit_id = $1", limit_id) == 2
    assert [(row["percent"], row["used"]) for row in rows] == [("50", "60"), ("100", "105")]


async def test_another_maximum_is_announced_in_the_same_window(database: Database, acme: Limit) -> None:
    limit_id = await put_limit(database, acme, max=20, alert_percents=(80,))
    await write_events(database, event(acme, "req_0", tokens=10))
    assert await num_alerts(database, limit_id) == 1
    assert await put_limit(database, acme, max=20, alert_percents=(80, 100)) == limit_id
    assert await num_alerts(database, limit_id) == 1, "the maximum is the same"
    await put_limit(database, acme, max=100, alert_percents=(80,))
    assert await num_alerts(database, limit_id) == 0
    await write_events(database, event(acme, "req_1", tokens=10))
    assert await num_alerts(database, limit_id) == 0
    await write_events(database, event(acme, "req_2", tokens=40))
    assert await num_alerts(database, limit_id) == 1


async def num_alerts(database: Database, limit_id: str) -> int:
    async with database.acquire() as conn:
        count: int = await conn.fetchval("SELECT count(*) FROM limit_alerts WHERE limit_id = $1", limit_id)
        return count


async def test_a_key_of_another_project_cannot_be_limited(database: Database, acme: Limit) -> None:
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await put_limit(database, acme, api_key_id="key_of_nobody")


async def _backdate_gateway(database: Database, gateway_id: str, *, heard_s: int = 0, suspected_s: int = 0) -> None:
    async with database.acquire() as conn:
        await conn.execute(
            "UPDATE limit_gateways SET heard_at = heard_at - $2::interval, suspected_at = suspected_at - $3::interval "
            "WHERE id = $1",
            gateway_id,
            datetime.timedelta(seconds=heard_s),
            datetime.timedelta(seconds=suspected_s),
        )


async def _now(database: Database) -> datetime.datetime:
    async with database.acquire() as conn:
        now: datetime.datetime = await conn.fetchval("SELECT clock_timestamp()")
        return now
