"""Programs that the documents show run as they stand, in a folder where `lorikeet serve` has its data."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.documents import PRESENT, REPOSITORY, blocks
from tests.e2e.installation import BASE, Installation
from tests.figures import figure
from tests.patience import PATIENCE_S

EXCERPTS = "CONTRIBUTING.md"
"""The page whose code blocks are parts of files rather than programs."""

PROGRAMS = [text for name in PRESENT if name != EXCERPTS for text in blocks(name, "python")]
MARKS = (
    "stream=True",
    "from langchain_openai",
    "response_format=",
    "tools=[{",
    "embeddings.create",
    "from peft",
    "responses.stream",
    "conversations.create",
    "from anthropic",
    "background=True",
    "responses.compact",
    "notes.txt",
    "batches.create",
    "from agents",
    "/rerank",
)
"""Words of which each is in one program of the README alone, by which the program's test finds it."""


@pytest.fixture
def folder(installation: Installation, tmp_path: Path) -> Path:
    (tmp_path / ".lorikeet").symlink_to(installation.data_dir)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "adapters").symlink_to(REPOSITORY / "adapters")
    return tmp_path


def program(mark: str, programs: list[str] = PROGRAMS) -> str:
    (found,) = [text for text in programs if mark in text]
    return found


def run(installation: Installation, folder: Path, text: str, patience_s: float = PATIENCE_S) -> str:
    """Return the output of a Python program, run with the variables that README has people read from `demo.env`.

    patience_s: the most seconds that the program may take.
    """
    return _output([sys.executable, "-c", text], folder, os.environ | installation.keys, patience_s)


def run_in_shell(installation: Installation, folder: Path, text: str) -> str:
    """Return the output of a shell's program, run beside the data folder of a server on a port of its own."""
    return _output(["bash", "-euo", "pipefail", "-c", text], folder, installation.env)


def _output(command: list[str], folder: Path, environ: dict[str, str], patience_s: float = PATIENCE_S) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=patience_s, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_program_is_run_here() -> None:
    assert sorted(program(mark) for mark in MARKS) == sorted(PROGRAMS)


def test_ranking_is_asked_of_a_model_that_ranks(installation: Installation, folder: Path) -> None:
    """The demo's model makes text: the program reaches it, and is refused for the model's task."""
    text = program("/rerank").replace("bge-reranker-v2-m3", "smollm2-135m-instruct")
    call = """
import os
try:
    ranked(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
except httpx.HTTPStatusError as error:
    print(error.response.status_code, error.response.json()["error"]["param"])
"""
    assert run(installation, folder, text + call) == "400 model\n"


def test_openais_client_streams_an_adapter(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("stream=True")).startswith("Arr")


@pytest.mark.skipif(importlib.util.find_spec("langchain_openai") is None, reason="langchain-openai is not installed")
def test_langchain_asks_an_adapter(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("from langchain_openai")).startswith("Arr")


@pytest.mark.skipif(importlib.util.find_spec("agents") is None, reason="openai-agents is not installed")
def test_openais_agents_ask_an_adapter(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("from agents"))


def test_a_response_is_made_whole_and_streamed(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("responses.stream")).startswith("Arr")


def test_responses_go_on_in_a_conversation(installation: Installation, folder: Path) -> None:
    assert installation.cli("tenant", "modify", "acme", "--store-days", "1").returncode == 0
    try:
        answers = run(installation, folder, program("conversations.create"))
    finally:
        assert installation.cli("tenant", "modify", "acme", "--store-days", "0").returncode == 0
    assert answers.startswith("Arr") and len(answers.splitlines()) > 1


@pytest.mark.skipif(importlib.util.find_spec("anthropic") is None, reason="anthropic is not installed")
def test_anthropics_client_asks_an_adapter(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("from anthropic")).startswith("Arr")


def test_a_response_is_made_in_the_background(installation: Installation, folder: Path) -> None:
    assert installation.cli("tenant", "modify", "acme", "--store-days", "1").returncode == 0
    try:
        answer = run(installation, folder, program("background=True"))
    finally:
        assert installation.cli("tenant", "modify", "acme", "--store-days", "0").returncode == 0
    assert answer.startswith(("completed Arr", "incomplete Arr"))


def test_a_conversation_goes_on_from_its_summary(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("responses.compact")).strip()


def test_a_file_is_stored_and_read(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("notes.txt")) == "The capital of France is Paris.\n"


def test_lines_are_labelled_with_two_adapters_in_a_batch(installation: Installation, folder: Path, full: bool) -> None:
    """Six lines will do, and all thousand of them at full size."""
    text, num_lines = program("batches.create"), 1000 if full else 6
    assert "range(1000)" in text
    began_s = time.monotonic()
    text = text.replace("range(1000)", f"range({num_lines})")
    shown = run(installation, folder, text, (10 if full else 1) * PATIENCE_S).splitlines()
    assert shown[0] == f"completed {num_lines} of {num_lines}" and len(shown) >= 4
    if full:
        figure(f"{num_lines:,} lines of two adapters labelled in {time.monotonic() - began_s:.0f} s")


def test_an_answer_is_held_to_a_schema(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("response_format=")).strip() in ("Paris", "Rome")


def test_a_tool_is_called(installation: Installation, folder: Path) -> None:
    name, _, arguments = run(installation, folder, program("tools=[{")).partition(" ")
    assert name == "weather" and isinstance(json.loads(arguments)["city"], str)


def test_texts_are_embedded(installation: Installation, folder: Path) -> None:
    assert run(installation, folder, program("embeddings.create")).startswith("2 vectors, ")


def test_what_peft_trains_can_be_added(installation: Installation, folder: Path) -> None:
    """A single step of training suffices here."""
    text = program("from peft")
    assert "range(20)" in text
    run(installation, folder, text.replace("range(20)", "range(1)"))
    assert installation.cli("tenant", "create", "readme").returncode == 0
    added = installation.cli("adapter", "add", str(folder / "adapter"), "--tenant", "readme", "--name", "support")
    assert added.returncode == 0 and f"{BASE}:support" in added.stdout, added.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_first_request_of_readme_is_answered(installation: Installation, folder: Path) -> None:
    text = program("demo.env", blocks("README.md", "sh"))
    reply = json.loads(run_in_shell(installation, folder, text))
    assert reply["choices"][0]["message"]["content"].startswith("Arr")


def test_the_first_adapter_of_readme_answers(installation: Installation, folder: Path) -> None:
    text = program("adapter add", blocks("README.md", "sh"))
    assert "Arr" in run_in_shell(installation, folder, text)


def test_a_terminal_talks_to_the_demo_without_being_told_where_it_is(installation: Installation) -> None:
    asked = installation.cli(
        "chat", "--model", f"{BASE}:pirate", "--temperature", "0", "What is the capital of France?"
    )
    assert (asked.returncode, asked.stderr) == (0, "") and asked.stdout.startswith("Arr")
