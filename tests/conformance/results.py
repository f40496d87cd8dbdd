"""The results of a suite: its cases, read from JUnit's XML as pytest and Node write it, and stored as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import msgspec

Outcome = Literal["passed", "failed", "refused", "skipped"]
"""The outcome of a case.

refused: the suite counts the case as failed, and the failure is meant; pytest's xfail.
"""


class Case(msgspec.Struct, frozen=True):
    """One case of a suite, with its outcome."""

    name: str
    outcome: Outcome
    reason: str = ""
    """The reason why the case was skipped, refused or failed, in one line."""
    figure: str = ""
    """A figure that the case measured, or ""."""


class Result(msgspec.Struct, frozen=True):
    """The result of a suite: its cases, or the reason why it did not run."""

    suite: str
    versions: list[str]
    """The versions of the suite's packages."""
    cases: list[Case] = []
    not_run: str = ""
    """The reason why nothing ran; then there are no cases."""
    tree: str = ""
    """The hash of the sources under test, see tree.py; "" where the sources changed while the suite ran."""

    def count(self, outcome: Outcome) -> int:
        return sum(case.outcome == outcome for case in self.cases)

    @property
    def is_good(self) -> bool:
        return not self.not_run and self.count("failed") == 0


def read_junit(path: Path) -> list[Case]:
    return [_case(element) for element in ElementTree.parse(path).getroot().iter("testcase")]


def _case(element: ElementTree.Element) -> Case:
    name = element.get("name", "").removeprefix("test_").replace("_", " ")
    figure = "; ".join(each.get("value", "") for each in element.iter("property") if each.get("name") == "figure")
    for tag in ("failure", "error"):
        found = element.find(tag)
        if found is not None:
            return Case(name, "failed", _line(found), figure)
    skipped = element.find("skipped")
    if skipped is not None:
        outcome: Outcome = "refused" if skipped.get("type") == "pytest.xfail" else "skipped"
        return Case(name, outcome, _line(skipped), figure)
    return Case(name, "passed", figure=figure)


def _line(element: ElementTree.Element) -> str:
    message = element.get("message") or element.text or ""
    return (message.strip().splitlines() or [""])[0]


def store_result(result: Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result.suite}.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))


def load_result(suite: str, folder: Path) -> Result | None:
    path = folder / f"{suite}.json"
    return msgspec.json.decode(path.read_bytes(), type=Result) if path.exists() else None


def to_run_again(suites: Sequence[str], tree: str, folder: Path) -> list[str]:
    """Return the names of suites without a stored result for these sources."""
    found = {suite: load_result(suite, folder) for suite in suites}
    return [suite for suite, result in found.items() if result is None or result.tree != tree]
