"""The hardware of a host, with its accelerators as CUDA calls them, and the part that an engine is told of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.__main__ import parse_arguments
from engine.config import EngineConfig
from gateway.agent.commands import address, engine_command, engine_environ
from gateway.agent.hardware import this_host
from gateway.settings import MAX_SOCKET_PATH_BYTES, Settings
from gateway.support.host import host_id

NVIDIA_SMI = """#!/bin/sh
case "$3" in
    "") printf '81920\\n40960\\n' ;;
    --id=1 | --id=GPU-b) echo 40960 ;;
    *) echo 81920 ;;
esac
"""


@pytest.fixture
def with_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fake `nvidia-smi` that lists two accelerators into a folder of PATH."""
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("device", "visible", "names", "gib"),
    [
        ("auto", None, ["0", "1"], [80, 40]),
        ("cuda", "1", ["1"], [40]),
        ("auto", "GPU-b, GPU-a", ["GPU-b", "GPU-a"], [40, 80]),
        ("auto", "", [], []),
        ("cpu", None, [], []),
    ],
)
@pytest.mark.usefixtures("with_gpus")
def test_accelerators_are_those_that_the_agent_may_see(
    device: str, visible: str | None, names: list[str], gib: list[int]
) -> None:
    found = this_host(device, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert (found.gpu_names, [each >> 30 for each in found.gpu_bytes]) == (names, gib)
    assert found.num_processors >= 1 and found.memory_bytes > 1 << 28 and found.name


def test_a_host_keeps_its_id_with_its_data_folder(tmp_path: Path) -> None:
    first = host_id(tmp_path)
    assert first.startswith("host_") and host_id(tmp_path) == first


def test_an_engine_sees_its_accelerator_alone_and_no_setting_or_secret() -> None:
    environ = {"PATH": "/bin", "LORIKEET_ADMIN_KEY": "secret", "DATABASE_URL": "postgresql://x"}
    assert engine_environ(environ) == {"PATH": "/bin"}
    given = engine_environ(environ | {"CUDA_VISIBLE_DEVICES": "0,1"}, "1")
    assert given == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_each_start_of_each_replica_has_a_socket_of_its_own_that_fits_however_deep_the_folder_is() -> None:
    for deep in (Settings(data_dir=Path("/d")), Settings(data_dir=Path("/" + "deep/" * 30))):
        starts = [(f"replica_{name * 24}", generation) for name in "ab" for generation in (1, 2, 16**6)]
        addresses = {address(deep.run_dir, *start) for start in starts}
        assert len(addresses) == len(starts)
        assert all(len(each.removeprefix("ipc://").encode()) <= MAX_SOCKET_PATH_BYTES for each in addresses)


def test_an_engine_reads_back_what_its_agent_gave_it() -> None:
    config = EngineConfig(model_dir="/m", endpoint="ipc:///e", adapter_store="/a", num_threads=2, unattended_s=600.0)
    assert parse_arguments(engine_command(config)[3:]) == config
