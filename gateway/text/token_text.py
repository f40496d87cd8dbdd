"""The bytes of single tokens, which need not be whole characters.

Knows the vocabularies that the models here have: byte-level BPE, and SentencePiece's with its byte tokens and visible
spaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_VISIBLE_SPACE = "\u2581"


class TokenText:
    """The bytes of each token of a vocabulary, by token id.

    The texts of all tokens of a text together are the text, before a decoder strips its first space. special_ids:
    tokens that are no text. strips_first_space: True if the decoder strips it.
    """

    def __init__(self, backend: BackendTokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        steps = list(_steps(json.loads(backend.to_str())["decoder"]))
        self._alphabet = _byte_alphabet() if any(step["type"] == "ByteLevel" for step in steps) else None
        self._found: dict[int, bytes] = {}  # a vocabulary at most
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.strips_first_space = any(map(_strips_first_space, steps))

    def to_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; b"" for an id that the tokenizer does not know.

        A model's padded vocabulary may have such ids.
        """
        raw = self._found.get(token_id)
        if raw is None:
            raw = self._found[token_id] = self._bytes_of(token_id)
        return raw

    def longest_bytes(self) -> int:
        """Return the number of bytes of the longest token."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return max(self._num_bytes(token, token_id) for token, token_id in vocabulary.items())

    def _num_bytes(self, token: str, token_id: int) -> int:
        """Return the number of a token's bytes, or slightly more for a byte token; cheaper than `_bytes_of`."""
        if self._alphabet is not None and token_id not in self._added_ids:
            return len(token)
        return len(token.replace(_VISIBLE_SPACE, " ").encode())

    def _bytes_of(self, token_id: int) -> bytes:
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._alphabet is not None:
            is_added = token_id in self._added_ids
            return token.encode() if is_added else bytes(self._alphabet[char] for char in token)
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(byte[1], 16)])
        return token.replace(_VISIBLE_SPACE, " ").encode()


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the elementary decoders of a composed decoder."""
    if decoder is None:
        return
    if decoder["type"] != "Sequence":
        yield decoder
    for inner in decoder.get("decoders", ()):
        yield from _steps(inner)


def _strips_first_space(decoder: dict[str, Any]) -> bool:
    if decoder["type"] == "Metaspace":
        return bool(decoder.get("prepend_scheme", "always") != "never")
    return bool(decoder["type"] == "Strip" and decoder["content"] == " " and decoder["start"] > 0)


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character stands for in byte-level BPE (Radford et al., 2019).

    Printable Latin-1 characters stand for themselves, and those from U+0100 on for the other bytes in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + number), byte) for number, byte in enumerate(others))
    return alphabet
