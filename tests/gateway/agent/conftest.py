"""A host over a database of the test's own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.db.pool import Database
from tests.gateway.agent.site import Host


@pytest.fixture
def host(dsn: str, database: Database) -> Iterator[Host]:
    folder = Path(tempfile.mkdtemp(prefix="lk-"))  # a short path, for the sockets below it
    host = Host(folder, dsn, database)
    yield host
    host.close()
    shutil.rmtree(folder)
