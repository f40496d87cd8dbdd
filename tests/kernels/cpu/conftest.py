"""The native library of the sources as they are: the installed one, or one that is built for these tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kernels.cpu.build import BuildError, build, digest
from kernels.cpu.library import NativeLibrary, installed


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> NativeLibrary:
    found = installed()
    if found is not None and found.digest == digest():
        return found
    return NativeLibrary(_build(tmp_path_factory.mktemp("native") / "library.so"))


def _build(target: Path) -> Path:
    try:
        build(target)
    except BuildError as error:
        if sys.platform == "linux" and "neither" not in str(error):
            raise
        pytest.skip(str(error))
    return target
