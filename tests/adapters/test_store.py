"""The store holds whole adapters or nothing, under their digest and nowhere else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from adapters.digest import canonical_digest
from adapters.errors import AdapterDamaged, AdapterMissing, AdapterRejected
from adapters.store import AdapterStore
from tests.adapters.folders import CONFIG, write_adapter
from tests.modes import open_to_others
from tests.patience import PATIENCE_S

ABSENT = "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter")


def names(store_root: Path) -> list[str]:
    return sorted(path.name for path in store_root.iterdir())


def test_an_added_adapter_is_found_by_the_digest_of_its_content(store: AdapterStore, folder: Path) -> None:
    digest = store.add(folder)
    assert digest == canonical_digest(folder) == canonical_digest(store.path(digest))
    assert store.digests() == [digest]
    store.verify(digest)


def test_only_the_two_files_are_copied(store: AdapterStore, folder: Path) -> None:
    (folder / "README.md").write_text("hello")
    (folder / "optimizer.pt").write_bytes(b"pickle")
    stored = store.path(store.add(folder))
    assert names(stored) == ["adapter_config.json", "adapter_model.safetensors"]
    assert store.size_bytes(stored.name) == sum(path.stat().st_size for path in stored.iterdir())


def test_adding_the_same_content_again_changes_nothing(store: AdapterStore, folder: Path, tmp_path: Path) -> None:
    digest = store.add(folder)
    before = store.path(digest).stat()
    twin = write_adapter(tmp_path / "twin", {**CONFIG, "lora_dropout": 0.5}, padding=8)
    assert store.add(twin) == digest
    assert store.path(digest).stat().st_ino == before.st_ino
    assert names(tmp_path / "store") == [digest]


def test_a_refused_adapter_leaves_nothing_behind(store: AdapterStore, tmp_path: Path) -> None:
    with pytest.raises(AdapterRejected, match="DoRA"):
        store.add(write_adapter(tmp_path / "bad", {**CONFIG, "use_dora": True}))
    with pytest.raises(AdapterRejected, match=r"adapter_config\.json is missing"):
        store.add(tmp_path)
    assert names(tmp_path / "store") == []


def test_a_removed_adapter_is_gone_and_can_come_back(store: AdapterStore, folder: Path, tmp_path: Path) -> None:
    digest = store.add(folder)
    store.remove(digest)
    assert names(tmp_path / "store") == []
    for call in (store.path, store.remove, store.size_bytes, store.verify):
        with pytest.raises(AdapterMissing):
            call(digest)
    assert store.add(folder) == digest


def test_adding_what_is_removed_at_the_same_time_never_fails(store: AdapterStore, folder: Path) -> None:
    digest, adding = store.add(folder), threading.Event()
    adding.set()

    def remove() -> int:
        num_removed = 0
        while adding.is_set():
            with contextlib.suppress(AdapterMissing):
                store.remove(digest)
                num_removed += 1
        return num_removed

    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(remove)
        try:
            assert {store.add(folder) for _ in range(50)} == {digest}
        finally:
            adding.clear()
        assert removing.result() > 0
    store.add(folder)
    store.verify(digest)


@pytest.mark.parametrize("name", ["", ".", "..", "../adapter", "a" * 63, "A" * 64, "a" * 64 + "\n", "/etc", "0" * 65])
def test_only_digests_become_paths(name: str, store: AdapterStore, folder: Path) -> None:
    for call in (store.path, store.remove, store.size_bytes, store.verify):
        with pytest.raises(AdapterMissing):
            call(name)
    assert folder.exists()


def test_a_missing_adapter_is_named(store: AdapterStore) -> None:
    with pytest.raises(AdapterMissing, match=f"the adapter '{ABSENT}' is missing from the store"):
        store.path(ABSENT)


def test_verify_finds_a_changed_byte(store: AdapterStore, folder: Path) -> None:
    digest = store.add(folder)
    path = store.path(digest) / "adapter_model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-4] ^= 1
    path.write_bytes(raw)
    with pytest.raises(AdapterDamaged, match="has changed"):
        store.verify(digest)


def _add_in_a_loop(root: Path, folder: Path, started: Event) -> None:
    store = AdapterStore(root)
    while True:
        store.remove(store.add(folder))
        started.set()


def test_a_killed_writer_leaves_whole_adapters_and_its_rubbish_is_swept(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    writer = context.Process(target=_add_in_a_loop, args=(root, folder, started))
    writer.start()
    assert started.wait(PATIENCE_S)
    os.kill(writer.pid or 0, signal.SIGKILL)
    writer.join()
    store = AdapterStore(root)
    for digest in store.digests():
        store.verify(digest)
    assert not list(root.glob(".temporary-*"))


def test_a_workspace_is_swept_when_its_process_is_dead_and_never_before(store: AdapterStore, tmp_path: Path) -> None:
    """The workspace's age does not count."""
    dead = tmp_path / "store" / ".temporary-of-the-dead"
    dead.mkdir()
    (dead / "adapter").mkdir()
    with store.workspace() as workspace:
        os.utime(workspace, (0, 0))
        for sweep in (store.sweep, AdapterStore(tmp_path / "store").sweep):
            sweep()
            assert workspace.exists()
        assert not dead.exists()
    assert names(tmp_path / "store") == []


