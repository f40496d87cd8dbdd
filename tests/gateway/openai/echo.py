"""A gateway whose only model repeats its prompt, by a chat template and with tokens of a test's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from tests.gateway.live import FakeEngine, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.live_gateway import gateways_with

END = "<|return|>"


class EchoClient:
    """A client of a model that repeats its prompt up to END."""

    def __init__(self, client: openai.OpenAI, tokenizer: Backend) -> None:
        self.tokenizer = tokenizer
        self.responses: Any = client.responses
        self._client = client
        self._end = tokenizer.token_to_id(END)

    def message(self, says: str, num_tokens: int, **fields: Any) -> Any:
        """Return the reply of the Messages API to a request for this number of tokens."""
        messages = [{"role": "user", "content": says}]
        return self.post("/messages", max_tokens=num_tokens, messages=messages, **fields)

    def post(self, path: str, **body: Any) -> Any:
        """Return the reply to a request that openai's client has no method for."""
        return self._client.post(path, body={"model": "tiny", **body}, cast_to=httpx.Response).json()

    def ask(self, says: str, **fields: Any) -> Any:
        """Return the reply to a chat whose answer is what the user says."""
        messages: Any = [{"role": "user", "content": f"{says}{END}"}]
        asked = {"messages": messages, "max_tokens": 100, "extra_body": {"stop_token_ids": [self._end]}, **fields}
        return self._client.chat.completions.create(model="tiny", **asked)


@contextmanager
def echoing(dsn: str, folder: Path, template: str, marks: Sequence[AddedToken]) -> Iterator[EchoClient]:
    """Serve a model until the context is left. marks: tokens that its vocabulary has besides END."""
    model = make_model_folder(folder / "model")
    backend = Backend.from_file(str(model / "tokenizer.json"))
    special = [AddedToken(END, special=True), *(mark for mark in marks if mark.special)]
    backend.add_special_tokens(special)
    backend.add_tokens([mark for mark in marks if not mark.special])
    backend.save(str(model / "tokenizer.json"))
    (model / "chat_template.jinja").write_text(template)
    config = json.loads((model / "config.json").read_text()) | {"vocab_size": backend.get_vocab_size()}
    (model / "config.json").write_text(json.dumps(config))
    key = asyncio.run(make_tenant(dsn, "acme", "pirate", "1")).key

    def engine(endpoint: str, model_dir: Path) -> FakeEngine:
        return FakeEngine(endpoint, model_dir, "--tokens-per-s", "2000")

    with (
        gateways_with(engine, dsn, model, data_dir=folder) as installed,
        openai.OpenAI(base_url=f"{installed.gateway.url}/v1", api_key=key, max_retries=0) as client,
    ):
        yield EchoClient(client, backend)
