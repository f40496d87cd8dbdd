"""The condition of a server tells its watchers whenever the server may be picked again."""

from __future__ import annotations

import asyncio
import ssl

import msgspec

from gateway.backends.foreign.condition import MAX_LIES, ServerCondition
from gateway.backends.foreign.driver import Pooled
from gateway.backends.foreign.drivers import driver_of
from gateway.backends.foreign.model import OpaqueModel
from gateway.backends.foreign.server import Server
from tests.gateway.backends.foreign.backends import FAST, anywhere, until
from tests.gateway.backends.foreign.fake import fake_server
from tests.patience import PATIENCE_S


async def test_the_end_of_a_distrust_is_told() -> None:
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
        condition = ServerCondition(server, driver, pooled, "server-1", authorize, changed, distrust_s=0.2)
        condition.start()
        await until(lambda: condition.is_ready)
        for _ in range(MAX_LIES):
            condition.succeeded(is_lie=True)
        assert told[-1] is False
        async with asyncio.timeout(PATIENCE_S):
            await trusted.wait()
        await condition.stop()
        server.close()
