"""The balancers of `deploy/proxy` accept their shipped configurations."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.deploy.balancers import FILES, commands, configured, program


@pytest.mark.parametrize("name", FILES)
def test_a_balancer_takes_the_file_that_is_shipped(name: str, tmp_path: Path) -> None:
    path = configured(name, tmp_path, 8443, [8001, 8002])
    found = program(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    checked = subprocess.run(commands(name, found, path)[0], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
