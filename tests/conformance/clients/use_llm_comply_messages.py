"""Runs llm-comply's own cases for Anthropic's messages, each judged by llm-comply."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from llm_comply.tests import get_tests

FORMAT = "anthropic"
REFUSED = {"anth-image-input": "meant so: of a text model, blocks that are images are refused by name"}


@pytest.fixture(scope="session")
def results(place) -> dict[str, dict]:
    """Return llm-comply's result of each case, by the case's id."""
    command = [sys.executable, "-m", "llm_comply.cli", "--format", FORMAT, "--json", "--timeout", "300"]
    command += ["--base-url", place.url, "--api-key", place.key, "--model", place.model]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    return {result["id"]: result for result in json.loads(ended.stdout)["results"]}


@pytest.mark.parametrize("case", [case.id for case in get_tests(FORMAT)])
def test_case(results, case):
    result = results[case]
    said = "; ".join(result.get("errors", []))
    if result["status"] == "skipped":
        pytest.skip(said)
    if case in REFUSED:
        assert result["status"] == "failed" and "400" in said, f"it was to be refused: {result}"
        pytest.xfail(f"llm-comply says failed: {said}; {REFUSED[case]}")
    assert result["status"] == "passed", said
    assert not result.get("warnings"), result["warnings"]
