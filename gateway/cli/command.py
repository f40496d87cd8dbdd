"""Parses the command line, runs one verb and turns its errors into an exit code and one line on stderr.

Verbs import their parts when they run, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Mapping, Sequence

from engine.version import VERSION
from gateway.cli.errors import EXIT_OK, EXIT_USAGE, CommandFailed, is_text, one_line
from gateway.cli.verbs import register
from gateway.settings import BadSetting

_EPILOG = """\
Settings come from the environment: `lorikeet settings` lists them.

exit codes: 0 done, 1 refused or failed, 2 wrong usage or a bad setting, 3 the server cannot be reached,
4 accepted, but the outcome is not known yet (`adapter add`, `pool` with --wait, and `batch status`)
"""


def main(argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run one command; returns its exit code.

    argv: the words of the command line, without the program's name; None: those of this process. environ: the
    environment; None: that of this process.

    Raises SystemExit: for `--help` and wrong usage, as argparse does.
    """
    words = sys.argv[1:] if argv is None else argv
    for word in words:
        if not is_text(word):
            return _complain(f"the argument {word!a} is not UTF-8 text", EXIT_USAGE)
    wanted = next((word for word in words if not word.startswith("-")), "")
    arguments = build_parser(wanted).parse_args(words)
    try:
        code: int = arguments.run(arguments, os.environ if environ is None else environ)
        sys.stdout.flush()
        return code
    except BadSetting as error:
        return _complain(str(error), EXIT_USAGE)
    except CommandFailed as error:
        return _complain(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of our output has left; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK


@functools.cache
def build_parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """Make the parser of the wanted command; without one, of all commands, which takes a tenth of a second."""
    parser = argparse.ArgumentParser(
        prog="lorikeet",
        description="Multi-tenant LoRA serving: the adapters of many tenants over one base model, in one batch.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lorikeet {VERSION}", help="show the version and exit")
    register(parser.add_subparsers(metavar="COMMAND", required=True), wanted)
    return parser


def _complain(message: str, exit_code: int) -> int:
    print(f"lorikeet: {one_line(message)}", file=sys.stderr)
    return exit_code
