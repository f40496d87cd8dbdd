"""Servers with OpenAI's protocol that follow a script carried in each prompt, and remember each byte they sent.

A reply can be cut, or stall, at any byte. The tokens to bill of a reply follow from the bytes that were sent, by the
rule in gateway/backends/foreign/README.md.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any, Literal

import msgspec

from tests.gateway.backends.foreign.fake import END, HEAD, FakeServer, Received, delta, event, refusing, usage

Place = Literal["whole", "head", "first chunk", "midst", "before usage", "after the end"]
"""The place at which a reply is cut. whole: the reply is not cut. after the end: behind its `[DONE]`."""

PLACES: tuple[Place, ...] = ("head", "first chunk", "midst", "before usage", "after the end")
PROMPT_TOKENS = 30
MAX_TOKENS = 16
"""The most tokens that requests ask for."""


class Script(msgspec.Struct, frozen=True, omit_defaults=True):
    """The behaviour of a server for one request."""

    words: tuple[str, ...] = ("Hello", " world")
    reports: Literal["end", "each", "none"] = "end"
    """The position of the usage: in the last event, in each event, or nowhere."""
    place: Place = "whole"
    share: float = 0.0
    """The share of the bytes of `place` that are sent before the reply is cut."""
    stalls: bool = False
    """True if the server stalls where it would cut the reply."""
    status: int = 200
    """The status of the reply; any status but 200 is an error without a reply."""
    first_s: float = 0.0
    """The seconds before the first byte of the reply."""
    pause_s: float = 0.0
    """The seconds between two events."""


class SentReply(msgspec.Struct):
    """The bytes that a server sent as one reply."""

    server: str
    id: str
    """The gateway's id of the attempt."""
    script: Script
    parts: list[tuple[int, str, int | None]]
    """The events of the reply: the offset of each event's end, its text, and the completion tokens that it reports."""
    num_bytes: int = 0
    """The number of bytes that were sent."""

    @property
    def num_parts(self) -> int:
        """The number of events that were sent completely."""
        return sum(end <= self.num_bytes for end, *_ in self.parts)

    @property
    def num_words(self) -> int:
        return sum(bool(text) for _, text, _ in self.parts[: self.num_parts])


def billed(sent: SentReply, num_parts: int | None = None) -> int:
    """Return the completion tokens that are billed of a reply.

    num_parts: the number of events that the gateway got; None for all that were sent whole.
    """
    came = sent.parts[: sent.num_parts if num_parts is None else num_parts]
    words = [text for _, text, _ in came if text]
    own = min(MAX_TOKENS, max(len(words), -(-sum(len(word.encode()) for word in words) // 4)))
    reports = [place for place, (_, _, tokens) in enumerate(came) if tokens is not None]
    if not reports:
        return own
    reported = came[reports[-1]][2]
    assert reported is not None
    has_text_since = any(text for _, text, _ in came[reports[-1] + 1 :])
    return max(reported, own) if has_text_since else reported


class ScriptedServer(FakeServer):
    """A server that follows the script with its name in the prompt."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.sent: list[SentReply] = []
        self.answer = self._answer

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        scripts: dict[str, Any] = json.loads(received.body["messages"][-1]["content"])
        script = msgspec.convert(scripts.get(self.name, {}), Script)
        reply, bounds, parts = _reply(script)
        sent = SentReply(self.name, received.headers["x-request-id"], script, parts)
        self.sent.append(sent)
        await asyncio.sleep(script.first_s)
        if script.status != 200:
            sent.parts = []
            await refusing(script.status)(received, writer)
            return
        end = len(reply)
        if script.place != "whole":
            first, last = bounds[script.place]
            end = first + int(script.share * (last - first))
        stops = [*(stop for stop, *_ in parts if stop < end), end] if script.pause_s else [end]
        for stop in stops:
            writer.write(reply[sent.num_bytes : stop])
            sent.num_bytes = stop
            await writer.drain()
            await asyncio.sleep(script.pause_s)
        if script.place != "whole" and script.stalls:
            await asyncio.sleep(600)
        if script.place != "whole":
            writer.close()


def _reply(script: Script) -> tuple[bytes, dict[Place, tuple[int, int]], list[tuple[int, str, int | None]]]:
    """Return the bytes of a whole reply, the start and end offset of each of its places, and its parts."""
    reply, parts = bytearray(HEAD), list[tuple[int, str, int | None]]()

    def add(value: Any, text: str = "", tokens: int | None = None) -> tuple[int, int]:
        start = len(reply)
        reply.extend(event(value))
        parts.append((len(reply) - len(b"\r\n"), text, tokens))
        return start, len(reply)

    def counted(value: dict[str, Any], num: int) -> dict[str, Any]:
        return value | {"usage": usage(PROMPT_TOKENS, num)["usage"]}

    running = script.reports == "each"
    bounds: dict[Place, tuple[int, int]] = {"head": (0, len(HEAD))}
    add(delta("", role="assistant"))
    for place, word in enumerate(script.words, 1):
        value = counted(delta(word), place) if running else delta(word)
        start, end = add(value, word, place if running else None)
        if place == 1:
            bounds["first chunk"] = start, end
        if place == 2:
            bounds["midst"] = start, end
    bounds["midst"] = bounds.get("midst", bounds["first chunk"])[0], len(reply)
    start = len(reply)
    add(delta("", finish="stop"))
    if script.reports != "none":
        add(usage(PROMPT_TOKENS, len(script.words)), "", len(script.words))
    bounds["before usage"] = start, len(reply) - len(b"\n\n\r\n")
    done = len(reply)
    reply.extend(event("[DONE]"))
    bounds["after the end"] = len(reply), len(reply) + len(END)
    reply.extend(END)
    assert done < len(reply)
    return bytes(reply), bounds, parts


def random_script(draw: random.Random, *, failing: float) -> Script:
    """Return a random script.

    failing: the share of scripts whose reply does not end well.
    """
    words = tuple(draw.choice((" a", " word", " longer-words", " ab")) for _ in range(draw.randint(2, 8)))
    reports = draw.choice(("end", "end", "each", "none"))
    pause_s = draw.choice((0.0, 0.0, 0.002))
    if draw.random() >= failing:
        return Script(words, reports, pause_s=pause_s)
    kind = draw.choices(("cut", "stall", "error", "full"), (6, 1, 1, 1))[0]
    if kind in ("error", "full"):
        return Script(words, reports, status=500 if kind == "error" else 503)
    return Script(words, reports, draw.choice(PLACES), draw.random(), stalls=kind == "stall", pause_s=pause_s)
