"""The start of a server of another maker, put together from a revision and this host's hardware."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from adapters.store import AdapterStore
from adapters.stores import open_store
from engine.config import load_model_config
from gateway.agent.servers.adapters import files_folder, write_files
from gateway.agent.servers.commands import ServerPlan
from gateway.agent.servers.footprint import context_length, model_file
from gateway.agent.servers.programs import Programs
from gateway.db.pools.revisions import RevisionRow
from gateway.domain.pools.drivers import PROGRAMS
from gateway.domain.pools.foreign_settings import parse_foreign_settings
from gateway.settings import Settings


def plan_of_server(
    settings: Settings,
    programs: Programs,
    pool: str,
    revision: RevisionRow,
    folder: Path,
    num_threads: int,
    gpu: str | None,
) -> ServerPlan:
    """Return the plan of a server's start, after the files of its adapters were written. Blocks.

    settings: the host's settings.
    pool: the name of the pool.
    folder: the folder of the prepared model.
    num_threads: the threads that compute; 0: as many as the server chooses.
    gpu: the only accelerator that the server may see, by CUDA's name; None: the server computes on processors.

    Raises OSError or ValueError: when the program or the model is not there.
    """
    driver, own = revision.driver, parse_foreign_settings(revision.settings)
    if driver not in programs:
        raise ValueError(f"this host lacks {PROGRAMS[driver]}")
    assert revision.base_digest is not None
    files: list[Path] = []
    if driver == "llamacpp" and revision.adapters:
        where = files_folder(settings.data_dir, revision.base_digest)
        files, _ = write_files(store_of(settings), folder, revision.adapters, where)
    return ServerPlan(
        driver=driver,
        program=programs[driver],
        model=str(model_file(driver, revision.model, folder)),
        served_model=pool,
        length=context_length(load_model_config(folder), own),
        settings=own,
        num_threads=num_threads,
        gpu=gpu,
        adapters=[str(each) for each in files],
    )


def store_of(settings: Settings) -> Callable[[], AdapterStore]:
    """Return a function that opens the adapter store of this host."""
    engine = settings.engine
    return partial(open_store, engine.adapter_store, settings.adapter_cache_dir, engine.adapter_cache_bytes)
