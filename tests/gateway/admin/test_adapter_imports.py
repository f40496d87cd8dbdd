"""Imports through the admin API: uploads that go on where they stopped, and the outcome of each import."""

from __future__ import annotations

import asyncio
import hashlib
import random
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.db.adapters.adapter_imports import expire_imports
from gateway.domain.errors import InvalidRequest
from gateway.http.upload_body import unstalled_chunks
from tests.gateway.admin.adapter_uploads import archive_of, error_of, upload
from tests.gateway.admin_server import MAX_ADAPTER_BYTES, AdminServer, write_adapter
from tests.patience import PATIENCE_S


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    return archive_of(write_adapter(tmp_path / "pirate"))


async def begin(operator: httpx.AsyncClient, project: str, size_bytes: int) -> str:
    """Begin an import; return its path."""
    wanted = {"name": "pirate", "size_bytes": size_bytes}
    reply = await operator.post(f"{project}/adapter_imports", json=wanted)
    assert (reply.status_code, reply.json()["state"]) == (200, "receiving"), reply.text
    return f"{project}/adapter_imports/{reply.json()['id']}"


async def send(operator: httpx.AsyncClient, path: str, offset: int, content: bytes) -> httpx.Response:
    return await operator.patch(path, content=content, headers={"upload-offset": str(offset)})


async def state_of(operator: httpx.AsyncClient, path: str) -> tuple[str, str | None]:
    found: dict[str, Any] = (await operator.get(path)).json()
    return found["state"], found["reason"]


async def test_an_upload_goes_on_where_it_stopped(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, archive: bytes
) -> None:
    path = await begin(operator, acme, len(archive))
    assert (await send(operator, path, 0, archive[:1000])).json()["received_bytes"] == 1000
    assert error_of(await send(operator, path, 0, archive[:1000])) == (409, "upload-offset", "wrong_offset")
    assert error_of(await operator.post(f"{path}/complete")) == (409, None, "upload_incomplete")
    # As a gateway that died between writing and telling leaves it.
    (partial,) = (server.store_dir.parent / "uploads").iterdir()
    with partial.open("ab") as file:
        file.write(b"never told")
    assert (await send(operator, path, 1000, archive[1000:])).json()["received_bytes"] == len(archive)
    done = await operator.post(f"{path}/complete")
    assert (done.status_code, done.json()["version"], done.json()["version_state"]) == (200, 1, "ready"), done.text
    again = await operator.post(f"{path}/complete")
    assert (again.status_code, again.json()["uploaded_version"], again.json()["changed"]) == (200, 1, False)
    assert await state_of(operator, path) == ("done", None)
    assert list((server.store_dir.parent / "uploads").iterdir()) == []


async def test_bytes_that_lie_on_another_machine_are_not_gone_on_with(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, archive: bytes
) -> None:
    path = await begin(operator, acme, len(archive))
    await send(operator, path, 0, archive)
    (partial,) = (server.store_dir.parent / "uploads").iterdir()
    partial.rename(tmp := partial.with_name("elsewhere"))
    for reply in (await send(operator, path, len(archive), b""), await operator.post(f"{path}/complete")):
        assert error_of(reply) == (409, "import_id", "import_elsewhere")
    tmp.rename(partial)
    assert (await operator.post(f"{path}/complete")).status_code == 200


async def test_a_connection_that_breaks_loses_nothing_that_came(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, archive: bytes
) -> None:
    path = await begin(operator, acme, len(archive))
    partial = server.store_dir.parent / "uploads" / path.rpartition("/")[2]
    port, host = operator.base_url.port, operator.base_url.host
    _, writer = await asyncio.open_connection(host, port)
    head = f"PATCH /v1/organization{path} HTTP/1.1\r\nhost: x\r\nupload-offset: 0\r\ncontent-length: {len(archive)}\r\n"
    writer.write(f"{head}authorization: {operator.headers['authorization']}\r\n\r\n".encode() + archive[:2000])
    await writer.drain()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if partial.exists() and partial.stat().st_size == 2000:  # the server has read them
                break
            await asyncio.sleep(0.01)
        writer.close()
        received = 0
        while received < 2000:
            received = (await operator.get(path)).json()["received_bytes"]
    assert (await send(operator, path, 2000, archive[2000:])).status_code == 200
    assert (await operator.post(f"{path}/complete")).json()["version"] == 1


