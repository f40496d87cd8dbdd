"""A suite counts as run when its script ends well and wrote the result of at least one case, of the sources as they
are."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tests.conformance.results import Case, Result, store_result, to_run_again
from tests.conformance.run import run_command
from tests.conformance.site import Site
from tests.conformance.suites import SUITES
from tests.conformance.tree import AS_GIT_NAMES_IT, PARTS, tree_of

SUITE = msgspec.structs.replace(SUITES[0], timeout_s=30.0)
PASSED, FAILED = '<testcase name="a"/>', '<testcase name="a"><failure message="no"/></testcase>'


def ran(folder, written: str | None, code: int) -> Result:
    """Return the result of running a script that writes `written`, and exits with `code`.

    written: what the script writes to the file of its result; None: nothing. code: the exit status.
    """
    script = "import pathlib, sys; path, written, code = sys.argv[1:]\n"
    script += "if written: pathlib.Path(path).write_text(written)\nsys.exit(int(code))"
    command = [sys.executable, "-c", script, "{junit}", written or "", str(code)]
    return run_command(SUITE, command, Site("http://none", "", "", ""), folder)


@pytest.mark.parametrize(
    ("written", "code", "said"),
    [
        (None, 0, "exit code 0 without results"),
        ("<testsuite>", 0, "exit code 0 without results"),
        ("<testsuite/>", 0, "exit code 0 without a single case"),
        ("<testsuite/>", 5, "exit code 5 without a single case"),
        (f"<testsuite>{PASSED}</testsuite>", 3, "exit code 3 though no case failed"),
    ],
    ids=["nothing", "cut-off", "no-cases", "none-collected", "broke-down"],
)
def test_a_suite_that_says_nothing_sound_did_not_run(tmp_path, written, code, said):
    result = ran(tmp_path, written, code)
    assert said in result.not_run and not result.cases and not result.is_good


def test_a_suite_that_says_what_failed_ran(tmp_path):
    assert ran(tmp_path, f"<testsuite>{PASSED}</testsuite>", 0) == Result(
        SUITE.name, SUITE.versions(), [Case("a", "passed")]
    )
    failed = ran(tmp_path, f"<testsuite>{FAILED}</testsuite>", 1)
    assert not failed.not_run and failed.cases == [Case("a", "failed", "no")] and not failed.is_good


def test_suites_with_results_of_another_tree_are_to_be_run_again(tmp_path):
    store_result(Result("now", [], tree="new"), tmp_path)
    store_result(Result("before", [], tree="old"), tmp_path)
    store_result(Result("meanwhile", []), tmp_path)
    assert to_run_again(["now", "before", "meanwhile", "never"], "new", tmp_path) == ["before", "meanwhile", "never"]


def test_a_tree_is_named_as_git_names_it_with_what_is_not_committed(tmp_path):
    for part in (*PARTS, "tests"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "code.py").write_text(part)
    for command in ("init", "add .", "-c user.name=a -c user.email=a@example.com commit -m first"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    first = tree_of(tmp_path)
    named = subprocess.run(AS_GIT_NAMES_IT, shell=True, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert first == named.stdout.strip()
    (tmp_path / "tests" / "code.py").write_text("another test")
    assert tree_of(tmp_path) == first
    (tmp_path / "gateway" / "new.py").write_text("not committed")
    assert tree_of(tmp_path) != first
    staged = subprocess.run(["git", "status", "--short"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert staged.stdout.splitlines() == [" M tests/code.py", "?? gateway/new.py"]
