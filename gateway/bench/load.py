"""The load of a benchmark: a closed loop, in which each stream sends its next request when the last one has ended.

Also measures what the streams see.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import httpx
import msgspec

from gateway.bench.client import Failed, Job, Reply, error_text, send_job

WORDS = ("stone", "river", "green", "bird", "turns", "over", "the", "old", "harbor", "while", "seven", "quiet")

Distribution = Literal["turn", "uniform", "zipf"]


class Unusable(Exception):
    """The error for a server that cannot be measured; the message is one line with the reason."""


class Load(msgspec.Struct, frozen=True):
    """The requests of a run."""

    models: Sequence[str]
    max_tokens: int
    prompt_words: int
    """The words of a prompt, each about a token."""
    shared_words: int
    """The words that begin every prompt."""
    distribution: Distribution
    """The choice of the model: in turn, uniformly, or with popularity 1 / rank."""


def jobs(load: Load, count: int, rng: random.Random) -> Iterator[Job]:
    """Yield count jobs. The same state of rng gives the same jobs."""
    shared = rng.choices(WORDS, k=load.shared_words)
    popularity = [1 / rank if load.distribution == "zipf" else 1.0 for rank in range(1, len(load.models) + 1)]
    for number in range(count):
        if load.distribution == "turn":
            model = load.models[number % len(load.models)]
        else:
            model = rng.choices(load.models, popularity)[0]
        yield Job(model, " ".join(shared + rng.choices(WORDS, k=load.prompt_words)), load.max_tokens)


async def check(client: httpx.AsyncClient, models: Sequence[str]) -> None:
    """Ask every model for one token, so that faults show at once and no adapter's first load is timed.

    Raises Unusable: when a model or the server does not answer.
    """
    for model in dict.fromkeys(models):
        try:
            await send_job(client, Job(model, "Hello", 1))
        except Failed as error:
            raise Unusable(f"{model} does not answer: {error}") from None
        except httpx.ConnectError:
            raise Unusable(f"no server answers at {client.base_url}; start one with `lorikeet serve`") from None
        except httpx.TransportError as error:
            raise Unusable(f"{client.base_url} did not answer: {error_text(error)}") from None


async def measure(client: httpx.AsyncClient, work: Sequence[Job], num_streams: int) -> dict[str, Any]:
    """Run the load over num_streams streams, and return the row of figures, times in ms; None where none was taken."""
    replies: list[Reply] = []
    errors: list[str] = []
    waiting = iter(work)

    async def stream() -> None:
        for job in waiting:
            try:
                replies.append(await send_job(client, job))
            except Failed as error:
                errors.append(str(error))
            except httpx.TransportError as error:
                errors.append(error_text(error))

    start_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_streams):
            tasks.create_task(stream())
    wall_s = time.perf_counter() - start_s
    num_tokens = sum(reply.num_tokens for reply in replies)
    times_per_token_s = [reply.time_per_token_s for reply in replies if reply.time_per_token_s is not None]
    return {
        "streams": num_streams,
        "requests": len(replies),
        "output_tokens": num_tokens,
        "output_tokens_per_s": round(num_tokens / wall_s, 1),
        "prompt_tokens": sum(reply.num_prompt_tokens for reply in replies),
        "ttft_ms_p50": quantile_ms([reply.ttft_s for reply in replies], 0.5),
        "ttft_ms_p99": quantile_ms([reply.ttft_s for reply in replies], 0.99),
        "time_per_token_ms_p50": quantile_ms(times_per_token_s, 0.5),
        "time_per_token_ms_p99": quantile_ms(times_per_token_s, 0.99),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
    }


def quantile_ms(values_s: Sequence[float], q: float, digits: int = 1) -> float | None:
    """Return the q-quantile of times, in milliseconds; None where there are no times.

    The quantile is the smallest value that at least a share q of all values do not exceed.

    q: between 0 and 1. digits: the decimals of the result.
    """
    if not values_s:
        return None
    return round(sorted(values_s)[max(0, math.ceil(q * len(values_s)) - 1)] * 1e3, digits)
