"""The time of a token is that of one choice, however many choices are generated side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from engine.protocol import Usage
from gateway.backends.generation import Item, Piece
from gateway.pipeline.items.attempts import Restarted
from gateway.pipeline.items.timing import timed_items

PAUSE_S = 0.05


@pytest.mark.parametrize("n", [1, 4])
async def test_the_time_of_a_token_does_not_depend_on_the_number_of_choices(n: int) -> None:
    async def source() -> AsyncGenerator[Item | Restarted]:
        yield [Piece(index, "a", num_tokens=1) for index in range(n)]
        await asyncio.sleep(PAUSE_S)
        yield [Piece(index, "b", num_tokens=11) for index in range(n)]
        yield Usage(prompt_tokens=3, completion_tokens=11 * n)

    told: list[tuple[float, float]] = []
    started_s = asyncio.get_running_loop().time()
    items = [item async for item in timed_items(source(), lambda *times: told.append(times))]
    elapsed_ms = (asyncio.get_running_loop().time() - started_s) * 1e3
    ((first_token_ms, token_ms),) = told
    assert len(items) == 3
    assert PAUSE_S * 1e3 * 0.98 / 10 <= token_ms <= elapsed_ms / 10
    assert 0 <= first_token_ms <= elapsed_ms
