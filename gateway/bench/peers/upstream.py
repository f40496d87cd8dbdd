"""An OpenAI-compatible server that answers every request at once with the same chat completion.

To be run as `python -m gateway.bench.peers.upstream PORT`. It measures what a proxy before it costs, and serves until
it is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

from gateway.bench.http import HEAD_END, length_of

_BODY = json.dumps(
    {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 0,
        "model": "bench",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "seven"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 1, "total_tokens": 21},
    }
).encode()
_REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)


class _Answers(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(HEAD_END)) >= 0:
            length = end + len(HEAD_END) + length_of(bytes(self._received[:end]))
            if len(self._received) < length:
                return
            del self._received[:length]
            assert self._transport is not None
            self._transport.write(_REPLY)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Answers, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))
