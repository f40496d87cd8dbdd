"""Whether the store holds what the tables refer to, byte for byte, and what it holds beyond that."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec

from adapters.errors import AdapterMissing, AdapterRejected, StoreFailure
from adapters.store import AdapterStore
from gateway.db.contents import Reference, owners, references
from gateway.db.pool import Database
from gateway.errors import Overloaded

RETRY_AFTER_S = 10.0


class Fault(msgspec.Struct, frozen=True):
    """A version without its content. detail: what is wrong with the content."""

    project_id: str
    name: str
    version: int
    digest: str
    detail: str


class Verification(msgspec.Struct, frozen=True):
    """num_verified: contents that are there and were read in full. missing, damaged: versions whose content is not, or
    is not what it was. unreferenced: digests that nobody refers to; the collector takes them away within minutes."""

    num_verified: int
    missing: list[Fault]
    damaged: list[Fault]
    unreferenced: list[str]
    object: Literal["organization.adapters.verification"] = "organization.adapters.verification"


async def verify(database: Database, store: AdapterStore, organization_id: str) -> Verification:
    """Read everything that the organization's versions refer to; takes as long as that does.

    Raises Overloaded while the store is away.
    """
    try:
        return await _verify(database, store, organization_id)
    except StoreFailure as error:
        raise Overloaded(f"The adapter store does not answer: {error}.", retry_after_s=RETRY_AFTER_S) from None


async def _verify(database: Database, store: AdapterStore, organization_id: str) -> Verification:
    stored = await asyncio.to_thread(store.digests)  # before the tables: what is referred to since then is no orphan
    async with database.acquire() as conn:
        known = await owners(conn, stored)
        needed = await references(conn, organization_id)
    found: dict[str, str | None] = {}
    for digest in {reference.digest for reference in needed}:
        found[digest] = await asyncio.to_thread(_check, store, digest)
    faults = [(reference, detail) for reference in needed if (detail := found[reference.digest]) is not None]
    return Verification(
        num_verified=sum(detail is None for detail in found.values()),
        missing=[_fault(reference, detail) for reference, detail in faults if detail == _MISSING],
        damaged=[_fault(reference, detail) for reference, detail in faults if detail != _MISSING],
        unreferenced=[digest for digest in stored if digest not in known],
    )


_MISSING = "the store does not hold it"


def _check(store: AdapterStore, digest: str) -> str | None:
    """What is wrong with it."""
    try:
        store.verify(digest)
    except AdapterMissing:
        return _MISSING
    except AdapterRejected as error:
        return str(error)
    return None


def _fault(reference: Reference, detail: str) -> Fault:
    return Fault(reference.project_id, reference.name, reference.version, reference.digest, detail)
