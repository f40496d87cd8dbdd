"""Verifies that the store holds the contents that the tables refer to, byte for byte, and finds others in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

import msgspec

from adapters.errors import AdapterMissing, AdapterRejected, StoreFailure
from adapters.store import AdapterStore
from gateway.db.adapters.contents import Reference, content_owners, content_references
from gateway.db.pool import Database
from gateway.domain.errors import Conflict, Overloaded

RETRY_AFTER_S = 10.0

T = TypeVar("T")


class Fault(msgspec.Struct, frozen=True):
    """A version of an adapter whose content is missing or damaged."""

    project_id: str
    name: str
    version: int
    digest: str
    """The digest of the version's content."""
    detail: str
    """The fault of the content in words."""


class Verification(msgspec.Struct, frozen=True):
    """The result of comparing the store with the versions that the database knows."""

    num_verified: int
    """Contents that are in the store and were read in full."""
    missing: list[Fault]
    """Versions whose content is not in the store."""
    damaged: list[Fault]
    """Versions whose content has changed."""
    num_unreferenced: int
    """Contents in the store to which no version of any organization refers. They are deleted after a while."""
    object: Literal["organization.adapters.verification"] = "organization.adapters.verification"


class Verifier:
    """Compares the store with the tables, for one caller at a time. A gateway process has one."""

    def __init__(self, database: Database, store: AdapterStore) -> None:
        self._database = database
        self._store = store
        self._is_at_work = False

    async def verify(self, organization_id: str) -> Verification:
        """Check by their digests that the contents of the organization's adapters are in the store and undamaged.

        All bytes of all versions are read. The number of unreferenced contents is that of the whole store.

        Raises Conflict: when another verification runs.
        Raises Overloaded: when the store does not answer.
        """
        if self._is_at_work:
            raise Conflict(
                "A verification of all adapters is already running. Try again when it has ended.",
                code="verification_running",
            )
        self._is_at_work = True
        # In a thread of its own: long reads are not to hold up work that others wait for.
        executor = ThreadPoolExecutor(1, thread_name_prefix="verify")
        try:
            return await self._verify(executor, organization_id)
        except StoreFailure as error:
            raise Overloaded(f"The adapter store does not answer ({error}).", retry_after_s=RETRY_AFTER_S) from None
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            self._is_at_work = False

    async def _verify(self, executor: ThreadPoolExecutor, organization_id: str) -> Verification:
        # Listed before the tables are read: content that is referred to since then is no orphan.
        stored = await _run_in(executor, self._store.digests)
        async with self._database.acquire() as conn:
            known = await content_owners(conn, stored)
            needed = await content_references(conn, organization_id)
        found: dict[str, str | None] = {}
        for digest in {reference.digest for reference in needed}:
            found[digest] = await _run_in(executor, _check, self._store, digest)
        faults = [(reference, detail) for reference in needed if (detail := found[reference.digest]) is not None]
        return Verification(
            num_verified=sum(detail is None for detail in found.values()),
            missing=[_fault(reference, detail) for reference, detail in faults if detail == _MISSING],
            damaged=[_fault(reference, detail) for reference, detail in faults if detail != _MISSING],
            num_unreferenced=sum(digest not in known for digest in stored),
        )


async def _run_in(executor: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)


_MISSING = "the store does not hold it"


def _check(store: AdapterStore, digest: str) -> str | None:
    """Return the fault of the stored content of a digest; None if the content is whole."""
    try:
        store.verify(digest)
    except AdapterMissing:
        return _MISSING
    except AdapterRejected as error:
        return str(error)
    return None


def _fault(reference: Reference, detail: str) -> Fault:
    return Fault(reference.project_id, reference.name, reference.version, reference.digest, detail)
