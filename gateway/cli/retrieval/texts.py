"""Reads the texts that a command is given: as arguments, and as lines of a file or of standard input."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from gateway.cli.errors import CommandFailed, WrongUsage

MOST_BYTES = 64 << 20
"""The most bytes that are read of a file: more than any request may have."""


def add_texts(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    """Add the arguments and flags that give texts. name: the arguments' field; what: the texts, for people."""
    parser.add_argument(
        name,
        nargs="*",
        default=[],
        metavar=name[:-1].upper(),
        help=f"{what}; without any they come from --file or a pipe",
    )
    parser.add_argument(
        "--file",
        metavar="PATH",
        help=f"file with one of the {what} on each line, or - for standard input, beside those given as arguments",
    )


def texts_of(given: list[str], file: str | None) -> list[str]:
    """Return the texts of the arguments, then the lines of a file without empty ones.

    file: the path, or "-" for standard input. None: standard input is read only if there are no arguments and it is no
    terminal: beside arguments it may be the input of the script that runs this command.

    Raises WrongUsage: when there is no text.
    Raises CommandFailed: when the file cannot be read.
    """
    if file is None and not given and sys.stdin is not None and not sys.stdin.isatty():
        file = "-"
    texts = list(given)
    if file is not None:
        texts += [line for line in re.split(r"\r?\n", _content(file)) if line.strip()]
    if not texts:
        raise WrongUsage("no texts were given: pass them as arguments, in a file with --file, or in a pipe")
    return texts


def _content(file: str) -> str:
    try:
        if file == "-":
            raw = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                raw = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MOST_BYTES:
        raise CommandFailed(f"{file}: larger than {MOST_BYTES >> 20} MiB, which is more than a request may have")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandFailed(f"{file}: not UTF-8 text") from None
