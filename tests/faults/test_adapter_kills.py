"""A gateway that is killed at any moment of an upload, a promotion or a removal leaves store and tables in agreement,
and nothing half done that anybody could ask for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.faults.adapter_site import AdapterSite, UnfinishedTasks, kill_amid_changes

NUM_KILLS, NUM_KILLS_FULL = 4, 200
MAX_AT_WORK = 10
"""The most imports that kills may have interrupted, of the 16 that a project may have."""


@pytest.fixture
def first_seed() -> int:
    """Return the seed to begin with, from the variable FIRST_SEED."""
    return int(os.environ.get("FIRST_SEED", "0"))


async def test_a_killed_gateway_leaves_no_half_adapter(dsn: str, tmp_path: Path, first_seed: int, full: bool) -> None:
    site, num_kills = AdapterSite(tmp_path, dsn), NUM_KILLS_FULL if full else NUM_KILLS
    try:
        await site.start()
        start_s = time.monotonic()
        await site.upload("timed")
        span_s = 1.2 * (time.monotonic() - start_s)
        left = UnfinishedTasks()
        for seed in range(first_seed, first_seed + num_kills):
            try:
                await kill_amid_changes(site, seed, span_s)
                if len(await site.imports_at_work()) > MAX_AT_WORK:
                    left += await site.settle()
            except BaseException as error:
                error.add_note(f"FIRST_SEED={seed}")
                raise
        left += await site.settle()
        print(f"left by {num_kills} kills: {left}")
        assert left.num_imports > 0, "kills meet imports at work"
        assert not full or left.num_contents > 0, "kills meet every step of an upload"
    finally:
        await site.close()
