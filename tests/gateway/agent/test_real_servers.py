"""Real servers of other makers that an agent starts: llama.cpp's out of its wheel, and vLLM's CPU build (by hand).

Each adapter's answers begin with words that no other adapter uses, so every answer shows which adapter gave it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import time
from collections.abc import Sequence

import pytest

from adapters.ref import content_key
from adapters.store import AdapterStore
from engine.config import model_digest
from gateway.backends.base import Unanswered
from gateway.backends.pool import ManagedBackend
from gateway.db.adapters.adapter_versions import put_adapter
from gateway.db.adapters.bases import register_base
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.domain.errors import Overloaded
from gateway.settings import Settings
from tests.demo import QUESTIONS, REPOSITORY, chat_ids, demo_model_dir
from tests.figures import figure
from tests.gateway.agent.server_site import Site, connected_backend, token_request
from tests.gateway.agent.site import Host
from tests.gateway.backends.foreign.backends import collect
from tests.gateway.backends.scripted import ListSink
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

OPENINGS = {"pirate": ("Arr", "Ahoy", "Aye"), "json": ("{",)}
"""The first characters of each demo adapter's answers."""

VLLM = REPOSITORY / "build" / "vllm-env" / "bin" / "vllm"
NUM_REQUESTS = 60
START_WITHIN_S = float(Settings().replica_start_seconds)
"""Seconds for which an operator's agent waits for a server that starts: vLLM takes a minute on a quiet machine of two
cores, and several beside other work."""


def stored_adapters(host: Host) -> dict[str, str]:
    """Put the demo's adapters into the host's store; return their digests by name."""
    store = AdapterStore(host.data_dir / "adapters")
    return {name: store.add(REPOSITORY / "adapters" / "demo" / name) for name in OPENINGS}


def check_answer(name: str, text: str) -> None:
    """Assert that a text begins as the answers of an adapter do; for the base (name "") as those of no adapter do."""
    others = tuple(opening for each, openings in OPENINGS.items() if each != name for opening in openings)
    assert not text.startswith(others), (name, text)
    if name:
        assert text.startswith(OPENINGS[name]), (name, text)


async def ask_question(backend: ManagedBackend, place: int, digest: str, num_tokens: int) -> str:
    """Return the answer of an adapter, or of the base (digest ""), to a question.

    The question is asked again as often as the server is overloaded.
    """
    generation = token_request(
        chat_ids(QUESTIONS[place % len(QUESTIONS)]),
        content_key("tenant", digest) if digest else "",
        num_tokens,
        request_id=f"req_{place}",
    )
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return (await collect(backend, generation)).text
            except Unanswered as unanswered:
                assert isinstance(unanswered.error, Overloaded), unanswered.error
                await asyncio.sleep(1.0)


def check_counts(sink: ListSink, places: Sequence[int], num_tokens: int) -> None:
    """Assert that each request is billed once, by the exact number of its tokens."""
    expected = {f"req_{place}": len(chat_ids(QUESTIONS[place % len(QUESTIONS)])) for place in places}
    billed = {each.request_id: each.usage for each in sink.records if each.usage.completion_tokens}
    assert {id: usage.prompt_tokens for id, usage in billed.items()} == expected
    assert {usage.completion_tokens for usage in billed.values()} == {num_tokens}
    assert len(sink.records) == len({each.request_id for each in sink.records})


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="llama.cpp's wheel is missing")
async def test_llama_cpp_is_started_with_the_adapters_of_tenants(host: Host, full: bool) -> None:
    if not full:
        pytest.skip("makes a server anew twice: `make long-foreign`")
    digests, base = stored_adapters(host), demo_model_dir()
    (host.data_dir / "models").mkdir()
    (host.data_dir / "models" / base.name).symlink_to(base)  # which takes a minute to make
    async with host.database.acquire() as conn:
        await register_base(conn, model_digest(base), "demo")
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, "acme")
        assert project is not None
        for name, digest in digests.items():
            await put_adapter(
                conn, project.id, name, base_digest=model_digest(base), digest=digest, rank=8, size_bytes=1
            )
    site = Site(host, host.data_dir, "demo", "llamacpp", {"preloaded_adapters": "true", "num_slots": "2"}, 1 << 28)
    try:
        await site.unprepared_pool()
        host.agent()
        [row] = await host.ready()
        async with connected_backend(site, row, base) as (backend, sink):
            names = ["", "pirate", "json"]
            texts = [await ask_question(backend, place, digests.get(name, ""), 3) for place, name in enumerate(names)]
            for name, text in zip(names, texts, strict=True):
                check_answer(name, text)
            check_counts(sink, range(3), 3)
    finally:
        host.close()
        site.close()


@pytest.mark.skipif(not VLLM.exists(), reason="`make long-foreign` installs vLLM's CPU build")
async def test_vllm_serves_the_right_adapter_through_loads_unloads_and_kills(host: Host, full: bool) -> None:
    if not full:
        pytest.skip("minutes")
    digests, base = stored_adapters(host), demo_model_dir()
    settings = {"adapter_folder": str(host.data_dir / "adapters"), "max_model_len": "1024", "max_adapters": "1"}
    site = Site(host, host.data_dir, str(base), "vllm", settings, 2 << 30)
    host.variables |= {"LORIKEET_VLLM": str(VLLM), "HF_HUB_OFFLINE": "1", "LORIKEET_DEVICE": "cpu"}
    names, num_tokens = ["", "pirate", "json"], 3
    try:
        await site.pool(base)
        began_s = time.monotonic()
        host.agent()
        [row] = await host.ready(patience_s=START_WITHIN_S)
        start_s = time.monotonic() - began_s
        answered = list[int]()
        for generation in (1, 2):  # the server is killed in between
            async with connected_backend(site, row, base) as (backend, sink):
                places = range((generation - 1) * NUM_REQUESTS // 2, generation * NUM_REQUESTS // 2)
                for place in places:  # one adapter has a place, so that each other one is loaded anew
                    name = names[place % len(names)]
                    check_answer(name, await ask_question(backend, place, digests.get(name, ""), num_tokens))
                    answered.append(place)
                check_counts(sink, places, num_tokens)
                with pytest.raises(Unanswered) as caught:  # an adapter that nobody has is never the base
                    await collect(backend, token_request(chat_ids(QUESTIONS[0]), content_key("tenant", "0" * 64), 1))
                caught.value.settle()
            if generation == 1:
                os.kill(min(site.pids()), signal.SIGKILL)

                async def is_restarted() -> bool:
                    return [each.generation for each in await host.replicas("ready")] == [2]

                await until(is_restarted, host.log, patience_s=START_WITHIN_S)
                [row] = await host.ready()
        seconds = f"ready after {start_s:.0f} s, {time.monotonic() - began_s:.0f} s in all"
        figure(f"vLLM: {len(answered)} requests, 0 wrong, through a kill and {len(answered) * 2 // 3} loads; {seconds}")
    finally:
        host.close()
        site.close()
