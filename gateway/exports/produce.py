"""Produces one export: rows of a snapshot, encoded, counted, summed and hashed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gateway.db.billing import charges
from gateway.db.billing import exports as ledger
from gateway.db.billing.charges import CHARGE_ORDER, ChargeRow
from gateway.db.billing.deliveries import stripe_customers
from gateway.db.billing.exports import LEDGER_ORDER, ExportFacts, LedgerRow, Scope
from gateway.db.billing.invoices import invoice_numbers
from gateway.db.billing.periods import first_and_last
from gateway.db.pool import Database
from gateway.exports.cloudevents import CloudEvents
from gateway.exports.csv_file import CsvFile
from gateway.exports.encoder import Encoder, JsonLines
from gateway.exports.focus import FocusFile, FocusNames
from gateway.exports.manifest import FileDigest, Manifest, make_manifest
from gateway.exports.request import ExportRequest, NoSuchPeriod
from gateway.exports.stripe import StripeEvents
from gateway.exports.table import columns_of
from gateway.exports.totals import Sums, Totals, difference

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ExportFailed(RuntimeError):
    """The error for exported rows that do not add up to the ledger's sums: a fault of ours.

    The file must not be used.
    """


class Export:
    """An export within the transaction of its snapshot. Read `chunks` to its end, then the manifest."""

    def __init__(self, conn: Connection, request: ExportRequest, facts: ExportFacts) -> None:
        self.request = request
        self._conn = conn
        self._facts = facts
        self._month = request.span.start.date().replace(day=1)
        self._sums = Sums()
        self._digest = FileDigest(request.file_name)
        self._library: str | None = None
        self._stripe: StripeEvents | None = None
        self._is_whole = False

    @property
    def num_rows(self) -> int:
        """The number of rows of the ledger, or of charges, that were read so far."""
        return self._sums.num_rows

    async def check_period(self) -> None:
        """Check that the period is one of the organization's.

        Deliveries go without this check: their first days may be before the first usage.

        Raises NoSuchPeriod: when the period is before the organization's first month, or in the future.
        """
        first, last = await first_and_last(self._conn, self.request.organization_id)
        if not first <= self._month <= last or self.request.span.start > self._facts.now:
            raise NoSuchPeriod(self.request.span.text, first, last)

    async def without_customer(self) -> list[str]:
        """Return the names of projects whose meter events name no customer of Stripe, after `chunks`."""
        if self._stripe is None or not self._stripe.without_customer:
            return []
        names = await ledger.project_names(self._conn, self.request.organization_id, self._month)
        return sorted(names[project_id] for project_id in self._stripe.without_customer)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the file, in pieces of bounded size.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        Raises ExportFailed: when the sums of the rows are not those of the ledger.
        """
        encoder = await self._encoder()
        yield self._hash_chunk(encoder.start())
        async for rows in self._rows():
            if chunk := encoder.encode(rows):
                yield self._hash_chunk(chunk)
        yield self._hash_chunk(encoder.finish())
        wrong = difference(self._totals(), await ledger.ledger_sums(self._conn, self._scope()))
        if wrong is not None:
            raise ExportFailed(f"{self.request.file_name}: {wrong}")
        self._is_whole = True

    def manifest(self) -> Manifest:
        """Return the manifest of the export, whose chunks have all been read."""
        assert self._is_whole, "chunks were read to their end"
        return make_manifest(
            self.request,
            state="closed" if self._facts.is_closed else "open",
            as_of=self._facts.now.isoformat(),
            num_rows=self._stripe.num_events if self._stripe else self._sums.num_rows,
            totals=self._totals(),
            order=LEDGER_ORDER if self.request.kind == "usage" else CHARGE_ORDER,
            library=self._library,
            file=self._digest.entry(),
        )

    def _hash_chunk(self, chunk: bytes) -> bytes:
        self._digest.add(chunk)
        return chunk

    def _totals(self) -> Totals:
        return self._sums.totals(self._facts.currency)

    def _scope(self) -> Scope:
        span = self.request.span
        start, end = (span.start, span.end) if span.is_day else (None, None)
        return Scope(
            self.request.organization_id, self.request.project_id, self._month, start, end, self._facts.currency
        )

    async def _rows(self) -> AsyncIterator[Sequence[Any]]:
        request = self.request
        if request.kind == "usage":
            async for rows in ledger.ledger_rows(self._conn, self._scope()):
                self._sums.add_ledger(rows)
                yield rows
            return
        async for batch in charges.charges(self._conn, self._scope(), by_day=request.kind == "costs"):
            self._sums.add_charges(batch)
            yield batch
        if credits := await self._credits():
            self._sums.add_charges(credits)
            yield credits

    async def _credits(self) -> list[ChargeRow]:
        """Return the credits that paid for a month.

        Credits pay for a month as a whole: a day has none, and costs are shown before credits.
        """
        request = self.request
        if request.span.is_day or (request.kind == "costs" and request.format != "focus"):
            return []
        return await charges.credits_drawn(
            self._conn, request.organization_id, request.project_id, self._month, self._facts.currency
        )

    async def _encoder(self) -> Encoder:
        request = self.request
        row = LedgerRow if request.kind == "usage" else ChargeRow
        match request.format:
            case "csv":
                return CsvFile(columns_of(row))
            case "jsonl":
                return JsonLines()
            case "parquet":
                from gateway.exports.parquet_file import LIBRARY, ParquetFile  # takes memory that few need

                self._library = LIBRARY
                return ParquetFile(columns_of(row))
            case "focus":
                return FocusFile(await self._focus_names())
            case "stripe":
                customers = await stripe_customers(self._conn, request.organization_id, self._month)
                self._stripe = StripeEvents(customers)
                return self._stripe
            case "cloudevents":
                return CloudEvents(self._facts.installation_id)

    async def _focus_names(self) -> FocusNames:
        organization_id = self.request.organization_id
        return FocusNames(
            organization_id=organization_id,
            organization=self._facts.organization_name,
            projects=await ledger.project_names(self._conn, organization_id, self._month),
            adapters=await ledger.adapter_names(self._conn, organization_id),
            invoices=await invoice_numbers(self._conn, organization_id, self._month) if self._facts.is_closed else {},
            month=self._month,
        )


@asynccontextmanager
async def open_export(
    database: Database, request: ExportRequest, *, deadline_s: float | None = None
) -> AsyncIterator[Export]:
    """Open an export in a snapshot, on a connection of its own, which is closed after deadline_s.

    Raises one of `gateway.db.pool.UNAVAILABLE`: when the database cannot be reached.
    """
    async with database.snapshot(deadline_s) as conn:
        month = request.span.start.date().replace(day=1)
        yield Export(conn, request, await ledger.read_facts(conn, request.organization_id, month))
