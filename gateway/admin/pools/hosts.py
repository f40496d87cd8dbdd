"""Hosts over HTTP: the machines on which agents start engines, and what is taken of their memory."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.pools.host_tokens import Labels, check_labels, check_operator
from gateway.admin.services import Caller, Services
from gateway.db.organization import audit
from gateway.db.pools import host_failures, hosts
from gateway.db.pools.host_failures import list_failures
from gateway.db.pools.managed import TakenMemory, count_at_addresses, list_taken
from gateway.db.pools.replicas import lose_replicas_of
from gateway.domain.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class HostGpu(msgspec.Struct, frozen=True):
    """An accelerator of a host."""

    memory_bytes: int
    taken_bytes: int
    """The estimated memory of the replicas on the accelerator."""
    num_replicas: int


class HostFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A model of a pool that the host could not prepare."""

    pool_id: str
    revision: int
    """The number of the revision of the pool."""
    why: str
    num_failures: int
    """Number of attempts in a row that failed."""
    retry_at: int
    """Unix seconds of the next attempt."""


class HostNode(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a Ray cluster."""

    name: str
    address: str
    """The address at which the node's engines listen."""
    num_processors: int
    """Processors of the machine that Ray has for engines."""
    memory_bytes: int
    """Memory of the machine that Ray has for engines."""
    num_gpus: int
    num_replicas: int
    """Number of replicas of all organizations."""
    labels: dict[str, str]
    """Labels that the node was started with."""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine on which an agent starts engines."""

    id: str
    name: str
    is_alive: bool
    """True if an agent runs on the host now."""
    num_processors: int
    memory_bytes: int
    """Memory of the host itself, without the memory of the accelerators."""
    taken_bytes: int
    """The estimated part of the host's own memory that replicas take."""
    gpus: list[HostGpu]
    """The accelerators, in the order of their indices."""
    num_replicas: int
    """Number of replicas of all organizations, on processors and accelerators."""
    programs: list[str]
    """The drivers of other makers whose servers the host's agent can start."""
    labels: dict[str, str]
    """Labels that operators gave the host."""
    is_drained: bool
    """True if replicas go from the host, and none starts on it."""
    failures: list[HostFailure]
    """Models that the host could not prepare, so that no replica of them starts there."""
    placement: Literal["local", "ray"]
    """`local`: engines run on the host itself. `ray`: the host stands for a Ray cluster, which chooses the machine of
    each engine; the numbers of processors and bytes are 0 then, and `nodes` has its machines."""
    nodes: list[HostNode]
    """Machines of a Ray cluster, as the agent saw them last; none for a host that runs engines itself."""
    is_joined: bool
    """True if the host has keys, with which it reaches engines on other hosts."""
    version: str | None
    """The version of Lorikeet of the host's last agent; null before the first."""
    away_seconds: float | None
    """Seconds since the last agent stopped renewing its lease of the host; null while an agent has the lease, and where
    the last agent ended its engines and itself."""
    object: Literal["organization.host"] = "organization.host"


class SetHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a host. Fields that are left out stay as they are."""

    is_drained: bool | None = None
    """True moves the host's replicas to other hosts, and lets none start on it; false uses the host again."""
    labels: Labels | None = None
    """Replaces all labels."""


class DeletedHost(msgspec.Struct, frozen=True):
    """A host that was removed."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.host.deleted"] = "organization.host.deleted"


class HostController(Controller):
    """Endpoints for the hosts of the installation."""

    path = "/hosts"

    @get(opt=needs("pools.read", query=LIST_QUERY))
    async def list_hosts(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[Host]:
        """List the hosts of the installation, oldest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            return page_of_all(await _hosts(conn), query)

    @get("/{host_id:str}", opt=needs("pools.read"))
    async def get_host(self, host_id: FromPath[str], services: Services, caller: Caller) -> Host:
        """Return a host."""
        async with services.database.acquire() as conn:
            return await _existing_host(conn, host_id)

    @post("/{host_id:str}", status_code=200, opt=needs("pools.write", body=SetHost))
    async def set_host(
        self, request: Request[Any, Any, Any], host_id: FromPath[str], services: Services, caller: Caller
    ) -> Host:
        """Drain a host or use it again, or replace its labels.

        Replicas go from a drained host as soon as others are ready in their place; those for which no other host has
        room stay.
        """
        wanted = await read_body(request, SetHost)
        async with services.database.transaction() as conn:
            await check_operator(conn, caller)
            before = await _existing_host(conn, host_id)
            if wanted.is_drained is not None:
                await hosts.drain_host(conn, host_id, is_drained=wanted.is_drained)
            if wanted.labels is not None:
                check_labels(wanted.labels)
                await hosts.label_host(conn, host_id, wanted.labels)
            after = await _existing_host(conn, host_id)
            if after != before:
                await audit.record(conn, audit_author(caller), "host.updated", host_id, before=before, after=after)
        return after

    @delete("/{host_id:str}", status_code=200, opt=needs("pools.write", query=("force",)))
    async def remove_host(
        self, request: Request[Any, Any, Any], host_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedHost:
        """Remove a host for good: its keys open no engine any more, and its agent ends.

        A host with replicas is refused unless `force` is true: then its replicas count as lost, whether or not they
        still run.
        """
        force = request.query_params.get("force", "false")
        if force not in ("true", "false"):
            raise wrong_value("force", "it is `true` or `false`")
        async with services.database.transaction() as conn:
            await check_operator(conn, caller)
            before = await _existing_host(conn, host_id)
            if before.num_replicas and force == "false":
                raise Conflict(
                    f"The host has replicas ({before.num_replicas}). Drain it first, or remove it by force where it "
                    "does not come back.",
                    code="host_in_use",
                )
            await lose_replicas_of(conn, host_id, "its host was removed")
            await hosts.remove_host(conn, host_id)
            await audit.record(conn, audit_author(caller), "host.deleted", host_id, before=before)
        return DeletedHost(host_id)


async def _existing_host(conn: Connection, host_id: str) -> Host:
    """Return a host.

    Raises NotFound: when no host has this id.
    """
    found = next((each for each in await _hosts(conn) if each.id == host_id), None)
    if found is None:
        raise NotFound(f"There is no host with the id '{host_id}'.", param="host_id")
    return found


async def _hosts(conn: Connection) -> list[Host]:
    rows, taken, failures = await hosts.list_hosts(conn), await list_taken(conn), await list_failures(conn)
    at_addresses = await count_at_addresses(conn) if any(row.nodes for row in rows) else Counter()
    return [
        _wire(
            row,
            [each for each in taken if each.host_id == row.id],
            [each for each in failures if each.host_id == row.id],
            at_addresses,
        )
        for row in rows
    ]


def _wire(
    host: hosts.HostRow,
    taken: list[TakenMemory],
    failures: list[host_failures.HostFailure],
    at_addresses: Counter[tuple[str, str]],
) -> Host:
    by_gpu = {each.gpu: each for each in taken}
    own = by_gpu.get(None)
    return Host(
        id=host.id,
        name=host.name,
        is_alive=host.is_alive,
        num_processors=host.num_processors,
        memory_bytes=host.memory_bytes,
        taken_bytes=own.num_bytes if own else 0,
        gpus=[
            HostGpu(num_bytes, found.num_bytes if found else 0, found.num_replicas if found else 0)
            for index, num_bytes in enumerate(host.gpu_bytes)
            for found in [by_gpu.get(index)]
        ],
        num_replicas=sum(each.num_replicas for each in taken),
        programs=host.programs,
        labels=host.labels,
        is_drained=host.is_drained,
        failures=[
            HostFailure(
                pool_id=each.pool_id,
                revision=each.revision,
                why=each.why,
                num_failures=each.num_failures,
                retry_at=unix_seconds(each.retry_at),
            )
            for each in failures
        ],
        placement=host.placement,
        nodes=[
            HostNode(
                name=node.name,
                address=node.address,
                num_processors=node.num_processors,
                memory_bytes=node.memory_bytes,
                num_gpus=node.num_gpus,
                num_replicas=at_addresses[host.id, node.address],
                labels=dict(node.labels),
            )
            for node in host.nodes
        ],
        is_joined=host.is_joined,
        version=host.version,
        away_seconds=None if host.is_alive or math.isinf(host.away_s) else round(host.away_s, 1),
    )
