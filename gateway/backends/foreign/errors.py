"""The errors that a server sends, read within bounds: for the gateway to act on, and for the operator's log to show.

The server's own words never go to clients: `failures` has what they get.
"""

from __future__ import annotations

import msgspec

from gateway.backends.foreign.connection import Connection, ServerGone
from gateway.backends.foreign.reply import ServerRefused
from gateway.backends.foreign.server import read_at_most
from gateway.text.redact import KEY_RULES, redacted

MAX_ERROR_BYTES = 16 << 10
"""Bytes of an error that are read; a larger one is cut off."""

MAX_SHOWN_CHARS = 400
"""Characters of an error that the log shows."""

ECHO_CHARS = 32
"""The least length, in characters, of a text that an error repeats from the request, and that the log leaves out."""

ECHO_STEP = 8
"""Characters between two places of an error that are searched for in the request."""

ECHO_BYTES = 128 << 10
"""Bytes of the request in which an error's words are searched for."""

ECHO = "[of the request]"


NO_ERROR = msgspec.Raw(b"null")
"""The value of the field `error` in an event without an error."""


class _ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error, with only the fields that are read."""

    error: _Error | str | None = None


class _Error(msgspec.Struct, frozen=True):
    """An error in OpenAI's form, with only the fields that are read."""

    code: str | int | None = None
    type: str | None = None


_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""Codes and types of errors by which OpenAI's servers and llama.cpp's say that a prompt is too long."""

_decode_error = msgspec.json.Decoder(_ErrorBody).decode


async def read_refusal(connection: Connection, until_s: float) -> ServerRefused:
    """Read a response other than 200 as an error: its status, its known code, its text, and when to retry.

    until_s: the time, by the loop's clock, until which the response has to be there.
    """
    try:
        body = await read_at_most(connection, MAX_ERROR_BYTES, until_s)
    except ServerGone:
        body = b""
    text = connection.headers.get("retry-after", "")
    after_s = float(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
    return ServerRefused(connection.status, _code_of(body), text=text_of(body), retry_after_s=after_s)


def check_event(error: msgspec.Raw) -> None:
    """Check the field `error` of an event in a stream.

    Raises ServerRefused: when the field says that the server failed.
    """
    if (data := bytes(error)) != b"null":
        raise ServerRefused(500, text=text_of(data))


def text_of(data: bytes) -> str:
    """Return an error's bytes as a text, at most MAX_ERROR_BYTES of them."""
    return data[:MAX_ERROR_BYTES].decode(errors="replace")


def log_text(text: str, *, key: str = "", request: bytes = b"") -> str:
    """Return a server's text as the operator's log shows it: on one line, short, without keys and the client's words.

    key: the API key that the server was sent. request: the body that the server was sent, whose text it may repeat.
    """
    for secret in (key, msgspec.json.encode(key)[1:-1].decode()) if key else ():
        text = text.replace(secret, "[key]")
    text = "".join(each if each.isprintable() else " " for each in redacted(text, KEY_RULES))
    text = _without_echo(text[: 2 * MAX_SHOWN_CHARS], request[:ECHO_BYTES].decode(errors="replace"))
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def _code_of(body: bytes) -> str:
    try:
        error = _decode_error(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    is_too_long = isinstance(error, _Error) and not _TOO_LONG.isdisjoint((error.code, error.type))
    return "context_length_exceeded" if is_too_long else ""


def _without_echo(text: str, request: str) -> str:
    """Return a text in which each run of ECHO_CHARS or more that the request has as well is left out."""
    start, window = 0, ECHO_CHARS - ECHO_STEP + 1
    while start + window <= len(text):
        end = start + window
        if text[start:end] not in request:
            start += ECHO_STEP
            continue
        while end < len(text) and text[start : end + 1] in request:
            end += 1
        while start and text[start - 1 : end] in request:
            start -= 1
        text = f"{text[:start]}{ECHO}{text[end:]}"
        start += len(ECHO)
    return text
