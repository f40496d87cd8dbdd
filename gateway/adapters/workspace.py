"""Private folders on the store's own file system, for content that is not inspected yet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from adapters.store import AdapterStore

LEFT_S = (0.5, 2.0)
"""The least and the most seconds that a workspace stays after its use, where no request waits for its deletion."""


@asynccontextmanager
async def workspace(store: AdapterStore, leftovers: Leftovers | None = None) -> AsyncIterator[Path]:
    """Yield a workspace of the store, which is deleted without blocking the event loop.

    leftovers: deletes the workspace after a body without an error, whose caller does not wait for the deletion.
    """
    with ExitStack() as stack:
        folder = await asyncio.to_thread(stack.enter_context, store.workspace())
        try:
            yield folder
            if leftovers is not None:
                leftovers.take(stack.pop_all())
        finally:
            await asyncio.to_thread(stack.close)


class Leftovers:
    """Deletes workspaces some time after their use.

    Only an upload of content that the store already has leaves files behind, whose deletion takes milliseconds. Deleted
    later, they do not make such an upload slower than others, by which a tenant could tell what others have stored.
    """

    def __init__(self) -> None:
        self._deleting: set[asyncio.Task[None]] = set()

    def take(self, workspace: ExitStack) -> None:
        """Delete a workspace within LEFT_S, or at once when the event loop ends."""
        task = asyncio.create_task(self._delete(workspace))
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _delete(self, workspace: ExitStack) -> None:
        try:
            await asyncio.sleep(random.SystemRandom().uniform(*LEFT_S))
        finally:
            await asyncio.to_thread(workspace.close)
