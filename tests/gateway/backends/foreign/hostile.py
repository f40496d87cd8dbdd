"""The replies of a hostile server: each behaviour by a name.

The server's own texts, the key that it was sent and its address are in every place from which they could leak.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

from gateway.backends.foreign.sse import MAX_EVENT_BYTES
from tests.gateway.backends.foreign.fake import (
    END,
    Answer,
    Received,
    chunk,
    delta,
    event,
    refusing,
    sending,
    usage,
)
from tests.gateway.backends.foreign.fake import HEAD as PLAIN_HEAD

KEY = "sk-ours-0123456789abcdefWXYZ"
"""The API key that the gateway sends to the hostile server."""

LEAK = f"pid 4711004711 of /srv/upstream-model at 10.20.30.40:8123, {KEY}, sk-secret"
"""A text of the server that no client may see."""

WORDS = ("4711004711", "upstream-model", "10.20.30.40", KEY, "sk-secret")
"""The parts of LEAK, each of which is searched for in everything that a client gets."""

HEADERS = f"server: {LEAK}\r\nset-cookie: a={LEAK}\r\nx-upstream: {LEAK}\r\nx-request-id: {LEAK}\r\n".encode()
HEAD = PLAIN_HEAD.removesuffix(b"\r\n") + HEADERS + b"\r\n"
EVENTS = b"content-type: text/event-stream"
FINISHED = event(delta("", finish="stop"))
GOOD = event(delta("Hello")) + FINISHED + event(usage(9, 1)) + event("[DONE]") + END


async def _wait_forever(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


def endless(*parts: bytes, head: bytes = HEAD) -> Answer:
    """Return an answer that sends the parts again and again until the connection is cut."""

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while not writer.is_closing():
            for part in parts:
                writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


def trickling(part: bytes, *, pause_s: float) -> Answer:
    """Return an answer that sends a part again and again, with pauses, forever."""

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


def call(index: int, name: str | None, arguments: str = "") -> bytes:
    function = {"name": name, "arguments": arguments}
    return event(delta("", tool_calls=[{"index": index, "function": function}]))


def reply_of(status: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + status, *headers, b"", body))


def usage_event(**counts: Any) -> bytes:
    return event({"choices": [], "usage": counts})


def in_tiny_chunks(letter: bytes) -> bytes:
    return (b"1\r\n" + letter + b"\r\n") * 40_000


def a_megabyte_of(element: str, before: str, after: str) -> Answer:
    """Return an answer of events that each hold a list of as many elements as an event has room for."""
    size = MAX_EVENT_BYTES - len(before) - len(after) - 1
    return endless(event(before + f"{element}," * (size // (len(element) + 1) - 1) + element + after))


HOSTILE: dict[str, Answer] = {
    # no reply
    "nothing": sending(b""),
    "no HTTP": sending(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "half a head": sending(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "silence": sending(b"", then=_wait_forever),
    "silence after the head": sending(HEAD, then=_wait_forever),
    "silence in the midst": sending(HEAD, event(delta("word")), then=_wait_forever),
    # heads
    "an endless header": sending(b"HTTP/1.1 200 OK\r\nx: " + b"a" * (4 << 20)),
    "endless headers": sending(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300_000),
    "a status line without end": sending(b"HTTP/1.1 200 " + b"a" * (4 << 20)),
    "a status that is no number": sending(b"HTTP/1.1 abc OK\r\n\r\n"),
    "a hundred and then some": sending(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    "an upgrade": sending(reply_of(b"101 Switching Protocols", b"upgrade: h2c", b"connection: upgrade")),
    "a preface of HTTP/2": sending(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "a redirect": refusing(302, LEAK, f"location: http://169.254.169.254/{LEAK}"),
    "a redirect that keeps the method": refusing(307, LEAK, "location: http://127.0.0.1:1/"),
    "no stream": sending(reply_of(b"200 OK", b"content-type: text/html", b"content-length: 4", body=b"<br>")),
    "no content": sending(reply_of(b"204 " + LEAK.encode(), EVENTS)),
    # errors
    "an error with all its words": refusing(500, json.dumps({"error": {"message": LEAK, "code": LEAK}}), f"x: {LEAK}"),
    "an error without end": endless(b"a" * 65536, head=b"HTTP/1.1 500 No\r\ncontent-length: 999999999\r\n\r\n"),
    "an error of deep JSON": refusing(500, '{"error":' * 20_000),
    "an error of no text": sending(reply_of(b"500 No", b"content-length: 4", body=b"\xff\xfe\x00\x01")),
    "a key that is refused": refusing(401, json.dumps({"error": {"message": LEAK}}), f"www-authenticate: {LEAK}"),
    "an error inside a 200": sending(HEAD, event({"error": {"message": LEAK, "code": 500}}), END),
    "an error after text": sending(HEAD, event(delta("word")), event({"error": LEAK}), END),
    # framing
    "a body that is cut off": sending(HEAD, event(delta("word"))),
    "an end without a reason": sending(HEAD, event(delta("word")), event(usage(9, 1)), event("[DONE]"), END),
    "a wrong length": sending(reply_of(b"200 OK", EVENTS, b"content-length: 999999", body=b"data: {}\n\n")),
    "two lengths": sending(reply_of(b"200 OK", EVENTS, b"content-length: 5", b"content-length: 6", body=b"data:")),
    "a negative length": sending(reply_of(b"200 OK", EVENTS, b"content-length: -5", body=b"data:")),
    "a length and chunks": sending(
        reply_of(
            b"200 OK", EVENTS, b"content-length: 5", b"transfer-encoding: chunked", body=b"5\r\ndata:\r\n0\r\n\r\n"
        )
    ),
    "a wrong chunk": sending(HEAD, b"zz\r\nhello\r\n"),
    "a giant chunk": sending(HEAD, b"ffffffffffffffff\r\n" + b"a" * 100),
    "a chunk's extension without end": endless(b"a" * 65536, head=HEAD + b"5;x="),
    "trailers without end": endless(b"x: y\r\n" * 10_000, head=HEAD + b"0\r\n"),
    "a second response": sending(
        reply_of(b"200 OK", EVENTS, b"content-length: 10", body=b"data: {}\n\n") + b"HTTP/1.1 200 OK\r\n\r\n"
    ),
    "compressed": sending(
        reply_of(b"200 OK", EVENTS, b"content-encoding: gzip", body=gzip.compress(b"data: " + b"a" * (8 << 20)))
    ),
    "compressed by another way": sending(
        reply_of(b"200 OK", EVENTS, b"content-encoding: br, zstd", body=b"\x00" * 1000)
    ),
    # events
    "no JSON": sending(HEAD, event("{"), END),
    "bytes that are no text": sending(HEAD, chunk(b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n'), END),
    "deep JSON": sending(HEAD, event("[" * 200_000 + "]" * 200_000), END),
    "deep JSON in a field": sending(HEAD, event('{"x":' + "[" * 200_000 + "]" * 200_000 + "}"), END),
    "an unknown reason": sending(HEAD, event(delta("", finish=LEAK)), event("[DONE]"), END),
    "a reason of a list": sending(HEAD, event({"choices": [{"index": 0, "finish_reason": []}]}), END),
    "another choice": sending(HEAD, event(delta("word", index=1)), FINISHED, END),
    "a negative choice": sending(HEAD, event(delta("word", index=-1)), FINISHED, END),
    "a huge choice": sending(HEAD, event(delta("word", index=10**30)), FINISHED, END),
    "a megabyte of choices": a_megabyte_of("{}", '{"choices":[', "]}"),
    "a megabyte of choices after a backslash": a_megabyte_of("{}", r'{"x":"\\\\","y":"\"","choices":[', "]}"),
    "a megabyte of deltas": a_megabyte_of('{"delta":{}}', '{"choices":[', "]}"),
    "many choices of long names": a_megabyte_of(
        '{"an_unknown_name":"which is skipped but long"}', '{"choices":[', "]}"
    ),
    "a megabyte of calls": a_megabyte_of("{}", '{"choices":[{"delta":{"tool_calls":[', "]}}]}"),
    "a megabyte of lists": a_megabyte_of("[]", '{"choices":[],"x":[', "]}"),
    "a megabyte of names": a_megabyte_of('"choices":[]', "{", "}"),
    "choices without number": sending(HEAD, event({"choices": [{"index": 0}] * 100_000}), END),
    "a tool that nobody named": sending(HEAD, call(0, LEAK, "{}"), FINISHED, END),
    "calls out of order": sending(HEAD, call(5, "weather", "{}"), FINISHED, END),
    "arguments of no call": sending(HEAD, call(0, None, "{}"), FINISHED, END),
    "calls without end": sending(HEAD, *(call(n, "weather", "{}") for n in range(100)), FINISHED, END),
    "counts that are no numbers": sending(HEAD, usage_event(prompt_tokens="9"), FINISHED, END),
    # without end
    "a giant event": endless(chunk(b"data: " + b"a" * 65536), chunk(b"a" * 65536)),
    "an endless line": endless(chunk(b"a" * 65536)),
    "an event of endless lines": endless(chunk(b"data: a\n" * 8192)),
    "an event of endless empty lines": endless(chunk(b"data:\n" * 8192)),
    "endless line ends": endless(b"\n" * 262_144, head=reply_of(b"200 OK", EVENTS)),
    "endless line ends of another system": endless(chunk(b"\r\n" * 131_072)),
    "endless tiny chunks": endless(in_tiny_chunks(b"a")),
    "endless tiny chunks of line ends": endless(in_tiny_chunks(b"\n")),
    "endless comments": endless(chunk(f": {LEAK}\n\n".encode() * 1024)),
    "endless fields that are skipped": endless(chunk(f"event: {LEAK}\nid: 7\n\n".encode() * 1024)),
    "endless text": endless(event(delta("word " * 100))),
    "endless empty events": endless(event(delta("")) * 100),
    "endless tiny text": endless(event(delta("a")) * 100),
    "endless hidden text": endless(event(delta("", reasoning_content="hm " * 1000))),
    "endless events of a megabyte": endless(event({"choices": [], "x": "a" * 1_000_000})),
    "a trickle of comments": trickling(chunk(b": ping\n\n"), pause_s=0.05),
    "a trickle of text": trickling(event(delta("a")), pause_s=0.1),
}
"""Replies that must become errors at the client, by the behaviour's name."""

