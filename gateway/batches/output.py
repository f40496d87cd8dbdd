"""Lines of output and error files, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.http.sse import in_one_line

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not executed, since its batch was cancelled.")

MAX_REASON_CHARS = 64


class _CustomId(msgspec.Struct):
    custom_id: str
    body: msgspec.Raw


class _Error(msgspec.Struct):
    code: str | None = None
    type: str | None = None


class _Failed(msgspec.Struct):
    error: _Error


_LINE, _FAILED = msgspec.json.Decoder(_CustomId), msgspec.json.Decoder(_Failed)


def read_line(line: bytes) -> tuple[str, bytes]:
    """Return the custom_id and the body of a line that has passed the check."""
    found = _LINE.decode(line.removeprefix(b"\xef\xbb\xbf"))
    return found.custom_id, bytes(found.body)


def reply_line(id: str, custom_id: str, request_id: str, status: int, body: bytes) -> bytes:
    """Return the line of a request that was answered, be it with an error. body: JSON."""
    response = {"status_code": status, "request_id": request_id, "body": msgspec.Raw(body)}
    return _line({"id": id, "custom_id": custom_id, "response": response, "error": None})


def unrun_line(id: str, custom_id: str, why: tuple[str, str]) -> bytes:
    """Return the line of a request that never ran. why: code and message."""
    error = {"code": why[0], "message": why[1]}
    return _line({"id": id, "custom_id": custom_id, "response": None, "error": error})


def reason_of(status: int, body: bytes) -> str:
    """Return the code of the error with which a line was answered, or its type or status; "" for no error."""
    if status < 400:
        return ""
    try:
        error = _FAILED.decode(body).error
    except msgspec.MsgspecError:
        error = _Error()
    return (error.code or error.type or f"status_{status}")[:MAX_REASON_CHARS]


def line_id(batch_id: str, number: int) -> str:
    """Return the id of a line of an output file."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{number}"


def _line(fields: dict[str, Any]) -> bytes:
    return in_one_line(msgspec.json.encode(fields)) + b"\n"
