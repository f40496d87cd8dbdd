"""The condition of a server tells its watchers whenever the server may be picked again."""

from __future__ import annotations

import asyncio
import ssl
import time

import msgspec

from gateway.backends.foreign.condition import MAX_FALSE_USAGES, ServerCondition
from gateway.backends.foreign.driver import Pooled
from gateway.backends.foreign.drivers import driver_of
from gateway.backends.foreign.model import OpaqueModel
from gateway.backends.foreign.server import Proof, Reply, Server
from gateway.domain.pools.foreign_settings import MAX_LEN
from gateway.domain.routing.breaker import CONSECUTIVE
from tests.gateway.backends.foreign.backends import FAST, NAME, anywhere, until
from tests.gateway.backends.foreign.fake import fake_server
from tests.patience import PATIENCE_S


class _ServerOfAnySize(Server):
    """A fake llama.cpp server with absurdly large properties."""

    async def ask_whole(
        self, method: str, path: str, body: bytes = b"", *, within_s: float, proof: Proof | None = None
    ) -> Reply:
        return Reply(200, b'{"default_generation_settings": {"n_ctx": 9000000000}, "total_slots": 9000000000}')


async def test_sizes_that_a_server_claims_are_bounded() -> None:
    pooled = Pooled(OpaqueModel("f" * 64, FAST), FAST, has_tokenizer=False)
    props = _ServerOfAnySize("http://127.0.0.1", anywhere, ssl.create_default_context, connect_s=5.0)
    seen = await driver_of("llamacpp", pooled).inspect(props, 5.0)
    assert (seen.max_model_len, seen.max_running) == (MAX_LEN, MAX_LEN)
    async with fake_server() as fake:
        fake.models = [{"id": "theirs", "max_model_len": 9_000_000_000}]
        server = Server(fake.url, anywhere, ssl.create_default_context, connect_s=5.0)
        assert (await driver_of("openai", pooled).inspect(server, 5.0)).max_model_len == MAX_LEN
        server.close()


async def test_watchers_hear_when_a_distrusted_server_may_be_picked_again() -> None:
    settings = msgspec.structs.replace(FAST, health_seconds=600.0)
    pooled = Pooled(OpaqueModel("f" * 64, settings), settings, has_tokenizer=False)
    told: list[bool] = []
    trusted = asyncio.Event()

    def changed() -> None:
        told.append(condition.is_ready)
        if told[-2:] == [False, True]:
            trusted.set()

    async def authorize() -> str:
        return ""

    async with fake_server() as fake:
        server = Server(fake.url, anywhere, ssl.create_default_context, connect_s=5.0)
        driver = driver_of("openai", pooled)
        condition = ServerCondition(server, driver, pooled, authorize, changed, name=NAME, distrust_s=0.2)
        condition.start()
        await until(lambda: condition.is_ready)
        for _ in range(MAX_FALSE_USAGES):
            condition.succeeded(condition.take()[1], is_false=True)
        assert told[-1] is False
        async with asyncio.timeout(PATIENCE_S):
            await trusted.wait()
        await condition.stop()
        server.close()


async def test_a_health_check_tells_watchers_of_a_closed_breaker_even_without_a_timer() -> None:
    """A timer of the event loop may fire a moment early, while the breaker is still open, and so tell nobody."""
    settings = msgspec.structs.replace(FAST, health_seconds=0.05)
    pooled = Pooled(OpaqueModel("f" * 64, settings), settings, has_tokenizer=False)
    told: list[bool] = []

    async def authorize() -> str:
        return ""

    async with fake_server() as fake:
        server = Server(fake.url, anywhere, ssl.create_default_context, connect_s=5.0)
        condition = ServerCondition(
            server, driver_of("openai", pooled), pooled, authorize, lambda: told.append(condition.is_ready), name=NAME
        )
        condition.start()
        await until(lambda: condition.is_ready)
        for _ in range(CONSECUTIVE):
            now_s = time.monotonic()
            admitted = condition.breaker.take(now_s)
            assert admitted is not None
            condition.breaker.failed(admitted, now_s)  # the condition is not told, and sets no timer
        await until(lambda: told[-1] is False)
        await until(lambda: told[-1] is True)
        await condition.stop()
        server.close()
