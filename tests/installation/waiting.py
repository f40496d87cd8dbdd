"""Loops that wait for something to become true, or fail with a sentence that names what did not happen."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from tests.patience import PATIENCE_S

T = TypeVar("T")
Text = str | Callable[[], str]
"""An error message, or a function that makes one when needed, for example from a log."""

LONGER, LONGEST_PAUSE_S = 1.1, 0.1
"""The factor by which each pause is longer than the one before, and the longest pause in seconds.

A slow event is asked for less often, since questions take processor time from what they wait for.
"""


def _text(text: Text) -> str:
    return text if isinstance(text, str) else text()


def wait_until(
    ask: Callable[[], T | None],
    what: Text = "it did not happen in time",
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.02,
) -> T:
    """Call `ask` repeatedly until its result is true, and return the result.

    pause_s: the seconds between two calls.

    Raises AssertionError: when `patience_s` are over; the message is `what`.
    """
    deadline_s, longest_s = time.monotonic() + patience_s, max(pause_s, LONGEST_PAUSE_S)
    while not (answer := ask()):
        assert time.monotonic() < deadline_s, _text(what)
        time.sleep(pause_s)
        pause_s = min(LONGER * pause_s, longest_s)
    return answer


async def until(
    ask: Callable[[], Awaitable[T | None]],
    what: Text = "it did not happen in time",
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.02,
) -> T:
    """Await `ask()` repeatedly until its result is true, and return the result; the event loop runs meanwhile.

    pause_s: the seconds between two calls.

    Raises AssertionError: when `patience_s` are over; the message is `what`.
    """
    deadline_s, longest_s = time.monotonic() + patience_s, max(pause_s, LONGEST_PAUSE_S)
    while not (answer := await ask()):
        assert time.monotonic() < deadline_s, _text(what)
        await asyncio.sleep(pause_s)
        pause_s = min(LONGER * pause_s, longest_s)
    return answer


def is_ready(url: str) -> bool:
    """Tell whether the gateway at this root reports that it is ready.

    This is asked hundreds of times while a gateway starts, so by a client that costs nothing to make.
    """
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_ready(url: str, *, check: Callable[[], object] = lambda: None, log: Text = "", pause_s: float = 0.05) -> None:
    """Wait until the gateway at this root is ready.

    check: called between tries; raises where the gateway has ended and can never become ready. pause_s: the seconds
    between two tries.

    Raises AssertionError: when `PATIENCE_S` are over; the message is the log.
    """

    def ask() -> bool:
        if is_ready(url):
            return True
        check()
        return False

    wait_until(ask, lambda: f"{url} did not become ready: {_text(log)}", pause_s=pause_s)
