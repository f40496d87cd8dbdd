"""Tests with the `llm` command line, with this API among its extra models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

QUESTION = "What is the capital of France?"
OPTIONS = ["-m", "lorikeet", "-o", "max_tokens", "4", "-o", "temperature", "0"]


@pytest.fixture(scope="module")
def home(place, tmp_path_factory) -> Path:
    """Give a folder of llm's settings that names this server."""
    folder = tmp_path_factory.mktemp("llm")
    models = [
        _model(place, "lorikeet", place.model, supports_schema=True, supports_tools=True),
        _model(place, "lorikeet-text", place.base, completion=True),
    ]
    (folder / "extra-openai-models.yaml").write_text(json.dumps(models))  # JSON is YAML
    (folder / "keys.json").write_text(json.dumps({"lorikeet": place.key}))
    return folder


def _model(place, model_id: str, name: str, **what: bool) -> dict[str, object]:
    return {"model_id": model_id, "model_name": name, "api_base": place.url, "api_key_name": "lorikeet"} | what


def llm(home: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    ended = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        env=environ | {"LLM_USER_PATH": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_a_stream_says_what_a_whole_reply_says(home):
    streamed = llm(home, *OPTIONS, QUESTION)
    assert streamed and llm(home, *OPTIONS, "--no-stream", QUESTION) == streamed


def test_a_system_prompt_and_a_conversation(home):
    assert llm(home, *OPTIONS, "--system", "Answer in French.", QUESTION)
    assert llm(home, *OPTIONS, "--continue", "And of Italy?")


def test_a_schema(home):
    properties = {"size": {"enum": ["small", "large"]}}
    schema = {"type": "object", "properties": properties, "required": ["size"], "additionalProperties": False}
    options = ["-m", "lorikeet", "-o", "max_tokens", "48", "--schema", json.dumps(schema)]
    assert json.loads(llm(home, *options, QUESTION))["size"] in ("small", "large")


def test_a_tool_that_may_be_called(home):
    assert llm(
        home, "-m", "lorikeet", "-o", "max_tokens", "48", "-o", "temperature", "0", "-T", "llm_version", QUESTION
    )


def test_text_completions(home):
    assert llm(home, "-m", "lorikeet-text", "-o", "max_tokens", "4", "Once upon a time")


def test_usage_is_logged(home):
    llm(home, *OPTIONS, QUESTION)
    (last,) = json.loads(llm(home, "logs", "list", "-n", "1", "--json"))
    assert last["output_tokens"] == 4