async def test_wrong_bytes_are_refused(operator: httpx.AsyncClient, acme: str, server: AdminServer) -> None:
    path = await begin(operator, acme, 10)
    for offset in ("", "-1", "x", "1" * 17):
        reply = await operator.patch(path, content=b"", headers={"upload-offset": offset})
        assert error_of(reply) == (400, "upload-offset", "invalid_value")
    assert error_of(await send(operator, path, 0, b"x" * 11)) == (400, None, "too_many_bytes")
    assert (await send(operator, path, 0, b"no archive")).status_code == 200
    refused = await operator.post(f"{path}/complete")
    assert error_of(refused) == (400, "file", "adapter_rejected")
    assert error_of(await operator.post(f"{path}/complete")) == (400, "file", "adapter_rejected")
    assert (await state_of(operator, path))[0] == "rejected"
    assert error_of(await send(operator, path, 10, b"")) == (409, "import_id", "conflict")
    large = {"name": "pirate", "size_bytes": MAX_ADAPTER_BYTES + 1}
    assert error_of(await operator.post(f"{acme}/adapter_imports", json=large))[1] == "size_bytes"
    assert (await operator.get(f"{acme}/adapters")).json()["data"] == []


async def test_other_bytes_than_announced_are_refused(
    operator: httpx.AsyncClient, acme: str, archive: bytes, server: AdminServer
) -> None:
    announced = hashlib.sha256(archive).hexdigest()
    for content, state in ((archive[:-1] + b"x", "rejected"), (archive, "done")):
        wanted = {"name": "pirate", "size_bytes": len(archive), "sha256": announced}
        made = (await operator.post(f"{acme}/adapter_imports", json=wanted)).json()
        path = f"{acme}/adapter_imports/{made['id']}"
        assert (await send(operator, path, 0, content)).json()["sha256"] == announced
        reply = await operator.post(f"{path}/complete")
        assert (await state_of(operator, path))[0] == state
        if state == "rejected":
            for again in (reply, await operator.post(f"{path}/complete")):
                assert error_of(again) == (400, "file", "adapter_rejected")
                assert "differs from the SHA-256 that the import announced" in again.json()["error"]["message"]
            assert list((server.store_dir.parent / "uploads").iterdir()) == []
    wrong = {"name": "pirate", "size_bytes": 1, "sha256": "x"}
    assert error_of(await operator.post(f"{acme}/adapter_imports", json=wrong))[1] == "sha256"


async def test_an_upload_is_canceled_and_then_takes_nothing_more(operator: httpx.AsyncClient, acme: str) -> None:
    path = await begin(operator, acme, 10)
    assert (await operator.delete(path)).json()["reason"] == "canceled"
    assert error_of(await operator.delete(path)) == (409, "import_id", "conflict")
    assert (await send(operator, path, 0, b"x")).status_code == 409
    assert error_of(await operator.post(f"{path}/complete")) == (409, "import_id", "conflict")


async def test_a_project_has_few_uploads_under_way(operator: httpx.AsyncClient, acme: str) -> None:
    paths = [await begin(operator, acme, 10) for _ in range(16)]
    wanted = {"name": "pirate", "size_bytes": 10}
    assert error_of(await operator.post(f"{acme}/adapter_imports", json=wanted))[2] == "too_many_imports"
    await operator.delete(paths[0])
    assert (await operator.post(f"{acme}/adapter_imports", json=wanted)).status_code == 200


async def half_sent(operator: httpx.AsyncClient, acme: str) -> asyncio.StreamWriter:
    """Start an upload in one request, and send only the beginning of its body."""
    _, writer = await asyncio.open_connection(operator.base_url.host, operator.base_url.port)
    head = f"POST /v1/organization{acme}/adapters HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n"
    head += f"authorization: {operator.headers['authorization']}\r\ncontent-type: multipart/form-data; boundary=b\r\n"
    writer.write(f"{head}\r\n--b\r\n".encode())
    await writer.drain()
    return writer


