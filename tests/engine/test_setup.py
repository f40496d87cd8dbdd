"""An engine that can't start as configured says what to change, and ends at once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.hardware import SetupError, num_threads
from engine.mailbox import Mailbox
from engine.setup import build_core
from tests.engine.harness import engine_config
from tests.engine.models.tiny import save_tiny
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"kv_cache_bytes": 1}, "LORIKEET_KV_CACHE_BYTES"),
        ({"kv_cache_bytes": 2**49}, "LORIKEET_KV_CACHE_BYTES"),
        ({"num_threads": 99_999}, "LORIKEET_NUM_THREADS"),
    ],
)
def test_a_setting_that_cannot_work_is_named(change: dict[str, object], names: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    mailbox = Mailbox()
    with pytest.raises(SetupError, match=names):
        build_core(engine_config(tmp_path / "model", tmp_path / "store", **change), mailbox)
    mailbox.close()


def test_a_store_in_a_bucket_needs_a_folder_for_its_cache(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    config = msgspec.structs.replace(engine_config(tmp_path / "model", tmp_path), adapter_store="s3://bucket")
    with contextlib.closing(Mailbox()) as mailbox, pytest.raises(SetupError, match="--adapter-cache-dir"):
        build_core(config, mailbox)


@pytest.mark.parametrize(
    ("endpoint", "model", "says"),
    [
        ("ipc:///no/such/folder/engine.sock", "model", "/no/such/folder"),
        ("ipc:///tmp/unused.sock", "nowhere", "config.json does not exist"),
    ],
)
def test_the_process_ends_with_one_line_and_a_code_of_its_own(
    endpoint: str, model: str, says: str, tmp_path: Path
) -> None:
    save_tiny("llama", tmp_path / "model")
    command = [sys.executable, "-m", "engine", "--endpoint", endpoint, "--model-dir", str(tmp_path / model)]
    ended = subprocess.run(
        [*command, "--adapter-store", str(tmp_path / "store"), "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == os.EX_CONFIG
    assert says in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("usual", "asked", "expected"),
    [("1", 0, 1), ("", 0, None), ("99999", 0, None), ("0", 0, None), ("2,1", 0, None), ("1", 1, 1)],
)
def test_the_usual_number_of_threads_is_kept_to(
    monkeypatch: pytest.MonkeyPatch, usual: str, asked: int, expected: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", usual)
    assert num_threads(asked) == (expected or len(os.sched_getaffinity(0)))
