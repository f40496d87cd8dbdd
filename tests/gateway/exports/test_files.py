"""The file formats by themselves: each file reads back as what was written, whatever the batches and however hostile
the text."""

from __future__ import annotations

import csv
import datetime
import hashlib
import io

import msgspec
import pyarrow.parquet as pq
import pytest

from gateway.exports.csv_file import CsvFile, safe_text
from gateway.exports.encoder import Encoder, JsonLines
from gateway.exports.parquet_file import ROWS_PER_GROUP, ParquetFile
from gateway.exports.table import columns_of
from tests.gateway.exports.reading import csv_rows, json_rows, parquet_rows


class Row(msgspec.Struct, frozen=True):
    number: int
    text: str
    maybe: str | None
    share: float | None
    yes: bool
    at: datetime.datetime
    day: datetime.date


TEXTS = [
    "plain",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r\n=1",
    "'quoted",
    "''twice",
    "＝1",
    'a "b", c',
    "two\r\nlines",
    "naïve \N{PARROT}",
    " space ",
]
AT = datetime.datetime(2026, 10, 5, 12, 0, 0, 1, datetime.UTC)


def make_rows(count: int) -> list[Row]:
    return [
        Row(
            number=(-1) ** n * n * 10**13,
            text=TEXTS[n % len(TEXTS)],
            maybe=None if n % 3 else TEXTS[n % len(TEXTS)],
            share=None if n % 5 == 0 else n / 7,
            yes=n % 2 == 0,
            at=AT + datetime.timedelta(milliseconds=n),
            day=(AT + datetime.timedelta(days=n % 31)).date(),
        )
        for n in range(count)
    ]


def encode_file(encoder: Encoder, items: list[Row], batch: int) -> bytes:
    parts = [encoder.encode(items[start : start + batch]) for start in range(0, len(items), batch)]
    return encoder.start() + b"".join(parts) + encoder.finish()


def test_csv_is_rfc_4180_and_no_cell_of_text_begins_like_a_formula() -> None:
    items = make_rows(100)
    content = encode_file(CsvFile(columns_of(Row)), items, 7)
    lines = list(csv.reader(io.StringIO(content.decode(), newline=""), strict=True))
    assert lines[0] == ["number", "text", "maybe", "share", "yes", "at", "day"]
    assert {len(line) for line in lines} == {7}
    for line in lines[1:]:
        assert line[1][:1] not in set("=+-@\t\r\n＝＋－＠") and line[2][:1] not in set("=+-@\t\r\n＝＋－＠")
    for row, item in zip(csv_rows(content), items, strict=True):
        assert (int(row["number"]), row["text"], row["maybe"]) == (item.number, item.text, item.maybe)
        assert (float(row["share"]) if row["share"] else None, row["yes"] == "true") == (item.share, item.yes)
        assert datetime.datetime.fromisoformat(row["at"]) == item.at and len(row["at"]) == 27
    assert content.endswith(b"\r\n")


@pytest.mark.parametrize("text", TEXTS)
def test_the_apostrophe_in_front_can_be_taken_off_again(text: str) -> None:
    cell = safe_text(text)
    assert cell == text or (cell[0] == "'" and cell[1:] == text)
    assert (cell[0] == "'") == (cell != text), "one that begins with an apostrophe is always one of ours"


def test_json_lines_keep_every_value_and_the_order_of_the_columns() -> None:
    items = make_rows(50)
    found = json_rows(encode_file(JsonLines(), items, 7))
    assert [list(row) for row in found] == [list(Row.__struct_fields__)] * 50
    assert [msgspec.convert(row, Row) for row in found] == items


def test_parquet_has_the_same_bytes_whatever_the_batches() -> None:
    items = make_rows(ROWS_PER_GROUP + 1000)
    files = [encode_file(ParquetFile(columns_of(Row)), items, batch) for batch in (250, 1999, len(items))]
    assert len({hashlib.sha256(file).hexdigest() for file in files}) == 1
    metadata = pq.ParquetFile(io.BytesIO(files[0])).metadata
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [ROWS_PER_GROUP, 1000]
    assert [Row(**row) for row in parquet_rows(files[0])] == items


def test_what_a_file_writer_holds_back_is_bounded() -> None:
    """At most one Parquet row group waits in memory."""
    encoder = ParquetFile(columns_of(Row))
    items = make_rows(1000)
    written = [len(encoder.encode(items)) for _ in range(3 * ROWS_PER_GROUP // 1000 + 1)]
    assert sum(1 for size in written if size > 0) >= 3


@pytest.mark.parametrize("encoder", [CsvFile(columns_of(Row)), JsonLines(), ParquetFile(columns_of(Row))])
def test_a_file_of_no_rows_can_be_read(encoder: Encoder) -> None:
    content = encode_file(encoder, [], 1)
    assert not isinstance(encoder, ParquetFile) or parquet_rows(content) == []
    assert not isinstance(encoder, CsvFile) or csv_rows(content) == []
