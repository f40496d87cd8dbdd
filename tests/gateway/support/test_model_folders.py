"""A prepared model, even a converted one, is found in the folder that the preparation has written, by every driver."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec
import pytest

from gateway.agent.model import preparation_command
from gateway.db.pools.pools import PoolRow
from gateway.db.pools.revisions import RevisionRow
from gateway.db.pools.served import ServedPool
from gateway.domain.pools.drivers import Driver
from gateway.settings import Settings
from gateway.support.model_folders import on_this_machine, prepared_folder

NOW = datetime.datetime.now(datetime.UTC)
ELSEWHERE = "/a/folder/of/another/host"


def served(model: str, driver: Driver) -> ServedPool:
    """Return a pool with a model that another host prepared."""
    row = PoolRow("pool_1", "org_1", "some", 1, "all", 1, 1, NOW, {}, {})
    revision = RevisionRow(
        "pool_1",
        1,
        model,
        {},
        ELSEWHERE,
        "digest",
        False,
        1,
        "prepared",
        "",
        NOW,
        NOW,
        driver,
        driver != "lorikeet",
        [],
    )
    return ServedPool(row, [], {1: revision}, [], is_removed=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder with exactly one GGUF file."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "some.gguf").touch()
    return folder


@pytest.mark.parametrize("name", ["", "some.gguf"])
def test_a_gguf_source_of_vllm_is_converted_into_a_folder_that_the_host_finds_again(
    name: str, source: Path, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path / "data", model=str(source / name))
    *command, out = preparation_command(settings, converts=True)
    assert "--convert" in command and out.endswith("-converted")
    blocks = prepared_folder(settings)
    assert blocks != Path(out)
    blocks.mkdir(parents=True)
    assert on_this_machine(served(settings.model, "vllm"), settings).revisions[1].folder == ELSEWHERE, "not made yet"
    Path(out).mkdir()
    assert on_this_machine(served(settings.model, "vllm"), settings).revisions[1].folder == out
    assert on_this_machine(served(settings.model, "lorikeet"), settings).revisions[1].folder == str(blocks)
    named = msgspec.structs.replace(settings, model_name="another")
    assert prepared_folder(named, converts=True) == Path(out)


@pytest.mark.parametrize("model", ["demo", "demo-random", "owner/Model", "safetensors", "two"])
def test_what_is_no_gguf_source_has_one_folder_for_all_drivers(model: str, source: Path, tmp_path: Path) -> None:
    if model in ("safetensors", "two"):
        (source / ("model.safetensors" if model == "safetensors" else "other.gguf")).touch()
        model = str(source)
    settings = Settings(data_dir=tmp_path / "data", model=model)
    assert prepared_folder(settings, converts=True) == prepared_folder(settings)
