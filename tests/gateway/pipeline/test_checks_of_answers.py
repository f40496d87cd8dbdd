"""Checks of answers, whose patterns and schemas tenants choose, do not block a gateway's event loop."""

from __future__ import annotations

import asyncio

import pytest

from engine.protocol import Usage
from gateway.domain.routing.policy.document import Accept
from gateway.pipeline.collected import Answer, Collected
from gateway.pipeline.routes.check import is_accepted
from gateway.support.patterns import all_match, pattern_fault
from gateway.support.project_threads import MAX_WAITING, ProjectThreads
from tests.patience import PATIENCE_S

EXPENSIVE = ".{1000}" * 10
"""A pattern that takes tens of milliseconds to compile, whatever the text."""


def collected(*texts: str) -> Collected:
    return Collected([Answer(text=text, finish_reason="stop") for text in texts], [], Usage(1, 1))


@pytest.mark.parametrize("accept", [Accept(regex=EXPENSIVE), Accept(schema={"enum": list(range(5_000))})])
async def test_the_loop_goes_on_while_a_short_answer_is_checked(accept: Accept) -> None:
    threads = ProjectThreads("checks", "checks", 1)
    check = asyncio.create_task(is_accepted(threads, "proj", accept, collected("-1", "no")))
    await asyncio.sleep(0)
    assert not check.done(), "the check was made by the loop itself"
    async with asyncio.timeout(PATIENCE_S):
        assert not await check


async def test_no_answer_is_refused_however_many_are_checked_at_once() -> None:
    threads = ProjectThreads("checks", "checks", 1, max_waiting=None)
    accept = Accept(schema={"type": "object"})
    checks = [is_accepted(threads, "proj", accept, collected("{}")) for _ in range(2 * MAX_WAITING)]
    assert all(await asyncio.gather(*checks))


@pytest.mark.parametrize(
    ("texts", "is_good"), [(["one 1", "two 2"], True), (["one 1", "two"], False), ([], True), (["1 \ud800"], False)]
)
async def test_a_pattern_has_to_be_in_each_choice(texts: list[str], is_good: bool) -> None:
    threads = ProjectThreads("checks", "checks", 1)
    assert await is_accepted(threads, "proj", Accept(regex="[0-9]$"), collected(*texts)) == is_good


def test_a_pattern_that_needs_too_much_memory_is_faulty() -> None:
    assert pattern_fault(EXPENSIVE) is None and not all_match(EXPENSIVE, ["a"])
    assert pattern_fault(r"(?:\pL{1,100}){10}") is not None
