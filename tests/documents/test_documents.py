"""Documents that are read first are short, all documents are found from README, and everything that they name
exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.settings import API_KEY_VARIABLE, CLIENT_VARIABLES, secret_variables, settings_table
from gateway.settings.secret_files import SUFFIX
from tests.browser.views import OF_THE_GUIDE
from tests.documents import (
    DOCUMENTS,
    PRESENT,
    REPOSITORY,
    TRACKED,
    WRITTEN_BY_PROGRAMS,
    anchors,
    exists,
    links,
    prose,
    quoted,
    target,
    text_of,
)

MAX_LINES = {"README.md": 180, "ARCHITECTURE.md": 150}
MAX_CELL = 130
"""The most characters of a table's cell as it is shown. Rows of settings are the settings' own texts."""

SECRETS = {*secret_variables(), API_KEY_VARIABLE}
ENVIRONMENT = {row.name for row in settings_table()} | CLIENT_VARIABLES | {f"{name}{SUFFIX}" for name in SECRETS}
SUFFIXES = (".py", ".md", ".toml", ".sql", ".js", ".css", ".jsonl")
PACKAGES = ("gateway", "engine", "kernels", "adapters", "tests")


@pytest.mark.parametrize("name", MAX_LINES)
def test_the_first_pages_stay_short(name: str) -> None:
    assert len(text_of(name).splitlines()) <= MAX_LINES[name]


@pytest.mark.parametrize(
    "name", sorted(set(PRESENT) - WRITTEN_BY_PROGRAMS - {"gateway/SETTINGS.md", "admin_ui/README.md"})
)
def test_no_cell_of_a_table_is_a_paragraph(name: str) -> None:
    rows = [line for line in prose(name).splitlines() if line.startswith("|")]
    shown = [re.sub(r"\]\([^)]*\)|<img[^>]*>", "", cell).strip() for row in rows for cell in row.split("|")]
    assert [cell for cell in shown if len(cell) > MAX_CELL] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_link_leads_somewhere(name: str) -> None:
    relative = [link for link in links(name) if "://" not in link and not link.startswith("mailto:")]
    targets = {link: target(name, link) for link in relative}
    assert [link for link, (path, _) in targets.items() if not exists(path)] == []
    headed = {link: (path, anchor) for link, (path, anchor) in targets.items() if anchor and path.endswith(".md")}
    assert [link for link, (path, anchor) in headed.items() if anchor not in anchors(path)] == []


def test_every_page_is_found_from_readme_at_once_or_through_one_other() -> None:
    def linked(name: str) -> set[str]:
        return {target(name, link)[0] for link in links(name) if "://" not in link}

    first = linked("README.md")
    second = set().union(*(linked(name) for name in first if name.endswith(".md")))
    assert set(DOCUMENTS) - {"README.md"} - first - second == {"admin_ui/vendor/VENDORED.md"}


@pytest.mark.parametrize("name", PRESENT)
def test_every_path_that_a_document_names_exists(name: str) -> None:
    basenames = {Path(path).name for path in TRACKED}
    missing = []
    for piece in quoted(name):
        if re.fullmatch(r"[\w.-]+/[\w./-]*", piece):
            first, near = piece.split("/")[0], Path(name).parent
            is_path = exists(first) or exists(str(near / first))
            missing += [piece] if is_path and not exists(piece) and not exists(str(near / piece)) else []
        elif re.fullmatch(r"[\w-]+\.\w+", piece) and piece.endswith(SUFFIXES):
            missing += [piece] if piece not in basenames else []
    assert missing == []


def package_docstrings() -> list[str]:
    return sorted(name for name in TRACKED if name.endswith("__init__.py") and name.startswith(PACKAGES))


def is_there(dotted: str) -> bool:
    """Return whether a dotted name leads to a package, to a module, or to something that a module holds."""
    path, *rest = dotted.split(".")
    for part in rest:
        path = f"{path}/{part}"
        if exists(f"{path}.py"):
            return True
        if not exists(path):
            return part[0].isupper()
    return True


@pytest.mark.parametrize("name", [*PRESENT, *package_docstrings()])
def test_every_module_that_is_named_exists(name: str) -> None:
    pieces = quoted(name) if name.endswith(".md") else re.findall(r"`([\w.]+)`", text_of(name))
    dotted = [piece for piece in pieces if re.fullmatch(r"\w+(\.\w+)+", piece) and not piece.endswith(SUFFIXES)]
    assert [piece for piece in dotted if piece.split(".")[0] in PACKAGES and not is_there(piece)] == []


@pytest.mark.parametrize("name", PRESENT)
def test_every_setting_that_a_document_names_is_one(name: str) -> None:
    assert set(re.findall(r"\bLORIKEET_[A-Z_]*[A-Z]\b", text_of(name))) - ENVIRONMENT == set()


@pytest.mark.parametrize("name", PRESENT)
def test_every_verb_of_make_exists(name: str) -> None:
    verbs = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z][\w-]*)", text_of(name), re.MULTILINE)) - verbs == set()


def test_every_metric_that_operators_are_told_of_is_exported() -> None:
    code = "".join(text_of(name) for name in TRACKED if name.startswith("gateway/") and name.endswith(".py"))
    named = set(re.findall(r"`((?:lorikeet_|vllm:)\w+)`", text_of("gateway/OPERATE.md")))
    assert {
        name
        for name in named
        if name.removesuffix("_total").removeprefix("lorikeet_").removeprefix("vllm:") not in code
    } == set()


def test_every_screenshot_is_shown_and_taken_by_make_screenshots() -> None:
    pictures = {name for name in TRACKED if name.startswith("admin_ui/screenshots/")}
    assert pictures == {target("README.md", link)[0] for link in links("README.md") if link.endswith(".png")}
    taken = {f"admin_ui/screenshots/{mode}-{view}.png" for mode, view in OF_THE_GUIDE}
    assert pictures - taken == {"admin_ui/screenshots/light-playground.png"}
    assert '"guide/light-playground"' in (REPOSITORY / "tests/browser/test_playground.py").read_text()
    assert "cp build/screenshots/guide/*.png admin_ui/screenshots/" in text_of("Makefile")
