"""The deltas of a stream that an engine has sent and the reader has not taken, held in little memory.

Pure: knows neither streams nor engines.

A reader that keeps up takes each delta by itself. For a reader that falls behind, deltas of one choice are joined and
encoded: encoded log-probabilities take a sixth of the memory, and a joined delta is less work to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from engine.protocol import Delta

MAX_APART = 16
"""The most unread deltas that are kept unjoined. If two steps yield more, as many as two steps yield are kept."""

MAX_UNREAD_BYTES = 1 << 17
"""The most encoded bytes of a stream that wait for their reader: minutes at 100 tokens/s, or 4 s with 20
log-probabilities."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Delta])


class Backlog:
    """The unread deltas of one stream, in order. num_bytes: the size of the encoded ones."""

    def __init__(self, num_choices: int = 1) -> None:
        self.num_bytes = 0
        self._max_apart = max(MAX_APART, 2 * num_choices)
        self._encoded: deque[bytes] = deque()
        self._latest: list[Delta] = []

    def __bool__(self) -> bool:
        return bool(self._latest or self._encoded)

    @property
    def is_full(self) -> bool:
        """Tell whether so many deltas wait that more of them would be joined and encoded."""
        return len(self._latest) >= self._max_apart or bool(self._encoded)

    def add(self, delta: Delta) -> None:
        """Add a delta; encode it together with others if many wait."""
        self._latest.append(delta)
        if len(self._latest) > self._max_apart:
            encoded = _encoder.encode(join_deltas(self._latest))
            self._latest = []
            self._encoded.append(encoded)
            self.num_bytes += len(encoded)

    def take(self) -> list[Delta]:
        """Take and return the oldest deltas, few at a time, so that a slow reader holds few; [] where none wait."""
        if self._encoded:
            encoded = self._encoded.popleft()
            self.num_bytes -= len(encoded)
            return _decoder.decode(encoded)
        latest, self._latest = self._latest, []
        return latest


def join_deltas(deltas: Sequence[Delta]) -> list[Delta]:
    """Return one delta for each choice, with all tokens of the choice's deltas.

    Deltas come in the order of the choices' first deltas.
    """
    of_choice: dict[int, list[Delta]] = {}
    for delta in deltas:
        of_choice.setdefault(delta.index, []).append(delta)
    return [_join(each) for each in of_choice.values()]


def _join(deltas: Sequence[Delta]) -> Delta:
    """Join the deltas of one choice, given in order."""
    first, last = deltas[0], deltas[-1]
    logprobs = None
    if any(delta.logprobs is not None for delta in deltas):
        logprobs = [each for delta in deltas for each in delta.logprobs or ()]
    return Delta(
        last.request_id,
        [token_id for delta in deltas for token_id in delta.token_ids],
        last.num_completion_tokens,
        first.index,
        logprobs,
        last.finish_reason,
        first.prompt_logprobs,
        last.stop_token_id,
    )
