"""Files over HTTP: stored, shown, read and deleted, by their own project alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.content.keeper import Keeper, drop_content
from gateway.db.files.parts import FORGOTTEN_S
from gateway.db.pool import Database
from gateway.domain.batches.line import MAX_FILE_BYTES
from gateway.files.content import PIECE_BYTES
from gateway.files.pieces import FolderPieces
from gateway.files.stores import open_pieces
from gateway.files.sweeper import Sweeper
from gateway.support.cipher import Cipher
from tests.gateway.conftest import House
from tests.gateway.content.conftest import all_rows_as_text
from tests.gateway.content.conftest import cipher as cipher
from tests.gateway.limits.fleet import Key

NEVER = "file_aaaaaaaaaaaaaaaaaaaaaaaa"
LINE = b'{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n'


def store_of(house: House) -> FolderPieces:
    found = open_pieces(house.gateway.settings.file_store)
    assert isinstance(found, FolderPieces)
    return found


async def upload_file(
    client: httpx.AsyncClient, tenant: Key, data: bytes = LINE, name: str = "lines.jsonl", **fields: str
) -> httpx.Response:
    form = {"purpose": "batch"} | fields
    return await client.post("/v1/files", files={"file": (name, data)}, data=form, headers=tenant.headers)


async def test_a_file_is_stored_shown_read_and_deleted(api: openai.AsyncOpenAI) -> None:
    data = os.urandom(2 * PIECE_BYTES + 17)
    made = await api.files.create(file=("some data.bin", data), purpose="user_data")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(data), "some data.bin", "user_data")
    assert (made.status, made.expires_at) == ("processed", None)
    assert (await api.files.retrieve(made.id)).model_dump() == made.model_dump()
    answer = await api.files.content(made.id)
    assert answer.content == data
    assert answer.response.headers["content-disposition"] == "attachment; filename*=UTF-8''some%20data.bin"
    assert (await api.files.delete(made.id)).deleted
    for call in (api.files.retrieve, api.files.content, api.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(made.id)  # type: ignore[operator]


async def test_lists_have_pages_purposes_and_an_order(api: openai.AsyncOpenAI) -> None:
    made = [(await api.files.create(file=(f"{n}.jsonl", LINE), purpose="batch")).id for n in range(5)]
    other = await api.files.create(file=("x.txt", b"x"), purpose="user_data")
    assert [file.id async for file in api.files.list(purpose="batch")] == made[::-1]
    assert [file.id async for file in api.files.list(limit=2, order="asc")] == [*made, other.id]
    assert (await api.files.list(after=made[1])).data[0].id == made[0]
    for wrong in ({"limit": 10_001}, {"after": NEVER}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError):
            await api.files.list(**wrong)  # type: ignore[arg-type]


async def test_a_file_for_a_batch_expires_after_thirty_days_and_other_files_when_asked_to(
    api: openai.AsyncOpenAI,
) -> None:
    usual = await api.files.create(file=("a.jsonl", LINE), purpose="batch")
    assert usual.expires_at == usual.created_at + 30 * 86400
    told: Any = {"anchor": "created_at", "seconds": 3600}
    soon = await api.files.create(file=("a.txt", LINE), purpose="user_data", expires_after=told)
    assert soon.expires_at == soon.created_at + 3600


@pytest.mark.parametrize(
    ("name", "data", "fields", "param", "code"),
    [
        ("a.txt", LINE, {}, "file", "invalid_file_format"),
        ("", LINE, {}, "file", "invalid_value"),
        ("x" * 250 + ".jsonl", LINE, {}, "file", "invalid_value"),
        ("a.jsonl", b"", {}, "file", "empty_file"),
        ("a.jsonl", LINE, {"purpose": "batch_output"}, "purpose", "invalid_value"),
        ("a.jsonl", LINE, {"color": "red"}, "color", "unknown_parameter"),
        ("a.jsonl", LINE, {"expires_after[seconds]": "3600"}, "expires_after[anchor]", "missing_required_parameter"),
        ("a.jsonl", LINE, {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"}, None, None),
        ("a.jsonl", LINE, {"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, None, None),
    ],
)
async def test_a_wrong_upload_is_refused_by_its_field_and_leaves_nothing(
    client: httpx.AsyncClient,
    tables: Database,
    tenant: Key,
    house: House,
    name: str,
    data: bytes,
    fields: dict[str, str],
    param: str | None,
    code: str | None,
) -> None:
    reply = await upload_file(client, tenant, data, name, **fields)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == (param or error["param"]) and error["code"] == (code or "invalid_value")
    await Sweeper(tables, store_of(house)).work()
    assert await num_rows(tables, tenant) == 0
    assert not any(project == tenant.project_id for project, _ in store_of(house).parts())


async def test_a_file_beyond_the_bound_is_refused_while_it_comes(client: httpx.AsyncClient, tenant: Key) -> None:
    reply = await client.post(
        "/v1/uploads",
        json={"filename": "a", "purpose": "vision", "bytes": (8 << 30) + 1, "mime_type": "x/y"},
        headers=tenant.headers,
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "bytes")
    reply = await client.post("/v1/files", content=b"x", headers=tenant.headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_content_type")


async def test_another_projects_file_is_answered_exactly_like_one_that_does_not_exist(
    client: httpx.AsyncClient, api: openai.AsyncOpenAI, tenant: Key, stranger: Key
) -> None:
    own, gone = [await api.files.create(file=("a.jsonl", LINE), purpose="batch") for _ in range(2)]
    await api.files.delete(gone.id)
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answers = set()
        for headers, id in ((stranger.headers, own.id), (tenant.headers, gone.id), (tenant.headers, NEVER)):
            reply = await client.request(method, f"/v1/files/{id}{path}", headers=headers)
            answers.add((reply.status_code, reply.text.replace(id, "ID")))
        assert len(answers) == 1 and next(iter(answers))[0] == 404, answers
    reply = await client.get(f"/v1/files?after={own.id}", headers=stranger.headers)
    assert reply.status_code == 400
    assert (await client.get("/v1/files", headers=stranger.headers)).json()["data"] == []
    assert (await api.files.retrieve(own.id)).id == own.id


async def test_neither_name_nor_content_is_readable_at_rest_and_no_piece_can_be_moved(
    client: httpx.AsyncClient, tables: Database, tenant: Key, house: House
) -> None:
    secret = b"a secret sentence " * 200_000
    made = (await upload_file(client, tenant, secret, "secret-name.jsonl")).json()
    store = store_of(house)
    (part,) = [part for project, part in store.parts() if project == tenant.project_id]
    numbers = store.numbers(tenant.project_id, part)
    assert numbers == list(range(-(-len(secret) // PIECE_BYTES)))
    pieces = [store.read(tenant.project_id, part, number) or b"" for number in numbers]
    assert all(b"secret" not in piece for piece in pieces)
    rows = await all_rows_as_text(tables)
    assert "secret-name" not in rows and b"secret-name".hex() not in rows
    for path in (Path(house.gateway.settings.file_store) / tenant.project_id).rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    content = f"/v1/files/{made['id']}/content"
    store.write(tenant.project_id, part, 0, pieces[1])
    assert (await client.get(content, headers=tenant.headers)).json()["error"]["code"] == "content_unreadable"
    (Path(house.gateway.settings.file_store) / tenant.project_id / part / "0").unlink()
    assert (await client.get(content, headers=tenant.headers)).json()["error"]["code"] == "file_unavailable"
    store.write(tenant.project_id, part, 0, pieces[0])
    assert (await client.get(content, headers=tenant.headers)).content == secret
    store.write(tenant.project_id, part, 1, pieces[1][:-1])
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get(content, headers=tenant.headers)


async def num_rows(tables: Database, tenant: Key) -> int:
    async with tables.acquire() as conn:
        return int(
            await conn.fetchval(
                "SELECT (SELECT count(*) FROM files WHERE project_id = $1) "
                "+ (SELECT count(*) FROM file_parts WHERE project_id = $1) "
                "+ (SELECT count(*) FROM file_uploads WHERE project_id = $1)",
                tenant.project_id,
            )
        )


async def test_the_content_of_deleted_expired_and_forgotten_files_goes(
    client: httpx.AsyncClient, tables: Database, tenant: Key, house: House, cipher: Cipher
) -> None:
    ids = [(await upload_file(client, tenant)).json()["id"] for _ in range(3)]
    assert await num_rows(tables, tenant) == 6
    assert (await client.delete(f"/v1/files/{ids[0]}", headers=tenant.headers)).status_code == 200
    async with tables.acquire() as conn:
        await conn.execute("UPDATE files SET expires_at = now() WHERE id = $1", ids[1])
        sql = "INSERT INTO file_parts (project_id, id, content_key, touched_at) VALUES ($1, 'part_x', 'x', "
        await conn.execute(f"{sql} now() - $2 * interval '1 second')", tenant.project_id, FORGOTTEN_S + 1)
    assert (await client.get(f"/v1/files/{ids[1]}", headers=tenant.headers)).status_code == 404
    assert [file["id"] for file in (await client.get("/v1/files", headers=tenant.headers)).json()["data"]] == ids[2:]
    store = store_of(house)
    store.write(tenant.project_id, "part_x", 0, b"of a request that was killed")
    await Keeper(tables, cipher).work()
    await Sweeper(tables, store).work()
    assert await num_rows(tables, tenant) == 2
    assert len([part for project, part in store.parts() if project == tenant.project_id]) == 1
    assert (await client.get(f"/v1/files/{ids[2]}/content", headers=tenant.headers)).content == LINE
    await drop_content(tables, tenant.project_id)
    await Sweeper(tables, store).work()
    assert await num_rows(tables, tenant) == 0
    assert not any(project == tenant.project_id for project, _ in store.parts())


async def test_deleting_is_in_the_audit_log(
    client: httpx.AsyncClient, operator: httpx.AsyncClient, tenant: Key
) -> None:
    made = (await upload_file(client, tenant)).json()
    await client.delete(f"/v1/files/{made['id']}", headers=tenant.headers)
    log = (await operator.get(f"/audit_logs?resource_ids[]={made['id']}")).json()["data"]
    assert [row["type"] for row in log] == ["file.deleted"]
    assert log[0]["file.deleted"]["before"] == {"id": made["id"], "purpose": "batch", "bytes": len(LINE)}


async def test_a_file_for_a_batch_that_is_too_large_is_refused_and_leaves_nothing(
    client: httpx.AsyncClient, tables: Database, tenant: Key, house: House, full: bool
) -> None:
    if not full:
        pytest.skip("sends 200 MiB: --full")
    reply = await upload_file(client, tenant, bytes(MAX_FILE_BYTES + 1))
    assert (reply.status_code, reply.json()["error"]["param"]) == (413, "file"), reply.text
    await Sweeper(tables, store_of(house)).work()
    assert await num_rows(tables, tenant) == 0
