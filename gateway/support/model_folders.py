"""The folders of prepared base models on this machine, which hosts need not share."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from gateway.db.pools.served import ServedPool
from gateway.settings import Settings, model_name_of


def prepared_folder(settings: Settings) -> Path:
    """Return the folder that keeps a prepared model: one for each source, whatever the pools of the model are called.

    A folder that was prepared under the name of a pool is used as well.
    """
    model, cache = settings.model, settings.model_cache_dir
    if model == "demo":
        own, others = cache / _as_folder_name(model_name_of(model)), [cache / _as_folder_name(settings.model_name)]
    else:
        digest = hashlib.sha256(model.encode()).hexdigest()[:8]
        own, others = cache / f"{_as_folder_name(model_name_of(model))}-{digest}", sorted(cache.glob(f"*-{digest}"))
    return next((each for each in (own, *others) if each.is_dir()), own)


def on_this_machine(served: ServedPool, settings: Settings) -> ServedPool:
    """Return a pool whose revisions name the folders of this machine.

    Where the folder of the row, which another host wrote, is not here, name the one that this host prepares.
    """
    revisions = {}
    for number, each in served.revisions.items():
        folder = each.folder
        if folder is not None and not Path(folder).is_dir():
            own = prepared_folder(msgspec.structs.replace(settings, model=each.model, model_name=""))
            folder = str(own) if own.is_dir() else folder
        revisions[number] = each if folder == each.folder else msgspec.structs.replace(each, folder=folder)
    return msgspec.structs.replace(served, revisions=revisions)


def _as_folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
