"""`python -m gateway.bench.foreign.server PORT`: a server with OpenAI's chat that answers at once.

A reply has as many chunks as tokens are asked for. They come all at once, or each by itself where the first
message says `paced`. A request without a stream gets the same in one piece. Serves until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

from gateway.bench.http import HEAD_END, length_of

PACE_S = 0.005
"""Seconds between two chunks of a paced stream."""

_MODELS = b'{"data":[{"id":"bench"}]}'
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _event(data: str) -> bytes:
    line = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(line), line)


def _chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    shown = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": "bench", "choices": [choice]}
    return _event(json.dumps(shown))


_WORD, _LAST = _chunk(" seven"), _chunk("", "length")


def _whole_reply(count: int) -> bytes:
    """Return the bytes of a reply in one piece, of `count` tokens."""
    choice = {"index": 0, "message": {"role": "assistant", "content": " seven" * count}, "finish_reason": "length"}
    usage = {"prompt_tokens": 20, "completion_tokens": count, "total_tokens": 20 + count}
    shown = {"id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": "bench", "choices": [choice]}
    body = json.dumps(shown | {"usage": usage}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(HEAD_END)
            body = await reader.readexactly(length_of(head))
            if head.startswith(b"GET "):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(_MODELS), _MODELS))
                continue
            asked = json.loads(body)
            count = asked.get("max_tokens", 1)
            if not asked.get("stream"):
                writer.write(_whole_reply(count))
                continue
            writer.write(_HEAD)
            if "paced" in asked["messages"][0]["content"]:
                for _ in range(count):
                    writer.write(_WORD)
                    await asyncio.sleep(PACE_S)
            else:
                writer.write(_WORD * count)
            usage = {"prompt_tokens": 20, "completion_tokens": count}
            writer.write(_LAST + _event(json.dumps({"choices": [], "usage": usage})))
            writer.write(_event("[DONE]") + b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _serve(port: int) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))
