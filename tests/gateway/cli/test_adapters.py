"""`lorikeet adapter` against a running gateway over the fake engine: every verb, broken uploads, every kind of
source."""

from __future__ import annotations

import asyncio
import os
import socket
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import trustme

from tests.gateway.adapters.web import PUBLIC, answer, serving
from tests.gateway.admin_server import write_adapter
from tests.gateway.cli.conftest import Cli
from tests.gateway.live import make_operator_key
from tests.gateway.model_folder import make_model_folder
from tests.installation.live_gateway import running_gateways
from tests.patience import PATIENCE_S

PADDING_BYTES = 17 << 20
T = ("--tenant", "acme")


class Site:
    """A running gateway.

    listener: a socket at which it may fetch adapters, with certificates of `ca`.
    """

    def __init__(self, folder: Path, url: str, key: str, ca: trustme.CA, listener: socket.socket) -> None:
        self.folder = folder
        self.url = url
        self.ca = ca
        self.listener = listener
        self.port = int(url.rpartition(":")[2])
        self.environ = {"LORIKEET_DATA_DIR": str(folder), "LORIKEET_ADMIN_KEY": key}

    def adapter(self, name: str, seed: int) -> Path:
        return write_adapter(self.folder / "made" / name, seed=seed, in_features=32, out_features=32, num_layers=1)


