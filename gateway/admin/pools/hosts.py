"""Hosts over HTTP: the machines on which agents start engines, and what is taken of their memory."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, get

from gateway.admin.access import LIST_QUERY, needs
from gateway.admin.paging import Page, page_of_all, read_list_query
from gateway.admin.services import Caller, Services
from gateway.db.pools.hosts import HostRow, list_hosts
from gateway.db.pools.managed import TakenMemory, list_taken


class HostGpu(msgspec.Struct, frozen=True):
    """An accelerator of a host."""

    memory_bytes: int
    taken_bytes: int
    """Memory that the replicas there take by the estimates."""
    num_replicas: int


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """A machine on which an agent starts engines."""

    id: str
    name: str
    is_alive: bool
    """True if an agent runs there now."""
    num_processors: int
    memory_bytes: int
    """Memory of the host itself, without the memory of the accelerators."""
    taken_bytes: int
    """Part of the host's own memory that replicas take by the estimates."""
    gpus: list[HostGpu]
    """The accelerators, in the order of their indices."""
    num_replicas: int
    """Number of replicas of all organizations, on processors and accelerators."""
    programs: list[str]
    """The drivers of other makers whose servers the agent can start there."""
    object: Literal["organization.host"] = "organization.host"


@get("/hosts", opt=needs("pools.read", query=LIST_QUERY))
async def list_all_hosts(request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[Host]:
    """List the hosts of the installation, oldest first."""
    query = read_list_query(request.query_params)
    async with services.database.acquire() as conn:
        hosts, taken = await list_hosts(conn), await list_taken(conn)
    return page_of_all([_wire(host, [each for each in taken if each.host_id == host.id]) for host in hosts], query)


def _wire(host: HostRow, taken: list[TakenMemory]) -> Host:
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
    )
