"""A drill restores a backup into a scratch place, and names what is wrong with it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path

import asyncpg
import pytest

from gateway.backup.manifest import MANIFEST
from gateway.cli import main
from gateway.db.content.sealed import NEWEST, NOT_READ, newest_sealed
from tests.gateway.backup.house import House, Lorikeet, rewrite_manifest, seal_a_secret


@pytest.fixture(scope="module")
def sealed_backup(house: House, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backup of an installation with an encrypted secret, in a folder with an older one."""
    asyncio.run(seal_a_secret(house))
    folder = tmp_path_factory.mktemp("backups")
    for name in ("monday", "tuesday"):
        assert main(["backup", str(folder / name)], house.environ) == 0
    manifest = json.loads((folder / "monday" / MANIFEST).read_text())
    (folder / "monday" / MANIFEST).write_text(json.dumps(manifest | {"made_at": "2020-01-01T00:00:00+00:00"}))
    return folder


async def test_the_newest_backup_is_restored_and_everything_checked(
    house: House, sealed_backup: Path, lorikeet: Lorikeet, open_folder: Path
) -> None:
    found = json.loads(
        await lorikeet(house.environ, "drill", "restore", str(sealed_backup), *_in_folder(open_folder), "--json")
    )
    assert found["is_good"] and found["source"].endswith("/tuesday")
    assert found["num_billed_again"] == 1 and found["difference_tokens"] == 0, "the journal's request is billed"
    what = {finding["check"]: finding["what"] for finding in found["findings"]}
    assert list(what) == ["backup", "schema", "journals", "ledger", "audit log", "adapters", "content", "files"]
    assert what["adapters"] == "3 adapters are what their rows say"
    assert what["content"] == "opened 1 encrypted values, the newest of each kind"
    assert not _has_scratch(open_folder), "nothing stays"


def _has_scratch(folder: Path) -> bool:
    return any(folder.glob("lorikeet-drill-*"))


async def test_a_backup_without_its_key_and_an_adapter_fails_the_drill(
    house: House, sealed_backup: Path, lorikeet: Lorikeet, open_folder: Path, tmp_path: Path
) -> None:
    backup = Path(shutil.copytree(sealed_backup / "tuesday", tmp_path / "backup"))
    (backup / "keys/content.key").unlink()
    shutil.rmtree(backup / "adapters" / house.digests[0])
    rewrite_manifest(backup)
    code, text = await _drill(house, lorikeet, backup, open_folder)
    assert code == 1
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "WRONG" in rows["content"] and "there is no key" in rows["content"]
    assert "WRONG" in rows["adapters"] and f"{house.digests[0]} is missing" in rows["adapters"]
    assert "good" in rows["audit log"]


async def _drill(house: House, lorikeet: Lorikeet, backup: Path, open_folder: Path) -> tuple[int, str]:
    code, out, _ = await lorikeet.run(house.environ, ("drill", "restore", str(backup), *_in_folder(open_folder)))
    return code, out


def _in_folder(folder: Path) -> tuple[str, str]:
    return "--in", str(folder)


async def test_a_drill_of_a_folder_without_a_backup_is_refused(
    house: House, lorikeet: Lorikeet, tmp_path: Path
) -> None:
    why = await lorikeet.refused(house.environ, "drill", "restore", str(tmp_path))
    assert "neither a whole backup or archive, nor a folder with backups" in why
    why = await lorikeet.refused(house.environ, "drill", "restore", str(tmp_path), "--at", "2026-01-01T00:00:00Z")
    assert "is no archive" in why


async def test_every_table_with_encrypted_columns_is_opened_or_left_out_by_name(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        rows = await conn.fetch(
            "SELECT DISTINCT table_name FROM information_schema.columns WHERE table_schema = 'public'"
            " AND column_name IN ('content_key', 'totp_content_key')"
        )
        assert await newest_sealed(conn, 1) == [], "every query runs"
    finally:
        await conn.close()
    tables = {row["table_name"] for row in rows}
    assert tables == {table for table in tables if re.search(rf"FROM {table}\b", NEWEST)} | NOT_READ.keys()
