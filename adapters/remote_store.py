"""Adapters in a bucket, by the digest of their content, with a cache of those read lately on this machine.

An adapter is one object, `<digest>.tar` with the two files, so it is there whole or not at all, even if an uploader
dies; a download is checked against its digest. Any store that speaks S3 will do (`s3://bucket/prefix`): credentials,
region and endpoint are those of the environment, as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL
(https://docs.aws.amazon.com/sdkref/latest/guide/environment-variables.html).
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, S3Store

from adapters.cache import Cache
from adapters.errors import AdapterDamaged, AdapterMissing, StoreFailure
from adapters.peft_format import FILE_NAMES
from adapters.store import COPY_BYTES, AdapterStore, check_content, create_private, is_digest

PART_BYTES = 8 << 20
"""The bytes of a part of a multipart upload; S3 takes at least 5 MiB, and 10,000 parts."""

MAX_PARTS_UNDER_WAY = 2
CONNECT_TIMEOUT = datetime.timedelta(seconds=5)
TRANSFER_TIMEOUT = datetime.timedelta(minutes=5)
RETRY_TIMEOUT = datetime.timedelta(seconds=20)
MAX_RETRIES = 3
SUFFIX = ".tar"


def open_bucket(url: str) -> ObjectStore:
    """Open the bucket of an s3:// URL.

    Raises StoreFailure: when the URL, or what the environment says of the bucket, is wrong.
    """
    if not url.startswith("s3://"):
        raise StoreFailure(f"the adapter store {url!r} is neither a folder nor an s3:// URL")
    try:
        return S3Store.from_url(
            url,
            config={"disable_bulk_delete": True},  # not every store that speaks S3 deletes many at once
            client_options={
                "allow_http": os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"),
                "connect_timeout": CONNECT_TIMEOUT,
                "timeout": TRANSFER_TIMEOUT,
            },
            retry_config={"max_retries": MAX_RETRIES, "retry_timeout": RETRY_TIMEOUT},
        )
    except BaseError as error:
        raise StoreFailure(f"the adapter store {url!r} can't be used: {_first_line(error)}") from None


class RemoteStore(AdapterStore):
    """A store in a bucket, with the methods of the store in a folder and a cache on this machine.

    Methods that ask the bucket raise StoreFailure where it does not answer as it should; cached content is read without
    asking.
    """

    def __init__(self, bucket: ObjectStore, cache_dir: Path, cache_bytes: int) -> None:
        super().__init__(cache_dir)
        self._bucket = bucket
        self._cache = Cache(cache_dir, cache_bytes)

    def keep(self, folder: Path, digest: str) -> None:
        """Upload the files of a folder under their digest, replacing what is there, and put them into the cache."""
        if not is_digest(digest):
            raise ValueError(f"{digest[:100]!r} is not a digest")
        self._upload(folder, digest)  # known content too: the time does not tell, and what was damaged is whole again
        os.close(self._cache.put(folder, digest))

    @contextlib.contextmanager
    def reading(self, digest: str) -> Iterator[Path]:
        """Yield the folder of an adapter in the cache, where the adapter stays until the context is left.

        A reader that finds the adapter damaged raises AdapterDamaged in the context: the next reader gets it from the
        bucket again.
        """
        if not is_digest(digest):
            raise AdapterMissing(digest)
        lock = self._cache.lock(digest)
        if lock is None:
            with self.workspace() as workspace:
                folder = workspace / "adapter"
                folder.mkdir(mode=0o700)
                self._download(digest, folder)
                lock = self._cache.put(folder, digest)
        damaged = False
        try:
            yield self._root / digest
        except AdapterDamaged:
            damaged = True
            raise
        finally:
            os.close(lock)
            if damaged:
                self._cache.evict(digest)

    def path(self, digest: str) -> Path:
        """Return the folder of an adapter in the cache.

        The adapter may leave the cache at any time; `reading` keeps it there.
        """
        with self.reading(digest) as folder:
            return folder

    def holds(self, digest: str) -> bool:
        """Tell whether the bucket has content of this digest; the content is not fetched. False for any other text."""
        if not is_digest(digest):
            return False
        with _failures("read"):
            try:
                obstore.head(self._bucket, digest + SUFFIX)
            except FileNotFoundError:
                return False
        return True

    def remove(self, digest: str) -> None:
        """Remove an adapter from the bucket and from this machine; other machines evict it when they need the room."""
        if not self.holds(digest):
            raise AdapterMissing(digest)
        with _failures("changed"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._bucket, digest + SUFFIX)
        self._cache.evict(digest)

    def digests(self) -> list[str]:
        """Return the digests of all content in the bucket, sorted; objects with other names are left out."""
        with _failures("listed"):
            names = [each["path"] for objects in obstore.list(self._bucket) for each in objects]
        return sorted(filter(is_digest, (name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))))

    def size_bytes(self, digest: str) -> int:
        """Return the bytes of the content's files together, which are fetched unless the cache has them."""
        with self.reading(digest) as folder:
            return sum((folder / name).stat().st_size for name in FILE_NAMES)

    def verify(self, digest: str) -> None:
        """Verify the bucket's copy of an adapter, even if the cache holds the adapter."""
        with self.workspace() as workspace:
            self._download(digest, workspace)

    def _upload(self, folder: Path, digest: str) -> None:
        """Upload an adapter's archive in parts that become one object at the end."""
        with _failures("written"):
            try:
                obstore.put(
                    self._bucket,
                    digest + SUFFIX,
                    _archive(folder),
                    chunk_size=PART_BYTES,
                    max_concurrency=MAX_PARTS_UNDER_WAY,
                )
            except FileNotFoundError:
                raise StoreFailure("the adapter store's bucket does not exist") from None

    def _download(self, digest: str, folder: Path) -> None:
        """Download an adapter into a folder.

        Raises AdapterMissing: when the bucket has no such object.
        Raises AdapterDamaged: when the object is not what its name says.
        """
        if not is_digest(digest):
            raise AdapterMissing(digest)
        with _failures("read"):
            try:
                parts = obstore.get(self._bucket, digest + SUFFIX).stream(min_chunk_size=COPY_BYTES)
                _extract(io.BufferedReader(_Parts(map(memoryview, parts))), folder)
            except FileNotFoundError:
                raise AdapterMissing(digest) from None
            except tarfile.TarError as error:
                raise AdapterDamaged(digest, f"is not an archive of its two files: {error}") from None
        check_content(folder, digest)


