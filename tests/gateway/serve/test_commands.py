"""Children of `serve` get the settings as flags and variables that they understand."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from engine.__main__ import parse_arguments
from gateway.serve.commands import engine_command, gateway_environ
from gateway.settings import load_settings


@pytest.mark.parametrize("store", ["", "/elsewhere", "s3://bucket/prefix"])
def test_engine_and_gateway_use_one_store_and_one_cache_of_it(store: str) -> None:
    settings = load_settings({"LORIKEET_DATA_DIR": "/data", "LORIKEET_ADAPTER_STORE": store})
    command = engine_command(settings, Path("/model"))
    assert command[:3] == [sys.executable, "-m", "engine"]
    engine = parse_arguments(command[3:])
    assert engine.adapter_store == (store or "/data/adapters")
    assert engine.adapter_cache_dir == str(settings.adapter_cache_dir) == "/data/adapter-cache"
    assert engine == msgspec.structs.replace(settings.engine, model_dir="/model")
    environ = gateway_environ({}, settings, Path("/model"), "postgresql://db/x")
    read_back = load_settings({name: value for name, value in environ.items() if name.startswith("LORIKEET_")})
    assert read_back.engine == settings.engine
