"""Thinking: the part of a text between `<think>` and `</think>` at its beginning, as models that think write it, and
the signature by which a client sends it back.

A signature is GCM's tag over the text under the project's key: a text that was changed, or comes from another project
or another server, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Literal

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.support.cipher import Cipher, Place, Sealed

BEGIN, END = "<think>", "</think>"
ENDS_OPEN_TOKENS = 16
"""The last tokens of a prompt among which one looks for a BEGIN: some chat templates write it themselves."""

Part = tuple[Literal["thinking", "text"], str]


class ThinkingText:
    """Text as it comes, told apart. What may be the beginning of a mark is held back until that is decided."""

    def __init__(self, *, is_open: bool) -> None:
        """is_open: the prompt ended with BEGIN."""
        self._state: Literal["start", "thinking", "after", "text"] = "thinking" if is_open else "start"
        self._held = ""
        self._has_thought = False

    def push(self, text: str) -> list[Part]:
        """Return the parts that more text brings, in order."""
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """Return what was held back, where no text follows."""
        held, self._held = self._held, ""
        if not held or self._state == "after":
            return []
        if self._state == "thinking":
            held = held.rstrip()
            return [("thinking", held)] if held else []
        return [("text", held)]

    def _step(self, parts: list[Part]) -> bool:
        """Take what is decided of the text that is held; tell whether there may be more of it."""
        match self._state:
            case "start":
                begun = self._held.lstrip()
                if begun.startswith(BEGIN):
                    self._state, self._held = "thinking", begun[len(BEGIN) :]
                elif BEGIN.startswith(begun):  # also where there is nothing yet
                    return False
                else:
                    self._state = "text"
            case "thinking":
                return self._think(parts)
            case "after":
                self._held = self._held.lstrip("\n")
                if not self._held:
                    return False
                self._state = "text"
            case "text":
                if self._held:
                    parts.append(("text", self._held))
                    self._held = ""
                return False
        return True

    def _think(self, parts: list[Part]) -> bool:
        if not self._has_thought:
            self._held = self._held.lstrip("\n")
        before, mark, after = self._held.partition(END)
        if mark:
            thought, self._held, self._state = before.rstrip(), after, "after"
        else:
            thought = before[: len(before) - _num_undecided(before)].rstrip()
            self._held = before[len(thought) :]
        if thought:
            self._has_thought = True
            parts.append(("thinking", thought))
        return bool(mark)


def _num_undecided(text: str) -> int:
    """Return the length of the end of a text that may be the beginning of END."""
    for size in range(min(len(END) - 1, len(text)), 0, -1):
        if END.startswith(text[-size:]):
            return size
    return 0


class Signatures:
    """Signs thinking, and checks what clients send back. One per gateway process."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher

    def sign(self, project_id: str, thinking: str) -> str:
        """Return the signature of a project's thinking."""
        sealed = self._cipher.seal(b"", _place(project_id, thinking))
        return base64.b64encode(msgspec.msgpack.encode(sealed)).decode()

    def check(self, project_id: str, thinking: str, signature: str, path: str) -> None:
        """Check a signature.

        Raises InvalidRequest: for one that this installation did not make for this text.
        """
        try:
            sealed = msgspec.msgpack.decode(base64.b64decode(signature, validate=True), type=Sealed)
        except (binascii.Error, ValueError, msgspec.DecodeError):
            sealed = None
        if sealed is None or self._cipher.open_from_client(sealed, _place(project_id, thinking)) is None:
            raise InvalidRequest(
                f"'{path}' is no signature of this thinking. Send thinking back as it came, or leave it out.",
                param=path,
                code="invalid_signature",
            )


def _place(project_id: str, thinking: str) -> Place:
    digest = hashlib.sha256(thinking.encode(errors="surrogatepass")).hexdigest()
    return Place(project_id, "messages.thinking", digest)
