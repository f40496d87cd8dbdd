"""`lorikeet export`: files of usage, costs and invoices, written by this process straight from the database.

Beside the server rather than through it: an export of millions of rows then costs the gateways nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.billing.stripe import warn_of_unbilled
from gateway.cli.errors import CommandFailed, ServerUnreachable, WrongUsage
from gateway.cli.output import print_result
from gateway.cli.verbs import add_command
from gateway.domain.billing.money import decimal_text
from gateway.exports.request import FORMATS_OF, KINDS, Format, WrongExport, parse_span
from gateway.settings import load_settings

if TYPE_CHECKING:
    from gateway.cli.output import Verbs
    from gateway.db.pool import Database
    from gateway.exports.manifest import Manifest
    from gateway.exports.produce import Export

PROGRESS_INTERVAL_S = 5.0


def register(verbs: Verbs) -> None:
    """Add `lorikeet export` to the command line."""
    formats: list[Format] = sorted({name for names in FORMATS_OF.values() for name in names})
    export = add_command(
        verbs,
        "export",
        _export,
        "Write usage, costs or invoices of a month or a day to a file, with a manifest beside the "
        "file. Exports of a closed month always have the same bytes.",
    )
    export.add_argument(
        "kind", choices=KINDS, help="content of the export: rows of the ledger, costs per day, or lines of invoices"
    )
    export.add_argument(
        "--period",
        required=True,
        type=_period,
        metavar="PERIOD",
        help="month or day to export, in UTC, e.g. 2026-10 or 2026-10-05",
    )
    export.add_argument("--format", choices=formats, default="csv", help="format of the file (default: csv)")
    export.add_argument("--tenant", metavar="NAME", help="export only this tenant")
    export.add_argument(
        "--organization", default="default", metavar="NAME", help="name of the organization (default: default)"
    )
    export.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="folder for the files (default: the current folder)"
    )


def _period(text: str) -> str:
    try:
        return parse_span(text).text
    except WrongExport as error:
        raise argparse.ArgumentTypeError(error.reason) from None


def _export(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.server.processes import database_dsn
    from gateway.db.pool import UNAVAILABLE, UNUSABLE, in_words
    from gateway.exports.produce import ExportFailed

    if arguments.format not in FORMATS_OF[arguments.kind]:
        raise WrongUsage(f"--format: expected {', '.join(FORMATS_OF[arguments.kind])} for {arguments.kind}")
    if arguments.kind == "invoice" and parse_span(arguments.period).is_day:
        raise WrongUsage("--period: an invoice covers a whole month, such as 2026-10")
    if arguments.out.exists() and not arguments.out.is_dir():
        raise CommandFailed(f"--out: {arguments.out} is not a folder")
    dsn = database_dsn(load_settings(environ))
    try:
        manifest, unbilled = asyncio.run(_write(arguments, dsn))
    except (WrongExport, ExportFailed) as error:
        raise CommandFailed(str(error)) from None
    except UNUSABLE as error:
        raise CommandFailed(in_words(error)) from None
    except OSError as error:
        if error.filename is None:
            raise ServerUnreachable(in_words(error)) from None
        raise CommandFailed(f"{error.filename}: {error.strerror}") from None
    except UNAVAILABLE as error:
        raise ServerUnreachable(in_words(error)) from None
    if unbilled:
        warn_of_unbilled(unbilled, arguments.period)
    return print_result(arguments, _builtins(manifest), _summary(manifest, arguments.out))


async def _write(arguments: argparse.Namespace, dsn: str) -> tuple[Manifest, list[str]]:
    """Write the export; return the manifest, and the tenants whose meter events name no customer."""
    from gateway.db.pool import Database
    from gateway.exports.place import Folder, put_export
    from gateway.exports.produce import open_export
    from gateway.exports.request import make_request

    async with await Database.connect(dsn, max_size=1) as database:
        organization_id, project_id = await _ids(database, arguments.organization, arguments.tenant)
        request = make_request(organization_id, arguments.kind, arguments.format, arguments.period, project_id)
        async with open_export(database, request) as export:
            await export.check_period()
            reporting = asyncio.create_task(_report(export))
            try:
                return await put_export(export, Folder(arguments.out)), await export.without_customer()
            finally:
                reporting.cancel()


async def _ids(database: Database, organization: str, tenant: str | None) -> tuple[str, str | None]:
    """Return the ids of the organization and, where one is named, its project.

    Raises CommandFailed: when there is no organization or tenant of the name.
    """
    from gateway.db.organization.organizations import find_organization
    from gateway.db.organization.projects import find_project

    async with database.acquire() as conn:
        found = await find_organization(conn, organization)
        if found is None:
            raise CommandFailed(f"there is no organization named '{organization}'")
        if tenant is None:
            return found.id, None
        project = await find_project(conn, found.id, tenant)
    if project is None:
        raise CommandFailed(f"there is no tenant named '{tenant}'; `lorikeet tenant list` lists all tenants")
    return found.id, project.id


async def _report(export: Export) -> None:
    started = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_INTERVAL_S)
        print(f"lorikeet: {export.num_rows:,} rows, {time.monotonic() - started:.0f} s", file=sys.stderr)


def _builtins(manifest: Manifest) -> object:
    import msgspec

    return msgspec.to_builtins(manifest)


def _summary(manifest: Manifest, folder: Path) -> str:
    (file,) = manifest.files
    totals = manifest.totals
    costs = f"{decimal_text(totals.cost_nanos)} {totals.currency.upper()}"
    if totals.credit_nanos:
        net = decimal_text(totals.cost_nanos - totals.credit_nanos)
        costs += f", of which credits paid {decimal_text(totals.credit_nanos)}: {net} is left"
    is_open = "" if manifest.state == "closed" else "; the period is open, so the next export may differ"
    return f"{folder / file.name}: {manifest.num_rows} rows, {costs}{is_open}"
