"""Keys that projects bring: sent for their own requests alone, and neither leaked nor counted against the server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import msgspec
import pytest
import structlog

from gateway.backends.base import Unanswered
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.generation import Generation
from gateway.domain.errors import BackendFailed, ProviderKeyMissing, ProviderKeyRefused
from gateway.domain.pools.foreign_settings import OwnKeys
from gateway.domain.pools.provider_key import ProviderKey
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect, until, until_ready
from tests.gateway.backends.foreign.fake import FakeServer, fake_server
from tests.gateway.backends.scripted import ListSink
from tests.patience import PATIENCE_S

OF_POOL, OF_ACME = "sk-of-the-pool-000-POOL", "sk-of-acme-00000000-ACME"
ALLOWED = msgspec.structs.replace(FAST, own_keys="allowed", served_model="theirs")


async def key_of_acme(project_id: str) -> ProviderKey | None:
    return ProviderKey("ACME", OF_ACME) if project_id == "acme" else None


def asking_as(owner: str, number: int = 1) -> Generation:
    return msgspec.structs.replace(asking(request_id=f"req_{number}"), key_owner=owner)


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


def last_key_received(server: FakeServer) -> str:
    """Return the key of the last generation request that the server received."""
    return server.received[-1].headers.get("authorization", "").removeprefix("Bearer ")


async def test_a_projects_key_goes_with_its_own_requests_alone_over_one_connection(server: FakeServer) -> None:
    async with backend_of(server.url, ListSink(), settings=ALLOWED, key=OF_POOL, own_key=key_of_acme) as backend:
        before = server.num_connections
        for number, (owner, key) in enumerate([("acme", OF_ACME), ("", OF_POOL), ("acme", OF_ACME), ("", OF_POOL)]):
            await collect(backend, asking_as(owner, number))
            assert last_key_received(server) == key
        assert server.num_connections - before <= 1


async def test_a_request_whose_key_is_gone_by_now_is_not_sent_with_another(server: FakeServer) -> None:
    sink = ListSink()
    async with backend_of(server.url, sink, settings=ALLOWED, key=OF_POOL, own_key=key_of_acme) as backend:
        with pytest.raises(Unanswered) as failure:
            await collect(backend, asking_as("globex"))
    assert isinstance(failure.value.error, ProviderKeyMissing)
    assert (failure.value.was_sent, server.received, sink.records) == (False, [], [])


async def test_a_refused_key_is_named_by_its_end_and_closes_the_server_for_nobody(server: FakeServer) -> None:
    server.keys = {OF_POOL}
    sink = ListSink()
    async with backend_of(server.url, sink, settings=ALLOWED, key=OF_POOL, own_key=key_of_acme) as backend:
        with structlog.testing.capture_logs() as logs:
            for number in range(20):
                with pytest.raises(Unanswered) as failure:
                    await collect(backend, asking_as("acme", number))
                failure.value.settle()
        error = failure.value.error
        assert isinstance(error, ProviderKeyRefused)
        assert (error.status, error.code) == (403, "provider_key_refused")
        assert "'ACME'" in error.message and "theirs" in error.message
        assert "no such key" not in error.message, "the server's words are for the operator"
        num_asked = len([each for each in logs if each["event"] == "provider_key_refused"])
        assert num_asked == len(server.received) < 10, "the key has a breaker of its own"
        assert OF_ACME not in str(logs) and OF_ACME not in str(failure.value) and OF_ACME not in repr(asking_as("acme"))
        assert {each.usage.completion_tokens for each in sink.records} == {0}
        server.keys |= {OF_ACME}
        await until_answered(backend)
        assert (await collect(backend, asking_as("", 99))).text == "Hello world"


async def until_answered(backend: ForeignBackend) -> None:
    """Send requests of acme until one is answered, which is when the key's breaker allows a trial request."""
    async with asyncio.timeout(PATIENCE_S):
        for number in itertools.count(100):
            try:
                assert (await collect(backend, asking_as("acme", number))).text == "Hello world"
            except Unanswered:
                await asyncio.sleep(0.05)
            else:
                return


async def test_a_refused_key_of_the_pool_does_not_stop_requests_with_a_projects_key(server: FakeServer) -> None:
    server.keys = {OF_ACME}
    async with backend_of(server.url, ListSink(), settings=ALLOWED, key=OF_POOL, own_key=key_of_acme) as backend:
        assert backend.health().reason == "the server refuses the pool's key"
        for number in range(10):
            with pytest.raises(Unanswered) as failure:
                await collect(backend, asking_as("", number))
            failure.value.settle()
        assert isinstance(failure.value.error, BackendFailed)
        assert (await collect(backend, asking_as("acme", 99))).text == "Hello world"


async def test_a_request_without_any_key_is_told_that_its_key_is_missing(server: FakeServer) -> None:
    server.keys = {OF_ACME}
    async with backend_of(server.url, ListSink(), settings=ALLOWED, own_key=key_of_acme) as backend:
        assert backend.health().reason == "the server asks for a key"
        with pytest.raises(Unanswered) as failure:
            await collect(backend, asking_as(""))
        failure.value.settle()
        assert isinstance(failure.value.error, ProviderKeyMissing)


@pytest.mark.parametrize(
    ("own_keys", "why"), [("none", "the server asks for a key"), ("required", "'served_model' has to say")]
)
async def test_a_server_that_asks_for_a_key_is_not_ready_and_the_reason_says_so(
    server: FakeServer, own_keys: OwnKeys, why: str
) -> None:
    server.keys = {OF_ACME}
    settings = msgspec.structs.replace(FAST, own_keys=own_keys)
    async with backend_of(server.url, ListSink(), settings=settings, own_key=key_of_acme, waits=False) as backend:
        await until(lambda: why in backend.health().reason)
        assert not backend.health().ready
        server.keys = None
        await until_ready(backend)
        assert backend.health().reason == ""