OF_REQUEST = {"an unknown reason", "a tool that nobody named", "calls without end"}
"""Replies that a request may cause at a healthy server, by the behaviour's name."""

ODD = {
    "comments and other fields": HEAD + chunk(b": ping\n\nevent: x\nid: 7\nretry: 1\n\n") + GOOD,
    "names of its own": HEAD
    + event(delta("Hello") | {"id": LEAK, "model": LEAK, "system_fingerprint": LEAK, "provider": LEAK})
    + FINISHED
    + event(usage(9, 1))
    + event("[DONE]")
    + END,
    "no mark of the end": HEAD + event(delta("Hello")) + FINISHED + event(usage(9, 1)) + END,
    "text after the end": HEAD + event(delta("Hello")) + FINISHED + event(delta(LEAK)) + event(usage(9, 1)) + END,
    "a second end": HEAD + event(delta("Hello")) + FINISHED + FINISHED + event(usage(9, 1)) + event("[DONE]") + END,
    "usage on every chunk": HEAD
    + event(delta("Hello") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    + FINISHED
    + event(usage(9, 1))
    + event("[DONE]")
    + END,
    "usage with the last chunk": HEAD
    + event(delta("Hello", finish="stop") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    + event("[DONE]")
    + END,
    "null everywhere": HEAD
    + event({"choices": [{"index": 0, "delta": {"content": None}, "finish_reason": None}], "usage": None})
    + GOOD,
    "unknown fields": HEAD + event(delta("") | {"x": {"y": [1]}, "timings": {}}) + GOOD,
    "a text of braces": HEAD + event(delta("") | {"x": 'of a program: "' + "{" * 40_000}) + GOOD,
    "until the connection closes": reply_of(b"200 OK", EVENTS)
    + b"".join(
        f"data: {json.dumps(each)}\n\n".encode() for each in (delta("Hello"), delta("", finish="stop"), usage(9, 1))
    ),
}
"""Unusual replies that say Hello and are served, by the behaviour's name."""

LYING = {
    "a completion of millions": HEAD
    + event(delta("Hello"))
    + FINISHED
    + usage_event(prompt_tokens=9, completion_tokens=10**9),
    "a count of a thousand digits": HEAD
    + event(delta("Hello"))
    + FINISHED
    + usage_event(prompt_tokens=9, completion_tokens=10**1000),
    "a completion of less than nothing": HEAD
    + event(delta("Hello"))
    + FINISHED
    + usage_event(prompt_tokens=9, completion_tokens=-7),
    "a prompt of millions": HEAD
    + event(delta("Hello"))
    + FINISHED
    + usage_event(prompt_tokens=10**9, completion_tokens=1),
    "more cached than there was": HEAD
    + event(delta("Hello"))
    + FINISHED
    + usage_event(prompt_tokens=9, completion_tokens=1, prompt_tokens_details={"cached_tokens": 10**9}),
}
"""Replies that say Hello and report impossible counts, as parts before the end mark, by the behaviour's name."""

ASKED: dict[str, Answer] = {
    "no answer": sending(b""),
    "a redirect of a question": refusing(302, LEAK, "location: http://169.254.169.254/"),
    "an error when asked": refusing(500, json.dumps({"error": {"message": LEAK}})),
    "a list without end": endless(b"a" * 65536, head=b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n"),
    "a list of deep JSON": refusing(200, '{"data":' + "[" * 200_000),
    "a list of very many models": refusing(200, '{"data":[' + "{}," * 340_000 + '{"id":"theirs"}]}'),
    "a list of nothing": refusing(200, '{"data": []}'),
    "a list that is none": refusing(200, '"' + LEAK + '"'),
    "a list that is compressed": sending(
        reply_of(b"200 OK", b"content-encoding: gzip", body=gzip.compress(b"a" * (8 << 20)))
    ),
}
"""Answers to health checks after which the server gets no requests, by the behaviour's name."""
