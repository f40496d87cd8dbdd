"""Conditions that hold now and that somebody should look at, the worst first. Each ends by itself.

Limits, keys, adapters and experiments are shown to callers who may read them, in their own projects; engines, journals,
webhooks and deliveries are the operator's.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from litestar import get

from gateway.admin.access import needs
from gateway.admin.common import seconds_or_none, unix_seconds
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.ledger.journals import LostJournal, lost_journals
from gateway.db.limits import alerts as rows
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import projects_with

Severity = Literal["critical", "warning", "info"]
_ORDER: tuple[Severity, ...] = ("critical", "warning", "info")
JOURNAL_ALERT = 0.8
"""The used part of a journal's room from which on the operator gets an alert."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A condition that holds now and that somebody should look at."""

    severity: Severity
    code: str
    title: str
    detail: str
    href: str
    """The address of the dashboard's page about the alert."""
    project_id: str | None = None
    percent: int | None = None
    """The percentage of a limit or a balance that is used or reserved."""
    since: int | None = None
    """Unix seconds at which the alert began; null where this is not known."""


class AlertList(msgspec.Struct, frozen=True):
    """The alerts that hold now, the worst first."""

    data: list[Alert]
    object: Literal["list"] = "list"


@get("/alerts", opt=needs("projects.read", in_any_project=True))
async def list_active_alerts(services: Services, caller: Caller) -> AlertList:
    """List the alerts that hold now, the worst first."""
    return AlertList(sorted(await find_alerts(services, caller), key=lambda alert: _ORDER.index(alert.severity)))


async def find_alerts(services: AdminServices, caller: Actor) -> list[Alert]:
    """Return the present alerts that the caller may see."""
    is_operator = "organization.read" in caller.permissions
    organization_id = caller.organization_id
    limits, keys = projects_with(caller, "limits.read"), projects_with(caller, "keys.read")
    adapters, experiments = projects_with(caller, "adapters.read"), projects_with(caller, "experiments.read")
    found = list(_alerts_of_this_gateway(services)) if is_operator else []
    async with services.database.acquire() as conn:
        found += map(_limit_alert, await rows.full_limits(conn, organization_id, limits))
        found += map(_key_alert, await rows.ending_keys(conn, organization_id, keys))
        found += map(_version_alert, await rows.rejected_versions(conn, organization_id, adapters))
        found += map(_experiment_alert, await rows.paused_experiments(conn, organization_id, experiments))
        if is_operator:
            found += _journal_alerts(await lost_journals(conn))
            found += map(_webhook_alert, await rows.failing_webhooks(conn, organization_id))
            found += map(_delivery_alert, await rows.failing_deliveries(conn, organization_id))
    return found


def _alerts_of_this_gateway(services: AdminServices) -> Iterator[Alert]:
    for engine in services.engines():
        if engine.state != "ready":
            yield Alert(
                severity="critical" if engine.state == "unreachable" else "warning",
                code=f"engine_{engine.state}",
                title=f"The engine of {engine.model} is {engine.state}",
                detail=f"{engine.detail[:1].upper()}{engine.detail[1:]}.",
                href="/admin/system/backends",
                since=engine.since,
            )
    journal = services.journal()
    if not journal.has_room:
        yield Alert(
            severity="critical",
            code="journal_not_writable",
            title="Usage cannot be recorded",
            detail="This gateway's journal cannot be written or is full: requests are refused until it can.",
            href="/admin/system/status",
        )
    elif journal.num_bytes >= JOURNAL_ALERT * journal.max_bytes:
        yield Alert(
            severity="warning",
            code="journal_nearly_full",
            title="Usage waits for the database",
            detail=f"This gateway's journal is {100 * journal.num_bytes // journal.max_bytes} % full; when it is, "
            "requests are refused.",
            href="/admin/system/status",
        )


def _limit_alert(row: rows.FullLimit) -> Alert:
    whose = f"tenant {row.project_name}" if row.project_name else "the organization"
    href = f"/admin/tenants/{row.project_id}/limits" if row.project_id else "/admin/system/limits"
    percent, is_full = 100 * row.taken // row.max, row.taken >= row.max
    if row.unit == "cost_nanos" and row.window == "none" and row.project_id:
        return Alert(
            severity="critical" if is_full else "warning",
            code="balance_exhausted" if is_full else "balance_low",
            title=f"The prepaid balance of {whose} is {'used up' if is_full else 'low'}",
            detail=f"{percent} % of its credits are used or reserved; more credit makes room.",
            href=href,
            project_id=row.project_id,
            percent=percent,
        )
    per = "" if row.window == "none" else f" per {row.window}"
    model = f" with {row.model}" if row.model else ""
    return Alert(
        severity="warning" if is_full and row.hard else "info",
        code="limit_exhausted" if is_full else "limit_near",
        title=f"A limit of {whose} is {'used up' if is_full else f'{percent} % full'}",
        detail=f"{row.taken} of {row.max} {row.unit}{per}{model} are used or reserved"
        f"{', and further requests are refused' if is_full and row.hard else ''}.",
        href=href,
        project_id=row.project_id,
        percent=percent,
    )


def _key_alert(row: rows.EndingKey) -> Alert:
    at = row.expires_at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Alert(
        severity="info",
        code="key_expires_soon",
        title=f"A key of tenant {row.project_name} expires soon",
        detail=f"The key '{row.name}' ends at {at}; rotate it or change its expiry.",
        href=f"/admin/tenants/{row.project_id}/keys",
        project_id=row.project_id,
    )


def _version_alert(row: rows.RejectedVersion) -> Alert:
    what = f"version {row.version} of {row.name}" if row.version is not None else f"an import of {row.name}"
    return Alert(
        severity="warning",
        code="adapter_rejected",
        title=f"{what[:1].upper()}{what[1:]} was rejected",
        detail=f"Tenant {row.project_name}: {row.reason or 'no reason was noted'}",
        href=f"/admin/adapters/{row.project_id}/{row.name}",
        project_id=row.project_id,
        since=unix_seconds(row.rejected_at),
    )


def _experiment_alert(row: rows.PausedExperiment) -> Alert:
    return Alert(
        severity="warning",
        code="experiment_paused",
        title=f"The experiment {row.name} paused itself",
        detail=f"Tenant {row.project_name}: {row.why or 'a guardrail found harm.'}",
        href=f"/admin/experiments/{row.project_id}/{row.id}",
        project_id=row.project_id,
        since=unix_seconds(row.paused_at),
    )


def _journal_alerts(lost: Sequence[LostJournal]) -> list[Alert]:
    if not lost:
        return []
    requests = sum(each.open_requests for each in lost)
    return [
        Alert(
            severity="critical",
            code="journals_lost",
            title=f"{requests} requests are not billed",
            detail=f"{len(lost)} gateways have gone with usage in their journals. Start them again with their data "
            "folders, or write the journals off.",
            href="/admin/system/status",
            since=min(unix_seconds(each.heard_at) for each in lost),
        )
    ]


def _webhook_alert(row: rows.FailingTarget) -> Alert:
    return Alert(
        severity="warning",
        code="webhook_failing",
        title="A webhook fails",
        detail=f"{row.name}: {row.error or 'no reason was noted'}",
        href="/admin/system/webhooks",
        since=seconds_or_none(row.failed_at),
    )


def _delivery_alert(row: rows.FailingTarget) -> Alert:
    return Alert(
        severity="warning",
        code="delivery_failing",
        title=f"The delivery '{row.name}' fails",
        detail=row.error or "No reason was noted.",
        href="/admin/usage/exports",
    )
