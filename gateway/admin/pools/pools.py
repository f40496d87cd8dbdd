"""Pools over HTTP: made, changed, scaled, drained and removed. A change of the served model is a new revision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import UNSET

from engine.config import UnsupportedModel
from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.paging import Page, page_of_all, read_list_query
from gateway.admin.pools.foreign import (
    check_adapters,
    check_change,
    check_engine,
    check_programs,
    check_start,
    check_update_fields,
    serve_at,
    starts_servers,
    urls_of,
)
from gateway.admin.pools.pool_bodies import (
    CreatePool,
    UpdatePool,
    check_access,
    check_aliases,
    check_name,
    check_placement,
    check_scaling,
    check_within,
    read_grants,
    read_settings,
)
from gateway.admin.pools.pool_wire import (
    DeletedPool,
    Pool,
    PoolDetail,
    PoolScalingChange,
    detail_wire,
    pool_terms,
    pool_wire,
    scaling_change_wire,
)
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.experiments.arms import experiments_of_pool
from gateway.db.organization import audit
from gateway.db.organization.organizations import first_organization, lock_organization
from gateway.db.pools import managed, pools, replicas, revisions
from gateway.db.pools.backend_keys import find_backend_key, remove_backend_key
from gateway.db.pools.hosts import list_hosts
from gateway.db.pools.planning import read_pools_and_hosts
from gateway.db.pools.provider_keys import remove_provider_keys_of_pool
from gateway.db.pools.scaling import present_decision
from gateway.db.pools.scaling_rows import clear_scaling, list_scalings, set_scaling
from gateway.db.pools.served import ServedPool
from gateway.domain.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from gateway.domain.pools.drivers import OWN_DRIVER
from gateway.domain.pools.foreign_settings import with_adapters
from gateway.domain.pools.rollout import rollout_of
from gateway.domain.pools.shortage import shortage_of, standings_of
from gateway.domain.pools.unfit import unfit_refusal
from gateway.domain.tenancy.actor import Actor
from gateway.routing.adapter_fits import FitCache

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_POOLS = 1000
"""The most pools of an organization."""
MAX_SCALINGS = 1000
"""The most changes of a pool's number of replicas that are listed."""


