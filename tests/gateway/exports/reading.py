"""Reads the file of each format back, as its users would, and sums it."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq

from gateway.exports.csv_file import FORMULA_STARTS
from gateway.exports.manifest import Manifest
from gateway.exports.produce import open_export
from gateway.exports.request import make_request
from tests.gateway.exports.focus_rules import COLUMNS
from tests.gateway.exports.ledger import MONTH, Books

Sums = Counter[str]
"""Sums by name: `input`, `cached_input` and `output` in tokens; `cost` and `credit` in nanos."""


async def export(
    books: Books, kind: str, format: str, period: str = MONTH, project_id: str | None = None
) -> tuple[bytes, Manifest]:
    request = make_request(books.organization_id, kind, format, period, project_id)
    async with open_export(books.database, request) as made:
        content = b"".join([chunk async for chunk in made.chunks()])
        return content, made.manifest()


def csv_rows(content: bytes) -> list[dict[str, Any]]:
    """Return a CSV file's rows, without the apostrophe that guards cells against formulas; an empty cell is None."""
    text = io.StringIO(content.decode(), newline="")
    return [{name: _cell(cell) for name, cell in row.items()} for row in csv.DictReader(text, strict=True)]


def focus_rows(content: bytes) -> list[dict[str, Any]]:
    """Return a CSV file's rows as `csv_rows` does, but leave numbers unchanged: no reader removes an apostrophe from a
    cost.
    """
    numbers = {column.name for column in COLUMNS if column.type == "Decimal"}
    text = io.StringIO(content.decode(), newline="")
    return [
        {name: cell or None if name in numbers else _cell(cell) for name, cell in row.items()}
        for row in csv.DictReader(text, strict=True)
    ]


def _cell(cell: str) -> str | None:
    return (cell[1:] if cell[:1] == "'" and cell[1:2] in FORMULA_STARTS else cell) or None


def json_rows(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def parquet_rows(content: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
    return rows


def rows_of(format: str, content: bytes) -> list[dict[str, Any]]:
    readers = {"csv": csv_rows, "focus": focus_rows, "parquet": parquet_rows}
    return readers.get(format, json_rows)(content)


def sums_of_file(kind: str, format: str, content: bytes) -> Sums:
    adding = {"focus": _focus, "stripe": _stripe, "cloudevents": _cloudevent}
    add = adding.get(format, _usage if kind == "usage" else _charge)
    total: Sums = Counter()
    for row in rows_of(format, content):
        add(total, row)
    return +total


def _usage(total: Sums, row: Mapping[str, Any]) -> None:
    total["input"] += int(row["prompt_tokens"]) - int(row["cached_tokens"])
    total["cached_input"] += int(row["cached_tokens"])
    total["output"] += int(row["completion_tokens"])
    total["cost"] += int(row["cost_nanos"])


def _charge(total: Sums, row: Mapping[str, Any]) -> None:
    if row["num_tokens"] is not None:
        total[row["line_item"]] += int(row["num_tokens"])
    if row["line_item"] == "credit":
        total["credit"] -= int(row["cost_nanos"])
    else:
        total["cost"] += int(row["cost_nanos"])


_METERS = {"Input Tokens": "input", "Cached Input Tokens": "cached_input", "Output Tokens": "output"}


def _focus(total: Sums, row: Mapping[str, Any]) -> None:
    nanos = Decimal(row["BilledCost"]) * 10**9
    assert nanos == int(nanos)
    if row["ConsumedQuantity"] is not None:
        total[_METERS[row["SkuMeter"]]] += int(Decimal(row["ConsumedQuantity"]))
    if row["ChargeCategory"] == "Credit":
        total["credit"] -= int(nanos)
    else:
        total["cost"] += int(nanos)


def _stripe(total: Sums, row: Mapping[str, Any]) -> None:
    name = row["event_name"].removeprefix("lorikeet_").removesuffix("_tokens").removesuffix("_nanos")
    assert row["payload"]["value"] == str(int(row["payload"]["value"])), "a whole number"
    total[name] += int(row["payload"]["value"])


def _cloudevent(total: Sums, row: Mapping[str, Any]) -> None:
    _usage(total, row["data"])
