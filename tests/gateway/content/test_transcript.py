"""Logged content is bounded both ways, says where it was cut, and shows no half of a redacted text; failed writes
are counted."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.backends.generation import Piece
from gateway.content.request_log import RequestContents
from gateway.content.transcript import (
    BYTES_PER_CHAR,
    MAX_LOGGED_BYTES,
    MAX_TRANSCRIPT_CHARS,
    Content,
    LoggedCall,
    LoggedMessage,
    Transcript,
)
from gateway.content.writes import Writes
from gateway.db.pool import Database
from gateway.pipeline.run import _log_pieces
from gateway.support.cipher import Cipher
from tests.gateway.limits.fleet import Key, make_key


def transcript(*asked: LoggedMessage) -> Transcript:
    return Transcript("req_1", "/v1/chat/completions", "tiny", asked)


def num_bytes(content: Content) -> tuple[int, int]:
    """Return the numbers of bytes of text in the input and in the output."""

    def size(content: str, calls: list[LoggedCall]) -> int:
        return len(content.encode()) + sum(len(f"{call.name}{call.arguments}".encode()) for call in calls)

    asked = sum(size(each.content, list(each.tool_calls)) for each in content.input)
    return asked, sum(size(each.content, list(each.tool_calls)) for each in content.output)


def test_content_that_fits_is_logged_whole() -> None:
    request = transcript(LoggedMessage("user", "hello"), LoggedMessage("user", "there"))
    for index, text in ((1, "b"), (0, "a"), (1, "c")):
        request.add(index, text)
    request.add_call(1, "look", "{")
    request.add_call(1, None, "}")
    request.end(1, "stop")
    content = request.content()
    assert [each.content for each in content.input] == ["hello", "there"]
    shown = [(each.index, each.content, each.tool_calls, each.finish_reason) for each in content.output]
    assert shown == [(0, "a", [], None), (1, "bc", [LoggedCall("look", "{}")], "stop")]
    assert (content.input_truncated, content.output_truncated) == (False, False)


def test_reasoning_that_a_server_tells_apart_is_logged_before_the_text() -> None:
    request = transcript(LoggedMessage("user", "hello"))
    _log_pieces(request, [Piece(0, "", reasoning="Why "), Piece(0, "Four.", reasoning="ann@example.com? ")], 1)
    assert [(each.index, each.content) for each in request.content().output] == [(1, "Why [email]? Four.")]


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_content_beyond_the_bound_is_cut_and_says_so(letter: str) -> None:
    request = transcript(
        LoggedMessage("user", "first"), LoggedMessage("user", letter * 70_000), LoggedMessage("user", "last")
    )
    for _ in range(700):
        request.add(0, letter * 100)
    content = request.content()
    assert (content.input_truncated, content.output_truncated) == (True, True)
    assert content.input[0].content == "first"
    for size in num_bytes(content):
        assert MAX_LOGGED_BYTES - 200 < size <= MAX_LOGGED_BYTES


def test_the_bound_counts_bytes_after_redaction() -> None:
    """A text that is redacted to little leaves room for the text that follows."""
    addresses = ("someone.with.a.long.name@a.long.domain.example " * 2000)[:94_000]
    content = transcript(LoggedMessage("user", addresses), LoggedMessage("user", "the end")).content()
    assert [each.content for each in content.input][1:] == ["the end"]
    assert not content.input_truncated


@pytest.mark.parametrize("secret", ["4111 1111 1111 1111", "bob@somewhere.example", "sk-lk-" + "aB3" * 12])
def test_no_half_of_a_secret_is_left_where_reading_ended(secret: str) -> None:
    """Reading may end anywhere in the secret. So much text before the secret is redacted that the rest of what was read
    fits the bound."""
    filler = ("someone.with.a.long.name@a.long.domain.example " * 3000)[: MAX_TRANSCRIPT_CHARS - 2000]
    for num_more in range(1940, 1990, 6):
        text = filler + "." * num_more + f" {secret} and more" + "." * 100
        request = transcript()
        request.add(0, text)
        content = request.content() if num_more % 4 else transcript(LoggedMessage("user", text)).content()
        (shown,) = [each.content for each in (*content.input, *content.output)]
        assert content.input_truncated or content.output_truncated
        assert shown.startswith("[email] [email]") and secret[:4] not in shown


def test_memory_is_bounded_however_many_and_long_the_messages_are() -> None:
    for asked in (
        [LoggedMessage("user", "")] * 100_000,
        [LoggedMessage("user", "x" * 1000)] * 1000,
        [LoggedMessage("user", "x" * (4 << 20))],
    ):
        request = transcript(*asked)
        for index in range(1000):
            request.add(index, "x" * 1000)
            request.add_call(index, "f", "x" * 1000)
        assert request.num_bytes <= BYTES_PER_CHAR * 2 * MAX_TRANSCRIPT_CHARS
        assert len(msgspec.json.encode(request.content())) < 12 * MAX_LOGGED_BYTES


@pytest.fixture
async def project(database: Database, dsn: str) -> Key:
    key = await make_key(dsn, "acme")
    async with database.acquire() as conn:
        await conn.execute("UPDATE projects SET log_content_days = 1 WHERE id = $1", key.project_id)
    return key


async def test_content_beyond_the_queue_is_counted_as_lost_and_the_rest_is_written(
    database: Database, project: Key, cipher: Cipher
) -> None:
    registry = CollectorRegistry()
    writes = Writes(
        Counter("lost", "x", ["kind"], registry=registry),
        max_bytes=3 * transcript(LoggedMessage("user", "x")).num_bytes,
    )
    contents = RequestContents(database, cipher, writes)
    for number in range(5):
        contents.keep(
            project.project_id, Transcript(f"req_{number}", "/v1/embeddings", "tiny", [LoggedMessage("user", "x")])
        )
    await asyncio.sleep(0)
    assert registry.get_sample_value("lost_total", {"kind": "content"}) == 2
    await writes.stop()
    async with database.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM request_contents") == 3
        found = await contents.read(conn, project.project_id, "req_0")
        assert found is not None and found.content.input == [LoggedMessage("user", "x", [])]


async def test_a_request_that_ends_after_logging_was_turned_off_is_not_written(
    database: Database, project: Key, cipher: Cipher
) -> None:
    writes = Writes(Counter("lost", "x", ["kind"], registry=CollectorRegistry()))
    async with database.acquire() as conn:
        await conn.execute("UPDATE projects SET log_content_days = 0")
    RequestContents(database, cipher, writes).keep(project.project_id, transcript(LoggedMessage("user", "x")))
    await writes.stop()
    async with database.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM request_contents") == 0
