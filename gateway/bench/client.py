"""One request to an OpenAI-compatible server, and when its tokens came. Knows nothing of loads."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx
import msgspec

EVENT_START = b"data: "
EVENT_END = b"\n\n"
DONE = b"data: [DONE]"


class Failed(Exception):
    """The error for one failed request; the message says how it failed."""


class Job(msgspec.Struct, frozen=True):
    """One request of a load, before it is sent."""

    model: str
    prompt: str
    max_tokens: int


class Reply(msgspec.Struct, frozen=True):
    """The timed answer to one request."""

    num_tokens: int
    num_prompt_tokens: int
    ttft_s: float
    """Seconds to the first token."""
    time_per_token_s: float | None
    """The seconds for each token after the first; None where there is none."""
    gaps_s: list[float]
    """The seconds between chunks that hold text."""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class _Choice(msgspec.Struct):
    text: str


class _Error(msgspec.Struct):
    message: str


class _Event(msgspec.Struct):
    """A chunk of a stream, or an error in its place."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


async def send_job(client: httpx.AsyncClient, job: Job) -> Reply:
    """Send a job and return the timed reply.

    Raises Failed: when the server does not answer as asked.
    Raises httpx.TransportError: when the server goes away.
    """
    body = {
        "model": job.model,
        "prompt": job.prompt,
        "max_tokens": job.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start_s = time.perf_counter()
    first_s = last_s = None
    gaps_s: list[float] = []
    usage = None
    async with client.stream("POST", "/completions", json=body) as response:
        if response.status_code != 200:
            raise Failed(f"{response.status_code}: {_message(await response.aread())}")
        async for event in _events(response):
            if event.error is not None:
                raise Failed(event.error.message)
            usage = event.usage or usage
            if event.choices:
                now_s = time.perf_counter()
                if last_s is not None:
                    gaps_s.append(now_s - last_s)
                first_s, last_s = first_s or now_s, now_s
    if usage is None or first_s is None or last_s is None:
        raise Failed("the stream ended early")
    num_more = usage.completion_tokens - 1
    time_per_token_s = (last_s - first_s) / num_more if num_more > 0 else None
    return Reply(usage.completion_tokens, usage.prompt_tokens, first_s - start_s, time_per_token_s, gaps_s)


async def _events(response: httpx.Response) -> AsyncIterator[_Event]:
    """Yield the events of a stream up to `[DONE]`.

    Raises Failed: when an event is not a chunk of a completion.
    """
    pending = b""
    async for data in response.aiter_bytes():
        *whole, pending = (pending + data).split(EVENT_END)
        for event in whole:
            if event == DONE:
                return
            try:
                yield _decode(event.removeprefix(EVENT_START))
            except msgspec.DecodeError as error:
                raise Failed(f"an event is not a chunk of a completion: {error}") from None


def _message(body: bytes) -> str:
    """Return the server's own words in a reply that is an error."""
    try:
        error = _decode(body).error
    except msgspec.DecodeError:
        error = None
    return error.message if error is not None else "not an answer of an OpenAI-compatible server"


def error_text(error: Exception) -> str:
    """Return an error's message, or the name of its class if it has none."""
    return str(error) or type(error).__name__
