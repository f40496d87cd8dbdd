"""A prompt that waits for a first replica of its pool before it is sent. Knows nothing of how replicas start."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from gateway.backends.generation import Item
from gateway.backends.pool import PoolRevision
from gateway.domain.errors import GatewayError, Overloaded
from gateway.pipeline.items.attempts import Restarted, has_no_successor

Source = AsyncGenerator[Item | Restarted]


async def after_first_replica(
    pool: PoolRevision,
    source: Source,
    tenant: str,
    on_unanswered: Callable[[GatewayError], None] | None = None,
    is_followed: Callable[[GatewayError], bool] = has_no_successor,
) -> Source:
    """Yield the items of a prompt, which is sent once the pool has a first replica.

    Nothing is recorded of a prompt that is closed while it waits.

    on_unanswered: called with the error where no replica is there in time. is_followed: tells whether something else
    takes the prompt after an error; on_unanswered is not called then.

    Raises Overloaded: when no replica is there in time.
    Raises the errors of the source: when it fails.
    """
    async with aclosing(source) as items:
        await await_first_replica(pool, tenant, on_unanswered, is_followed)
        async for item in items:
            yield item


async def await_first_replica(
    pool: PoolRevision,
    tenant: str,
    on_unanswered: Callable[[GatewayError], None] | None = None,
    is_followed: Callable[[GatewayError], bool] = has_no_successor,
) -> None:
    """Wait until the pool has a first replica.

    on_unanswered: called with the error where no replica is there in time. is_followed: tells whether something else
    takes the prompt after an error; on_unanswered is not called then.

    Raises Overloaded: when no replica is there in time.
    """
    try:
        await pool.warm(tenant)
    except Overloaded as error:
        if on_unanswered is not None and not is_followed(error):
            on_unanswered(error)
        raise
