"""`lorikeet response` and `lorikeet conversation` read and delete stored objects with a project's key."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import httpx
import pytest

from gateway.cli import main
from tests.gateway.conftest import House
from tests.gateway.limits.fleet import make_key
from tests.patience import PATIENCE_S


async def storing_key(dsn: str) -> str:
    key = await make_key(dsn, "reads-what-is-stored")
    conn = await asyncpg.connect(dsn)
    await conn.execute("UPDATE projects SET store_days = 1 WHERE id = $1", key.project_id)
    await conn.close()
    return key.secret


def test_stored_responses_and_conversations_are_read_and_deleted(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    key = asyncio.run(storing_key(house.dsn))
    environ = {"LORIKEET_URL": house.url, "LORIKEET_API_KEY": key}

    def lorikeet(*words: str) -> str:
        assert main([*words], environ) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    with httpx.Client(base_url=house.url, headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as http:
        talk = http.post("/v1/conversations", json={"metadata": {"topic": "birds"}}).json()["id"]
        asked = {"model": "tiny", "input": "hello there", "max_output_tokens": 5, "conversation": talk}
        said = http.post("/v1/responses", json=asked).json()
    text = said["output"][0]["content"][0]["text"]
    assert lorikeet("response", "show", said["id"]).strip() == f"{said['id']}: incomplete, tiny\n{text}".strip()
    assert json.loads(lorikeet("response", "show", said["id"], "--json")) == said
    assert "hello there" in lorikeet("response", "items", said["id"])
    assert "topic: birds" in lorikeet("conversation", "show", talk)
    items = json.loads(lorikeet("conversation", "items", talk, "--json"))
    assert [item["role"] for item in items] == ["user", "assistant"]
    assert len(json.loads(lorikeet("conversation", "items", talk, "--limit", "1", "--json"))) == 1
    assert lorikeet("response", "delete", said["id"]) == f"deleted {said['id']}\n"
    assert lorikeet("conversation", "delete", talk) == f"deleted {talk}\n"
    for words in (("response", "show", said["id"]), ("conversation", "show", talk), ("response", "show", "../keys")):
        assert main([*words], environ) == 1
