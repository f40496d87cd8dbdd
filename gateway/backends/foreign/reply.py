"""The parts of a server's reply, as every driver reads them from the server's own events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from engine.protocol import FinishReason, TokenLogprobs
from gateway.text.tools.parser import CallDelta

MAX_OBJECTS = 1 << 15
"""The most objects of a piece of JSON: each takes time and memory, however short it is."""

MAX_NAMES, MAX_NAME_CHARS = 3, 64
"""Models that a server lists and operators are told of, and characters of each name."""


class Part(msgspec.Struct):
    """The part of one choice that is new."""

    index: int
    """The number of the choice, from 0."""
    text: str = ""
    """Text, of a server that returns text."""
    reasoning: str = ""
    """Reasoning, of a server that tells it from text."""
    calls: tuple[CallDelta, ...] = ()
    """Calls of tools, of a server that reads them itself."""
    token_ids: list[int] = []
    """Token ids, of a server that returns them; the one that ended the choice is no part of them."""
    logprobs: list[TokenLogprobs] | None = None
    """The log-probabilities of each token id, if they were asked for."""
    finish_reason: FinishReason | None = None
    """Set in the last part of a choice: `stop` or `length`."""


class ReportedUsage(msgspec.Struct, frozen=True):
    """The usage of the whole request so far, as the server reports it."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """Tokens of the completion that were reasoning, shown or not."""


class Event(msgspec.Struct):
    """The content of one event of a stream."""

    parts: list[Part] = []
    """The new parts, of any choices."""
    usage: ReportedUsage | None = None
    """The usage that the event reports, the event's own parts included."""
    is_end: bool = False
    """True if the server says that nothing follows."""


class BadReply(Exception):
    """The error for a reply that breaks the server's protocol; the message is for operators alone."""


def not_listed(wanted: str, listed: Sequence[str]) -> BadReply:
    """Return the error of a server that does not list the model that it is asked for; wanted: "" for any model."""
    if not listed:
        return BadReply("it lists no model")
    words = [repr("".join(c for c in each if c.isprintable())[:MAX_NAME_CHARS]) for each in listed[:MAX_NAMES]]
    if len(listed) > MAX_NAMES:
        words.append("others")
    return BadReply(f"it does not list the model {wanted!r}, but {', '.join(words)}")


class AnotherModel(BadReply):
    """The error for a reply from another model than the requested one, such as the base in place of an adapter."""


class ReplyRefused(Exception):
    """The error for a reply that must not reach its client, such as a filtered one, from a healthy server.

    The error says nothing about the server, and another server would most likely reply the same. The message is for
    operators alone.
    """


class ServerRefused(Exception):
    """The error of a server that refused a request, or failed at it, in its own words.

    The message is for operators alone.

    retry_after_s: seconds after which the server wants to be asked again; None: the server said nothing about that.
    """

    def __init__(self, status: int, code: str = "", *, text: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"status {status} {code}".strip())
        self.status = status
        """The HTTP status, or the one that stands for an error within a stream."""
        self.code = code
        """The server's own code, if it is a known one."""
        self.text = text
        """The error as the server wrote it, for the operator's log alone, where it is shown by `errors.log_text`."""
        self.retry_after_s = retry_after_s


def check_objects(data: bytes) -> None:
    """Check the number of objects of a piece of JSON before it is decoded.

    Raises BadReply: when there are more than any reply needs.
    """
    if len(data) > MAX_OBJECTS and data.count(b"{") > MAX_OBJECTS and _num_objects(data) > MAX_OBJECTS:
        raise BadReply("it sends too many objects at once")


def _num_objects(data: bytes) -> int:
    """Return the number of objects of a piece of JSON, without the braces within its texts."""
    if b"\\" in data:  # what a backslash escapes is no end of a text
        data = data.replace(rb"\\", b"__").replace(rb"\"", b"__")
    codes = np.frombuffer(data, np.uint8)
    is_outside = np.bitwise_xor.accumulate((codes == ord('"')).view(np.uint8)) == 0
    return int(np.count_nonzero((codes == ord("{")) & is_outside))
