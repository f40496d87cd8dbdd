"""CSV as RFC 4180 has it: CRLF, quotes where needed, UTF-8 without a mark, a header line.

Spreadsheets run a cell that begins like a formula. Such a text, and one that begins with an apostrophe, gets an
apostrophe in front, so that the original is always the cell without its first apostrophe. Numbers, which may be
negative, are left alone, and null is an empty cell.
"""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from gateway.exports.table import Column

FORMULA_STARTS = frozenset("=+-@\t\r\n'＝＋－＠")
"""The characters with which a cell begins that spreadsheets run as a formula, and the apostrophe.

Full-width forms are included.
"""


class CsvFile:
    """The encoder of CSV. columns: the names of the fields of the rows' struct, in order."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._cells = [_CELLS.get(column.type) for column in columns]

    def start(self) -> bytes:
        """Return the header line with the names of all columns."""
        return _lines([[column.name for column in self._columns]])

    def encode(self, rows: Sequence[msgspec.Struct]) -> bytes:
        """Return one line for each row, each cell in the form of its column's type; a missing value is empty."""
        columns = [
            column if cell is None else [None if value is None else cell(value) for value in column]
            for cell, column in zip(self._cells, zip(*map(msgspec.structs.astuple, rows), strict=True), strict=False)
        ]
        return _lines(zip(*columns, strict=True))

    def finish(self) -> bytes:
        """Return no bytes: the last row ends the file."""
        return b""


def safe_text(text: str) -> str:
    """Return the text with an apostrophe before it where a spreadsheet would run it as a formula."""
    return f"'{text}" if text and text[0] in FORMULA_STARTS else text


def utc_text(time: datetime.datetime) -> str:
    """Return a time as RFC 3339 in UTC, to the microsecond: 2026-10-05T12:00:00.000000Z."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def decimal_text(value: Decimal) -> str:
    """Return a number as decimal text: exact, without an exponent, and with a fraction.

    Readers that tell types by the text see no integer.
    """
    whole, _, fraction = f"{value:f}".partition(".")
    return f"{whole}.{fraction.rstrip('0') or '0'}"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _lines(rows: Any) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\r\n").writerows(rows)
    return buffer.getvalue().encode()


_CELLS: dict[str, Callable[[Any], str]] = {
    "text": safe_text,
    "time": utc_text,
    "boolean": _boolean,
    "decimal": decimal_text,
}
