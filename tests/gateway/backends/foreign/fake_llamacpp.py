"""A fake of llama.cpp's server of late 2026, as far as adapters go: written from its API, over a real socket.

The fake's replies name the files of the adapters that made them, or say `base`. A number that no adapter has is
ignored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.gateway.backends.foreign.fake import FakeServer, Received, saying


class FakeLlamaCpp:
    """A fake llama.cpp server with the adapters of its start, by number."""

    def __init__(self, server: FakeServer, *paths: str) -> None:
        self.server = server
        self.paths = list(paths)
        self.num_lists = 0
        self.build = "b6900-abcdef0"
        self.default_scale = 0.0
        """The scale of each adapter that a request does not name, which anybody may change at the real one."""
        self._scales: dict[int, float] = {}
        server.answer = self._answer

    async def restart(self, *paths: str) -> None:
        """Become a new process at the same address, with these adapters' files."""
        await self.server.stop()
        self._scales.clear()
        self.paths = list(paths)
        await self.server.start()

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        match received.path:
            case "/props":
                settings = {"n_ctx": 1024}
                props = {"default_generation_settings": settings, "total_slots": 4, "build_info": self.build}
                _reply(writer, props)
            case "/lora-adapters":
                self.num_lists += 1
                listed = [{"id": number, "path": path, "scale": 0.0} for number, path in enumerate(self.paths)]
                _reply(writer, listed)
            case "/completion":
                await self._complete(received, writer)
            case "/v1/chat/completions":
                scales = {each["id"]: each["scale"] for each in received.body.get("lora", [])}
                await saying(self._made_with(scales))(received, writer)

    def _made_with(self, scales: dict[int, float]) -> str:
        named = (path for number, path in enumerate(self.paths) if scales.get(number, self.default_scale))
        return "+".join(named) or "base"

    async def _complete(self, received: Received, writer: asyncio.StreamWriter) -> None:
        if received.body["lora"]:  # with an empty list the real one goes on with what its slot had
            self._scales = {each["id"]: each["scale"] for each in received.body["lora"]}
        text = self._made_with(self._scales)
        if not received.body.get("stream"):
            probabilities = [{"id": 1, "token": "x", "logprob": -0.5 if text == "base" else -2.0}]
            return _reply(writer, {"content": text, "completion_probabilities": probabilities})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        prompt = len(received.body["prompt"])
        num_tokens = min(received.body["n_predict"], len(text))
        counts = {"index": 0, "tokens_predicted": num_tokens, "tokens_evaluated": prompt}
        for step in ({"content": text, "stop": False}, {"content": "", "stop": True, "stop_type": "eos"}):
            data = f"data: {json.dumps(step | counts)}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        return None


def _reply(writer: asyncio.StreamWriter, value: object) -> None:
    body = json.dumps(value).encode()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@asynccontextmanager
async def fake_llamacpp(*paths: str) -> AsyncIterator[FakeLlamaCpp]:
    """Give a server that was started with these adapters' files."""
    server = FakeServer()
    llama = FakeLlamaCpp(server, *paths)
    await server.start()
    try:
        yield llama
    finally:
        await server.stop()
