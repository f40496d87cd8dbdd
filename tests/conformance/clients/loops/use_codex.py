"""Tests with Codex, as its users install it: a loop of two commands in a folder, over the engine that plays scripts."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

ARGUMENTS = ["exec", "--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
SWITCHES = ["-c", 'web_search="disabled"']
"""The options of Codex's command line that differ from its defaults.

The server runs no tools, so that searching the web has to be switched off.
"""

CONFIG = """\
model = "{model}"
model_provider = "lorikeet"

[model_providers.lorikeet]
name = "Lorikeet"
base_url = "{url}"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
request_max_retries = 0
stream_max_retries = 0
"""


@pytest.fixture
def codex(place, tmp_path):
    """Give a function that runs Codex on a prompt, in a folder with two files, and returns the lines that it prints."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (home / "config.toml").write_text(CONFIG.format(model=place.model, url=place.url))
    (work / "first.txt").write_text("alpha\n")
    (work / "second.txt").write_text("beta\n")

    def run(prompt: str, *more: str) -> list[dict]:
        command = [os.environ["CONFORMANCE_COMMANDS"] + "/codex", *ARGUMENTS, *SWITCHES, *more, prompt]
        ended = subprocess.run(
            command,
            cwd=work,
            env=os.environ | {"CODEX_HOME": str(home), "HOME": str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]

    return run


def done(events, kind: str) -> list[dict]:
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in items if item["type"] == kind]


@pytest.mark.parametrize("script", ["codex", "codex_thoughtful"])
def test_two_commands_are_run_and_their_output_is_answered(codex, script):
    events = codex(f"[script:{script}] What do the files say?")
    assert [item["aggregated_output"] for item in done(events, "command_execution")] == ["alpha\n", "beta\n"]
    assert [item["text"] for item in done(events, "agent_message")] == ["The files say: alpha and beta."]
    assert events[-1]["type"] == "turn.completed" and events[-1]["usage"]["output_tokens"] > 0


def test_reasoning_is_counted(codex):
    events = codex("[script:codex_thoughtful] What do the files say?")
    assert events[-1]["usage"]["reasoning_output_tokens"] > 0


def test_most_of_a_prompt_is_found_in_the_cache(codex):
    usage = codex("[script:codex] What do the files say?")[-1]["usage"]
    assert usage["cached_input_tokens"] >= 0.6 * usage["input_tokens"], "three requests, of which two have a prefix"