class PoolController(Controller):
    """Endpoints for the pools of the organization."""

    path = "/pools"

    @get(opt=needs("pools.read", query=LIST_QUERY))
    async def list_pools(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[Pool]:
        """List the organization's pools, oldest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            rows = await managed.list_at_once(conn, caller.organization_id)
            world = await read_pools_and_hosts(conn)
        healths = services.replica_healths()
        return page_of_all([pool_wire(row, shortage_of(*world, row.row.id), healths) for row in rows], query)

    @post(status_code=200, opt=needs("pools.write", body=CreatePool))
    async def create_pool(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> PoolDetail:
        """Make a pool.

        The agents of hosts prepare the model and start the replicas. Servers of another maker at `urls` run already,
        and serve at once where their model needs no preparation.
        """
        wanted = await read_body(request, CreatePool)
        check_name(wanted.name)
        settings = read_settings(wanted.settings, wanted.engine)
        urls, starts = check_engine(wanted, settings), starts_servers(wanted)
        if starts:
            settings = with_adapters(wanted.engine, settings, store=services.adapter_place)
        check_access(wanted.access, wanted.grants)
        bounds = None
        if wanted.scaling is not None:
            bounds = check_scaling(wanted.scaling, wanted.num_replicas, is_managed=not urls)
        check_placement(wanted.placement, wanted.exclusion, is_managed=not urls)
        async with services.database.transaction() as conn:
            await pools.lock_pools(conn)
            await lock_organization(conn, caller.organization_id)
            await _check_operator(conn, caller)
            if await pools.count_pools(conn, caller.organization_id) >= MAX_POOLS:
                raise InvalidRequest(f"There are {MAX_POOLS} pools already, the most there can be.")
            grants = await read_grants(conn, caller.organization_id, wanted.grants)
            await check_aliases(conn, wanted.name, wanted.access, grants)
            num_replicas = 0 if urls else bounds.min_replicas if bounds is not None else 1
            if wanted.num_replicas is not UNSET:
                num_replicas = wanted.num_replicas
            made = await pools.create_pool(
                conn, caller.organization_id, wanted.name, num_replicas=num_replicas, access=wanted.access
            )
            if made is None:
                raise Conflict(f"A pool of the installation has the name '{wanted.name}' already.", param="name")
            if starts:
                await check_programs(conn, wanted.engine)
            revision = await revisions.add_revision(
                conn, made.id, wanted.model, settings, driver=wanted.engine, starts_servers=starts
            )
            if urls:
                await serve_at(conn, made, revision, urls)
            if bounds is not None:
                await set_scaling(conn, made.id, bounds)
            await pools.place_pool(conn, made.id, wanted.placement)
            await pools.exclude_hosts(conn, made.id, wanted.exclusion)
            if grants:
                await pools.set_access(conn, made.id, wanted.access, grants)
            after = await _read_again(conn, caller.organization_id, made.id)
            await audit.record(conn, audit_author(caller), "pool.created", made.id, after=pool_terms(after))
            return await _detail(services, conn, after)

    @get("/{pool_id:str}", opt=needs("pools.read"))
    async def get_pool(self, pool_id: FromPath[str], services: Services, caller: Caller) -> PoolDetail:
        """Show a pool with its revisions and replicas."""
        async with services.database.acquire() as conn:
            found = await managed.list_at_once(conn, caller.organization_id, pool_id)
            return await _detail(services, conn, only_pool(found, pool_id))

    @get("/{pool_id:str}/scalings", opt=needs("pools.read", query=LIST_QUERY))
    async def list_scalings(
        self, pool_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[PoolScalingChange]:
        """List the latest thousand changes of the number of a pool's replicas, newest first.

        Changes by the pool's load and changes by operators are listed.
        """
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            only_pool(await managed.list_at_once(conn, caller.organization_id, pool_id), pool_id)
            changes = await list_scalings(conn, caller.organization_id, pool_id, MAX_SCALINGS)
        return page_of_all([scaling_change_wire(each) for each in changes], query)

    @post("/{pool_id:str}", status_code=200, opt=needs("pools.write", body=UpdatePool))
    async def update_pool(
        self, pool_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> PoolDetail:
        """Change how many replicas run, who may use the pool, or what it serves.

        Another model or other settings are a new revision, which serves as soon as its replicas are ready; the present
        ones serve until then.
        """
        wanted = await read_body(request, UpdatePool)
        check_update_fields(wanted)
        async with services.database.transaction() as conn:
            await pools.lock_pools(conn)
            before = await _locked_pool(conn, caller.organization_id, pool_id)
            present = before.revisions[before.row.wanted_revision]
            driver, starts = present.driver, present.starts_servers
            settings = UNSET if wanted.settings is UNSET else read_settings(wanted.settings, driver)
            check_change(wanted, present)
            await _change_access(conn, caller, before, wanted)
            await _scale(conn, before, wanted)
            await _place(conn, before, wanted)
            model = present.model if wanted.model is UNSET else wanted.model
            texts = present.settings if settings is UNSET else settings
            if starts:
                texts = with_adapters(driver, texts, store=services.adapter_place)
            check_start(driver, model, texts, starts=starts)
            is_asked = wanted.model is not UNSET or settings is not UNSET
            urls = urls_of(before, wanted, texts)
            check_adapters(driver, model, texts)
            is_other = (model, texts, sorted(urls)) != (present.model, present.settings, sorted(urls_of(before)))
            if is_other or (is_asked and present.state == "failed"):
                if model != present.model:
                    await _check_not_in_experiment(conn, before)  # its results would be of two models
                if not wanted.allow_unfit_adapters and present.is_managed:
                    engine_settings = texts if driver == OWN_DRIVER else {}
                    await _check_adapters(conn, services, before, model, engine_settings)
                revision = await revisions.add_revision(
                    conn,
                    pool_id,
                    model,
                    texts,
                    allow_unfit_adapters=wanted.allow_unfit_adapters,
                    driver=driver,
                    starts_servers=starts,
                )
                await _give_up(conn, before, f"Revision {revision.revision} took its place before it served.")
                await pools.want_revision(conn, pool_id, revision.revision)
                if urls:
                    await serve_at(conn, before.row, revision, urls)
            after = await _read_again(conn, caller.organization_id, pool_id)
            number = {name: pool_terms(after)[name] for name in ("num_replicas", "scaling")}
            is_scale = pool_terms(before) | number == pool_terms(after)
            await _record(conn, caller, "pool.scaled" if is_scale else "pool.updated", before, after)
            return await _detail(services, conn, after)

    @post("/{pool_id:str}/cancel", status_code=200, opt=needs("pools.write"))
    async def cancel_change(self, pool_id: FromPath[str], services: Services, caller: Caller) -> PoolDetail:
        """Give up the change of revision that is under way: the revision that serves stays."""
        async with services.database.transaction() as conn:
            before = await _locked_pool(conn, caller.organization_id, pool_id)
            if before.row.revision is None:
                raise Conflict(
                    "The pool has no revision that served before. Change its model or settings, or remove it."
                )
            if before.row.revision == before.row.wanted_revision:
                raise Conflict("No change of revision is under way.")
            await pools.want_revision(conn, pool_id, before.row.revision)
            await _give_up(conn, before, "The change was cancelled.")
            after = await _read_again(conn, caller.organization_id, pool_id)
            await _record(conn, caller, "pool.cancelled", before, after)
            return await _detail(services, conn, after)

    @post("/{pool_id:str}/drain", status_code=200, opt=needs("pools.write"))
    async def drain_pool(self, pool_id: FromPath[str], services: Services, caller: Caller) -> PoolDetail:
        """Let all replicas end their requests and stop: num_replicas becomes 0, and follows the load no more."""
        async with services.database.transaction() as conn:
            before = await _locked_pool(conn, caller.organization_id, pool_id)
            await clear_scaling(conn, pool_id)
            await pools.scale_pool(conn, pool_id, 0)
            external = [each.id for each in before.replicas if each.host_id is None]
            await replicas.drain_replicas(conn, external, "The pool was drained.")
            after = await _read_again(conn, caller.organization_id, pool_id)
            if external or pool_terms(before) != pool_terms(after):
                await audit.record(
                    conn,
                    audit_author(caller),
                    "pool.drained",
                    pool_id,
                    before=pool_terms(before),
                    after=pool_terms(after),
                )
            return await _detail(services, conn, after)

    @delete("/{pool_id:str}", status_code=200, opt=needs("pools.write"))
    async def remove_pool(self, pool_id: FromPath[str], services: Services, caller: Caller) -> DeletedPool:
        """Remove a pool that was drained, and whose base no adapter needs or another pool serves as well."""
        async with services.database.transaction() as conn:
            await pools.lock_pools(conn)  # of two pools of one base that are removed at once, the second one stays
            before = await _locked_pool(conn, caller.organization_id, pool_id)
            await _check_free(conn, before)
            await _check_not_in_experiment(conn, before)
            await pools.remove_pool(conn, pool_id)
            await clear_scaling(conn, pool_id)
            await remove_backend_key(conn, pool_id)
            await remove_provider_keys_of_pool(conn, pool_id)
            await audit.record(conn, audit_author(caller), "pool.removed", pool_id, before=pool_terms(before))
        return DeletedPool(pool_id)


def only_pool(found: Sequence[ServedPool], pool_id: str) -> ServedPool:
    """Return the pool that a search by its id has found.

    Raises NotFound: when the search has found none.
    """
    if not found:
        raise NotFound(f"There is no pool with the id '{pool_id}'.", param="pool_id")
    return found[0]


async def _check_operator(conn: Connection, caller: Caller) -> None:
    """Check that the caller is of the installation's first organization.

    A pool names files of the operator's machines, and starts programs there.

    Raises PermissionDenied: when the caller is of another organization.
    """
    first = await first_organization(conn)
    if first is None or first.id != caller.organization_id:
        raise PermissionDenied("Only the organization that operates this installation can make pools.")


async def _locked_pool(conn: Connection, organization_id: str, pool_id: str) -> ServedPool:
    await managed.lock_whole_pool(conn, organization_id, pool_id)
    return await _read_again(conn, organization_id, pool_id)


async def _read_again(conn: Connection, organization_id: str, pool_id: str) -> ServedPool:
    """Return a pool as it is after this transaction's changes.

    Raises NotFound: when there is no pool with this id.
    """
    return only_pool(await managed.list_managed(conn, organization_id, pool_id), pool_id)


async def _detail(services: AdminServices, conn: Connection, pool: ServedPool) -> PoolDetail:
    hosts = {each.id: each.name for each in await list_hosts(conn)}
    serving = pool.revisions[pool.row.revision or pool.row.wanted_revision]
    num_adapters = await managed.count_adapters(conn, serving.base_digest) if serving.base_digest else 0
    world = await read_pools_and_hosts(conn)
    decision = await present_decision(conn, pool.row.id)
    return detail_wire(
        pool,
        await revisions.list_revisions(conn, pool.row.id),
        rollout=rollout_of(*world, pool.row.id),
        shortage=shortage_of(*world, pool.row.id),
        num_adapters=num_adapters,
        hosts=hosts,
        standings=standings_of(*world, pool.row.id) if pool.revisions[pool.row.wanted_revision].is_managed else [],
        healths=services.replica_healths(),
        outlook=None if decision is None else decision.why,
        key_hint=None if (key := await find_backend_key(conn, pool.row.id)) is None else key.hint,
    )


async def _scale(conn: Connection, before: ServedPool, wanted: UpdatePool) -> None:
    """Change how many replicas run, and whether the number follows the load.

    Raises InvalidRequest: when the bounds are wrong, or the number of replicas is outside of them.
    """
    present = before.revisions[before.row.wanted_revision]
    bounds = before.scaling.bounds if before.scaling is not None else None
    if wanted.scaling is None:
        bounds = None
        await clear_scaling(conn, before.row.id)
    elif wanted.scaling is not UNSET:
        bounds = check_scaling(wanted.scaling, wanted.num_replicas, is_managed=present.is_managed)
        await set_scaling(conn, before.row.id, bounds)
    number = before.row.num_replicas if wanted.num_replicas is UNSET else wanted.num_replicas
    if bounds is not None:
        if wanted.num_replicas is not UNSET:
            check_within(bounds, number)
        number = min(max(number, bounds.min_replicas), bounds.max_replicas)
    await pools.scale_pool(conn, before.row.id, number)


async def _place(conn: Connection, before: ServedPool, wanted: UpdatePool) -> None:
    """Change the labels by which hosts are chosen for a pool's replicas.

    Raises InvalidRequest: when labels are wrong, or agents do not start the replicas.
    """
    is_managed = before.revisions[before.row.wanted_revision].is_managed
    placement = before.row.placement if wanted.placement is UNSET else wanted.placement
    exclusion = before.row.exclusion if wanted.exclusion is UNSET else wanted.exclusion
    check_placement(placement, exclusion, is_managed=is_managed)
    if wanted.placement is not UNSET:
        await pools.place_pool(conn, before.row.id, placement)
    if wanted.exclusion is not UNSET:
        await pools.exclude_hosts(conn, before.row.id, exclusion)


async def _change_access(conn: Connection, caller: Actor, before: ServedPool, wanted: UpdatePool) -> None:
    if wanted.access is UNSET and wanted.grants is UNSET:
        return
    access = before.row.access if wanted.access is UNSET else wanted.access
    if wanted.grants is UNSET:
        grants = before.grants if access == "listed" else []
    else:
        check_access(access, wanted.grants)
        grants = await read_grants(conn, caller.organization_id, wanted.grants)
    check_access(access, grants)
    same = {(each.organization_id, each.project_id) for each in grants}
    await check_aliases(conn, before.row.name, access, grants)
    if access != before.row.access or same != {(each.organization_id, each.project_id) for each in before.grants}:
        await pools.set_access(conn, before.row.id, access, grants)


async def _check_adapters(
    conn: Connection, services: AdminServices, pool: ServedPool, model: str, settings: Mapping[str, str]
) -> None:
    """Check that all adapters fit a model that was prepared once already.

    A model that was not is checked by the agent that prepares it, before a replica of it starts.

    Raises Conflict: when adapters would no longer answer; the message names them.
    """
    known = await revisions.find_prepared(conn, pool.row.organization_id, model)
    if known is None or known.folder is None or known.base_digest is None:
        return
    fits = FitCache(lambda: services.store, services.lifecycle.bounds.max_rank)
    try:
        unfit = await fits.misfits(conn, pool, settings, Path(known.folder), known.base_digest)
    except (OSError, UnsupportedModel, ValueError):  # not on this machine, or another model by now
        return
    if unfit:
        raise Conflict(unfit_refusal(unfit), param="model", code="adapters_do_not_fit")


async def _give_up(conn: Connection, before: ServedPool, why: str) -> None:
    """Retire the wanted revision if it does not serve yet; a failed one stays failed."""
    wanted = before.revisions[before.row.wanted_revision]
    if wanted.revision != before.row.revision and wanted.state != "failed":
        await revisions.set_revision_state(conn, before.row.id, wanted.revision, "retired", why)


async def _check_free(conn: Connection, pool: ServedPool) -> None:
    """Check that nothing uses a pool that is to be removed.

    Replicas on a host without an agent do not count: nobody could stop them, and the next agent there does.

    Raises Conflict: when something uses the pool; the message says what.
    """
    alive = {each.id for each in await list_hosts(conn) if each.is_alive}
    running = [
        each for each in pool.replicas if each.state != "failed" and (each.host_id is None or each.host_id in alive)
    ]
    has_failed = pool.revisions[pool.row.wanted_revision].state == "failed" and not running
    if pool.row.num_replicas > 0 and not has_failed:
        number = f"{pool.row.num_replicas} replica{'s' * (pool.row.num_replicas != 1)}"
        raise Conflict(f"The pool is to run {number}: drain it first.", code="pool_in_use")
    if running:
        number = f"{len(running)} replica{'s' * (len(running) != 1)}"
        are, first = ("is", "it has") if len(running) == 1 else ("are", "they have")
        raise Conflict(
            f"The pool still has {number} that {are} {running[0].state}: remove it once {first} stopped."
            if all(each.state == "draining" for each in running)
            else f"The pool still has {number} running: drain it first.",
            code="pool_in_use",
        )
    digest = pool.revisions[pool.row.revision or pool.row.wanted_revision].base_digest
    num_adapters = await managed.count_adapters(conn, digest) if digest else 0
    if digest and num_adapters and not await managed.is_served_elsewhere(conn, pool.row.id, digest):
        number = f"{num_adapters} adapter{'s belong' if num_adapters != 1 else ' belongs'}"
        raise Conflict(
            f"{number} to the base of this pool, and no other pool serves that base: remove the adapters, or make "
            "another pool of the same model first.",
            code="pool_in_use",
        )


async def _check_not_in_experiment(conn: Connection, pool: ServedPool) -> None:
    """Check that no arm of an experiment is served by the pool.

    Raises Conflict: when one is; names of other organizations' experiments are left out.
    """
    held = await experiments_of_pool(conn, pool.row.id)
    if held:
        names = [name for name, organization_id in held if organization_id == pool.row.organization_id]
        shown = ", ".join(f"'{name}'" for name in names[:10]) or "of another organization"
        raise Conflict(
            f"The pool serves arms of experiments that are not decided yet: {shown}.", code="held_by_experiment"
        )


async def _record(conn: Connection, caller: Actor, event: str, before: ServedPool, after: ServedPool) -> None:
    """Record a change, unless nothing has changed."""
    shown = pool_terms(before), pool_terms(after)
    if shown[0] != shown[1]:
        await audit.record(conn, audit_author(caller), event, after.row.id, before=shown[0], after=shown[1])
