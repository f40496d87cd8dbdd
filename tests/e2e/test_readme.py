"""What README shows in Python runs as it stands, in a folder where `lorikeet serve` has its data."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.installation import BASE, Installation
from tests.patience import PATIENCE_S

README = Path(__file__).parents[2] / "README.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
NAMES = {"from openai": "openai", "from langchain_openai": "langchain", "from peft": "peft"}


@pytest.fixture
def folder(installation: Installation, tmp_path: Path) -> Path:
    (tmp_path / ".lorikeet").symlink_to(installation.data_dir)
    return tmp_path


def program(first_words: str) -> str:
    (found,) = [text for text in PROGRAMS if first_words in text]
    return found


def run(installation: Installation, folder: Path, text: str) -> str:
    """Its output, with the variables that README has people read from `demo.env`."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=os.environ | installation.keys,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_program_is_run_here() -> None:
    assert sorted(next(name for words, name in NAMES.items() if words in text) for text in PROGRAMS) == sorted(
        NAMES.values()
    )


def test_openais_client_streams_an_adapter(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("from openai")).startswith("Arr")


@pytest.mark.skipif(importlib.util.find_spec("langchain_openai") is None, reason="langchain-openai is not installed")
def test_langchain_asks_an_adapter(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("from langchain_openai")).startswith("Arr")


def test_what_peft_trains_can_be_added(installation: Installation, folder: Path) -> None:
    """One step will do."""
    text = program("from peft")
    assert "range(20)" in text
    run(installation, folder, text.replace("range(20)", "range(1)"))
    assert installation.cli("tenant", "create", "readme").returncode == 0
    added = installation.cli("adapter", "add", str(folder / "adapter"), "--tenant", "readme", "--name", "support")
    assert added.returncode == 0 and f"{BASE}:support" in added.stdout, added.stderr


def test_a_terminal_talks_to_the_demo_without_being_told_where_it_is(installation: Installation) -> None:
    asked = installation.cli(
        "chat", "--model", f"{BASE}:pirate", "--temperature", "0", "What is the capital of France?"
    )
    assert (asked.returncode, asked.stderr) == (0, "") and asked.stdout.startswith("Arr")
