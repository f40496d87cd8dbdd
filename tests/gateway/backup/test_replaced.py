"""A forced restore that cannot work, whatever the reason, leaves the database and the keys that were there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from gateway.backup.manifest import DATABASE, MANIFEST, BackupError, verify
from gateway.backup.restore import restore_backup, restore_marker
from gateway.cli.server.backup import installation_of, key_files
from gateway.db.roles import Dsns
from gateway.postgres.dump import content_digests
from gateway.postgres.former import FORMER, SET_ASIDE
from gateway.serve.lock import RESTORE_MARKER
from gateway.settings import load_settings
from tests.gateway.backup.house import House, Lorikeet, rewrite_manifest, seal_a_secret
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


def falsify_row_count(backup: Path) -> None:
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
        (falsify_row_count, "num_ledger_rows is"),
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
    rewrite_manifest(sealed_backup)
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
        falsify_row_count(sealed_backup)
        await lorikeet.refused(elsewhere, "restore", str(sealed_backup), "--force")
        assert await content_digests(dsn) == before, "not what the killed restore had made of it"
    assert await schemas(dsn) == ["public"]
    assert (data_dir / RESTORE_MARKER).exists() != is_whole


async def test_no_former_database_comes_back_under_restored_keys_where_a_key_cannot_be_written(
    sealed_backup: Path, elsewhere: dict[str, str], lorikeet: Lorikeet
) -> None:
    data_dir, dsn = Path(elsewhere["LORIKEET_DATA_DIR"]), elsewhere["DATABASE_URL"]
    await lorikeet(elsewhere, "restore", str(sealed_backup))
    restored = await content_digests(dsn)
    await execute(dsn, MADE_SINCE)
    (data_dir / "operator.key").unlink()
    (data_dir / "content.key").unlink()
    (data_dir / "content.key").mkdir()  # so that no file can take its place
    words = await lorikeet.refused(elsewhere, "restore", str(sealed_backup), "--force")
    assert "content.key" in words and "as it was" not in words
    assert (data_dir / "operator.key").is_file(), "keys before it are written"
    assert await content_digests(dsn) == restored and await schemas(dsn) == ["public"]
    assert (data_dir / RESTORE_MARKER).exists(), "no server may start"
    whole = (sealed_backup / MANIFEST).read_text()
    falsify_row_count(sealed_backup)
    assert "as it was" in await lorikeet.refused(elsewhere, "restore", str(sealed_backup), "--force")
    assert await content_digests(dsn) == restored, "what the keys that were written open"
    assert (data_dir / RESTORE_MARKER).exists(), "a key is missing yet"
    (sealed_backup / MANIFEST).write_text(whole)
    (data_dir / "content.key").rmdir()
    await lorikeet(elsewhere, "restore", str(sealed_backup), "--force")
    assert await content_digests(dsn) == restored and not (data_dir / RESTORE_MARKER).exists()


@pytest.mark.parametrize(
    ("step", "damage", "expected"),
    [
        ("database", damage_rows, BackupError),  # Ctrl-C ends psql as well
        ("database", None, asyncio.CancelledError),
        ("journals and keys", None, asyncio.CancelledError),
    ],
)
async def test_a_forced_restore_that_is_interrupted_during_a_step_that_blocks_leaves_what_is_there(
    step: str,
    damage: Callable[[Path], None] | None,
    expected: type[BaseException],
    sealed_backup: Path,
    elsewhere: dict[str, str],
    lorikeet: Lorikeet,
) -> None:
    data_dir, dsn = Path(elsewhere["LORIKEET_DATA_DIR"]), elsewhere["DATABASE_URL"]
    await lorikeet(elsewhere, "restore", str(sealed_backup))
    await execute(dsn, MADE_SINCE)
    (data_dir / "operator.key").write_text("sk-lk-another\n")
    before = await content_digests(dsn)
    if damage is not None:
        damage(sealed_backup)
        rewrite_manifest(sealed_backup)
    settings = load_settings(elsewhere)

    def interrupt(begun: str) -> None:
        task = asyncio.current_task()
        if begun == step and task is not None:
            task.cancel()

    async def run() -> None:
        with restore_marker(data_dir, key_files(settings), sealed_backup) as mark:
            await restore_backup(
                sealed_backup,
                verify(sealed_backup),
                installation_of(settings),
                Dsns(dsn, dsn),
                mark,
                content_key=None,
                force=True,
                report=interrupt,
            )

    with pytest.raises(expected):
        await asyncio.create_task(run())
    assert await content_digests(dsn) == before and await schemas(dsn) == ["public"]
    assert (data_dir / "operator.key").read_text() == "sk-lk-another\n"
    assert not (data_dir / RESTORE_MARKER).exists(), "a server may start"


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "damaged"])
@pytest.mark.parametrize("is_cut_off", [True, False], ids=["cut off before", "new"])
async def test_extensions_of_the_database_outlive_a_forced_restore(
    is_whole: bool, is_cut_off: bool, sealed_backup: Path, elsewhere: dict[str, str], lorikeet: Lorikeet
) -> None:
    dsn = elsewhere["DATABASE_URL"]
    await lorikeet(elsewhere, "restore", str(sealed_backup))
    await execute(dsn, "CREATE EXTENSION pg_trgm")
    await execute(dsn, "CREATE INDEX organizations_by_trigrams ON organizations USING gin (name gin_trgm_ops)")
    if is_cut_off:
        await execute(dsn, SET_ASIDE)
    if is_whole:
        await lorikeet(elsewhere, "restore", str(sealed_backup), "--force")
    else:
        falsify_row_count(sealed_backup)
        await lorikeet.refused(elsewhere, "restore", str(sealed_backup), "--force")
    indexes = await first_column(dsn, "SELECT indexname FROM pg_indexes WHERE indexdef LIKE '%gin_trgm_ops%'")
    assert indexes == ([] if is_whole else ["organizations_by_trigrams"]), "an index is of the database that has it"
    namespaces = "SELECT extnamespace::regnamespace::text FROM pg_extension WHERE extname = 'pg_trgm'"
    assert await first_column(dsn, namespaces) == ["public"] == await schemas(dsn)


async def test_an_extension_that_cannot_be_moved_is_refused_by_its_name(
    sealed_backup: Path, elsewhere: dict[str, str], lorikeet: Lorikeet
) -> None:
    dsn = elsewhere["DATABASE_URL"]
    await lorikeet(elsewhere, "restore", str(sealed_backup))
    await execute(dsn, MADE_SINCE)
    await execute(dsn, "CREATE EXTENSION pg_trgm")
    await execute(dsn, "UPDATE pg_extension SET extrelocatable = FALSE WHERE extname = 'pg_trgm'")
    before = await content_digests(dsn)
    words = await lorikeet.refused(elsewhere, "restore", str(sealed_backup), "--force")
    assert "the extension pg_trgm in the schema public cannot be moved by" in words
    assert await content_digests(dsn) == before and await schemas(dsn) == ["public"]


async def test_a_restore_into_an_empty_database_warns_of_a_lost_content_key(
    sealed_backup: Path, elsewhere: dict[str, str], lorikeet: Lorikeet
) -> None:
    lose_key(sealed_backup)
    rewrite_manifest(sealed_backup)
    code, _, err = await lorikeet.run(elsewhere, ("restore", str(sealed_backup)))
    assert code == 0 and "warning: there is no content key: 1 of 1 encrypted values cannot be opened" in err


async def schemas(dsn: str) -> list[str]:
    return await first_column(dsn, f"SELECT nspname FROM pg_namespace WHERE nspname IN ('public', '{FORMER}')")


async def first_column(dsn: str, query: str) -> list[str]:
    conn = await asyncpg.connect(dsn)
    try:
        return [row[0] for row in await conn.fetch(query)]
    finally:
        await conn.close()
