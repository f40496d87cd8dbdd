"""The adapters of llama.cpp's servers: written from the adapter store as files that a server is started with.

A file is named by the digest of its content, so it is written once for each base. Knows neither tenants nor servers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import structlog

from adapters.errors import AdapterDamaged, AdapterMissing, AdapterRejected, StoreFailure
from adapters.gguf_file import NotConvertible, write_gguf
from adapters.store import AdapterStore

FOLDER = "adapters-gguf"
_DIGITS = 16

log = structlog.get_logger(__name__)


def files_folder(data_dir: Path, base_digest: str) -> Path:
    """Return the folder of the files of one base's adapters."""
    return data_dir / FOLDER / base_digest[:_DIGITS]


def write_files(
    store: Callable[[], AdapterStore], base: Path, digests: Iterable[str], folder: Path
) -> tuple[list[Path], dict[str, str]]:
    """Write a GGUF file for each adapter that has none yet; blocks.

    Return the paths of all files, and by digest the reasons why adapters have none. base: the folder of the base model.
    """
    files, missing = list[Path](), dict[str, str]()
    for digest in digests:
        path = folder / f"{digest}.gguf"
        try:
            if not path.is_file():
                with store().reading(digest) as adapter:
                    write_gguf(base, adapter, folder)
        except (AdapterDamaged, AdapterMissing, AdapterRejected, NotConvertible, StoreFailure, OSError) as error:
            missing[digest] = str(error) or type(error).__name__
            log.warning("adapter_not_converted", adapter=digest, error=missing[digest])
        else:
            files.append(path)
    return files, missing


def num_file_bytes(files: Iterable[Path]) -> int:
    """Return the total size in bytes of those of the files that exist."""
    return sum(each.stat().st_size for each in files if each.is_file())


def remove_files(data_dir: Path, remaining: Collection[str]) -> None:
    """Remove the files of all adapters but those with these digests, since the content of others may be deleted."""
    for path in (data_dir / FOLDER).glob("*/*.gguf"):
        if path.stem not in remaining:
            path.unlink(missing_ok=True)
