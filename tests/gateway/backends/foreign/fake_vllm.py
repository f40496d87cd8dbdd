"""A fake of vLLM's server as of version 0.32, as far as adapters go: written from its API, over a real socket.

The fake's replies are token ids made of the adapter's name. Fields of the fake switch on what can go wrong with the
real server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.gateway.backends.foreign.fake import END, HEAD, FakeServer, Received, event

BASE = "served-base"
NUM_TOKENS = 3


def tokens_of(name: str, vocab_size: int = 100) -> list[int]:
    """Return the token ids that the fake replies for a model of this name."""
    return [sum(name.encode()[place::NUM_TOKENS]) % vocab_size for place in range(NUM_TOKENS)]


class FakeVllm:
    """A fake vLLM server that loads adapters by name, and answers with the requested one."""

    def __init__(self, folder: str, server: FakeServer) -> None:
        """Prepare without adapters. folder: the folder below which an adapter's content is found; nothing is read."""
        self.server = server
        self.loaded: dict[str, str] = {}
        """Paths of the adapters by name."""
        self.missing: set[str] = set()
        """Names whose content is not in the folder."""
        self.unfit: dict[str, int] = {}
        """Names whose adapter is refused, each with the status."""
        self.has_silent_base = False
        """True if an unknown name is answered by the base."""
        self.may_load = True
        """True if VLLM_ALLOW_RUNTIME_LORA_UPDATING is set."""
        self.has_effect = True
        """True if an adapter changes the base's answer."""
        self.num_loads = 0
        self.num_unloads = 0
        self._folder = folder
        server.answer = self._answer
        self._list()

    def restart(self) -> None:
        """Forget all adapters, as a new process does."""
        self.loaded.clear()
        self._list()

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        body = received.body
        match received.path.removeprefix("/v1"):
            case "/load_lora_adapter" if self.may_load:
                await self._load(body["lora_name"], body["lora_path"], writer)
            case "/unload_lora_adapter" if self.may_load:
                if self.loaded.pop(body["lora_name"], None) is None:
                    return _refuse(writer, 404, "NotFoundError", "The lora adapter cannot be found.")
                self.num_unloads += 1
                self._list()
                _reply(writer, 200, b"Success: LoRA adapter removed.", kind=b"text/plain")
            case "/completions" | "/chat/completions":
                await self._complete(body, writer)
            case _:
                _reply(writer, 404, b'{"detail":"Not Found"}')
        return None

    async def _load(self, name: str, path: str, writer: asyncio.StreamWriter) -> None:
        if name in self.loaded:
            return _refuse(writer, 400, "InvalidUserInput", f"The lora adapter '{name}' has already been loaded.")
        if name in self.missing or path != f"{self._folder}/{name}":
            return _refuse(writer, 404, "NotFoundError", f"No adapter found for {path}")
        if name in self.unfit:
            return _refuse(writer, self.unfit[name], "BadRequestError", "LoRA rank 64 is greater than max_lora_rank 16")
        await asyncio.sleep(0.01)
        self.loaded[name] = path
        self.num_loads += 1
        self._list()
        return _reply(writer, 200, f"Success: LoRA adapter '{name}' added successfully.".encode(), kind=b"text/plain")

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        name = body["model"]
        if name != BASE and name not in self.loaded:
            if not self.has_silent_base:
                return _refuse(writer, 404, "NotFoundError", f"The model `{name}` does not exist.")
            name = BASE
        if not body.get("stream"):
            is_plain = name == BASE or not self.has_effect
            logprobs = {"token_logprobs": [-0.5 if is_plain else -1.5], "tokens": ["x"]}
            choice = {"index": 0, "text": "x", "logprobs": logprobs, "finish_reason": "length"}
            return _reply(writer, 200, json.dumps({"model": name, "choices": [choice]}).encode())
        writer.write(HEAD)
        if "messages" in body:
            return self._chat(name, writer)
        ids, prompt = tokens_of(name), len(body["prompt"])
        for place, token_id in enumerate(ids):
            choice = {"index": 0, "text": "", "token_ids": [token_id], "finish_reason": None}
            counts = {"prompt_tokens": prompt, "completion_tokens": place + 1}
            writer.write(event({"model": name, "choices": [choice], "usage": counts}))
            await writer.drain()
        choice = {"index": 0, "text": "", "token_ids": [], "finish_reason": "stop"}
        counts = {"prompt_tokens": prompt, "completion_tokens": len(ids)}
        writer.write(event({"model": name, "choices": [choice], "usage": counts}) + event("[DONE]") + END)
        return None

    def _chat(self, name: str, writer: asyncio.StreamWriter) -> None:
        """Answer a chat with the name of the model."""
        choice = {"index": 0, "delta": {"content": name}, "finish_reason": "stop"}
        counts = {"prompt_tokens": 9, "completion_tokens": 3}
        writer.write(event({"model": name, "choices": [choice]}))
        writer.write(event({"model": name, "choices": [], "usage": counts}) + event("[DONE]") + END)

    def _list(self) -> None:
        self.server.models = [
            {"id": BASE, "root": "/models/base", "parent": None, "max_model_len": 4096},
            *({"id": name, "root": path, "parent": BASE} for name, path in self.loaded.items()),
        ]


def _reply(writer: asyncio.StreamWriter, status: int, body: bytes, *, kind: bytes = b"application/json") -> None:
    head = b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
    writer.write(head + body)


def _refuse(writer: asyncio.StreamWriter, status: int, kind: str, message: str) -> None:
    error = {"message": message, "type": kind, "param": None, "code": status}
    _reply(writer, status, json.dumps({"error": error}).encode())


@asynccontextmanager
async def fake_vllm(folder: str) -> AsyncIterator[FakeVllm]:
    """Give a server whose adapters lie below a folder."""
    server = FakeServer()
    vllm = FakeVllm(folder, server)
    await server.start()
    try:
        yield vllm
    finally:
        await server.stop()
