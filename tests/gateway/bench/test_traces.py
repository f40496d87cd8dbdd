"""The program that measures traces: a row for each way, and every span at the collector."""

from __future__ import annotations

import pytest

from gateway.bench.traces import main


def test_the_benchmark_prints_a_row_for_each_sampling_and_loses_no_span(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--requests", "400", "--items", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[:4]] == [
        "without any trace",
        "off, with the client's traceparent",
        "always_off, with a collector",
        "always_on, with a collector",
    ]
    assert lines[2].endswith(" 0 spans sent") and lines[3].endswith(f" {3 * 420} spans sent")
