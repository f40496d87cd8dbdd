"""The process that checks the lines of an input file, at low priority and within little memory.

It reads the file on its standard input and writes JSON lines:
`{"lines": [[number, first_byte, num_bytes, model], ...]}`,
`{"errors": [{"code", "message", "param", "line"}, ...]}` and, last, `{"total": lines}`. It has no keys, no files, no
database and no network of ours: what strangers wrote is parsed here alone.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
from typing import IO, Any

import msgspec

MAX_LINES = 50_000
MAX_ERRORS = 100
MAX_CUSTOM_ID_CHARS = 512
MAX_MODEL_CHARS = 512
AT_ONCE = 50
"""The most lines that the database is given at once: more hold up requests that wait for it."""

MEMORY_BYTES = 1 << 30
"""The limit of the process's address space, in bytes."""

READ_BYTES = 1 << 20
FIELDS = {"custom_id", "method", "url", "body"}

_LINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


class _Model(msgspec.Struct):
    model: str = ""


_MODEL = msgspec.json.Decoder(_Model)


class BadLine(Exception):
    """The error for a line that is not a request of this batch.

    param: the field at fault; None: the whole line.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Checker:
    """Checks one file, chunk by chunk."""

    def __init__(self, endpoint: str, max_line_bytes: int, out: IO[bytes]) -> None:
        self._endpoint = endpoint
        self._max_line_bytes = max_line_bytes
        self._out = out
        self._rest = bytearray()
        self._skipping = False
        self._number = 0
        self._first_byte = 0
        self._seen: set[bytes] = set()
        self._lines: list[tuple[int, int, int, str]] = []
        self._errors: list[dict[str, Any]] = []
        self._num_good = 0
        self._has_too_many = False

    @property
    def is_over(self) -> bool:
        """Tell whether the file has so many errors that the rest of it is not read."""
        return self._has_too_many or len(self._errors) >= MAX_ERRORS

    def take(self, chunk: bytes) -> None:
        """Check the lines that end in a chunk; keep the unfinished rest for the next chunk."""
        self._rest += chunk
        start = 0
        while not self.is_over:
            end = self._rest.find(b"\n", start)
            if end < 0:
                break
            self._line(bytes(self._rest[start:end]))
            self._first_byte += end + 1 - start
            start = end + 1
        del self._rest[:start]
        if len(self._rest) > self._max_line_bytes + 1:
            if not self._skipping:
                self._too_long(self._number + 1)
            self._skipping = True
            self._first_byte += len(self._rest)
            self._rest.clear()

    def end(self) -> None:
        """Check the last line, which may lack a newline, and the file as a whole."""
        if self._rest and not self.is_over:
            self._line(bytes(self._rest))
        if not self._num_good and not self._errors:
            self._add_error("empty_file", "The file has no lines.", None, None)
        self._flush()
        if self._errors:
            self._write({"errors": self._errors})
        self._write({"total": self._num_good})

    def _line(self, line: bytes) -> None:
        self._number += 1
        if self._skipping:
            self._skipping = False
            return
        if self._number == 1 and line.startswith(b"\xef\xbb\xbf"):
            line = b"   " + line[3:]
        if not line.strip():
            return
        if len(line) > self._max_line_bytes:
            self._too_long(self._number)
            return
        try:
            model = self._model_of_line(line)
        except BadLine as error:
            self._add_error(error.code, str(error), error.param, self._number)
            return
        self._num_good += 1
        if self._num_good > MAX_LINES:
            self._add_error("too_many_tasks", f"The file has more than {MAX_LINES} lines.", None, self._number)
            self._has_too_many = True
            return
        self._lines.append((self._number, self._first_byte, len(line), model))
        if len(self._lines) >= AT_ONCE:
            self._flush()

    def _model_of_line(self, line: bytes) -> str:
        """Return the model that a line names.

        Raises BadLine: when the line is no request of this batch.
        """
        try:
            line.decode()  # fields are left as they are, and their text unread
            fields = _LINE.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            is_object = line.lstrip().startswith(b"{")
            why = "This line is not parseable as valid JSON." if is_object else "This line is not a JSON object."
            raise BadLine("invalid_json_line", why) from None
        for name in ("custom_id", "method", "url", "body"):
            if name not in fields:
                raise BadLine("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
        for name in fields:
            if name not in FIELDS:
                raise BadLine("unknown_parameter", f"Unrecognized request argument supplied: {name[:64]}", name[:64])
        custom_id = self._text(fields, "custom_id", MAX_CUSTOM_ID_CHARS)
        if self._text(fields, "method", MAX_CUSTOM_ID_CHARS) != "POST":
            raise BadLine("invalid_method", "The method must be POST.", "method")
        if self._text(fields, "url", MAX_CUSTOM_ID_CHARS) != self._endpoint:
            raise BadLine("url_mismatch", f"The url must be the batch's endpoint, {self._endpoint}.", "url")
        body = bytes(fields["body"])
        if not body.startswith(b"{"):
            raise BadLine("invalid_value", "The body must be a JSON object.", "body")
        digest = hashlib.sha256(custom_id.encode()).digest()[:16]
        if digest in self._seen:
            raise BadLine("duplicate_custom_id", "The custom_id is that of an earlier line.", "custom_id")
        self._seen.add(digest)
        try:
            return _MODEL.decode(body).model[:MAX_MODEL_CHARS]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return ""  # an error of the line's own, when it runs

    def _text(self, fields: dict[str, msgspec.Raw], name: str, max_chars: int) -> str:
        try:
            text = _TEXT.decode(bytes(fields[name]))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BadLine("invalid_value", f"Invalid value for '{name}': expected a string.", name) from None
        if not 0 < len(text) <= max_chars:
            raise BadLine("invalid_value", f"Invalid value for '{name}': expected 1 to {max_chars} characters.", name)
        return text

    def _too_long(self, number: int) -> None:
        self._add_error("line_too_long", f"The line is longer than {self._max_line_bytes} bytes.", None, number)

    def _add_error(self, code: str, message: str, param: str | None, line: int | None) -> None:
        if not self.is_over:
            self._errors.append({"code": code, "message": message, "param": param, "line": line})

    def _flush(self) -> None:
        if self._lines and not self._errors:
            self._write({"lines": self._lines})
        self._lines = []

    def _write(self, line: dict[str, Any]) -> None:
        self._out.write(msgspec.json.encode(line) + b"\n")
        self._out.flush()


def main(endpoint: str, max_line_bytes: int) -> None:
    """Check the lines that come on the standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    checker = Checker(endpoint, max_line_bytes, sys.stdout.buffer)
    while not checker.is_over and (chunk := os.read(sys.stdin.fileno(), READ_BYTES)):
        checker.take(chunk)
    checker.end()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
