"""`lorikeet experiment export`: an experiment's rows or sums in a file, fetched from the running server."""

from __future__ import annotations

import argparse
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gateway.cli.errors import EXIT_OK, CommandFailed
from gateway.cli.experiments.arguments import add_name, add_tenant, find_experiment
from gateway.cli.output import STANDARD_OUTPUT, add_out_flags, check_out, print_result, write_out
from gateway.cli.verbs import add_verb

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

CHUNK_BYTES = 64 * 1024
KINDS = ("exposures", "outcomes", "feedback", "analysis")
FORMATS = ("csv", "jsonl", "parquet", "json")


def register(actions: Verbs) -> None:
    """Add `lorikeet experiment export` to the command line."""
    export = add_verb(
        actions,
        "export",
        _export,
        "export exposures, outcomes, feedback or the analysis",
        "Write an experiment's exposures, outcomes or feedback as rows, or its analysis as JSON, to a file "
        "that its owner alone may read. Units are known by their digests alone.",
    )
    add_name(export)
    export.add_argument("kind", choices=KINDS, help="content of the export")
    export.add_argument(
        "--format", choices=FORMATS, help="format of the file (default: csv, and json for the analysis)"
    )
    add_out_flags(export, "file to write (default: ID-KIND.FORMAT in the current folder)")
    add_tenant(export)


def _export(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    asked = {"kind": arguments.kind} | ({"format": arguments.format} if arguments.format else {})
    if arguments.out is not None:
        check_out(arguments, arguments.out)
    with _archive(arguments.out) as archive:
        with AdminClient.from_environment(environ) as client:
            path, _ = find_experiment(client, arguments)
            client.download(f"{path}/exports", archive, **asked)
        try:
            with zipfile.ZipFile(archive) as opened:
                name = opened.namelist()[0]
                out = arguments.out or Path(name)
                check_out(arguments, out)
                with opened.open(name) as content:
                    num_bytes = write_out(out, iter(partial(content.read, CHUNK_BYTES), b""))
        except (zipfile.BadZipFile, EOFError):
            raise CommandFailed("the export was cut off before its end: try again") from None
    if out == STANDARD_OUTPUT:
        return EXIT_OK
    return print_result(arguments, {"file": str(out), "num_bytes": num_bytes}, f"{out}: {num_bytes:,} bytes")


@contextmanager
def _archive(out: Path | None) -> Iterator[IO[bytes]]:
    """Open a temporary file for the archive: beside the file to write or, for standard output, in the system's folder.

    out: the file to write; None: standard output.

    Raises CommandFailed: when no file can be made in the folder.
    """
    folder = Path(tempfile.gettempdir()) if out == STANDARD_OUTPUT else out.parent if out is not None else Path()
    try:
        with tempfile.TemporaryFile(dir=folder) as archive:
            yield archive
    except OSError as error:
        raise CommandFailed(f"{folder}: {error.strerror or error}") from None
