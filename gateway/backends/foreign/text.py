"""The text of one choice from a server that returns text: held back and cut where a stop string may begin."""

from __future__ import annotations

from gateway.backends.foreign.reply import Part
from gateway.backends.generation import Piece
from gateway.text.stop_strings import StopStrings


class TextChoice:
    """One completion on its way to its client. The server was asked to stop too; a server that does not is cut here."""

    def __init__(self, index: int, stop: tuple[str, ...]) -> None:
        self.is_stopped = False
        """True once a stop string has ended the choice here."""
        self._index = index
        self._stop = StopStrings(stop)
        self._has_ended = False

    def push(self, part: Part, num_tokens: int, prompt_tokens: int | None = None) -> Piece | None:
        """Take a part; return what it adds, None where there is nothing to show yet.

        num_tokens: of the choice so far. prompt_tokens: as of `Piece`.
        """
        if self._has_ended:
            return None
        text = self._stop.push(part.text) if part.text else ""
        if self._stop.found:
            self.is_stopped = self._has_ended = True
            return Piece(
                self._index,
                text,
                finish_reason="stop",
                num_tokens=num_tokens,
                prompt_tokens=prompt_tokens,
                stop_string=self._stop.matched,
            )
        if part.finish_reason is not None:
            self._has_ended = True
            text += self._stop.finish()
        if not (text or part.calls or part.finish_reason):
            return None
        return Piece(self._index, text, [], part.finish_reason, part.calls, [], num_tokens, prompt_tokens)
