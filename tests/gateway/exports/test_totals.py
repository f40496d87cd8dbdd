"""In every format a file that is read back adds up to the ledger, to the token and to the nano."""

from __future__ import annotations

import datetime
from collections import Counter

import pytest

from gateway.exports.request import FORMATS_OF, WrongExport, make_request
from tests.gateway.exports.ledger import BEFORE, MONTH, Books
from tests.gateway.exports.reading import Sums, csv_rows, export, json_rows, rows_of, sums_of_file

ALL = [(kind, format) for kind, formats in FORMATS_OF.items() for format in formats]

_LEDGER = """
    SELECT sum(prompt_tokens - cached_tokens)::bigint AS input, sum(cached_tokens)::bigint AS cached_input,
           sum(completion_tokens)::bigint AS output, sum(cost_nanos)::bigint AS cost
    FROM ledger WHERE period = $1 AND ($2::text IS NULL OR project_id = $2)
        AND ($3::date IS NULL OR (created_at AT TIME ZONE 'UTC')::date = $3)
"""

_DRAWN = """
    SELECT coalesce(sum(d.amount_nanos), 0)::bigint FROM credit_draws d JOIN credit_grants g ON g.id = d.grant_id
    WHERE d.period = $1 AND ($2::text IS NULL OR g.project_id = $2)
"""


async def ledger_sums(
    books: Books, month: str, project_id: str | None = None, day: datetime.date | None = None
) -> Sums:
    first = datetime.date.fromisoformat(f"{month}-01")
    async with books.database.acquire() as conn:
        found: Sums = Counter(dict(await conn.fetchrow(_LEDGER, first, project_id, day)))
        drawn = await conn.fetchval(_DRAWN, first, project_id)
    return found + Counter(credit=int(drawn))


@pytest.mark.parametrize("month", [MONTH, BEFORE])
@pytest.mark.parametrize(("kind", "format"), ALL)
async def test_every_format_adds_up_to_the_ledger(books: Books, kind: str, format: str, month: str) -> None:
    content, manifest = await export(books, kind, format, month)
    expected = await ledger_sums(books, month)
    if kind != "invoice" and format != "focus":
        del expected["credit"]  # credits pay bills; they are neither usage nor costs
    assert sums_of_file(kind, format, content) == expected
    totals = manifest.totals
    assert (totals.currency, totals.cost_nanos, totals.credit_nanos) == ("usd", expected["cost"], expected["credit"])
    assert (totals.input_tokens, totals.output_tokens) == (expected["input"], expected["output"])
    assert manifest.num_rows == len(rows_of(format, content))


@pytest.mark.parametrize(("kind", "format"), [("usage", "csv"), ("costs", "focus"), ("invoice", "jsonl")])
async def test_one_project_gets_its_own_rows_alone(books: Books, kind: str, format: str) -> None:
    content, _ = await export(books, kind, format, project_id=books.acme)
    assert sums_of_file(kind, format, content) == await ledger_sums(books, MONTH, books.acme)
    assert books.globex.encode() not in content


async def test_days_and_what_came_late_make_up_the_month(books: Books) -> None:
    total: Sums = Counter()
    for day in range(1, 32):
        content, manifest = await export(books, "usage", "jsonl", f"{MONTH}-{day:02}")
        of_day = sums_of_file("usage", "jsonl", content)
        assert of_day == await ledger_sums(books, MONTH, day=datetime.date(2025, 10, day))
        assert manifest.period == f"{MONTH}-{day:02}"
        total += of_day
    month, _ = await export(books, "usage", "jsonl")
    late = [row for row in json_rows(month) if row["corrects_period"] == BEFORE and row["kind"] == "usage"]
    assert {row["request_id"][:9] for row in late} == {"req_late_"} and len(late) == 20
    for row in late:
        total += Counter(
            input=row["prompt_tokens"] - row["cached_tokens"],
            cached_input=row["cached_tokens"],
            output=row["completion_tokens"],
            cost=row["cost_nanos"],
        )
    assert total == await ledger_sums(books, MONTH)


async def test_rows_come_in_their_stated_order(books: Books) -> None:
    content, manifest = await export(books, "usage", "csv")
    keys = [tuple(_comparable(row[name]) for name in manifest.order) for row in csv_rows(content)]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys) > 1000


def _comparable(cell: str) -> bytes | int:
    return int(cell) if cell.isdecimal() else cell.encode()


async def test_stripe_identifiers_are_unique_and_stable(books: Books) -> None:
    first, second = [(await export(books, "usage", "stripe"))[0] for _ in range(2)]
    identifiers = [event["identifier"] for event in json_rows(first)]
    assert len(set(identifiers)) == len(identifiers) > 3000
    assert max(map(len, identifiers)) <= 100
    assert identifiers == [event["identifier"] for event in json_rows(second)]


async def test_events_name_where_they_come_from(books: Books) -> None:
    content, _ = await export(books, "usage", "cloudevents")
    events = json_rows(content)
    assert len({event["id"] for event in events}) == len(events)
    assert {event["specversion"] for event in events} == {"1.0"}
    async with books.database.acquire() as conn:
        installation = await conn.fetchval("SELECT id FROM installation")
    assert {event["source"] for event in events} == {f"urn:lorikeet:{installation}"}
    assert {event["subject"] for event in events} == {books.acme, books.globex}


@pytest.mark.parametrize(
    ("kind", "format", "period", "field"),
    [
        ("tokens", "csv", "2025-10", "kind"),
        ("usage", "focus", "2025-10", "format"),
        ("costs", "stripe", "2025-10", "format"),
        ("usage", "xlsx", "2025-10", "format"),
        ("usage", "csv", "2025-13", "period"),
        ("usage", "csv", "2025-02-30", "period"),
        ("usage", "csv", "9999-12", "period"),
        ("usage", "csv", "٢٠٢٥-10", "period"),
        ("usage", "csv", "../../etc", "period"),
        ("invoice", "csv", "2025-10-05", "period"),
    ],
)
def test_a_kind_format_or_period_that_does_not_exist_is_refused_by_its_field(
    kind: str, format: str, period: str, field: str
) -> None:
    with pytest.raises(WrongExport) as error:
        make_request("org_x", kind, format, period)
    assert error.value.field == field
