"""Every hand-made hostile file is refused within a second, with what is wrong as the reason, and leaves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.errors import AdapterRejected
from adapters.inspection import inspect
from tests.adapters.hostile import configs, folders, tars, weights, zips
from tests.adapters.hostile.case import BASE, BOUNDS, Case
from tests.adapters.hostile.forks import Forks

MAX_CPU_S = 1.0
CORPUS: dict[str, Case] = {
    f"{kind}: {name}": case
    for kind, cases in {
        "weights": weights.CASES,
        "config": configs.CASES,
        "folder": folders.CASES,
        "archive": tars.CASES,
        "zip": zips.CASES,
    }.items()
    for name, case in cases.items()
}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


@pytest.mark.parametrize("name", CORPUS)
async def test_refused(name: str, forks: Forks, tmp_path: Path) -> None:
    case = CORPUS[name]
    source, into = tmp_path / "source", tmp_path / "into"
    source.mkdir()
    into.mkdir()
    path = case.build(source)
    forks.cpu_s = 0.0
    with pytest.raises(AdapterRejected) as refusal:
        await inspect(path, into, BASE, BOUNDS, forks)
    assert case.reason in " | ".join(refusal.value.reasons)
    assert all(reason.isprintable() for reason in refusal.value.reasons)
    assert forks.cpu_s < MAX_CPU_S
    assert list(into.iterdir()) == []
