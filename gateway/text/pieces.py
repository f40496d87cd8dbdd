"""Texts tokenized piece by piece, each piece once: a conversation's turns come again with each of its requests.

A tokenizer takes special tokens such as `<|im_start|>` out of a text before anything else, and works on what lies
between them on its own. So the token ids of a text are those of its pieces, where a piece is a special token with the
text up to the next one. Not all tokenizers keep to that: `Pieces.of` tests whether one does.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain

from tokenizers import Tokenizer as BackendTokenizer

MAX_BYTES = 32 << 20
"""The bytes that the cached pieces of one tokenizer may take: about six million tokens."""

TOKEN_BYTES, PIECE_BYTES = array("I").itemsize, 400
"""The bytes of memory that a token id takes, and those that a piece takes beside its text and its ids."""

_PROBES = ("The first word", " of a text,\n", "\n\n", "ends so: ", "x")

Encode = Callable[[list[str]], list[list[int]]]


class Pieces:
    """The cached token ids of pieces of text, of which the least recently used are dropped. Any thread may encode.

    Each owner has pieces of its own: the time to encode a text does not tell whether somebody else has sent the text.
    """

    def __init__(self, encode: Encode, separators: Sequence[str], *, max_bytes: int = MAX_BYTES) -> None:
        """Initialize an empty cache.

        encode: returns the token ids of each text, without special tokens around it. separators: tokens before each of
        which a text may be divided.
        """
        self._encode = encode
        self._max_bytes = max_bytes
        self._separators = re.compile("|".join(map(re.escape, sorted(separators, key=len, reverse=True))))
        self._cache: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    @classmethod
    def of(cls, backend: BackendTokenizer, encode: Encode) -> Pieces | None:
        """Return the pieces of a tokenizer; None where it has no special tokens.

        Return None as well if the tokenizer does not tokenize the texts between special tokens independently.
        """
        whole = [
            token.content
            for token in backend.get_added_tokens_decoder().values()
            if not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        ]
        if not whole:
            return None
        pieces = cls(encode, whole)
        text = "".join(probe + each for each in whole for probe in _PROBES)
        return pieces if pieces.encode("", text) == encode([text])[0] else None

    def encode(self, owner: str, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens around it."""
        keys = [(owner, piece) for piece in self._special_and_text(text)]
        with self._lock:
            found = {key: self._cache[key] for key in keys if key in self._cache}
            for key in found:
                self._cache.move_to_end(key)
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        if missing:
            new = self._encode([piece for _, piece in missing])
            found |= {key: array("I", ids) for key, ids in zip(missing, new, strict=True)}
            with self._lock:
                for key in missing:
                    self._cache_ids(key, found[key])
        return list(chain.from_iterable(found[key] for key in keys))

    def _special_and_text(self, text: str) -> list[str]:
        starts = [found.start() for found in self._separators.finditer(text)]
        return [text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True) if start < end]

    def _cache_ids(self, key: tuple[str, str], ids: array[int]) -> None:
        if key not in self._cache:
            self._cache[key] = ids
            self._num_bytes += _num_bytes(key, ids)
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= _num_bytes(*self._cache.popitem(last=False))


def _num_bytes(key: tuple[str, str], ids: array[int]) -> int:
    return PIECE_BYTES + len(key[1]) + TOKEN_BYTES * len(ids)
