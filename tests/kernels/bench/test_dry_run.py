"""The benchmark runs from end to end without a GPU, and then claims no figures."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

from tests.patience import PATIENCE_S


@pytest.mark.skipif(torch.cuda.is_available(), reason="what runs where there is no GPU")
def test_a_dry_run_goes_through_every_case_and_measures_nothing() -> None:
    command = [sys.executable, "-m", "tests.interpreter", "kernels.bench", "--dry"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("LoRA", "decode attention", "prefill attention", "norm", "rotation", "SiLU", "sampling"):
        assert name in done.stdout
    assert "nothing is measured" in done.stdout
    assert not re.search(r"TB/s|floor|\bus\b", done.stdout)
