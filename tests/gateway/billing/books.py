"""An organization with a tenant whose usage tests write, and the sums that its books must equal."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

import msgspec

from gateway.db.billing.prices import StoredVersion, add_version
from gateway.db.ledger.rollups import roll_up
from gateway.db.ledger.usage import UsageEvent, write_usage_events
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from gateway.domain.billing.book import Entry

MILLION = 1_000_000
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
THIS_MONTH = NOW.date().replace(day=1)


def month_before(start: datetime.date, months: int = 1) -> datetime.date:
    for _ in range(months):
        start = (start - datetime.timedelta(days=1)).replace(day=1)
    return start


def instant_in(month: datetime.date, day: int = 10) -> datetime.datetime:
    """Return noon of a day of a month. month: the first day of the month. day: the number of the day."""
    return datetime.datetime(month.year, month.month, day, 12, tzinfo=datetime.UTC)


FLAT = Entry("*", "*", "*", 3 * MILLION, 1 * MILLION, 7 * MILLION)
"""The prices in nanos per token: 3 for prompt tokens, 1 for cached ones and 7 for completion tokens."""


class Books(msgspec.Struct, frozen=True):
    """The ledger and the sums of one tenant."""

    database: Database
    organization_id: str
    project_id: str

    def event(self, request_id: str, **changes: object) -> UsageEvent:
        """Return a usage event with 10 prompt tokens, 4 of them cached, and 5 completion tokens, at the time `NOW`.

        changes: values of fields that differ.
        """
        values: dict[str, object] = {
            "request_id": request_id,
            "attempt": 0,
            "organization_id": self.organization_id,
            "project_id": self.project_id,
            "api_key_id": "key_a",
            "endpoint": "/v1/chat/completions",
            "model": "tiny",
            "adapter_id": None,
            "adapter_version": None,
            "adapter_digest": None,
            "stream": False,
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "completion_tokens": 5,
            "discarded_tokens": 0,
            "finish_reason": "stop",
            "queue_ms": 1.0,
            "prefill_ms": 2.0,
            "decode_ms": 3.0,
            "ttft_ms": 4.0,
            "latency_ms": 5.0,
            "adapter_load_bytes": 0,
            "created_at": NOW,
            "finished_at": NOW,
        }
        return UsageEvent(**(values | changes))  # type: ignore[arg-type]

    async def write(self, *events: UsageEvent) -> set[tuple[str, int]]:
        async with self.database.acquire() as conn:
            return await write_usage_events(conn, events)

    async def set_prices(
        self,
        entries: Sequence[Entry] = (FLAT,),
        discounts: Mapping[str, int] | None = None,
        effective_at: datetime.datetime | None = None,
    ) -> StoredVersion:
        async with self.database.transaction() as conn:
            return await add_version(
                conn,
                self.organization_id,
                currency="usd",
                entries=entries,
                discounts=dict(discounts or {}),
                effective_at=effective_at,
            )

    async def backdate_prices(self, since: datetime.datetime) -> None:
        """Make the first version of prices apply from `since` on, which the schema prevents outside of tests."""
        async with self.database.transaction() as conn:
            await conn.execute("ALTER TABLE price_versions DISABLE TRIGGER price_versions_stay")
            await conn.execute("UPDATE price_versions SET effective_at = $1 WHERE version = 1", since)
            await conn.execute("ALTER TABLE price_versions ENABLE TRIGGER price_versions_stay")

    async def roll_up(self) -> None:
        async with self.database.transaction() as conn:
            while await roll_up(conn):
                pass

    async def fetch(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        async with self.database.acquire() as conn:
            return [tuple(row) for row in await conn.fetch(sql, *values)]

    async def value(self, sql: str, *values: object) -> object:
        ((value,),) = await self.fetch(sql, *values)
        return value


async def open_books(database: Database, tenant: str = "acme", organization: str = "default") -> Books:
    async with database.acquire() as conn:
        organization_id = (await ensure_organization(conn, organization)).id
        project = await create_project(conn, organization_id, tenant)
    assert project is not None
    return Books(database, organization_id, project.id)
