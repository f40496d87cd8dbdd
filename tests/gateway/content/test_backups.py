"""A backup holds stored chats, responses and conversations with their key, and records which idempotency keys were
used; it holds neither the replies of idempotency keys nor logged content."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.cli import main
from gateway.content.conversations import Conversations, ItemJson
from gateway.content.idempotency import Execution, Idempotency, Reply
from gateway.content.keys import content_keys
from gateway.content.stored_chats import Chat, StoredChat, StoredChats
from gateway.content.stored_responses import Response, StoredResponse, StoredResponses
from gateway.content.writes import Writes
from gateway.db.content.idempotency import Slot
from gateway.db.content.request_contents import insert_content
from gateway.db.files.files import drop_old_files
from gateway.db.pool import Database
from gateway.domain.errors import Conflict
from gateway.domain.tenancy.principal import Principal
from gateway.files.content import FileContent
from gateway.files.service import Files
from gateway.files.stores import open_pieces
from gateway.support.cipher import Cipher
from tests.gateway.limits.fleet import make_key

REPLY = Reply(200, (), b"what was answered")
CHAT = Chat(id="chatcmpl-1", model="tiny", metadata={"a": "b"}, messages=b"[]", reply=b'{"id":"chatcmpl-1"}')

RESPONSE = Response(id="resp_1", model="tiny", parent_id=None, input=b"[]", output=b"[]", response=b"{}")
CONVERSATION = "conv_1"


FILE = b"what a file holds" * 100_000


def files_of(database: Database, data_dir: Path) -> Files:
    cipher = Cipher(content_keys(None, data_dir / "content.key"))
    return Files(database, FileContent(database, open_pieces(str(data_dir / "files")), cipher), cipher)


async def store_file(files: Files, project_id: str, name: str) -> str:
    part = await files.content.begin(project_id)
    await part.write(FILE)
    await part.flush()
    return (await files.make(project_id, part, name=name, purpose="user_data", keep_seconds=None)).id


def stores_over(database: Database, data_dir: Path) -> tuple[Idempotency, StoredChats, StoredResponses, Conversations]:
    cipher = Cipher(content_keys(None, data_dir / "content.key"))
    writes = Writes(Counter("lost", "x", ["kind"], registry=CollectorRegistry()))
    return (
        Idempotency(database, cipher, writes),
        StoredChats(database, cipher, writes),
        StoredResponses(database, cipher, writes),
        Conversations(database, cipher, writes),
    )


async def test_a_restored_installation_reads_chats_and_runs_no_key_again(
    dsn: str, empty_dsn: str, tmp_path: Path
) -> None:
    here, there, backup = tmp_path / "here", tmp_path / "there", tmp_path / "backup"
    key = await make_key(dsn, "acme")
    project_id = key.project_id
    principal = Principal(key.organization_id, project_id, key.id, frozenset())
    slot = Slot(project_id, b"k" * 32)
    async with await Database.connect(dsn) as database:
        idempotency, chats, responses, conversations = stores_over(database, here)
        async with database.acquire() as conn:
            await conn.execute("UPDATE projects SET store_days = 1, log_content_days = 1 WHERE id = $1", project_id)
            await insert_content(conn, project_id, "req_first", content_key="k", sealed=b"what was said")
            assert await conn.fetchval("SELECT count(*) FROM request_contents") == 1
        await chats.store(project_id, CHAT)
        assert await responses.store(project_id, RESPONSE)
        assert await conversations.create(principal, CONVERSATION, {"a": "b"}, [ItemJson("msg_1", b"{}")])
        files = files_of(database, here)
        file, deleted = [await store_file(files, project_id, name) for name in ("a.txt", "b.txt")]
        async with database.acquire() as conn:
            await conn.execute("UPDATE files SET removed_at = now() WHERE id = $1", deleted)
            assert await drop_old_files(conn) == 1
        execution = await idempotency.begin(slot, b"f", "req_first")
        assert isinstance(execution, Execution)
        await execution.finish(REPLY)
        again = await idempotency.begin(slot, b"f", "req_second")
        assert isinstance(again, Reply) and again.body == REPLY.body
    for argv, data_dir, url in ((["backup"], here, dsn), (["restore"], there, empty_dsn)):
        environ = {"LORIKEET_DATA_DIR": str(data_dir), "DATABASE_URL": url}
        assert await asyncio.to_thread(main, [*argv, str(backup)], environ) == 0
    assert (there / "content.key").read_bytes() == (here / "content.key").read_bytes()
    async with await Database.connect(empty_dsn) as database:
        idempotency, chats, responses, conversations = stores_over(database, there)
        assert await chats.get(principal, CHAT.id) == StoredChat(CHAT.id, {"a": "b"}, CHAT.reply)
        assert await responses.get(principal, RESPONSE.id) == StoredResponse(b"[]", b"{}")
        assert await conversations.items(principal, CONVERSATION) == [ItemJson("msg_1", b"{}")]
        files = files_of(database, there)
        assert b"".join([piece async for piece in files.read(project_id, file)]) == FILE
        restored = (there / "files" / project_id).iterdir()
        assert len(list(restored)) == 1, "what the database does not name stays in the backup"
        with pytest.raises(Conflict) as refused:
            await idempotency.begin(slot, b"f", "req_third")
        assert (refused.value.code, "req_first" in str(refused.value)) == ("idempotency_reply_lost", True)
        async with database.acquire() as conn:
            assert await conn.fetchval("SELECT count(*) FROM kept_replies") == 0
            assert await conn.fetchval("SELECT count(*) FROM request_contents") == 0
