"""Batches over HTTP: every line once, in the output or the error file; counts and usage agree with the ledger."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from gateway.db.pool import Database
from tests.gateway.batches.jobs import CHAT, Jobs, chat_line, file_of
from tests.gateway.conftest import House
from tests.gateway.limits.fleet import Key, put_limit
from tests.installation.waiting import until

NEVER = "batch_aaaaaaaaaaaaaaaaaaaaaaaa"


async def billed_tokens(tables: Database, project_id: str) -> tuple[int, int, set[str]]:
    """Return the billed prompt tokens, the billed completion tokens and the tiers of the project's rows."""
    sql = """
        SELECT coalesce(sum(prompt_tokens), 0)::bigint AS prompt,
               coalesce(sum(completion_tokens), 0)::bigint AS completion,
               array_agg(DISTINCT service_tier) AS tiers
        FROM ledger WHERE project_id = $1
    """
    async with tables.acquire() as conn:
        row = await conn.fetchrow(sql, project_id)
    assert row is not None
    return row["prompt"], row["completion"], set(row["tiers"] or ())


async def wait_until_billed(tables: Database, tenant: Key, batch: Any) -> None:
    """Wait until the ledger has exactly the usage that the batch reports."""
    wanted = (batch.usage.input_tokens, batch.usage.output_tokens, {"batch"})

    async def agrees() -> bool:
        return await billed_tokens(tables, tenant.project_id) == wanted

    await until(agrees, f"the ledger never came to {wanted}", pause_s=0.05)


async def test_lines_over_models_and_adapters_end_once_each_and_add_up(
    jobs: Jobs, tables: Database, tenant: Key, house: House
) -> None:
    good = [chat_line(f"good-{n}", f"text {n}", seed=n) for n in range(20)]
    bad = [
        chat_line("no-model", model="tiny:nothing"),
        chat_line("too-hot", temperature=9),
        chat_line("streamed", stream=True),
        chat_line("unknown", color="red"),
        {"custom_id": "empty", "method": "POST", "url": CHAT, "body": {}},
    ]
    batch = await jobs.create(file_of([*good[:10], "", *bad, *good[10:]]), metadata={"a": "b"})
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"a": "b"})
    assert batch.expires_at == batch.created_at + 86_400
    ended = await jobs.ended(batch)
    assert ended.status == "completed", ended
    assert (ended.request_counts.total, ended.request_counts.completed, ended.request_counts.failed) == (25, 20, 5)
    done, failed = await jobs.lines(ended.output_file_id), await jobs.lines(ended.error_file_id)
    assert {line["custom_id"] for line in done} == {line["custom_id"] for line in good} and len(done) == 20
    assert {line["custom_id"] for line in failed} == {line["custom_id"] for line in bad} and len(failed) == 5
    assert all(line["error"] is None and line["response"]["status_code"] == 200 for line in done)
    assert all(line["response"]["body"]["service_tier"] == "default" for line in done)
    codes = {line["custom_id"]: line["response"]["body"]["error"]["code"] for line in failed}
    assert codes == {
        "no-model": "model_not_found",
        "too-hot": "invalid_value",
        "streamed": "unsupported_value",
        "unknown": "unknown_parameter",
        "empty": "missing_required_parameter",
    }
    usages = [line["response"]["body"]["usage"] for line in done]
    assert sum(usage["prompt_tokens"] for usage in usages) == ended.usage.input_tokens > 0
    assert sum(usage["completion_tokens"] for usage in usages) == ended.usage.output_tokens > 0
    await wait_until_billed(tables, tenant, ended)
    fifth = next(line for line in done if line["custom_id"] == "good-5")
    body = good[5]["body"]
    same = await jobs.api.chat.completions.create(**body)
    assert fifth["response"]["body"]["choices"][0]["message"]["content"] == same.choices[0].message.content
    output = await jobs.api.files.retrieve(ended.output_file_id)
    assert (output.purpose, output.expires_at - output.created_at) == ("batch_output", 30 * 86_400)


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": ["one", "two"], "max_tokens": 3}),
        ("/v1/embeddings", {"model": "tiny", "input": ["one", "two"]}),
        ("/v1/responses", {"model": "tiny", "input": "one", "max_output_tokens": 16}),
    ],
)
async def test_batches_run_at_every_endpoint_that_they_may_name(
    jobs: Jobs, tables: Database, tenant: Key, endpoint: str, body: dict[str, Any]
) -> None:
    lines = [{"custom_id": str(n), "method": "POST", "url": endpoint, "body": body} for n in range(3)]
    ended = await jobs.run(file_of(lines), endpoint)
    assert (ended.status, ended.request_counts.completed) == ("completed", 3), await jobs.lines(ended.error_file_id)
    for line in await jobs.lines(ended.output_file_id):
        found = line["response"]["body"]
        assert len(found.get("choices") or found.get("data") or [found["output"], found["usage"]]) == 2
        assert endpoint != "/v1/responses" or found["service_tier"] == "default"
    await wait_until_billed(tables, tenant, ended)
    assert ended.error_file_id is None


