"""Thinking: the part of a text between `<think>` and `</think>` at its beginning, as models that think write it."""

from __future__ import annotations

from typing import Literal

BEGIN, END = "<think>", "</think>"
ENDS_OPEN_TOKENS = 16
"""The number of a prompt's last tokens that are searched for BEGIN, which some chat templates write themselves."""

_END, _BROKEN_END = END.encode(), b"<\\/think>"

Part = tuple[Literal["thinking", "text"], str]


def begins_thinking(prompt_end: bytes) -> bool:
    """Tell whether a prompt with this end has begun the model's thinking already."""
    return prompt_end.rstrip().endswith(BEGIN.encode())


def ends_thinking(prompt_end: bytes) -> bool:
    """Tell whether a prompt with this end has ended the model's thinking already, mostly before it began."""
    return prompt_end.rstrip().endswith(END.encode())


def with_broken_end(thought: bytes) -> tuple[bytes, bytes]:
    """Return thinking in which no letters look like its end, and the bytes behind it that more may complete to them.

    For models whose thinking ends by a token: in their letters, END is broken by a backslash.
    """
    thought = thought.replace(_END, _BROKEN_END)
    num_undecided = next((size for size in range(len(_END) - 1, 0, -1) if thought.endswith(_END[:size])), 0)
    cut = len(thought) - num_undecided
    return thought[:cut], thought[cut:]


def answer_start(text: str, *, is_open: bool) -> int:
    """Return where the answer begins in a whole text. is_open: whether the prompt ended with BEGIN."""
    thinking = ThinkingText(is_open=is_open)
    thinking.push(text)
    thinking.finish()
    return len(text) if thinking.text_start is None else thinking.text_start


class ThinkingText:
    """A text that arrives in pieces, divided into thinking and the rest.

    Text that may be the beginning of `<think>` or `</think>` is held back.
    """

    def __init__(self, *, is_open: bool) -> None:
        """Initialize an empty text. is_open: whether the prompt ended with BEGIN."""
        self._state: Literal["start", "thinking", "after", "text"] = "thinking" if is_open else "start"
        self._held = ""
        self._num_chars = 0
        self._has_thought = False
        self.text_start: int | None = None
        """The place at which the answer begins after the thinking, in characters of all text; None while unknown."""

    @property
    def is_over(self) -> bool:
        """True once no more thinking can come."""
        return self._state in ("after", "text")

    @property
    def has_thought(self) -> bool:
        """True if the text had any thinking."""
        return self._has_thought

    def push(self, text: str) -> list[Part]:
        """Add text, and return the parts that are decided now, in order, each with whether it is thinking."""
        self._held += text
        self._num_chars += len(text)
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """End the text, and return the parts that were held back."""
        held, self._held = self._held, ""
        if not held or self._state == "after":
            return []
        if self._state == "thinking":
            self._state, held = "after", held.rstrip()
            self._has_thought = self._has_thought or bool(held)
            return [("thinking", held)] if held else []
        self._state, self.text_start = "text", self._num_chars - len(held)
        return [("text", held)]

    def _step(self, parts: list[Part]) -> bool:
        """Move the decided part of the held text to `parts`. Return whether a further part may be decided."""
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
                return self._take_thinking(parts)
            case "after":
                self._held = self._held.lstrip("\n")
                if not self._held:
                    return False
                self._state = "text"
            case "text":
                if self.text_start is None:
                    self.text_start = self._num_chars - len(self._held)
                if self._held:
                    parts.append(("text", self._held))
                    self._held = ""
                return False
        return True

    def _take_thinking(self, parts: list[Part]) -> bool:
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
    """Return the length of the longest suffix of a text that is a prefix of END."""
    for size in range(min(len(END) - 1, len(text)), 0, -1):
        if END.startswith(text[-size:]):
            return size
    return 0
