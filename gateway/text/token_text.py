"""The bytes of single tokens, which need not be whole characters. Knows the vocabularies that the models here have:
byte-level BPE, and SentencePiece's with its byte tokens and visible spaces.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_VISIBLE_SPACE = "\u2581"


class TokenText:
    """Bytes by token id. Those of a text's tokens together are the text, before a decoder strips its first space."""

    def __init__(self, backend: BackendTokenizer) -> None:
        self._backend = backend
        self._added = {token_id: token.content for token_id, token in backend.get_added_tokens_decoder().items()}
        self._alphabet = _byte_alphabet() if _is_byte_level(json.loads(backend.to_str())["decoder"]) else None

    def to_bytes(self, token_id: int) -> bytes:
        """b"" for an id that the tokenizer does not know, as a model's padded vocabulary may have."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._alphabet is not None:
            return bytes(self._alphabet[char] for char in token)
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(byte[1], 16)])
        return str(token).replace(_VISIBLE_SPACE, " ").encode()


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    return decoder["type"] == "ByteLevel" or any(map(_is_byte_level, decoder.get("decoders", ())))


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level BPE (Radford et al., 2019): printable Latin-1 ones for
    themselves, the other bytes in order from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + number), byte) for number, byte in enumerate(others))
    return alphabet
