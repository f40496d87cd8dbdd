"""All hostile behaviours of servers and a good one, by the name that a prompt asks for."""

from __future__ import annotations

import asyncio

from tests.gateway.backends.foreign.fake import END, Answer, Received, event, saying, sending
from tests.gateway.backends.foreign.hostile import HOSTILE, LYING, ODD

GOOD = "good"
BEHAVIOURS: dict[str, Answer] = {
    **HOSTILE,
    **{name: sending(reply) for name, reply in ODD.items()},
    **{name: sending(reply + event("[DONE]") + END) for name, reply in LYING.items()},
    GOOD: saying("Hello"),
}


async def behave(received: Received, writer: asyncio.StreamWriter) -> None:
    """Answer a request as its last message asks for."""
    await BEHAVIOURS[received.body["messages"][-1]["content"]](received, writer)
