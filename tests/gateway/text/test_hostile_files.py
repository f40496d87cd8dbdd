"""A tokenizer's files that cannot be used are refused with the name of the file, and of the key that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.text.tokenizer import Tokenizer
from gateway.text.tokenizer_files import BadTokenizer
from tests.gateway.model_folder import make_model_folder

CONFIG, OLDER = "tokenizer_config.json", "special_tokens_map.json"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("tokenizer.json", "[" * 10**5, "tokenizer.json cannot be read"),
        (CONFIG, "[]", f"{CONFIG} holds no JSON object"),
        (CONFIG, "{" * 3, f"{CONFIG} is no JSON"),
        (CONFIG, '{"a":' * 10**5, f"{CONFIG} is no JSON"),
        (CONFIG, {"bos_token": 7}, f"{CONFIG}: bos_token must be the text of a token"),
        (CONFIG, {"bos_token": {"lstrip": True, "text": "x"}}, f"{CONFIG}: bos_token must have texts, or objects"),
        (CONFIG, {"extra_special_tokens": 3}, f"{CONFIG}: extra_special_tokens must be a list"),
        (CONFIG, {"extra_special_tokens": [None]}, f"{CONFIG}: extra_special_tokens must have texts, or objects"),
        (CONFIG, {"added_tokens_decoder": []}, f"{CONFIG}: added_tokens_decoder must have tokens by their ids"),
        (CONFIG, {"added_tokens_decoder": {"x": "a"}}, f"{CONFIG}: added_tokens_decoder must have tokens by"),
        (CONFIG, {"added_tokens_decoder": {"1": [1]}}, f"{CONFIG}: added_tokens_decoder must have texts, or objects"),
        (CONFIG, {"chat_template": 3}, f"{CONFIG}: chat_template must be a text, or a list"),
        (CONFIG, {"chat_template": [{"name": "default"}]}, f"{CONFIG}: chat_template must be a text, or a list"),
        (CONFIG, {"chat_template": "{% if %}"}, "the chat template of"),
        (OLDER, {"additional_special_tokens": 3}, f"{OLDER}: extra_special_tokens must be a list"),
        ("added_tokens.json", {"<a>": "x"}, "added_tokens.json must have the id of each token"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja cannot be read"),
        ("chat_template.jinja", "{{ x", "the chat template of"),
    ],
    ids=str,
)
def test_a_wrong_file_is_refused_by_its_name(file: str, content: Any, words: str, tmp_path: Path) -> None:
    make_model_folder(tmp_path)
    for name in (CONFIG, "chat_template.jinja"):
        (tmp_path / name).unlink(missing_ok=True)
    raw = content if isinstance(content, str | bytes) else json.dumps(content)
    (tmp_path / file).write_bytes(raw.encode() if isinstance(raw, str) else raw)
    with pytest.raises(BadTokenizer) as refused:
        Tokenizer.from_folder(tmp_path)
    assert str(refused.value).startswith(words) and str(refused.value).isprintable()
