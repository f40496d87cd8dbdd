"""`lorikeet file`: files of a project, stored, listed, read and deleted."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.batches.access import add_access, project_client
from gateway.cli.errors import EXIT_OK, CommandFailed, WrongUsage
from gateway.cli.output import STANDARD_OUTPUT, add_out_flags, check_out, print_result, print_table, utc, write_out
from gateway.cli.path_parts import id_part
from gateway.cli.verbs import add_group, add_verb

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

SECONDS_OF_DAY = 86400


def register(verbs: Verbs) -> None:
    """Add `lorikeet file` to the command line."""
    actions = add_group(
        verbs, "file", "Manage the files of a tenant, such as the input of batches, with an API key of the tenant."
    )
    add = add_verb(actions, "add", _add, "store a file", "Store a file; print its id.", has_json=False)
    add.add_argument("path", type=Path, metavar="PATH", help="file to store")
    add.add_argument("--purpose", default="batch", help="use of the file, such as batch or user_data (default: batch)")
    add.add_argument(
        "--days", type=int, metavar="DAYS", help="days after which the file expires, up to 30 (default: 30 for batch)"
    )
    add_access(add)
    listed = add_verb(actions, "list", _list, "list files", "List a tenant's files, the newest first.", has_json=False)
    listed.add_argument("--purpose", help="only files of this purpose")
    listed.add_argument("--limit", type=int, default=100, metavar="N", help="most files to list (default: 100)")
    add_access(listed)
    get = add_verb(actions, "get", _get, "download a file", "Write the content of a file to a path.", has_json=False)
    get.add_argument("id", metavar="FILE_ID", help="id of the file")
    add_out_flags(get, "path to write the content to", required=True)
    add_access(get)
    delete = add_verb(
        actions,
        "delete",
        _delete,
        "delete a file",
        "Delete a file for good. A batch that reads the file goes on.",
        has_json=False,
    )
    delete.add_argument("id", metavar="FILE_ID", help="id of the file")
    add_access(delete)


def _add(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    fields = {"purpose": arguments.purpose}
    if arguments.days is not None:
        if arguments.days < 1:
            raise WrongUsage("--days is 1 or more")
        seconds = arguments.days * SECONDS_OF_DAY
        fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(seconds)}
    with project_client(arguments, environ) as client:
        try:
            with arguments.path.open("rb") as content:
                made = client.upload(arguments.path.name, content, fields)
        except OSError as error:
            raise CommandFailed(f"{arguments.path}: {error.strerror}") from None
    return print_result(arguments, made, made["id"])


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        found = client.get("/files", purpose=arguments.purpose, limit=arguments.limit)
    if arguments.json:
        return print_result(arguments, found, "")
    print_table(("ID", "NAME", "PURPOSE", "BYTES", "CREATED", "EXPIRES"), [_row(file) for file in found["data"]])
    return EXIT_OK


def _row(file: dict[str, Any]) -> tuple[object, ...]:
    expires = file.get("expires_at")
    return (
        file["id"],
        file["filename"],
        file["purpose"],
        file["bytes"],
        utc(file["created_at"]),
        utc(expires) if expires else None,
    )


def _get(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    check_out(arguments, arguments.out)
    with project_client(arguments, environ) as client:
        num_bytes = write_out(arguments.out, client.download(id_part(arguments.id)))
    if arguments.out == STANDARD_OUTPUT:
        return EXIT_OK
    shown = {"id": arguments.id, "path": str(arguments.out), "bytes": num_bytes}
    return print_result(arguments, shown, f"wrote {num_bytes} bytes to {arguments.out}")


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    with project_client(arguments, environ) as client:
        gone = client.delete(f"/files/{id_part(arguments.id)}")
    return print_result(arguments, gone, f"deleted {arguments.id}")
