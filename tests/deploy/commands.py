"""Commands of `lorikeet` in this process, which spares each a second of imports."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from gateway.cli import main
from tests.deploy.gateways import inherited


class CommandOutcome(NamedTuple):
    """The outcome of a command."""

    returncode: int
    stdout: str
    stderr: str


def lorikeet(environ: dict[str, str], *words: str, stdin: str = "") -> CommandOutcome:
    """Run a command in this process.

    environ: all of Lorikeet's variables, beside others of this process. stdin: the text on its standard input.
    """
    others = {name: value for name, value in inherited().items() if name != "DATABASE_URL"}
    out, err, usual = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words, others | environ)
    finally:
        sys.stdin = usual
    return CommandOutcome(code, out.getvalue(), err.getvalue())
