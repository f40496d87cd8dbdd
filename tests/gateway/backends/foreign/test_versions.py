"""A server of a version that its driver was not tested with is asked by a generic protocol, and its operator is
told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from adapters.ref import content_key
from engine.protocol import GenerateRequest, SamplingParams
from gateway.backends.base import Unanswered
from gateway.backends.engine.model import EngineModel
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.foreign.driver import Pooled
from gateway.backends.foreign.drivers import driver_of
from gateway.backends.foreign.drivers.openai import FEATURES
from gateway.backends.foreign.model import OpaqueModel
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation
from gateway.backends.pool import PoolRevision, Replica
from gateway.domain.errors import InvalidRequest, Overloaded
from gateway.domain.pools.drivers import Driver
from gateway.domain.pools.foreign_settings import ForeignSettings
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect, until
from tests.gateway.backends.foreign.dialects import DIALECTS
from tests.gateway.backends.foreign.fake import fake_server, saying
from tests.gateway.backends.foreign.fake_vllm import BASE, FakeVllm, fake_vllm, tokens_of
from tests.gateway.backends.foreign.test_contract import sending_all
from tests.gateway.backends.scripted import ListSink
from tests.gateway.model_folder import make_model_folder

FOLDER = "/srv/adapters"
WITH_ADAPTERS = msgspec.structs.replace(FAST, adapter_folder=FOLDER)
DIGEST = "d" * 64
UNTRIED = {"version": "0.99.0"}

VLLM = VersionRange("/version", "version", (0, 11), (0, 32))
BUILDS = VersionRange("/props", "build_info", (6900,))


@pytest.mark.parametrize("version", ["0.11.0", "0.32.9+cpu", "0.20.1.dev3", "", "unknown"])
def test_a_tested_version_and_an_unreadable_one_are_not_reported(version: str) -> None:
    assert not VLLM.untested_reason(version)


@pytest.mark.parametrize("version", ["0.10.2", "0.33.0", "1.0", "99999999999999.1"])
def test_an_untested_version_is_reported_with_the_tested_range(version: str) -> None:
    assert f"version {version} is none" in VLLM.untested_reason(version)
    assert "(0.11 to 0.32)" in VLLM.untested_reason(version)


def test_daily_builds_have_an_oldest_tested_build_and_no_newest() -> None:
    assert not BUILDS.untested_reason("b99999-abcdef0")
    assert not BUILDS.untested_reason("b0-unknown"), "a build of somebody's own"
    assert "6900 and later" in BUILDS.untested_reason("b4000-abcdef0")


@pytest.fixture
def model(tmp_path: Path) -> EngineModel:
    return EngineModel.load(make_model_folder(tmp_path / "model"))


@asynccontextmanager
async def untried_vllm(
    model: EngineModel, settings: ForeignSettings = WITH_ADAPTERS
) -> AsyncIterator[tuple[FakeVllm, ForeignBackend]]:
    """Give a vLLM of an untested version, and its backend in a pool whose tokenizer is known."""
    async with fake_vllm(FOLDER) as vllm:
        vllm.server.facts = {"/version": UNTRIED}
        backend = backend_of(vllm.server.url, ListSink(), driver="vllm", model=model, settings=settings)
        async with backend as made:
            yield vllm, made


def text_generation(adapter: str = "") -> Generation:
    """Return a chat prepared as text, for servers that may get no token ids."""
    made = asking()
    return msgspec.structs.replace(made, request=msgspec.structs.replace(made.request, adapter=adapter))


def token_generation() -> Generation:
    """Return a request prepared as token ids."""
    return Generation(GenerateRequest("req_1", [1, 2, 3], SamplingParams(max_tokens=16), "tenant", meter=b"tag"))


@pytest.mark.parametrize("version", ["0.32.1", 7, None], ids=str)
async def test_a_tried_version_and_one_that_nobody_knows_are_asked_by_their_own_driver(
    model: EngineModel, version: object
) -> None:
    async with fake_vllm(FOLDER) as vllm:
        vllm.server.facts = {"/version": {"version": version}} if version else {}
        async with backend_of(vllm.server.url, ListSink(), driver="vllm", model=model, settings=FAST) as backend:
            assert (await collect(backend, token_generation())).text == model.tokenizer.decode(tokens_of(BASE))
            assert "token_ids" in backend.capabilities.features
            trust = backend.health().server
            assert trust is not None and trust.is_tried
            assert trust.separates_caches is (version == "0.32.1"), "a server without a version may be of any kind"
            assert not backend.health().reason


async def test_another_version_gets_openais_protocol_and_its_operator_is_told(model: EngineModel) -> None:
    async with untried_vllm(model, FAST) as (vllm, backend):
        assert (await collect(backend, text_generation())).text == BASE
        assert vllm.server.received[-1].path == "/v1/chat/completions"
        assert backend.capabilities.features == FEATURES
        assert "version 0.99.0 is none of those that were tried" in backend.health().reason
        assert backend.health().reason.endswith("it is asked by OpenAI's protocol alone")
        trust = backend.health().server
        assert trust is not None
        shown = (trust.version, trust.is_tried, trust.has_adapters, trust.separates_caches)
        assert shown == ("0.99.0", False, False, False)


async def test_an_untested_server_gets_no_requests_where_tenants_may_not_share_a_cache(model: EngineModel) -> None:
    settings = msgspec.structs.replace(FAST, separate_caches=True)
    async with fake_vllm(FOLDER) as vllm:
        vllm.server.facts = {"/version": UNTRIED}
        made = backend_of(vllm.server.url, ListSink(), driver="vllm", model=model, settings=settings, waits=False)
        async with made as backend:
            await until(lambda: "'separate_caches' forbids" in backend.health().reason)
            with pytest.raises(Unanswered):
                await collect(backend, text_generation())
            assert not vllm.server.received


async def test_an_adapter_answers_at_an_untested_server_once_a_probe_has_shown_its_effect(model: EngineModel) -> None:
    async with untried_vllm(model) as (vllm, backend):
        assert "each adapter once a probe has shown it" in backend.health().reason
        collected = await collect(backend, text_generation(content_key("tenant", DIGEST)))
        assert collected.text == DIGEST
        asked = [each.body["model"] for each in vllm.server.received if each.path == "/v1/completions"]
        assert asked[1:] == [DIGEST, BASE], "a name that nobody has, then the adapter beside the base"


async def test_an_adapter_without_effect_at_an_untested_server_is_not_used(model: EngineModel) -> None:
    async with untried_vllm(model) as (vllm, backend):
        vllm.has_effect = False
        with pytest.raises(Unanswered) as caught:
            await collect(backend, text_generation(content_key("tenant", DIGEST)))
        assert isinstance(caught.value.error, Overloaded)
        assert (await collect(backend, text_generation())).text == BASE, "which says nothing of the server"


async def test_an_untested_server_whose_base_answers_unknown_names_serves_the_base_alone(model: EngineModel) -> None:
    async with untried_vllm(model) as (vllm, backend):
        vllm.has_silent_base = True
        with pytest.raises(Unanswered):
            await collect(backend, text_generation(content_key("tenant", DIGEST)))
        assert vllm.num_loads == 0
        assert (await collect(backend, text_generation())).text == BASE


async def test_a_server_that_goes_back_to_a_tried_version_is_asked_by_its_own_driver(model: EngineModel) -> None:
    async with untried_vllm(model) as (vllm, backend):
        assert await collect(backend, text_generation(content_key("tenant", DIGEST)))
        await vllm.server.stop()
        await until(lambda: not backend.health().ready)
        vllm.restart()
        vllm.server.facts = {"/version": {"version": "0.32.0"}}
        await vllm.server.start()
        await until(lambda: backend.health().ready)
        assert not backend.health().reason
        assert backend.resident() == frozenset(), "each adapter is shown anew"
        assert (await collect(backend, token_generation())).text == model.tokenizer.decode(tokens_of(BASE))


async def test_a_pool_with_one_untested_server_sends_text_to_all_its_servers(model: EngineModel) -> None:
    as_text = OpaqueModel("e" * 64, FAST)
    async with untried_vllm(model) as (_, other), fake_vllm(FOLDER) as vllm:
        vllm.server.facts = {"/version": {"version": "0.32.0"}}
        tried = backend_of(vllm.server.url, ListSink(), driver="vllm", model=model, settings=WITH_ADAPTERS)
        async with tried as known:
            pool = PoolRevision("theirs", model, [Replica("known", known)], as_text=as_text)
            assert "token_ids" in pool.capabilities.features
            assert pool.prepare_text("Hello", "prompt").token_ids
            pool.add(Replica("other", other))
            assert pool.capabilities.features == FEATURES - {"tools"}, "what each of both can do"
            prepared = pool.prepare_text("Hello", "prompt")
            assert not prepared.token_ids and prepared.num_tokens > len("Hello"), (
                "a bound, for servers count themselves"
            )
            with pytest.raises(InvalidRequest):
                _ = pool.tokenizer
            for backend in (known, other):
                assert (await collect(backend, text_generation())).text == BASE
            adapter = content_key("tenant", DIGEST)
            assert (await collect(known, text_generation(adapter))).text == DIGEST
            with pytest.raises(Unanswered) as caught:  # prepared before the other one was there
                await collect(other, token_generation())
            assert caught.value.kind == "absent"
            assert (await collect(known, token_generation())).text == model.tokenizer.decode(tokens_of(BASE))


@pytest.mark.parametrize("driver", ["vllm", "sglang", "llamacpp", "tgi"])
async def test_an_untested_server_with_openais_routes_is_asked_by_openais_protocol(driver: Driver) -> None:
    dialect = DIALECTS[driver]
    async with fake_server() as server:
        tried = driver_of(driver, Pooled(OpaqueModel("f" * 64, FAST), FAST, has_tokenizer=False)).tested
        assert tried is not None
        version = {tried.path: dialect.facts.get(tried.path, {}) | {tried.field: "0.0.1"}}
        server.facts = dialect.facts | version | {"/lora-adapters": []}
        server.answer = saying("well")
        async with backend_of(server.url, ListSink(), driver=driver, settings=FAST) as backend:
            assert (await collect(backend, asking())).text == "well"
            assert server.received[-1].path == "/v1/chat/completions"
            assert backend.capabilities.features <= FEATURES


@pytest.mark.parametrize("driver", ["ollama", "kserve"])
async def test_an_untested_server_without_openais_routes_is_asked_by_its_own_protocol_without_adapters(
    driver: Driver,
) -> None:
    dialect = DIALECTS[driver]
    settings = msgspec.structs.replace(FAST, preloaded_adapters=driver == "kserve", upload_adapters=driver == "ollama")
    pooled = Pooled(OpaqueModel("f" * 64, settings), settings, has_tokenizer=False, content=_no_content)
    assert driver_of(driver, pooled).adapters is not None
    async with fake_server() as server:
        tried = driver_of(driver, pooled).tested
        assert tried is not None
        server.facts = dialect.facts | {tried.path: {tried.field: "99.0"}}
        server.answer = sending_all(dialect.saying("well"))
        made = backend_of(server.url, ListSink(), driver=driver, settings=settings, content=_no_content)
        async with made as backend:
            assert (await collect(backend, asking())).text == "well"
            assert backend.health().reason.endswith("it is asked by its own protocol alone, without adapters")
            with pytest.raises(Unanswered) as caught:
                await collect(backend, text_generation(content_key("tenant", DIGEST)))
            assert isinstance(caught.value.error, InvalidRequest)


def _no_content(digest: str) -> AbstractContextManager[Path]:
    raise AssertionError("no adapter is sent")
