"""SECURITY.md answers each requirement of ASVS 5.0.0 up to level 2 once, and names the tests of what passes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.documents import REPOSITORY, text_of

REQUIREMENTS = """
1.1.1-2 1.2.1-9 1.3.1-11 1.4.1-3 1.5.1-2 2.1.1-3 2.2.1-3 2.3.1-4 2.4.1 3.2.1-2 3.3.1-4 3.4.1-6 3.5.1-5 3.7.1-2
4.1.1-3 4.2.1 4.3.1-2 4.4.1-4 5.1.1 5.2.1-3 5.3.1-2 5.4.1-3 6.1.1-3 6.2.1-12 6.3.1-4 6.4.1-4 6.5.1-5 6.6.1-3
6.8.1-4 7.1.1-3 7.2.1-4 7.3.1-2 7.4.1-5 7.5.1-2 7.6.1-2 8.1.1-2 8.2.1-3 8.3.1 8.4.1 9.1.1-3 9.2.1-4 10.1.1-2
10.2.1-2 10.3.1-4 10.4.1-11 10.5.1-5 10.6.1-2 10.7.1-3 11.1.1-2 11.2.1-3 11.3.1-3 11.4.1-4 11.5.1 11.6.1
12.1.1-3 12.2.1-2 12.3.1-4 13.1.1 13.2.1-5 13.3.1-2 13.4.1-5 14.1.1-2 14.2.1-4 14.3.1-3 15.1.1-3 15.2.1-3
15.3.1-7 16.1.1 16.2.1-5 16.3.1-4 16.4.1-3 16.5.1-3 17.1.1 17.2.1-4 17.3.1-2
"""
"""The numbers of the requirements of levels 1 and 2, as the standard's own list has them."""

TESTS = REPOSITORY / "tests"
RANGE = re.compile(r"(?<![\w.])(\d+\.\d+)\.(\d+)(?:-(\d+))?")
CHAPTER = re.compile(r"\bV(\d+)\b")
NAMED = re.compile(r"`((?:tests/[\w/]*|test_\w+)(?:\.py)?)`")


def numbers(text: str) -> Iterator[str]:
    """Yield each requirement that a text names, alone or in a range such as 1.2.1-5."""
    for section, first, last in RANGE.findall(text):
        yield from (f"{section}.{number}" for number in range(int(first), int(last or first) + 1))


ALL = list(numbers(REQUIREMENTS))


def answered_by(text: str) -> Iterator[str]:
    """Yield each requirement that the first cell of a row names, those of whole chapters such as V9 too."""
    yield from numbers(text)
    for chapter in CHAPTER.findall(text):
        yield from (each for each in ALL if each.startswith(f"{chapter}."))


def rows(head: str) -> list[list[str]]:
    """Return the cells of each row of the table in SECURITY.md whose first line is `head`."""
    lines = text_of("SECURITY.md").splitlines()
    (begin,) = (number for number, line in enumerate(lines) if line == head)
    found = []
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


PASS = rows("| requirements | pass by |")
OTHERS = [*rows("| does not apply | since |"), *rows("| does not pass | why |")]


def test_the_standard_has_253_requirements_up_to_level_2() -> None:
    assert len(ALL) == len(set(ALL)) == 253


def test_each_requirement_has_one_row() -> None:
    answered = Counter(number for row in (*PASS, *OTHERS) for number in answered_by(row[0]))
    assert sorted(set(ALL) - set(answered)) == [], "they are answered nowhere"
    assert sorted(set(answered) - set(ALL)) == [], "the standard has no such requirements at these levels"
    assert [number for number, times in answered.items() if times > 1] == []


@pytest.mark.parametrize("row", PASS, ids=lambda row: row[0].split(":")[0])
def test_each_pass_names_a_test_that_there_is(row: list[str]) -> None:
    named = NAMED.findall(row[1])
    assert named, "no test is named"
    for name in named:
        found = (REPOSITORY / name).exists() if name.startswith("tests/") else any(TESTS.rglob(name))
        assert found, f"there is no {name}"


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row[0].split(":")[0])
def test_each_requirement_that_does_not_apply_or_pass_has_a_reason(row: list[str]) -> None:
    assert len(row[1].split()) >= 4
