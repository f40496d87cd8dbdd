"""Commands of `lorikeet` in this process, which spares each a second of imports."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from gateway.cli import main
from tests.deploy.gateways import inherited


class CommandOutcome(NamedTuple):
    """The outcome of a command."""

    returncode: int
    stdout: str
    stderr: str


def lorikeet(environ: dict[str, str], *words: str) -> CommandOutcome:
    """Run a command in this process. environ: all of Lorikeet's variables, beside others of this process."""
    others = {name: value for name, value in inherited().items() if name != "DATABASE_URL"}
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words, others | environ)
    return CommandOutcome(code, out.getvalue(), err.getvalue())
