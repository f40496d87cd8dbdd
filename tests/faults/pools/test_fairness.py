"""A tenant's weight holds over a pool, as its clients see it beside a tenant with 100 times as many requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.pools.rivals import QUIET, Fleet, figures, running_fleet

MEASURED_S = 60.0


@pytest.fixture
def fleet(dsn: str, tmp_path: Path, full: bool) -> Iterator[Fleet]:
    if not full:
        pytest.skip("measures time: runs with --full")
    with running_fleet(dsn, tmp_path) as fleet:
        yield fleet


async def test_beside_a_hundred_times_as_many_requests_a_tenant_gets_its_half_as_soon_as_beside_an_equal(
    fleet: Fleet,
) -> None:
    share, p99_ms = await figures(fleet, 100 * QUIET, MEASURED_S)
    equal_share, equal_p99_ms = await figures(fleet, QUIET, MEASURED_S)
    assert share == pytest.approx(1 / 2, rel=0.1)
    assert equal_share == pytest.approx(1 / 2, rel=0.1)
    assert p99_ms <= 1.5 * equal_p99_ms
