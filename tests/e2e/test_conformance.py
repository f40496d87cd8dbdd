"""The official client's suite, validating strictly, as `make conformance` runs it, with the installed client."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tests.conformance.run import pytest_command, run_command
from tests.conformance.site import prepare
from tests.conformance.suites import SUITES
from tests.e2e.installation import Installation

SCRIPTS = ("embeddings_and_models", "errors", "stored")
"""Scripts that other tests do not cover; chats, completions, tools and structured output have tests of their own."""


def test_the_official_client_finds_nothing_wrong(installation: Installation, tmp_path: Path) -> None:
    (suite,) = (suite for suite in SUITES if suite.name == "openai-python")
    some = msgspec.structs.replace(suite, scripts=tuple(f"openai_python/{name}.py" for name in SCRIPTS))
    result = run_command(some, pytest_command(Path(sys.executable), some), prepare(installation), tmp_path)
    assert not result.not_run
    assert [case for case in result.cases if case.outcome != "passed"] == []
    assert result.count("passed") >= 28
