"""While a process imports its modules, no garbage collector runs; afterwards one does, and leaves them alone."""

from __future__ import annotations

import gc

import pytest

from engine.config.imports import no_collections


def test_what_is_made_during_imports_is_never_looked_at_by_the_collector() -> None:
    try:
        with no_collections():
            assert not gc.isenabled()
            made = [[number] for number in range(10_000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= len(made)
        assert not any(each is made for each in gc.get_objects()), "the collector knows nothing of it"
    finally:
        gc.unfreeze()


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    try:
        with pytest.raises(ModuleNotFoundError), no_collections():
            import no_module_of_this_name  # type: ignore[import-not-found]  # noqa: F401
        assert gc.isenabled()
    finally:
        gc.unfreeze()
