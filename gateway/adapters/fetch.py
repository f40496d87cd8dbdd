"""Fetches an adapter from one of its sources into a folder, within a time, a size and the operator's list.

The hub and buckets give PEFT's two files, a web server one archive. The intake judges their content.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from urllib.parse import quote

import httpx
import msgspec
import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from adapters.errors import StoreFailure
from adapters.remote_store import open_bucket
from adapters.store import FILE_NAMES
from gateway.adapters.download import Downloader, FetchFailed, Received, write_chunks
from gateway.domain.adapters.sources import AllowedSources, Source, WrongSource

TOTAL_S = 1800.0
"""The most seconds that one fetch may take, whether or not bytes keep coming."""

CHUNK_BYTES = 256 << 10
ARCHIVE_NAME = "archive"
DEFAULT_REVISION = "main"

_COMMIT = re.compile(r"[0-9a-f]{40}")


class Hub(msgspec.Struct, frozen=True):
    """The Hugging Face hub."""

    endpoint: str = "https://huggingface.co"
    token: str | None = None
    """The token for repositories that are not public; it goes to the endpoint's host alone."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Hub:
        """Return the hub that the environment names, as Hugging Face's own programs read it."""
        return cls((environ.get("HF_ENDPOINT") or cls().endpoint).rstrip("/"), environ.get("HF_TOKEN") or None)


class Fetcher:
    """Fetches adapters from sources.

    max_bytes: the most bytes of all files of one source together. total_s: as TOTAL_S.
    """

    def __init__(
        self,
        downloader: Downloader,
        allowed: AllowedSources,
        *,
        max_bytes: int,
        hub: Hub,
        total_s: float = TOTAL_S,
    ) -> None:
        self._downloader = downloader
        self._allowed = allowed
        self._max_bytes = max_bytes
        self._hub = hub
        self._total_s = total_s

    def begin(self) -> Received:
        """Return a counter for the bytes fetched of one source, which refuses more than the allowed number."""
        return Received(self._max_bytes)

    async def bring(self, text: str, folder: Path, received: Received) -> Path:
        """Fetch the source's content into an empty folder.

        Return the path of the archive, or the folder itself where it holds the two files.

        Raises FetchFailed: when the source is not allowed, fails or takes too long.
        Raises OSError: when the folder cannot be written.
        """
        try:
            source = self._allowed.admit(text)
            async with asyncio.timeout(self._total_s):
                match source.scheme:
                    case "hf":
                        await self._from_hub(source, folder, received)
                    case "s3":
                        await self._from_bucket(source, folder, received)
                    case "https":
                        archive = folder / ARCHIVE_NAME
                        await self._downloader.download(source.url, archive, received, may_go=self._is_allowed)
                        return archive
        except WrongSource as error:
            raise FetchFailed(str(error)) from None
        except TimeoutError:
            raise FetchFailed(f"the download took longer than {self._total_s:g} s") from None
        return folder

    def _is_allowed(self, url: httpx.URL) -> bool:
        return self._allowed.admits_url(str(url))

    async def _from_hub(self, source: Source, folder: Path, received: Received) -> None:
        """Download both files of the commit that the first answer names, whatever is pushed meanwhile.

        https://huggingface.co/docs/hub/models-downloading; large files are redirected to hosts of the hub's choice.
        """
        headers = {"authorization": f"Bearer {self._hub.token}"} if self._hub.token else {}
        revision = source.revision or DEFAULT_REVISION
        for name in FILE_NAMES:
            url = f"{self._hub.endpoint}/{source.path}/resolve/{quote(revision, safe='')}/{name}"
            answer = await self._downloader.download(
                url, folder / name, received, may_go=lambda url: True, headers=headers
            )
            commit = answer.get("x-repo-commit", "")
            if _COMMIT.fullmatch(commit):
                revision = commit

    async def _from_bucket(self, source: Source, folder: Path, received: Received) -> None:
        """Download from the operator's own store, with the operator's credentials."""
        try:
            bucket = open_bucket(f"s3://{source.host}/{source.path}")
            for name in FILE_NAMES:
                found = await obstore.get_async(bucket, name)
                received.expect(found.meta["size"])
                await write_chunks(_chunks(found), folder / name, received)
        except FileNotFoundError:
            raise FetchFailed(f"the source has no file {name}") from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise FetchFailed("the bucket refused the server's access key") from None
        except (BaseError, StoreFailure) as error:
            raise FetchFailed("the bucket's server could not be reached, or did not answer as S3 does") from error


async def _chunks(found: obstore.GetResult) -> AsyncIterator[bytes]:
    async for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
        yield bytes(chunk)
