"""The `lorikeet` command: starts the parts of a server, and manages a running one through its admin API.

Importing this package loads next to nothing, so that an interrupt in the first moments already meets `main`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXIT_INTERRUPTED = 130
"""The exit code that a shell reports for a command that Ctrl-C ended: 128 + SIGINT."""


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command; returns its exit code.

    argv: the words of the command line, without the program's name; None: those of this process. environ: the
    environment; None: this process's.

    Raises SystemExit: for `--help` and wrong usage, as argparse does.
    """
    try:
        from gateway.cli.command import main as run_command

        return run_command(argv, environ)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