async def test_a_file_that_is_wrong_fails_the_batch_and_every_line_is_named(jobs: Jobs) -> None:
    lines: list[Any] = [
        chat_line("one"),
        "{not json",
        b'{"custom_id": "\xff"}',
        chat_line("one"),
        chat_line("two") | {"url": "/v1/embeddings"},
        chat_line("three") | {"method": "GET"},
        {"custom_id": "four", "method": "POST", "url": CHAT},
        chat_line("five") | {"more": 1},
        chat_line(""),
        chat_line("six") | {"body": []},
        '{"custom_id": "' + "x" * (1 << 20) + '"}',
        chat_line("seven"),
    ]
    ended = await jobs.run(file_of(lines))
    assert ended.status == "failed" and ended.failed_at and ended.output_file_id is None
    found = [(error.line, error.code, error.param) for error in ended.errors.data]
    assert found == [
        (2, "invalid_json_line", None),
        (3, "invalid_json_line", None),
        (4, "duplicate_custom_id", "custom_id"),
        (5, "url_mismatch", "url"),
        (6, "invalid_method", "method"),
        (7, "missing_required_parameter", "body"),
        (8, "unknown_parameter", "more"),
        (9, "invalid_value", "custom_id"),
        (10, "invalid_value", "body"),
        (11, "line_too_long", None),
    ]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"\n\n\r\n", "failed"),
        (b"\xef\xbb\xbf" + file_of([chat_line("a")]), "completed"),
        (file_of([chat_line("a"), chat_line("b")]).replace(b"\n", b"\r\n")[:-2], "completed"),
        (file_of([chat_line("a\0\u2028b")]), "completed"),
    ],
)
async def test_byte_order_marks_line_ends_and_odd_characters_are_read_and_an_empty_file_fails(
    jobs: Jobs, content: bytes, status: str
) -> None:
    ended = await jobs.run(content)
    assert ended.status == status, ended
    if status == "failed":
        assert ended.errors.data[0].code == "empty_file"
    else:
        ids = {line["custom_id"] for line in await jobs.lines(ended.output_file_id)}
        assert ids in ({"a"}, {"a", "b"}, {"a\0\u2028b"})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_file_id": "file_aaaaaaaaaaaaaaaaaaaaaaaa"}, "input_file_id"),
        ({"endpoint": "/v1/images/generations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"color": "red"}, "color"),
    ],
)
async def test_a_wrong_request_is_refused_by_its_field(
    jobs: Jobs, client: httpx.AsyncClient, tenant: Key, fields: dict[str, Any], param: str
) -> None:
    file = await jobs.api.files.create(file=("lines.jsonl", b"{}"), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    reply = await client.post("/v1/batches", json=body | fields, headers=tenant.headers)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


async def test_another_projects_batch_is_answered_exactly_like_one_that_does_not_exist(
    jobs: Jobs, client: httpx.AsyncClient, tenant: Key, stranger: Key
) -> None:
    batch = await jobs.create(file_of([chat_line("a")]))
    for method, path in (("GET", ""), ("POST", "/cancel")):
        answers = set()
        for headers, id in ((stranger.headers, batch.id), (tenant.headers, NEVER), (tenant.headers, "x")):
            reply = await client.request(method, f"/v1/batches/{id}{path}", headers=headers)
            answers.add((reply.status_code, reply.text.replace(id, "ID")))
        assert len(answers) == 1 and next(iter(answers))[0] == 404, answers
    body = {"input_file_id": batch.input_file_id, "endpoint": CHAT, "completion_window": "24h"}
    reply = await client.post("/v1/batches", json=body, headers=stranger.headers)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input_file_id")
    assert (await client.get("/v1/batches", headers=stranger.headers)).json()["data"] == []
    assert (await client.get(f"/v1/batches?after={batch.id}", headers=stranger.headers)).status_code == 400
    assert [each.id async for each in jobs.api.batches.list(limit=1)] == [batch.id]
    await jobs.ended(batch)


async def test_a_cancelled_batch_keeps_what_was_done_and_bills_nothing_else(
    jobs: Jobs, tables: Database, tenant: Key
) -> None:
    quick = [chat_line(f"quick-{n}") for n in range(4)]
    slow = [chat_line(f"slow-{n}", max_tokens=300, ignore_eos=True) for n in range(40)]
    batch = await jobs.create(file_of([*quick, *slow]))

    async def has_begun() -> bool:
        return (await jobs.api.batches.retrieve(batch.id)).request_counts.completed >= 4

    await until(has_begun, "no line ended", pause_s=0.05)
    cancelling = await jobs.api.batches.cancel(batch.id)
    assert cancelling.status in ("cancelling", "cancelled")
    ended = await jobs.ended(batch)
    assert ended.status == "cancelled" and ended.cancelled_at - cancelling.cancelling_at <= 5
    done, failed = await jobs.lines(ended.output_file_id), await jobs.lines(ended.error_file_id)
    assert len(done) == ended.request_counts.completed and len(done) + len(failed) == 44
    assert len({line["custom_id"] for line in [*done, *failed]}) == 44
    assert all(line["response"] is None and line["error"]["code"] == "batch_cancelled" for line in failed)
    await wait_until_billed(tables, tenant, ended)
    assert (await jobs.api.batches.cancel(batch.id)).status == "cancelled"


async def test_an_expired_batch_keeps_what_was_done(jobs: Jobs, tables: Database, tenant: Key) -> None:
    batch = await jobs.create(
        file_of([chat_line("a"), *(chat_line(f"s{n}", max_tokens=450, ignore_eos=True) for n in range(400))])
    )

    async def has_begun() -> bool:
        return (await jobs.api.batches.retrieve(batch.id)).request_counts.completed >= 1

    await until(has_begun, "no line ended", pause_s=0.05)
    async with tables.acquire() as conn:  # the time is over; another gateway takes the batch
        await conn.execute(
            "UPDATE batches SET expires_at = now(), leased_until = now() - interval '1 s' WHERE id = $1", batch.id
        )
    ended = await jobs.ended(batch)
    assert ended.status == "expired" and ended.expired_at
    failed = await jobs.lines(ended.error_file_id)
    assert {line["error"]["code"] for line in failed} == {"batch_expired"}
    assert len(failed) + len(await jobs.lines(ended.output_file_id)) == 401
    await wait_until_billed(tables, tenant, ended)


async def test_a_batch_that_moves_between_gateways_bills_each_line_once(
    jobs: Jobs, tables: Database, tenant: Key
) -> None:
    """The gateway that ran the batch before goes on for a while without knowing that it lost the batch."""
    batch = await jobs.create(file_of([chat_line(str(n), max_tokens=60, ignore_eos=True) for n in range(40)]))
    for _ in range(4):

        async def is_at_work() -> bool:
            sql = "SELECT count(*) FROM batch_lines WHERE batch_id = $1 AND state = 'running'"
            async with tables.acquire() as conn:
                is_open = await conn.fetchval("SELECT ended_at IS NULL FROM batches WHERE id = $1", batch.id)
                return not is_open or await conn.fetchval(sql, batch.id) > 0

        await until(is_at_work, "nothing ran", pause_s=0.02)
        async with tables.acquire() as conn:
            await conn.execute("UPDATE batches SET leased_until = now() - interval '1 s' WHERE id = $1", batch.id)
    ended = await jobs.ended(batch)
    assert (ended.status, ended.request_counts.completed) == ("completed", 40)
    done = await jobs.lines(ended.output_file_id)
    assert len({line["custom_id"] for line in done}) == len(done) == 40
    await wait_until_billed(tables, tenant, ended)


async def test_a_batch_whose_input_file_is_deleted_reads_it_to_the_end(
    jobs: Jobs, client: httpx.AsyncClient, tables: Database, tenant: Key
) -> None:
    batch = await jobs.create(file_of([chat_line(str(n)) for n in range(5)]))
    await jobs.api.files.delete(batch.input_file_id)
    ended = await jobs.ended(batch)
    assert ended.request_counts.completed == 5
    with pytest.raises(openai.NotFoundError):
        await jobs.api.files.content(batch.input_file_id)


async def test_a_batch_whose_key_is_suspended_says_so_and_goes_on_with_the_key(
    jobs: Jobs, operator: httpx.AsyncClient, tables: Database, tenant: Key
) -> None:
    batch = await jobs.create(file_of([chat_line(str(n)) for n in range(1_000)]))  # more than end before the next lines
    path = f"/projects/{tenant.project_id}/batches/{batch.id}"
    suspend = "UPDATE api_keys SET suspended_at = CASE WHEN $2 THEN now() END WHERE id = $1"
    async with tables.acquire() as conn:
        await conn.execute(suspend, tenant.id, True)
        await conn.execute(
            "UPDATE batches SET gateway = NULL, leased_until = now() - interval '1 s' WHERE id = $1", batch.id
        )
    shown: dict[str, Any] = {}

    async def waits() -> bool:
        nonlocal shown
        shown = (await operator.get(path)).json()
        return shown["waits_for"] is not None

    await until(waits, lambda: f"no reason is shown: {shown}", pause_s=0.1)
    assert (shown["waits_for"]["code"], shown["status"]) == ("api_key_not_usable", "in_progress")
    assert shown["expected_at"] is None
    num_before = shown["completed"]
    async with tables.acquire() as conn:
        await conn.execute(suspend, tenant.id, False)
        await conn.execute("UPDATE batches SET leased_until = now() - interval '1 s' WHERE id = $1", batch.id)

    async def goes_on() -> bool:
        nonlocal shown
        shown = (await operator.get(path)).json()
        return shown["waits_for"] is None and shown["completed"] > num_before

    await until(goes_on, lambda: f"no further line ran, or the reason is shown for ever: {shown}", pause_s=0.1)
    assert (await jobs.ended(await jobs.api.batches.cancel(batch.id))).status == "cancelled"


async def test_a_batch_waits_for_a_daily_limit_and_is_not_counted_by_a_limit_per_minute(
    jobs: Jobs, house: House, tables: Database, tenant: Key
) -> None:
    await put_limit(house.dsn, tenant.limit("requests", "minute", 1))
    await put_limit(house.dsn, tenant.limit("concurrency", "none", 1))
    ended = await jobs.run(file_of([chat_line(str(n)) for n in range(6)]))
    assert (ended.status, ended.request_counts.completed) == ("completed", 6)
    await put_limit(house.dsn, tenant.limit("requests", "day", 9))
    batch = await jobs.create(file_of([chat_line(str(n)) for n in range(6)]))

    async def rests() -> bool:
        nonlocal batch
        batch = await jobs.api.batches.retrieve(batch.id)
        return batch.request_counts.completed >= 3

    await until(rests, lambda: f"too little ran: {batch}", pause_s=0.1)
    await asyncio.sleep(1)  # whatever goes beyond would have come by then
    batch = await jobs.api.batches.retrieve(batch.id)
    assert batch.model_extra is not None
    assert batch.model_extra["waits_for"]["code"] == "insufficient_quota", batch
    assert "day" in batch.model_extra["waits_for"]["message"]
    cancelled = await jobs.ended(await jobs.api.batches.cancel(batch.id))
    assert (cancelled.request_counts.completed, cancelled.request_counts.failed) == (3, 3)
    assert not (cancelled.model_extra or {}).get("waits_for")


async def test_webhooks_are_told_how_batches_end(
    jobs: Jobs, tables: Database, tenant: Key, operator: httpx.AsyncClient
) -> None:
    made = await operator.post(
        "/webhooks", json={"url": "https://example.com/never", "events": ["batch.completed", "batch.failed"]}
    )
    assert made.status_code == 200, made.text
    ended = [await jobs.run(content) for content in (file_of([chat_line("a")]), b"{no")]
    sql = "SELECT body FROM webhook_deliveries WHERE webhook_id = $1 ORDER BY id"
    async with tables.acquire() as conn:
        bodies = [json.loads(row["body"]) for row in await conn.fetch(sql, made.json()["id"])]
    await operator.delete(f"/webhooks/{made.json()['id']}")
    data = [{"id": batch.id, "project_id": tenant.project_id} for batch in ended]
    found = {body["type"]: body["data"] for body in bodies}
    assert found == {"batch.completed": data[0], "batch.failed": data[1]}


async def test_no_more_tokens_are_enqueued_than_a_limit_allows(
    jobs: Jobs, house: House, tables: Database, tenant: Key, operator: httpx.AsyncClient
) -> None:
    """If several batches begin at once, as many are accepted as fit the limit; batches that have ended free
    their tokens again."""
    # So many lines that none of these batches ends while the files of the others are checked, on a slow machine too.
    content = file_of([chat_line(str(n), max_tokens=400, ignore_eos=True) for n in range(200)])
    most = 2 * len(content)
    limits = f"/projects/{tenant.project_id}/limits"
    wanted = {"unit": "enqueued_batch_tokens", "window": "none", "max": most, "model": "tiny"}
    made = (await operator.post(limits, json=wanted)).json()
    assert (await operator.post(limits, json=wanted | {"api_key_id": tenant.id})).status_code == 400
    batches = [await jobs.create(content) for _ in range(4)]

    async def are_checked() -> bool:
        nonlocal batches
        batches = [await jobs.api.batches.retrieve(batch.id) for batch in batches]
        return all(batch.status != "validating" for batch in batches)

    await until(are_checked, "the files were not checked", pause_s=0.05)
    assert sorted(batch.status for batch in batches) == ["failed", "failed", "in_progress", "in_progress"]
    failed = [batch for batch in batches if batch.status == "failed"]
    assert {batch.errors.data[0].code for batch in failed} == {"token_limit_exceeded"}
    (shown,) = (await operator.get(limits)).json()["data"]
    assert 0 < shown["used"] <= most and shown["id"] == made["id"]
    for batch in batches:
        if batch.status == "in_progress":
            await jobs.api.batches.cancel(batch.id)
            await jobs.ended(batch)
    assert (await jobs.ended(await jobs.create(file_of([chat_line("a")])))).status == "completed"
