"""A closed month gives the same bytes every time, whatever has changed since."""

from __future__ import annotations

import datetime
from pathlib import Path

from gateway.db.billing.deliveries import set_stripe_customer
from gateway.db.billing.exports import LedgerSums
from gateway.db.billing.invoices import draft_invoice
from gateway.db.organization.projects import archive_project, rename_project
from gateway.db.pool import Database
from gateway.domain.billing.invoice import Invoice
from gateway.exports.request import FORMATS_OF
from gateway.exports.totals import Totals, difference
from tests.gateway.admin_server import serve_admin
from tests.gateway.exports.ledger import BEFORE, MONTH, Books, close_month, make_books, time, write_usage
from tests.gateway.exports.reading import export

OCTOBER = datetime.date(2025, 10, 1)


async def all_exports(books: Books, month: str) -> dict[str, bytes]:
    """Return the content of every export file and manifest of a month, by name."""
    files = {}
    for kind, formats in FORMATS_OF.items():
        for format in formats:
            content, manifest = await export(books, kind, format, month)
            files[manifest.files[0].name] = content
            files[f"{manifest.files[0].name}.manifest"] = manifest.encode()
    return files


async def test_nothing_that_happens_later_changes_a_closed_month(database: Database) -> None:
    books = await make_books(database, num_rows=150)
    async with database.transaction() as conn:
        await set_stripe_customer(conn, books.organization_id, books.acme, "cus_acme")
        await close_month(conn, books, OCTOBER)
    before = await all_exports(books, MONTH)
    invoice = await draft_of_october(books)
    assert b"cus_acme" in before[f"usage-{MONTH}.stripe.jsonl"]
    async with database.transaction() as conn:
        await rename_project(conn, books.organization_id, books.acme, "renamed")
        await set_stripe_customer(conn, books.organization_id, books.acme, "cus_other")
        await set_stripe_customer(conn, books.organization_id, books.globex, "cus_globex")
        await archive_project(conn, books.organization_id, books.globex, datetime.timedelta(days=1))
        await write_usage(conn, books, "req_too_late_", time(10, 3), time(11, 1), 50)
        await conn.execute(
            "INSERT INTO price_versions (id, organization_id, version, currency, effective_at)"
            " VALUES ('pv_3', $1, 3, 'usd', now())",
            books.organization_id,
        )
    assert await all_exports(books, MONTH) == before
    assert await draft_of_october(books) == invoice, "an invoice that is issued later has the names of then"
    open_month, _ = await export(books, "usage", "stripe", "2025-11")
    assert b"cus_other" in open_month and b"cus_acme" not in open_month


async def draft_of_october(books: Books) -> Invoice:
    async with books.database.acquire() as conn:
        return await draft_invoice(conn, books.organization_id, books.acme, OCTOBER)


async def test_an_issued_invoice_is_answered_as_the_text_that_was_issued(books: Books, tmp_path: Path) -> None:
    """This holds for an invoice, too, that an older version wrote with fewer fields or in another form."""
    document = '{ "number": "2025-09-0001", "period": "2025-09" }'
    async with books.database.acquire() as conn:
        await conn.execute(
            "INSERT INTO invoices (number, organization_id, project_id, period, document)"
            " VALUES ('2025-09-0001', $1, $2, '2025-09-01', $3)",
            books.organization_id,
            books.acme,
            document,
        )
    async with serve_admin(books.database, tmp_path) as server, server.client(server.operator_key) as operator:
        one = await operator.get(f"/projects/{books.acme}/invoices/{BEFORE}")
        of_all = await operator.get(f"/periods/{BEFORE}/invoices")
    assert one.text == document
    assert of_all.text == f'{{"data":[{document}],"object":"list"}}'


async def test_an_export_of_an_open_month_says_so_and_when_it_was_read(books: Books) -> None:
    _, of_open = await export(books, "usage", "csv", MONTH)
    _, of_closed = await export(books, "usage", "csv", BEFORE)
    _, of_day = await export(books, "usage", "csv", f"{BEFORE}-05")
    assert (of_open.state, of_closed.state, of_day.state) == ("open", "closed", "closed")
    assert of_open.as_of is not None and of_closed.as_of is None
    assert datetime.datetime.fromisoformat(of_open.as_of).tzinfo is not None


def test_an_export_that_differs_from_the_ledger_is_found() -> None:
    ledger = LedgerSums(num_rows=3, input_tokens=13, cached_input_tokens=1, output_tokens=5, cost_nanos=100)
    assert difference(Totals(13, 1, 5, "usd", 100, 7), ledger) is None
    for wrong in ((12, 1, 5, 100), (13, 2, 5, 100), (13, 1, 4, 100), (13, 1, 5, 101)):
        assert difference(Totals(*wrong[:3], "usd", wrong[3], 7), ledger) is not None


async def test_a_month_without_usage_is_whole_and_empty(books: Books) -> None:
    for kind, formats in FORMATS_OF.items():
        for format in formats:
            content, manifest = await export(books, kind, format, "2026-01")
            assert manifest.num_rows == 0 and manifest.totals.cost_nanos == 0
            assert manifest.files[0].num_bytes == len(content)