async def imports_until(operator: httpx.AsyncClient, acme: str, num_imports: int) -> list[dict[str, Any]]:
    """Return the project's imports, newest first, once there are `num_imports`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found: list[dict[str, Any]] = (await operator.get(f"{acme}/adapter_imports")).json()["data"]
            if len(found) == num_imports:
                return found
            await asyncio.sleep(0.01)


async def test_uploads_in_one_piece_count_from_their_first_byte_and_are_canceled(
    operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    for _ in range(15):
        await begin(operator, acme, 10)
    writer = await half_sent(operator, acme)
    (newest, *_) = await imports_until(operator, acme, 16)
    refused = await upload(operator, acme, "pirate", write_adapter(tmp_path / "pirate"))
    assert error_of(refused)[2] == "too_many_imports"
    path = f"{acme}/adapter_imports/{newest['id']}"
    assert error_of(await send(operator, path, 0, b"x")) == (409, "import_id", "conflict")
    assert error_of(await operator.post(f"{path}/complete")) == (409, None, "upload_incomplete")
    writer.close()
    await imports_until(operator, acme, 15)
    assert (await upload(operator, acme, "pirate", tmp_path / "pirate")).status_code == 200


async def test_a_body_that_stalls_is_given_up() -> None:
    async def stalling() -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()

    coming = unstalled_chunks(stalling(), 0.01)
    assert await anext(coming) == b"first"
    with pytest.raises(InvalidRequest) as refused:
        await anext(coming)
    assert refused.value.code == "upload_stalled"


async def test_what_is_announced_larger_than_all_storage_is_refused_at_once(
    operator: httpx.AsyncClient, acme: str
) -> None:
    await operator.post(f"{acme}/limits", json={"unit": "storage_bytes", "max": 1000})
    wanted = {"name": "pirate", "size_bytes": MAX_ADAPTER_BYTES}
    refused = await operator.post(f"{acme}/adapter_imports", json=wanted)
    assert error_of(refused) == (429, "size_bytes", "insufficient_quota")
    whole = await operator.post(f"{acme}/adapters", data={"name": "x"}, files={"archive": bytes(60_000)})
    assert error_of(whole) == (429, "file", "insufficient_quota")
    assert (await operator.get(f"{acme}/adapter_imports")).json()["data"] == []


async def test_a_full_disk_loses_nothing_that_came(server: AdminServer, operator: httpx.AsyncClient, acme: str) -> None:
    """A limit on files' size ends a write as a full disk does: a short write, then an error."""
    content = random.Random(0).randbytes(60_000)
    path = await begin(operator, acme, len(content))
    await send(operator, path, 0, content[:30_000])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        refused = await send(operator, path, 30_000, content[30_000:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.status_code == 503
    received = (await operator.get(path)).json()["received_bytes"]
    assert 30_000 <= received <= 40_000
    assert (await send(operator, path, received, content[received:])).json()["received_bytes"] == len(content)
    (whole,) = (server.store_dir.parent / "uploads").iterdir()
    assert whole.read_bytes() == content


async def test_what_was_refused_can_be_seen_later(operator: httpx.AsyncClient, acme: str, tmp_path: Path) -> None:
    await upload(operator, acme, "pirate", write_adapter(tmp_path / "good"))
    refused = await upload(operator, acme, "wide", write_adapter(tmp_path / "wide", in_features=9))
    listed = (await operator.get(f"{acme}/adapter_imports")).json()["data"]
    assert [(each["name"], each["state"], each["version"]) for each in listed] == [
        ("wide", "rejected", None),
        ("pirate", "done", 1),
    ]
    assert listed[0]["reason"] == refused.json()["error"]["message"]
    second = (await operator.get(f"{acme}/adapter_imports", params={"after": listed[0]["id"]})).json()["data"]
    assert second == listed[1:]


async def test_a_source_has_to_be_allowed(operator: httpx.AsyncClient, acme: str) -> None:
    wanted = {"name": "pirate", "source": "https://evil.example.com/pirate.tar"}
    refused = await operator.post(f"{acme}/adapters", json=wanted)
    assert error_of(refused) == (400, "source", "source_not_allowed")
    reply = await operator.post(f"{acme}/adapters", json=wanted | {"source": "https://models.example.com/pirate.tar"})
    assert (reply.status_code, reply.json()["state"], reply.json()["version"]) == (202, "fetching", None)


async def test_imports_that_nobody_works_on_end(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, archive: bytes
) -> None:
    """The import's time is moved back rather than waited for."""
    paths = [await begin(operator, acme, len(archive)) for _ in range(3)]
    for path in paths:
        await send(operator, path, 0, archive[:1])
    ids = [path.rpartition("/")[2] for path in paths]
    async with server.services.database.acquire() as conn:
        await conn.execute("UPDATE adapter_imports SET updated_at = now() - interval '25 hours' WHERE id = $1", ids[0])
        await conn.execute(
            "UPDATE adapter_imports SET state = 'uploaded', updated_at = now() - interval '61 seconds' WHERE id = $1",
            ids[1],
        )
        await expire_imports(conn)
    states = [await state_of(operator, path) for path in paths]
    assert states == [("failed", "expired"), ("failed", "interrupted"), ("receiving", None)]
    await server.services.lifecycle.collector.collect()
    assert [path.name for path in (server.store_dir.parent / "uploads").iterdir()] == [ids[2]]
