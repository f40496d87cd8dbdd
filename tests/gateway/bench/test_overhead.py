"""The benchmark of the gateway's own cost runs from nothing, and loses no request."""

from __future__ import annotations

import json

import pytest

from gateway.bench.overhead import main
from tests.demo import demo_model_dir


def test_every_row_is_there_and_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rates", "50", "--seconds", "0.5", "--gateways", "1", "--streams", "4", "--json"]
    assert main(["--model-dir", str(demo_model_dir()), *flags]) == 0
    at_rate, at_most = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (at_rate["offered_per_s"], at_most["offered_per_s"]) == (50, None)
    for row in (at_rate, at_most):
        assert (row["errors"], row["statuses"]) == (0, {"200": row["requests"]})
        assert 0 < row["ms_p50"] <= row["ms_p95"] <= row["ms_p99"]
        assert row["cpu_ms_per_request"] > 0
