"""Makes batches of a tenant from lines, waits for them, and reads their results, for tests of batches."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
import openai

from tests.installation.waiting import until

CHAT = "/v1/chat/completions"
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
"""The statuses of batches that have not ended."""


def chat_line(custom_id: str, text: str = "hello", **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body | fields}


def file_of(lines: Iterable[dict[str, Any] | str | bytes]) -> bytes:
    """Return the content of an input file. Lines that are text or bytes are used unchanged."""
    texts = (json.dumps(line) if isinstance(line, dict) else line for line in lines)
    return b"".join((text if isinstance(text, bytes) else text.encode()) + b"\n" for text in texts)


class Jobs:
    """Requests about the batches of one tenant."""

    def __init__(self, api: openai.AsyncOpenAI) -> None:
        self.api = api

    async def create(self, content: bytes, endpoint: str = CHAT, **fields: Any) -> Any:
        """Store a file and begin a batch of it."""
        file = await self.api.files.create(file=("lines.jsonl", content), purpose="batch")
        asked: dict[str, Any] = {"input_file_id": file.id, "endpoint": endpoint, "completion_window": "24h"}
        return await self.api.batches.create(**asked | fields)

    async def ended(self, batch: Any) -> Any:
        """Wait until a batch has ended, and return it."""
        found = batch

        async def has_ended() -> bool:
            nonlocal found
            found = await self.api.batches.retrieve(batch.id)
            return found.status in ("completed", "failed", "expired", "cancelled")

        await until(has_ended, lambda: f"the batch did not end: {found}", pause_s=0.1)
        return found

    async def run(self, content: bytes, endpoint: str = CHAT, **fields: Any) -> Any:
        """Create a batch of a file's content, wait until it has ended, and return it."""
        return await self.ended(await self.create(content, endpoint, **fields))

    async def lines(self, file_id: str | None) -> list[dict[str, Any]]:
        """Return the lines of an output or error file; none where the batch has no such file."""
        if file_id is None:
            return []
        content = await self.api.files.content(file_id)
        return [json.loads(line) for line in content.text.splitlines()]


async def begin_batch(client: httpx.AsyncClient, content: bytes, endpoint: str = CHAT) -> str:
    """Store a file and begin a batch of it; return its id."""
    form = {"file": ("lines.jsonl", content)}
    file = (await client.post("/v1/files", files=form, data={"purpose": "batch"})).json()
    asked = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"}
    return str((await client.post("/v1/batches", json=asked)).json()["id"])


async def read_batch(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get(f"/v1/batches/{id}")).json()
    return found


async def cancel_and_wait(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """Cancel a batch, wait until it has ended, and return it."""
    await client.post(f"/v1/batches/{id}/cancel")

    async def has_ended() -> dict[str, Any] | None:
        batch = await read_batch(client, id)
        return None if batch["status"] in OPEN else batch

    return await until(has_ended, f"{id} was not cancelled", pause_s=0.05)
