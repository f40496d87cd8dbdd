"""The page is what its script makes of results, and it names everything that is run."""

from __future__ import annotations

import re

import pytest

from tests.conformance.page import page
from tests.conformance.results import Case, Result, read_junit
from tests.conformance.suites import CLIENTS, HERE, REPOSITORY, SUITES
from tests.gateway.openai.field_matrix import FIELDS

PAGE = (HERE / "README.md").read_text()


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_every_suite_is_on_the_page_with_the_versions_it_pins(suite):
    assert f"## {suite.title}\n" in PAGE
    if suite.runtime != "repository":
        assert all(re.fullmatch(r"@?[a-z/-]+(\[[a-z]+\])?(==|@)\d+(\.\d+)+", package) for package in suite.packages)
        assert all(f"`{version}`" in PAGE for version in suite.versions())


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_scripts_of_every_suite_are_here(suite):
    folder = REPOSITORY if suite.runtime == "repository" else CLIENTS
    assert all((folder / script).exists() for script in suite.scripts)


def test_nothing_on_the_page_failed_and_what_was_skipped_says_why():
    assert "- failed: " not in PAGE and "Not run: " not in PAGE and "| not run |" not in PAGE
    for line in PAGE.splitlines():
        assert not line.startswith(("- skipped: ", "- refused: ")) or line.endswith(")"), line


def test_the_page_says_of_which_tree_it_is_and_how_many_cases_there_were():
    assert re.search(r"^    [0-9a-f]{40}$", PAGE, re.MULTILINE)
    assert re.search(r"\d+ cases of \d+ of \d+ operations; left out: suspend_organization, which ", PAGE)
    assert "- refused: case[chat-image-input] (llm-comply says failed: " in PAGE


def test_results_are_read_from_what_pytest_and_node_write(tmp_path):
    path = tmp_path / "junit.xml"
    path.write_text(
        """<testsuites><testsuite>
        <testcase name="test_a_good_one"><properties><property name="figure" value="3 of 3"/></properties></testcase>
        <testcase name="test_bad[one]"><failure message="AssertionError: 1 == 2&#10;more">trace</failure></testcase>
        <testsuite><testcase name="left out"><skipped message="no model"/></testcase></testsuite>
        <testcase name="test_meant"><skipped type="pytest.xfail" message="it says failed"/></testcase>
        <testcase name="test_broken"><error>OSError: gone</error></testcase>
        </testsuite></testsuites>"""
    )
    assert read_junit(path) == [
        Case("a good one", "passed", figure="3 of 3"),
        Case("bad[one]", "failed", "AssertionError: 1 == 2"),
        Case("left out", "skipped", "no model"),
        Case("meant", "refused", "it says failed"),
        Case("broken", "failed", "OSError: gone"),
    ]


def test_what_failed_and_what_did_not_run_shows():
    first, second, *others = SUITES
    results = {
        first.name: Result(first.name, ["a==1"], [Case("x", "passed"), Case("y", "failed", "1 | 2")], tree="t"),
        second.name: Result(second.name, ["b==2"], not_run="npm is not installed", tree="t"),
    }
    made = page([first, second, *others], results, FIELDS, "t")
    assert "- failed: y (1 \\| 2)" in made and "| 1 | 1 | 0 | 0 |" in made
    assert "Not run: npm is not installed" in made and made.count("| not run |") == len(SUITES) - 1
    assert "| `POST /v1/chat/completions` |" in made
