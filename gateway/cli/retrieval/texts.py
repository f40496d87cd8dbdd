"""The texts that a command is given: as arguments, and as lines of a file or of standard input."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.cli.errors import CommandFailed, WrongUsage

MOST_BYTES = 64 << 20
"""The most that is read of a file: more than any request may have."""


def add_texts(parser: argparse.ArgumentParser, name: str, what: str) -> None:
    """Add the arguments and flags that give texts. name: the arguments' field; what: the texts, for people."""
    parser.add_argument(name, nargs="*", metavar=name[:-1].upper(), help=f"{what}; more come from --file")
    parser.add_argument(
        "--file", metavar="PATH", help=f"file with one of the {what} on each line, or - for standard input"
    )


def texts_of(given: list[str], file: str | None) -> list[str]:
    """Return the texts of the arguments, then the lines of a file without empty ones.

    file: the path, or - for standard input, which is also read where nothing else is given and it is no terminal.

    Raises WrongUsage: when there is no text.
    Raises CommandFailed: when the file cannot be read.
    """
    is_piped = sys.stdin is not None and not sys.stdin.isatty()
    if file is None and not given and is_piped:
        file = "-"
    texts = list(given)
    if file is not None:
        texts += [line for line in _content(file).splitlines() if line.strip()]
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
        return raw.decode()
    except UnicodeDecodeError:
        raise CommandFailed(f"{file}: not UTF-8 text") from None
