"""Half an export is never taken for a whole one, in a folder, in a bucket or in a download."""

from __future__ import annotations

import asyncio
import hashlib
import io
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.exports.archive import zip_chunks
from gateway.exports.destination import S3Destination
from gateway.exports.manifest import decode_manifest
from gateway.exports.object_store import PART_BYTES, ObjectStore
from gateway.exports.place import Folder, Place, put_export
from gateway.exports.produce import open_export
from gateway.exports.request import make_request
from tests.gateway.exports.ledger import BEFORE, MONTH, Books
from tests.gateway.exports.reading import export
from tests.gateway.exports.s3_server import ACCESS_KEY, SECRET, S3Server


class CutOff(Exception):
    """An exception that stands for the death of the process during an export."""


async def chunks(*parts: bytes, then: type[BaseException] | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if then is not None:
        raise then


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def bucket(server: S3Server, access_key: str = ACCESS_KEY) -> ObjectStore:
    destination = S3Destination("books", access_key, SECRET, prefix="lorikeet/finance", endpoint=server.url)
    return ObjectStore(destination, allow_http=True)


async def deliver_export(books: Books, place: Place, month: str, format: str = "csv") -> None:
    async with open_export(books.database, make_request(books.organization_id, "usage", format, month)) as made:
        await put_export(made, place)


async def test_a_folder_gets_the_file_and_its_manifest(books: Books, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    await deliver_export(books, Folder(folder), BEFORE)
    assert names_in(folder) == [f"usage-{BEFORE}.csv", f"usage-{BEFORE}.csv.manifest.json"]
    content, made = await export(books, "usage", "csv", BEFORE)
    assert (folder / f"usage-{BEFORE}.csv").read_bytes() == content
    manifest = decode_manifest((folder / f"usage-{BEFORE}.csv.manifest.json").read_bytes())
    assert manifest == made
    assert manifest.files[0].sha256 == hashlib.sha256(content).hexdigest()
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in names_in(folder)} == {0o600}


@pytest.mark.parametrize("cause", [CutOff, asyncio.CancelledError])
async def test_an_export_that_is_cut_off_leaves_nothing_in_a_folder(tmp_path: Path, cause: type[BaseException]) -> None:
    with pytest.raises(cause):
        await Folder(tmp_path).put("usage.csv", chunks(b"half of it", then=cause))
    assert names_in(tmp_path) == []


async def test_a_new_file_never_stands_beside_an_old_manifest(books: Books, tmp_path: Path) -> None:
    """Whatever step was the last one taken, an existing manifest belongs to its file."""

    class DiesAfter:
        def __init__(self, num_steps: int) -> None:
            self._folder = Folder(tmp_path)
            self._left = num_steps

        def _step(self) -> None:
            if self._left == 0:
                raise CutOff
            self._left -= 1

        async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
            self._step()
            await self._folder.put(name, chunks)

        async def remove(self, name: str) -> None:
            self._step()
            await self._folder.remove(name)

    await deliver_export(books, Folder(tmp_path), MONTH, "jsonl")
    manifest_path = tmp_path / f"usage-{MONTH}.jsonl.manifest.json"
    for num_steps in range(3):
        (tmp_path / f"usage-{MONTH}.jsonl").write_bytes(b"an older one")
        with pytest.raises(CutOff):
            await deliver_export(books, DiesAfter(num_steps), MONTH, "jsonl")
        assert manifest_path.exists() == (num_steps == 0)
    await deliver_export(books, DiesAfter(3), MONTH, "jsonl")
    assert manifest_path.exists()


async def test_a_bucket_gets_the_file_then_its_manifest(books: Books) -> None:
    with S3Server() as server:
        await deliver_export(books, bucket(server), BEFORE)
        name = f"books/lorikeet/finance/usage-{BEFORE}.csv"
        assert list(server.objects) == [name, f"{name}.manifest.json"]
        assert server.objects[name] == (await export(books, "usage", "csv", BEFORE))[0]


async def test_a_large_object_goes_up_in_parts_and_appears_when_whole() -> None:
    parts = [bytes([number]) * (PART_BYTES // 2 + 1) for number in range(5)]
    with S3Server() as server:
        await bucket(server).put("large", chunks(*parts))
        assert server.objects == {"books/lorikeet/finance/large": b"".join(parts)}
        with pytest.raises(CutOff):
            await bucket(server).put("half", chunks(*parts, then=CutOff))
        assert list(server.objects) == ["books/lorikeet/finance/large"]
        await bucket(server).remove("large")
        await bucket(server).remove("never there")
        assert server.objects == {}


async def test_a_download_is_an_archive_with_the_manifest_last(books: Books) -> None:
    async with open_export(books.database, make_request(books.organization_id, "costs", "focus", BEFORE)) as made:
        content = b"".join([chunk async for chunk in zip_chunks(made)])
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        file, manifest = archive.namelist()
        assert decode_manifest(archive.read(manifest)).files[0].name == file == f"costs-{BEFORE}.focus.csv"
        assert archive.read(file) == (await export(books, "costs", "focus", BEFORE))[0]
    for length in (len(content) // 2, len(content) - 1):
        with pytest.raises(zipfile.BadZipFile):
            zipfile.ZipFile(io.BytesIO(content[:length]))
