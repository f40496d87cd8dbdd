"""The content that one project stores is bounded, and a nearly full disk, which the database shares, takes no more."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.content.content_quota import CHECK_S, ContentQuota
from gateway.content.conversations import Conversations, ItemJson
from gateway.content.idempotency import Execution, Idempotency, Reply
from gateway.content.request_log import RequestContents
from gateway.content.stored_chats import Chat, StoredChats
from gateway.content.stored_responses import Response, StoredResponses
from gateway.content.transcript import LoggedMessage, Transcript
from gateway.content.writes import Writes
from gateway.db.content.idempotency import Slot
from gateway.db.content.stored_bytes import stored_bytes
from gateway.db.pool import Database
from gateway.domain.errors import Conflict, QuotaExceeded
from gateway.domain.tenancy.principal import Principal
from gateway.support.cipher import Cipher
from gateway.support.disk import CHECK_S as DISK_CHECK_S
from gateway.support.disk import DiskReserve
from tests.gateway.limits.fleet import Key, make_key
from tests.gateway.model_folder import make_model_folder
from tests.installation.live_gateway import BASE, running_gateways
from tests.patience import PATIENCE_S

EVERYTHING = 1 << 62
"""A number of bytes larger than any disk."""


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def lost() -> Counter:
    return Counter("lost", "x", ["kind"], registry=CollectorRegistry())


@pytest.fixture
async def project(database: Database, dsn: str) -> str:
    """Create a project that may store and logs everything; return its id."""
    key = await make_key(dsn, "acme")
    async with database.acquire() as conn:
        await conn.execute("UPDATE projects SET log_content_days = 1, store_days = 1 WHERE id = $1", key.project_id)
    return key.project_id


def num_lost(lost: Counter, kind: str) -> float:
    return float(lost.labels(kind)._value.get())


async def store_all_kinds(database: Database, cipher: Cipher, lost: Counter, room: ContentQuota, project: str) -> Slot:
    """Store a completion, a log entry and a reply of at least 1,000 bytes each; return the reply's slot."""
    text = "x" * 1000
    writes = Writes(lost)
    chat = Chat(id="chatcmpl-1", model="tiny", metadata={}, messages=text.encode(), reply=text.encode())
    await StoredChats(database, cipher, writes, room).store(project, chat)
    transcript = Transcript("req_1", "/v1/embeddings", "tiny", [LoggedMessage("user", text)])
    RequestContents(database, cipher, writes, room).keep(project, transcript)
    idempotency = Idempotency(database, cipher, writes, room=room)
    slot = Slot(project, b"k" * 32)
    execution = await idempotency.begin(slot, b"f", "req_first")
    assert isinstance(execution, Execution)
    await execution.finish(Reply(200, (), text.encode()))
    await writes.stop()
    return slot


async def test_stored_content_of_every_kind_counts_and_none_is_stored_beyond_the_bound(
    database: Database, dsn: str, cipher: Cipher, lost: Counter, project: str, tmp_path: Path
) -> None:
    clock, disk = Clock(), DiskReserve(tmp_path, 0)
    roomy = ContentQuota(database, 1 << 20, disk, clock)
    await store_all_kinds(database, cipher, lost, roomy, project)
    async with database.acquire() as conn:
        stored = await stored_bytes(conn, project)
        assert 4000 <= stored < 8000
        assert await stored_bytes(conn, (await make_key(dsn, "globex")).project_id) == 0
        full = ContentQuota(database, stored + 99, disk, clock)
        assert await full.take(conn, project, 99)
        assert not await full.take(conn, project, 1), "what is under way counts"
        assert await full.take(conn, "proj_another", 99), "of each project by itself"
        await conn.execute("DELETE FROM stored_chats")
        clock.now_s += CHECK_S
        assert await full.take(conn, project, 1000), "what is gone gives its room back within a minute"


