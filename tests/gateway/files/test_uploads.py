"""Uploads leave a whole file or none, whatever parts come in whatever order, are cut off, repeated or expire."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.db.files.uploads import drop_old_uploads
from gateway.db.pool import Database
from gateway.domain.batches.line import MAX_FILE_BYTES
from gateway.files.sweeper import Sweeper
from gateway.files.uploads import MAX_PENDING
from tests.gateway.conftest import House
from tests.gateway.files.test_files import num_rows, store_of
from tests.gateway.limits.fleet import Key

NEVER = "upload_aaaaaaaaaaaaaaaaaaaaaaaa"


async def begin_upload(client: httpx.AsyncClient, tenant: Key, num_bytes: int, **fields: Any) -> dict[str, Any]:
    body = {"filename": "a.jsonl", "purpose": "batch", "bytes": num_bytes, "mime_type": "text/jsonl"} | fields
    reply = await client.post("/v1/uploads", json=body, headers=tenant.headers)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def add_part(client: httpx.AsyncClient, tenant: Key, upload: str, data: bytes) -> httpx.Response:
    return await client.post(f"/v1/uploads/{upload}/parts", files={"data": ("blob", data)}, headers=tenant.headers)


async def end_upload(client: httpx.AsyncClient, tenant: Key, upload: str, verb: str, **body: Any) -> httpx.Response:
    return await client.post(f"/v1/uploads/{upload}/{verb}", json=body, headers=tenant.headers)


def code_of(reply: httpx.Response) -> tuple[int, str | None, str | None]:
    error = reply.json()["error"]
    return reply.status_code, error["param"], error["code"]


async def test_the_clients_own_helper_uploads_a_file_in_parts(api: openai.AsyncOpenAI, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(300_000)
    (tmp_path / "big.bin").write_bytes(data)
    done = await api.uploads.upload_file_chunked(
        file=tmp_path / "big.bin",
        mime_type="application/octet-stream",
        purpose="user_data",  # type: ignore[arg-type]
        part_size=100_001,
        md5=hashlib.md5(data, usedforsecurity=False).hexdigest(),
    )
    assert done.status == "completed" and done.file is not None
    assert (done.file.bytes, done.file.filename) == (len(data), "big.bin")
    assert (await api.files.content(done.file.id)).content == data


@pytest.mark.parametrize("seed", range(4))
async def test_parts_in_any_order_make_the_file_that_the_client_names(
    client: httpx.AsyncClient, tenant: Key, tables: Database, house: House, seed: int
) -> None:
    """Parts are random, some sent twice, some never used; wrong completions before the right one change nothing."""
    chance = random.Random(seed)
    pieces = [chance.randbytes(chance.randrange(1, 50_000)) for _ in range(chance.randrange(1, 6))]
    whole = b"".join(pieces)
    upload = (await begin_upload(client, tenant, len(whole)))["id"]
    places = [*chance.sample(range(len(pieces)), len(pieces)), 0]
    sent = [(place, (await add_part(client, tenant, upload, pieces[place])).json()["id"]) for place in places]
    order = [next(id for place, id in chance.sample(sent, len(sent)) if place == index) for index in range(len(pieces))]
    md5 = hashlib.md5(whole, usedforsecurity=False).hexdigest()
    for wrong, param in (
        ({"part_ids": [*order, order[0]]}, "part_ids"),
        ({"part_ids": [*order[:-1], "part_x"]}, f"part_ids[{len(order) - 1}]"),
        ({"part_ids": [*order, sent[-1][1] if sent[-1][1] not in order else sent[0][1]]}, "part_ids"),
        ({"part_ids": order, "md5": "0" * 32}, "md5"),
        ({"part_ids": []}, "part_ids"),
    ):
        assert code_of(await end_upload(client, tenant, upload, "complete", **wrong))[:2] == (400, param), wrong
    done = await end_upload(client, tenant, upload, "complete", part_ids=order, md5=md5.upper())
    assert (done.status_code, done.json()["status"]) == (200, "completed"), done.text
    file = done.json()["file"]["id"]
    assert (await client.get(f"/v1/files/{file}/content", headers=tenant.headers)).content == whole
    again = await end_upload(client, tenant, upload, "complete", part_ids=order, md5=md5)
    assert again.json() == done.json()
    for reply in (
        await end_upload(client, tenant, upload, "cancel"),
        await add_part(client, tenant, upload, b"x"),
    ):
        assert code_of(reply) == (400, "upload_id", "upload_completed")
    await Sweeper(tables, store_of(house)).work()
    assert await num_rows(tables, tenant) == 2 + len(order), "the file, its parts, the upload"


async def test_a_cancelled_and_an_expired_upload_leave_nothing(
    client: httpx.AsyncClient, tenant: Key, tables: Database, house: House
) -> None:
    uploads = [(await begin_upload(client, tenant, 2))["id"] for _ in range(2)]
    parts = [(await add_part(client, tenant, upload, b"xy")).json()["id"] for upload in uploads]
    for _ in range(2):
        assert (await end_upload(client, tenant, uploads[0], "cancel")).json()["status"] == "cancelled"
    async with tables.acquire() as conn:
        await conn.execute("UPDATE file_uploads SET expires_at = now() WHERE id = $1", uploads[1])
    for upload, part, state in zip(uploads, parts, ("cancelled", "expired"), strict=True):
        for reply in (
            await add_part(client, tenant, upload, b"x"),
            await end_upload(client, tenant, upload, "complete", part_ids=[part]),
        ):
            assert code_of(reply) == (400, "upload_id", f"upload_{state}")
    async with tables.acquire() as conn:
        await drop_old_uploads(conn)
        await conn.execute(
            "UPDATE file_uploads SET expires_at = now() - interval '2 days' WHERE project_id = $1", tenant.project_id
        )
        await drop_old_uploads(conn)
    await Sweeper(tables, store_of(house)).work()
    assert await num_rows(tables, tenant) == 0


async def test_another_projects_upload_is_answered_like_one_that_does_not_exist(
    client: httpx.AsyncClient, tenant: Key, stranger: Key
) -> None:
    upload = (await begin_upload(client, tenant, 2))["id"]
    part = (await add_part(client, tenant, upload, b"xy")).json()["id"]
    for key, id in ((stranger, upload), (tenant, NEVER), (tenant, "x")):
        for reply in (
            await add_part(client, key, id, b"xy"),
            await end_upload(client, key, id, "complete", part_ids=[part]),
            await end_upload(client, key, id, "cancel"),
        ):
            assert code_of(reply) == (404, "upload_id", "not_found")
    own = (await begin_upload(client, stranger, 2))["id"]
    assert code_of(await end_upload(client, stranger, own, "complete", part_ids=[part]))[:2] == (400, "part_ids[0]")


async def test_a_project_has_a_bounded_number_of_open_uploads(
    client: httpx.AsyncClient, tenant: Key, tables: Database
) -> None:
    upload = (await begin_upload(client, tenant, 1))["id"]
    sql = """
        INSERT INTO file_uploads (project_id, id, expires_at, purpose, num_bytes, content_key, sealed_name)
        SELECT project_id, id || n, expires_at, purpose, num_bytes, content_key, sealed_name
        FROM file_uploads, generate_series(1, $2) n WHERE id = $1
    """
    async with tables.acquire() as conn:
        await conn.execute(sql, upload, MAX_PENDING - 2)
    await begin_upload(client, tenant, 1)
    body = {"filename": "a.jsonl", "purpose": "batch", "bytes": 1, "mime_type": "x/y"}
    reply = await client.post("/v1/uploads", json=body, headers=tenant.headers)
    assert code_of(reply) == (429, None, "too_many_uploads")


async def test_an_upload_for_a_batch_is_no_larger_than_the_input_of_a_batch(
    client: httpx.AsyncClient, tenant: Key
) -> None:
    await begin_upload(client, tenant, MAX_FILE_BYTES)
    await begin_upload(client, tenant, MAX_FILE_BYTES + 1, purpose="user_data")
    body = {"filename": "a.jsonl", "purpose": "batch", "bytes": MAX_FILE_BYTES + 1, "mime_type": "text/jsonl"}
    reply = await client.post("/v1/uploads", json=body, headers=tenant.headers)
    assert code_of(reply) == (413, "bytes", "request_too_large")
