"""A private folder on the store's own file system, for content that is not inspected yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from adapters.store import AdapterStore


@asynccontextmanager
async def workspace(store: AdapterStore) -> AsyncIterator[Path]:
    """Yield a workspace as the store's own does, without holding up the event loop while files are deleted."""
    with ExitStack() as stack:
        folder = await asyncio.to_thread(stack.enter_context, store.workspace())
        try:
            yield folder
        finally:
            await asyncio.to_thread(stack.close)
