"""The price book: versions with their entries and discounts, stored once; once in force, never changed."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id
from gateway.db.ledger.standstill import hold_ledger
from gateway.db.limits.leases import unix_ns
from gateway.db.pool import Database
from gateway.domain.billing.book import Book, Entry, Version
from gateway.domain.billing.money import DEFAULT_CURRENCY

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

LEAD = datetime.timedelta(seconds=20)
"""The time from setting prices until they apply, once there is usage.

Every gateway knows the prices by then: one without news of the database for 15 s reserves nothing any more.
"""


class StoredVersion(msgspec.Struct, frozen=True):
    """A version of the price book as it was stored."""

    id: str
    created_at: datetime.datetime
    version: Version


class InvalidPriceVersion(Exception):
    """The error for a wrong version of the price book. field: the wrong part."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


_VERSIONS = """
    SELECT v.id, v.organization_id, v.version, v.currency, v.effective_at, v.created_at,
           coalesce((SELECT array_agg(ROW(p.model, p.adapter_class, p.service_tier, p.input_nanos,
                                          p.cached_input_nanos, p.output_nanos)
                                      ORDER BY p.model, p.adapter_class, p.service_tier)
                     FROM prices p WHERE (p.organization_id, p.version) = (v.organization_id, v.version)), '{}')
               AS entries,
           coalesce((SELECT array_agg(ROW(d.project_id, d.basis_points) ORDER BY d.project_id)
                     FROM price_discounts d WHERE (d.organization_id, d.version) = (v.organization_id, v.version)),
                    '{}') AS discounts
    FROM price_versions v
    WHERE ($1::text IS NULL OR v.organization_id = $1) AND ($2::text IS NULL OR v.version <
          (SELECT a.version FROM price_versions a WHERE a.organization_id = $1 AND a.id = $2))
    ORDER BY v.organization_id, v.version DESC LIMIT $3
"""


async def list_versions(
    conn: Connection, organization_id: str, *, after: str | None = None, limit: int | None = None
) -> list[StoredVersion]:
    """Return versions of prices, newest first, those before the one with id `after`; none if that does not exist."""
    return [_stored_version(row) for row in await conn.fetch(_VERSIONS, organization_id, after, limit)]


_EXISTS = "SELECT EXISTS (SELECT FROM price_versions WHERE organization_id = $1 AND id = $2)"


async def version_exists(conn: Connection, organization_id: str, version_id: str) -> bool:
    """Tell whether an organization's price book has a version."""
    return bool(await conn.fetchval(_EXISTS, organization_id, version_id))


class PriceLoader:
    """Loads prices for `PriceCache`.

    Raises one of `gateway.db.pool.FAILURES`: when the database fails.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __call__(self) -> dict[str, Book]:
        """Return the price book of each organization."""
        books: dict[str, list[Version]] = {}
        async with self._database.acquire() as conn:
            for row in await conn.fetch(_VERSIONS, None, None, None):
                books.setdefault(row["organization_id"], []).insert(0, _stored_version(row).version)
        return dict(books)


_CURRENCY = "SELECT currency FROM price_versions WHERE organization_id = $1 LIMIT 1"


async def currency_of(conn: Connection, organization_id: str) -> str:
    """Return the currency of all of an organization's prices."""
    currency: str | None = await conn.fetchval(_CURRENCY, organization_id)
    return currency or DEFAULT_CURRENCY


# Every row of the ledger is in the sums or in their queue.
_LATEST = """
    SELECT clock_timestamp() AS now, v.version, v.currency, v.effective_at,
           EXISTS (SELECT FROM period_sums WHERE organization_id = $1)
               OR EXISTS (SELECT FROM rollup_queue WHERE organization_id = $1) AS has_usage
    FROM (SELECT $1::text AS organization_id) o
        LEFT JOIN LATERAL (SELECT version, currency, effective_at FROM price_versions p
                           WHERE p.organization_id = o.organization_id ORDER BY p.version DESC LIMIT 1) v ON true
"""
_INSERT = """
    INSERT INTO price_versions (id, organization_id, version, currency, effective_at) VALUES ($1, $2, $3, $4, $5)
"""
_INSERT_ENTRIES = """
    INSERT INTO prices (organization_id, version, model, adapter_class, service_tier, input_nanos, cached_input_nanos,
                        output_nanos)
    SELECT $1, $2, * FROM unnest($3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[])
"""
_INSERT_DISCOUNTS = """
    INSERT INTO price_discounts (organization_id, version, project_id, basis_points)
    SELECT $1, $2, d.project_id, d.basis_points FROM unnest($3::text[], $4::integer[]) AS d (project_id, basis_points)
    WHERE d.basis_points > 0
"""


