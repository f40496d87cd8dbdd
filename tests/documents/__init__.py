"""The documents: their list, and the names in them. Knows nothing of their meaning."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TRACKED = frozenset(
    subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.splitlines()
)
"""Paths of all files, relative to the repository, including those that are not committed yet."""

FOLDERS = frozenset(str(parent) for name in TRACKED for parent in Path(name).parents if str(parent) != ".")
DOCUMENTS = sorted(name for name in TRACKED if name.endswith(".md"))
HISTORY = {"CHANGELOG.md", "gateway/LOG.md", "engine/LOG.md", "kernels/LOG.md"}
"""Documents about the past, which may name things that are gone."""

WRITTEN_BY_PROGRAMS = {"tests/conformance/README.md", "tests/conformance/fields.md"}
PRESENT = [name for name in DOCUMENTS if name not in HISTORY]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")


def text_of(name: str) -> str:
    """Return the text of a document."""
    return (REPOSITORY / name).read_text()


def blocks(name: str, language: str) -> list[str]:
    """Return a document's code blocks of one language."""
    return [text for found, text in _BLOCK.findall(text_of(name)) if found == language]


def prose(name: str) -> str:
    """Return a document's text without its code blocks."""
    return _BLOCK.sub("", text_of(name))


def quoted(name: str) -> list[str]:
    """Return every `quoted` piece of a document's prose."""
    return re.findall(r"`([^`\n]+)`", prose(name))


def links(name: str) -> list[str]:
    """Return the targets of a document's links and pictures."""
    return [link or picture for link, picture in _LINK.findall(prose(name))]


def target(name: str, link: str) -> tuple[str, str]:
    """Return (path relative to the repository, anchor) of a relative link in a document."""
    path, _, anchor = link.partition("#")
    if not path:
        return name, anchor
    return str((REPOSITORY / name).parent.joinpath(path).resolve().relative_to(REPOSITORY)), anchor


def anchors(name: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", prose(name), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def exists(path: str) -> bool:
    """Return whether a path, relative to the repository, is a file or a folder of the repository."""
    return path.rstrip("/") in TRACKED or path.rstrip("/") in FOLDERS
