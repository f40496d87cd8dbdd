"""A real engine lets a model think before what it has to write, and holds that to its grammar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tests.e2e.installation import Installation
from tests.engine.models.tiny import save_tiny
from tests.gateway.model_folder import make_model_folder
from tests.gateway.text.tools.templates import QWEN_3
from tests.patience import PATIENCE_S

MARKS = ("<think>", "</think>")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
TOOL["function"]["parameters"]["additionalProperties"] = False  # type: ignore[index]


def test_what_has_to_be_written_follows_the_thinking(own_open_folder: Path) -> None:
    folder = make_model_folder(own_open_folder / "model")
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(QWEN_3)
    sizes = {"vocab_size": backend.get_vocab_size(), "eos_token_id": backend.token_to_id("<|im_end|>")}
    save_tiny("qwen3", folder, sizes)
    installation = Installation(own_open_folder / "data")
    installation.env |= {"LORIKEET_MODEL": str(folder), "LORIKEET_MODEL_NAME": "base", "LORIKEET_DTYPE": "float32"}
    installation.env |= {"LORIKEET_DEVICE": "cpu"}
    installation.start()
    try:
        assert installation.cli("tenant", "create", "acme").returncode == 0
        key = json.loads(installation.cli("key", "create", "--tenant", "acme", "--json").stdout)["key"]
        begin, end = (str(backend.token_to_id(mark)) for mark in MARKS)
        common = {
            "model": "base",
            "messages": [{"role": "user", "content": "yes or no"}],
            "max_tokens": 200,
            "n": 16,
            "seed": 1,
            "logit_bias": {begin: 2, end: 3},
        }

        def choices(**fields: Any) -> list[dict[str, Any]]:
            answer = httpx.post(
                f"{installation.url}/v1/chat/completions",
                json=common | fields,
                headers={"Authorization": f"Bearer {key}"},
                timeout=PATIENCE_S,
            )
            assert answer.status_code == 200, answer.text
            return [choice["message"] for choice in answer.json()["choices"] if choice["finish_reason"] != "length"]

        wanted = {"structured_outputs": {"choice": ["yes", "no"]}}
        said = choices(**wanted)
        assert {message["content"] for message in said} <= {"yes", "no"}
        assert {"reasoning_content" in message for message in said} == {True, False}, "some think and some do not"
        untaught = choices(**wanted, chat_template_kwargs={"enable_thinking": False})
        assert len(untaught) == 16 and all("reasoning_content" not in message for message in untaught)
        called = choices(tools=[TOOL], tool_choice="required")
        assert all(json.loads(call["function"]["arguments"]) == {} for each in called for call in each["tool_calls"])
        assert any("reasoning_content" in message for message in called)
        assert all(message["content"] is None for message in called)
    finally:
        installation.stop()
