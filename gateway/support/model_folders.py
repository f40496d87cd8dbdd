"""The folders of prepared base models on this machine, which hosts need not share."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import msgspec

from gateway.db.pools.served import ServedPool
from gateway.domain.pools.drivers import Driver
from gateway.settings import Settings, model_name_of


def prepared_folder(settings: Settings, *, converts: bool = False) -> Path:
    """Return the folder that keeps a prepared model: one for each source, whatever the pools of the model are called.

    A folder that was prepared under the name of a pool is used as well. converts: True: a GGUF file's weights become
    safetensors, in a folder of their own.
    """
    model, cache = settings.model, settings.model_cache_dir
    if model == "demo":
        own, others = cache / _as_folder_name(model_name_of(model)), [cache / _as_folder_name(settings.model_name)]
    else:
        end = hashlib.sha256(model.encode()).hexdigest()[:8] + ("-converted" if converts and _is_gguf(model) else "")
        own, others = cache / f"{_as_folder_name(model_name_of(model))}-{end}", sorted(cache.glob(f"*-{end}"))
    return next((each for each in (own, *others) if each.is_dir()), own)


def needs_safetensors(driver: Driver) -> bool:
    """Tell whether a driver's servers read a GGUF file's weights as safetensors alone."""
    return driver == "vllm"


def on_this_machine(served: ServedPool, settings: Settings) -> ServedPool:
    """Return a pool whose revisions name the folders of this machine.

    If the folder that another host wrote into the row is not here, name the folder that this host prepares.
    """
    revisions = {}
    for number, each in served.revisions.items():
        folder = each.folder
        if folder is not None and not Path(folder).is_dir():
            own = prepared_folder(
                msgspec.structs.replace(settings, model=each.model, model_name=""),
                converts=needs_safetensors(each.driver),
            )
            folder = str(own) if own.is_dir() else folder
        revisions[number] = each if folder == each.folder else msgspec.structs.replace(each, folder=folder)
    return msgspec.structs.replace(served, revisions=revisions)


def _is_gguf(model: str) -> bool:
    """Tell whether a source is a GGUF file, or a folder that holds exactly one in place of safetensors."""
    if model.endswith(".gguf"):
        return True
    folder = Path(model)
    return len(list(folder.glob("*.gguf"))) == 1 and not any(folder.glob("*.safetensors"))


def _as_folder_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
