"""The pipeline runs a chat and an embedding for a caller without HTTP, and HTTP handlers only call the pipeline."""

from __future__ import annotations

import ast
import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec
import pytest

import gateway.openai
from engine.protocol import SamplingParams, Usage
from gateway.assembly.services import Services, running_services
from gateway.db.limits.limits import set_limit
from gateway.db.pool import Database
from gateway.domain.errors import ClientGone, DeadlinePassed, LimitReached
from gateway.domain.limits.limit import Limit
from gateway.domain.tenancy.principal import Principal
from gateway.pipeline.context import RequestContext
from gateway.pipeline.requests import Conversation, EmbeddingBounds, EmbeddingRequest, FieldNames, TextRequest
from gateway.settings import Settings
from tests.gateway.live import BASE, FakeEngine, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

CHAT = TextRequest(
    prompt=Conversation([{"role": "user", "content": "abc"}]),
    names=FieldNames(prompt="messages"),
    sampling=SamplingParams(max_tokens=0),
    max_tokens=6,
    n=2,
)


@pytest.fixture
async def tenant(dsn: str) -> Tenant:
    return await make_tenant(dsn, "acme", "pirate", "1")


@pytest.fixture
async def services(dsn: str, tenant: Tenant, tmp_path: Path) -> AsyncIterator[Services]:
    model_dir = make_model_folder(tmp_path / "model")
    settings = Settings(data_dir=tmp_path, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir()
    engine = FakeEngine(settings.engine.endpoint, model_dir, "--tokens-per-s", "200")
    try:
        async with running_services(settings, model_dir=model_dir, dsn=dsn) as services:
            async with asyncio.timeout(PATIENCE_S):
                while not services.pools[BASE].ready:  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.02)
            yield services
    finally:
        engine.kill()


@pytest.fixture
async def principal(services: Services, tenant: Tenant) -> Principal:
    return await services.authenticator.authenticate(f"Bearer {tenant.key}", "127.0.0.1")


def context(principal: Principal, model: str = f"{BASE}:pirate", **fields: object) -> RequestContext:
    values = {"request_id": "req_line_1", "endpoint": "/v1/chat/completions", "model": model} | fields
    return RequestContext(principal=principal, **values)  # type: ignore[arg-type]


async def rows(dsn: str, count: int) -> list[asyncpg.Record]:
    """Return the ledger's rows, once there are `count`."""
    conn = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(found := await conn.fetch("SELECT * FROM ledger ORDER BY request_id")) < count:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.05)
        return found
    finally:
        await conn.close()


async def test_a_chat_is_run_read_and_billed(services: Services, principal: Principal, dsn: str) -> None:
    run = await services.pipeline.complete(context(principal), [CHAT])
    assert run.adapter_label == "pirate@1"
    assert run.fingerprint is not None
    (collected,) = await run.collect()
    run.close()
    assert [answer.finish_reason for answer in collected.answers] == ["length", "length"]
    assert all(answer.text for answer in collected.answers)
    assert collected.usage.completion_tokens == 12
    (row,) = await rows(dsn, 1)
    assert (row["request_id"], row["prompt_tokens"], row["completion_tokens"]) == (
        "req_line_1",
        len(run.prompts[0]),
        12,
    )


async def test_several_prompts_are_one_run_with_a_row_each(services: Services, principal: Principal, dsn: str) -> None:
    asked = [
        TextRequest(prompt=text, names=FieldNames(prompt="prompt"), sampling=SamplingParams(max_tokens=0), max_tokens=3)
        for text in ("abc", "de")
    ]
    run = await services.pipeline.complete(context(principal, BASE, endpoint="/v1/completions"), asked)
    usages = {index: item async for index, item in run.merged() if isinstance(item, Usage)}
    run.close()
    assert set(usages) == {0, 1}
    assert [row["request_id"] for row in await rows(dsn, 2)] == ["req_line_1", "req_line_1.1"]


async def test_an_embedding_is_run_and_billed(services: Services, principal: Principal, dsn: str) -> None:
    asked = EmbeddingRequest(prompt="abc", names=FieldNames(prompt="input"), pooling="mean")
    run = await services.pipeline.embed(
        context(principal, endpoint="/v1/embeddings"), [asked], EmbeddingBounds(None, 1000)
    )
    ((vector, usage),) = await run.embed()
    run.close()
    values = struct.unpack(f"<{len(vector) // 4}f", vector)
    assert sum(value * value for value in values) == pytest.approx(1, abs=1e-4)
    assert usage.prompt_tokens == len(run.prompts[0])
    (row,) = await rows(dsn, 1)
    assert (row["request_id"], row["completion_tokens"]) == ("req_line_1", 0)


async def test_a_run_whose_caller_has_left_is_not_begun(services: Services, principal: Principal) -> None:
    with pytest.raises(ClientGone):
        await services.pipeline.complete(context(principal, gone=lambda: True), [CHAT])
    past = asyncio.get_running_loop().time() - 1
    with pytest.raises(DeadlinePassed):
        await services.pipeline.complete(context(principal, deadline=past), [CHAT])


async def test_a_deadline_ends_a_run_and_frees_its_place(services: Services, principal: Principal) -> None:
    deadline = asyncio.get_running_loop().time() + 0.3
    asked = msgspec.structs.replace(CHAT, max_tokens=400, n=1)  # two seconds, by the pace of the engine
    run = None
    with pytest.raises(DeadlinePassed):
        run = await services.pipeline.complete(context(principal, deadline=deadline), [asked])
        await run.collect()
    if run is not None:
        run.close()
    async with asyncio.timeout(PATIENCE_S):
        while any(backend.num_in_flight for backend in services.pools[BASE].backends):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)


async def test_a_closed_run_gives_its_reservation_back(
    services: Services, principal: Principal, database: Database
) -> None:
    limit = Limit("", principal.organization_id, principal.project_id, None, None, "concurrency", "none", 1, True, ())
    one = msgspec.structs.replace(CHAT, n=1)
    async with database.acquire() as conn:
        await set_limit(conn, limit)
    async with asyncio.timeout(PATIENCE_S):  # until the gateway has heard of the limit
        while True:
            first = await services.pipeline.complete(context(principal, request_id="req_a"), [one])
            try:
                second = await services.pipeline.complete(context(principal, request_id="req_b"), [one])
            except LimitReached:
                break
            first.close()
            second.close()
            await asyncio.sleep(0.05)
    first.close()
    first.close()
    (await services.pipeline.complete(context(principal, request_id="req_c"), [one])).close()


ROOM = Path(gateway.openai.__file__).parent
STEPS = {"resolve", "route", "prepare", "prepared_prompt", "admit", "reserve", "generate", "dispatched"}
BELOW = ("gateway.limits", "gateway.metering", "gateway.pipeline.preparation", "gateway.backends.engine")


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOM)))
def test_no_handler_takes_a_step_of_the_pipeline_itself(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in imported if module.startswith(BELOW)]
    called = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert path.name == "models.py" or not called & STEPS
