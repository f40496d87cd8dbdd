"""A server of a version with which its driver was not tried is used all the same, and its operator is told."""

from __future__ import annotations

import pytest

from gateway.backends.foreign.versions import Tried
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, hear, until
from tests.gateway.backends.foreign.dialects import DIALECTS
from tests.gateway.backends.foreign.fake import fake_server
from tests.gateway.backends.foreign.test_contract import sending_all
from tests.gateway.backends.scripted import ListSink

VLLM = Tried("/version", "version", (0, 11), (0, 32))
BUILDS = Tried("/props", "build_info", (6900,))


@pytest.mark.parametrize("version", ["0.11.0", "0.32.9+cpu", "0.20.1.dev3", "", "unknown"])
def test_a_version_that_was_tried_or_is_none_is_not_noted(version: str) -> None:
    assert not VLLM.note(version)


@pytest.mark.parametrize("version", ["0.10.2", "0.33.0", "1.0", "99999999999999.1"])
def test_another_version_is_noted_with_the_range(version: str) -> None:
    assert f"version {version} is none" in VLLM.note(version)
    assert "(0.11 to 0.32)" in VLLM.note(version)


def test_builds_that_come_daily_have_no_newest_one() -> None:
    assert not BUILDS.note("b99999-abcdef0")
    assert not BUILDS.note("b0-unknown"), "a build of somebody's own"
    assert "6900 and later" in BUILDS.note("b4000-abcdef0")


@pytest.mark.parametrize(("version", "is_noted"), [("0.32.1", False), ("0.99", True), (7, False)], ids=str)
async def test_a_server_serves_whatever_its_version(version: object, is_noted: bool) -> None:
    dialect = DIALECTS["vllm"]
    async with fake_server() as server:
        server.facts = {"/version": {"version": version}}
        server.answer = sending_all(dialect.saying("well"))
        async with backend_of(server.url, ListSink(), driver="vllm", settings=FAST) as backend:
            assert (await hear(backend, asking())).text == "well"
            await until(lambda: ("is none of those" in backend.health().reason) == is_noted)
