"""A program with the flags of llama.cpp's `llama-server`, which serves without a model: `fake_llama_server.py FLAGS`.

A file `fault` beside its model says what is wrong with it: `crash` ends it with a line, `mute` listens to nothing,
`short` gives fewer tokens than were asked for, `busy` says that a request runs. The program writes the command with
which it was started to a file `command` beside the model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any


def flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--model", "--alias", "--host", "--api-key-file", "--parallel", "--ctx-size", "--n-gpu-layers"):
        parser.add_argument(name, required=True)
    parser.add_argument("--threads", default="")
    parser.add_argument("--lora", action="append", default=[])
    parser.add_argument("--metrics", action="store_true", required=True)
    parser.add_argument("--lora-init-without-apply", action="store_true")
    return parser.parse_args()


class FakeLlamaServer:
    """The fake server, which answers requests over its socket as `llama-server` does."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.folder = Path(given.model).parent
        self.key = Path(given.api_key_file).read_text().strip()
        self.length = int(given.ctx_size) // int(given.parallel)

    @property
    def fault(self) -> str:
        path = self.folder / "fault"
        return path.read_text() if path.exists() else ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                data = await reader.readexactly(int(headers.get("content-length", 0)))
                status, body = self.answer(first.split(" ")[1], headers, json.loads(data) if data else {})
                text = (body if isinstance(body, str) else json.dumps(body)).encode()
                kind = "text/event-stream" if text.startswith(b"data: ") else "application/json"
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(text)}\r\n\r\n".encode()
                    + text
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/health":
            return 200, {"status": "ok"}
        if headers.get("authorization") != f"Bearer {self.key}":
            return 401, {"error": {"message": "Invalid API Key", "code": 401}}
        match path:
            case "/metrics":
                return 200, f"llamacpp:requests_processing {int(self.fault == 'busy')}\nllamacpp:requests_deferred 0\n"
            case "/props":
                return 200, {"default_generation_settings": {"n_ctx": self.length}, "total_slots": 1}
            case "/lora-adapters":
                return 200, [{"id": each, "path": path} for each, path in enumerate(self.given.lora)]
        chosen = [each["id"] for each in body["lora"] if each["scale"]]
        text = Path(self.given.lora[chosen[0]]).stem if chosen else "base"
        num_tokens = body["n_predict"] - (self.fault == "short")
        step = {"content": text, "stop": True, "stop_type": "limit", "tokens_predicted": num_tokens}
        step |= {"tokens_evaluated": len(body["prompt"])}
        return 200, f"data: {json.dumps(step)}\n\n" if body.get("stream") else step


async def main() -> None:
    fake = FakeLlamaServer(flags())
    (fake.folder / "command").write_text("\n".join(sys.argv))
    if fake.fault == "crash":
        sys.exit("error: no such device")
    if fake.fault != "mute":
        await asyncio.start_unix_server(fake.serve, fake.given.host)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
