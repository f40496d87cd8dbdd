"""The adapters of a pool's present base, compared with the base of the revision that the pool wants.

Knows neither rows of pools nor when they change: it reads the list of adapters, and their files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.fit import fit_error
from adapters.report import BaseShape
from adapters.store import AdapterStore
from engine.config import load_model_config
from gateway.db.adapters.bases import LiveContent, live_contents
from gateway.db.pools.served import ServedPool, pools_serving
from gateway.domain.pools.unfit import UnfitAdapter

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Verdicts = dict[str, str]
"""The reasons why contents do not fit a base, by the content's digest; "" for a content that fits."""


class FitCache:
    """The cache of verdicts, each kept while its base is wanted, since contents and bases never change."""

    def __init__(self, store: Callable[[], AdapterStore], max_rank: int) -> None:
        """Make an empty memory of verdicts.

        store: gives the store of adapters when it is first needed.
        max_rank: the largest rank on hosts whose pools set none.
        """
        self._open_store = store
        self._max_rank = max_rank
        self._store: AdapterStore | None = None
        self._verdicts: dict[tuple[str, int], Verdicts] = {}  # by the digest of the base and the largest rank

    async def misfits(
        self, conn: Connection, pool: ServedPool, settings: Mapping[str, str], folder: Path, base_digest: str
    ) -> list[UnfitAdapter]:
        """Return the versions of adapters that would no longer answer if a pool took another revision.

        settings: the engine settings of the other revision.
        folder, base_digest: the folder and the digest of the other revision's prepared model.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        Raises OSError or UnsupportedModel: when the prepared model cannot be read.
        """
        serving = pool.revisions.get(pool.row.revision or 0)
        if serving is None or serving.base_digest in (None, base_digest):
            return []
        contents = await live_contents(conn, serving.base_digest)
        others = [name for name in await pools_serving(conn, serving.base_digest) if name != pool.row.name]
        if others:  # adapters stay with a base that is served
            return [UnfitAdapter(each.name, f"it stays with the base, which {others[0]} serves") for each in contents]
        verdicts = await self._judge_content(settings, folder, base_digest, contents)
        return [UnfitAdapter(each.name, verdicts[each.digest]) for each in contents if verdicts[each.digest]]

    async def fitting(self, conn: Connection, pools: Sequence[ServedPool]) -> dict[str, set[str]]:
        """Return the digests of contents that fit the wanted base of each pool that changes its base, by pool id.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        Raises OSError or UnsupportedModel: when the prepared model cannot be read.
        """
        found, served = {}, set()
        for pool in pools:
            serving = pool.revisions.get(pool.row.revision or 0)
            wanted = pool.revisions.get(pool.row.wanted_revision)
            if serving is None or serving.base_digest is None or wanted is None or wanted.state != "prepared":
                continue
            if wanted.base_digest in (None, serving.base_digest) or wanted.folder is None:
                continue
            contents = await live_contents(conn, serving.base_digest)
            verdicts = await self._judge_content(
                wanted.engine_settings, Path(wanted.folder), wanted.base_digest, contents
            )
            found[pool.row.id] = {each.digest for each in contents if not verdicts[each.digest]}
            served.add(wanted.base_digest)
        self._verdicts = {key: verdicts for key, verdicts in self._verdicts.items() if key[0] in served}
        return found

    async def _judge_content(
        self, settings: Mapping[str, str], folder: Path, base_digest: str, contents: Sequence[LiveContent]
    ) -> Verdicts:
        max_rank = int(settings.get("max_adapter_rank", self._max_rank))
        verdicts = self._verdicts.setdefault((base_digest, max_rank), {})
        new = {each.digest for each in contents} - verdicts.keys()
        if new:
            verdicts.update(await asyncio.to_thread(self._read, folder, new, max_rank))
        return verdicts

    def _read(self, folder: Path, digests: set[str], max_rank: int) -> Verdicts:
        store = self._store = self._store or self._open_store()
        config = load_model_config(folder)
        base = BaseShape(config.adapter_targets(), config.num_layers, config.layers_of_targets())
        return {digest: fit_error(store, digest, base, max_rank) for digest in sorted(digests)}
