"""Produces one export of an experiment: rows of a snapshot, or its sums, encoded, counted and hashed.

The same state gives the same bytes: no time or machine is in a file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from gateway.db.experiments import exports as db
from gateway.db.experiments.scopes import Scope, find_scopes
from gateway.db.pool import Database
from gateway.exports.csv_file import CsvFile
from gateway.exports.encoder import Encoder, JsonLines
from gateway.exports.experiments.analysis import analysis_chunks
from gateway.exports.manifest import FORMAT_VERSION, FileDigest, FileEntry
from gateway.exports.request import WrongExport
from gateway.exports.table import columns_of

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Kind = Literal["exposures", "outcomes", "feedback", "analysis"]
Format = Literal["csv", "jsonl", "parquet", "json"]

KINDS: tuple[Kind, ...] = get_args(Kind)
FORMATS: tuple[Format, ...] = get_args(Format)

_ROWS: dict[Kind, tuple[type[msgspec.Struct], tuple[str, ...]]] = {
    "exposures": (db.ExposureRow, ("unit_digest",)),
    "outcomes": (db.OutcomeRow, ("unit_digest",)),
    "feedback": (db.FeedbackRow, ("received_at", "id")),
}
"""The rows of each kind, and the columns by which they are ordered."""


class ExperimentExportRequest(msgspec.Struct, frozen=True):
    """An export of an experiment that can be made."""

    project_id: str
    experiment_id: str
    kind: Kind
    format: Format

    @property
    def file_name(self) -> str:
        """The name of the file: the experiment's id, the kind of export and the format."""
        return f"{self.experiment_id}-{self.kind}.{self.format}"

    @property
    def manifest_name(self) -> str:
        """The name of the manifest, which is that of the file with an ending of its own."""
        return f"{self.file_name}.manifest.json"


class ExperimentManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content and size of an export, and the digest of its file."""

    format_version: int
    project_id: str
    experiment_id: str
    experiment_version: int
    """The number of the definition's latest change."""
    kind: Kind
    format: Format
    num_rows: int
    order: tuple[str, ...]
    """The columns by which rows are ordered."""
    library: str | None
    """The library that wrote the file, where its bytes depend on the library's version."""
    files: tuple[FileEntry, ...]

    def encode(self) -> bytes:
        """Return the manifest as JSON, the same bytes for equal manifests."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def make_export_request(project_id: str, experiment_id: str, kind: str, format: str | None) -> ExperimentExportRequest:
    """Return the request for an export. format: None stands for the kind's first.

    Raises WrongExport: when no export of an experiment is of this kind, or the kind does not exist in this format.
    """
    if kind not in KINDS:
        raise WrongExport("kind", f"it must be one of {', '.join(KINDS)}")
    formats = ("json",) if kind == "analysis" else ("csv", "jsonl", "parquet")
    if (format or formats[0]) not in formats:
        raise WrongExport("format", f"{kind} come as {', '.join(formats)}")
    asked = {"project_id": project_id, "experiment_id": experiment_id, "kind": kind, "format": format or formats[0]}
    return msgspec.convert(asked, ExperimentExportRequest)


class ExperimentExport:
    """An export within the transaction of its snapshot. Read `chunks` to its end, then the manifest."""

    def __init__(self, conn: Connection, request: ExperimentExportRequest, scope: Scope) -> None:
        self.request = request
        self._conn = conn
        self._scope = scope
        self._digest = FileDigest(request.file_name)
        self._library: str | None = None
        self._num_rows = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the file, in pieces of bounded size.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        if self.request.kind == "analysis":
            async for chunk in analysis_chunks(self._conn, self._scope):
                yield self._hash_chunk(chunk)
            return
        encoder = self._encoder()
        yield self._hash_chunk(encoder.start())
        async for rows in self._rows():
            self._num_rows += len(rows)
            if chunk := encoder.encode(rows):
                yield self._hash_chunk(chunk)
        yield self._hash_chunk(encoder.finish())

    def manifest(self) -> ExperimentManifest:
        """Return the manifest of the file, after `chunks`."""
        request = self.request
        return ExperimentManifest(
            format_version=FORMAT_VERSION,
            project_id=request.project_id,
            experiment_id=request.experiment_id,
            experiment_version=self._scope.version,
            kind=request.kind,
            format=request.format,
            num_rows=self._num_rows,
            order=_ROWS[request.kind][1] if request.kind in _ROWS else (),
            library=self._library,
            files=(self._digest.entry(),),
        )

    def _hash_chunk(self, chunk: bytes) -> bytes:
        self._digest.add(chunk)
        return chunk

    def _rows(self) -> AsyncIterator[Sequence[Any]]:
        arms = [arm.name for arm in self._scope.definition.arms]
        match self.request.kind:
            case "exposures":
                return db.exposure_rows(self._conn, self._scope.id, arms)
            case "outcomes":
                return db.outcome_rows(self._conn, self._scope.id, arms)
        return db.feedback_rows(self._conn, self._scope.id)

    def _encoder(self) -> Encoder:
        columns = columns_of(_ROWS[self.request.kind][0])
        match self.request.format:
            case "csv":
                return CsvFile(columns)
            case "parquet":
                from gateway.exports.parquet_file import LIBRARY, ParquetFile  # takes memory that few need

                self._library = LIBRARY
                return ParquetFile(columns)
        return JsonLines()


@asynccontextmanager
async def open_experiment_export(
    database: Database, request: ExperimentExportRequest, *, deadline_s: float | None = None
) -> AsyncIterator[ExperimentExport | None]:
    """Open an export in a snapshot on a connection of its own; yield None if the experiment has not started.

    The connection is closed after deadline_s.

    Raises one of `gateway.db.pool.UNAVAILABLE`: when the database cannot be reached.
    """
    async with database.snapshot(deadline_s) as conn:
        scope = (await find_scopes(conn, [request.experiment_id])).get(request.experiment_id)
        is_there = scope is not None and scope.project_id == request.project_id
        yield ExperimentExport(conn, request, scope) if scope is not None and is_there else None
