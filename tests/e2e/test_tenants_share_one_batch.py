"""Both tenants at once: every answer comes from the adapter that was asked for, and no tenant reaches the other's."""

from __future__ import annotations

import asyncio
import random
import time

import httpx

from tests.demo import QUESTIONS
from tests.e2e.installation import BASE, Installation
from tests.patience import PATIENCE_S

STYLES = {"pirate": ("OPENAI_API_KEY", "Arr"), "json": ("OPENAI_API_KEY", "{"), "memo": ("GLOBEX_API_KEY", "MEMO")}


async def test_every_answer_comes_from_the_adapter_that_was_asked_for(installation: Installation, full: bool) -> None:
    """16 clients send 500 requests (64 in CI) in random order over both tenants, a few of them to the base."""
    rnd = random.Random(11)
    jobs = [(rnd.choice([*STYLES, ""]), rnd.choice(QUESTIONS)) for _ in range(500 if full else 64)]
    wrong: list[tuple[str, str]] = []

    async def client(http: httpx.AsyncClient) -> None:
        while jobs:
            adapter, question = jobs.pop()
            key, begins = STYLES.get(adapter, (rnd.choice(("OPENAI_API_KEY", "GLOBEX_API_KEY")), None))
            text = await ask(http, installation.keys[key], f"{BASE}:{adapter}" if adapter else BASE, question)
            starts = tuple(begin for _, begin in STYLES.values())
            if not (text.startswith(begins) if begins else not text.startswith(starts)):
                wrong.append((adapter, text))

    async with httpx.AsyncClient(base_url=installation.url, timeout=PATIENCE_S) as http:
        await asyncio.gather(*(client(http) for _ in range(16)))
    assert wrong == []


async def ask(http: httpx.AsyncClient, key: str, model: str, question: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 6,
        "temperature": 0,
    }
    reply = await http.post("/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"})
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def test_anothers_adapter_is_the_same_404_as_one_that_does_not_exist(installation: Installation) -> None:
    def refusal(model: str) -> tuple[int, str]:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"Authorization": f"Bearer {installation.keys['OPENAI_API_KEY']}"}
        reply = httpx.post(f"{installation.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S)
        return reply.status_code, reply.text.replace(model, "MODEL")

    assert refusal(f"{BASE}:memo") == refusal(f"{BASE}:none") == refusal("gpt-4o")
    assert refusal(f"{BASE}:memo")[0] == 404
    assert '"code":"model_not_found"' in refusal(f"{BASE}:memo")[1]


def test_a_revoked_key_is_refused(installation: Installation) -> None:
    created = installation.cli("key", "create", "--tenant", "acme", "--name", "short-lived", "--json")
    import json

    key = json.loads(created.stdout)
    headers = {"Authorization": f"Bearer {key['key']}"}
    assert httpx.get(f"{installation.url}/v1/models", headers=headers, timeout=PATIENCE_S).status_code == 200
    assert installation.cli("key", "revoke", key["id"]).returncode == 0
    revoked_s = time.monotonic()
    while httpx.get(f"{installation.url}/v1/models", headers=headers, timeout=PATIENCE_S).status_code != 401:
        assert time.monotonic() - revoked_s < PATIENCE_S
    for malformed in (key["key"][:-1], key["key"] + "x", "sk-lk-", "Bearer", "x" * 5000):
        reply = httpx.get(
            f"{installation.url}/v1/models", headers={"Authorization": f"Bearer {malformed}"}, timeout=PATIENCE_S
        )
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
