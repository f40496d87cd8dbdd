"""Invoices: that of a closed period is issued once and never changes; that of an open one is a draft."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.billing.adjustments import adjusted_projects, list_adjustments
from gateway.db.billing.periods import mark_invoiced
from gateway.db.billing.prices import currency_of, list_versions
from gateway.domain.billing.closing import next_month
from gateway.domain.billing.invoice import AdjustmentLine, Invoice, Party, PeriodSum, lines_of

if TYPE_CHECKING:
    from gateway.db.pool import Connection

# As they were when the month was closed, as in its exports; the name of an archived project is what it was.
_PARTIES = """
    SELECT coalesce((SELECT n.name FROM period_names n WHERE n.organization_id = o.id AND n.period = $3
                     AND n.object_id = o.id), o.name) AS organization,
           coalesce((SELECT n.name FROM period_names n WHERE n.organization_id = o.id AND n.period = $3
                     AND n.object_id = p.id), p.archived_name, p.name) AS project, p.id AS project_id
    FROM organizations o JOIN projects p ON p.organization_id = o.id WHERE o.id = $1 AND p.id = ANY ($2)
"""
_SUMS = """
    SELECT model, adapter_class, service_tier, price_version, to_char(corrects_period, 'YYYY-MM') AS corrects_period,
           num_requests, prompt_tokens, cached_tokens, completion_tokens,
           input_cost_nanos, cached_cost_nanos, output_cost_nanos, project_id
    FROM period_sums WHERE organization_id = $1 AND project_id = ANY ($2) AND period = $3 AND kind = 'usage'
    ORDER BY corrects_period NULLS FIRST, model, adapter_class, service_tier, price_version
"""
_DRAWN = """
    SELECT g.project_id, sum(d.amount_nanos) FROM credit_draws d JOIN credit_grants g ON g.id = d.grant_id
    WHERE g.project_id = ANY ($1) AND d.period = $2 GROUP BY 1
"""


async def draft_invoice(conn: Connection, organization_id: str, project_id: str, start: datetime.date) -> Invoice:
    """Return the project's invoice of a month as it would be now. Credits are drawn when the month is closed."""
    (draft,) = await _drafts(conn, organization_id, [project_id], start)
    return draft


async def _drafts(
    conn: Connection, organization_id: str, project_ids: Sequence[str], start: datetime.date
) -> list[Invoice]:
    """Return drafts for these projects of the organization, in the order of the ids."""
    ids = list(project_ids)
    parties = {row["project_id"]: row for row in await conn.fetch(_PARTIES, organization_id, ids, start)}
    versions = {stored.version.version: stored.version for stored in await list_versions(conn, organization_id)}
    currency = await currency_of(conn, organization_id)
    sums: dict[str, list[PeriodSum]] = {}
    for *numbers, project_id in await conn.fetch(_SUMS, organization_id, ids, start):
        sums.setdefault(project_id, []).append(PeriodSum(*numbers))
    drawn: dict[str, int] = {project_id: int(nanos) for project_id, nanos in await conn.fetch(_DRAWN, ids, start)}
    adjusted_in = await adjusted_projects(conn, organization_id, start)
    drafts = []
    for project_id in ids:
        adjustments = [
            AdjustmentLine(
                each.id,
                each.reason,
                each.corrects_period.strftime("%Y-%m") if each.corrects_period else None,
                each.corrects_request_id,
                each.cost_nanos,
            )
            for each in (
                await list_adjustments(conn, organization_id, project_id, start) if project_id in adjusted_in else ()
            )
        ]
        lines = lines_of(sums.get(project_id, []), versions, project_id)
        usage = sum(line.amount_nanos for line in lines)
        adjusted = sum(line.amount_nanos for line in adjustments)
        credit = drawn.get(project_id, 0)
        draft = Invoice(
            number=None,
            period=f"{start:%Y-%m}",
            period_start=_seconds(start),
            period_end=_seconds(next_month(start)),
            issued_at=None,
            organization=Party(organization_id, parties[project_id]["organization"]),
            project=Party(project_id, parties[project_id]["project"]),
            currency=currency,
            num_requests=sum(each.num_requests for each in sums.get(project_id, [])),
            lines=lines,
            adjustments=adjustments,
            usage_nanos=usage,
            adjustments_nanos=adjusted,
            total_nanos=usage + adjusted,
            credit_nanos=credit,
            due_nanos=usage + adjusted - credit,
        )
        drafts.append(draft)
    return drafts


