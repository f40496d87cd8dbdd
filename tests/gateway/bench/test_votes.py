"""The benchmark of feedback loses no batch, and its figures equal the rows' counts."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from gateway.bench.experiments.votes import arguments, measure
from gateway.bench.installation import Installation
from tests.gateway.conftest import House
from tests.installation.tenants import make_key


async def test_every_batch_of_votes_is_stored(house: House) -> None:
    keys = [(await make_key(house.dsn, f"bench-{number}")).secret for number in range(2)]
    flags = ["--model-dir", str(Path()), "--seconds", "0.3", "--batch", "40", "--senders", "2"]
    installation = Installation([urlsplit(house.url).port or 0], keys, [], [], "", house.dsn)
    row = await measure(arguments().parse_args(flags), installation)
    assert list(row["statuses"]) == ["200"]
    assert row["votes"] == row["rows"] == 40 * row["statuses"]["200"] > 0
    assert 0 < row["batch_ms_p50"] <= row["batch_ms_p99"]