async def test_without_room_a_request_runs_and_its_content_is_counted_as_lost(
    database: Database, cipher: Cipher, lost: Counter, project: str, tmp_path: Path
) -> None:
    room = ContentQuota(database, 100, DiskReserve(tmp_path, 0))
    slot = await store_all_kinds(database, cipher, lost, room, project)
    async with database.acquire() as conn:
        assert await stored_bytes(conn, project) == 0
    assert [num_lost(lost, kind) for kind in ("chat", "content", "reply")] == [1, 1, 1]
    with pytest.raises(Conflict) as refused:
        await Idempotency(database, cipher, Writes(lost), room=room).begin(slot, b"f", "req_second")
    assert refused.value.code == "idempotency_reply_not_kept", "and it never runs twice"


async def test_responses_and_conversations_count_and_are_kept_within_the_bound(
    database: Database, cipher: Cipher, lost: Counter, project: str, tmp_path: Path
) -> None:
    clock, disk = Clock(), DiskReserve(tmp_path, 0)
    text = b"x" * 1000
    caller = Principal("org", project, "key", frozenset({"inference"}))
    parts = {"model": "tiny", "parent_id": None, "input": text, "output": text, "response": text}

    async def keep(room: ContentQuota, number: int) -> bool:
        writes = Writes(lost)
        kept = await StoredResponses(database, cipher, writes, room).store(project, Response(id=f"r{number}", **parts))
        conversations = Conversations(database, cipher, writes, room)
        await conversations.create(caller, f"conv_{number}", {}, [])
        return (
            await conversations.add_answer(caller, f"conv_{number}", [ItemJson("item_1", text)], model="tiny") and kept
        )

    assert await keep(ContentQuota(database, 1 << 20, disk, clock), 1)
    async with database.acquire() as conn:
        stored = await stored_bytes(conn, project)
        assert 4000 <= stored < 8000
        assert not await keep(ContentQuota(database, stored + 99, disk, clock), 2)
        assert await stored_bytes(conn, project) == stored
    assert [num_lost(lost, kind) for kind in ("response", "conversation")] == [1, 1]


async def test_a_disk_that_is_nearly_full_takes_no_content(
    database: Database, cipher: Cipher, lost: Counter, project: str, tmp_path: Path
) -> None:
    room = ContentQuota(database, 1 << 30, DiskReserve(tmp_path, EVERYTHING))
    await store_all_kinds(database, cipher, lost, room, project)
    async with database.acquire() as conn:
        assert await stored_bytes(conn, project) == 0
    with pytest.raises(QuotaExceeded) as refused:
        await room.check(project)
    assert refused.value.code == "storage_full"


def test_the_free_space_is_read_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    folder = tmp_path / "later"
    disk = DiskReserve(folder, EVERYTHING, clock)
    assert not disk.is_low(), "there is no such disk"
    folder.mkdir()
    assert not disk.is_low()
    clock.now_s += DISK_CHECK_S
    assert disk.is_low()
    assert not DiskReserve(folder, 0, clock).is_low()


async def test_a_request_that_wants_to_be_stored_is_refused_before_it_runs(dsn: str, tmp_path: Path) -> None:
    model_dir = make_model_folder(tmp_path / "model")
    key: Key = await make_key(dsn, "acme")
    body = {"model": BASE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with running_gateways(dsn, model_dir, data_dir=tmp_path, max_content_bytes=10) as installed:
        async with (
            await Database.connect(dsn) as database,
            database.acquire() as conn,
            httpx.AsyncClient(base_url=installed.gateway.url, headers=key.headers, timeout=PATIENCE_S) as client,
        ):
            await conn.execute("UPDATE projects SET store_days = 1 WHERE id = $1", key.project_id)
            await conn.execute(
                "INSERT INTO stored_chats VALUES ($1, 'chatcmpl-1', now(), 'tiny', '{}', 'k', '0123', '4567', '8901')",
                key.project_id,
            )

            async def ask(store: bool) -> tuple[int, str | None]:
                reply = await client.post("/v1/chat/completions", json=body | {"store": store})
                return reply.status_code, reply.json().get("error", {}).get("code")

            code: str | None = "store_not_allowed"
            while code == "store_not_allowed":  # until the gateway has heard that the project allows it
                status, code = await ask(store=True)
            assert (status, code) == (429, "content_quota_exceeded")
            assert await ask(store=False) == (200, None)
            assert await conn.fetchval("SELECT count(*) FROM stored_chats") == 1
