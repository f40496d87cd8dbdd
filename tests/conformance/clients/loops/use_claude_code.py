"""Tests with Claude Code, as its users install it: a loop of two commands in a folder, over the engine that plays
scripts."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

ANSWER = "The files say: alpha and beta."
ARGUMENTS = ["--allowedTools", "Bash", "--output-format", "stream-json", "--verbose"]


@pytest.fixture
def claude(place, tmp_path):
    """Give a function that runs Claude Code on a prompt, in a folder with two files, and returns the lines
    it prints."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "first.txt").write_text("alpha\n")
    (work / "second.txt").write_text("beta\n")
    asked = {
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": place.url.removesuffix("/v1"),
        "ANTHROPIC_AUTH_TOKEN": place.key,
        "ANTHROPIC_MODEL": place.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }

    def run(prompt: str, *more: str) -> list[dict]:
        ended = subprocess.run(
            [os.environ["CONFORMANCE_COMMANDS"] + "/claude", "-p", prompt, *ARGUMENTS, *more],
            cwd=work,
            env=os.environ | asked,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]

    return run


def results(events) -> list[str]:
    """Return the output of each shell command that Claude Code ran, in order."""
    contents = [event["message"]["content"] for event in events if event["type"] == "user"]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [block["content"].strip() for block in blocks if block["type"] == "tool_result"]


@pytest.mark.parametrize("script", ["claude", "claude_thoughtful"])
def test_two_commands_are_run_and_their_output_is_answered(claude, script):
    events = claude(f"[script:{script}] What do the files say?")
    assert results(events) == ["alpha", "beta"]
    assert events[-1]["result"] == ANSWER and not events[-1]["is_error"]


def test_a_second_turn_finds_its_prefix_in_the_cache(claude):
    first = claude("[script:claude] What do the files say?")[-1]
    second = claude("Thanks. And now?", "--continue")[-1]
    usage = second["usage"]
    earlier = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
    assert second["result"] == "Fine." and usage["cache_read_input_tokens"] > 0
    assert usage["cache_read_input_tokens"] >= 0.95 * earlier / first["num_turns"], usage
