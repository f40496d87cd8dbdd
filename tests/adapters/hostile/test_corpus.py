"""Every hand-made hostile file is refused within a second, with its fault as the reason, and leaves nothing.

No process but the confined one reads the file: its parent does not grow.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.errors import AdapterRejected
from adapters.inspection import inspect
from tests.adapters.hostile import configs, folders, tars, weights, zips
from tests.adapters.hostile.case import BASE, BOUNDS, Case, names_in
from tests.adapters.hostile.forks import Forks
from tests.adapters.memory import peak_bytes

MAX_CPU_S = 1.0
PARENT_MAY_GROW_BYTES = 8 << 20
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


@pytest.mark.parametrize("name", CORPUS)
async def test_a_hostile_file_is_refused_for_its_fault_and_leaves_nothing(
    name: str, forks: Forks, tmp_path: Path, into: Path
) -> None:
    case = CORPUS[name]
    source = tmp_path / "source"
    source.mkdir()
    path = case.build(source)
    forks.cpu_s = 0.0
    before_bytes = peak_bytes(reset=True)
    with pytest.raises(AdapterRejected) as refusal:
        await inspect(path, into, BASE, BOUNDS, forks)
    assert case.reason in " | ".join(refusal.value.reasons)
    assert all(reason.isprintable() for reason in refusal.value.reasons)
    assert forks.cpu_s < MAX_CPU_S
    assert peak_bytes() - before_bytes < PARENT_MAY_GROW_BYTES
    assert names_in(into) == []