@pytest.fixture(scope="module")
def site(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    model_dir = make_model_folder(folder / "model")
    key = asyncio.run(make_operator_key(module_dsn))
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    (folder / "watched").mkdir()
    listener = socket.create_server((PUBLIC, 0))
    settings = {
        "adapter_sources": f"https://{PUBLIC}:{listener.getsockname()[1]}/adapters/",
        "adapter_folder": folder / "watched",
        "private_webhooks": True,
        "max_failed_keys": 0,
    }
    with listener, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        with running_gateways(module_dsn, model_dir, data_dir=folder, **settings) as installed:
            yield Site(folder, installed.gateway.url, key, ca, listener)


@pytest.fixture
async def lorikeet(site: Site, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return the command line of an installation with the tenants acme and globex."""
    cli = Cli(site.environ | {"LORIKEET_PORT": str(site.port)}, capsys)
    known = {tenant["name"] for tenant in await cli.json("tenant", "list")}
    for name in {"acme", "globex"} - known:
        await cli.done("tenant", "create", name)
    return cli


async def output_of(lorikeet: Cli, *argv: str) -> str:
    """Run a command of `lorikeet adapter` that succeeds; return what it prints."""
    return await lorikeet.done("adapter", *argv)


async def refused(lorikeet: Cli, *argv: str) -> str:
    """Run a command of `lorikeet adapter` that fails; return its one line of error."""
    code, out, err = await lorikeet("adapter", *argv)
    assert (code, out, err.count("\n")) == (1, "", 1)
    return err.removeprefix("lorikeet: ").rstrip()


async def test_versions_follow_each_other_and_any_can_be_gone_back_to(lorikeet: Cli, site: Site) -> None:
    first, second = site.adapter("first", 1), site.adapter("second", 2)
    assert (await output_of(lorikeet, "add", *T, "--name", "a", str(first))).startswith("tiny:a is now version 1 (")
    assert (await output_of(lorikeet, "add", *T, "--name", "a", str(second))).startswith("tiny:a is now version 2 (")
    assert (await output_of(lorikeet, "add", *T, "--name", "a", str(second))).startswith(
        "tiny:a is already version 2 ("
    )
    assert await output_of(lorikeet, "rollback", *T, "a") == "tiny:a is now version 1; before it was 2\n"
    assert await output_of(lorikeet, "promote", *T, "a@2") == "tiny:a is now version 2\n"
    assert "is the current version" in await refused(lorikeet, "retire", *T, "a@2")
    assert "Retire the version first" in await refused(lorikeet, "delete-version", *T, "a@1")
    assert await output_of(lorikeet, "retire", *T, "a@1") == "a@1 is retired\n"
    table = (await output_of(lorikeet, "versions", *T, "a")).splitlines()
    assert [line.split()[:2] for line in table[1:]] == [["2", "ready,"], ["1", "retired"]]
    assert await output_of(lorikeet, "delete-version", *T, "a@1") == "a@1 is deleted\n"
    third = await lorikeet.json("adapter", "add", *T, "--name", "a", str(site.adapter("third", 3)), "--no-promote")
    assert (third["version"], third["uploaded_version"], third["version_state"]) == (2, 3, "ready")


async def test_words_that_name_no_version_are_refused(lorikeet: Cli) -> None:
    assert await refused(lorikeet, "promote", *T, "a") == (
        "'a' needs a version, as in a@3; `lorikeet adapter versions` lists all versions"
    )
    for wrong in ("a@", "a@x", "@1", "a@-1", "a@1@2"):
        assert "names no version" in await refused(lorikeet, "retire", *T, wrong)


async def test_an_adapter_is_set_shared_and_shown(lorikeet: Cli, site: Site) -> None:
    await output_of(lorikeet, "add", *T, "--name", "b", str(site.adapter("b", 4)))
    out = await output_of(lorikeet, "set", *T, "b", "--temperature", "0.5", "--system-prompt", "Be brief.", "--pin")
    assert out == "b: temperature 0.5, system_prompt Be brief., pinned\n"
    assert await output_of(lorikeet, "set", *T, "b", "--clear", "system_prompt", "--unpin") == "b: temperature 0.5\n"
    assert "no default and no --pin or --unpin was given" in await refused(lorikeet, "set", *T, "b")
    assert "both set and cleared" in await refused(lorikeet, "set", *T, "b", "--top-k", "1", "--clear", "top_k")
    assert await output_of(lorikeet, "share", *T, "b", "--with", "globex") == "globex may call b of acme\n"
    shown = await lorikeet.json("adapter", "show", *T, "b")
    assert (shown["shared_with"], shown["defaults"]["temperature"]) == (["globex"], 0.5)
    assert "shared_with: globex\n" in await output_of(lorikeet, "show", *T, "b")
    assert (
        await output_of(lorikeet, "unshare", *T, "b", "--with", "globex") == "globex may not call b of acme any more\n"
    )
    version = await lorikeet.json("adapter", "show", *T, "b@1")
    assert (version["state"], version["report"]["rank"]) == ("ready", 2)
    assert "state: ready\n" in await output_of(lorikeet, "show", *T, "b@1")
    assert "no version '9'" in await refused(lorikeet, "show", *T, "b@9")


async def test_the_reason_of_a_refused_import_is_listed(lorikeet: Cli, site: Site) -> None:
    wide = write_adapter(site.folder / "made" / "wide", in_features=9)
    assert (await refused(lorikeet, "add", *T, "--name", "w", str(wide))).startswith("The adapter was refused: ")
    (newest, *_) = await lorikeet.json("adapter", "imports", *T)
    assert (newest["name"], newest["state"], newest["version"]) == ("w", "rejected", None)
    assert newest["reason"] in await output_of(lorikeet, "imports", *T)


async def test_verify_reports_that_stored_contents_are_whole(lorikeet: Cli, site: Site) -> None:
    await output_of(lorikeet, "add", *T, "--name", "v", str(site.adapter("v", 5)))
    assert "contents are whole" in await output_of(lorikeet, "verify")


def archive(folder: Path, path: Path, padding_bytes: int = 0) -> Path:
    """Write an archive of an adapter's folder; the padding is a file that adapters do not need."""
    (folder / "README.md").write_bytes(os.urandom(padding_bytes))
    with tarfile.open(path, "w") as tar:
        tar.add(folder, "adapter")
    return path


@asynccontextmanager
async def breaking(port: int, after_bytes: list[int]) -> AsyncIterator[int]:
    """Give the port of a proxy whose connections break.

    after_bytes: the bytes after which the connections break, one after the other; later connections last.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: float) -> None:
        with suppress(ConnectionError):
            while left > 0 and (chunk := await reader.read(65536)):
                writer.write(chunk)
                await writer.drain()
                left -= len(chunk)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
        left = after_bytes.pop(0) if after_bytes else float("inf")
        back = asyncio.create_task(pump(there_reader, writer, float("inf")))
        await pump(reader, there_writer, left)
        writer.close()
        await back

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_large_upload_goes_on_where_a_connection_broke(lorikeet: Cli, site: Site, tmp_path: Path) -> None:
    large = archive(site.adapter("large", 6), tmp_path / "large.tar", PADDING_BYTES)
    async with breaking(site.port, [3 << 20, 12 << 20, 1 << 20]) as port:
        code, out, err = await lorikeet("adapter", "add", *T, "--name", "large", str(large), LORIKEET_PORT=str(port))
    assert (code, err) == (0, "")
    assert out.startswith("tiny:large is now version 1 (")
    (newest, *_) = await lorikeet.json("adapter", "imports", *T)
    assert (newest["state"], newest["received_bytes"]) == ("done", large.stat().st_size)


async def test_an_upload_can_be_resumed_another_day(lorikeet: Cli, site: Site, tmp_path: Path) -> None:
    path = archive(site.adapter("resumed", 7), tmp_path / "a.tar")
    content, project = path.read_bytes(), await _project(lorikeet)
    headers = {"authorization": f"Bearer {site.environ['LORIKEET_ADMIN_KEY']}"}
    async with httpx.AsyncClient(
        base_url=f"{site.url}/v1/organization{project}", headers=headers, timeout=PATIENCE_S
    ) as client:
        made = await client.post("/adapter_imports", json={"name": "r", "size_bytes": len(content)})
        imported = made.json()["id"]
        await client.patch(f"/adapter_imports/{imported}", content=content[:100], headers={"upload-offset": "0"})
    add = ("add", *T, "--name", "r", "--resume", imported)
    other = archive(site.adapter("resumed", 7), tmp_path / "b.tar", 10_000)
    assert "was begun without --no-promote" in await refused(lorikeet, *add, "--no-promote", str(path))
    assert "resume with the same files, or start a new upload" in await refused(lorikeet, *add, str(other))
    assert "is an upload of 'r'" in await refused(lorikeet, "add", *T, "--name", "x", "--resume", imported, str(path))
    assert (await output_of(lorikeet, *add, str(path))).startswith("tiny:r is now version 1 (")
    assert (await output_of(lorikeet, *add, str(path))).startswith("tiny:r is already version 1 ("), "it was over"


async def test_an_upload_can_be_canceled(lorikeet: Cli, site: Site) -> None:
    headers = {"authorization": f"Bearer {site.environ['LORIKEET_ADMIN_KEY']}"}
    async with httpx.AsyncClient(base_url=f"{site.url}/v1/organization", headers=headers, timeout=PATIENCE_S) as client:
        path = f"{await _project(lorikeet)}/adapter_imports"
        imported = (await client.post(path, json={"name": "c", "size_bytes": 10})).json()["id"]
    assert await output_of(lorikeet, "cancel-import", *T, imported) == f"{imported} is canceled\n"
    assert "has ended" in await refused(lorikeet, "cancel-import", *T, imported)


async def _project(lorikeet: Cli) -> str:
    tenants = await lorikeet.json("tenant", "list")
    return next(f"/projects/{tenant['id']}" for tenant in tenants if tenant["name"] == "acme")


async def test_the_server_fetches_from_a_source(lorikeet: Cli, site: Site, tmp_path: Path) -> None:
    made = archive(site.adapter("fetched", 8), tmp_path / "fetched.tar")
    async with serving(site.ca, site.listener.dup()) as web:
        web.pages["/adapters/good.tar"] = answer(200, made.read_bytes())
        web.pages["/adapters/bad.tar"] = answer(200, b"no archive")
        good, bad, gone, elsewhere = (
            web.url(path, PUBLIC) for path in ("/adapters/good.tar", "/adapters/bad.tar", "/adapters/gone", "/other")
        )
        web.pages["/adapters/gone"] = answer(404)
        assert (await output_of(lorikeet, "add", *T, "--name", "f", good)).startswith("tiny:f@1 is now current (")
        again = await lorikeet.json("adapter", "add", *T, "--name", "f", good, "--no-promote")
        assert (again["state"], again["version"], again["version_state"]) == ("done", 1, "ready")
        assert "neither a tar" in await refused(lorikeet, "add", *T, "--name", "g", bad)
        assert (await refused(lorikeet, "add", *T, "--name", "g", gone)).endswith("answered with status 404")
        assert "not among the sources" in await refused(lorikeet, "add", *T, "--name", "g", elsewhere)
    assert "by themselves" in await refused(lorikeet, "add", *T, "--name", "g", good, "--resume", "imp_x")


async def test_an_adapter_put_into_the_watched_folder_is_imported(lorikeet: Cli, site: Site) -> None:
    site.adapter("dropped", 9).rename(site.folder / "made" / "ready")
    (site.folder / "watched" / "acme").mkdir()
    (site.folder / "made" / "ready").rename(site.folder / "watched" / "acme" / "dropped")
    async with asyncio.timeout(PATIENCE_S):
        while "dropped" not in await output_of(lorikeet, "list", *T):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    (version,) = await lorikeet.json("adapter", "versions", *T, "dropped")
    assert version["source"] == "folder"
