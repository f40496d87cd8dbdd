"""One installation for all end-to-end tests; those that stop or break it leave it running again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.installation import Installation


@pytest.fixture(scope="session")
def installation(open_folder: Path) -> Iterator[Installation]:
    installation = Installation(open_folder / "installation")
    installation.start()
    yield installation
    if installation.process is not None:
        installation.stop()
