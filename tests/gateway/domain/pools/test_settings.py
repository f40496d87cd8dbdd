"""A pool's engines are set by its revision, else by the host; a host's setting without effect is named."""

from __future__ import annotations

import msgspec
import pytest

from engine.config import EngineConfig
from gateway.domain.pools.settings import POOL_SETTINGS, BadSetting, differences, engine_config, parse_settings

HOST = EngineConfig(model_dir="", endpoint="ipc:///x", adapter_store="/adapters", max_num_seqs=8)


def test_a_revision_overrides_the_host_and_leaves_the_rest() -> None:
    config = engine_config(HOST, {"max_waiting": "7", "kv_cache_bytes": "64MiB", "dtype": "float32"})
    assert config == msgspec.structs.replace(HOST, max_waiting=7, kv_cache_bytes=64 << 20, dtype="float32")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"endpoint": "ipc:///y"}, "'endpoint' is no setting of a pool"),
        ({"speed": "1"}, "'speed' is no setting of a pool"),
        ({"max_waiting": "0"}, "max_waiting='0': Expected a whole number >= 1"),
        ({"device": "tpu"}, "device='tpu': Expected one of auto, cpu, cuda"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], why: str) -> None:
    with pytest.raises(BadSetting, match="^" + why.replace("(", r"\(")) as refused:
        parse_settings(settings)
    assert [refused.value.name] == list(settings)


def test_paths_and_addresses_of_engines_are_no_settings_of_pools() -> None:
    assert not {"model_dir", "endpoint", "adapter_store"} & set(POOL_SETTINGS)
    assert {"device", "max_model_len", "num_threads"} <= set(POOL_SETTINGS)


def test_environment_settings_without_effect_are_named() -> None:
    def named(host: EngineConfig = HOST, name: str = "tiny", model: str = "demo") -> dict[str, str]:
        row = {"max_num_seqs": "4", "max_waiting": "9"}
        return differences(host, row, name="tiny", model="demo", wanted_name=name, wanted_model=model)

    assert named() == {"max_num_seqs": "4"}, "max_waiting is left at its default, which says nothing"
    assert named(msgspec.structs.replace(HOST, max_num_seqs=4)) == {}
    assert named(name="other", model="org/name") == {"model_name": "tiny", "model": "demo", "max_num_seqs": "4"}
