"""The running parts: the engines that this gateway talks to, with their requests and adapters, and all gateways."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from litestar import get

from adapters.ref import content_key
from gateway.admin.access import needs
from gateway.admin.common import seconds_or_none, unix_seconds
from gateway.admin.services import AdminServices, Caller, Services
from gateway.backends.snapshot import EngineSnapshot, State
from gateway.db.ledger.journals import living_gateways
from gateway.db.organization.names import NamedContent, named_contents, project_names
from gateway.domain.tenancy.permissions import projects_with

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ResidentAdapter(msgspec.Struct, frozen=True):
    """An adapter that is loaded on the device now."""

    digest: str
    adapter_id: str
    name: str
    project_id: str
    project_name: str
    version: int
    """The latest version of the adapter with this content."""


class EngineTenant(msgspec.Struct, frozen=True):
    """The choices (completions) of one tenant that an engine computes or keeps waiting."""

    project_id: str
    name: str
    num_running: int
    num_waiting: int


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine at the time of the last heartbeat."""

    id: str
    """The id of the engine's process; empty before the first process connected."""
    model: str
    state: State
    detail: str
    """The reason for the state, in words; empty where there is none."""
    since: int
    """Unix seconds at which the state began."""
    num_running: int
    """Choices that are being computed."""
    num_waiting: int
    """Choices that wait to be computed."""
    max_running: int
    """The most choices that are computed at once."""
    max_waiting: int
    """The most choices that may wait."""
    max_model_len: int
    """The most tokens of a prompt and its completion together."""
    kv_blocks_used: int
    """Blocks of the KV cache that choices hold."""
    kv_blocks_total: int
    adapter_slots_used: int
    adapter_slots_total: int
    adapter_bytes_used: int
    """Bytes of the device that adapters take."""
    adapter_bytes_total: int
    adapters_waiting: int
    """Adapters that requests wait for."""
    preemptions_total: int
    """Times since the engine's start that a choice gave its memory up and had to wait again."""
    prefix_query_tokens_total: int
    """Prompt tokens looked up in the prefix cache since the engine's start."""
    prefix_hit_tokens_total: int
    """Prompt tokens found in the prefix cache since the engine's start."""
    steps_per_s: float
    """Steps per second over the last ten seconds."""
    tokens_per_s: float
    """Tokens per second over the last ten seconds."""
    step_ms_p50: float | None
    """The median of the steps' milliseconds over the last ten seconds."""
    device: str
    """The device of the engine; empty before the first engine was connected."""
    dtype: str
    """The number format of the weights; empty before the first engine was connected."""
    fingerprint: str
    """The value of `system_fingerprint` in replies."""
    resident_adapters: list[ResidentAdapter]
    """The loaded adapters about which the caller may read."""
    tenants: list[EngineTenant]
    """The busiest tenants."""
    object: Literal["organization.engine"] = "organization.engine"


class RunningGateway(msgspec.Struct, frozen=True):
    """A gateway that was heard of within the last half minute."""

    id: str
    version: str | None
    """The version of Lorikeet; null where the gateway has stopped."""
    started_at: int | None
    """Unix seconds; null where the gateway has stopped."""
    last_seen_at: int
    """Unix seconds."""
    requests_running: int
    """Requests that were sent to an engine and are not in the ledger yet."""


class EngineList(msgspec.Struct, frozen=True):
    """The engines and the gateways of the installation."""

    data: list[Engine]
    """The engines to which the gateway that answers is connected."""
    gateways: list[RunningGateway]
    object: Literal["list"] = "list"


@get("/engines", opt=needs("organization.read"))
async def list_engines(services: Services, caller: Caller) -> EngineList:
    """List the engines with their requests and adapters, and the gateways that were heard of lately."""
    async with services.database.acquire() as conn:
        engines = await named_engines(conn, services, caller.organization_id)
        gateways = await living_gateways(conn)
    adapters_of = projects_with(caller, "adapters.read")
    running = [
        RunningGateway(
            each.id, each.version, seconds_or_none(each.started_at), unix_seconds(each.heard_at), each.open_requests
        )
        for each in gateways
    ]
    return EngineList([only_adapters_of(each, adapters_of) for each in engines], running)


async def named_engines(conn: Connection, services: AdminServices, organization_id: str) -> list[Engine]:
    """Return the engines, with only this organization's adapters and projects named."""
    snapshots = services.engines()
    keys = {key for each in snapshots if each.stats for key in each.stats.resident_adapters}
    tenants = {id for each in snapshots if each.stats for id in each.stats.tenants}
    contents = await named_contents(conn, organization_id, {key.partition(".")[0] for key in keys}) if keys else []
    names = await project_names(conn, organization_id, tenants) if tenants else {}
    return [engine_wire(each, contents, names) for each in snapshots]


def only_adapters_of(engine: Engine, project_ids: Collection[str] | None) -> Engine:
    """Return an engine with only the adapters of the given projects.

    project_ids: the ids of the projects; None: all projects.
    """
    if project_ids is None:
        return engine
    shown = [each for each in engine.resident_adapters if each.project_id in project_ids]
    return msgspec.structs.replace(engine, resident_adapters=shown)


def engine_wire(snapshot: EngineSnapshot, contents: Sequence[NamedContent], names: dict[str, str]) -> Engine:
    """Return an engine as replies show it.

    contents: the adapter versions whose content the engine may have loaded. names: the names of the shown projects, by
    id.
    """
    stats, limits, rates = snapshot.stats, snapshot.limits, snapshot.rates
    resident = set(stats.resident_adapters) if stats else set()
    return Engine(
        id=snapshot.id,
        model=snapshot.model,
        state=snapshot.state,
        detail=snapshot.detail,
        since=snapshot.since,
        num_running=stats.num_running if stats else 0,
        num_waiting=stats.num_waiting if stats else 0,
        max_running=limits.max_num_seqs if limits else 0,
        max_waiting=limits.max_waiting if limits else 0,
        max_model_len=limits.max_model_len if limits else 0,
        kv_blocks_used=stats.kv_blocks_used if stats else 0,
        kv_blocks_total=stats.kv_blocks_total if stats else 0,
        adapter_slots_used=stats.adapter_slots_used if stats else 0,
        adapter_slots_total=stats.adapter_slots_total if stats else 0,
        adapter_bytes_used=stats.adapter_bytes_used if stats else 0,
        adapter_bytes_total=stats.adapter_bytes_total if stats else 0,
        adapters_waiting=stats.adapters_waiting if stats else 0,
        preemptions_total=stats.preemptions_total if stats else 0,
        prefix_query_tokens_total=stats.prefix_query_tokens_total if stats else 0,
        prefix_hit_tokens_total=stats.prefix_hit_tokens_total if stats else 0,
        steps_per_s=rates.steps_per_s,
        tokens_per_s=rates.tokens_per_s,
        step_ms_p50=rates.step_ms_p50,
        device=snapshot.device,
        dtype=snapshot.dtype,
        fingerprint=snapshot.fingerprint,
        resident_adapters=[
            ResidentAdapter(each.digest, each.adapter_id, each.name, each.project_id, each.project_name, each.version)
            for each in contents
            if content_key(each.project_id, each.digest) in resident
        ],
        tenants=[
            EngineTenant(id, names[id], tenant.num_running, tenant.num_waiting)
            for id, tenant in (stats.tenants.items() if stats else ())
            if id in names
        ],
    )
