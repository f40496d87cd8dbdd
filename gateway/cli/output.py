"""The output of commands: JSON for programs, aligned columns for people."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import EXIT_OK, CommandFailed, WrongUsage

if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]


STANDARD_OUTPUT = Path("-")
"""The value of `--out` for standard output."""


def add_out_flags(parser: argparse.ArgumentParser, help: str, *, required: bool = False) -> None:
    """Add the flags of a verb that writes a file: the file's path, and whether an existing file may be replaced.

    required: True: the flag of the file must be given.
    """
    parser.add_argument("--out", type=Path, required=required, metavar="PATH", help=f"{help}; - for standard output")
    parser.add_argument("--force", action="store_true", help="replace a file that exists")


def check_out(arguments: argparse.Namespace, path: Path) -> None:
    """Check that a file may be written before its content is fetched.

    Raises CommandFailed: when there is a file already and it may not be replaced.
    Raises WrongUsage: when the content would be mixed with JSON on standard output.
    """
    if path == STANDARD_OUTPUT:
        if arguments.json:
            raise WrongUsage("--json and --out -: both print on standard output")
    elif path.exists() and not arguments.force:
        raise CommandFailed(f"{path} exists already: --force replaces it")


def write_out(path: Path, content: Iterable[bytes]) -> int:
    """Write content to standard output or, as `write_file` does, to a file. Return the number of bytes.

    Raises as `write_file`.
    """
    if path != STANDARD_OUTPUT:
        return write_file(path, content)
    num_bytes = sum(map(sys.stdout.buffer.write, content))
    sys.stdout.buffer.flush()
    return num_bytes


def write_file(path: Path, content: Iterable[bytes]) -> int:
    """Write content to a file that only its owner may read, and return the file's size in bytes.

    The file is there whole or not at all. content: the pieces of the file as they come.

    Raises CommandFailed: when the file cannot be written.
    Raises the errors of `content`: when its next piece does not come.
    """
    try:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(opened, "wb") as file:
                num_bytes = sum(map(file.write, content))
            temporary.replace(path)
            return num_bytes
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{path}: {getattr(error, 'strerror', None) or error}") from None


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag that asks for JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_result(arguments: argparse.Namespace, value: Any, text: str) -> int:
    """Print the value where --json was given, else the text. Returns the exit code of success."""
    if arguments.json:
        print_json(value)
    else:
        print(text)
    return EXIT_OK


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns two spaces apart, each as wide as its longest cell; "-" for an empty cell."""
    cells = [tuple(header), *(tuple("-" if cell in (None, "") else str(cell) for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    for row in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_rows(
    arguments: argparse.Namespace, value: Any, header: Sequence[str], rows: Sequence[Sequence[object]]
) -> int:
    """Print the value where --json was given, else a table. Returns the exit code of success."""
    if arguments.json:
        print_json(value)
    else:
        print_table(header, rows)
    return EXIT_OK


def utc(seconds: int | None) -> str:
    """Return Unix seconds as a date and a time of day in UTC."""
    if seconds is None:
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
