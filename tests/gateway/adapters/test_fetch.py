"""An adapter is fetched only from the operator's sources, within bounds, whatever a server does; a refusal says why."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.adapters.download import Downloader, FetchFailed, Received
from gateway.adapters.fetch import Fetcher, Hub
from gateway.domain.adapters.sources import AllowedSources
from tests.gateway.adapters.web import (
    Body,
    Web,
    answer,
    bytes_as_they_are,
    redirect,
    serving,
    silent,
)
from tests.gateway.exports.s3_server import ACCESS_KEY, S3Server
from tests.patience import PATIENCE_S

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MAX_BYTES = 100_000
CHUNKED = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n"
TOO_LARGE = f"the adapter is larger than {MAX_BYTES} bytes, the most that LORIKEET_MAX_ADAPTER_BYTES allows"
LOST = "the connection to the source's server broke, or the answer was not HTTP"


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with serving() as web:
        yield web


def fetcher(
    web: Web, *, allowed: str | None = None, token: str | None = None, idle_s: float = 10.0, total_s: float = 20.0
) -> Fetcher:
    return Fetcher(
        Downloader(web.guard, tls=web.tls, idle_s=idle_s),
        AllowedSources.parse(allowed or web.url("/adapters/") + ", hf://org"),
        max_bytes=MAX_BYTES,
        hub=Hub(web.url("", "hub.test"), token),
        total_s=total_s,
    )


async def fetched(fetcher: Fetcher, source: str, folder: Path) -> tuple[dict[str, bytes], Received]:
    """Fetch a source; return the files by name, and the counts of the transfer."""
    received = fetcher.begin()
    path = await fetcher.bring(source, make_folder(folder), received)
    return content(path), received


def make_folder(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def content(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return {file.name: file.read_bytes() for file in files}


async def refusal_of(fetcher: Fetcher, source: str, folder: Path) -> str:
    with pytest.raises(FetchFailed) as caught:
        await fetched(fetcher, source, folder)
    return str(caught.value)


async def test_an_archive_comes_over_redirects_within_the_list(web: Web, tmp_path: Path) -> None:
    web.pages["/adapters/a.tar"] = redirect("b/../c.tar?signature=x", 307)
    web.pages["/adapters/c.tar?signature=x"] = redirect(web.url("/adapters/d.tar"), 301)
    web.pages["/adapters/d.tar"] = answer(200, b"content")
    files, received = await fetched(fetcher(web), web.url("/adapters/a.tar"), tmp_path / "x")
    assert (files, received.num_bytes, received.expected_bytes) == ({"archive": b"content"}, 7, 7)
    assert {headers["accept-encoding"] for _, headers in web.asked} == {"identity"}


async def test_both_files_of_the_hub_are_of_one_commit_and_the_token_stays_there(web: Web, tmp_path: Path) -> None:
    small, large = "adapter_config.json", "adapter_model.safetensors"
    web.pages[f"/org/r/resolve/refs%2Fpr%2F1/{small}"] = redirect(f"/cache/{small}", 307, x_repo_commit=COMMIT)
    web.pages[f"/cache/{small}"] = answer(200, b"{}")
    web.pages[f"/org/r/resolve/{COMMIT}/{large}"] = redirect(web.url("/large?x=1", "cdn.test"))
    web.pages["/large?x=1"] = answer(200, b"weights")
    files, received = await fetched(fetcher(web, token="hf_secret"), "hf://org/r@refs/pr/1", tmp_path / "x")
    assert (files, received.num_bytes) == ({small: b"{}", large: b"weights"}, 9)
    told = [headers.get("authorization") for _, headers in web.asked]
    assert told == ["bearer hf_secret"] * 3 + [None]


HOSTILE: dict[str, tuple[Body, str]] = {
    "announces too much": (bytes_as_they_are(b"HTTP/1.1 200 X\r\ncontent-length: 100001\r\n\r\n"), TOO_LARGE),
    "never ends": (bytes_as_they_are(CHUNKED, b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n", endless=True), TOO_LARGE),
    "drips": (
        bytes_as_they_are(CHUNKED, b"1\r\nx\r\n", pause_s=0.05, endless=True),
        "the download took longer than 1 s",
    ),
    "says nothing": (silent, "the source's server sent nothing for 0.5 s"),
    "stops in between": (
        bytes_as_they_are(CHUNKED, b"1\r\nx\r\n", b"", pause_s=9, endless=True),
        "the source's server sent nothing",
    ),
    "ends early": (bytes_as_they_are(b"HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\nxx"), LOST),
    "lies about its length": (bytes_as_they_are(b"HTTP/1.1 200 X\r\ncontent-length: -5\r\n\r\nxx"), LOST),
    "says two lengths": (
        bytes_as_they_are(b"HTTP/1.1 200 X\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx"),
        LOST,
    ),
    "speaks no HTTP": (bytes_as_they_are(b"220 smtp.example.com ESMTP\r\n"), LOST),
    "has endless headers": (bytes_as_they_are(b"HTTP/1.1 200 X\r\nx: ", b"x" * 65536, endless=True), LOST),
    "compresses": (
        answer(200, b"\x1f\x8b", content_encoding="gzip"),
        "in a content encoding that the request did not accept",
    ),
    "has nothing": (answer(404, b"secret words"), "answered with status 404"),
    "redirects nowhere": (
        bytes_as_they_are(b"HTTP/1.1 302 X\r\ncontent-length: 0\r\n\r\n"),
        "a redirect that names no URL",
    ),
    "loops": (redirect("/adapters/x"), "the source redirects more than 3 times"),
    "goes to HTTP": (redirect("http://models.test/adapters/x"), "a URL that is not an https URL"),
    "goes to a file": (redirect("file:///etc/passwd"), "a URL that is not an https URL"),
    "goes elsewhere": (redirect("https://cdn.test/x"), "cdn.test that LORIKEET_ADAPTER_SOURCES does not allow"),
    "climbs": (redirect("/adapters/../x"), "models.test that LORIKEET_ADAPTER_SOURCES does not allow"),
    "climbs in disguise": (
        redirect("/adapters/%2e%2e/x"),
        "models.test that LORIKEET_ADAPTER_SOURCES does not allow",
    ),
    "has a user name": (redirect("https://me:pw@models.test/adapters/x"), "a URL that is not an https URL"),
    "goes to no URL": (redirect("https://[::1/x"), LOST),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_server_is_left_within_bounds(web: Web, tmp_path: Path, kind: str) -> None:
    body, reason = HOSTILE[kind]
    web.pages["/adapters/x"] = body
    started = time.monotonic()
    impatient = fetcher(web, idle_s=0.5 if "sent nothing" in reason else 10.0, total_s=1.0 if kind == "drips" else 20.0)
    said = await refusal_of(impatient, web.url("/adapters/x"), tmp_path / "x")
    assert reason in said
    assert time.monotonic() - started < PATIENCE_S
    assert sum(len(part) for part in content(tmp_path / "x").values()) <= MAX_BYTES
    assert "secret" not in said


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:169.254.169.254]", "inside.test", "loopback.test"]
)
async def test_no_redirect_reaches_what_is_private(web: Web, tmp_path: Path, host: str) -> None:
    """No redirect does, neither from the hub, which may redirect to any public address, nor if the operator's list has
    the very host."""
    web.pages["/org/r/resolve/main/adapter_config.json"] = redirect(f"https://{host}/latest/meta-data/")
    assert "not a public address" in await refusal_of(fetcher(web), "hf://org/r", tmp_path / "hub")
    if host.startswith("[::f"):
        return
    said = await refusal_of(fetcher(web, allowed=f"https://{host}/"), f"https://{host}/latest", tmp_path / "direct")
    assert said.endswith("is not a public address")


async def test_a_name_is_looked_up_once_and_its_certificate_is_verified(web: Web, tmp_path: Path) -> None:
    web.pages["/adapters/x"] = answer(200, b"content")
    rebinds = web.url("/adapters/x", "rebinds.test")
    await fetched(fetcher(web, allowed=rebinds), rebinds, tmp_path / "x")
    assert web.lookups == ["rebinds.test"]
    liar = web.url("/adapters/x", "liar.test")
    said = await refusal_of(fetcher(web, allowed=liar), liar, tmp_path / "y")
    assert said == "the certificate of the source's server is not valid for its host name"


async def test_what_is_not_listed_is_not_asked(web: Web, tmp_path: Path) -> None:
    for source in (web.url("/adaptersx/a"), web.url("/adapters/a", "cdn.test"), "hf://other/r", "s3://bucket"):
        assert "not among the sources" in await refusal_of(fetcher(web), source, tmp_path / "x")
    assert (web.asked, web.lookups) == ([], [])


async def test_a_fetch_that_is_canceled_closes_its_connection(web: Web, tmp_path: Path) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def drip(writer: asyncio.StreamWriter) -> None:
        asked.set()
        try:
            await bytes_as_they_are(CHUNKED, b"1\r\nx\r\n", pause_s=0.01, endless=True)(writer)
        finally:
            closed.set()

    web.pages["/adapters/x"] = drip
    task = asyncio.create_task(fetched(fetcher(web), web.url("/adapters/x"), tmp_path / "x"))
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
        task.cancel()
        await closed.wait()
    assert task.cancelled()


async def test_a_folder_of_a_bucket_comes_with_the_operators_credentials(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Server() as s3:
        for name, value in (("SECRET_ACCESS_KEY", "x"), ("REGION", "us-east-1"), ("ENDPOINT_URL", s3.url)):
            monkeypatch.setenv(f"AWS_{name}", value)
        s3.objects["bucket/adapters/a/adapter_config.json"] = b"{}"
        s3.objects["bucket/adapters/a/adapter_model.safetensors"] = b"weights"
        s3.objects["bucket/adapters/half/adapter_config.json"] = b"{}"
        s3.objects["bucket/adapters/large/adapter_config.json"] = bytes(MAX_BYTES + 1)
        of_bucket = fetcher(web, allowed="s3://bucket/adapters")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        files, received = await fetched(of_bucket, "s3://bucket/adapters/a/", tmp_path / "a")
        assert files == {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
        assert received.num_bytes == 9
        for folder, access_key, reason in (
            ("half", ACCESS_KEY, "the source has no file adapter_model.safetensors"),
            ("large", ACCESS_KEY, TOO_LARGE),
            ("a", "AKIAWRONG", "the bucket refused the server's access key"),
        ):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", access_key)
            into = tmp_path / f"{folder}-{access_key}"
            assert await refusal_of(of_bucket, f"s3://bucket/adapters/{folder}", into) == reason
