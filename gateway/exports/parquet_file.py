"""Apache Parquet through pyarrow, with every setting that shapes the bytes fixed here.

Nothing of the moment or the machine goes into the file; its bytes depend on the rows, these settings and the library's
version, which the manifest names. Row groups have a fixed number of rows whatever the batches they came in.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.exports.sink import Sink
from gateway.exports.table import Column

ROWS_PER_GROUP = 32_768

LIBRARY = f"pyarrow {pa.__version__}"

_TYPES: dict[str, pa.DataType] = {
    "text": pa.string(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "boolean": pa.bool_(),
    "time": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
}


class ParquetFile:
    """The encoder of Parquet. columns: the names of the fields of the rows' struct, in order."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._schema = pa.schema(
            [pa.field(column.name, _TYPES[column.type], nullable=column.is_nullable) for column in columns]
        )
        self._sink = Sink()
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            version="2.6",
            compression="zstd",
            compression_level=3,
            use_dictionary=True,
            write_statistics=True,
            data_page_version="1.0",
            data_page_size=1 << 20,
            store_schema=False,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0

    def start(self) -> bytes:
        """Return the mark that every Parquet file begins with."""
        return self._sink.drain()

    def encode(self, rows: Sequence[msgspec.Struct]) -> bytes:
        """Return the bytes of row groups that the batch has filled; rows of a group that is not full wait."""
        values = zip(*map(msgspec.structs.astuple, rows), strict=True)
        arrays = [pa.array(column, field.type) for field, column in zip(self._schema, values, strict=True)]
        self._waiting.append(pa.record_batch(arrays, schema=self._schema))
        self._num_waiting += len(rows)
        while self._num_waiting >= ROWS_PER_GROUP:
            self._write(ROWS_PER_GROUP)
        return self._sink.drain()

    def finish(self) -> bytes:
        """Write the rows that wait as a last group, and return it with the footer."""
        if self._num_waiting:
            self._write(self._num_waiting)
        self._writer.close()
        return self._sink.drain()

    def _write(self, num_rows: int) -> None:
        """Write a row group of the first num_rows that wait."""
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table.slice(0, num_rows).combine_chunks(), row_group_size=num_rows)
        self._waiting = table.slice(num_rows).to_batches()
        self._num_waiting -= num_rows