_BILLED = "SELECT DISTINCT project_id FROM period_sums WHERE organization_id = $1 AND period = $2 ORDER BY project_id"


async def billed_projects(conn: Connection, organization_id: str, start: datetime.date) -> list[str]:
    """Return the ids of the projects that have something on their invoice of a month."""
    return [row["project_id"] for row in await conn.fetch(_BILLED, organization_id, start)]


async def invoice_numbers(conn: Connection, organization_id: str, start: datetime.date) -> dict[str, str]:
    """Return the numbers of invoices by project, for a closed month.

    They are fixed from its close on, issued or not.
    """
    billed = await billed_projects(conn, organization_id, start)
    return {project_id: f"{start:%Y-%m}-{place:04}" for place, project_id in enumerate(billed, 1)}


_INSERT = """
    INSERT INTO invoices (number, organization_id, project_id, period, issued_at, document)
    VALUES ($1, $2, $3, $4, $5, $6)
"""
_NOW = "SELECT date_trunc('second', clock_timestamp())"


async def issue_invoices(conn: Connection, organization_id: str, start: datetime.date) -> list[Invoice]:
    """Issue an invoice to every project that has something in a closed month.

    Runs in the caller's transaction, which holds the organization's lock. The month must not have been invoiced.
    """
    now: datetime.datetime = await conn.fetchval(_NOW)
    issued = []
    numbers = await invoice_numbers(conn, organization_id, start)
    drafts = await _drafts(conn, organization_id, list(numbers), start)
    for (project_id, number), draft in zip(numbers.items(), drafts, strict=True):
        invoice = msgspec.structs.replace(draft, number=number, issued_at=int(now.timestamp()))
        document = msgspec.json.encode(invoice).decode()
        await conn.execute(_INSERT, invoice.number, organization_id, project_id, start, now, document)
        issued.append(invoice)
    await mark_invoiced(conn, organization_id, start)
    return issued


_ISSUED = "SELECT document FROM invoices WHERE organization_id = $1 AND project_id = $2 AND period = $3"


async def find_document(conn: Connection, organization_id: str, project_id: str, start: datetime.date) -> bytes:
    """Return the JSON of an invoice: the issued bytes, whatever invoices look like today, or those of a draft."""
    document: str | None = await conn.fetchval(_ISSUED, organization_id, project_id, start)
    if document is not None:
        return document.encode()
    return msgspec.json.encode(await draft_invoice(conn, organization_id, project_id, start))


async def find_invoice(conn: Connection, organization_id: str, project_id: str, start: datetime.date) -> Invoice:
    """Return an invoice as it was issued, or a draft."""
    return msgspec.json.decode(await find_document(conn, organization_id, project_id, start), type=Invoice)


_ALL_ISSUED = "SELECT document FROM invoices WHERE organization_id = $1 AND period = $2 ORDER BY number"


async def list_documents(conn: Connection, organization_id: str, start: datetime.date) -> list[bytes]:
    """Return the invoices of every project that has something in a month, as issued, or drafts."""
    issued = await conn.fetch(_ALL_ISSUED, organization_id, start)
    if issued:
        return [row["document"].encode() for row in issued]
    projects = await billed_projects(conn, organization_id, start)
    return [msgspec.json.encode(draft) for draft in await _drafts(conn, organization_id, projects, start)]


def _seconds(day: datetime.date) -> int:
    return int(datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp())
