"""One furnished installation for each module, and a backup of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.cli import main
from tests.gateway.backup.house import House, Lorikeet, furnish_house


@pytest.fixture(scope="module")
def house(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> House:
    """Return one installation for all tests, which only add to its ledger."""
    return asyncio.run(furnish_house(tmp_path_factory.mktemp("house"), module_dsn))


@pytest.fixture(scope="module")
def backup(house: House, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backup of the installation, made by the command."""
    folder = tmp_path_factory.mktemp("backups") / "backup"
    assert main(["backup", str(folder)], house.environ) == 0
    return folder


@pytest.fixture
def elsewhere(empty_dsn: str, tmp_path: Path) -> dict[str, str]:
    """Return the settings of an installation that is empty so far."""
    return {"LORIKEET_DATA_DIR": str(tmp_path / "elsewhere"), "DATABASE_URL": empty_dsn}


@pytest.fixture
def lorikeet(capsys: pytest.CaptureFixture[str]) -> Lorikeet:
    return Lorikeet(capsys)