async def add_version(
    conn: Connection,
    organization_id: str,
    *,
    currency: str,
    entries: Sequence[Entry],
    discounts: dict[str, int],
    effective_at: datetime.datetime | None,
) -> StoredVersion:
    """Store the next version, in the caller's transaction. effective_at None: as soon as it can be.

    Raises InvalidPriceVersion: when the currency or the time does not fit the versions before.
    Raises one of `CONFLICTS`: when another transaction is in the way; try again.
    """
    await hold_ledger(conn)  # usage that was priced has an instant before the new version's
    latest = await conn.fetchrow(_LATEST, organization_id)
    assert latest is not None
    if latest["currency"] not in (None, currency):
        raise InvalidPriceVersion(
            "currency", f"all versions of the prices are in '{latest['currency']}', which cannot be changed"
        )
    earliest: datetime.datetime = _whole_second(latest["now"] + LEAD) if latest["has_usage"] else latest["now"]
    if latest["version"] is not None and latest["effective_at"] >= (effective_at or earliest):
        known, is_pending = _time_text(latest["effective_at"]), latest["effective_at"] > latest["now"]
        way_out = (
            f"will be in force from {known}; withdraw that one first" if is_pending else f"is in force from {known}"
        )
        raise InvalidPriceVersion("effective_at", f"it must follow version {latest['version']}, which {way_out}")
    if effective_at is not None and effective_at < earliest:
        raise InvalidPriceVersion("effective_at", f"it must be {_time_text(earliest)} or later")
    version_id, number, since = new_id("price"), (latest["version"] or 0) + 1, effective_at or earliest
    await conn.execute(_INSERT, version_id, organization_id, number, currency, since)
    columns = [list(column) for column in zip(*map(msgspec.structs.astuple, entries), strict=True)]
    if entries:
        await conn.execute(_INSERT_ENTRIES, organization_id, number, *columns)
    await conn.execute(_INSERT_DISCOUNTS, organization_id, number, list(discounts), list(discounts.values()))
    (stored,) = await list_versions(conn, organization_id, limit=1)
    return stored


_FIND = """
    SELECT effective_at - clock_timestamp() AS lead FROM price_versions WHERE organization_id = $1 AND id = $2
"""
_WITHDRAW = "SELECT withdraw_prices($1, $2)"


class InForce(Exception):
    """The error for a version that is in force, was, or is about to be."""


async def withdraw_version(conn: Connection, organization_id: str, version_id: str) -> StoredVersion | None:
    """Delete a version of prices before it takes effect, in the caller's transaction; the next version gets its number.

    Return the version, or None if there is none. A version that takes effect within LEAD stays: gateways that do not
    know yet that it was withdrawn would go on to reserve by its prices.

    Raises InForce: when the version takes effect within LEAD, or has.
    Raises one of `CONFLICTS`: when another transaction is in the way; try again.
    """
    await hold_ledger(conn)
    found = await conn.fetchrow(_FIND, organization_id, version_id)
    if found is None:
        return None
    if found["lead"] < LEAD:
        raise InForce
    (stored,) = [each for each in await list_versions(conn, organization_id) if each.id == version_id]
    await conn.execute(_WITHDRAW, organization_id, stored.version.version)
    return stored


class PricedAdapter(msgspec.Struct, frozen=True):
    """An adapter with its price class, by which entries of the price book name groups of adapters."""

    adapter_id: str
    price_class: str
    """The name of the adapter's class in entries of the price book."""


_FIND_ADAPTER = """
    SELECT id AS adapter_id, price_class FROM adapters WHERE project_id = $1 AND name = $2 AND removed_at IS NULL
"""


async def find_priced_adapter(conn: Connection, project_id: str, name: str) -> PricedAdapter | None:
    """Return a project's adapter with its price class; None where there is none."""
    row = await conn.fetchrow(_FIND_ADAPTER, project_id, name)
    return PricedAdapter(**row) if row else None


_SET_CLASS = "UPDATE adapters SET price_class = $2 WHERE id = $1"


async def set_price_class(conn: Connection, adapter_id: str, price_class: str) -> None:
    """Set the price class of an adapter."""
    await conn.execute(_SET_CLASS, adapter_id, price_class)


def _stored_version(row: asyncpg.Record) -> StoredVersion:
    entries = tuple(Entry(*entry) for entry in row["entries"])
    discounts = dict(row["discounts"])
    version = Version(row["version"], row["currency"], unix_ns(row["effective_at"]), entries, discounts)
    return StoredVersion(row["id"], row["created_at"], version)


def _whole_second(time: datetime.datetime) -> datetime.datetime:
    """Return the first whole second that is not before `time`, so that all records of earlier seconds are complete."""
    return (time + datetime.timedelta(microseconds=999_999)).replace(microsecond=0)


def _time_text(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")
