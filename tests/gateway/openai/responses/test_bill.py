"""The same seeded request as a chat, and as a response whole, streamed and in the background: equal usage and bills."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx

from tests.gateway.conftest import House
from tests.gateway.limits.fleet import make_key
from tests.gateway.openai.responses.laws import check, read
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

ROWS = """
    SELECT model, adapter_class, service_tier, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens,
           finish_reason, cost_nanos, list_cost_nanos
    FROM usage_attempts WHERE project_id = $1
"""
"""A query for the columns of a bill."""


async def test_chat_whole_streamed_and_in_the_background_are_billed_alike(house: House) -> None:
    key = await make_key(house.dsn, "billed-alike")
    await store(house.dsn, key.project_id)
    seeded: dict[str, Any] = {"model": "tiny", "seed": 7, "temperature": 0.7, "service_tier": "flex", "stop": ["zz"]}
    chat = {"messages": [{"role": "user", "content": "what does this cost?"}], "max_completion_tokens": 20} | seeded
    response = {"input": "what does this cost?", "max_output_tokens": 20} | seeded
    async with httpx.AsyncClient(base_url=house.url, headers=key.headers, timeout=PATIENCE_S) as http:
        await http.post("/v1/chat/completions", json=chat)  # so that all that follow find their prompt in the cache
        completed = (await http.post("/v1/chat/completions", json=chat)).json()
        whole = (await http.post("/v1/responses", json=response)).json()
        streamed = check(read((await http.post("/v1/responses", json=response | {"stream": True})).text))
        in_background = {"stream": True, "background": True, "store": True}
        behind = check(read((await http.post("/v1/responses", json=response | in_background)).text))
    usage = completed["usage"]
    told = {
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    assert whole["usage"] == streamed["usage"] == behind["usage"] == told and usage["completion_tokens"] == 20
    said = completed["choices"][0]["message"]["content"]
    assert [each["output"][0]["content"][0]["text"] for each in (whole, streamed, behind)] == [said] * 3
    rows = await rows_of(house.dsn, key.project_id, 5)
    cached = {row["cached_tokens"] for row in rows}
    assert len([row for row in rows if row["cached_tokens"] == max(cached)]) == 4
    assert len({tuple(row.items()) for row in rows if row["cached_tokens"] == max(cached)}) == 1


async def store(dsn: str, project_id: str) -> None:
    """Allow a project to store responses."""
    conn = await asyncpg.connect(dsn)
    await conn.execute("UPDATE projects SET store_days = 1 WHERE id = $1", project_id)
    await conn.close()


async def rows_of(dsn: str, project_id: str, count: int) -> list[Any]:
    conn = await asyncpg.connect(dsn)

    async def are_there() -> bool:
        return len(await conn.fetch(ROWS, project_id)) >= count

    try:
        await until(are_there, f"fewer than {count} rows came", pause_s=0.05)
        return await conn.fetch(ROWS, project_id)
    finally:
        await conn.close()