def test_workspaces_are_made_while_others_sweep(store: AdapterStore, tmp_path: Path) -> None:
    working = threading.Event()
    working.set()

    def sweep() -> None:
        while working.is_set():
            store.sweep()

    with ThreadPoolExecutor(1) as pool:
        sweeping = pool.submit(sweep)
        try:
            for _ in range(200):
                with store.workspace() as workspace:
                    (workspace / "adapter").mkdir()
        finally:
            working.clear()
        sweeping.result()
    assert names(tmp_path / "store") == []


def test_a_kept_folder_moves_into_the_store(store: AdapterStore, tmp_path: Path) -> None:
    with store.workspace() as workspace:
        folder = write_adapter(workspace / "adapter")
        digest, inode = canonical_digest(folder), folder.stat().st_ino
        assert store.digests() == []
        store.keep(folder, digest)
        assert not folder.exists()
    assert names(tmp_path / "store") == [digest]
    assert store.path(digest).stat().st_ino == inode
    store.verify(digest)


def test_keeping_what_is_there_changes_nothing(store: AdapterStore, folder: Path, tmp_path: Path) -> None:
    digest = store.add(folder)
    before = store.path(digest).stat().st_ino
    with store.workspace() as workspace:
        store.keep(write_adapter(workspace / "again"), digest)
    assert names(tmp_path / "store") == [digest]
    assert store.path(digest).stat().st_ino == before


@pytest.mark.parametrize("how", ["changed", "cut short", "gone"])
def test_adding_an_adapter_replaces_its_damaged_content(
    how: str, store: AdapterStore, folder: Path, tmp_path: Path
) -> None:
    digest = store.add(folder)
    weights = store.path(digest) / "adapter_model.safetensors"
    content = weights.read_bytes()
    if how == "gone":
        weights.unlink()
    else:
        weights.write_bytes(content[:-4] + b"?" * 4 if how == "changed" else content[:-4])
    with pytest.raises(AdapterDamaged):
        store.verify(digest)
    assert store.add(folder) == digest
    store.verify(digest)
    assert names(tmp_path / "store") == [digest]


def test_a_workspace_leaves_nothing_behind(store: AdapterStore, tmp_path: Path) -> None:
    with pytest.raises(AdapterRejected), store.workspace() as workspace:
        write_adapter(workspace / "adapter")
        raise AdapterRejected(["it was not good enough"])
    assert names(tmp_path / "store") == []


def test_only_digests_are_kept(store: AdapterStore, tmp_path: Path) -> None:
    with store.workspace() as workspace, pytest.raises(ValueError, match="is not a digest"):
        store.keep(write_adapter(workspace / "adapter"), "../outside")
    assert not (tmp_path / "outside").exists()


def test_nobody_else_on_the_machine_reads_the_store(store: AdapterStore, folder: Path, tmp_path: Path) -> None:
    folder.chmod(0o755)
    digest = store.add(folder)
    assert [path.name for path in store.path(digest).iterdir()] != []
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    assert open_to_others(tmp_path / "store") == []
