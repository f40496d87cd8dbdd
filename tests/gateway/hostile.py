"""Texts that have broken other servers, and a client that sends them as they are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from urllib.parse import quote

import msgspec

from tests.patience import PATIENCE_S

FRAGMENTS = [
    "'", '"', "';--", "' OR '1'='1", "1; DROP TABLE users", "') OR 1=1--", "\\'", "$1", "$$", "%s", "%(x)s",
    "{0}", "{}", "{{7*7}}", "${7*7}", "#{7*7}", "<script>alert(1)</script>", "../", "..\\", "/etc/passwd",
    "%2e%2e%2f", "%00", "\0", "\x1b[31m", "\r\nX-Injected: 1", "\n", "\t", "\u202e", "\u200b", "\ufeff",
    "\u2028", "é", "ﬀ", "💥", "\U0010ffff", "ı", "NULL", "null", "undefined", "NaN", "-1", "1e309", "9" * 40,
    "0x41", "true", "[]", '{"$gt": ""}', "A" * 300, "*", "?", "|", "&", ";", "`id`", "$(id)", "|| pg_sleep(5)",
    "'; SELECT pg_sleep(5)--", "' UNION SELECT sha256 FROM api_keys--", "COPY t TO PROGRAM 'id'", "::text",
    "/**/", "--", "E'\\047'", "U&'\\0027'", "\\u0000", "jndi:ldap://x", "file:///", "http://127.0.0.1/",
    "=cmd|' /C calc'!A0", "sk-lk-", "Bearer ", "proj_", "org_", "%", "_", "%25", "+", " ", "",
]  # fmt: skip

HOSTS = [
    "", " ", "localhost", "127.0.0.1", "evil.example.com", "evil.example.com:80", "localhost:99999",
    "localhost:-1", "localhost:x", "[::1]", "[::1]:8080", "[::1", "::1", "[", "]", "[]", "@",
    "user:pass@localhost", "localhost@evil", "a b", "a,b", "localhost, evil", "/", "//", "/v1/models",
    "localhost/v1", "localhost/health/live", "localhost?x=1", "localhost#x", "localhost\\evil",
    "http://localhost", "https://evil/", "%", "%00", "%2f", "localhost%00.evil", "localhost.", ".localhost",
    "..", "*", "0", "0.0.0.0", "2130706433", "0x7f.1", "xn--", "x" * 300, "-", "_", "localhost;x", "\x80\xff",
    "admin", "health",
]  # fmt: skip
"""Malformed values of the Host header, written to the wire as latin-1."""


def hostile_texts(count: int, seed: int = 1) -> list[str]:
    """Return `count` texts: the fragments, then mixtures of two or three of them."""
    mixer = random.Random(seed)
    texts = list(FRAGMENTS)
    while len(texts) < count:
        texts.append("".join(mixer.choices(FRAGMENTS, k=mixer.choice((2, 3)))))
    return texts[:count]


def printable(text: str) -> str:
    """Return the characters of a text that may stand in a header's line."""
    return "".join(character for character in text if character >= " " and character != "\x7f")


class Reply(msgspec.Struct, frozen=True):
    """A reply as it was read from the connection."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, object]:
        """The error object in OpenAI's shape, or in that of messages, without a code.

        Raises AssertionError: when the body has none.
        """
        body = msgspec.json.decode(self.body)
        error = body["error"]
        assert set(error) == {"message", "type"} | (set() if body.get("type") == "error" else {"param", "code"})
        return {"code": None, **error}


class RawClient:
    """An HTTP client with one connection at a time, which can send any bytes in the head."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        host: str = "localhost",
    ) -> Reply:
        """Send a request; return the reply.

        headers, host: written to the wire as UTF-8 and as latin-1.
        """
        head = [f"{method} {quote(path, safe='/?=&%[]:')} HTTP/1.1".encode(), b"Host: " + host.encode("latin-1")]
        head += [f"{name}: {value}".encode() for name, value in (headers or {}).items()]
        head += [b"Content-Length: %d" % len(body)] if body or method != "GET" else []
        if self._open is None:
            self._open = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._open
        writer.write(b"\r\n".join([*head, b"", body]))
        async with asyncio.timeout(PATIENCE_S):
            reply = await _read(reader, has_body=method != "HEAD")
        if reply.headers.get("connection") == "close":
            await self.close()
        return reply

    async def close(self) -> None:
        if self._open is not None:
            writer, self._open = self._open[1], None
            writer.close()
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, *, has_body: bool) -> Reply:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = dict(_header_lines(lines))
    body = b""
    if not has_body:
        pass
    elif headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Reply(int(status.split()[1]), headers, body)


def _header_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, _, value = line.partition(":")
        yield name.lower(), value.strip()
