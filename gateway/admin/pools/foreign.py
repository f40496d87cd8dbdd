"""Checks of pools whose replicas are servers of another maker, and the making of their replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET

from gateway.admin.paging import wrong_value
from gateway.admin.pools.pool_bodies import CreatePool, UpdatePool, check_model, read_settings, read_urls
from gateway.db.adapters.bases import register_base
from gateway.db.pools import replicas, revisions
from gateway.db.pools.hosts import list_hosts
from gateway.db.pools.pools import PoolRow
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.served import ServedPool, switch_revision
from gateway.domain.errors import InvalidRequest
from gateway.domain.pools.drivers import OWN_DRIVER, PROGRAMS, Driver
from gateway.domain.pools.foreign_settings import (
    FOREIGN_SETTINGS,
    check_abilities,
    check_started_settings,
    opaque_digest,
    parse_foreign_settings,
)
from gateway.domain.pools.settings import BadSetting

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_NAMED = 5
"""The most hosts that an error message names."""


def check_engine(wanted: CreatePool, settings: Mapping[str, str]) -> list[str]:
    """Return the addresses of the servers of a new pool; none for engines of our own.

    settings: the driver's settings, whose values are good.

    Raises InvalidRequest: when the model, the number of replicas or the addresses do not go with the engine.
    """
    if wanted.engine == OWN_DRIVER:
        if wanted.urls:
            raise wrong_value("urls", "agents start the engines of this pool; name the 'engine' of servers that run")
        check_model(wanted.model)
        return []
    starts = starts_servers(wanted)
    if wanted.model or starts:
        check_model(wanted.model)
    if wanted.num_replicas is not UNSET and not starts:
        raise wrong_value("num_replicas", "each of 'urls' is a replica, and there are no others")
    check_start(wanted.engine, wanted.model, settings, starts=starts)
    check_adapters(wanted.engine, wanted.model, settings)
    return [] if starts else read_urls(wanted.urls, settings)


def starts_servers(wanted: CreatePool) -> bool:
    """Tell whether agents are to start the pool's servers of another maker."""
    return wanted.engine in PROGRAMS and not wanted.urls


def check_start(driver: Driver, model: str, settings: Mapping[str, str], *, starts: bool) -> None:
    """Check that the model and the settings fit the way in which servers start.

    starts: True: agents start the servers; False: the servers run already.

    Raises InvalidRequest: when the model or a setting does not fit.
    """
    if driver == OWN_DRIVER:
        return
    try:
        check_started_settings(driver, model, settings, starts=starts)
    except BadSetting as error:
        raise wrong_value(f"settings.{error.name}", error.reason) from None
    except ValueError as error:
        raise wrong_value("model", str(error)) from None


async def check_programs(conn: Connection, driver: Driver) -> None:
    """Check that some host has the program of a driver's servers, if any host is known yet.

    Raises InvalidRequest: when no host has it.
    """
    hosts = await list_hosts(conn)
    present = [each for each in hosts if each.is_alive] or hosts
    if present and not any(driver in each.programs for each in present):
        names = ", ".join(each.name for each in present[:MAX_NAMED])
        raise wrong_value("engine", f"no host ({names}) has {PROGRAMS[driver]}; then start its agent anew")


def check_adapters(driver: Driver, model: str, settings: Mapping[str, str]) -> None:
    """Check that adapters can answer with these settings of a driver, whose values are good.

    Raises InvalidRequest: when they cannot.
    """
    if driver == OWN_DRIVER:
        return
    try:
        check_abilities(driver, model, parse_foreign_settings(settings))
    except BadSetting as error:
        raise wrong_value(f"settings.{error.name}", error.reason) from None


def check_update_fields(wanted: UpdatePool) -> None:
    """Check the model and the settings of a change of a pool by themselves, before the pool is read.

    Raises InvalidRequest: for a model that no pool may have, or settings that no driver has.
    """
    if wanted.model is not UNSET and wanted.model:
        check_model(wanted.model)
    if wanted.settings is not UNSET:
        try:
            read_settings(wanted.settings, OWN_DRIVER)
        except InvalidRequest:
            if not wanted.settings.keys() <= FOREIGN_SETTINGS.keys():
                raise
            read_settings(wanted.settings, "openai")


def check_change(wanted: UpdatePool, present: RevisionRow) -> None:
    """Check that a change fits the present revision of the pool.

    Raises InvalidRequest: when the change does not fit.
    """
    if wanted.model is not UNSET and (wanted.model or present.is_managed):
        check_model(wanted.model)
    if present.is_managed and wanted.urls is not UNSET:
        raise wrong_value("urls", "agents start the engines of this pool")
    if not present.is_managed and wanted.num_replicas is not UNSET:
        raise wrong_value(
            "num_replicas", "each of 'urls' is a replica: name all servers that are to serve there, or drain the pool"
        )


def urls_of(pool: ServedPool, wanted: UpdatePool | None = None, settings: Mapping[str, str] | None = None) -> list[str]:
    """Return the addresses of a pool's servers of another maker, after a change if there is one.

    There are none for a pool of our own engines. settings: the driver's settings, after the change. wanted: the body of
    the change; None: there is no change.

    Raises InvalidRequest: when an address is wrong, or is private and may not be.
    """
    present = pool.revisions[pool.row.wanted_revision]
    if present.is_managed:
        return []
    urls: Sequence[str] = [
        each.address
        for each in pool.replicas
        if each.revision == present.revision and each.host_id is None and each.address is not None
    ]
    if wanted is None:
        return list(urls)
    is_changed = wanted.urls is not UNSET or wanted.settings is not UNSET or wanted.model is not UNSET
    if wanted.urls is not UNSET:
        urls = wanted.urls
    return read_urls(urls, settings or {}) if is_changed else list(urls)


async def serve_at(conn: Connection, pool: PoolRow, revision: RevisionRow, urls: Sequence[str]) -> None:
    """Make the servers at these addresses the replicas of a pool's new revision, in the caller's transaction.

    The revision serves at once where nobody needs its model's files, or where these were prepared before. Else the
    agents prepare them, and the pool is switched then.
    """
    for url in urls:
        await replicas.add_running_replica(conn, pool.id, revision.revision, url)
    folder = None
    if revision.model:
        known = await revisions.find_prepared(conn, pool.organization_id, revision.model)
        if known is None or known.folder is None or known.base_digest is None:
            return
        folder, digest = known.folder, known.base_digest
    else:
        digest = opaque_digest(pool.id, revision.driver, revision.settings.get("served_model", ""))
    await register_base(conn, digest, pool.name)
    await revisions.set_prepared(conn, pool.id, revision.revision, folder=folder, base_digest=digest, num_bytes=None)
    await switch_revision(conn, pool.id, revision.revision)
    former = [
        each.id
        for each in await replicas.list_all_replicas(conn, [pool.id])
        if each.revision != revision.revision and each.host_id is None
    ]
    await replicas.drain_replicas(conn, former, f"revision {revision.revision} serves")
    if pool.revision is not None:
        await revisions.set_revision_state(
            conn, pool.id, pool.revision, "retired", f"revision {revision.revision} serves"
        )
