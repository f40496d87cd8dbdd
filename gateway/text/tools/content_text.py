"""The content of a completion beside its calls.

The content goes up to a stop string, without the white space that leads to a call.

Knows neither how calls are written nor tokens.
"""

from __future__ import annotations

from gateway.text.stop_strings import StopStrings

MAX_HELD_SPACE = 64
"""The most characters of white space at the content's end that are held back, as a call may follow.

Further white space is shown.
"""


class ContentText:
    """The content of a completion as it arrives, up to a stop string and without white space before a call.

    White space is searched for stop strings as soon as it is there, shown or not. is_exempt: True: no stop string is
    looked for now; set by the counter of the tokens. include: whether the stop string is part of the content.
    """

    def __init__(self, stop: tuple[str, ...] = (), *, include: bool = False) -> None:
        self.is_exempt = False
        self._stop = StopStrings(stop, include=include)
        self._space = ""

    @property
    def is_stopped(self) -> bool:
        """True if a stop string was found: neither content nor calls follow."""
        return self._stop.found

    @property
    def stop_string(self) -> str:
        """The stop string that was found; "" for none."""
        return self._stop.matched

    def push(self, text: str) -> str:
        """Return the part of the content so far that is safe to show."""
        return self._show(self._stop.push(text, is_exempt=self.is_exempt))

    def before_call(self) -> str:
        """Return the content that was held back, where a call follows.

        The white space at its end belongs to the call and is left out.
        """
        shown = self._show(self._stop.finish())  # no content follows that could complete a stop string
        self._space = ""
        return shown

    def finish(self) -> str:
        """End the content and return what was held back of it."""
        space, self._space = self._space, ""
        return space + self._stop.finish()

    def _show(self, text: str) -> str:
        text = self._space + text
        num_shown = len(text) if self.is_stopped else max(len(text.rstrip()), len(text) - MAX_HELD_SPACE)
        self._space = text[num_shown:]
        return text[:num_shown]
