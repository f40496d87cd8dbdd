"""`lorikeet experiment verify`: an experiment's sums beside a recount of its rows, straight from the database."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed, ServerUnreachable
from gateway.cli.experiments.arguments import add_name, add_tenant, find_experiment
from gateway.cli.output import print_result
from gateway.cli.verbs import add_verb

if TYPE_CHECKING:
    from gateway.cli.output import Verbs
    from gateway.experiments.recount import Verification
    from gateway.settings import Settings


def register(actions: Verbs) -> None:
    """Add `lorikeet experiment verify` to the command line."""
    verify = add_verb(
        actions,
        "verify",
        _verify,
        "recount an experiment from its rows, for the operator",
        "Compare the sums of an experiment with a recount of all its rows. Every integer has to be equal. "
        "Rows are read straight from the database, so this is for the operator, where the server runs or with "
        "DATABASE_URL, which has to be the database of the server that is asked. A tenant checks the published numbers "
        "with the export `analysis`.",
    )
    add_name(verify)
    add_tenant(verify)


def _verify(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient
    from gateway.cli.server.processes import database_dsn
    from gateway.db.pool import UNAVAILABLE, UNUSABLE, in_words
    from gateway.settings import load_settings

    settings = load_settings(environ)
    try:
        dsn = database_dsn(settings)
    except ServerUnreachable as error:
        raise CommandFailed(
            f"verify reads the database itself, and {error}. It is for the operator. To check the published numbers "
            f"with a tenant's key: `lorikeet experiment export {arguments.name} analysis --tenant {arguments.tenant}`, "
            "then `python -m gateway.exports.experiments.recompute FILE`"
        ) from None
    with AdminClient.from_environment(environ) as client:
        project_id = client.tenant_id(arguments.tenant)
        _, experiment = find_experiment(client, arguments)
        url = client.url
    try:
        found = asyncio.run(recount(dsn, project_id, experiment))
    except OtherDatabase as error:
        raise CommandFailed(_other_database(settings, url, experiment["name"], str(error))) from None
    except LookupError:
        raise CommandFailed("the experiment has not started: there is nothing to recount") from None
    except UNUSABLE as error:
        raise CommandFailed(in_words(error)) from None
    except OSError as error:
        raise ServerUnreachable(in_words(error)) from None
    except UNAVAILABLE as error:
        raise ServerUnreachable(in_words(error)) from None
    shown = {
        "num_units": found.num_units,
        "num_recounted": found.num_recounted,
        "differences": list(found.differences),
    }
    if found.differences and not arguments.json:
        raise CommandFailed(f"the sums differ from a recount: {'; '.join(found.differences[:5])}")
    print_result(
        arguments, shown, f"{found.num_recounted} of {found.num_units} units recounted; every integer is equal"
    )
    return 1 if found.differences else 0


class OtherDatabase(Exception):
    """The error for a database that is not the server's; the message says what it has instead of the experiment."""


async def recount(dsn: str, project_id: str, experiment: dict[str, Any]) -> Verification:
    """Recount an experiment that the server shows.

    Raises OtherDatabase: when the database has no such experiment, or another state of it, as a restored backup has.
    """
    from gateway.db.experiments.experiments import find_experiment as find_row
    from gateway.db.pool import Database
    from gateway.experiments.recount import verify

    async with await Database.connect(dsn, max_size=1) as database, database.acquire() as conn:
        row = await find_row(conn, project_id, experiment["id"])
        if row is None:
            raise OtherDatabase("no such experiment")
        seen = (row.version, row.state, int(row.changed_at.timestamp()))
        if seen != (experiment["version"], experiment["state"], experiment["changed_at"]):
            raise OtherDatabase(f"version {row.version} of it, {row.state}")
        return await verify(conn, experiment["id"])


def _other_database(settings: Settings, url: str, name: str, instead: str) -> str:
    """Return the error text for a server and a database that do not belong together.

    instead: what the database has in place of the experiment `name`.
    """
    place = "the database at DATABASE_URL" if settings.database_url is not None else f"that of {settings.data_dir}"
    return (
        f"the server at {url} has the experiment {name}, and {place} has {instead}: they do not belong together. "
        "Set DATABASE_URL or LORIKEET_DATA_DIR to the database of that server, or leave LORIKEET_URL out. If "
        "somebody changed the experiment just now, try again"
    )
