"""Adapters are copied into a backup once, and missing adapters are named."""

from __future__ import annotations

from pathlib import Path

from adapters.store import AdapterStore
from gateway.backup.files import copy_adapters
from tests.gateway.admin_server import write_adapter


def test_an_adapter_that_is_not_there_is_told_and_one_that_is_copied_is_not_copied_again(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path / "store")
    first, second = [store.add(write_adapter(tmp_path / str(seed), seed=seed)) for seed in range(2)]
    assert copy_adapters(store, [first], tmp_path / "backup") == []
    store.remove(first)
    gone = "f" * 64
    assert copy_adapters(store, [first, second, gone], tmp_path / "backup") == [gone]
    assert AdapterStore(tmp_path / "other").add(tmp_path / "backup/adapters" / first) == first
