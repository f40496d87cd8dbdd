"""A server with OpenAI's protocol on a real socket, which answers rightly, wrongly or hostilely, as a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from tests.patience import PATIENCE_S


class Received(msgspec.Struct, frozen=True):
    """One request as the server received it."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    data: bytes = b""
    """The raw bytes of the body."""


Answer = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]
"""A function that writes the response to a generation request."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(data: Any) -> bytes:
    """Return one event as a chunk of the body."""
    text = data if isinstance(data, str) else json.dumps(data)
    return chunk(f"data: {text}\n\n".encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


END = b"0\r\n\r\n"

VERSIONS = ("/version", "/get_server_info", "/api/version", "/v2")
"""The paths at which servers report their versions."""


def delta(text: str, *, index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk of a chat completion.

    finish: the finish reason; None: the choice goes on.
    """
    choice = {"index": index, "delta": {"content": text} if text else fields, "finish_reason": finish}
    return {"id": "chatcmpl-theirs", "object": "chat.completion.chunk", "model": "theirs", "choices": [choice]}


def usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    """Return the chunk with the usage that ends a stream."""
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    return {"choices": [], "usage": counts}


def saying(*words: str, counts: tuple[int, int] | None = (9, 2), finish: str = "stop", pause_s: float = 0.0) -> Answer:
    """Return an answer that sends these words, one in each chunk.

    counts: prompt and completion tokens of the usage; None sends no usage. finish: the finish reason. pause_s: the
    seconds between two words.
    """

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + event(delta("", role="assistant")))
        for word in words:
            writer.write(event(delta(word)))
            await writer.drain()
            await asyncio.sleep(pause_s)
        writer.write(event(delta("", finish=finish)))
        if counts is not None:
            writer.write(event(usage(*counts)))
        writer.write(event("[DONE]") + END)

    return answer


def sending(*parts: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None) -> Answer:
    """Return an answer that sends exactly these bytes.

    then: acts on the connection afterwards; by default it is closed.
    """

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if then is not None:
            await then(writer)
        writer.close()

    return answer


def refusing(status: int, body: str = "{}", *headers: str) -> Answer:
    """Return an answer with an error."""

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} No", "content-type: application/json", f"content-length: {len(body)}", *headers]
        writer.write("\r\n".join((*lines, "", body)).encode())

    return answer


class FakeServer:
    """A server that serves `/v1/models`, and answers all other requests with `answer`."""

    def __init__(self) -> None:
        self.answer: Answer = saying("Hello", " world")
        self.models: list[dict[str, Any]] = [{"id": "theirs", "max_model_len": 4096}]
        self.facts: dict[str, Any] = {}
        """The JSON bodies with which the server answers requests for other paths, by path."""
        self.answer_to_questions: Answer | None = None
        """The answer to `/v1/models`; None: the list of `models`."""
        self.keys: set[str] | None = None
        """The keys that the server accepts, all others being refused; None needs no key."""
        self.received: list[Received] = []
        """The requests that `answer` answered, and the POST requests refused for their key, in order."""
        self.num_connections = 0
        self.num_cut = 0
        """The number of answers during which the gateway closed the connection."""
        self.port = 0
        self._server: asyncio.Server | None = None
        self._life = 0
        """The number of the process that the fake stands for."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen at a free port, or after a stop at the same port again, as soon as no other process uses that port."""
        async with asyncio.timeout(PATIENCE_S):
            while self._server is None:
                try:
                    self._server = await asyncio.start_server(partial(self._serve, self._life), "127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.05)
        self.port = self._server.sockets[0].getsockname()[1]

    def leave_port(self) -> None:
        """Stop listening; open connections are kept."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        self.leave_port()
        self._life += 1
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, life: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if life != self._life:  # accepted by a process that has ended since
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.num_connections += 1
        try:
            while not writer.is_closing():
                received = await _read(reader)
                if self.keys is not None and _key_of(received) not in self.keys:
                    if received.method == "POST":
                        self.received.append(received)
                    await refusing(401, json.dumps({"error": {"message": f"no such key {_key_of(received)}"}}))(
                        received, writer
                    )
                elif received.path == "/v1/models" and self.answer_to_questions is not None:
                    await self.answer_to_questions(received, writer)
                elif received.path in VERSIONS and received.path not in self.facts:
                    writer.write(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n")
                elif received.path == "/v1/models" or received.path in self.facts:
                    body = json.dumps(self.facts.get(received.path, {"data": self.models})).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                else:
                    self.received.append(received)
                    try:
                        await self.answer(received, writer)
                        await writer.drain()
                    except ConnectionError:
                        self.num_cut += 1
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


def _key_of(received: Received) -> str:
    return received.headers.get("authorization", "").removeprefix("Bearer ")


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    is_json = body.startswith(b"{") and not path.startswith("/api/blobs/")
    return Received(method, path, headers, json.loads(body) if is_json else {}, body)


@asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    server = FakeServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