def _archive(folder: Path) -> Iterator[bytes]:
    """Yield the parts of a tar archive of the two files (POSIX.1-1988).

    The bytes are the same wherever the files come from.
    """
    for name in FILE_NAMES:
        entry = tarfile.TarInfo(name)
        with (folder / name).open("rb") as file:
            entry.size = os.fstat(file.fileno()).st_size
            yield entry.tobuf(tarfile.USTAR_FORMAT)
            while part := file.read(COPY_BYTES):
                yield part
        yield bytes(-entry.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _extract(parts: IO[bytes], folder: Path) -> None:
    """Extract an archive as `_archive` makes it into a folder.

    Raises TarError: for any other archive.
    """
    with tarfile.open(fileobj=parts, mode="r|") as archive:
        for name in FILE_NAMES:
            entry = archive.next()
            file = archive.extractfile(entry) if entry is not None and entry.name == name and entry.isreg() else None
            if file is None:
                raise tarfile.ReadError(f"{name} is not where it should be")
            with create_private(folder / name) as target:
                shutil.copyfileobj(file, target, COPY_BYTES)


class _Parts(io.RawIOBase):
    """A file that is read once from beginning to end, made of parts as they arrive."""

    def __init__(self, parts: Iterator[memoryview]) -> None:
        self._parts = parts
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = next(self._parts, self._left)
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count


@contextlib.contextmanager
def _failures(doing: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, TimeoutError, ConnectionError) as error:
        raise StoreFailure(f"the adapter store could not be {doing}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    """Return an error's message on one line, without the notes that the library adds below the message."""
    return " ".join(str(error).partition("\n\n")[0].split())
