"""A forced restore that cannot work, whatever the reason, leaves the database and the keys that were there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from gateway.backup.manifest import DATABASE, MANIFEST
from gateway.postgres.dump import content_digests
from gateway.postgres.former import FORMER, SET_ASIDE
from gateway.serve.lock import RESTORE_MARKER
from tests.gateway.backup.house import House, Lorikeet, seal_a_secret, seal_anew
from tests.installation.databases import execute

MADE_SINCE = "INSERT INTO organizations (id, name) VALUES ('org_since', 'made since the backup')"


@pytest.fixture(scope="module")
def sealed_house(house: House) -> House:
    asyncio.run(seal_a_secret(house))
    return house


@pytest.fixture
async def sealed_backup(sealed_house: House, lorikeet: Lorikeet, tmp_path: Path) -> Path:
    await lorikeet(sealed_house.environ, "backup", str(tmp_path / "backup"))
    return tmp_path / "backup"


def cut_off(backup: Path) -> None:
    path = backup / DATABASE
    path.write_bytes(path.read_bytes()[:3])


def damage_rows(backup: Path) -> None:
    """Overwrite compressed rows, which stand behind the list of contents."""
    path = backup / DATABASE
    content = bytearray(path.read_bytes())
    content[-len(content) // 8 : -len(content) // 16] = bytes(len(content) // 8 - len(content) // 16)
    path.write_bytes(content)


def miscount(backup: Path) -> None:
    manifest = json.loads((backup / MANIFEST).read_text())
    manifest["contents"]["num_ledger_rows"] += 1
    (backup / MANIFEST).write_text(json.dumps(manifest))


def lose_key(backup: Path) -> None:
    (backup / "keys/content.key").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_off, "cannot be restored: pg_restore failed"),
        (damage_rows, "pg_restore failed"),
        (miscount, "num_ledger_rows is"),
        (lose_key, "there is no content key: 1 of 1 encrypted values cannot be opened; set LORIKEET_CONTENT_KEY"),
    ],
)
async def test_a_forced_restore_that_cannot_work_leaves_what_is_there(
    damage: Callable[[Path], None], words: str, sealed_backup: Path, elsewhere: dict[str, str], lorikeet: Lorikeet
) -> None:
    data_dir, dsn = Path(elsewhere["LORIKEET_DATA_DIR"]), elsewhere["DATABASE_URL"]
    await lorikeet(elsewhere, "restore", str(sealed_backup))
    (data_dir / "content.key").unlink()
    (data_dir / "operator.key").write_text("sk-lk-another\n")
    await execute(dsn, MADE_SINCE)
    before = await content_digests(dsn)
    damage(sealed_backup)
    seal_anew(sealed_backup)
    assert words in await lorikeet.refused(elsewhere, "restore", str(sealed_backup), "--force")
    assert await content_digests(dsn) == before and await schemas(dsn) == ["public"]
    assert (data_dir / "operator.key").read_text() == "sk-lk-another\n" and not (data_dir / "content.key").exists()
    assert not (data_dir / RESTORE_MARKER).exists(), "a server may start"


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "damaged"])
async def test_a_forced_restore_goes_on_after_one_that_was_killed_before_its_end(
    is_whole: bool, sealed_backup: Path, elsewhere: dict[str, str], lorikeet: Lorikeet
) -> None:
    data_dir, dsn = Path(elsewhere["LORIKEET_DATA_DIR"]), elsewhere["DATABASE_URL"]
    await lorikeet(elsewhere, "restore", str(sealed_backup))
    await execute(dsn, MADE_SINCE)
    before = await content_digests(dsn)
    await execute(dsn, SET_ASIDE)
    await execute(dsn, "CREATE TABLE half (x integer)")
    (data_dir / RESTORE_MARKER).write_text("a backup\n")
    assert "the database is not empty" in await lorikeet.refused(elsewhere, "restore", str(sealed_backup))
    if is_whole:
        await lorikeet(elsewhere, "restore", str(sealed_backup), "--force")
        assert (await content_digests(dsn)).num_organizations == before.num_organizations - 1
    else:
        miscount(sealed_backup)
        await lorikeet.refused(elsewhere, "restore", str(sealed_backup), "--force")
        assert await content_digests(dsn) == before, "not what the killed restore had made of it"
    assert await schemas(dsn) == ["public"]
    assert (data_dir / RESTORE_MARKER).exists() != is_whole


async def test_a_lost_content_key_is_told_where_there_is_nothing_to_lose(
    sealed_backup: Path, elsewhere: dict[str, str], lorikeet: Lorikeet
) -> None:
    lose_key(sealed_backup)
    seal_anew(sealed_backup)
    code, _, err = await lorikeet.run(elsewhere, ("restore", str(sealed_backup)))
    assert code == 0 and "warning: there is no content key: 1 of 1 encrypted values cannot be opened" in err


async def schemas(dsn: str) -> list[str]:
    conn = await asyncpg.connect(dsn)
    try:
        rows = await conn.fetch("SELECT nspname FROM pg_namespace WHERE nspname IN ('public', $1)", FORMER)
        return [row["nspname"] for row in rows]
    finally:
        await conn.close()
