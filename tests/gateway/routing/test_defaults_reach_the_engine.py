"""The engine gets the request's own value first, else the adapter's default, else the API's default."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from engine.protocol import GenerateRequest, SamplingParams
from tests.gateway.routing.conftest import City, Tenant
from tests.patience import PATIENCE_S, least

DEFAULTS: dict[str, Any] = {
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.125,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.25,
    "max_tokens": 9,
    "system_prompt": "be kind",
}
SAMPLING = [name for name in DEFAULTS if name not in ("max_tokens", "system_prompt")]
OFF: dict[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1.0,
}
"""The API's own defaults, as values that a request may state explicitly."""
MESSAGES = [{"role": "user", "content": "hello there"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class AskingTenant:
    """A tenant with an adapter that has every default set."""

    def __init__(self, city: City, client: httpx.AsyncClient) -> None:
        self._city = city
        self._client = client

    async def __call__(self, path: str, model: str = "tiny:pirate", **fields: Any) -> GenerateRequest:
        """Send a request; return the request that the engine received."""
        prompt: dict[str, Any] = {"messages": MESSAGES} if path == CHAT else {"prompt": "hello there"}
        reply = await self._client.post(path, json={"model": model} | prompt | fields)
        assert reply.status_code == 200, reply.text
        return self._city.engine.request(reply.headers["x-request-id"])


@pytest.fixture
async def asking(city: City, operator: httpx.AsyncClient, tenants: list[Tenant]) -> AskingTenant:
    tenant = tenants[0]
    await tenant.put("pirate", 1)
    reply = await operator.post(f"{tenant.path}/adapters/pirate", json={"defaults": DEFAULTS})
    assert reply.status_code == 200, reply.text
    return AskingTenant(city, await tenant.client())


def chosen_sampling(request: GenerateRequest) -> dict[str, Any]:
    return {name: getattr(request.sampling, name) for name in SAMPLING}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_fields_that_a_request_leaves_out_get_the_adapters_defaults(asking: AskingTenant, path: str) -> None:
    for fields in ({}, dict.fromkeys(SAMPLING), {"max_tokens": None}):
        request = await asking(path, **fields)
        assert chosen_sampling(request) == {name: DEFAULTS[name] for name in SAMPLING}
        assert request.sampling.max_tokens == 9


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_explicit_value_wins_even_where_it_says_what_the_api_does_anyway(
    asking: AskingTenant, path: str
) -> None:
    plain = SamplingParams(max_tokens=0)
    assert chosen_sampling(await asking(path, **OFF)) == {name: getattr(plain, name) for name in SAMPLING}
    for name in SAMPLING:
        expected = {each: DEFAULTS[each] for each in SAMPLING} | {name: OFF[name]}
        assert chosen_sampling(await asking(path, **{name: OFF[name]})) == expected
    assert (await asking(path, temperature=0)).sampling.temperature == 0
    assert (await asking(path, max_tokens=2)).sampling.max_tokens == 2


async def test_both_names_of_a_chats_length_override_the_default(asking: AskingTenant) -> None:
    assert (await asking(CHAT, max_completion_tokens=3)).sampling.max_tokens == 3
    assert (await asking(CHAT, min_tokens=11)).sampling.max_tokens == 11, "as with any usual number"


async def test_the_system_prompt_is_for_chats_without_one(asking: AskingTenant) -> None:
    """The system prompt is counted in tokens, as the template renders it."""
    with_ours = await asking(CHAT, messages=[{"role": "system", "content": "be kind"}, *MESSAGES])
    assert (await asking(CHAT)).prompt_token_ids == with_ours.prompt_token_ids
    for role in ("system", "developer"):
        theirs = [{"role": role, "content": "be brief"}, *MESSAGES]
        on_base = await asking(CHAT, model="tiny", messages=theirs, max_tokens=1)
        assert (await asking(CHAT, messages=theirs)).prompt_token_ids == on_base.prompt_token_ids
    on_base = await asking(COMPLETIONS, model="tiny")
    assert (await asking(COMPLETIONS)).prompt_token_ids == on_base.prompt_token_ids


async def test_the_base_model_has_no_defaults(asking: AskingTenant) -> None:
    assert chosen_sampling(await asking(CHAT, model="tiny", max_tokens=1)) == {
        name: getattr(SamplingParams(max_tokens=0), name) for name in SAMPLING
    }


async def test_cleared_defaults_are_gone_on_both_gateways_within_a_second(
    city: City, operator: httpx.AsyncClient, tenants: list[Tenant], asking: AskingTenant
) -> None:
    tenant, plain = tenants[0], SamplingParams(max_tokens=0)
    both = [asking, AskingTenant(city, await tenant.client(1))]
    for each in both:
        assert (await each(CHAT, max_tokens=1)).sampling.temperature == 0.25

    async def change(defaults: dict[str, Any], temperature: float) -> float:
        """Change the defaults; return the seconds until both gateways use them."""
        await city.cut_notifications()
        reply = await operator.post(f"{tenant.path}/adapters/pirate", json={"defaults": defaults})
        assert reply.status_code == 200, reply.text
        changed_s = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            for each in both:
                while (await each(CHAT, max_tokens=1)).sampling.temperature != temperature:
                    pass
        return time.monotonic() - changed_s

    async def clear() -> float:
        await change({"temperature": 0.25}, 0.25)
        return await change(dict.fromkeys([*SAMPLING, "max_tokens", "system_prompt"]), plain.temperature)

    assert await least(clear, 1.0) < 1.0
    assert (await operator.get(f"{tenant.path}/adapters/pirate")).json()["defaults"] == {}
