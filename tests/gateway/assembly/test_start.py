"""A starting gateway waits for a database that is away, and not for one that it can never use."""

from __future__ import annotations

import asyncpg
import pytest

from gateway.assembly.services import once_available


class Step:
    """A function that fails `failures` times, and then returns the number of its calls."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.begun = 0
        self._failures = failures
        self._error = error

    async def __call__(self) -> int:
        self.begun += 1
        if self.begun <= self._failures:
            raise self._error
        return self.begun


@pytest.mark.parametrize("error", [ConnectionRefusedError(), TimeoutError(), asyncpg.AdminShutdownError("x")])
async def test_a_step_is_begun_anew_until_the_database_is_there(error: Exception) -> None:
    assert await once_available(Step(1, error)) == 2


async def test_a_database_without_tables_is_not_waited_for() -> None:
    step = Step(9, asyncpg.UndefinedTableError("x"))
    with pytest.raises(asyncpg.UndefinedTableError):
        await once_available(step)
    assert step.begun == 1
