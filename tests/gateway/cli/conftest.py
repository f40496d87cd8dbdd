"""A running server with the admin API, and the command line pointed at it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.cli import main
from gateway.db.pool import Database
from tests.gateway.admin_server import AdminServer, serve_admin


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Restore the umask after a test, since commands, which normally end with their process, change it in this one."""
    before = os.umask(0o022)
    yield
    os.umask(before)


class Cli:
    """A runner of commands in a thread, since the server that answers them runs in the test's event loop."""

    def __init__(self, environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        self.environ = environ
        self._capsys = capsys
        self._out = self._err = ""

    async def __call__(self, *argv: str, **environ: str) -> tuple[int, str, str]:
        """Run `lorikeet <argv>`; return exit code, standard output and standard error."""
        self._capsys.readouterr()
        self._out = self._err = ""
        code = await asyncio.to_thread(main, argv, self.environ | environ)
        self.errors_so_far()
        return code, self._out, self._err

    async def done(self, *argv: str) -> str:
        """Run a command, which must succeed and print nothing on standard error; return its standard output."""
        code, out, err = await self(*argv)
        assert (code, err) == (0, ""), (argv, code, err)
        return out

    def errors_so_far(self) -> str:
        """Return the text that the running or last command has printed on standard error so far."""
        out, err = self._capsys.readouterr()
        self._out, self._err = self._out + out, self._err + err
        return self._err

    async def json(self, *argv: str) -> Any:
        """Run a command with --json, which must succeed as for `done`; return the value that it prints."""
        return json.loads(await self.done(*argv, "--json"))


@pytest.fixture(scope="module", autouse=True)
def _log(log_apart: None) -> None:
    """Write the log to a file, since commands and the server run in one process."""


@pytest.fixture
async def server(database: Database, tmp_path: Path) -> AsyncIterator[AdminServer]:
    async with serve_admin(database, tmp_path / "server") as server:
        yield server


@pytest.fixture
def lorikeet(server: AdminServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    (tmp_path / "operator.key").write_text(f"{server.operator_key}\n")
    return Cli({"LORIKEET_DATA_DIR": str(tmp_path), "LORIKEET_PORT": str(urlsplit(server.url).port)}, capsys)
